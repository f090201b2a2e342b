{{/* The run's settings as a ConfigMap. Its name has the job's hash: pods of an older job keep the settings they started with. */}}
{{- define "common.runConfig" -}}
apiVersion: v1
kind: ConfigMap
metadata:
  name: {{ .run.name }}-run
  labels:
    {{- include "common.labels" .root | nindent 4 }}
data:
  config.json: |
    {{- mustToPrettyJson .run.config | nindent 4 }}
  {{- with include "common.passwd" .root }}
  passwd: |
    {{- . | nindent 4 }}
  {{- end }}
{{- end -}}

{{/*
A job's run policy. Call with a dict: root; operator, which runs it; clean, the cleanPodPolicy unless values set another; and least, the
number of pods that must start together: only the training pods, since an MPI launcher is created once they are ready.
*/}}
{{- define "common.runPolicy" -}}
{{- $policy := deepCopy .root.Values.runPolicy -}}
{{- $_ := set $policy "cleanPodPolicy" ($policy.cleanPodPolicy | default .clean) -}}
{{- if and (hasPrefix "kubeflow.org/" (toString $policy.managedBy)) (ne $policy.managedBy .operator) -}}
{{- fail (printf "\n\n%s.runPolicy.managedBy is %s, which leaves the job to nobody: it is run by %s.\n" .root.Chart.Name $policy.managedBy .operator) -}}
{{- end -}}
{{- with .root.Values.global.scheduling.gang -}}
{{- if .enabled -}}
{{- $group := dict "minAvailable" (int $.least) -}}
{{- with .queue }}{{ $_ := set $group "queue" . }}{{ end -}}
{{- with .priorityClass }}{{ $_ := set $group "priorityClass" . }}{{ end -}}
{{- with .timeoutSeconds }}{{ $_ := set $group "scheduleTimeoutSeconds" (int .) }}{{ end -}}
{{- $_ := set $policy "schedulingPolicy" $group -}}
{{- end -}}
{{- end -}}
{{- toYaml $policy -}}
{{- end -}}

{{/* Labels of a training job: those of every object, and Kueue's. */}}
{{- define "common.jobLabels" -}}
{{ include "common.labels" . }}
{{- include "common.queueLabels" .Values.global.scheduling }}
{{- end -}}

{{/* Labels by which Kueue queues a job. They belong to the job alone: its name does not cover them. Call with the scheduling. */}}
{{- define "common.queueLabels" -}}
{{- with .queue }}
kueue.x-k8s.io/queue-name: {{ . | quote }}
{{- end }}
{{- with .queuePriority }}
kueue.x-k8s.io/priority-class: {{ . | quote }}
{{- end }}
{{- end -}}
