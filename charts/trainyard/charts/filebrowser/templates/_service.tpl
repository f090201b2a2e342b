{{/* The page's Service. */}}
{{- define "filebrowser.service" -}}
apiVersion: v1
kind: Service
metadata:
  name: {{ include "filebrowser.name" . }}
  labels:
    {{- include "common.labels" . | nindent 4 }}
spec:
  type: ClusterIP
  selector:
    {{- include "filebrowser.selector" . | nindent 4 }}
  ports:
    - name: http
      port: {{ int .Values.service.port }}
      targetPort: http
      protocol: TCP
{{- end -}}
