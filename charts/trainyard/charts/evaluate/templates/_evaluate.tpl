{{/*
Settings of the evaluation's pod, as JSON; settings that break it are refused. Its own scheduling replaces global.scheduling key by key;
topologySpreadConstraints apply only to trainers.
*/}}
{{- define "evaluate.podSettings" -}}
{{- include "common.once" (list . "Pod" "evaluate.checkedPod" .) -}}
{{- end -}}

{{- define "evaluate.checkedPod" -}}
{{- $pod := include "common.podSettings" .Values | fromJson -}}
{{- $shared := omit .Values.global.scheduling "topologySpreadConstraints" -}}
{{- $_ := set $pod "scheduling" (include "common.placement" (list $shared $pod.scheduling) | fromJson) -}}
{{- if and (gt (int .Values.gpus) 0) (gt (int .Values.processes) 1) -}}
{{- fail "\n\nevaluate.processes is for evaluation on the CPU (evaluate.gpus: 0); with GPUs there is one process for each.\n" -}}
{{- end -}}
{{- if and (gt (int .Values.gpus) 0) (not (include "evaluate.gpuResource" .)) -}}
{{- fail "\n\nevaluate.gpus is set, and global.training.gpuResource is empty: set it, such as nvidia.com/gpu.\n" -}}
{{- end -}}
{{- $own := list "HOME" "PYTHONUNBUFFERED" "RANK" "WORLD_SIZE" "MASTER_ADDR" "MASTER_PORT" "PET_NNODES" "PET_NPROC_PER_NODE" -}}
{{- $mounts := list "/etc/trainyard" "/data" "/results" "/dev/shm" "/tmp" "/home/trainer" "/etc/trainyard-ca" "/etc/passwd" -}}
{{- $volumes := list "trainyard" "data" "results" "shm" "tmp" "home" "ca-bundle" -}}
{{- include "common.checkPod" (dict "path" "evaluate" "pod" $pod "env" $own "mounts" $mounts "volumes" $volumes "containers" (list "evaluate")) -}}
{{- mustToJson $pod -}}
{{- end -}}

{{/* The device plugin's name of a GPU. */}}
{{- define "evaluate.gpuResource" -}}
{{- dig "gpuResource" "nvidia.com/gpu" .Values.global.training -}}
{{- end -}}

{{/* Resources of the pod, with its GPUs. */}}
{{- define "evaluate.resources" -}}
{{- $resources := deepCopy .Values.resources -}}
{{- if .Values.gpus -}}
{{- range $kind := list "requests" "limits" -}}
{{- $_ := set $resources $kind (merge (dict (include "evaluate.gpuResource" $) (int $.Values.gpus)) (get $resources $kind | default dict)) -}}
{{- end -}}
{{- end -}}
{{- include "common.quantities" $resources -}}
{{- end -}}

{{/*
The command, as JSON. A run of this release is waited for with its settings, since the model of an earlier, shorter one may be there already.
*/}}
{{- define "evaluate.command" -}}
{{- $processes := int .Values.gpus | default (int .Values.processes) -}}
{{- $command := list "python" "-m" -}}
{{- if gt $processes 1 -}}{{- $command = concat $command (list "trainers.launch" "--nproc-per-node" (toString $processes) "-m") -}}{{- end -}}
{{- $data := .Values.data | default (printf "/data/%s" .Values.global.dataset.name) -}}
{{- $named := base $data -}}
{{- with .Values.split -}}{{- $named = printf "%s-%s" $named . -}}{{- end -}}
{{- $out := .Values.out | default (printf "evaluations/%s/%s" .Evaluated.run $named) -}}
{{- $command = concat $command (list "trainers.evaluate" "--model" (printf "/results/runs/%s" .Evaluated.run) "--data" $data "--out" (printf "/results/%s" $out)) -}}
{{- with .Values.split -}}{{- $command = concat $command (list "--split" .) -}}{{- end -}}
{{- with int .Values.batch -}}{{- $command = concat $command (list "--batch" (toString .)) -}}{{- end -}}
{{- $command = concat $command (list "--wait" (int .Values.wait | toString)) -}}
{{- if .Evaluated.config -}}{{- $command = concat $command (list "--run-config" "/etc/trainyard/config.json") -}}{{- end -}}
{{- mustToJson $command -}}
{{- end -}}

{{/* The evaluation's pod template. Call with a dict: root, configMap. */}}
{{- define "evaluate.pod" -}}
{{- $root := .root -}}
{{- $pod := include "evaluate.podSettings" $root | fromJson -}}
{{- $alike := include "common.partSelector" $root | fromJson -}}
metadata:
  {{- include "common.podMetadata" (dict "root" $root "pod" $pod) | nindent 2 }}
spec:
  {{- include "common.podHead" (dict "root" $root "pod" $pod "scheduling" $pod.scheduling "own" $alike) | nindent 2 }}
  restartPolicy: Never
  {{- with include "common.sidecars" $pod | trim }}
  initContainers:
    {{- . | nindent 4 }}
  {{- end }}
  containers:
    - name: evaluate
      image: {{ include "common.image" $root | quote }}
      imagePullPolicy: {{ $root.Values.global.image.pullPolicy }}
      command:
        {{- include "evaluate.command" $root | fromJsonArray | toYaml | nindent 8 }}
      env:
        {{- include "common.env" (dict "root" $root "own" dict "env" $pod.env) | nindent 8 }}
      {{- with $pod.envFrom }}
      envFrom:
        {{- toYaml . | nindent 8 }}
      {{- end }}
      resources:
        {{- include "evaluate.resources" $root | nindent 8 }}
      {{- include "common.lastWord" . | nindent 6 }}
      securityContext:
        {{- include "common.containerSecurity" "" | nindent 8 }}
      volumeMounts:
        - name: trainyard
          mountPath: /etc/trainyard
          readOnly: true
        {{- include "common.claimMount" (list $root "data" true) | nindent 8 }}
        {{- include "common.claimMount" (list $root "results" false) | nindent 8 }}
        - name: shm
          mountPath: /dev/shm
        {{- include "common.scratchMounts" $root | nindent 8 }}
        {{- with include "common.passwdMount" $root }}
        {{- . | nindent 8 }}
        {{- end }}
        {{- with $pod.extraVolumeMounts }}
        {{- toYaml . | nindent 8 }}
        {{- end }}
  volumes:
    - name: trainyard
      configMap:
        name: {{ .configMap | quote }}
        defaultMode: 288  # 0440
    {{- include "common.claimVolume" (list $root "data") | nindent 4 }}
    {{- include "common.claimVolume" (list $root "results") | nindent 4 }}
    - name: shm
      emptyDir:
        medium: Memory
        sizeLimit: {{ $root.Values.global.training.shmSize | quote }}
    {{- include "common.scratchVolumes" $root | nindent 4 }}
    {{- with $pod.extraVolumes }}
    {{- toYaml . | nindent 4 }}
    {{- end }}
{{- end -}}

{{/* Labels of the Job by which Kueue queues it. */}}
{{- define "evaluate.queueLabels" -}}
{{- include "common.queueLabels" (include "evaluate.podSettings" . | fromJson).scheduling -}}
{{- end -}}

{{/*
Name of the Job. Its hash covers all that Kubernetes or Kueue would refuse to change, and the settings of the run: another model, dataset or
image is a new Job, and so is the same run with other settings, whose model the new Job waits for.
*/}}
{{- define "evaluate.name" -}}
{{- include "common.once" (list . "Name" "evaluate.hashedName" .) -}}
{{- end -}}

{{- define "evaluate.hashedName" -}}
{{- $pod := include "evaluate.pod" (dict "root" . "configMap" "") -}}
{{- $bounds := printf "%d %d" (int .Values.backoffLimit) (int .Values.activeDeadlineSeconds) -}}
{{- include "common.jobName" (list . (printf "%s%s%s%s" (mustToJson .Evaluated) $pod (include "evaluate.queueLabels" .) $bounds)) -}}
{{- end -}}

{{/* The Job. */}}
{{- define "evaluate.job" -}}
{{- $name := include "evaluate.name" . -}}
apiVersion: batch/v1
kind: Job
metadata:
  name: {{ $name }}
  labels:
    {{- include "common.labels" . | nindent 4 }}
    {{- with include "evaluate.queueLabels" . | trim }}
    {{- . | nindent 4 }}
    {{- end }}
  {{- with .Values.jobAnnotations }}
  annotations:
    {{- toYaml . | nindent 4 }}
  {{- end }}
spec:
  backoffLimit: {{ int .Values.backoffLimit }}
  activeDeadlineSeconds: {{ int .Values.activeDeadlineSeconds }}
  # Exit code 2 is a wrong setting or input: another try would end the same. A drained node is not the evaluation's fault.
  podFailurePolicy:
    rules:
      - action: FailJob
        onExitCodes:
          containerName: evaluate
          operator: In
          values: [2]
      - action: Ignore
        onPodConditions:
          - type: DisruptionTarget
            status: "True"
  template:
    {{- include "evaluate.pod" (dict "root" . "configMap" (printf "%s-run" $name)) | nindent 4 }}
{{- end -}}

{{/* The settings of the run that it waits for. */}}
{{- define "evaluate.settings" -}}
{{- include "common.runConfig" (dict "root" . "run" (dict "name" (include "evaluate.name" .) "config" .Evaluated.config)) -}}
{{- end -}}
