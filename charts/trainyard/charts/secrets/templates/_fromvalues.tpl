{{/* Secrets created from values. */}}
{{- define "secrets.secrets" -}}
{{- range $which, $keys := include "secrets.fromValues" . | fromJson }}
{{- $set := dict }}
{{- range $key, $value := $keys }}
{{- if $value }}
{{- $_ := set $set $key (b64enc $value) }}
{{- end }}
{{- end }}
{{- if $set }}
{{- include "secrets.check" (list $ $which (printf "secrets.%s" $which)) }}
---
apiVersion: v1
kind: Secret
metadata:
  name: {{ include "secrets.name" (list $ $which) }}
  labels:
    {{- include "common.labels" $ | nindent 4 }}
type: {{ ternary "kubernetes.io/dockerconfigjson" "Opaque" (eq $which "registry") }}
data:
  {{- toYaml $set | nindent 2 }}
{{- end }}
{{- end }}
{{- end -}}
