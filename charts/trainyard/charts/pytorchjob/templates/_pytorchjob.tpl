{{/* All that this PyTorchJob runs with, as JSON. */}}
{{- define "pytorchjob.run" -}}
{{- $command := list "python" "-m" "trainers.launch" "-m" "trainers.ddp" "--config" "/etc/trainyard/config.json" -}}
{{- include "common.run" (dict "root" . "command" $command "identity" (ternary (list .Values.form .Values.elastic) (list .Values.form) (eq .Values.form "elastic") | mustToJson)) -}}
{{- end -}}

{{/*
A replica. Exit codes of 128 and above are retried; permanent failures have codes below (trainers/exits.py). Call with a dict: root, run,
replicas.
*/}}
{{- define "pytorchjob.replica" -}}
replicas: {{ .replicas }}
restartPolicy: ExitCode
template:
  {{- $pod := dict "root" .root "run" .run "container" "pytorch" "command" .run.command }}
  {{- include "common.once" (list .root "Replica" "common.trainerPod" $pod) | nindent 2 }}
{{- end -}}

{{/* The PyTorchJob. */}}
{{- define "pytorchjob.job" -}}
{{- $run := include "pytorchjob.run" . | fromJson -}}
{{- $nodes := int $run.nodes -}}
{{- $elastic := eq .Values.form "elastic" -}}
{{- $clean := ternary "None" "Running" $elastic -}}
{{- $least := ternary (int .Values.elastic.minNodes | default $nodes) $nodes $elastic -}}
{{- if gt $least $nodes -}}
{{- fail (printf "\n\npytorchjob.elastic.minNodes is %d, more than the %d of global.training.nodes.\n" $least $nodes) -}}
{{- end -}}
apiVersion: kubeflow.org/v1
kind: PyTorchJob
metadata:
  name: {{ $run.name }}
  labels:
    {{- include "common.jobLabels" . | nindent 4 }}
  {{- with $run.training.jobAnnotations }}
  annotations:
    {{- toYaml . | nindent 4 }}
  {{- end }}
spec:
  nprocPerNode: {{ int $run.processes | quote }}
  runPolicy:
    {{- include "common.runPolicy" (dict "root" . "operator" "kubeflow.org/training-operator" "clean" $clean "least" $least) | nindent 4 }}
  {{- if $elastic }}
  # As many replicas at least as at most, unless values say otherwise: a fixed size, in the form that needs no Master.
  elasticPolicy:
    rdzvBackend: c10d
    minReplicas: {{ $least }}
    maxReplicas: {{ $nodes }}
    maxRestarts: {{ int .Values.elastic.maxRestarts }}
    # torchrun's own 10 minutes are over before a large image is pulled
    rdzvConf:
      - key: join_timeout
        value: {{ int (max 600 $run.training.peers.wait) | quote }}
  pytorchReplicaSpecs:
    Worker:
      {{- include "pytorchjob.replica" (dict "root" . "run" $run "replicas" $nodes) | nindent 6 }}
  {{- else }}
  pytorchReplicaSpecs:
    Master:
      {{- include "pytorchjob.replica" (dict "root" . "run" $run "replicas" 1) | nindent 6 }}
    {{- if gt $nodes 1 }}
    Worker:
      {{- include "pytorchjob.replica" (dict "root" . "run" $run "replicas" (sub $nodes 1)) | nindent 6 }}
    {{- end }}
  {{- end }}
{{- end -}}

{{/* Its run's settings. */}}
{{- define "pytorchjob.settings" -}}
{{- include "common.runConfig" (dict "root" . "run" (include "pytorchjob.run" . | fromJson)) -}}
{{- end -}}
