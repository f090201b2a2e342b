{{/* Labels of every object. */}}
{{- define "common.labels" -}}
helm.sh/chart: {{ printf "%s-%s" .Chart.Name .Chart.Version | replace "+" "_" }}
app.kubernetes.io/managed-by: {{ .Release.Service }}
{{ include "common.ownLabels" . }}
{{- end -}}

{{/* Labels that do not change with the chart's version. */}}
{{- define "common.ownLabels" -}}
app.kubernetes.io/name: {{ .Chart.Name }}
app.kubernetes.io/instance: {{ .Release.Name | quote }}
app.kubernetes.io/part-of: trainyard
{{- with .Values.global.labels }}
{{- include "common.refuseOwnLabels" (list "global.labels" .) }}
{{ toYaml . }}
{{- end }}
{{- end -}}

{{/* Refuse labels that the chart sets itself. Call with a list: the key in values, and its labels. */}}
{{- define "common.refuseOwnLabels" -}}
{{- $own := list "helm.sh/chart" "app.kubernetes.io/managed-by" "app.kubernetes.io/name" "app.kubernetes.io/instance" "app.kubernetes.io/part-of" "sidecar.istio.io/inject" "kueue.x-k8s.io/queue-name" "kueue.x-k8s.io/priority-class" -}}
{{- range $key, $_ := index . 1 -}}
{{- if has $key $own -}}
{{- $from := get (dict "kueue.x-k8s.io/queue-name" " from global.scheduling.queue" "kueue.x-k8s.io/priority-class" " from global.scheduling.queuePriority") $key -}}
{{- fail (printf "\n\n%s sets %s, which the chart sets itself%s: take it out.\n" (index $ 0) $key $from) -}}
{{- end -}}
{{- end -}}
{{- end -}}

{{/* Labels of every pod. They turn Istio's sidecar off: it would keep a finished pod alive. */}}
{{- define "common.podLabels" -}}
{{ include "common.ownLabels" . }}
sidecar.istio.io/inject: "false"
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

{{/* Name of a claim. Call with a list: the context, and `data` or `results`. */}}
{{- define "common.claim" -}}
{{- $root := index . 0 -}}
{{- $claim := index $root.Values.global.storage (index . 1) -}}
{{- $claim.existingClaim | default (printf "%s-%s" $root.Release.Name (index . 1)) -}}
{{- end -}}

{{/* Size of a new claim. Its default is not in values: beside `existingClaim` it would look like a user's. Call as common.claim. */}}
{{- define "common.claimSize" -}}
{{- $which := index . 1 -}}
{{- (index (index . 0).Values.global.storage $which).size | default (get (dict "data" "300Gi" "results" "100Gi") $which) -}}
{{- end -}}

{{/* Image of a subchart; fails with the missing keys. */}}
{{- define "common.image" -}}
{{- $shared := .Values.global.image -}}
{{- $own := .Values.image -}}
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
{{- fail (printf "\n\n%s has no image. Please set %s.\n" .Chart.Name (join " and " $missing)) -}}
{{- end -}}
{{- if and (eq $tag "latest") (not $own.digest) -}}
{{- fail "\n\nglobal.image.tag is `latest`, which names another image tomorrow: set the tag that `make push REGISTRY=...` prints.\n" -}}
{{- end -}}
{{- if $own.digest -}}
{{- printf "%s/%s@%s" $registry $own.repository $own.digest -}}
{{- else -}}
{{- printf "%s/%s:%s" $registry $own.repository $tag -}}
{{- end -}}
{{- end -}}
