{{/* Settings of the preparation, as JSON. */}}
{{- define "dataset.config" -}}
{{- $source := .Values.source -}}
{{- $keys := dict "kaggle" "competition" "kaggle-dataset" "dataset" "http" "url" "objectstore" "url" "path" "path" -}}
{{- $key := get $keys $source.kind -}}
{{- $value := get $source $key -}}
{{- if not $value -}}
{{- fail (printf "\n\ndataset.source.kind is %s: set dataset.source.%s.\n" $source.kind $key) -}}
{{- end -}}
{{- $config := dict -}}
{{- $_ := include "common.mergeInto" (list $config .Values.settings) -}}
{{- $_ := set $config "source" (dict "kind" $source.kind $key $value) -}}
{{- if eq $source.kind "objectstore" -}}
{{- range $name, $setting := pick $source "endpoint" "anonymous" -}}
{{- if $setting -}}{{- $_ := set $config.source $name $setting -}}{{- end -}}
{{- end -}}
{{- else if or $source.endpoint $source.anonymous -}}
{{- fail (printf "\n\ndataset.source.endpoint and dataset.source.anonymous belong to kind objectstore, and it is %s: remove them.\n" $source.kind) -}}
{{- end -}}
{{- $_ := set $config "out" (printf "/data/%s" .Values.global.dataset.name) -}}
{{- mustToPrettyJson $config -}}
{{- end -}}

{{/* Where the preparation's pod goes: as the trainers, unless dataset.scheduling says otherwise. */}}
{{- define "dataset.scheduling" -}}
{{- $scheduling := dict -}}
{{- $_ := include "common.mergeInto" (list $scheduling (omit .Values.global.scheduling "topologySpreadConstraints")) -}}
{{- $_ := include "common.mergeInto" (list $scheduling .Values.scheduling) -}}
{{- mustToJson $scheduling -}}
{{- end -}}

{{/* The preparation's pod template. Call with a dict: root, configMap. */}}
{{- define "dataset.pod" -}}
{{- $root := .root -}}
metadata:
  labels:
    {{- include "common.podLabels" $root | nindent 4 }}
spec:
  {{- include "common.podHead" (dict "root" $root "scheduling" (include "dataset.scheduling" $root | fromJson) "job" "") | nindent 2 }}
  restartPolicy: Never
  containers:
    - name: prepare
      image: {{ include "common.image" $root | quote }}
      imagePullPolicy: {{ $root.Values.global.image.pullPolicy }}
      command:
        - python
        - -m
        - trainers.prepare
        - build
        - --config
        - /etc/trainyard/prepare.json
      env:
        - name: HOME
          value: /home/trainer
        - name: PYTHONUNBUFFERED
          value: "1"
        {{- if gt (int $root.Values.parallelism) 1 }}
        # Which part is this pod's says JOB_COMPLETION_INDEX, which an indexed Job sets
        - name: TRAINYARD_PREPARE_PARTS
          value: {{ int $root.Values.parallelism | quote }}
        {{- end }}
      resources:
        {{- toYaml $root.Values.resources | nindent 8 }}
      {{- include "common.lastWord" . | nindent 6 }}
      securityContext:
        {{- include "common.containerSecurity" "" | nindent 8 }}
      volumeMounts:
        - name: trainyard
          mountPath: /etc/trainyard
          readOnly: true
        {{- include "common.claimMount" (list $root "data" false) | nindent 8 }}
        {{- include "common.scratchMounts" $root | nindent 8 }}
  volumes:
    - name: trainyard
      projected:
        defaultMode: 288  # 0440
        sources:
          - configMap:
              name: {{ .configMap }}
          {{- $kind := $root.Values.source.kind }}
          {{- if hasPrefix "kaggle" $kind }}
          {{- $keys := list "KAGGLE_API_TOKEN" "KAGGLE_USERNAME" "KAGGLE_KEY" "kaggle.json" }}
          {{- include "common.secretSource" (dict "root" $root "which" "kaggle" "keys" $keys "optional" true) | nindent 10 }}
          {{- else if and (eq $kind "objectstore") (not $root.Values.source.anonymous) }}
          {{- $keys := list "AWS_ACCESS_KEY_ID" "AWS_SECRET_ACCESS_KEY" "AWS_SESSION_TOKEN" "AWS_REGION" "gcs.json" }}
          {{- include "common.secretSource" (dict "root" $root "which" "objectstore" "keys" $keys "optional" true) | nindent 10 }}
          {{- end }}
    {{- include "common.claimVolume" (list $root "data") | nindent 4 }}
    {{- include "common.scratchVolumes" $root | nindent 4 }}
{{- end -}}

{{/* Labels of the Job by which Kueue queues it. */}}
{{- define "dataset.queueLabels" -}}
{{- include "common.queueLabels" (include "dataset.scheduling" . | fromJson) -}}
{{- end -}}

{{/*
Name of the Job. Its pod template cannot be changed, nor, while it runs or when it has ended, what Kueue knows it by; so the name has a hash
of all of that: any change, also a new image, is a new Job instead of a refused upgrade. It costs seconds: on a dataset that is complete
with the same settings the preparation only verifies.
*/}}
{{- define "dataset.name" -}}
{{- $pod := include "dataset.pod" (dict "root" . "configMap" "") -}}
{{- include "common.jobName" (list . (printf "%s%s%s" (include "dataset.config" .) $pod (include "dataset.queueLabels" .))) -}}
{{- end -}}
