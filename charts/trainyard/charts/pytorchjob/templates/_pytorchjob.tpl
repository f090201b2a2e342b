{{/* All that this PyTorchJob runs with, as JSON. */}}
{{- define "pytorchjob.run" -}}
{{- $command := list "python" "-m" "trainers.launch" "-m" "trainers.ddp" "--config" "/etc/trainyard/config.json" -}}
{{- include "common.run" (dict "root" . "command" $command "identity" (ternary (list .Values.form .Values.elastic) (list .Values.form) (eq .Values.form "elastic") | mustToJson)) -}}
{{- end -}}

{{/*
A replica. Retried are exit codes of 128 and above; what another try cannot cure ends below (trainers/exits.py).
Call with a dict: root, run, replicas.
*/}}
{{- define "pytorchjob.replica" -}}
replicas: {{ .replicas }}
restartPolicy: ExitCode
template:
  {{- include "common.trainerPod" (dict "root" .root "run" .run "container" "pytorch" "command" .run.command) | nindent 2 }}
{{- end -}}
