{{/*
Merge a map into another, in place; call with a list of both. Unlike mergeOverwrite it takes 0, false and empty lists over, and it
drops nulls, which Helm 3 keeps and Helm 4 removes.
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
Whether a job trains: true, or nothing. global.training.operator, where it is set, decides alone. Call with a list: the global values, the
job's name, and its own values.
*/}}
{{- define "common.trains" -}}
{{- $values := index . 2 -}}
{{- with (index . 0).training.operator -}}
{{- if eq . (index $ 1) -}}true{{- end -}}
{{- else -}}
{{- $job := $values.job | default dict -}}
{{- if and $values.enabled (ne (toString $job.enabled) "false") -}}true{{- end -}}
{{- end -}}
{{- end -}}

{{/* global.training with a job's own overrides, as JSON. Call with a list: the global values, and the job's own. */}}
{{- define "common.overridden" -}}
{{- $training := dict -}}
{{- $_ := include "common.mergeInto" (list $training (first .).training) -}}
{{- $_ := include "common.mergeInto" (list $training (last .).training) -}}
{{- mustToJson $training -}}
{{- end -}}

{{/* What a job trains, as JSON; refuses what contradicts itself. */}}
{{- define "common.training" -}}
{{- $training := include "common.overridden" (list .Values.global .Values) | fromJson -}}
{{- $_ := include "common.checkTraining" $training -}}
{{- mustToJson $training -}}
{{- end -}}

{{/* Refuse, in words, settings that contradict each other. */}}
{{- define "common.checkTraining" -}}
{{- if and (not .gpusPerNode) (not .processesPerNode) -}}
{{- fail "\n\nglobal.training.gpusPerNode is 0: set global.training.processesPerNode, the processes of each node that train on the CPU.\n" -}}
{{- end -}}
{{- if and .gpusPerNode .processesPerNode (ne (int .gpusPerNode) (int .processesPerNode)) -}}
{{- fail "\n\nglobal.training.processesPerNode is for training on the CPU (gpusPerNode: 0); with GPUs there is one process for each.\n" -}}
{{- end -}}
{{- if dig "run" "dir" "" .config -}}
{{- fail "\n\nglobal.training.config.run.dir follows from the run's name: set global.training.name instead.\n" -}}
{{- end -}}
{{- if dig "data" "dir" "" .config -}}
{{- fail "\n\nglobal.training.config.data.dir follows from the dataset's name: set global.dataset.name instead.\n" -}}
{{- end -}}
{{- range list "requests" "limits" -}}
{{- if hasKey (get $.resources .) "nvidia.com/gpu" -}}
{{- fail (printf "\n\nglobal.training.resources.%s holds nvidia.com/gpu: set global.training.gpusPerNode instead.\n" .) -}}
{{- end -}}
{{- end -}}
{{- $network := dict -}}
{{- range concat .env .rdma.env -}}
{{- if regexMatch "^(NCCL_IB_|NCCL_NET_GDR_|UCX_NET_DEVICES$|FI_)" .name -}}
{{- $_ := set $network .name (toString .value) -}}
{{- end -}}
{{- end -}}
{{- if and .rdma.resource (eq (get $network "NCCL_IB_DISABLE") "1") -}}
{{- fail "\n\nglobal.training.env sets NCCL_IB_DISABLE=1 beside global.training.rdma.resource: leave one of them out.\n" -}}
{{- end -}}
{{- if and (omit $network "NCCL_IB_DISABLE") (not .rdma.resource) (not .rdma.env) -}}
{{- fail (printf "\n\nglobal.training.env sets %s without global.training.rdma.resource: without the device the trainers would fall back to TCP in silence.\n" (keys $network | sortAlpha | join ", ")) -}}
{{- end -}}
{{- if and .peers.check (eq (int .peers.port) 23456) -}}
{{- fail "\n\nglobal.training.peers.port is 23456, where the process group meets: choose another.\n" -}}
{{- end -}}
{{- if and .rdma.env (not .rdma.resource) -}}
{{- fail "\n\nglobal.training.rdma.env is set without global.training.rdma.resource: without the device the trainers would fall back to TCP in silence.\n" -}}
{{- end -}}
{{- with .resources.limits.memory -}}
{{- with $.resources.requests.memory -}}
{{- if gt (int64 (include "common.bytes" .)) (int64 (include "common.bytes" $.resources.limits.memory)) -}}
{{- fail (printf "\n\nglobal.training.resources.requests.memory (%s) is more than limits.memory (%s).\n" . $.resources.limits.memory) -}}
{{- end -}}
{{- end -}}
{{- if ge (int64 (include "common.bytes" $.shmSize)) (int64 (include "common.bytes" .)) -}}
{{- fail (printf "\n\nglobal.training.shmSize (%s) does not fit into global.training.resources.limits.memory (%s): /dev/shm counts toward that limit.\n" $.shmSize .) -}}
{{- end -}}
{{- end -}}
{{- include "common.refuseOwnLabels" (list "global.training.podLabels" .podLabels) -}}
{{- $own := list "HOME" "PYTHONUNBUFFERED" "TRAINYARD_JOB" "TRAINYARD_GRACE_SECONDS" "TRAINYARD_PREFLIGHT" "TRAINYARD_WAIT_SECONDS" "TRAINYARD_LOGS" "TRAINYARD_LOG_BYTES" "TRAINYARD_PEERS_PORT" "TRAINYARD_PEERS_WAIT" "TRAINYARD_TRANSPORT" "RANK" "WORLD_SIZE" "MASTER_ADDR" "MASTER_PORT" "PET_NNODES" "PET_NODE_RANK" "PET_NPROC_PER_NODE" "PET_MASTER_ADDR" "PET_MASTER_PORT" "PET_RDZV_ENDPOINT" "PET_RDZV_BACKEND" -}}
{{- range concat .env .rdma.env -}}
{{- if has .name $own -}}
{{- fail (printf "\n\nglobal.training.env sets %s, which the chart or the operator sets: take it out.\n" .name) -}}
{{- end -}}
{{- end -}}
{{- end -}}

{{/* Where a run reads and writes, and as whom: pods that are there never change, so what mends their access is a new job. */}}
{{- define "common.place" -}}
{{- $storage := .Values.global.storage -}}
{{- $place := pick $storage "uid" "gid" "supplementalGroups" -}}
{{- range $which := list "data" "results" -}}
{{- $_ := set $place $which (list (include "common.claim" (list $ $which)) (index $storage $which).subPath) -}}
{{- end -}}
{{- mustToJson $place -}}
{{- end -}}

{{/* Name of a run. Call with a list: the release, the job's name, and what it trains. */}}
{{- define "common.runName" -}}
{{- $training := index . 2 -}}
{{- $training.name | default (ternary (first .) (printf "%s-%s" (first .) (index . 1)) (not (empty $training.operator))) -}}
{{- end -}}

{{/*
All that a training job runs with, derived once, as JSON: name, runName, image, command, training, processes, nodes, config.
Call with a dict: root, command (may hold <np> for the number of processes of the job), and identity, what else changes the job.
The hash leaves out what changes how the job is kept, not what it computes: labels, chart version, TTL, suspend, queue, secrets.
*/}}
{{- define "common.run" -}}
{{- $root := .root -}}
{{- $training := include "common.training" $root | fromJson -}}
{{- $processes := int ($training.gpusPerNode | default $training.processesPerNode) -}}
{{- $nodes := int $training.nodes -}}
{{- $runName := include "common.runName" (list $root.Release.Name $root.Chart.Name $training) -}}
{{- $command := list -}}
{{- range .command -}}
{{- $command = append $command (replace "<np>" (toString (mul $nodes $processes)) .) -}}
{{- end -}}
{{- $config := dict "recipe" $training.recipe -}}
{{- $_ := include "common.mergeInto" (list $config $training.config) -}}
{{- $_ := include "common.mergeInto" (list $config (dict
  "run" (dict "dir" (printf "/results/runs/%s" $runName))
  "data" (dict "dir" (printf "/data/%s" $root.Values.global.dataset.name)))) -}}
{{- $run := dict "runName" $runName "image" (include "common.image" $root) "command" $command "config" $config "nodes" $nodes "processes" $processes -}}
{{- $what := pick $training "gpusPerNode" "resources" "shmSize" "env" "rdma" "extraVolumes" "extraVolumeMounts" "extraInitContainers" -}}
{{- $what = merge $what $run (dict "identity" .identity "storage" (include "common.place" $root)) -}}
{{- $_ := set $run "name" (include "common.jobName" (list $root (mustToJson $what))) -}}
{{- $_ := set $run "training" $training -}}
{{- include "common.addMetrics" (list $root $run) -}}
{{- mustToJson $run -}}
{{- end -}}
