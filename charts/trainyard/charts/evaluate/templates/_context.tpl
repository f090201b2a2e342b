{{/*
What the evaluation's manifests read, gathered once on the part's context:

  .Evaluated  the run that is measured: run, its name, and config, its settings where this release trains it. Such a run is waited for with its
              settings, since the model of an earlier, shorter one may be there already.
  .Pod        settings of the pod; those that break it are refused. topologySpreadConstraints apply only to trainers.
  .GpuResource  the device plugin's name of a GPU; empty where GPUs come in another way
  .Name       of the Job. Its hash covers all that Kubernetes or Kueue would refuse to change, and the settings of the run: another model,
              dataset or image is a new Job, and so is the same run with other settings, whose model the new Job waits for.
*/}}
{{- define "evaluate.context" -}}
{{- if not (hasKey . "Name") -}}
{{- include "common.context" . -}}
{{- $names := list -}}
{{- $config := dict -}}
{{- range .Facts.trains -}}
{{- $name := get $.Facts.runs . -}}
{{- $names = append $names $name -}}
{{- if or (eq $.Values.run $name) (and (not $.Values.run) (eq 1 (len $.Facts.trains))) -}}{{- $config = get $.Facts.settings . -}}{{- end -}}
{{- end -}}
{{- if and (not .Values.run) (ne 1 (len $names)) -}}
{{- $which := ternary (printf "%s are trained" (join " and " $names)) "this release trains none" (not (empty $names)) -}}
{{- include "common.refuse" (printf (print "\n\nevaluate.run is not set, and %s: set it to the run whose model is to be measured, "
  "its folder under runs/ on the results claim, or a path below /data or /results.\n") $which) -}}
{{- end -}}
{{- $_ := set . "Evaluated" (dict "run" (.Values.run | default (first $names)) "config" $config) -}}
{{- $pod := omit .Values "global" -}}
{{- $by := get .Values "gpusBy" -}}
{{- $resource := get .Values "gpuResource" -}}
{{- if and $by $resource -}}
{{- include "common.refuse" (printf (print "\n\nevaluate.gpusBy is %s, without a device plugin, and evaluate.gpuResource is a plugin's %s: leave one of them "
  "out.\n") $by $resource) -}}
{{- end -}}
{{- if not (or $by $resource) -}}
{{- $by = get .Values.global.training "gpusBy" -}}
{{- $resource = ternary "" (dig "gpuResource" "nvidia.com/gpu" .Values.global.training) (not (empty $by)) -}}
{{- end -}}
{{- $_ := set . "GpuResource" $resource -}}
{{- if and (gt (int .Values.gpus) 0) (gt (int .Values.processes) 1) -}}
{{- include "common.refuse" "\n\nevaluate.processes is for evaluation on the CPU (evaluate.gpus: 0); with GPUs there is one process for each.\n" -}}
{{- end -}}
{{- range $kind, $amounts := .Values.resources -}}
{{- range $name := ternary (list $resource "nvidia.com/gpu" "amd.com/gpu") list (gt (int $.Values.gpus) 0) -}}
{{- if hasKey ($amounts | default dict) $name -}}
{{- include "common.refuse" (printf "\n\nevaluate.resources.%s holds %s, and evaluate.gpus is set: leave it out under resources.\n" $kind $name) -}}
{{- end -}}
{{- end -}}
{{- end -}}
{{- $annotations := merge (dict) (get .Values "podAnnotations" | default dict) (.Values.global.podAnnotations | default dict) -}}
{{- $given := dict "claims" (get .Values "resourceClaims") "annotations" (regexMatch "(?i)gpu" (keys $annotations | join " ")) "node" true -}}
{{- if and (gt (int .Values.gpus) 0) (not $resource) (not (get $given ($by | default "claims"))) -}}
{{- $how := dict
  "claims" "name the claims in evaluate.resourceClaims"
  "annotations" "set in evaluate.podAnnotations what your scheduler reads, such as gpu-fraction" -}}
{{- include "common.refuse" (printf (print "\n\nevaluate.gpus is set, and nothing brings the GPUs, which come by %s: %s, or set evaluate.gpuResource, such as "
  "nvidia.com/gpu, or evaluate.gpusBy.\n") ($by | default "claims") (get $how ($by | default "claims"))) -}}
{{- end -}}
{{- $own := list "HOME" "PYTHONUNBUFFERED" "RANK" "WORLD_SIZE" "MASTER_ADDR" "MASTER_PORT" "PET_NNODES" "PET_NPROC_PER_NODE" -}}
{{- $mounts := list "/etc/trainyard" "/data" "/results" "/dev/shm" "/tmp" "/home/trainer" "/etc/trainyard-ca" "/etc/passwd" -}}
{{- $volumes := list "trainyard" "data" "results" "shm" "tmp" "home" "ca-bundle" -}}
{{- include "common.podSettings" (dict "path" "evaluate" "pod" $pod "scheduling" (omit .Values.global.scheduling "topologySpreadConstraints")
  "env" $own "mounts" $mounts "volumes" $volumes "containers" (list "evaluate")) -}}
{{- $_ := set . "Pod" $pod -}}
{{- $bounds := printf "%d %d" (int .Values.backoffLimit) (int .Values.activeDeadlineSeconds) -}}
{{- $queue := include "common.heldLabels" (list $pod.scheduling .Values.jobLabels) -}}
{{- $runs := list (mustToJson .Evaluated) (include "evaluate.pod" (dict "root" . "configMap" "")) $queue $bounds -}}
{{- $_ := set . "Name" (include "common.jobName" (list . (join "" $runs))) -}}
{{- end -}}
{{- end -}}
