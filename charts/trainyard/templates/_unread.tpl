{{/*
Keys that values set and nothing of this release reads, a line each with the reason. What is off may keep its settings for later, so they are told,
not refused. Call with the umbrella's context, which has .Facts, and the dataset's its own where it is on.
*/}}
{{- define "trainyard.unread" -}}
{{- $values := .Values -}}
{{- $facts := .Facts -}}
{{- /* parts that are off: of jobs, whose values have their defaults, what differs; of the others, what is there */ -}}
{{- $jobs := dict
  "pytorchjob" (dict "form" "master" "elastic" (dict "minNodes" 0 "maxRestarts" 0 "spares" 0) "runPolicy" (dict "cleanPodPolicy" "")
    "image.repository" "trainyard-pytorch")
  "mpijob" (dict "image.repository" "trainyard-horovod" "spares" 0 "runPolicy" (dict "cleanPodPolicy" "" "backoffLimit" 6)
    "launcher" (dict "wait" 600 "resources" (dict "requests" (dict "cpu" "100m" "memory" "256Mi") "limits" (dict "memory" "1Gi"))))
  "trainjob" (dict "version" "" "image.repository" "trainyard-pytorch" "spares" 0 "runPolicy" (dict "backoffLimit" 1000)
    "runtime" (dict "waitForDataset" true "wandb" false)) -}}
{{- if $facts.mpi -}}{{- $_ := set $jobs "mpijob" (omit $jobs.mpijob "launcher") -}}{{- end -}}
{{- range $job, $defaults := $jobs -}}
{{- if not (has $job $facts.parts) -}}
{{- /* a published chart names its images by digest, by default and in its annotations */ -}}
{{- $digest := dig "image" "digest" "" (get $values $job) -}}
{{- if not (contains $digest (index $.Chart.Annotations "artifacthub.io/images")) -}}{{- $digest = "" -}}{{- end -}}
{{- include "trainyard.unless" (list $values false (printf "%s does not train" $job) $job (merge (dict "training" dict "image.digest" $digest)
  $defaults)) -}}
{{- end -}}
{{- end -}}
{{- range $part := list "dataset" "evaluate" "filebrowser" "secrets" -}}
{{- if not (has $part $facts.parts) -}}
{{- range $key, $value := omit (get $values $part | default dict) "enabled" "global" -}}
{{- include "trainyard.unless" (list $values false (printf "%s.enabled is false" $part) $part (dict $key nil)) -}}
{{- end -}}
{{- end -}}
{{- end -}}
{{- /* features that are off: whether they are on, what turns them on, where, and the defaults there */ -}}
{{- $global := $values.global -}}
{{- $policy := $values.networkPolicy -}}
{{- $gang := dig "scheduling" "gang" "enabled" false $global -}}
{{- include "trainyard.unless" (list $values $gang "gang.enabled is false" "global.scheduling.gang" (dict
  "queue" "" "priorityClass" "" "timeoutSeconds" 0)) -}}
{{- if and $gang (eq (join "" $facts.trains) "trainjob") -}}
{{- include "trainyard.unless" (list $values false "a TrainJob's gang has none" "global.scheduling.gang" (dict "priorityClass" "")) -}}
{{- end -}}
{{- /* whose group it is shows where pods name their scheduler, and of a TrainJob also where they do not */ -}}
{{- $schedulers := list -}}
{{- range $job, $training := $facts.trainings -}}
{{- $name := get $training.scheduling "schedulerName" | default (dig "scheduling" "schedulerName" "" $global) -}}
{{- $named := ternary "volcano" $name (contains "volcano" $name) -}}
{{- $schedulers = append $schedulers ($named | default (ternary "coscheduling" "either" (eq $job "trainjob"))) -}}
{{- end -}}
{{- if and $gang $schedulers -}}
{{- $volcano := or (has "volcano" $schedulers) (has "either" $schedulers) -}}
{{- include "trainyard.unless" (list $values (without $schedulers "volcano") "Volcano's groups have none" "global.scheduling.gang" (dict
  "timeoutSeconds" 0)) -}}
{{- $volcanos := ternary (list "queue") (list "queue" "priorityClass") (eq (join "" $facts.trains) "trainjob") -}}
{{- range $volcanos -}}
{{- include "trainyard.unless" (list $values $volcano "groups of coscheduling have none" "global.scheduling.gang" (dict . "")) -}}
{{- end -}}
{{- end -}}
{{- include "trainyard.unless" (list $values (has "mpijob" $facts.parts) "global.training.operator names another job" "mpijob" (dict
  "enabled" false)) -}}
{{- if $values.dataset.enabled -}}
{{- include "trainyard.unless" (list $values (ne (toString $values.dataset.source.kind) "none") "source.kind is none" "dataset" (dict
  "settings" dict "source.endpoint" "" "source.anonymous" false "source.sha256" "")) -}}
{{- end -}}
{{- include "trainyard.unless" (list $values (dig "scheduling" "queue" "" $global) "global.scheduling.queue is empty" "global.dataset"
  (dict "idleWait" 900)) -}}
{{- include "trainyard.unless" (list $values (dig "caBundle" "configMap" "" $global) "caBundle.configMap is empty" "global.caBundle" (dict
  "key" "ca-bundle.crt")) -}}
{{- $metrics := $global.metrics | default dict -}}
{{- $monitor := and $metrics.enabled (eq (toString $metrics.kind) "podMonitor") -}}
{{- $rules := and $metrics.enabled (dig "rules" "enabled" false $metrics) -}}
{{- include "trainyard.unless" (list $values $metrics.enabled "metrics.enabled is false" "global.metrics" (dict
  "port" 9400 "kind" "annotations")) -}}
{{- include "trainyard.unless" (list $values $monitor "metrics.kind is not podMonitor, or metrics are off" "global.metrics" (dict "interval" "")) -}}
{{- include "trainyard.unless" (list $values (or $monitor $rules) "there is no PodMonitor and no rule" "global.metrics" (dict "labels" dict)) -}}
{{- include "trainyard.unless" (list $values $rules "metrics.rules.enabled is false" "global.metrics.rules" (dict
  "stalledSeconds" 900 "slowRankShare" 0.2 "goodputShare" 0.5 "checkpointSeconds" 3600 "dataWaitShare" 0.3 "restartsPerHour" 3)) -}}
{{- $closed := or $policy.enabled $policy.ingress -}}
{{- include "trainyard.unless" (list $values (and $closed $metrics.enabled) "metrics are off, or networkPolicy is" "networkPolicy.metrics" (dict
  "from" (list (dict "namespaceSelector" dict)))) -}}
{{- $policies := dict -}}
{{- $trainers := or $facts.trains (has "trainjob" $facts.parts) -}}
{{- range $key, $there := dict "training.ingress" $trainers "training.egress" $trainers "filebrowser.ingress" (has "filebrowser" $facts.parts) -}}
{{- if $there -}}
{{- $_ := set $policies $key list -}}
{{- else -}}
{{- $why := ternary "filebrowser.enabled is false" "nothing trains" (hasPrefix "filebrowser" $key) -}}
{{- include "trainyard.unless" (list $values false $why "networkPolicy" (dict $key list)) -}}
{{- end -}}
{{- end -}}
{{- include "trainyard.unless" (list $values $closed "networkPolicy is off" "networkPolicy" (omit $policies "training.egress")) -}}
{{- include "trainyard.unless" (list $values $policy.enabled "networkPolicy.enabled is false" "networkPolicy" (pick $policies "training.egress")) -}}
{{- include "trainyard.unless" (list $values $policy.enabled "networkPolicy.enabled is false" "networkPolicy" (dict "dnsPort" 53
  "dns" (list (dict "namespaceSelector" (dict "matchLabels" (dict "kubernetes.io/metadata.name" "kube-system")))))) -}}
{{- $anywhere := list
  (dict "namespaceSelector" dict)
  (dict "ipBlock" (dict "cidr" "0.0.0.0/0" "except" (list "169.254.0.0/16" "100.100.100.200/32" "168.63.129.16/32")))
  (dict "ipBlock" (dict "cidr" "::/0" "except" (list "fe80::/10" "fd00:ec2::/32" "fd20:ce::254/128"))) -}}
{{- $web := list (dict "port" 443 "protocol" "TCP") (dict "port" 80 "protocol" "TCP") -}}
{{- $prepares := has "dataset" $facts.parts -}}
{{- include "trainyard.unless" (list $values (and $policy.enabled $prepares) (ternary "networkPolicy.enabled is false" "dataset.enabled is false" $prepares)
  "networkPolicy" (dict "dataset.egress" (list (dict "to" $anywhere "ports" $web)))) -}}
{{- if has "pytorchjob" $facts.trains -}}
{{- include "trainyard.unless" (list $values (eq $values.pytorchjob.form "elastic") "pytorchjob.form is master" "pytorchjob" (dict
  "elastic.minNodes" 0 "elastic.maxRestarts" 0 "elastic.spares" 0 "runPolicy.backoffLimit" nil)) -}}
{{- end -}}
{{- if $values.filebrowser.enabled -}}
{{- include "trainyard.unless" (list $values (dig "ingress" "enabled" false $values.filebrowser) "ingress.enabled is false" "filebrowser.ingress" (dict
  "className" "" "host" "" "tls.secretName" "" "annotations" dict)) -}}
{{- end -}}
{{- if $values.evaluate.enabled -}}
{{- include "trainyard.unless" (list $values $values.evaluate.gpus "evaluate.gpus is 0" "evaluate" (dict "gpuResource" "" "gpusBy" "")) -}}
{{- end -}}
{{- if $values.secrets.enabled -}}
{{- $external := $values.secrets.external | default dict -}}
{{- $named := false -}}
{{- range $which := list "kaggle" "objectstore" "http" "wandb" "mlflow" "registry" -}}
{{- $named = or $named (dig $which "remoteKey" "" $external) -}}
{{- include "trainyard.unless" (list $values (dig $which "remoteKey" "" $external) "its remoteKey is empty" (printf "secrets.external.%s" $which) (dict
  "properties" dict)) -}}
{{- end -}}
{{- include "trainyard.unless" (list $values $named "no remoteKey is set" "secrets.external" (dict "store.name" "" "store.kind" "ClusterSecretStore"
  "refreshInterval" "1h" "wait" 600)) -}}
{{- include "trainyard.unless" (list $values (dig "registry" "username" "" $values.secrets) "its username is empty" "secrets.registry" (dict "server" "")) -}}
{{- include "trainyard.unless" (list $values (dig "objectstore" "accessKeyId" "" $values.secrets) "its accessKeyId is empty" "secrets.objectstore" (dict
  "sessionToken" "" "region" "")) -}}
{{- end -}}
{{- $accounts := dict "global.training" (dig "serviceAccount" "create" false $global.training) -}}
{{- if has "mpijob" $facts.parts -}}
{{- $_ := set $accounts "mpijob.launcher" (dig "launcher" "serviceAccount" "create" false $values.mpijob) -}}
{{- end -}}
{{- range $part := list "dataset" "evaluate" "filebrowser" -}}
{{- if has $part $facts.parts -}}{{- $_ := set $accounts $part (dig "serviceAccount" "create" false (get $values $part)) -}}{{- end -}}
{{- end -}}
{{- range $place, $made := $accounts -}}
{{- include "trainyard.unless" (list $values $made "serviceAccount.create is false" (printf "%s.serviceAccount" $place) (dict "annotations" nil)) -}}
{{- end -}}
{{- $read := list -}}
{{- with .Subcharts.dataset -}}
{{- if hasKey . "ReadSecrets" -}}{{- $read = append .ReadSecrets.weights .ReadSecrets.dataset -}}{{- end -}}
{{- end -}}
{{- range $which := list "kaggle" "objectstore" "http" -}}
{{- include "trainyard.unless" (list $values (has $which $read) "no preparation of this release reads it" (printf "global.secrets.%s" $which) (dict
  "existingSecret" "")) -}}
{{- end -}}
{{- /* beside programs of the user's alone: keys of trackers, which programs take from their environment, and a claim that nothing mounts */ -}}
{{- $trained := not (and $facts.programs (eq (len $facts.programs) (len $facts.trains))) -}}
{{- $env := "global.training.command is set: name the Secret in global.training.envFrom" -}}
{{- include "trainyard.unless" (list $values $trained $env "global.secrets" (dict "wandb.existingSecret" "" "mlflow.existingSecret" "")) -}}
{{- include "trainyard.unless" (list $values (not $facts.dataless) "no dataset is prepared, and global.training.command is set" "global.storage.data" (dict
  "size" "" "storageClass" "" "accessModes" list "annotations" dict "volumeName" "" "subPath" "" "readOnly" true)) -}}
{{- /* of trainings, where no job that trains has the feature: the shared settings, then each job's own */ -}}
{{- $places := dict -}}
{{- if $facts.trains -}}{{- $_ := set $places "global.training" (values $facts.trainings) -}}{{- end -}}
{{- range $job, $training := $facts.trainings -}}{{- $_ := set $places (printf "%s.training" $job) (list $training) -}}{{- end -}}
{{- range $place, $trainings := $places -}}
{{- $has := dict -}}
{{- range $trainings -}}
{{- $_ := set $has "rdma" (or $has.rdma (dig "rdma" "resource" "" .)) -}}
{{- $_ := set $has "peers" (or $has.peers (dig "peers" "check" false .)) -}}
{{- $_ := set $has "logs" (or $has.logs (dig "logs" "keep" false .)) -}}
{{- $_ := set $has "gpus" (or $has.gpus .gpusPerNode) -}}
{{- $_ := set $has "tested" (or $has.tested (and .gpusPerNode (ne (get . "gpusBy" | toString) "annotations"))) -}}
{{- end -}}
{{- $own := ne $place "global.training" -}}
{{- include "trainyard.unless" (list $values $has.rdma "rdma.resource is empty" $place (dict "rdma.count" (ternary nil 1 $own))) -}}
{{- include "trainyard.unless" (list $values $has.peers "peers.check is false" $place (dict "peers.port" (ternary nil 23400 $own))) -}}
{{- include "trainyard.unless" (list $values $has.logs "logs.keep is false" $place (dict "logs.size" (ternary nil "64Mi" $own))) -}}
{{- include "trainyard.unless" (list $values $has.gpus "gpusPerNode is 0" $place (dict "gpuMemoryTest" (ternary nil 10 $own) "gpusBy" "")) -}}
{{- include "trainyard.unless" (list $values (or (not $has.gpus) $has.tested) "the preflight has no GPU with gpusBy: annotations" $place (dict
  "gpuMemoryTest" (ternary nil 10 $own))) -}}
{{- end -}}
{{- end -}}

{{/*
A line for each key that is not as it is by default, unless something reads it. Call with a list: the values, whether something does, why not,
the path of a map, and the defaults of keys below it, by their paths there.
*/}}
{{- define "trainyard.unless" -}}
{{- $why := index . 2 -}}
{{- $path := index . 3 -}}
{{- $values := index . 0 -}}
{{- if not (index . 1) -}}
{{- range $key, $default := index . 4 -}}
{{- $value := $values -}}
{{- range splitList "." (printf "%s.%s" $path $key) -}}
{{- $value = ternary (get ($value | default dict) .) nil (kindIs "map" ($value | default dict)) -}}
{{- end -}}
{{- if ne (toJson ($value | default nil)) (toJson ($default | default nil)) }}
{{ $path }}.{{ $key }}: {{ $why }}
{{- end -}}
{{- end -}}
{{- end -}}
{{- end -}}
