{{/*
Environment that the chart gives to all containers of a training pod, then the user's own. Namespace and release are whose the run directory
is: the namespace is the pod's own, wherever the rendered files are applied. In a template that many jobs share (`shared`) the job's name is the
pod's label, and a failed preflight ends the pod, since the user's function may not check its result. Call with a dict: root, run, and, for the
launcher, own, as for common.env, and env, which comes after the training's.
*/}}
{{- define "common.trainerEnv" -}}
{{- $run := .run -}}
{{- $own := dict "TRAINYARD_JOB" $run.name "TRAINYARD_RELEASE" .root.Release.Name -}}
{{- $_ := set $own "TRAINYARD_NAMESPACE" (dict "valueFrom" (dict "fieldRef" (dict "fieldPath" "metadata.namespace"))) -}}
{{- if $run.shared -}}
{{- $name := dict "fieldPath" "metadata.labels['jobset.sigs.k8s.io/jobset-name']" -}}
{{- $_ := set $own "TRAINYARD_JOB" (dict "valueFrom" (dict "fieldRef" $name)) -}}
{{- else -}}
{{- $_ := set $own "TRAINYARD_PREFLIGHT" "/tmp/preflight-failed" -}}
{{- end -}}
{{- with $run.training -}}
{{- $_ := set $own "TRAINYARD_GRACE_SECONDS" (int .gracePeriodSeconds | toString) -}}
{{- if .logs.keep -}}
{{- $_ := set $own "TRAINYARD_LOGS" (printf "%s/logs" $run.config.run.dir) -}}
{{- $_ := set $own "TRAINYARD_LOG_BYTES" (include "common.bytes" .logs.size) -}}
{{- end -}}
{{- if .peers.check -}}
{{- $_ := set $own "TRAINYARD_PEERS_PORT" (int .peers.port | toString) -}}
{{- $_ := set $own "TRAINYARD_PEERS_WAIT" (int .peers.wait | toString) -}}
{{- end -}}
{{- if .rdma.resource -}}{{- $_ := set $own "TRAINYARD_TRANSPORT" "rdma" -}}{{- end -}}
{{- end -}}
{{- $further := .env | default list -}}
{{- $taken := dict -}}
{{- range $further -}}{{- $_ := set $taken .name true -}}{{- end -}}
{{- $env := list -}}
{{- range concat $run.training.env $run.training.rdma.env -}}
{{- if not (hasKey $taken .name) -}}{{- $env = append $env . -}}{{- end -}}
{{- end -}}
{{- include "common.env" (dict "root" .root "own" (merge $own (.own | default dict)) "env" (concat $env $further)) -}}
{{- end -}}

{{/*
Resources of a training container: the user's, its GPUs and its RDMA devices, which Kubernetes requires to be equal in both. If the user names
no CPU or memory at all, requests that grow with the processes.
*/}}
{{- define "common.trainerResources" -}}
{{- include "common.quantities" (include "common.trainerAmounts" . | fromJson) -}}
{{- end -}}

{{/* The same as JSON. */}}
{{- define "common.trainerAmounts" -}}
{{- $processes := int (.gpusPerNode | default .processesPerNode) -}}
{{- $shm := include "common.bytes" .shmSize | int64 -}}
{{- $gibibytes := add (div (add $shm 1073741823) 1073741824) (mul 4 $processes) -}}
{{- $least := dict -}}
{{- range $name, $amount := dict "cpu" (toString $processes) "memory" (printf "%dGi" $gibibytes) -}}
{{- if not (or (hasKey $.resources.requests $name) (hasKey $.resources.limits $name)) -}}
{{- $_ := set $least $name $amount -}}
{{- end -}}
{{- end -}}
{{- $devices := include "common.gpus" . | fromJson -}}
{{- if .rdma.resource -}}
{{- $_ := set $devices .rdma.resource (int .rdma.count) -}}
{{- end -}}
{{- $resources := dict -}}
{{- with .resourceClaims -}}
{{- $claims := list -}}
{{- range . -}}{{- $claims = append $claims (pick . "name") -}}{{- end -}}
{{- $_ := set $resources "claims" $claims -}}
{{- end -}}
{{- range $kind := list "requests" "limits" -}}
{{- with merge (dict) $devices (get $.resources $kind) (ternary $least (dict) (eq $kind "requests")) -}}
{{- $_ := set $resources $kind . -}}
{{- end -}}
{{- end -}}
{{- mustToJson $resources -}}
{{- end -}}

{{/* Requests and limits, with fractions as text: `cpu: 0.5` is a number to YAML, and the schemas of PyTorchJob and MPIJob take none. */}}
{{- define "common.quantities" -}}
{{- $resources := pick . "claims" -}}
{{- range $kind, $amounts := omit . "claims" -}}
{{- $texts := dict -}}
{{- range $name, $amount := $amounts -}}
{{- $fraction := and (kindIs "float64" $amount) (ne (floor $amount) $amount) -}}
{{- $_ := set $texts $name (ternary (toString $amount) $amount $fraction) -}}
{{- end -}}
{{- $_ := set $resources $kind $texts -}}
{{- end -}}
{{- toYaml $resources -}}
{{- end -}}

{{/* GPUs of a training container as extended resources, as JSON; none if they come from resource claims. */}}
{{- define "common.gpus" -}}
{{- $gpus := dict -}}
{{- if and .gpusPerNode .gpuResource -}}
{{- $_ := set $gpus .gpuResource (int .gpusPerNode) -}}
{{- end -}}
{{- mustToJson $gpus -}}
{{- end -}}

{{/*
Resources of the preflight: those of the training container, which reuses them, without what only training needs. So the pod requests no more,
and is Guaranteed, or within a LimitRange's ratio, if the training container is. In a template that many jobs share, a small request without
GPUs: with GPUs, a job that needs fewer would still get as many.
*/}}
{{- define "common.preflightResources" -}}
{{- if .run.shared -}}
{{- toYaml (dict "requests" (dict "cpu" "100m" "memory" "128Mi") "limits" (dict "cpu" "1" "memory" "2Gi")) -}}
{{- else -}}
{{- $training := .run.training -}}
{{- $resources := include "common.trainerAmounts" $training | fromJson -}}
{{- $needed := pick $resources "claims" -}}
{{- range $kind, $amounts := omit $resources "claims" -}}
{{- with pick $amounts "cpu" "memory" "ephemeral-storage" $training.gpuResource -}}
{{- $_ := set $needed $kind . -}}
{{- end -}}
{{- end -}}
{{- include "common.quantities" $needed -}}
{{- end -}}
{{- end -}}

{{/* Init container that waits for the dataset and for secrets that an operator creates, and checks what is local to the pod. */}}
{{- define "common.preflight" -}}
{{- $training := ternary (omit .run.training "gpusPerNode") .run.training (not (empty .run.shared)) -}}
- name: preflight
  image: {{ .run.image | quote }}
  imagePullPolicy: {{ .root.Values.global.image.pullPolicy }}
  command:
    - python
    - -m
    - trainers.preflight
    {{- if not (or .run.ungated .run.config.data.dataset) }}
    - --data
    - {{ .run.config.data.dir | quote }}
    {{- end }}
    {{- if and (not .run.ungated) (include "common.fetchedWeights" .run.training) }}
    - --weights
    - /etc/trainyard/config.json
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
    {{- with $training.gpuMemoryTest }}
    - --gpu-memory
    - {{ int . | quote }}
    {{- end }}
    {{- end }}
    {{- if and (has "wandb" .root.Facts.awaited) (not .run.keyless) }}
    - --secret
    - /etc/trainyard/secrets/wandb/WANDB_API_KEY
    - --secret-timeout
    - {{ int .root.Facts.wait | quote }}
    {{- end }}
  env:
    {{- include "common.trainerEnv" (pick . "root" "run") | nindent 4 }}
  {{- with .run.training.envFrom }}
  envFrom:
    {{- toYaml . | nindent 4 }}
  {{- end }}
  resources:
    {{- include "common.preflightResources" . | nindent 4 }}
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

{{/*
The run's settings as one read-only volume, /etc/trainyard; in training pods with the key of Weights & Biases. A Secret that values name must
hold that key; if an operator creates the Secret, the preflight waits for it. Call with a dict: root, run, and secrets, whether to bring the
key.
*/}}
{{- define "common.trainerConfigVolume" -}}
- name: trainyard
  projected:
    defaultMode: 288  # 0440
    sources:
      - configMap:
          name: {{ .run.name }}-run
      {{- if .secrets }}
      {{- $which := list .root "wandb" }}
      - secret:
          name: {{ include "common.secret" $which | quote }}
          optional: {{ or (empty (include "common.secretRequired" $which)) (has "wandb" .root.Facts.awaited) }}
          items:
            - key: WANDB_API_KEY
              path: secrets/wandb/WANDB_API_KEY
      {{- end }}
{{- end -}}

{{/* What a spread constraint of a training job counts, its own pods, as JSON. */}}
{{- define "common.jobSelector" -}}
{{- mustToJson (dict "labelSelector" (dict "matchLabels" (dict "training.kubeflow.org/job-name" .name))) -}}
{{- end -}}

{{/*
The pod template of a training pod, the same for every kind of job. Call with a dict: root, run (from common.run), container (its name),
command, restartPolicy if the job needs one in the pod, own, what a spread constraint counts if the operator's labels differ, ports, a list,
and extra, more YAML of the container.
*/}}
{{- define "common.trainerPod" -}}
{{- $run := .run -}}
{{- $training := .run.training -}}
{{- $own := .own | default (include "common.jobSelector" $run | fromJson) -}}
{{- $mlflow := and (not $run.keyless) (include "common.secretRequired" (list .root "mlflow")) -}}
metadata:
  {{- $annotations := include "common.trainerAnnotations" (list .root $training.podAnnotations) | fromJson }}
  {{- include "common.podMetadata" (dict "root" .root "pod" $training "annotations" $annotations) | nindent 2 }}
spec:
  {{- include "common.podHead" (dict "root" .root "pod" $training "scheduling" $run.scheduling "own" $own) | nindent 2 }}
  {{- with .restartPolicy }}
  restartPolicy: {{ . }}
  {{- end }}
  terminationGracePeriodSeconds: {{ int $training.gracePeriodSeconds }}
  initContainers:
    {{- include "common.preflight" . | nindent 4 }}
    {{- with $training.extraInitContainers }}
    {{- toYaml . | nindent 4 }}
    {{- end }}
    {{- with include "common.sidecars" $training | trim }}
    {{- . | nindent 4 }}
    {{- end }}
  containers:
    - name: {{ .container }}
      image: {{ $run.image | quote }}
      imagePullPolicy: {{ .root.Values.global.image.pullPolicy }}
      command:
        {{- toYaml .command | nindent 8 }}
      env:
        {{- include "common.trainerEnv" (pick . "root" "run") | nindent 8 }}
      {{- with $training.envFrom }}
      envFrom:
        {{- toYaml . | nindent 8 }}
      {{- end }}
      {{- with include "common.trainerPorts" (list .root .ports) | fromJsonArray }}
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
        {{- include "common.containerSecurity" (or $training.rdma.resource $training.unrestricted.runAsRoot) | nindent 8 }}
      volumeMounts:
        {{- include "common.trainerMounts" .root | nindent 8 }}
        {{- if $mlflow }}
        {{- include "common.secretMount" "mlflow" | nindent 8 }}
        {{- end }}
        {{- with $training.extraVolumeMounts }}
        {{- toYaml . | nindent 8 }}
        {{- end }}
  volumes:
    {{- include "common.trainerConfigVolume" (dict "root" .root "run" $run "secrets" (not $run.keyless)) | nindent 4 }}
    {{- if $mlflow }}
    {{- include "common.secretVolume" (list .root "mlflow") | nindent 4 }}
    {{- end }}
    {{- include "common.claimVolume" (list .root "data") | nindent 4 }}
    {{- include "common.claimVolume" (list .root "results") | nindent 4 }}
    - name: shm
      emptyDir:
        medium: Memory
        sizeLimit: {{ $training.shmSize | quote }}
    {{- include "common.scratchVolumes" .root | nindent 4 }}
    {{- with $training.extraVolumes }}
    {{- toYaml . | nindent 4 }}
    {{- end }}
{{- end -}}
