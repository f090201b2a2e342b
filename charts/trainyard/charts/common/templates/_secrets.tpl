{{/* Name of a Secret. Call with a list: the context, and `kaggle`, `objectstore`, `http`, `wandb` or `mlflow`. */}}
{{- define "common.secret" -}}
{{- $root := index . 0 -}}
{{- $secret := index $root.Values.global.secrets (index . 1) -}}
{{- $secret.existingSecret | default (printf "%s-%s" $root.Release.Name (index . 1)) -}}
{{- end -}}

{{/*
Whether a Secret must exist before a pod starts: true, or nothing. True for one that values name and for one that values or an operator create
for this release (.Facts.made); any other may be absent. Call as common.secret.
*/}}
{{- define "common.secretRequired" -}}
{{- $root := index . 0 -}}
{{- if or (index $root.Values.global.secrets (index . 1)).existingSecret (has (index . 1) $root.Facts.made) -}}true{{- end -}}
{{- end -}}

{{/* Where a pod finds its mounted secrets. */}}
{{- define "common.secretsFolder" -}}/var/run/secrets/trainyard{{- end -}}

{{/* A Secret as a volume, with all its keys: the program reports a missing one. Call as common.secret. */}}
{{- define "common.secretVolume" -}}
- name: secret-{{ index . 1 }}
  secret:
    secretName: {{ include "common.secret" . | quote }}
    defaultMode: 288  # 0440
    optional: {{ empty (include "common.secretRequired" .) }}
{{- end -}}

{{/* Where it is mounted. Call with its name. */}}
{{- define "common.secretMount" -}}
- name: secret-{{ . }}
  mountPath: {{ include "common.secretsFolder" . }}/{{ . }}
  readOnly: true
{{- end -}}
