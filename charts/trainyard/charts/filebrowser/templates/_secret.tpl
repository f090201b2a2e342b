{{/* The Secret for a password from values. */}}
{{- define "filebrowser.passwordSecret" -}}
{{- if .Values.auth.password }}
apiVersion: v1
kind: Secret
metadata:
  name: {{ include "filebrowser.secret" . }}
  labels:
    {{- include "common.labels" . | nindent 4 }}
type: Opaque
data:
  password: {{ .Values.auth.password | b64enc | quote }}
{{- end }}
{{- end -}}
