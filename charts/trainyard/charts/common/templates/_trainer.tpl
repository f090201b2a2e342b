{{/* Environment that the chart gives to all containers of a training pod, then the user's own. In a template that many jobs share
(`shared`) the job's name is the pod's label, and a failed preflight ends the pod: what runs after it may know nothing of it. */}}
{{- define "common.trainerEnv" -}}
- name: HOME
  value: /home/trainer
- name: PYTHONUNBUFFERED
  value: "1"
- name: TRAINYARD_JOB
  {{- if .shared }}
  valueFrom:
    fieldRef:
      fieldPath: metadata.labels['jobset.sigs.k8s.io/jobset-name']
  {{- else }}
  value: {{ .name }}
  {{- end }}
- name: TRAINYARD_GRACE_SECONDS
  value: {{ int .training.gracePeriodSeconds | quote }}
{{- if not .shared }}
- name: TRAINYARD_PREFLIGHT
  value: /tmp/preflight-failed
{{- end }}
{{- if .training.logs.keep }}
- name: TRAINYARD_LOGS
  value: {{ .config.run.dir }}/logs
- name: TRAINYARD_LOG_BYTES
  value: {{ include "common.bytes" .training.logs.size | quote }}
{{- end }}
{{- if .training.peers.check }}
- name: TRAINYARD_PEERS_PORT
  value: {{ int .training.peers.port | quote }}
- name: TRAINYARD_PEERS_WAIT
  value: {{ int .training.peers.wait | quote }}
{{- end }}
{{- if .training.rdma.resource }}
- name: TRAINYARD_TRANSPORT
  value: rdma
{{- end }}
{{- with concat .training.env .training.rdma.env }}
{{ toYaml . }}
{{- end }}
{{- end -}}

{{/*
Resources of a training container: the user's, its GPUs and its RDMA devices, which Kubernetes wants equal in both. Where the user
names no CPU or memory at all, requests that grow with the processes.
*/}}
{{- define "common.trainerResources" -}}
{{- $processes := int (.gpusPerNode | default .processesPerNode) -}}
{{- $shm := include "common.bytes" .shmSize | int64 -}}
{{- $gibibytes := add (div (add $shm 1073741823) 1073741824) (mul 4 $processes) -}}
{{- $least := dict -}}
{{- range $name, $amount := dict "cpu" (toString $processes) "memory" (printf "%dGi" $gibibytes) -}}
{{- if not (or (hasKey $.resources.requests $name) (hasKey $.resources.limits $name)) -}}
{{- $_ := set $least $name $amount -}}
{{- end -}}
{{- end -}}
{{- $devices := dict -}}
{{- if .gpusPerNode -}}
{{- $_ := set $devices "nvidia.com/gpu" (int .gpusPerNode) -}}
{{- end -}}
{{- if .rdma.resource -}}
{{- $_ := set $devices .rdma.resource (int .rdma.count) -}}
{{- end -}}
{{- $resources := dict -}}
{{- range $kind := list "requests" "limits" -}}
{{- with merge (dict) $devices (get $.resources $kind) (ternary $least (dict) (eq $kind "requests")) -}}
{{- $_ := set $resources $kind . -}}
{{- end -}}
{{- end -}}
{{- include "common.quantities" $resources -}}
{{- end -}}

{{/* Requests and limits, with fractions as text: `cpu: 0.5` is a number to YAML, and the schemas of PyTorchJob and MPIJob take none. */}}
{{- define "common.quantities" -}}
{{- $resources := dict -}}
{{- range $kind, $amounts := . -}}
{{- $texts := dict -}}
{{- range $name, $amount := $amounts -}}
{{- $fraction := and (kindIs "float64" $amount) (ne (floor $amount) $amount) -}}
{{- $_ := set $texts $name (ternary (toString $amount) $amount $fraction) -}}
{{- end -}}
{{- $_ := set $resources $kind $texts -}}
{{- end -}}
{{- toYaml $resources -}}
{{- end -}}

{{/* Resources of the preflight: a little, and the GPUs it looks at, which the training container then takes over. */}}
{{- define "common.preflightResources" -}}
{{- $gpus := dict -}}
{{- if .gpusPerNode -}}
{{- $_ := set $gpus "nvidia.com/gpu" (int .gpusPerNode) -}}
{{- end -}}
{{- toYaml (dict "requests" (merge (dict "cpu" "100m" "memory" "128Mi") $gpus) "limits" (merge (dict "cpu" "1" "memory" "2Gi") $gpus)) -}}
{{- end -}}

{{/*
Init container that waits for the dataset and checks what is local to the pod. In a template that many jobs share it asks for no GPUs: a
job that wants fewer would get as many all the same.
*/}}
{{- define "common.preflight" -}}
{{- $training := ternary (omit .run.training "gpusPerNode") .run.training (not (empty .run.shared)) -}}
- name: preflight
  image: {{ .run.image | quote }}
  imagePullPolicy: {{ .root.Values.global.image.pullPolicy }}
  command:
    - python
    - -m
    - trainers.preflight
    {{- if not .run.ungated }}
    - --data
    - {{ .run.config.data.dir | quote }}
    {{- end }}
    - --results
    - {{ .run.config.run.dir | quote }}
    - --shm
    - {{ include "common.bytes" .run.training.shmSize | quote }}
    - --timeout
    - {{ int .root.Values.global.dataset.wait | quote }}
    {{- if .root.Values.global.scheduling.queue }}
    - --idle
    - {{ int .root.Values.global.dataset.idleWait | quote }}
    {{- end }}
    {{- if $training.gpusPerNode }}
    - --gpus
    - {{ int $training.gpusPerNode | quote }}
    {{- end }}
  env:
    {{- include "common.trainerEnv" .run | nindent 4 }}
  resources:
    {{- include "common.preflightResources" $training | nindent 4 }}
  {{- include "common.lastWord" . | nindent 2 }}
  securityContext:
    {{- include "common.containerSecurity" "" | nindent 4 }}
  volumeMounts:
    {{- include "common.trainerMounts" .root | nindent 4 }}
{{- end -}}

{{/* Mounts of a training container. */}}
{{- define "common.trainerMounts" -}}
- name: trainyard
  mountPath: /etc/trainyard
  readOnly: true
{{ include "common.claimMount" (list . "data" .Values.global.storage.data.readOnly) }}
{{ include "common.claimMount" (list . "results" false) }}
- name: shm
  mountPath: /dev/shm
{{ include "common.scratchMounts" . }}
{{- with include "common.passwdMount" . }}
{{ . }}
{{- end }}
{{- end -}}

{{/* The run's settings and secrets as one read-only volume, /etc/trainyard. */}}
{{- define "common.trainerConfigVolume" -}}
- name: trainyard
  projected:
    defaultMode: 288  # 0440
    sources:
      - configMap:
          name: {{ .run.name }}-run
      {{- include "common.secretSource" (dict "root" .root "which" "wandb" "keys" (list "WANDB_API_KEY") "optional" false) | nindent 6 }}
{{- end -}}

{{/*
The pod template of a training pod, the same for every kind of job.
Call with a dict: root, run (from common.run), container (its name), command, restartPolicy where the job needs one in the pod,
own, what a spread constraint counts where the operator's labels are others, ports, a list, and extra, further YAML of the container.
*/}}
{{- define "common.trainerPod" -}}
{{- $run := .run -}}
{{- $training := .run.training -}}
metadata:
  labels:
    {{- include "common.podLabels" .root | nindent 4 }}
    {{- with $training.podLabels }}
    {{- toYaml . | nindent 4 }}
    {{- end }}
  {{- with include "common.trainerAnnotations" (list .root $training.podAnnotations) | fromYaml }}
  annotations:
    {{- toYaml . | nindent 4 }}
  {{- end }}
spec:
  {{- include "common.podHead" (dict "root" .root "scheduling" .root.Values.global.scheduling "job" $run.name "own" .own) | nindent 2 }}
  {{- with .restartPolicy }}
  restartPolicy: {{ . }}
  {{- end }}
  terminationGracePeriodSeconds: {{ int $training.gracePeriodSeconds }}
  initContainers:
    {{- include "common.preflight" . | nindent 4 }}
    {{- with $training.extraInitContainers }}
    {{- toYaml . | nindent 4 }}
    {{- end }}
  containers:
    - name: {{ .container }}
      image: {{ $run.image | quote }}
      imagePullPolicy: {{ .root.Values.global.image.pullPolicy }}
      command:
        {{- toYaml .command | nindent 8 }}
      env:
        {{- include "common.trainerEnv" $run | nindent 8 }}
      {{- with include "common.trainerPorts" (list .root .ports) | fromYamlArray }}
      ports:
        {{- toYaml . | nindent 8 }}
      {{- end }}
      {{- with .extra }}
      {{- . | nindent 6 }}
      {{- end }}
      resources:
        {{- include "common.trainerResources" $training | nindent 8 }}
      {{- include "common.lastWord" . | nindent 6 }}
      securityContext:
        {{- include "common.containerSecurity" $training.rdma.resource | nindent 8 }}
      volumeMounts:
        {{- include "common.trainerMounts" .root | nindent 8 }}
        {{- with $training.extraVolumeMounts }}
        {{- toYaml . | nindent 8 }}
        {{- end }}
  volumes:
    {{- include "common.trainerConfigVolume" . | nindent 4 }}
    {{- include "common.claimVolume" (list .root "data") | nindent 4 }}
    {{- include "common.claimVolume" (list .root "results") | nindent 4 }}
    - name: shm
      emptyDir:
        medium: Memory
        sizeLimit: {{ $training.shmSize | quote }}
    {{- include "common.scratchVolumes" . | nindent 4 }}
    {{- with $training.extraVolumes }}
    {{- toYaml . | nindent 4 }}
    {{- end }}
{{- end -}}

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
A job's run policy. Call with a dict: root; operator, which runs it; clean, the cleanPodPolicy unless values say another; and least, the
pods without which none may start: the training pods alone, since an MPI launcher is created once they are ready.
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
