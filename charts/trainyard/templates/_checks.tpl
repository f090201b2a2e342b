{{/*
Refuse, with a clear message, what no single part can see. The template that Helm renders first calls it, so that a misspelt key is reported
before its consequences.
*/}}
{{- define "trainyard.check" -}}
{{- range list "storage" "secrets" "dataset" "evaluate" "pytorchjob" "mpijob" "trainjob" "filebrowser" -}}
{{- if not (kindIs "map" (get $.Values .)) -}}
{{- include "common.refuse" (printf (print "\n\n%s is null: leave it out, or switch the part off by %s.enabled: false. With helm upgrade, take "
  "--reset-then-reuse-values in place of --reuse-values.\n") . .) -}}
{{- end -}}
{{- end -}}
{{- if kindIs "invalid" .Values.networkPolicy -}}
{{- include "common.refuse" "\n\nnetworkPolicy is null: leave it out, or write networkPolicy.ingress: false for no policies.\n" -}}
{{- end -}}
{{- range $errors := list "trainyard.keyErrors" "trainyard.nulls" -}}
{{- with include $errors $ | trim -}}
{{- include "common.refuse" (printf "\n\n%s\n" .) -}}
{{- end -}}
{{- end -}}
{{- include "trainyard.checkOperator" . -}}
{{- include "trainyard.facts" . -}}
{{- with include "trainyard.missing" . | trim -}}
{{- include "common.refuse" (printf "\n\nPlease set:\n  %s\n" (replace "\n" "\n  " .)) -}}
{{- end -}}
{{- include "trainyard.checkImage" . -}}
{{- include "trainyard.checkWriters" . -}}
{{- include "trainyard.checkClaims" . -}}
{{- include "trainyard.checkPrograms" . -}}
{{- include "trainyard.checkPods" . -}}
{{- end -}}

{{/*
Maps and lists, and plain values (`needed` of files/keys.json), whose defaults a null removed, so that templates would read nothing, a line each.
Resources may be null: no defaults are meant.
*/}}
{{- define "trainyard.nulls" -}}
{{- /* the values of such a part hold no defaults while it is off */ -}}
{{- $off := list -}}
{{- range list "dataset" "evaluate" "filebrowser" "secrets" -}}
{{- if not (get (get $.Values . | default dict) "enabled") -}}{{- $off = append $off . -}}{{- end -}}
{{- end -}}
{{- $cure := "leave it out, and its default applies. With helm upgrade, take --reset-then-reuse-values in place of --reuse-values" -}}
{{- range $path, $keys := dict
  "" "global networkPolicy tests"
  "dataset" "image source"
  "evaluate" "image"
  "filebrowser" "auth image ingress service"
  "filebrowser.ingress" "tls"
  "global" "dataset storage training"
  "global.metrics" "rules"
  "global.training" "rdma unrestricted"
  "mpijob" "image launcher runPolicy"
  "networkPolicy" "dataset filebrowser training"
  "networkPolicy.dataset" "egress"
  "networkPolicy.training" "egress ingress"
  "pytorchjob" "elastic image runPolicy"
  "secrets" "external http kaggle mlflow objectstore registry wandb"
  "secrets.external" "http kaggle mlflow objectstore registry store wandb"
  "trainjob" "image runPolicy runtime" -}}
{{- $steps := compact (splitList "." $path) -}}
{{- $map := $.Values -}}
{{- range $steps -}}{{- if kindIs "map" $map -}}{{- $map = get $map . -}}{{- end -}}{{- end -}}
{{- if and (kindIs "map" $map) (not (has (first $steps | default "") $off)) -}}
{{- range splitList " " $keys -}}
{{- if not (has (get $map . | kindOf) (list "map" "slice")) }}
{{ join "." (append $steps .) }} is null: {{ $cure }}.
{{- end -}}
{{- end -}}
{{- end -}}
{{- end -}}
{{- range $path := (.Files.Get "files/keys.json" | fromJson).needed -}}
{{- $steps := splitList "." $path -}}
{{- $map := $.Values -}}
{{- range initial $steps -}}{{- if kindIs "map" $map -}}{{- $map = get $map . -}}{{- end -}}{{- end -}}
{{- if and (kindIs "map" $map) (or (not (has (first $steps) $off)) (eq (last $steps) "enabled")) -}}
{{- if or (not (hasKey $map (last $steps))) (kindIs "invalid" (get $map (last $steps))) }}
{{ $path }} is null: {{ $cure }}.
{{- end -}}
{{- end -}}
{{- end -}}
{{- end -}}

{{/* Refuse an unknown operator. */}}
{{- define "trainyard.checkOperator" -}}
{{- $operator := .Values.global.training.operator -}}
{{- if and $operator (not (has $operator (list "pytorchjob" "mpijob" "trainjob"))) -}}
{{- $meant := "" -}}
{{- range $kind, $words := dict
  "pytorchjob" (list "pytorch" "torch" "torchrun" "ddp" "fsdp" "training-operator")
  "mpijob" (list "mpi" "horovod" "hvd" "mpirun" "mpi-operator")
  "trainjob" (list "trainer" "kubeflow-trainer" "v2") -}}
{{- if has (lower $operator) $words -}}{{- $meant = $kind -}}{{- end -}}
{{- end -}}
{{- if has (lower $operator) (list "pytorchjob" "mpijob" "trainjob") -}}{{- $meant = lower $operator -}}{{- end -}}
{{- include "common.refuse" (printf "\n\nglobal.training.operator is %s%s There are pytorchjob, mpijob and trainjob.\n"
  $operator (ternary (printf ": did you mean %s?" $meant) ", which is none." (not (empty $meant)))) -}}
{{- end -}}
{{- end -}}

{{/* Required values that are missing, a line each, for all parts at once. */}}
{{- define "trainyard.missing" -}}
{{- $facts := .Facts -}}
{{- $image := .Values.global.image -}}
{{- $untagged := false -}}
{{- $pulling := list -}}
{{- range without $facts.parts "storage" "secrets" -}}
{{- $own := (index $.Values .).image -}}
{{- $pulling = append $pulling . -}}
{{- if and (not $own.digest) (not (get $own "tag")) -}}{{- $untagged = true -}}{{- end -}}
{{- end -}}
{{- $without := list -}}
{{- if and $pulling (not $image.registry) (not (and (eq (join "" $pulling) "filebrowser") .Values.filebrowser.image.registry)) -}}
{{- $without = append $without "global.image.registry (registry and folder that hold the images, such as registry.example.com/team)" -}}
{{- end -}}
{{- if and $untagged (not $image.tag) -}}
{{- $without = append $without "global.image.tag (as `make push REGISTRY=...` prints it)" -}}
{{- end -}}
{{- with $without }}
{{ join " and " . }}
{{- end -}}
{{- with .Values.dataset.source -}}
{{- if and $.Values.dataset.enabled (not (or .kind .url .competition .dataset .path)) }}
dataset.source: where the dataset comes from, such as dataset.source.url=https://data.example.com/pets.zip; or dataset.enabled=false
  {{- " for one that is on the claim" }}
{{- end -}}
{{- end -}}
{{- $lines := list -}}
{{- range $job, $training := .Facts.trainings -}}
{{- $keys := list -}}
{{- if not $training.nodes -}}{{- $keys = append $keys "global.training.nodes (pods that train)" -}}{{- end -}}
{{- if not (or $training.gpusPerNode $training.processesPerNode) -}}
{{- $keys = append $keys "global.training.gpusPerNode (GPUs of each; on the CPU: global.training.processesPerNode)" -}}
{{- end -}}
{{- with $keys -}}{{- $lines = append $lines (join " and " .) -}}{{- end -}}
{{- end -}}
{{- range $lines | uniq }}
{{ . }}
{{- end -}}
{{- end -}}

{{/* Refuse images that cannot be pulled, and a tag that has no effect. */}}
{{- define "trainyard.checkImage" -}}
{{- $facts := .Facts -}}
{{- range $key, $registry := dict "global.image.registry" .Values.global.image.registry "filebrowser.image.registry" (dig "image" "registry" ""
  .Values.filebrowser) -}}
{{- if contains "://" $registry -}}
{{- include "common.refuse" (printf "\n\n%s is %s: leave out the scheme, as in %s.\n" $key $registry
  (regexReplaceAll "^[a-z]+://" $registry "" | trimSuffix "/")) -}}
{{- end -}}
{{- $last := splitList "/" $registry | last -}}
{{- $whole := or (contains "@" $registry) (regexMatch ":[0-9]*[^0-9]" $last) (and (contains "/" $registry) (contains ":" $last)) -}}
{{- if or $whole (regexMatch "^trainyard-(pytorch|horovod|filebrowser)$" $last) -}}
{{- include "common.refuse" (printf (print "\n\n%s is %s, which names an image: write its registry and folder, such as registry.example.com/team, and the tag "
  "in %s.\n") $key $registry (replace "registry" "tag" $key)) -}}
{{- end -}}
{{- end -}}
{{- $pulling := without $facts.parts "storage" "secrets" -}}
{{- $reads := not $pulling -}}
{{- range $pulling -}}
{{- $own := (index $.Values .).image -}}
{{- if not (or $own.digest (get $own "tag")) -}}{{- $reads = true -}}{{- end -}}
{{- end -}}
{{- if and .Values.global.image.tag (not $reads) -}}
{{- include "common.refuse" (printf "\n\nglobal.image.tag is %s, and every image has a digest, which wins: leave the tag or a digest out.\n"
  .Values.global.image.tag) -}}
{{- end -}}
{{- end -}}

{{/* Refuse two jobs that would write the same run directory. */}}
{{- define "trainyard.checkWriters" -}}
{{- $writers := dict -}}
{{- $trainings := .Facts.trainings -}}
{{- range $job := .Facts.trains -}}
{{- $name := (get $trainings $job).name | default $job -}}
{{- with get $writers $name -}}
{{- include "common.refuse" (printf (print "\n\n%s and %s would share the run %s, and one run directory has one writer: set global.training.operator to train "
  "by one of them, leave global.training.name empty, or set %s.training.name and %s.training.name.\n") . $job $name . $job) -}}
{{- end -}}
{{- $_ := set $writers $name $job -}}
{{- end -}}
{{- end -}}

{{/* Refuse claims that are both named and described, or neither, and access modes with which the pods would wait for each other. */}}
{{- define "trainyard.checkClaims" -}}
{{- $trainings := .Facts.trainings -}}
{{- range $which := list "data" "results" -}}
{{- $path := printf "global.storage.%s" $which -}}
{{- $claim := index $.Values.global.storage $which -}}
{{- if $claim.existingClaim -}}
{{- $described := list -}}
{{- range list "size" "storageClass" "volumeName" "accessModes" "annotations" -}}
{{- if get $claim . -}}{{- $described = append $described . -}}{{- end -}}
{{- end -}}
{{- with $described -}}
{{- $keys := join " and " . -}}
{{- include "common.refuse" (printf (print "\n\n%s.existingClaim names an existing claim, %s, and %s describes a new one: leave %s out, or existingClaim. An "
  "empty value unsets one from an earlier file: --set %s.%s=\n") $path $claim.existingClaim $keys $keys $path (first .)) -}}
{{- end -}}
{{- else if not (or $.Values.storage.enabled (and $.Facts.dataless (eq $which "data"))) -}}
{{- include "common.refuse" (printf "\n\nstorage.enabled is false: set %s.existingClaim.\n" $path) -}}
{{- end -}}
{{- if eq (join "," $claim.accessModes) "ReadWriteOncePod" -}}
{{- $pods := ternary 1 0 (and (eq $which "data") $.Values.dataset.enabled) -}}
{{- range list "evaluate" "filebrowser" -}}
{{- if (index $.Values .).enabled -}}{{- $pods = add $pods 1 -}}{{- end -}}
{{- end -}}
{{- range $job, $training := $trainings -}}
{{- $pods = add $pods (int $training.nodes) (get $.Facts.spares $job) (ternary 1 0 (and (has $job $.Facts.mpi) (eq $which "results"))) -}}
{{- end -}}
{{- if gt (int $pods) 1 -}}
{{- include "common.refuse" (printf (print "\n\n%s.accessModes is ReadWriteOncePod, which lets one pod use the claim, and this release has %d that want it: "
  "set ReadWriteMany (ReadWriteOnce where all run on one node).\n") $path (int $pods)) -}}
{{- end -}}
{{- end -}}
{{- if eq (join "," $claim.accessModes) "ReadOnlyMany" -}}
{{- if or (eq $which "results") $.Values.dataset.enabled -}}
{{- include "common.refuse" (printf "\n\n%s.accessModes is ReadOnlyMany, and pods of this release write there: set ReadWriteMany%s.\n"
  $path (ternary ", or dataset.enabled: false for a dataset that is on the volume" "" (eq $which "data"))) -}}
{{- end -}}
{{- end -}}
{{- end -}}
{{- end -}}

{{/* Refuse what reads the models or the metrics of this project's trainers beside programs of the user's alone. */}}
{{- define "trainyard.checkPrograms" -}}
{{- $facts := .Facts -}}
{{- if and $facts.programs (eq (len $facts.programs) (len $facts.trains)) -}}
{{- if and .Values.evaluate.enabled (not .Values.evaluate.run) -}}
{{- include "common.refuse" (print "\n\nevaluate.enabled is true beside global.training.command: it measures models that the project's own trainers have "
  "published. Take it out, or name another run in evaluate.run.\n") -}}
{{- end -}}
{{- if dig "rules" "enabled" false (.Values.global.metrics | default dict) -}}
{{- include "common.refuse" (print "\n\nglobal.metrics.rules.enabled is true beside global.training.command: the alerts are about metrics of the project's own "
  "trainers, which the command does not serve. Set it to false.\n") -}}
{{- end -}}
{{- end -}}
{{- end -}}
