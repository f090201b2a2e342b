{{/*
Where the dataset comes from, as JSON: kind, key (of its address) and address. The kind follows from which address is set; a user's `kind`
must agree with it.
*/}}
{{- define "dataset.source" -}}
{{- include "common.once" (list . "Source" "dataset.checkedSource" .) -}}
{{- end -}}

{{- define "dataset.checkedSource" -}}
{{- $source := .Values.source -}}
{{- $keys := dict "kaggle" "competition" "kaggle-dataset" "dataset" "http" "url" "objectstore" "url" "path" "path" -}}
{{- $set := list -}}
{{- range list "url" "competition" "dataset" "path" -}}
{{- if get $source . -}}{{- $set = append $set . -}}{{- end -}}
{{- end -}}
{{- $kind := $source.kind -}}
{{- if not $kind -}}
{{- if not $set -}}
{{- fail "\n\ndataset.source is not set: say where the dataset comes from, such as dataset.source.url: https://data.example.com/pets.zip, or set dataset.enabled: false for one that is on the claim.\n" -}}
{{- end -}}
{{- if gt (len $set) 1 -}}
{{- fail (printf "\n\ndataset.source sets %s: keep the one that the dataset comes from.\n" (join " and " $set)) -}}
{{- end -}}
{{- $kind = get (dict "competition" "kaggle" "dataset" "kaggle-dataset" "path" "path") (first $set) | default (ternary "http" "objectstore" (regexMatch "^https?://" $source.url)) -}}
{{- end -}}
{{- if eq $kind "none" -}}
{{- if $set -}}
{{- fail (printf "\n\ndataset.source.kind is none, and dataset.source.%s is set: leave one of them out.\n" (first $set)) -}}
{{- end -}}
{{- if not .Facts.weights -}}
{{- fail "\n\ndataset.source.kind is none: there are no pretrained weights to fetch; set model.pretrained in global.training.config, or dataset.enabled: false.\n" -}}
{{- end -}}
{{- mustToJson (dict "kind" "none") -}}
{{- else -}}
{{- $key := get $keys $kind -}}
{{- if not $key -}}
{{- $meant := get (dict "s3" "objectstore" "gs" "objectstore" "gcs" "objectstore" "minio" "objectstore" "bucket" "objectstore" "s3fs" "objectstore" "object-store" "objectstore" "objectStore" "objectstore" "url" "http" "https" "http" "web" "http" "imagenet" "kaggle" "competition" "kaggle" "kaggleDataset" "kaggle-dataset" "folder" "path" "local" "path" "file" "path" "pvc" "path" "claim" "path") $kind -}}
{{- fail (printf "\n\ndataset.source.kind is %s%s There are http, objectstore, kaggle, kaggle-dataset, path and none; left out, it follows from the address.\n" $kind (ternary (printf ": did you mean %s?" $meant) ", which is none." (not (empty $meant)))) -}}
{{- end -}}
{{- $address := get $source $key -}}
{{- if not $address -}}
{{- $hint := ternary " (ImageNet's is imagenet-object-localization-challenge)" "" (eq $kind "kaggle") -}}
{{- fail (printf "\n\ndataset.source.kind is %s: set dataset.source.%s%s.\n" $kind $key $hint) -}}
{{- end -}}
{{- range without $set $key -}}
{{- fail (printf "\n\ndataset.source.kind is %s, which reads dataset.source.%s, and dataset.source.%s is set too: leave one of them out.\n" $kind $key .) -}}
{{- end -}}
{{- if eq $key "url" -}}
{{- include "dataset.checkUrl" (dict "kind" $kind "url" $address) -}}
{{- end -}}
{{- if and (ne $kind "objectstore") (or $source.endpoint $source.anonymous) -}}
{{- fail (printf "\n\ndataset.source.endpoint and dataset.source.anonymous belong to kind objectstore, and it is %s: remove them.\n" $kind) -}}
{{- end -}}
{{- if regexMatch "://[^/@]*@" (toString $source.endpoint) -}}
{{- fail "\n\ndataset.source.endpoint holds a user name or password, which would be readable in a ConfigMap: take them out, and name a Secret in global.secrets.objectstore.existingSecret.\n" -}}
{{- end -}}
{{- mustToJson (dict "kind" $kind "key" $key "address" $address) -}}
{{- end -}}
{{- end -}}

{{/* Refuse an address of another kind, one that holds a password, and one of a folder. Call with a dict: kind, url. */}}
{{- define "dataset.checkUrl" -}}
{{- include "common.checkAddress" (dict "path" "dataset.source.url" "url" .url "signed" "url") -}}
{{- if ne (eq .kind "http") (regexMatch "^https?://" .url) -}}
{{- fail (printf "\n\ndataset.source.kind is %s, and dataset.source.url is %s: leave the kind out, or correct the address (http reads https://..., objectstore s3://BUCKET/KEY or gs://BUCKET/KEY).\n" .kind .url) -}}
{{- end -}}
{{- if and (eq .kind "objectstore") (or (hasSuffix "/" .url) (not (regexMatch "^[a-z0-9]+://[^/]+/." .url))) -}}
{{- fail (printf "\n\ndataset.source.url is %s, which names no archive: write the address of one zip or tar, such as s3://datasets/pets.zip.\n" .url) -}}
{{- end -}}
{{- end -}}

{{/* Settings of the preparation, as JSON. */}}
{{- define "dataset.config" -}}
{{- $from := include "dataset.source" . | fromJson -}}
{{- if ne $from.kind "none" -}}
{{- $config := dict -}}
{{- $_ := include "common.mergeInto" (list $config .Values.settings) -}}
{{- $_ := set $config "source" (dict "kind" $from.kind $from.key $from.address) -}}
{{- range $name, $setting := pick .Values.source "endpoint" "anonymous" "sha256" -}}
{{- if $setting -}}{{- $_ := set $config.source $name $setting -}}{{- end -}}
{{- end -}}
{{- $_ := set $config "out" (printf "/data/%s" .Values.global.dataset.name) -}}
{{- mustToPrettyJson $config -}}
{{- end -}}
{{- end -}}

{{/*
The Secrets that the Job's containers read, as JSON: the dataset's, and of each of the weights. A name under global.secrets, or nothing. A web
server's is always optional: most need none.
*/}}
{{- define "dataset.secrets" -}}
{{- $kind := (include "dataset.source" . | fromJson).kind -}}
{{- $dataset := "" -}}
{{- if hasPrefix "kaggle" $kind -}}{{- $dataset = "kaggle" -}}
{{- else if and (eq $kind "objectstore") (not .Values.source.anonymous) -}}{{- $dataset = "objectstore" -}}
{{- else if eq $kind "http" -}}{{- $dataset = include "dataset.httpSecret" . -}}
{{- end -}}
{{- $weights := list -}}
{{- range .Facts.weights -}}
{{- $store := regexMatch "^(s3|gs)://" (.model.pretrained | default "" | toString) -}}
{{- $weights = append $weights (ternary "objectstore" (include "dataset.httpSecret" $) $store) -}}
{{- end -}}
{{- mustToJson (dict "dataset" $dataset "weights" $weights) -}}
{{- end -}}

{{- define "dataset.httpSecret" -}}
{{- if include "common.secretRequired" (list . "http") -}}http{{- end -}}
{{- end -}}
