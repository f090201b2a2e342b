{{/*
Refuse settings of pods that the API server or Kueue would refuse only when the pods of a job are made: entries that are there twice, what
contradicts itself, labels of a job that the chart sets, and groups of Kueue's. Call with the umbrella's context, which has .Facts.
*/}}
{{- define "trainyard.checkPods" -}}
{{- $facts := .Facts -}}
{{- $global := .Values.global -}}
{{- include "trainyard.twice" (list "global.image.pullSecrets" $global.image.pullSecrets) -}}
{{- $spread := list "topologyKey" "whenUnsatisfiable" -}}
{{- $shared := dig "scheduling" "topologySpreadConstraints" list $global -}}
{{- include "trainyard.twice" (concat (list "global.scheduling.topologySpreadConstraints" $shared) $spread) -}}
{{- include "trainyard.checkEntries" (list "global" $global) -}}
{{- $pods := dict -}}
{{- range $job := list "pytorchjob" "mpijob" "trainjob" -}}
{{- if has $job $facts.parts -}}
{{- $one := dict -}}
{{- include "common.training" (dict "into" $one "shared" $global.training "own" (index $.Values $job).training) -}}
{{- $_ := set $pods $job $one.Training -}}
{{- end -}}
{{- end -}}
{{- if $facts.mpi -}}{{- $_ := set $pods "mpijob.launcher" $facts.launcher -}}{{- end -}}
{{- range list "dataset" "evaluate" "filebrowser" -}}
{{- if has . $facts.parts -}}{{- $_ := set $pods . (index $.Values .) -}}{{- end -}}
{{- end -}}
{{- range $part, $pod := $pods -}}
{{- $path := ternary "global.training" $part (has $part (list "pytorchjob" "mpijob" "trainjob")) -}}
{{- $security := get $pod "securityContext" | default dict -}}
{{- include "trainyard.twice" (list (printf "%s.hostAliases" $path) (get $pod "hostAliases") "ip") -}}
{{- include "trainyard.twice" (list (printf "%s.securityContext.sysctls" $path) (get $security "sysctls") "name") -}}
{{- $own := get (get $pod "scheduling" | default dict) "topologySpreadConstraints" -}}
{{- include "trainyard.twice" (concat (list (printf "%s.scheduling.topologySpreadConstraints" $path) $own) $spread) -}}
{{- include "trainyard.checkEntries" (list $path $pod) -}}
{{- with include "common.labelError" (list (printf "%s.jobLabels" $path) (get $pod "jobLabels" | default dict)) -}}
{{- include "common.refuse" . -}}
{{- end -}}
{{- if and (eq (get $pod "dnsPolicy" | toString) "None") (not (get (get $pod "dnsConfig" | default dict) "nameservers")) -}}
{{- include "common.refuse" (printf (print "\n\n%s.dnsPolicy is None, which leaves name servers to dnsConfig: name them in %s.dnsConfig.nameservers, or take "
  "another policy.\n") $path $path) -}}
{{- end -}}
{{- if and (eq (get $pod "hostUsers" | toString) "false") (dig "hostNetwork" false (get $pod "unrestricted" | default dict)) -}}
{{- include "common.refuse" (printf (print "\n\n%s.hostUsers is false, and a pod with the node's network has the node's users: leave hostUsers or "
  "unrestricted.hostNetwork out.\n") $path) -}}
{{- end -}}
{{- range $key := list "seccompProfile" "appArmorProfile" -}}
{{- $profile := get $security $key | default dict -}}
{{- if ne (eq (get $profile "type" | toString) "Localhost") (not (empty (get $profile "localhostProfile"))) -}}
{{- include "common.refuse" (printf "\n\n%s.securityContext.%s: type Localhost and localhostProfile belong together: set both, or neither.\n" $path $key) -}}
{{- end -}}
{{- end -}}
{{- if and (kindIs "map" (get $security "appArmorProfile")) (not (dig "appArmorProfile" "type" "" $security)) -}}
{{- include "common.refuse" (printf "\n\n%s.securityContext.appArmorProfile has no type: write RuntimeDefault or Localhost.\n" $path) -}}
{{- end -}}
{{- /* a group joins two kinds of pods, which only a job with a launcher has beside a PyTorchJob with Workers */ -}}
{{- $group := include "trainyard.group" (list $ $pod) -}}
{{- if and (eq $part "trainjob") $group (not (has "trainjob" $facts.mpi)) -}}
{{- include "common.refuse" (print "\n\nglobal.training.podAnnotations sets kueue.x-k8s.io/podset-group-name, which joins two kinds of pods, and a TrainJob "
  "has nodes alone: Kueue refuses it. Take it out.\n") -}}
{{- end -}}
{{- if has $part $facts.mpi -}}
{{- $launchers := include "trainyard.group" (list $ $facts.launcher) -}}
{{- if ne $group $launchers -}}
{{- include "common.refuse" (printf (print "\n\nkueue.x-k8s.io/podset-group-name is %q in global.training.podAnnotations and %q in mpijob.launcher."
  "podAnnotations: Kueue refuses a group of one kind of pods. Set it in both, or in neither.\n") $group $launchers) -}}
{{- end -}}
{{- end -}}
{{- end -}}
{{- end -}}

{{/* The group in which Kueue places pods, if their annotations name one. Call with a list: the context, and their settings. */}}
{{- define "trainyard.group" -}}
{{- $annotations := merge (dict) (get (last .) "podAnnotations" | default dict) ((first .).Values.global.podAnnotations | default dict) -}}
{{- get $annotations "kueue.x-k8s.io/podset-group-name" -}}
{{- end -}}

{{/* Refuse a list with an entry that is there twice. Call with a list: its key, its items, and the keys of an item that tell it from others. */}}
{{- define "trainyard.twice" -}}
{{- $found := dict -}}
{{- range $item := index . 1 | default list -}}
{{- $parts := list -}}
{{- range slice $ 2 -}}{{- $parts = append $parts (get $item .) -}}{{- end -}}
{{- $name := $parts | default (list $item) | join " " -}}
{{- if hasKey $found $name -}}
{{- include "common.refuse" (printf "\n\n%s has %s twice: make one entry of both.\n" (first $) $name) -}}
{{- end -}}
{{- $_ := set $found $name true -}}
{{- end -}}
{{- end -}}

{{/* Refuse entries of lists that the API server takes in a job, and refuses when its pods are made. Call with a list: a path, and what is there. */}}
{{- define "trainyard.checkEntries" -}}
{{- $path := first . -}}
{{- $pod := last . -}}
{{- $wrong := list -}}
{{- range $index, $one := dig "tolerations" list (get $pod "scheduling" | default dict) | default list -}}
{{- $at := printf "scheduling.tolerations[%d]" $index -}}
{{- $operator := get $one "operator" | default "Equal" -}}
{{- if and (eq $operator "Exists") (get $one "value") -}}
{{- $wrong = append $wrong (printf "%s has operator: Exists and a value: take the value out, or write operator: Equal" $at) -}}
{{- else if not (or (get $one "key") (eq $operator "Exists")) -}}
{{- $wrong = append $wrong (printf "%s has no key: name the taint's, or write operator: Exists for every taint" $at) -}}
{{- else if and (hasKey $one "tolerationSeconds") (ne (get $one "effect" | toString) "NoExecute") -}}
{{- $wrong = append $wrong (printf "%s has tolerationSeconds, which only effect: NoExecute has: take it out, or write that effect" $at) -}}
{{- end -}}
{{- end -}}
{{- range get $pod "extraVolumes" | default list -}}
{{- $kinds := list -}}
{{- range $key, $value := omit . "name" -}}{{- if not (kindIs "invalid" $value) -}}{{- $kinds = append $kinds $key -}}{{- end -}}{{- end -}}
{{- if not $kinds -}}
{{- $wrong = append $wrong (printf "extraVolumes: %s says not what it is: write its kind with a map, such as emptyDir: {}" .name) -}}
{{- else if gt (len $kinds) 1 -}}
{{- $wrong = append $wrong (printf "extraVolumes: %s is %s at once: keep one of them" .name (join " and " $kinds)) -}}
{{- end -}}
{{- end -}}
{{- $lists := dict "env" (get $pod "env") "rdma.env" (dig "env" list (get $pod "rdma" | default dict)) -}}
{{- range $key := list "extraInitContainers" "extraContainers" -}}
{{- range get $pod $key | default list -}}
{{- if not .image -}}{{- $wrong = append $wrong (printf "%s: %s has no image: name one" $key .name) -}}{{- end -}}
{{- $_ := set $lists (printf "%s: %s: env" $key .name) .env -}}
{{- end -}}
{{- end -}}
{{- range $at, $env := $lists -}}
{{- range $env | default list -}}
{{- if contains "=" .name -}}
{{- $parts := splitn "=" 2 .name -}}
{{- $wrong = append $wrong (printf "%s has %s: write {name: %s, value: %s}" $at .name $parts._0 (quote $parts._1)) -}}
{{- else if and (get . "value") (get . "valueFrom") -}}
{{- $wrong = append $wrong (printf "%s: %s has value and valueFrom: keep one of them" $at .name) -}}
{{- end -}}
{{- end -}}
{{- end -}}
{{- range get $pod "resourceClaims" | default list -}}
{{- if eq (empty .resourceClaimName) (empty .resourceClaimTemplateName) -}}
{{- $wrong = append $wrong (printf "resourceClaims: %s: set one of resourceClaimName and resourceClaimTemplateName" .name) -}}
{{- end -}}
{{- end -}}
{{- with $wrong -}}
{{- include "common.refuse" (printf "\n\n%s.%s.\n" $path (join (printf ".\n%s." $path) .)) -}}
{{- end -}}
{{- end -}}
