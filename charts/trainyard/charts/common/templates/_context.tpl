{{/*
What the manifests of a part read beside its values, gathered once, as maps on the part's own context (which its templates share):

  .Facts    what the parts of a release know of each other; the umbrella gathers it (trainyard.facts), and a part that renders alone knows
            itself alone, with the shared values as this chart's defaults complete them
  .Claims   names of the claims `data` and `results`
  .Secrets  of each secret its name, and whether it must exist before a pod starts: one that values name, and one that values or an
            operator create for this release; any other may be absent
  .User     uid and gid of the pods, each empty where the platform chooses it, as it does for both if it chooses the user; and their
            /etc/passwd, since ssh and torch look users up by name and the image has uid 1000 alone
*/}}
{{- define "common.context" -}}
{{- if not (hasKey . "User") -}}
{{- if not (hasKey . "Facts") -}}
{{- if not (hasKey .Subcharts "common") -}}
{{- include "common.refuse" "\n\nThe umbrella's templates/values/first/check.yaml renders before its parts: it gathers what they know of each other.\n" -}}
{{- end -}}
{{- $_ := set .Values "global" .Subcharts.common.Values.global -}}
{{- $job := has .Chart.Name (list "pytorchjob" "mpijob" "trainjob") -}}
{{- $launcher := dict "wait" 600 "resources" (dict "requests" (dict "cpu" "100m" "memory" "256Mi") "limits" (dict "memory" "1Gi")) -}}
{{- $trains := and $job (ne (toString (dig "job" "enabled" true (pick .Values "job"))) "false") -}}
{{- $_ := set . "Facts" (dict "parts" (list .Chart.Name) "trains" (ternary (list .Chart.Name) list $trains) "runs" dict "settings" dict
  "made" list "awaited" list "wait" 0 "weights" list "launcher" $launcher "alone" true) -}}
{{- end -}}
{{- $facts := .Facts -}}
{{- $storage := .Values.global.storage -}}
{{- with include "common.labelError" (list "global.labels" .Values.global.labels) -}}{{- include "common.refuse" . -}}{{- end -}}
{{- range $key, $_ := .Values.global.annotations -}}
{{- if regexMatch "^(helm\\.sh/|argocd\\.argoproj\\.io/hook)" $key -}}
{{- include "common.refuse" (printf (print "\n\nglobal.annotations sets %s, which says when an object is created and deleted, and would say it of all of "
  "them, jobs and claims too: take it out, and set it where one object has its own, such as global.training.jobAnnotations.\n") $key) -}}
{{- end -}}
{{- end -}}
{{- $claims := dict -}}
{{- range $which := list "data" "results" -}}
{{- $_ := set $claims $which ((index $storage $which).existingClaim | default (printf "%s-%s" $.Release.Name $which)) -}}
{{- end -}}
{{- $_ := set . "Claims" $claims -}}
{{- $secrets := dict -}}
{{- range $which, $secret := .Values.global.secrets -}}
{{- $name := $secret.existingSecret | default (printf "%s-%s" $.Release.Name $which) -}}
{{- $_ := set $secrets $which (dict "name" $name "required" (not (empty (or $secret.existingSecret (has $which $facts.made))))) -}}
{{- end -}}
{{- $_ := set . "Secrets" $secrets -}}
{{- $uid := ternary "" (toString (int64 $storage.uid)) (eq (toString $storage.uid) "platform") -}}
{{- $gid := ternary "" (toString (int64 $storage.gid)) (eq (toString $storage.gid) "platform") -}}
{{- if eq (toString $storage.gid) "" -}}{{- $gid = ternary "" "1000" (empty $uid) -}}{{- end -}}
{{- $passwd := "" -}}
{{- if not (has $uid (list "" "1000")) -}}
{{- $passwd = printf "root:x:0:0:root:/root:/usr/sbin/nologin\ntrainer:x:%s:%s::/home/trainer:/bin/sh" $uid ($gid | default "0") -}}
{{- $passwd = printf "%s\nnobody:x:65534:65534:nobody:/nonexistent:/usr/sbin/nologin" $passwd -}}
{{- end -}}
{{- $_ := set . "User" (dict "uid" $uid "gid" $gid "passwd" $passwd) -}}
{{- end -}}
{{- end -}}

{{/*
Refuse values, in words. `helm lint` only notes what `fail` says and goes on, so a second line ends it with the same words: there is no template of
that name.
*/}}
{{- define "common.refuse" -}}
{{- fail . -}}
{{- include (trim .) . -}}
{{- end -}}

{{/*
Labels of an object. Call with the context; or with a list: the context, further labels, which win over global.labels, and for a pod `pod`: its
labels do not change with the chart's version.
*/}}
{{- define "common.labels" -}}
{{- $given := ternary . (list . dict) (kindIs "slice" .) -}}
{{- $root := first $given -}}
{{- if lt (len $given) 3 -}}
helm.sh/chart: {{ printf "%s-%s" $root.Chart.Name $root.Chart.Version | replace "+" "_" }}
app.kubernetes.io/managed-by: {{ $root.Release.Service }}
{{ end -}}
app.kubernetes.io/name: {{ $root.Chart.Name }}
app.kubernetes.io/instance: {{ $root.Release.Name | quote }}
app.kubernetes.io/part-of: trainyard
{{- $further := index $given 1 | default dict -}}
{{- $shared := dict -}}
{{- range $key, $value := $root.Values.global.labels -}}
{{- if not (hasKey $further $key) -}}{{- $_ := set $shared $key $value -}}{{- end -}}
{{- end -}}
{{- with $shared }}
{{ toYaml . }}
{{- end }}
{{- end -}}

{{/*
Annotations of an object, on lines of their own and with their key; nothing if there are none. Call with a list: the context, how far to indent, and
maps of further annotations, which win over global.annotations, and the last of them over all.
*/}}
{{- define "common.annotations" -}}
{{- $all := dict -}}
{{- range prepend (slice . 2) (first .).Values.global.annotations -}}
{{- include "common.mergeInto" (list $all .) -}}
{{- end -}}
{{- with $all -}}
{{- dict "annotations" . | toYaml | nindent (index $ 1) -}}
{{- end -}}
{{- end -}}

{{/*
Labels by which Kueue queues a preparation or an evaluation, and the user's own for it. Its name covers those of Kueue. Call with a list: the
scheduling, and the labels.
*/}}
{{- define "common.queueLabels" -}}
{{- with first . }}
{{- with .queue }}
kueue.x-k8s.io/queue-name: {{ . | quote }}
{{- end }}
{{- with .queuePriority }}
kueue.x-k8s.io/priority-class: {{ . | quote }}
{{- end }}
{{- end }}
{{- with last . }}
{{ toYaml . }}
{{- end }}
{{- end -}}

{{/* Labels of a job that Kueue does not let change while it runs, or after it has ended. Call with a list as above. */}}
{{- define "common.heldLabels" -}}
{{- $held := dict -}}
{{- range $key, $value := last . -}}
{{- if contains "kueue.x-k8s.io/" $key -}}{{- $_ := set $held $key $value -}}{{- end -}}
{{- end -}}
{{- include "common.queueLabels" (list (first .) $held) -}}
{{- end -}}

{{/*
Name of a job: release, subchart, and a hash of what it runs, so that a changed run is a new job and an unchanged one changes nothing. At most
40 characters, starting with a letter: suffixes such as -launcher-xxxxx must fit 63. The hash covers the full release name, so that shortened
names stay apart. Call with a list: the subchart's context, and what the job runs, as text.
*/}}
{{- define "common.jobName" -}}
{{- $root := index . 0 -}}
{{- $hash := printf "%s/%s/%s" $root.Release.Name $root.Chart.Name (index . 1) | sha256sum | trunc 8 -}}
{{- $release := regexReplaceAll "^([^a-z])" ($root.Release.Name | replace "." "-") "t${1}" -}}
{{- $release = $release | trunc (int (sub 30 (len $root.Chart.Name))) | trimAll "-" -}}
{{- printf "%s-%s-%s" $release $root.Chart.Name $hash -}}
{{- end -}}

{{/* Size of a new claim. Its default is not in values: beside `existingClaim` it would look like a user's. Call with a list: the context, and `data` or
`results`. */}}
{{- define "common.claimSize" -}}
{{- $which := index . 1 -}}
{{- (index (index . 0).Values.global.storage $which).size | default (get (dict "data" "300Gi" "results" "100Gi") $which) -}}
{{- end -}}

{{/* Image of a subchart, or of its job's `repository` where the job names one; fails with the missing keys. */}}
{{- define "common.image" -}}
{{- $shared := .Values.global.image -}}
{{- $own := .Values.image -}}
{{- $repository := get (get . "Job" | default dict) "repository" | default $own.repository -}}
{{- $registry := get $own "registry" | default $shared.registry -}}
{{- $tag := get $own "tag" | default $shared.tag -}}
{{- $missing := list -}}
{{- if not $registry -}}
{{- $missing = append $missing "global.image.registry (registry and folder that hold the images, such as registry.example.com/team)" -}}
{{- end -}}
{{- if not (or $own.digest $tag) -}}
{{- $missing = append $missing "global.image.tag (as `make push REGISTRY=...` prints it)" -}}
{{- end -}}
{{- if $missing -}}
{{- include "common.refuse" (printf "\n\n%s has no image. Please set %s.\n" .Chart.Name (join " and " $missing)) -}}
{{- end -}}
{{- if and (eq $tag "latest") (not $own.digest) -}}
{{- include "common.refuse" "\n\nglobal.image.tag is `latest`, which names another image tomorrow: set the tag that `make push REGISTRY=...` prints.\n" -}}
{{- end -}}
{{- if $own.digest -}}
{{- printf "%s/%s@%s" $registry $repository $own.digest -}}
{{- else -}}
{{- printf "%s/%s:%s" $registry $repository $tag -}}
{{- end -}}
{{- end -}}

{{/*
Complete the settings of a pod, in place: those that every kind of pod has under the same names are empty if the user does not set them, and
each key of its own placement replaces the shared one, so that a pod can run on other nodes than the rest. Refuse settings that would break the
pod: names, volumes and paths that the chart itself uses, names that are set twice, requests above limits, and mounts of volumes that do not exist.
Call with a dict: path of the settings in values, pod, scheduling, and the chart's own env, mounts, volumes, containers; and further, more lists of
environment variables, by their paths.
*/}}
{{- define "common.podSettings" -}}
{{- $pod := .pod -}}
{{- range list "podLabels" "podAnnotations" "scheduling" "securityContext" "unrestricted" "serviceAccount" "dnsConfig" -}}
{{- $_ := set $pod . (get $pod . | default dict) -}}
{{- end -}}
{{- range list "env" "envFrom" "extraVolumes" "extraVolumeMounts" "extraContainers" "extraInitContainers" "resourceClaims" "hostAliases" -}}
{{- $_ := set $pod . (get $pod . | default list) -}}
{{- end -}}
{{- $_ := set $pod "runtimeClassName" (get $pod "runtimeClassName" | default "") -}}
{{- $placement := deepCopy .scheduling -}}
{{- range $key, $value := $pod.scheduling -}}
{{- if not (kindIs "invalid" $value) -}}{{- $_ := set $placement $key $value -}}{{- end -}}
{{- end -}}
{{- $_ := set $pod "scheduling" $placement -}}
{{- $path := .path -}}
{{- with include "common.labelError" (list (printf "%s.podLabels" $path) .pod.podLabels) -}}{{- include "common.refuse" . -}}{{- end -}}
{{- $lists := dict (printf "%s.env" $path) .pod.env -}}
{{- range $at, $env := merge $lists (.further | default dict) -}}
{{- range $env -}}
{{- if has .name $.env -}}
{{- include "common.refuse" (printf "\n\n%s sets %s, which the chart or the operator sets: take it out.\n" $at .name) -}}
{{- end -}}
{{- end -}}
{{- end -}}
{{- $named := list $lists (dict (printf "%s.resourceClaims" $path) .pod.resourceClaims) -}}
{{- $sized := dict (printf "%s.resources" $path) .pod.resources -}}
{{- range $key := list "extraInitContainers" "extraContainers" -}}
{{- range get $.pod $key -}}
{{- $named = append $named (dict (printf "%s.%s: %s: env" $path $key .name) .env) -}}
{{- $_ := set $sized (printf "%s.%s: %s: resources" $path $key .name) .resources -}}
{{- end -}}
{{- end -}}
{{- range $named -}}
{{- $found := dict -}}
{{- range $at, $items := . -}}
{{- range $item := $items -}}
{{- with get $found $item.name -}}
{{- $which := ternary (printf "%s has %s twice" $at $item.name) (printf "%s and %s both have %s" . $at $item.name) (eq . $at) -}}
{{- include "common.refuse" (printf "\n\n%s: keep one of them.\n" $which) -}}
{{- end -}}
{{- $_ := set $found $item.name $at -}}
{{- end -}}
{{- end -}}
{{- end -}}
{{- /* GPUs and RDMA devices of a training have their own keys: common.checkTraining */ -}}
{{- $keyed := ternary (list "nvidia.com/gpu" "amd.com/gpu" (get .pod "gpuResource") (dig "rdma" "resource" "" .pod)) list (hasKey .pod "gpuResource") -}}
{{- range $at, $resources := $sized -}}
{{- $limits := get ($resources | default dict) "limits" | default dict -}}
{{- range $name, $request := get ($resources | default dict) "requests" | default dict -}}
{{- if and (regexMatch "/|^hugepages-" $name) (not (contains "kubernetes.io/" $name)) (not (has $name $keyed)) -}}
{{- if ne (include "common.amount" $request) (include "common.amount" (get $limits $name)) -}}
{{- include "common.refuse" (printf "\n\n%s.requests.%s is %v, and Kubernetes wants the same limit of such a resource: write it under limits alone.\n"
  $at $name $request) -}}
{{- end -}}
{{- else if hasKey $limits $name -}}
{{- $limit := get $limits $name -}}
{{- if gt (include "common.amount" $request | float64) (include "common.amount" $limit | float64) -}}
{{- include "common.refuse" (printf "\n\n%s.requests.%s (%v) is more than limits.%s (%v): lower the request, or raise the limit.\n"
  $at $name $request $name $limit) -}}
{{- end -}}
{{- end -}}
{{- end -}}
{{- end -}}
{{- $volumes := .volumes -}}
{{- range .pod.extraVolumes -}}
{{- if has .name $volumes -}}
{{- include "common.refuse" (printf "\n\n%s.extraVolumes names a volume %s, and the pod has one of that name already: give it another.\n" $path .name) -}}
{{- end -}}
{{- $volumes = append $volumes .name -}}
{{- end -}}
{{- $mounts := .mounts -}}
{{- range .pod.extraVolumeMounts -}}
{{- $at := trimSuffix "/" .mountPath -}}
{{- if has $at $mounts -}}
{{- include "common.refuse" (printf "\n\n%s.extraVolumeMounts mounts %s at %s, where something is mounted already: choose another path.\n" $path .name $at) -}}
{{- end -}}
{{- $mounts = append $mounts $at -}}
{{- if not (has .name $volumes) -}}
{{- include "common.refuse" (printf (print "\n\n%s.extraVolumeMounts mounts %s, which is no volume of the pod: add it to %s.extraVolumes, such as {name: %s, "
  "configMap: {name: ...}}.\n") $path .name $path .name) -}}
{{- end -}}
{{- end -}}
{{- $containers := .containers -}}
{{- range $key := list "extraInitContainers" "extraContainers" -}}
{{- range get $.pod $key -}}
{{- if has .name $containers -}}
{{- include "common.refuse" (printf "\n\n%s.%s names a container %s, and the pod has one of that name already: give it another.\n" $path $key .name) -}}
{{- end -}}
{{- $containers = append $containers .name -}}
{{- $name := .name -}}
{{- range .volumeMounts -}}
{{- if not (has .name $volumes) -}}
{{- include "common.refuse" (printf "\n\n%s.%s: %s mounts %s, which is no volume of the pod: add it to %s.extraVolumes.\n" $path $key $name .name $path) -}}
{{- end -}}
{{- end -}}
{{- end -}}
{{- end -}}
{{- end -}}

{{/* What is wrong with labels, if anything: one that the chart sets itself. Call with a list: the key in values, and its labels. */}}
{{- define "common.labelError" -}}
{{- $own := list "helm.sh/chart" "app.kubernetes.io/managed-by" "app.kubernetes.io/name" "app.kubernetes.io/instance" "app.kubernetes.io/part-of"
  "sidecar.istio.io/inject" "trainer.kubeflow.org/framework" "kueue.x-k8s.io/queue-name" "kueue.x-k8s.io/priority-class" -}}
{{- range $key, $_ := index . 1 -}}
{{- if has $key $own -}}
{{- $from := get (dict "kueue.x-k8s.io/queue-name" " from global.scheduling.queue" "kueue.x-k8s.io/priority-class"
  " from global.scheduling.queuePriority") $key -}}
{{- printf "\n\n%s sets %s, which the chart sets itself%s: take it out.\n" (index $ 0) $key $from -}}
{{- break -}}
{{- end -}}
{{- end -}}
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

{{/* A quantity such as 16Gi or 500m, as a number. */}}
{{- define "common.amount" -}}
{{- $units := dict "n" 1e-9 "u" 1e-6 "m" 1e-3 "k" 1e3 "M" 1e6 "G" 1e9 "T" 1e12 "P" 1e15 "E" 1e18 "Ki" 1024 "Mi" 1048576 "Gi" 1073741824
  "Ti" 1099511627776 "Pi" 1125899906842624 "Ei" 1152921504606846976 -}}
{{- $number := regexFind "^[0-9.]+([eE][-+]?[0-9]+)?" (toString .) -}}
{{- $unit := trimPrefix $number (toString .) -}}
{{- mulf (float64 $number) (float64 (get $units $unit | default 1)) -}}
{{- end -}}
