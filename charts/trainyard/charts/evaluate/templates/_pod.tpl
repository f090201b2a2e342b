{{/*
The evaluation's pod template: the Job's, and what its name is hashed from. Call with a dict: root, and configMap, the name of the run's settings.
*/}}
{{- define "evaluate.pod" -}}
{{- $root := .root -}}
{{- $values := $root.Values -}}
{{- $pod := $root.Pod -}}
{{- $model := $root.Evaluated.run | trimSuffix "/" -}}
{{- $run := ternary ($model | trimSuffix "/published" | base) $model (hasPrefix "/" $model) -}}
{{- $processes := int $values.gpus | default (int $values.processes) -}}
{{- $data := $values.data | default (printf "/data/%s" $values.global.dataset.name) -}}
{{- $measured := ternary (printf "%s-%s" (base $data) $values.split) (base $data) (not (empty $values.split)) -}}
{{- $resources := deepCopy ($values.resources | default dict) -}}
{{- if and $values.gpus $root.GpuResource -}}
{{- range $kind := list "requests" "limits" -}}
{{- $_ := set $resources $kind (merge (dict $root.GpuResource (int $values.gpus)) (get $resources $kind | default dict)) -}}
{{- end -}}
{{- end -}}
{{- with $pod.resourceClaims -}}
{{- $claims := list -}}
{{- range . -}}{{- $claims = append $claims (pick . "name") -}}{{- end -}}
{{- $_ := set $resources "claims" $claims -}}
{{- end -}}
{{- include "common.pod" (dict "root" $root "pod" $pod) }}
  restartPolicy: Never
  {{- with $pod.extraContainers }}
  initContainers:
    {{- range . }}
    - {{ merge (dict "restartPolicy" "Always") . | toYaml | nindent 6 | trim }}
    {{- end }}
  {{- end }}
  containers:
    - name: evaluate
      image: {{ include "common.image" $root | quote }}
      imagePullPolicy: {{ $values.global.image.pullPolicy }}
      command:
        - python
        - -m
        {{- if gt $processes 1 }}
        - trainers.launch
        - --nproc-per-node
        - {{ toYaml (toString $processes) }}
        - -m
        {{- end }}
        - trainers.evaluate
        - --model
        - {{ toYaml (ternary $model (printf "/results/runs/%s" $model) (hasPrefix "/" $model)) }}
        - --data
        - {{ toYaml $data }}
        - --out
        - {{ toYaml (printf "/results/%s" ($values.out | default (printf "evaluations/%s/%s" $run $measured))) }}
        {{- with $values.split }}
        - --split
        - {{ toYaml . }}
        {{- end }}
        {{- with int $values.batch }}
        - --batch
        - {{ toYaml (toString .) }}
        {{- end }}
        - --wait
        - {{ toYaml (int $values.wait | toString) }}
        {{- if $root.Evaluated.config }}
        - --run-config
        - /etc/trainyard/config.json
        {{- end }}
      env:
        {{- include "common.env" (dict "root" $root "own" dict "env" $pod.env) | nindent 8 }}
      {{- with $pod.envFrom }}
      envFrom:
        {{- toYaml . | nindent 8 }}
      {{- end }}
      resources:
        {{- include "common.quantities" $resources | nindent 8 }}
      {{- include "common.container" "" | nindent 6 }}
      volumeMounts:
        - name: trainyard
          mountPath: /etc/trainyard
          readOnly: true
        {{- include "common.mounts" (dict "root" $root "claims" (dict "data" true "results" false) "shm" true "passwd" true) | nindent 8 }}
        {{- with $pod.extraVolumeMounts }}
        {{- toYaml . | nindent 8 }}
        {{- end }}
  volumes:
    - name: trainyard
      configMap:
        name: {{ .configMap | quote }}
        defaultMode: 288  # 0440
    {{- include "common.volumes" (dict "root" $root "claims" (list "data" "results") "shm" $values.global.training.shmSize) | nindent 4 }}
    {{- with $pod.extraVolumes }}
    {{- toYaml . | nindent 4 }}
    {{- end }}
{{- end -}}
