{{/* Name of the Secret that this part makes. Call with a list: the context, and `kaggle`, `objectstore`, `http`, `wandb`, `mlflow` or `registry`. */}}
{{- define "secrets.name" -}}
{{- printf "%s-%s" (index . 0).Release.Name (index . 1) -}}
{{- end -}}

{{/* Refuse values that create the same Secret twice, or one that nothing reads. Call with a list: the context, which, and from where. */}}
{{- define "secrets.check" -}}
{{- $root := index . 0 -}}
{{- $which := index . 1 -}}
{{- $name := include "secrets.name" (list $root $which) -}}
{{- if eq $which "registry" -}}
{{- if not (has $name $root.Values.global.image.pullSecrets) -}}
{{- fail (printf "\n\n%s makes the pull secret %s: add it to global.image.pullSecrets.\n" (index . 2) $name) -}}
{{- end -}}
{{- else if (index $root.Values.global.secrets $which).existingSecret -}}
{{- fail (printf "\n\n%s makes a Secret, and global.secrets.%s.existingSecret names another: keep one of them.\n" (index . 2) $which) -}}
{{- end -}}
{{- end -}}

{{/* Keys and values of each Secret that values make, as JSON; refuses halves. */}}
{{- define "secrets.fromValues" -}}
{{- $kaggle := dict "KAGGLE_USERNAME" .Values.kaggle.username "KAGGLE_KEY" .Values.kaggle.key "KAGGLE_API_TOKEN" .Values.kaggle.token "kaggle.json" .Values.kaggle.json -}}
{{- if ne (empty .Values.kaggle.username) (empty .Values.kaggle.key) -}}
{{- fail "\n\nsecrets.kaggle.username and secrets.kaggle.key belong together: set both, or secrets.kaggle.token instead.\n" -}}
{{- end -}}
{{- if ne (empty .Values.objectstore.accessKeyId) (empty .Values.objectstore.secretAccessKey) -}}
{{- fail "\n\nsecrets.objectstore.accessKeyId and secrets.objectstore.secretAccessKey belong together: set both.\n" -}}
{{- end -}}
{{- $store := dict -}}
{{- if .Values.objectstore.accessKeyId -}}
{{- with .Values.objectstore -}}
{{- $store = dict "AWS_ACCESS_KEY_ID" .accessKeyId "AWS_SECRET_ACCESS_KEY" .secretAccessKey "AWS_SESSION_TOKEN" .sessionToken "AWS_REGION" .region -}}
{{- end -}}
{{- end -}}
{{- $registry := dict -}}
{{- with .Values.registry -}}
{{- if ne (empty .username) (empty .password) -}}
{{- fail "\n\nsecrets.registry.username and secrets.registry.password belong together: set both.\n" -}}
{{- end -}}
{{- if .username -}}
{{- $server := .server | default (first (splitList "/" $.Values.global.image.registry)) -}}
{{- $auth := printf "%s:%s" .username .password | b64enc -}}
{{- $_ := set $registry ".dockerconfigjson" (mustToJson (dict "auths" (dict $server (dict "username" .username "password" .password "auth" $auth)))) -}}
{{- end -}}
{{- end -}}
{{- $mlflow := dict "MLFLOW_TRACKING_TOKEN" .Values.mlflow.token "MLFLOW_TRACKING_USERNAME" .Values.mlflow.username "MLFLOW_TRACKING_PASSWORD" .Values.mlflow.password -}}
{{- if or (ne (empty .Values.mlflow.username) (empty .Values.mlflow.password)) (and .Values.mlflow.token .Values.mlflow.username) -}}
{{- fail "\n\nsecrets.mlflow: set token, or username and password.\n" -}}
{{- end -}}
{{- mustToJson (dict "kaggle" $kaggle "mlflow" $mlflow "objectstore" $store "http" (dict "netrc" .Values.http.netrc "url" .Values.http.url "weights-url" .Values.http.weightsUrl) "wandb" (dict "WANDB_API_KEY" .Values.wandb.apiKey) "registry" $registry) -}}
{{- end -}}
