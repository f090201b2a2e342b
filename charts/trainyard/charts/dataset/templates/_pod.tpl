{{/*
The preparation's pod template: the Job's, and what its name is hashed from. Call with a dict: root, and configMap, the name of its settings.
*/}}
{{- define "dataset.pod" -}}
{{- $root := .root -}}
{{- $pod := $root.Pod -}}
{{- $secrets := $root.ReadSecrets -}}
{{- $weights := $root.Facts.weights -}}
{{- include "common.pod" (dict "root" $root "pod" $pod) }}
  restartPolicy: Never
  {{- if or $pod.extraContainers $weights }}
  initContainers:
    {{- range $pod.extraContainers }}
    - {{ merge (dict "restartPolicy" "Always") . | toYaml | nindent 6 | trim }}
    {{- end }}
    {{- /* weights are fetched once; a second time they are found */}}
    {{- range $index, $_ := $weights }}
    {{- include "dataset.container" (dict "root" $root "name" (printf "weights-%d" $index) "secret" (index $secrets.weights $index) "weights" $index)
      | nindent 4 }}
    {{- end }}
  {{- end }}
  containers:
    {{- $main := dict "root" $root "name" "prepare" "secret" $secrets.dataset }}
    {{- if eq $root.Source.kind "none" }}
    {{- $_ := set (set $main "weights" 0) "secret" (first $secrets.weights) }}
    {{- end }}
    {{- include "dataset.container" $main | nindent 4 }}
  volumes:
    - name: trainyard
      configMap:
        name: {{ .configMap | quote }}
        defaultMode: 288  # 0440
    {{- range prepend $secrets.weights $secrets.dataset | uniq | compact }}
    {{- $secret := get $root.Secrets . }}
    - name: secret-{{ . }}
      secret:
        secretName: {{ $secret.name | quote }}
        defaultMode: 288  # 0440
        optional: {{ not $secret.required }}
    {{- end }}
    {{- include "common.volumes" (dict "root" $root "claims" (list "data")) | nindent 4 }}
    {{- with $pod.extraVolumes }}
    {{- toYaml . | nindent 4 }}
    {{- end }}
{{- end -}}

{{/*
A container of the preparation. Call with a dict: root, name, secret (the one that it reads, if any), and, for one that fetches weights, weights,
the number of their settings. An indexed Job sets JOB_COMPLETION_INDEX, which selects the pod's part of the work.
*/}}
{{- define "dataset.container" -}}
{{- $root := .root -}}
{{- $pod := $root.Pod -}}
{{- $folder := "/var/run/secrets/trainyard" -}}
{{- $own := dict "TRAINYARD_SECRETS" $folder -}}
{{- if eq .secret "http" -}}{{- $_ := set $own "NETRC" (printf "%s/http/netrc" $folder) -}}{{- end -}}
{{- if gt (int $root.Values.parallelism) 1 -}}
{{- $_ := set $own "TRAINYARD_PREPARE_PARTS" (int $root.Values.parallelism | toString) -}}
{{- end -}}
- name: {{ .name }}
  image: {{ include "common.image" $root | quote }}
  imagePullPolicy: {{ $root.Values.global.image.pullPolicy }}
  command:
    - python
    - -m
    - trainers.prepare
    {{- if hasKey . "weights" }}
    - weights
    - --config
    - /etc/trainyard/weights-{{ .weights }}.json
    - --retry
    - "600"
    {{- else }}
    - build
    - --config
    - /etc/trainyard/prepare.json
    # what is wrong outside of the values, such as credentials, may be mended meanwhile
    - --retry
    - {{ int $root.Values.activeDeadlineSeconds | quote }}
    {{- end }}
  env:
    {{- include "common.env" (dict "root" $root "own" $own "env" $pod.env) | nindent 4 }}
  {{- with $pod.envFrom }}
  envFrom:
    {{- toYaml . | nindent 4 }}
  {{- end }}
  resources:
    {{- include "common.quantities" $root.Values.resources | nindent 4 }}
  {{- include "common.container" "" | nindent 2 }}
  volumeMounts:
    - name: trainyard
      mountPath: /etc/trainyard
      readOnly: true
    {{- with .secret }}
    - name: secret-{{ . }}
      mountPath: {{ $folder }}/{{ . }}
      readOnly: true
    {{- end }}
    {{- include "common.mounts" (dict "root" $root "claims" (dict "data" false)) | nindent 4 }}
    {{- with $pod.extraVolumeMounts }}
    {{- toYaml . | nindent 4 }}
    {{- end }}
{{- end -}}
