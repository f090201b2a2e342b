{{/*
The output of a template, computed once per context, since several objects of a part use it. Call with a list: the context, a name for it, the
template, and what to call that with.
*/}}
{{- define "common.once" -}}
{{- $root := index . 0 -}}
{{- if not (hasKey $root (index . 1)) -}}
{{- $_ := set $root (index . 1) (include (index . 2) (index . 3)) -}}
{{- end -}}
{{- get $root (index . 1) -}}
{{- end -}}

{{/*
Merge a map into another, in place; call with a list of both. Unlike mergeOverwrite it also copies 0, false and empty lists, and it drops
nulls, which Helm 3 keeps and Helm 4 removes.
*/}}
{{- define "common.mergeInto" -}}
{{- $into := index . 0 -}}
{{- range $key, $value := index . 1 -}}
{{- if kindIs "map" $value -}}
{{- if not (kindIs "map" (get $into $key)) -}}
{{- $_ := set $into $key dict -}}
{{- end -}}
{{- $_ := include "common.mergeInto" (list (get $into $key) $value) -}}
{{- else if not (kindIs "invalid" $value) -}}
{{- $_ := set $into $key $value -}}
{{- end -}}
{{- end -}}
{{- end -}}

{{/* Bytes of a quantity such as 16Gi, as an integer. */}}
{{- define "common.bytes" -}}
{{- $units := dict "k" 1e3 "M" 1e6 "G" 1e9 "T" 1e12 "P" 1e15 "Ki" 1024 "Mi" 1048576 "Gi" 1073741824 "Ti" 1099511627776 "Pi" 1125899906842624 -}}
{{- $number := regexFind "^[0-9.]+" (toString .) -}}
{{- $unit := trimPrefix $number (toString .) -}}
{{- mulf (float64 $number) (float64 (get $units $unit | default 1)) | int64 -}}
{{- end -}}

{{/*
global.training with a job's own overrides, as JSON; missing keys get their empty values. Call with a list: the global values, and the job's
own.
*/}}
{{- define "common.overridden" -}}
{{- $shared := (first .).training -}}
{{- $own := (last .).training -}}
{{- $training := include "common.podSettings" dict | fromJson -}}
{{- $_ := include "common.mergeInto" (list $training $shared) -}}
{{- $_ := include "common.mergeInto" (list $training $own) -}}
{{- $placement := include "common.placement" (list ($shared.scheduling | default dict) ($own.scheduling | default dict)) | fromJson -}}
{{- $_ := set $training "scheduling" $placement -}}
{{- mustToJson $training -}}
{{- end -}}

{{/* A job's training settings, as JSON; refuses contradictions. */}}
{{- define "common.training" -}}
{{- include "common.once" (list . "Training" "common.checkedTraining" .) -}}
{{- end -}}

{{- define "common.checkedTraining" -}}
{{- $training := include "common.overridden" (list .Values.global .Values) | fromJson -}}
{{- include "common.checkTraining" (dict "root" . "training" $training) -}}
{{- mustToJson $training -}}
{{- end -}}

{{/* Where a run reads and writes, and as which user: existing pods never change, so a fix of their access is a new job. */}}
{{- define "common.place" -}}
{{- $storage := .Values.global.storage -}}
{{- $place := dict "uid" $storage.uid "gid" "platform" "supplementalGroups" $storage.supplementalGroups -}}
{{- with include "common.gid" . -}}{{- $_ := set $place "gid" (int64 .) -}}{{- end -}}
{{- range $which := list "data" "results" -}}
{{- $_ := set $place $which (list (include "common.claim" (list $ $which)) (index $storage $which).subPath) -}}
{{- end -}}
{{- mustToJson $place -}}
{{- end -}}

{{/*
Name of a run: the release's, with the job's behind it where several train. Call with a list: the release, the job's name, what it trains, and
the jobs that train.
*/}}
{{- define "common.runName" -}}
{{- (index . 2).name | default (ternary (first .) (printf "%s-%s" (first .) (index . 1)) (eq 1 (len (index . 3)))) -}}
{{- end -}}

{{/*
Which settings of the training are part of a job's identity, as JSON. Those added after 0.1.0 count only if they are set, so that a new
version of the chart does not change the job of a run without them.
*/}}
{{- define "common.identity" -}}
{{- $what := pick . "gpusPerNode" "resources" "shmSize" "env" "rdma" "extraVolumes" "extraVolumeMounts" "extraInitContainers" -}}
{{- range $key, $value := pick . "envFrom" "extraContainers" "resourceClaims" "runtimeClassName" "securityContext" -}}
{{- if $value -}}{{- $_ := set $what $key $value -}}{{- end -}}
{{- end -}}
{{- range $key, $value := .unrestricted -}}
{{- if $value -}}{{- $_ := set $what $key $value -}}{{- end -}}
{{- end -}}
{{- if ne .gpuResource "nvidia.com/gpu" -}}{{- $_ := set $what "gpuResource" .gpuResource -}}{{- end -}}
{{- mustToJson $what -}}
{{- end -}}

{{/* The trainer's settings of a run, as JSON. Call with a list: the context, what it trains, and its name. */}}
{{- define "common.runSettings" -}}
{{- $training := index . 1 -}}
{{- $config := dict "recipe" $training.recipe -}}
{{- $_ := include "common.mergeInto" (list $config $training.config) -}}
{{- $_ := include "common.mergeInto" (list $config (dict
  "run" (dict "dir" (printf "/results/runs/%s" (index . 2)))
  "data" (dict "dir" (printf "/data/%s" (index . 0).Values.global.dataset.name)))) -}}
{{- if include "common.fetchedWeights" $training -}}
{{- $_ := include "common.mergeInto" (list $config (dict "model" (dict "weights_dir" (include "common.weightsFolder" $training)))) -}}
{{- end -}}
{{- mustToJson $config -}}
{{- end -}}

{{/*
All that a training job runs with, derived once, as JSON: name, runName, image, command, training, scheduling, processes, nodes, config. Call
with a dict: root, command (may hold <np> for the number of processes of the job), and identity, what else changes the job. The hash leaves
out what does not change the computation: labels, chart version, TTL, suspend, queue, secrets.
*/}}
{{- define "common.run" -}}
{{- include "common.once" (list .root "Run" "common.derivedRun" .) -}}
{{- end -}}

{{- define "common.derivedRun" -}}
{{- $root := .root -}}
{{- $training := include "common.training" $root | fromJson -}}
{{- $processes := int ($training.gpusPerNode | default $training.processesPerNode) -}}
{{- $nodes := int $training.nodes -}}
{{- $runName := include "common.runName" (list $root.Release.Name $root.Chart.Name $training $root.Facts.trains) -}}
{{- $command := list -}}
{{- range .command -}}
{{- $command = append $command (replace "<np>" (toString (mul $nodes $processes)) .) -}}
{{- end -}}
{{- $config := include "common.runSettings" (list $root $training $runName) | fromJson -}}
{{- $run := dict "runName" $runName "image" (include "common.image" $root) "command" $command "config" $config "nodes" $nodes "processes" $processes -}}
{{- $what := include "common.identity" $training | fromJson -}}
{{- $what = merge $what $run (dict "identity" .identity "storage" (include "common.place" $root)) -}}
{{- $_ := set $run "name" (include "common.jobName" (list $root (mustToJson $what))) -}}
{{- $_ := set $run "training" $training -}}
{{- $_ := set $run "scheduling" (include "common.placement" (list $root.Values.global.scheduling $training.scheduling) | fromJson) -}}
{{- include "common.addMetrics" (list $root $run) -}}
{{- mustToJson $run -}}
{{- end -}}

{{/*
Whether a training's pretrained weights are fetched beforehand, as torchvision's and timm's by name and those at an address are: "true" or
nothing. These recipes start from such weights. Call with the training settings.
*/}}
{{- define "common.fetchedWeights" -}}
{{- $config := .config | default dict -}}
{{- $model := get $config "model" | default dict -}}
{{- $pretrained := get $model "pretrained" | toString -}}
{{- if not (hasKey $model "pretrained") -}}
{{- $pretrained = ternary "timm" "" (has .recipe (list "finetune" "finetune-vit")) -}}
{{- end -}}
{{- if or (eq $pretrained "timm") (regexMatch "^(https?|s3|gs)://" $pretrained) (regexMatch "^([A-Za-z0-9_]+_Weights\\.)?[A-Z][A-Z0-9_]*$" $pretrained) -}}
true
{{- end -}}
{{- end -}}

{{/* The folder of fetched weights, on the data claim unless values say otherwise. Call with the training settings. */}}
{{- define "common.weightsFolder" -}}
{{- dig "model" "weights_dir" "" (.config | default dict) | default "/data/weights" -}}
{{- end -}}
