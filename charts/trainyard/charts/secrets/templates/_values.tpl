{{/* Refuse values that create the same Secret twice, or one that nothing reads. Call with a list: the context, which, and from where. */}}
{{- define "secrets.check" -}}
{{- $root := index . 0 -}}
{{- $which := index . 1 -}}
{{- $name := printf "%s-%s" $root.Release.Name $which -}}
{{- if eq $which "registry" -}}
{{- if not (has $name $root.Values.global.image.pullSecrets) -}}
{{- include "common.refuse" (printf "\n\n%s makes the pull secret %s: add it to global.image.pullSecrets.\n" (index . 2) $name) -}}
{{- end -}}
{{- else if (index $root.Values.global.secrets $which).existingSecret -}}
{{- include "common.refuse" (printf "\n\n%s makes a Secret, and global.secrets.%s.existingSecret names another: keep one of them.\n" (index . 2) $which) -}}
{{- end -}}
{{- end -}}

{{/* Set .FromValues, the keys and values of each Secret that values make; refuses halves. */}}
{{- define "secrets.fromValues" -}}
{{- $registry := dict -}}
{{- $store := dict -}}
{{- with .Values -}}
{{- if ne (empty .kaggle.username) (empty .kaggle.key) -}}
{{- include "common.refuse" "\n\nsecrets.kaggle.username and secrets.kaggle.key belong together: set both, or secrets.kaggle.token instead.\n" -}}
{{- end -}}
{{- if ne (empty .objectstore.accessKeyId) (empty .objectstore.secretAccessKey) -}}
{{- include "common.refuse" "\n\nsecrets.objectstore.accessKeyId and secrets.objectstore.secretAccessKey belong together: set both.\n" -}}
{{- end -}}
{{- with .objectstore -}}
{{- if .accessKeyId -}}
{{- $keys := dict "AWS_ACCESS_KEY_ID" .accessKeyId "AWS_SECRET_ACCESS_KEY" .secretAccessKey -}}
{{- $store = merge $keys (dict "AWS_SESSION_TOKEN" .sessionToken "AWS_REGION" .region) -}}
{{- end -}}
{{- end -}}
{{- with .registry -}}
{{- if ne (empty .username) (empty .password) -}}
{{- include "common.refuse" "\n\nsecrets.registry.username and secrets.registry.password belong together: set both.\n" -}}
{{- end -}}
{{- if .username -}}
{{- $server := .server | default (first (splitList "/" $.Values.global.image.registry)) -}}
{{- $auth := printf "%s:%s" .username .password | b64enc -}}
{{- $login := dict "username" .username "password" .password "auth" $auth -}}
{{- $registry = dict ".dockerconfigjson" (mustToJson (dict "auths" (dict $server $login))) -}}
{{- end -}}
{{- end -}}
{{- if or (ne (empty .mlflow.username) (empty .mlflow.password)) (and .mlflow.token .mlflow.username) -}}
{{- include "common.refuse" "\n\nsecrets.mlflow: set token, or username and password.\n" -}}
{{- end -}}
{{- $_ := set $ "FromValues" (dict
  "kaggle" (dict
    "KAGGLE_USERNAME" .kaggle.username "KAGGLE_KEY" .kaggle.key "KAGGLE_API_TOKEN" .kaggle.token "kaggle.json" .kaggle.json)
  "mlflow" (dict
    "MLFLOW_TRACKING_TOKEN" .mlflow.token "MLFLOW_TRACKING_USERNAME" .mlflow.username "MLFLOW_TRACKING_PASSWORD" .mlflow.password)
  "objectstore" $store
  "http" (dict "netrc" .http.netrc "url" .http.url "weights-url" .http.weightsUrl)
  "wandb" (dict "WANDB_API_KEY" .wandb.apiKey)
  "registry" $registry) -}}
{{- end -}}
{{- end -}}
