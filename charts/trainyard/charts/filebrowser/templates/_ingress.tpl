{{/* The Ingress, if it is enabled. */}}
{{- define "filebrowser.ingress" -}}
{{- with .Values.ingress }}
{{- if .enabled }}
{{- if not .host }}
{{- fail "\n\nfilebrowser.ingress.enabled is true: set filebrowser.ingress.host, the name under which the page is reached.\n" }}
{{- end }}
apiVersion: networking.k8s.io/v1
kind: Ingress
metadata:
  name: {{ include "filebrowser.name" $ }}
  labels:
    {{- include "common.labels" $ | nindent 4 }}
  {{- with .annotations }}
  annotations:
    {{- toYaml . | nindent 4 }}
  {{- end }}
spec:
  {{- with .className }}
  ingressClassName: {{ . | quote }}
  {{- end }}
  {{- with .tls.secretName }}
  tls:
    - hosts:
        - {{ $.Values.ingress.host | quote }}
      secretName: {{ . | quote }}
  {{- end }}
  rules:
    - host: {{ .host | quote }}
      http:
        paths:
          - path: /
            pathType: Prefix
            backend:
              service:
                name: {{ include "filebrowser.name" $ }}
                port:
                  name: http
{{- end }}
{{- end }}
{{- end -}}
