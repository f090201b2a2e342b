{{/*
All that a training job runs with, derived once as .Run of its part's context: name, runName, image, command, config, nodes, processes,
training (its settings), labels (of the job), env (the chart's own environment of a trainer, by name), and podAnnotations. The part has said in
.Job what differs between the kinds of jobs: command (may hold <np> for the number of processes of the job); launch, the part of it that starts
a program of the user's (global.training.command) on every rank; and identity, what else changes the job.

The name's hash leaves out what does not change the computation: labels, chart version, TTL, suspend, queue, secrets. It has the place at
which the run reads and writes, and as which user: existing pods never change, so a fix of their access is a new job. Settings added after
0.1.0 count only if they are set, so that a new version of the chart does not change the job of a run without them; and metrics do not count,
so that a running job continues when they are switched on, and pods that start later serve them.
*/}}
{{- define "common.run" -}}
{{- if not (hasKey . "Run") -}}
{{- include "common.context" . -}}
{{- include "common.training" (dict "into" . "shared" .Values.global.training "own" .Values.training) -}}
{{- $training := .Training -}}

{{- /* names that the pod has already */ -}}
{{- $own := list "HOME" "PYTHONUNBUFFERED" "TRAINYARD_JOB" "TRAINYARD_NAMESPACE" "TRAINYARD_RELEASE" "TRAINYARD_GRACE_SECONDS" "TRAINYARD_PREFLIGHT"
  "TRAINYARD_WAIT_SECONDS" "TRAINYARD_LOGS" "TRAINYARD_LOG_BYTES" "TRAINYARD_PEERS_PORT" "TRAINYARD_PEERS_WAIT" "TRAINYARD_SPARES" "TRAINYARD_TRANSPORT"
  "RANK" "WORLD_SIZE" "MASTER_ADDR" "MASTER_PORT" "PET_NNODES" "PET_NODE_RANK" "PET_NPROC_PER_NODE" "PET_MASTER_ADDR" "PET_MASTER_PORT"
  "PET_RDZV_ENDPOINT" "PET_RDZV_BACKEND" "TRAINYARD_RUN_DIR" "TRAINYARD_METRICS_PORT" -}}
{{- $mounts := list "/etc/trainyard" "/data" "/results" "/dev/shm" "/tmp" "/home/trainer" "/etc/trainyard-ca" "/etc/passwd" -}}
{{- $volumes := list "trainyard" "data" "results" "shm" "tmp" "home" "ca-bundle" "secret-mlflow" -}}
{{- $containers := list "preflight" "init-pytorch" "pytorch" "worker" "node" -}}
{{- include "common.podSettings" (dict "path" "global.training" "pod" $training "scheduling" .Values.global.scheduling "env" $own "mounts" $mounts
  "volumes" $volumes "containers" $containers "further" (dict "global.training.rdma.env" $training.rdma.env)) -}}
{{- $annotations := merge (dict) $training.podAnnotations (.Values.global.podAnnotations | default dict) -}}
{{- include "common.checkTraining" (merge (dict "job" .Chart.Name "annotations" $annotations) $training) -}}

{{- /* what it runs */ -}}
{{- $processes := int ($training.gpusPerNode | default $training.processesPerNode) -}}
{{- $nodes := int $training.nodes -}}
{{- $runName := get .Facts.runs .Chart.Name | default $training.name | default .Release.Name -}}
{{- $command := list -}}
{{- range ternary .Job.launch .Job.command (not (empty $training.command)) -}}
{{- $command = append $command (replace "<np>" (toString (mul $nodes $processes)) .) -}}
{{- end -}}
{{- $command = concat $command ($training.command | default list) -}}
{{- $run := dict "runName" $runName "image" (include "common.image" .) "command" $command "nodes" $nodes "processes" $processes -}}
{{- include "common.config" (dict "into" $run "training" $training "run" $runName "dataset" .Values.global.dataset.name) -}}
{{- /* a program waits for a dataset that this release prepares, and for no other */ -}}
{{- if $training.command -}}
{{- $_ := set $run "config" (pick $run.config "run" "data") -}}
{{- if not (has "dataset" .Facts.parts) -}}{{- $_ := set $run "ungated" true -}}{{- end -}}
{{- if .Facts.dataless -}}
{{- $_ := set $run "dataless" true -}}
{{- $_ := set $run "config" (omit $run.config "data") -}}
{{- end -}}
{{- end -}}

{{- /* its name, by a hash of what it runs */ -}}
{{- $what := pick $training "gpusPerNode" "resources" "shmSize" "env" "rdma" "extraVolumes" "extraVolumeMounts" "extraInitContainers" -}}
{{- range $key, $value := merge (pick $training "envFrom" "extraContainers" "resourceClaims" "runtimeClassName" "securityContext"
  "envScript" "hostAliases" "dnsConfig" "dnsPolicy") $training.unrestricted -}}
{{- if $value -}}{{- $_ := set $what $key $value -}}{{- end -}}
{{- end -}}
{{- if kindIs "bool" (get $training "hostUsers") -}}{{- $_ := set $what "hostUsers" $training.hostUsers -}}{{- end -}}
{{- if not $training.rdma.by -}}{{- $_ := set $what "rdma" (omit $training.rdma "by") -}}{{- end -}}
{{- if ne $training.gpuResource "nvidia.com/gpu" -}}{{- $_ := set $what "gpuResource" $training.gpuResource -}}{{- end -}}
{{- $storage := .Values.global.storage -}}
{{- $gid := ternary "platform" (int64 .User.gid) (empty .User.gid) -}}
{{- $place := dict "uid" $storage.uid "gid" $gid "supplementalGroups" $storage.supplementalGroups -}}
{{- range $which, $claim := .Claims -}}{{- $_ := set $place $which (list $claim (index $storage $which).subPath) -}}{{- end -}}
{{- $what = merge $what $run (dict "identity" .Job.identity "storage" (mustToJson $place)) -}}
{{- $_ := set $run "name" (include "common.jobName" (list . (mustToJson $what))) -}}
{{- $_ := set $run "training" $training -}}
{{- /* labels of the job alone, which its name does not cover: the user's, and those by which Kueue queues it */ -}}
{{- $labels := deepCopy ($training.jobLabels | default dict) -}}
{{- with .Values.global.scheduling -}}
{{- with .queue -}}{{- $_ := set $labels "kueue.x-k8s.io/queue-name" . -}}{{- end -}}
{{- with .queuePriority -}}{{- $_ := set $labels "kueue.x-k8s.io/priority-class" . -}}{{- end -}}
{{- end -}}
{{- $_ := set $run "labels" $labels -}}
{{- $_ := set $run "podAnnotations" (deepCopy $training.podAnnotations) -}}

{{- /* metrics, and the annotations by which a Prometheus finds them */ -}}
{{- with .Values.global.metrics -}}
{{- if .enabled -}}
{{- if hasKey (dig "config" "metrics" (dict) $training) "port" -}}
{{- include "common.refuse" "\n\nglobal.training.config.metrics.port follows from global.metrics.port: take it out.\n" -}}
{{- end -}}
{{- if has (int .port) (list 2222 23456 29400 29500 (int $training.peers.port)) -}}
{{- include "common.refuse" (printf "\n\nglobal.metrics.port is %d, on which the pods of a job already meet: choose another.\n" (int .port)) -}}
{{- end -}}
{{- $_ := include "common.mergeInto" (list $run.config (dict "metrics" (dict "port" (int .port)))) -}}
{{- end -}}
{{- if and .enabled (eq .kind "annotations") -}}
{{- range $key, $value := dict "scrape" "true" "port" (toString (int .port)) "path" "/metrics" -}}
{{- $name := printf "prometheus.io/%s" $key -}}
{{- if hasKey $run.podAnnotations $name -}}
{{- include "common.refuse" (printf "\n\nglobal.training.podAnnotations sets %s, which follows from global.metrics: take it out.\n" $name) -}}
{{- end -}}
{{- $_ := set $run.podAnnotations $name $value -}}
{{- end -}}
{{- end -}}
{{- end -}}

{{- /* the chart's own environment of a trainer */ -}}
{{- $env := dict "TRAINYARD_JOB" $run.name "TRAINYARD_RELEASE" .Release.Name "TRAINYARD_PREFLIGHT" "/tmp/preflight-failed" -}}
{{- /* whose the run directory is: the namespace is the pod's own, wherever the rendered files are applied */ -}}
{{- $_ := set $env "TRAINYARD_NAMESPACE" (dict "valueFrom" (dict "fieldRef" (dict "fieldPath" "metadata.namespace"))) -}}
{{- /* a program of the user's also finds the folder of its run, and the port for its metrics */ -}}
{{- if $training.command -}}
{{- $_ := set $env "TRAINYARD_RUN_DIR" $run.config.run.dir -}}
{{- with .Values.global.metrics -}}
{{- if .enabled -}}{{- $_ := set $env "TRAINYARD_METRICS_PORT" (int .port | toString) -}}{{- end -}}
{{- end -}}
{{- end -}}
{{- with $training -}}
{{- $_ := set $env "TRAINYARD_GRACE_SECONDS" (int .gracePeriodSeconds | toString) -}}
{{- if .logs.keep -}}
{{- $_ := set $env "TRAINYARD_LOGS" (printf "%s/logs" $run.config.run.dir) -}}
{{- $_ := set $env "TRAINYARD_LOG_BYTES" (include "common.amount" .logs.size | float64 | int64 | toString) -}}
{{- end -}}
{{- with $.Job.spares }}{{- $_ := set $env "TRAINYARD_SPARES" (toString .) -}}{{- end -}}
{{- /* on the node's network a pod has its node's name, and its peers cannot be told from others */ -}}
{{- if and .peers.check (not (dig "hostNetwork" false .unrestricted)) -}}
{{- $_ := set $env "TRAINYARD_PEERS_PORT" (int .peers.port | toString) -}}
{{- $_ := set $env "TRAINYARD_PEERS_WAIT" (int .peers.wait | toString) -}}
{{- end -}}
{{- if or .rdma.resource .rdma.by -}}{{- $_ := set $env "TRAINYARD_TRANSPORT" "rdma" -}}{{- end -}}
{{- end -}}
{{- $_ := set $run "env" $env -}}
{{- $_ := set . "Run" $run -}}
{{- end -}}
{{- end -}}

{{/*
Set .Training of a map: global.training with a job's own overrides; of the placement each of the job's keys replaces the shared one. Beside
the settings it says in `weights` into which folder the pretrained weights are fetched beforehand, as torchvision's and timm's by name and
those at an address are; nothing if there are none. Two recipes start from such weights. A number is a float in it, whether a file or the
command line set it. Call with a dict: into, shared, own.
*/}}
{{- define "common.training" -}}
{{- $training := dict -}}
{{- $_ := include "common.mergeInto" (list $training .shared) -}}
{{- $_ := include "common.mergeInto" (list $training .own) -}}
{{- $placement := deepCopy (.shared.scheduling | default dict) -}}
{{- range $key, $value := .own.scheduling -}}
{{- if not (kindIs "invalid" $value) -}}{{- $_ := set $placement $key $value -}}{{- end -}}
{{- end -}}
{{- $_ := set $training "scheduling" $placement -}}
{{- if get $training "gpusBy" -}}
{{- if not (has $training.gpuResource (list "" "nvidia.com/gpu")) -}}
{{- include "common.refuse" (printf (print "\n\nglobal.training.gpusBy is %s, without a device plugin, and global.training.gpuResource is a plugin's %s: leave "
  "one of them out.\n") $training.gpusBy $training.gpuResource) -}}
{{- end -}}
{{- $_ := set $training "gpuResource" "" -}}
{{- end -}}
{{- $model := get ($training.config | default dict) "model" | default dict -}}
{{- $pretrained := get $model "pretrained" | toString -}}
{{- if not (hasKey $model "pretrained") -}}
{{- $pretrained = ternary "timm" "" (has $training.recipe (list "finetune" "finetune-vit")) -}}
{{- end -}}
{{- $fetched := or (eq $pretrained "timm") (regexMatch "^(https?|s3|gs)://" $pretrained) -}}
{{- $fetched = or $fetched (regexMatch "^([A-Za-z0-9_]+_Weights\\.)?[A-Z][A-Z0-9_]*$" $pretrained) -}}
{{- $_ := set $training "weights" (ternary (get $model "weights_dir" | default "/data/weights") "" $fetched) -}}
{{- $_ := set .into "Training" ($training | mustToJson | fromJson) -}}
{{- end -}}

{{/*
The trainer's settings of a run, set as .config of a map. Call with a dict: into, training, run (its name), dataset. Weights that are fetched
beforehand lie in a folder of the data claim, unless values say otherwise.
*/}}
{{- define "common.config" -}}
{{- $config := dict "recipe" .training.recipe -}}
{{- $_ := include "common.mergeInto" (list $config .training.config) -}}
{{- $_ := include "common.mergeInto" (list $config (dict
  "run" (dict "dir" (printf "/results/runs/%s" .run))
  "data" (dict "dir" (printf "/data/%s" .dataset)))) -}}
{{- with .training.weights -}}
{{- $_ := include "common.mergeInto" (list $config (dict "model" (dict "weights_dir" .))) -}}
{{- end -}}
{{- $_ := set .into "config" $config -}}
{{- end -}}

{{/* Refuse, with a clear message, settings of a training that contradict each other. Call with the settings, and in `job` the kind of its job. */}}
{{- define "common.checkTraining" -}}
{{- if not .nodes -}}
{{- include "common.refuse" "\n\nglobal.training.nodes is not set: set the number of nodes that train.\n" -}}
{{- end -}}
{{- if and (not .gpusPerNode) (not .processesPerNode) -}}
{{- include "common.refuse" (print "\n\nglobal.training.gpusPerNode is 0: set it, or set global.training.processesPerNode, the processes of each node that "
  "train on the CPU.\n") -}}
{{- end -}}
{{- if and .gpusPerNode .processesPerNode (ne (int .gpusPerNode) (int .processesPerNode)) -}}
{{- include "common.refuse" "\n\nglobal.training.processesPerNode is for training on the CPU (gpusPerNode: 0); with GPUs there is one process for each.\n" -}}
{{- end -}}
{{- /* what a program of the user's cannot follow; config.strategy chooses mpirun for a TrainJob */ -}}
{{- if and .command (ne .recipe "resnet50-nvidia-90") -}}
{{- include "common.refuse" (printf (print "\n\nglobal.training.recipe is %s beside global.training.command: a recipe has the settings of the project's own "
  "trainers, and the command starts another program. Take one of them out.\n") .recipe) -}}
{{- end -}}
{{- $settings := ternary (keys (omit (.config | default dict) (ternary "strategy" "" (eq .job "trainjob")))) list (not (empty .command)) -}}
{{- with $settings | sortAlpha -}}
{{- include "common.refuse" (printf (print "\n\nglobal.training.config sets %s beside global.training.command: these are settings of the project's own "
  "trainers, and the command starts another program. Take them out, and give the program its own in the command or in global.training.env.\n")
  (join ", " .)) -}}
{{- end -}}
{{- /* the trainer's settings that the chart derives, and pairs of which only one may be set */ -}}
{{- $config := .config -}}
{{- if dig "run" "dir" "" $config -}}
{{- include "common.refuse" "\n\nglobal.training.config.run.dir follows from the run's name: set global.training.name instead.\n" -}}
{{- end -}}
{{- if dig "data" "dir" "" $config -}}
{{- include "common.refuse" "\n\nglobal.training.config.data.dir follows from the dataset's name: set global.dataset.name instead.\n" -}}
{{- end -}}
{{- if regexMatch "://[^/@]*@" (dig "mlflow" "uri" "" $config) -}}
{{- include "common.refuse" (print "\n\nglobal.training.config.mlflow.uri holds a user name or password, which would be readable in a ConfigMap: take them "
  "out, and name a Secret in global.secrets.mlflow.existingSecret.\n") -}}
{{- end -}}
{{- range $key, $signed := dict "pretrained" "weights-url" "weights_mirror" "" -}}
{{- $url := dig "model" $key "" $config | toString -}}
{{- with include "common.addressError" (dict "path" (printf "global.training.config.model.%s" $key) "url" $url "signed" $signed) -}}
{{- include "common.refuse" . -}}
{{- end -}}
{{- end -}}
{{- if and (dig "batch" "global" 0 $config) (dig "batch" "per_process" 0 $config) -}}
{{- include "common.refuse" (print "\n\nglobal.training.config.batch sets global and per_process: keep global (the same result on any number of GPUs) or "
  "per_process (a batch that grows with them).\n") -}}
{{- end -}}
{{- /* GPUs that are set twice, or in a way that no process could use */ -}}
{{- range $kind := list "requests" "limits" -}}
{{- range $name, $_ := get $.resources $kind -}}
{{- if or (eq $name $.gpuResource) (has $name (list "nvidia.com/gpu" "amd.com/gpu")) (hasPrefix "nvidia.com/mig-" $name) -}}
{{- $how := ternary "" (printf " and global.training.gpuResource: %s" $name) (eq $name $.gpuResource) -}}
{{- include "common.refuse" (printf "\n\nglobal.training.resources.%s holds %s: set global.training.gpusPerNode instead%s.\n" $kind $name $how) -}}
{{- end -}}
{{- if eq $name $.rdma.resource -}}
{{- include "common.refuse" (printf (print "\n\nglobal.training.resources.%s holds %s, and global.training.rdma.resource names it: leave one of them out; "
  "how many is global.training.rdma.count.\n") $kind $name) -}}
{{- end -}}
{{- end -}}
{{- end -}}
{{- if and .rdma.resource (eq .rdma.resource .gpuResource) -}}
{{- include "common.refuse" (printf "\n\nglobal.training.rdma.resource and gpuResource both name %s: name the network's device under rdma.\n" .gpuResource) -}}
{{- end -}}
{{- if and .gpusPerNode (not (or .gpuResource (get . "gpusBy") .resourceClaims)) -}}
{{- include "common.refuse" (print "\n\nglobal.training.gpuResource is empty, so the GPUs come by claims: name them in global.training.resourceClaims, set "
  "gpuResource, such as nvidia.com/gpu, or say in gpusBy what else brings them.\n") -}}
{{- end -}}
{{- $given := dict "claims" .resourceClaims "annotations" (regexMatch "(?i)gpu" (keys .annotations | join " ")) "node" true -}}
{{- if and .gpusPerNode (get . "gpusBy") (not (get $given (get . "gpusBy"))) -}}
{{- $how := dict
  "claims" "name the claims in global.training.resourceClaims"
  "annotations" "set in global.training.podAnnotations what your scheduler reads, such as gpu-fraction" -}}
{{- include "common.refuse" (printf "\n\nglobal.training.gpusBy is %s, and nothing brings the GPUs: %s.\n" .gpusBy (get $how .gpusBy)) -}}
{{- end -}}
{{- if and (hasPrefix "nvidia.com/mig-" .gpuResource) (gt (int .gpusPerNode) 1) -}}
{{- include "common.refuse" (printf (print "\n\nglobal.training.gpusPerNode is %d with gpuResource %s: a process sees one MIG device of its container. Set "
  "gpusPerNode: 1, and nodes to the number of MIG devices.\n") (int .gpusPerNode) .gpuResource) -}}
{{- end -}}
{{- /* Environment of a fabric whose device no pod requests. NCCL_NET_GDR_LEVEL and UCX_NET_DEVICES also apply to TCP, so they do not imply a
device. The device may be under rdma, resources or resourceClaims, or be the host's. What brings it without a device plugin must be there, too. */ -}}
{{- $network := dict -}}
{{- range concat .env .rdma.env -}}
{{- if regexMatch "^(NCCL_IB_|FI_)" .name -}}
{{- $_ := set $network .name (toString .value) -}}
{{- end -}}
{{- end -}}
{{- $devices := not (empty (or .rdma.resource .rdma.by .resourceClaims .unrestricted.hostNetwork .unrestricted.privileged)) -}}
{{- range $name, $_ := merge dict .resources.requests .resources.limits -}}
{{- $devices = or $devices (contains "/" $name) -}}
{{- end -}}
{{- if and .rdma.resource (eq (get $network "NCCL_IB_DISABLE") "1") -}}
{{- include "common.refuse" "\n\nglobal.training.env sets NCCL_IB_DISABLE=1 beside global.training.rdma.resource: leave one of them out.\n" -}}
{{- end -}}
{{- if and (omit $network "NCCL_IB_DISABLE") (not $devices) (not .rdma.env) (ne (get $network "NCCL_IB_DISABLE") "1") -}}
{{- include "common.refuse" (printf (print "\n\nglobal.training.env sets %s without global.training.rdma.resource: without the device the trainers would fall "
  "back to TCP in silence. Name it there, such as rdma/ib or vpc.amazonaws.com/efa, or say in global.training.rdma.by what else brings it: "
  "claims, annotations or node.\n") (keys $network | sortAlpha | join ", ")) -}}
{{- end -}}
{{- if and .rdma.env (not (or .rdma.resource .rdma.by)) -}}
{{- include "common.refuse" (print "\n\nglobal.training.rdma.env is set without global.training.rdma.resource: without the device the trainers would "
  "fall back to TCP in silence. Name it there, or say in global.training.rdma.by what else brings it: claims, annotations or node.\n") -}}
{{- end -}}
{{- if and .rdma.by .rdma.resource -}}
{{- include "common.refuse" (printf (print "\n\nglobal.training.rdma.by is %s, without a device plugin, and global.training.rdma.resource is a plugin's "
  "%s: leave one of them out.\n") .rdma.by .rdma.resource) -}}
{{- end -}}
{{- $networks := list -}}
{{- range keys .annotations -}}
{{- if not (regexMatch "^((provreq[.])?kueue[.]x-k8s[.]io|prometheus[.]io|cluster-autoscaler[.]kubernetes[.]io)/|^gpu-" .) -}}
{{- $networks = append $networks . -}}
{{- end -}}
{{- end -}}
{{- $brought := dict "claims" .resourceClaims "annotations" $networks "node" true -}}
{{- if and .rdma.by (not (get $brought .rdma.by)) -}}
{{- $how := dict
  "claims" "name the claims in global.training.resourceClaims"
  "annotations" "name the networks in global.training.podAnnotations, such as k8s.v1.cni.cncf.io/networks" -}}
{{- include "common.refuse" (printf "\n\nglobal.training.rdma.by is %s, and nothing brings the devices: %s.\n" .rdma.by (get $how .rdma.by)) -}}
{{- end -}}
{{- if and .peers.check (eq (int .peers.port) 23456) -}}
{{- include "common.refuse" "\n\nglobal.training.peers.port is 23456, where the process group meets: choose another.\n" -}}
{{- end -}}
{{- /* memory that does not add up */ -}}
{{- with .resources.limits.memory -}}
{{- if lt (include "common.amount" . | float64) 134217728.0 -}}
{{- include "common.refuse" (printf (print "\n\nglobal.training.resources.limits.memory is %s, which does not hold PyTorch: the kernel would kill each "
  "pod as it starts. Some hundred MiB a process are the least, beside /dev/shm.\n") (toString .)) -}}
{{- end -}}
{{- if ge (include "common.amount" $.shmSize | float64) (include "common.amount" . | float64) -}}
{{- include "common.refuse" (printf (print "\n\nglobal.training.shmSize (%s) does not fit into global.training.resources.limits.memory (%s): /dev/shm counts "
  "toward that limit.\n") $.shmSize .) -}}
{{- end -}}
{{- end -}}
{{- end -}}

{{/*
What is wrong with an address, if anything: one that gives all who read it access, or one of a page about a file. Call with a dict: path, its
key; url; and signed, the key of the Secret of web servers that holds it with its signature, if there is one.
*/}}
{{- define "common.addressError" -}}
{{- if regexMatch "://[^/@]*@" .url -}}
{{- printf (print "\n\n%s holds a user name or password, which would be readable in a ConfigMap: take them out, and name a Secret "
  "with the key netrc in global.secrets.http.existingSecret.\n") .path -}}
{{- else if and .signed (regexMatch "(?i)[?&](x-amz-signature|x-goog-signature|signature|sig|token|access_token|api_key|apikey)=" .url) -}}
{{- printf (print "\n\n%s holds a signature or token, which would be readable in a ConfigMap: give the address without what follows "
  "the ?, and the whole of it as the key %s of the Secret in global.secrets.http.existingSecret.\n") .path .signed -}}
{{- else if .signed -}}
{{- $site := regexFind "^https?://[^/]*" .url | lower | replace "//www." "//" | regexFind "[^/]+$" -}}
{{- $page := "" -}}
{{- $instead := "" -}}
{{- if and (eq $site "huggingface.co") (not (contains "/resolve/" .url)) -}}
{{- $page = "Hugging Face's" -}}
{{- $instead = "write the address of one file, which has /resolve/ in it" -}}
{{- else if and (eq $site "github.com") (not (regexMatch "/(raw|files|archive|releases/(latest/)?download|zipball|tarball)/|[?&]raw=" .url)) -}}
{{- $page = "GitHub's" -}}
{{- $instead = "write the address of a file, which has /raw/ in place of /blob/, or of a release's file, which has /releases/download/ in it" -}}
{{- else if and (eq $site "gitlab.com") (contains "/-/blob/" .url) -}}
{{- $page = "GitLab's" -}}
{{- $instead = "write /-/raw/ in place of /-/blob/" -}}
{{- else if and (has $site (list "drive.google.com" "docs.google.com")) (not (regexMatch "[?&]confirm=" .url)) -}}
{{- $page = "Google Drive's" -}}
{{- $instead = "put the file into a bucket or on a web server, since Drive's address for downloads answers with a page, too, if the file is large" -}}
{{- else if and (eq $site "dropbox.com") (not (regexMatch "[?&](dl|raw)=1" .url)) -}}
{{- $page = "Dropbox's" -}}
{{- $instead = "write dl=1 in place of dl=0 at its end" -}}
{{- end -}}
{{- with $page -}}
{{- printf "\n\n%s is %s, a page of %s and no file: %s.\n" $.path $.url . $instead -}}
{{- end -}}
{{- end -}}
{{- end -}}

{{/*
A job's run policy. Call with a dict: root; operator, which runs it; clean, the cleanPodPolicy unless values set another; and least, the
number of pods that must start together: only the training pods, since an MPI launcher is created once they are ready.
*/}}
{{- define "common.runPolicy" -}}
{{- $policy := deepCopy .root.Values.runPolicy -}}
{{- $_ := set $policy "cleanPodPolicy" ($policy.cleanPodPolicy | default .clean) -}}
{{- if and (hasPrefix "kubeflow.org/" (toString $policy.managedBy)) (ne $policy.managedBy .operator) -}}
{{- include "common.refuse" (printf "\n\n%s.runPolicy.managedBy is %s, which leaves the job to nobody: it is run by %s.\n"
  .root.Chart.Name $policy.managedBy .operator) -}}
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

{{/*
The pod that runs mpirun. It gets settings and results, no GPU, no dataset and no secrets, and has its own pod settings, since it needs neither GPUs
nor the workers' network. Refused is what ssh between pods cannot do: sshd looks users up by name, and as root it needs more capabilities than the
pods have. Call with a dict: root; run; launcher, its values; container, its name; own, what a spread constraint counts; and
restartPolicy if the job needs one in the pod.
*/}}
{{- define "common.launcherPod" -}}
{{- $root := .root -}}
{{- $run := .run -}}
{{- $global := $root.Values.global -}}
{{- $ssh := ternary "an MPIJob's ssh" "a TrainJob's ssh (strategy: horovod)" (eq $root.Chart.Name "mpijob") -}}
{{- if not $root.User.uid -}}
{{- include "common.refuse" (printf (print "\n\nglobal.storage.uid is platform, and %s looks its user up by number: set a uid that the "
  "namespace may use. On OpenShift, kubectl get namespace NAME -o "
  "jsonpath='{.metadata.annotations.openshift\\.io/sa\\.scc\\.uid-range}' prints the first of them, such as 1000730000; "
  "global.storage.gid is the same number there. Or train with DDP, as a PyTorchJob or a TrainJob.\n") $ssh) -}}
{{- end -}}
{{- if dig "unrestricted" "runAsRoot" false $run.training -}}
{{- include "common.refuse" (printf (print "\n\nglobal.training.unrestricted.runAsRoot is for PyTorchJobs and TrainJobs with DDP or FSDP: "
  "%s as root would need capabilities that its pods do not get.\n") $ssh) -}}
{{- end -}}
{{- $pod := deepCopy .launcher -}}
{{- $own := concat (list "HOME" "PYTHONUNBUFFERED" "TRAINYARD_WAIT_SECONDS") (keys $run.env) -}}
{{- $mounts := list "/etc/trainyard" "/results" "/tmp" "/home/trainer" "/etc/trainyard-ca" "/etc/passwd" -}}
{{- $volumes := list "trainyard" "results" "tmp" "home" "ca-bundle" -}}
{{- include "common.podSettings" (dict "path" "mpijob.launcher" "pod" $pod "scheduling" (omit $global.scheduling "topologySpreadConstraints") "env" $own
  "mounts" $mounts "volumes" $volumes "containers" (list .container)) -}}
{{- $names := list -}}
{{- range $pod.env -}}{{- $names = append $names .name -}}{{- end -}}
{{- $env := list -}}
{{- range concat $run.training.env $run.training.rdma.env -}}
{{- if not (has .name $names) -}}{{- $env = append $env . -}}{{- end -}}
{{- end -}}
{{- $wait := dict "TRAINYARD_WAIT_SECONDS" (int .launcher.wait | toString) -}}
{{ include "common.pod" (dict "root" $root "pod" $pod "own" .own "part" "launcher") }}
  {{- with .restartPolicy }}
  restartPolicy: {{ . }}
  {{- end }}
  terminationGracePeriodSeconds: {{ int $run.training.gracePeriodSeconds }}
  {{- with $pod.extraContainers }}
  initContainers:
    {{- range . }}
    - {{ merge (dict "restartPolicy" "Always") . | toYaml | nindent 6 | trim }}
    {{- end }}
  {{- end }}
  containers:
    - name: {{ .container }}
      image: {{ $run.image | quote }}
      imagePullPolicy: {{ $global.image.pullPolicy }}
      command:
        {{- toYaml $run.command | nindent 8 }}
      env:
        {{- include "common.env" (dict "root" $root "own" (merge $wait $run.env) "env" (concat $env $pod.env)) | nindent 8 }}
      {{- with $pod.envFrom }}
      envFrom:
        {{- toYaml . | nindent 8 }}
      {{- end }}
      resources:
        {{- include "common.quantities" .launcher.resources | nindent 8 }}
      {{- include "common.container" "" | nindent 6 }}
      volumeMounts:
        - name: trainyard
          mountPath: /etc/trainyard
          readOnly: true
        {{- include "common.mounts" (dict "root" $root "claims" (dict "results" false) "passwd" true) | nindent 8 }}
        {{- with $pod.extraVolumeMounts }}
        {{- toYaml . | nindent 8 }}
        {{- end }}
  volumes:
    - name: trainyard
      projected:
        defaultMode: 288  # 0440
        sources:
          - configMap:
              name: {{ $run.name }}-run
    {{- include "common.volumes" (dict "root" $root "claims" (list "results")) | nindent 4 }}
    {{- with $pod.extraVolumes }}
    {{- toYaml . | nindent 4 }}
    {{- end }}
{{- end -}}
