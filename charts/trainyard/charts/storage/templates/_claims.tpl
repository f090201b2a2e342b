{{/* The claims for which values name no existing one. */}}
{{- define "storage.claims" -}}
{{- range $which := list "data" "results" }}
{{- $claim := index $.Values.global.storage $which }}
{{- if not $claim.existingClaim }}
---
apiVersion: v1
kind: PersistentVolumeClaim
metadata:
  name: {{ include "common.claim" (list $ $which) }}
  labels:
    {{- include "common.labels" $ | nindent 4 }}
  annotations:
    # What took days to make goes only when a person deletes it: neither Helm nor Argo CD does.
    helm.sh/resource-policy: keep
    argocd.argoproj.io/sync-options: Delete=false,Prune=false
    # A class may wait for a claim's first pod, and an Application of claims alone would never be called healthy
    argocd.argoproj.io/ignore-healthcheck: "true"
    {{- with $claim.annotations }}
    {{- toYaml . | nindent 4 }}
    {{- end }}
spec:
  accessModes:
    {{- toYaml ($claim.accessModes | default (list "ReadWriteMany")) | nindent 4 }}
  {{- with $claim.storageClass }}
  storageClassName: {{ ternary "" . (eq . "-") | quote }}
  {{- end }}
  {{- with $claim.volumeName }}
  volumeName: {{ . | quote }}
  {{- end }}
  resources:
    requests:
      storage: {{ include "common.claimSize" (list $ $which) | quote }}
{{- end }}
{{- end }}
{{- end -}}
