{{/* Refuse, with a clear message, settings of a training that contradict each other. Call with a dict: root, training. */}}
{{- define "common.checkTraining" -}}
{{- with .training -}}
{{- if not .nodes -}}
{{- fail "\n\nglobal.training.nodes is not set: set the number of nodes that train.\n" -}}
{{- end -}}
{{- if and (not .gpusPerNode) (not .processesPerNode) -}}
{{- fail "\n\nglobal.training.gpusPerNode is 0: set it, or set global.training.processesPerNode, the processes of each node that train on the CPU.\n" -}}
{{- end -}}
{{- if and .gpusPerNode .processesPerNode (ne (int .gpusPerNode) (int .processesPerNode)) -}}
{{- fail "\n\nglobal.training.processesPerNode is for training on the CPU (gpusPerNode: 0); with GPUs there is one process for each.\n" -}}
{{- end -}}
{{- include "common.checkConfig" .config -}}
{{- include "common.checkGpus" . -}}
{{- include "common.checkFabric" . -}}
{{- include "common.checkMemory" . -}}
{{- end -}}
{{- $own := list "HOME" "PYTHONUNBUFFERED" "TRAINYARD_JOB" "TRAINYARD_NAMESPACE" "TRAINYARD_RELEASE" "TRAINYARD_GRACE_SECONDS" "TRAINYARD_PREFLIGHT" "TRAINYARD_WAIT_SECONDS" "TRAINYARD_LOGS" "TRAINYARD_LOG_BYTES" "TRAINYARD_PEERS_PORT" "TRAINYARD_PEERS_WAIT" "TRAINYARD_TRANSPORT" "RANK" "WORLD_SIZE" "MASTER_ADDR" "MASTER_PORT" "PET_NNODES" "PET_NODE_RANK" "PET_NPROC_PER_NODE" "PET_MASTER_ADDR" "PET_MASTER_PORT" "PET_RDZV_ENDPOINT" "PET_RDZV_BACKEND" -}}
{{- $pod := merge (dict "env" (concat .training.env .training.rdma.env)) .training -}}
{{- $mounts := list "/etc/trainyard" "/data" "/results" "/dev/shm" "/tmp" "/home/trainer" "/etc/trainyard-ca" "/etc/passwd" -}}
{{- $volumes := list "trainyard" "data" "results" "shm" "tmp" "home" "ca-bundle" "secret-mlflow" -}}
{{- $containers := list "preflight" "init-pytorch" "pytorch" "worker" "node" -}}
{{- include "common.checkPod" (dict "path" "global.training" "pod" $pod "env" $own "mounts" $mounts "volumes" $volumes "containers" $containers) -}}
{{- end -}}

{{/* Refuse trainer's settings that the chart derives, and pairs of which only one may be set. Call with the settings. */}}
{{- define "common.checkConfig" -}}
{{- if dig "run" "dir" "" . -}}
{{- fail "\n\nglobal.training.config.run.dir follows from the run's name: set global.training.name instead.\n" -}}
{{- end -}}
{{- if dig "data" "dir" "" . -}}
{{- fail "\n\nglobal.training.config.data.dir follows from the dataset's name: set global.dataset.name instead.\n" -}}
{{- end -}}
{{- if regexMatch "://[^/@]*@" (dig "mlflow" "uri" "" .) -}}
{{- fail "\n\nglobal.training.config.mlflow.uri holds a user name or password, which would be readable in a ConfigMap: take them out, and name a Secret in global.secrets.mlflow.existingSecret.\n" -}}
{{- end -}}
{{- range $key, $signed := dict "pretrained" "weights-url" "weights_mirror" "" -}}
{{- include "common.checkAddress" (dict "path" (printf "global.training.config.model.%s" $key) "url" (dig "model" $key "" $ | toString) "signed" $signed) -}}
{{- end -}}
{{- if and (dig "batch" "global" 0 .) (dig "batch" "per_process" 0 .) -}}
{{- fail "\n\nglobal.training.config.batch sets global and per_process: keep global (the same result on any number of GPUs) or per_process (a batch that grows with them).\n" -}}
{{- end -}}
{{- end -}}

{{/*
Refuse an address that gives whoever reads it access. Call with a dict: path, its key; url; and signed, the key of the Secret of web servers that
holds it with its signature, if there is one.
*/}}
{{- define "common.checkAddress" -}}
{{- if regexMatch "://[^/@]*@" .url -}}
{{- fail (printf "\n\n%s holds a user name or password, which would be readable in a ConfigMap: take them out, and name a Secret with the key netrc in global.secrets.http.existingSecret.\n" .path) -}}
{{- end -}}
{{- if and .signed (regexMatch "(?i)[?&](x-amz-signature|x-goog-signature|signature|sig|token|access_token|api_key|apikey)=" .url) -}}
{{- fail (printf "\n\n%s holds a signature or token, which would be readable in a ConfigMap: give the address without what follows the ?, and the whole of it as the key %s of the Secret in global.secrets.http.existingSecret.\n" .path .signed) -}}
{{- end -}}
{{- end -}}

{{/* Refuse GPUs that are set twice, or in a way that no process could use. Call with what is trained. */}}
{{- define "common.checkGpus" -}}
{{- range $kind := list "requests" "limits" -}}
{{- range $name, $_ := get $.resources $kind -}}
{{- if or (eq $name $.gpuResource) (has $name (list "nvidia.com/gpu" "amd.com/gpu")) (hasPrefix "nvidia.com/mig-" $name) -}}
{{- $how := ternary "" (printf " and global.training.gpuResource: %s" $name) (eq $name $.gpuResource) -}}
{{- fail (printf "\n\nglobal.training.resources.%s holds %s: set global.training.gpusPerNode instead%s.\n" $kind $name $how) -}}
{{- end -}}
{{- end -}}
{{- end -}}
{{- if and .gpusPerNode (not .gpuResource) (not .resourceClaims) -}}
{{- fail "\n\nglobal.training.gpuResource is empty, so the GPUs come by claims: name them in global.training.resourceClaims, or set gpuResource, such as nvidia.com/gpu.\n" -}}
{{- end -}}
{{- if and (hasPrefix "nvidia.com/mig-" .gpuResource) (gt (int .gpusPerNode) 1) -}}
{{- fail (printf "\n\nglobal.training.gpusPerNode is %d with gpuResource %s: a process sees one MIG device of its container. Set gpusPerNode: 1, and nodes to the number of MIG devices.\n" (int .gpusPerNode) .gpuResource) -}}
{{- end -}}
{{- end -}}

{{/*
Refuse environment of a fabric whose device no pod requests. NCCL_NET_GDR_LEVEL and UCX_NET_DEVICES also apply to TCP, so they do not imply a
device. The device may be under rdma, resources or resourceClaims, or be the host's. Call with what is trained.
*/}}
{{- define "common.checkFabric" -}}
{{- $network := dict -}}
{{- range concat .env .rdma.env -}}
{{- if regexMatch "^(NCCL_IB_|FI_)" .name -}}
{{- $_ := set $network .name (toString .value) -}}
{{- end -}}
{{- end -}}
{{- $devices := not (empty (or .rdma.resource .resourceClaims .unrestricted.hostNetwork)) -}}
{{- range $name, $_ := merge dict .resources.requests .resources.limits -}}
{{- $devices = or $devices (contains "/" $name) -}}
{{- end -}}
{{- if and .rdma.resource (eq (get $network "NCCL_IB_DISABLE") "1") -}}
{{- fail "\n\nglobal.training.env sets NCCL_IB_DISABLE=1 beside global.training.rdma.resource: leave one of them out.\n" -}}
{{- end -}}
{{- if and (omit $network "NCCL_IB_DISABLE") (not $devices) (not .rdma.env) (ne (get $network "NCCL_IB_DISABLE") "1") -}}
{{- fail (printf "\n\nglobal.training.env sets %s without global.training.rdma.resource: without the device the trainers would fall back to TCP in silence. Name it there, such as rdma/ib or vpc.amazonaws.com/efa.\n" (keys $network | sortAlpha | join ", ")) -}}
{{- end -}}
{{- if and .rdma.env (not .rdma.resource) -}}
{{- fail "\n\nglobal.training.rdma.env is set without global.training.rdma.resource: without the device the trainers would fall back to TCP in silence.\n" -}}
{{- end -}}
{{- if and .peers.check (eq (int .peers.port) 23456) -}}
{{- fail "\n\nglobal.training.peers.port is 23456, where the process group meets: choose another.\n" -}}
{{- end -}}
{{- end -}}

{{/* Refuse memory that does not add up. Call with what is trained. */}}
{{- define "common.checkMemory" -}}
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
{{- end -}}

{{/*
Refuse additional settings that would break a pod: names, volumes and paths that the chart itself uses, and mounts of volumes that do not
exist. Call with a dict: path of the settings in values, pod, and the chart's own env, mounts, volumes, containers.
*/}}
{{- define "common.checkPod" -}}
{{- $path := .path -}}
{{- include "common.refuseOwnLabels" (list (printf "%s.podLabels" $path) .pod.podLabels) -}}
{{- range .pod.env -}}
{{- if has .name $.env -}}
{{- fail (printf "\n\n%s.env sets %s, which the chart or the operator sets: take it out.\n" $path .name) -}}
{{- end -}}
{{- end -}}
{{- $volumes := .volumes -}}
{{- range .pod.extraVolumes -}}
{{- if has .name $volumes -}}
{{- fail (printf "\n\n%s.extraVolumes names a volume %s, and the pod has one of that name already: give it another.\n" $path .name) -}}
{{- end -}}
{{- $volumes = append $volumes .name -}}
{{- end -}}
{{- $mounts := .mounts -}}
{{- range .pod.extraVolumeMounts -}}
{{- $at := trimSuffix "/" .mountPath -}}
{{- if has $at $mounts -}}
{{- fail (printf "\n\n%s.extraVolumeMounts mounts %s at %s, where something is mounted already: choose another path.\n" $path .name $at) -}}
{{- end -}}
{{- $mounts = append $mounts $at -}}
{{- if not (has .name $volumes) -}}
{{- fail (printf "\n\n%s.extraVolumeMounts mounts %s, which is no volume of the pod: add it to %s.extraVolumes, such as {name: %s, configMap: {name: ...}}.\n" $path .name $path .name) -}}
{{- end -}}
{{- end -}}
{{- $containers := .containers -}}
{{- range $key := list "extraInitContainers" "extraContainers" -}}
{{- range get $.pod $key -}}
{{- if has .name $containers -}}
{{- fail (printf "\n\n%s.%s names a container %s, and the pod has one of that name already: give it another.\n" $path $key .name) -}}
{{- end -}}
{{- $containers = append $containers .name -}}
{{- $name := .name -}}
{{- range .volumeMounts -}}
{{- if not (has .name $volumes) -}}
{{- fail (printf "\n\n%s.%s: %s mounts %s, which is no volume of the pod: add it to %s.extraVolumes.\n" $path $key $name .name $path) -}}
{{- end -}}
{{- end -}}
{{- end -}}
{{- end -}}
{{- end -}}
