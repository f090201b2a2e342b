{{/*
What the dataset's manifests read, gathered once on the part's context:

  .Source       where the dataset comes from: kind, key (of its address) and address
  .Config       settings of the preparation, as text
  .ReadSecrets  the Secrets that the Job's containers read: the dataset's, and of each of the weights; a name under global.secrets, or nothing.
                A web server's is always optional: most need none.
  .Pod          settings of the pod; those that break it are refused. topologySpreadConstraints apply only to trainers.
  .Name         of the Job. Kubernetes refuses changes to its pod template, Kueue to its queue while it runs or after it has ended, and a
                failed Job cannot get more time or retries. So the name has a hash of all of these: any change, also a new image, is a new
                Job instead of a refused upgrade. It costs seconds: on a dataset that is complete with the same settings the preparation
                only verifies.
*/}}
{{- define "dataset.context" -}}
{{- if not (hasKey . "Name") -}}
{{- include "common.context" . -}}
{{- include "dataset.source" . -}}
{{- $kind := .Source.kind -}}
{{- $http := ternary "http" "" .Secrets.http.required -}}
{{- $dataset := "" -}}
{{- if hasPrefix "kaggle" $kind -}}{{- $dataset = "kaggle" -}}
{{- else if and (eq $kind "objectstore") (not .Values.source.anonymous) -}}{{- $dataset = "objectstore" -}}
{{- else if eq $kind "http" -}}{{- $dataset = $http -}}
{{- end -}}
{{- $weights := list -}}
{{- range .Facts.weights -}}
{{- $store := regexMatch "^(s3|gs)://" (.model.pretrained | default "" | toString) -}}
{{- $weights = append $weights (ternary "objectstore" $http $store) -}}
{{- end -}}
{{- $_ := set . "ReadSecrets" (dict "dataset" $dataset "weights" $weights) -}}
{{- $pod := omit .Values "global" -}}
{{- $own := list "HOME" "PYTHONUNBUFFERED" "TRAINYARD_PREPARE_PARTS" "TRAINYARD_SECRETS" "NETRC" -}}
{{- $mounts := list "/etc/trainyard" "/data" "/tmp" "/home/trainer" "/etc/trainyard-ca" -}}
{{- $volumes := list "trainyard" "data" "tmp" "home" "ca-bundle" "secret-kaggle" "secret-objectstore" "secret-http" -}}
{{- include "common.podSettings" (dict "path" "dataset" "pod" $pod "scheduling" (omit .Values.global.scheduling "topologySpreadConstraints")
  "env" $own "mounts" $mounts "volumes" $volumes "containers" (list "prepare")) -}}
{{- $_ := set . "Pod" $pod -}}
{{- $config := dict -}}
{{- if ne $kind "none" -}}
{{- $_ := include "common.mergeInto" (list $config .Values.settings) -}}
{{- $_ := set $config "source" (dict "kind" $kind .Source.key .Source.address) -}}
{{- range $name, $setting := pick .Values.source "endpoint" "anonymous" "sha256" -}}
{{- if $setting -}}{{- $_ := set $config.source $name $setting -}}{{- end -}}
{{- end -}}
{{- $_ := set $config "out" (printf "/data/%s" .Values.global.dataset.name) -}}
{{- end -}}
{{- $_ := set . "Config" (ternary (mustToPrettyJson $config) "" (ne $kind "none")) -}}
{{- $bounds := printf "%d %d" (int .Values.backoffLimit) (int .Values.activeDeadlineSeconds) -}}
{{- $fetched := ternary "" (mustToJson .Facts.weights) (empty .Facts.weights) -}}
{{- $queue := include "common.heldLabels" (list $pod.scheduling .Values.jobLabels) -}}
{{- $runs := list .Config (include "dataset.pod" (dict "root" . "configMap" "")) $queue $bounds $fetched -}}
{{- $_ := set . "Name" (include "common.jobName" (list . (join "" $runs))) -}}
{{- end -}}
{{- end -}}

{{/*
Set .Source. The kind follows from which address is set; a user's `kind` must agree with it.
*/}}
{{- define "dataset.source" -}}
{{- $source := .Values.source -}}
{{- $keys := dict "kaggle" "competition" "kaggle-dataset" "dataset" "http" "url" "objectstore" "url" "path" "path" -}}
{{- $set := list -}}
{{- range list "url" "competition" "dataset" "path" -}}
{{- if get $source . -}}{{- $set = append $set . -}}{{- end -}}
{{- end -}}
{{- $kind := $source.kind -}}
{{- if not $kind -}}
{{- if not $set -}}
{{- include "common.refuse" (print "\n\ndataset.source is not set: say where the dataset comes from, such as dataset.source.url: "
  "https://data.example.com/pets.zip, or set dataset.enabled: false for one that is on the claim.\n") -}}
{{- end -}}
{{- if gt (len $set) 1 -}}
{{- include "common.refuse" (printf "\n\ndataset.source sets %s: keep the one that the dataset comes from.\n" (join " and " $set)) -}}
{{- end -}}
{{- $kind = get (dict "competition" "kaggle" "dataset" "kaggle-dataset" "path" "path") (first $set) | default (ternary "http" "objectstore"
  (regexMatch "^https?://" $source.url)) -}}
{{- end -}}
{{- if eq $kind "none" -}}
{{- if $set -}}
{{- include "common.refuse" (printf "\n\ndataset.source.kind is none, and dataset.source.%s is set: leave one of them out.\n" (first $set)) -}}
{{- end -}}
{{- if not .Facts.weights -}}
{{- include "common.refuse" (print "\n\ndataset.source.kind is none: there are no pretrained weights to fetch; set model.pretrained in global.training.config, "
  "or dataset.enabled: false.\n") -}}
{{- end -}}
{{- $_ := set . "Source" (dict "kind" "none") -}}
{{- else -}}
{{- $key := get $keys $kind -}}
{{- if not $key -}}
{{- $meant := "" -}}
{{- range $known, $words := dict
  "objectstore" (list "s3" "gs" "gcs" "minio" "bucket" "s3fs" "object-store" "objectStore")
  "http" (list "url" "https" "web")
  "kaggle" (list "imagenet" "competition")
  "kaggle-dataset" (list "kaggleDataset")
  "path" (list "folder" "local" "file" "pvc" "claim") -}}
{{- if has $kind $words -}}{{- $meant = $known -}}{{- end -}}
{{- end -}}
{{- include "common.refuse" (printf (print "\n\ndataset.source.kind is %s%s There are http, objectstore, kaggle, kaggle-dataset, path and none; left out, it "
  "follows from the address.\n") $kind (ternary (printf ": did you mean %s?" $meant) ", which is none." (not (empty $meant)))) -}}
{{- end -}}
{{- $address := get $source $key -}}
{{- if not $address -}}
{{- $hint := ternary " (ImageNet's is imagenet-object-localization-challenge)" "" (eq $kind "kaggle") -}}
{{- include "common.refuse" (printf "\n\ndataset.source.kind is %s: set dataset.source.%s%s.\n" $kind $key $hint) -}}
{{- end -}}
{{- range without $set $key -}}
{{- include "common.refuse" (printf (print "\n\ndataset.source.kind is %s, which reads dataset.source.%s, and dataset.source.%s is set too: leave one of them "
  "out.\n") $kind $key .) -}}
{{- end -}}
{{- if eq $key "url" -}}
{{- include "dataset.checkUrl" (dict "kind" $kind "url" $address) -}}
{{- end -}}
{{- if or (contains "*" $address) (regexMatch "[{][^{}]*,[^{}]*[}]|[ ,;][a-z0-9]+://" $address) -}}
{{- include "common.refuse" (printf (print "\n\ndataset.source.%s is %s, which names several archives, and one is read: unpack them into one "
  "folder and make one tar of it (tar -cf all.tar -C FOLDER .), or put the folder on a volume and set dataset.source.path to it; plain tars "
  "may also be joined (cat a.tar b.tar > all.tar).\n") $key $address) -}}
{{- end -}}
{{- if and (ne $kind "objectstore") (or $source.endpoint $source.anonymous) -}}
{{- include "common.refuse" (printf "\n\ndataset.source.endpoint and dataset.source.anonymous belong to kind objectstore, and it is %s: remove them.\n"
  $kind) -}}
{{- end -}}
{{- if regexMatch "://[^/@]*@" (toString $source.endpoint) -}}
{{- include "common.refuse" (print "\n\ndataset.source.endpoint holds a user name or password, which would be readable in a ConfigMap: take them out, and name "
  "a Secret in global.secrets.objectstore.existingSecret.\n") -}}
{{- end -}}
{{- if eq $key "path" -}}
{{- $mounted := hasPrefix "/data/" $address -}}
{{- range get .Values "extraVolumeMounts" | default list -}}
{{- $mounted = or $mounted (hasPrefix (printf "%s/" (trimSuffix "/" .mountPath)) (printf "%s/" $address)) -}}
{{- end -}}
{{- if not $mounted -}}
{{- include "common.refuse" (printf (print "\n\ndataset.source.path is %s, where nothing is mounted: write a path below /data, where the data "
  "claim is, or mount a volume there by dataset.extraVolumes and dataset.extraVolumeMounts.\n") $address) -}}
{{- end -}}
{{- end -}}
{{- $_ := set . "Source" (dict "kind" $kind "key" $key "address" $address) -}}
{{- end -}}
{{- end -}}

{{/* Refuse an address of another kind, one that holds a password, and one of a folder. Call with a dict: kind, url. */}}
{{- define "dataset.checkUrl" -}}
{{- with include "common.addressError" (dict "path" "dataset.source.url" "url" .url "signed" "url") -}}{{- include "common.refuse" . -}}{{- end -}}
{{- if regexMatch "^https?://(www[.])?kaggle[.]com/" .url -}}
{{- include "common.refuse" (printf (print "\n\ndataset.source.url is %s, a page of Kaggle's and no archive: set dataset.source.dataset to the OWNER/NAME "
  "in it, or dataset.source.competition, instead.\n") .url) -}}
{{- end -}}
{{- if ne (eq .kind "http") (regexMatch "^https?://" .url) -}}
{{- include "common.refuse" (printf (print "\n\ndataset.source.kind is %s, and dataset.source.url is %s: leave the kind out, or correct the address (http "
  "reads https://..., objectstore s3://BUCKET/KEY, gs://BUCKET/KEY or az://CONTAINER/KEY).\n") .kind .url) -}}
{{- end -}}
{{- if and (eq .kind "objectstore") (or (hasSuffix "/" .url) (not (regexMatch "^[a-z0-9]+://[^/]+/." .url))) -}}
{{- include "common.refuse" (printf (print "\n\ndataset.source.url is %s, which names no archive: write the address of one zip or tar, such as "
  "s3://datasets/pets.zip.\n") .url) -}}
{{- end -}}
{{- end -}}
