{{/*
Settings of the preparation's pod, as JSON; settings that break it are refused. Its own scheduling replaces global.scheduling key by key;
topologySpreadConstraints apply only to trainers.
*/}}
{{- define "dataset.podSettings" -}}
{{- include "common.once" (list . "Pod" "dataset.checkedPod" .) -}}
{{- end -}}

{{- define "dataset.checkedPod" -}}
{{- $pod := include "common.podSettings" .Values | fromJson -}}
{{- $shared := omit .Values.global.scheduling "topologySpreadConstraints" -}}
{{- $_ := set $pod "scheduling" (include "common.placement" (list $shared $pod.scheduling) | fromJson) -}}
{{- $own := list "HOME" "PYTHONUNBUFFERED" "TRAINYARD_PREPARE_PARTS" "TRAINYARD_SECRETS" "NETRC" -}}
{{- $mounts := list "/etc/trainyard" "/data" "/tmp" "/home/trainer" "/etc/trainyard-ca" -}}
{{- $volumes := list "trainyard" "data" "tmp" "home" "ca-bundle" "secret-kaggle" "secret-objectstore" "secret-http" -}}
{{- include "common.checkPod" (dict "path" "dataset" "pod" $pod "env" $own "mounts" $mounts "volumes" $volumes "containers" (list "prepare")) -}}
{{- mustToJson $pod -}}
{{- end -}}

{{/*
Environment that the chart gives the preparation, as JSON. An indexed Job sets JOB_COMPLETION_INDEX, which selects the pod's part of the work.
Call with a dict: root, secret.
*/}}
{{- define "dataset.env" -}}
{{- $folder := include "common.secretsFolder" . -}}
{{- $env := dict "TRAINYARD_SECRETS" $folder -}}
{{- if eq .secret "http" -}}{{- $_ := set $env "NETRC" (printf "%s/http/netrc" $folder) -}}{{- end -}}
{{- with int .root.Values.parallelism -}}
{{- if gt . 1 -}}{{- $_ := set $env "TRAINYARD_PREPARE_PARTS" (toString .) -}}{{- end -}}
{{- end -}}
{{- mustToJson $env -}}
{{- end -}}

{{/* The preparation's pod template. Call with a dict: root, configMap. */}}
{{- define "dataset.pod" -}}
{{- $root := .root -}}
{{- $secrets := include "dataset.secrets" $root | fromJson -}}
{{- $pod := include "dataset.podSettings" $root | fromJson -}}
{{- $alike := include "common.partSelector" $root | fromJson -}}
metadata:
  {{- include "common.podMetadata" (dict "root" $root "pod" $pod) | nindent 2 }}
spec:
  {{- include "common.podHead" (dict "root" $root "pod" $pod "scheduling" $pod.scheduling "own" $alike) | nindent 2 }}
  restartPolicy: Never
  {{- $sidecars := include "common.sidecars" $pod | trim }}
  {{- if or $sidecars $root.Facts.weights }}
  initContainers:
    {{- with $sidecars }}
    {{- . | nindent 4 }}
    {{- end }}
    {{- range $index, $_ := $root.Facts.weights }}
    {{- $container := dict "name" (printf "weights-%d" $index) "command" (include "dataset.weightsCommand" $index) }}
    {{- include "dataset.container" (merge $container (dict "root" $root "pod" $pod "secret" (index $secrets.weights $index))) | nindent 4 }}
    {{- end }}
  {{- end }}
  containers:
    {{- $main := dict "root" $root "pod" $pod "name" "prepare" }}
    {{- if ne (include "dataset.source" $root | fromJson).kind "none" }}
    {{- $_ := set (set $main "command" (include "dataset.buildCommand" $root)) "secret" $secrets.dataset }}
    {{- else }}
    {{- $_ := set (set $main "command" (include "dataset.weightsCommand" 0)) "secret" (first $secrets.weights) }}
    {{- end }}
    {{- include "dataset.container" $main | nindent 4 }}
  volumes:
    - name: trainyard
      configMap:
        name: {{ .configMap | quote }}
        defaultMode: 288  # 0440
    {{- range prepend $secrets.weights $secrets.dataset | uniq | compact }}
    {{- include "common.secretVolume" (list $root .) | nindent 4 }}
    {{- end }}
    {{- include "common.claimVolume" (list $root "data") | nindent 4 }}
    {{- include "common.scratchVolumes" $root | nindent 4 }}
    {{- with $pod.extraVolumes }}
    {{- toYaml . | nindent 4 }}
    {{- end }}
{{- end -}}

{{/* The command that prepares the dataset. */}}
{{- define "dataset.buildCommand" -}}
- python
- -m
- trainers.prepare
- build
- --config
- /etc/trainyard/prepare.json
# what is wrong outside of the values, such as credentials, may be mended meanwhile
- --retry
- {{ int .Values.activeDeadlineSeconds | quote }}
{{- end -}}

{{/* The command that fetches pretrained weights once; a second time it finds them. Call with the number of their settings. */}}
{{- define "dataset.weightsCommand" -}}
- python
- -m
- trainers.prepare
- weights
- --config
- /etc/trainyard/weights-{{ . }}.json
- --retry
- "600"
{{- end -}}

{{/* A container of the preparation. Call with a dict: root, pod, secret, name, and command as YAML. */}}
{{- define "dataset.container" -}}
{{- $own := include "dataset.env" . | fromJson -}}
- name: {{ .name }}
  image: {{ include "common.image" .root | quote }}
  imagePullPolicy: {{ .root.Values.global.image.pullPolicy }}
  command:
    {{- .command | nindent 4 }}
  env:
    {{- include "common.env" (dict "root" .root "own" $own "env" .pod.env) | nindent 4 }}
  {{- with .pod.envFrom }}
  envFrom:
    {{- toYaml . | nindent 4 }}
  {{- end }}
  resources:
    {{- include "common.quantities" .root.Values.resources | nindent 4 }}
  {{- include "common.lastWord" . | nindent 2 }}
  securityContext:
    {{- include "common.containerSecurity" "" | nindent 4 }}
  volumeMounts:
    - name: trainyard
      mountPath: /etc/trainyard
      readOnly: true
    {{- with .secret }}
    {{- include "common.secretMount" . | nindent 4 }}
    {{- end }}
    {{- include "common.claimMount" (list .root "data" false) | nindent 4 }}
    {{- include "common.scratchMounts" .root | nindent 4 }}
    {{- with .pod.extraVolumeMounts }}
    {{- toYaml . | nindent 4 }}
    {{- end }}
{{- end -}}

{{/* Labels of the Job by which Kueue queues it. */}}
{{- define "dataset.queueLabels" -}}
{{- include "common.queueLabels" (include "dataset.podSettings" . | fromJson).scheduling -}}
{{- end -}}

{{/*
Name of the Job. Kubernetes refuses changes to its pod template, Kueue to its queue while it runs or after it has ended, and a failed Job
cannot get more time or retries. So the name has a hash of all of these: any change, also a new image, is a new Job instead of a refused
upgrade. It costs seconds: on a dataset that is complete with the same settings the preparation only verifies.
*/}}
{{- define "dataset.name" -}}
{{- include "common.once" (list . "Name" "dataset.hashedName" .) -}}
{{- end -}}

{{- define "dataset.hashedName" -}}
{{- $pod := include "dataset.pod" (dict "root" . "configMap" "") -}}
{{- $bounds := printf "%d %d" (int .Values.backoffLimit) (int .Values.activeDeadlineSeconds) -}}
{{- $weights := ternary "" (mustToJson .Facts.weights) (empty .Facts.weights) -}}
{{- include "common.jobName" (list . (printf "%s%s%s%s%s" (include "dataset.config" .) $pod (include "dataset.queueLabels" .) $bounds $weights)) -}}
{{- end -}}

{{/* The Job and the settings that it reads. */}}
{{- define "dataset.job" -}}
{{- $name := include "dataset.name" . -}}
apiVersion: batch/v1
kind: Job
metadata:
  name: {{ $name }}
  labels:
    {{- include "common.labels" . | nindent 4 }}
    {{- with include "dataset.queueLabels" . | trim }}
    {{- . | nindent 4 }}
    {{- end }}
  {{- with .Values.jobAnnotations }}
  annotations:
    {{- toYaml . | nindent 4 }}
  {{- end }}
spec:
  {{- with int .Values.parallelism }}
  {{- if gt . 1 }}
  completionMode: Indexed
  completions: {{ . }}
  parallelism: {{ . }}
  {{- end }}
  {{- end }}
  backoffLimit: {{ int .Values.backoffLimit }}
  activeDeadlineSeconds: {{ int .Values.activeDeadlineSeconds }}
  # Exit code 2 is a wrong setting or input: another try would end the same. A drained node is not the preparation's fault.
  podFailurePolicy:
    rules:
      - action: FailJob
        onExitCodes:
          containerName: prepare
          operator: In
          values: [2]
      {{- range $index, $_ := .Facts.weights }}
      - action: FailJob
        onExitCodes:
          containerName: weights-{{ $index }}
          operator: In
          values: [2]
      {{- end }}
      - action: Ignore
        onPodConditions:
          - type: DisruptionTarget
            status: "True"
  template:
    {{- include "dataset.pod" (dict "root" . "configMap" (printf "%s-run" $name)) | nindent 4 }}
{{- end -}}

{{/* The settings that it reads. */}}
{{- define "dataset.settings" -}}
apiVersion: v1
kind: ConfigMap
metadata:
  name: {{ include "dataset.name" . }}-run
  labels:
    {{- include "common.labels" . | nindent 4 }}
data:
  {{- with include "dataset.config" . }}
  prepare.json: |
    {{- . | nindent 4 }}
  {{- end }}
  {{- range $index, $settings := .Facts.weights }}
  weights-{{ $index }}.json: |
    {{- mustToPrettyJson $settings | nindent 4 }}
  {{- end }}
{{- end -}}
