{{/* ExternalSecrets, from which External Secrets Operator creates Secrets. */}}
{{- define "secrets.externalsecrets" -}}
{{- $external := .Values.external }}
{{- $made := include "secrets.fromValues" . | fromJson }}
{{- range $which := list "kaggle" "objectstore" "http" "wandb" "mlflow" "registry" }}
{{- $from := index $external $which }}
{{- if $from.remoteKey }}
{{- if not $external.store.name }}
{{- fail (printf "\n\nsecrets.external.%s.remoteKey is set: set secrets.external.store.name, the SecretStore that holds it.\n" $which) }}
{{- end }}
{{- if compact (values (index $made $which)) }}
{{- fail (printf "\n\nsecrets.%s and secrets.external.%s would make the same Secret: keep one of them.\n" $which $which) }}
{{- end }}
{{- include "secrets.check" (list $ $which (printf "secrets.external.%s" $which)) }}
---
apiVersion: external-secrets.io/v1
kind: ExternalSecret
metadata:
  name: {{ include "secrets.name" (list $ $which) }}
  labels:
    {{- include "common.labels" $ | nindent 4 }}
spec:
  refreshInterval: {{ $external.refreshInterval | quote }}
  secretStoreRef:
    kind: {{ $external.store.kind }}
    name: {{ $external.store.name | quote }}
  target:
    name: {{ include "secrets.name" (list $ $which) }}
    creationPolicy: Owner
    {{- if eq $which "registry" }}
    template:
      type: kubernetes.io/dockerconfigjson
    {{- end }}
  {{- if $from.properties }}
  data:
    {{- range $key, $property := $from.properties }}
    - secretKey: {{ $key | quote }}
      remoteRef:
        key: {{ $from.remoteKey | quote }}
        property: {{ $property | quote }}
    {{- end }}
  {{- else }}
  dataFrom:
    - extract:
        key: {{ $from.remoteKey | quote }}
  {{- end }}
{{- end }}
{{- end }}
{{- end -}}
