{{/*
Switch a run's metrics on if global.metrics says so, in place. This happens after the job's name is computed: metrics do not change what a run
computes, so a running job continues, and pods that start later serve metrics. Call with a list: the context, and the run.
*/}}
{{- define "common.addMetrics" -}}
{{- $root := index . 0 -}}
{{- $run := index . 1 -}}
{{- with $root.Values.global.metrics -}}
{{- if .enabled -}}
{{- if hasKey (dig "config" "metrics" (dict) $run.training) "port" -}}
{{- fail "\n\nglobal.training.config.metrics.port follows from global.metrics.port: take it out.\n" -}}
{{- end -}}
{{- if has (int .port) (list 2222 23456 29400 29500 (int $run.training.peers.port)) -}}
{{- fail (printf "\n\nglobal.metrics.port is %d, on which the pods of a job already meet: choose another.\n" (int .port)) -}}
{{- end -}}
{{- $_ := include "common.mergeInto" (list $run.config (dict "metrics" (dict "port" (int .port)))) -}}
{{- end -}}
{{- end -}}
{{- end -}}

{{/* Ports of a training container, as JSON. Call with a list: the context, and those that the job has anyway. */}}
{{- define "common.trainerPorts" -}}
{{- $ports := index . 1 | default list -}}
{{- with (index . 0).Values.global.metrics -}}
{{- if .enabled -}}
{{- $ports = append $ports (dict "name" "metrics" "containerPort" (int .port)) -}}
{{- end -}}
{{- end -}}
{{- mustToJson $ports -}}
{{- end -}}

{{/* Annotations of a training pod, as JSON: the user's, and those by which a Prometheus finds it. Call with a list: the context, and the user's. */}}
{{- define "common.trainerAnnotations" -}}
{{- $annotations := deepCopy (index . 1) -}}
{{- with (index . 0).Values.global.metrics -}}
{{- if and .enabled (eq .kind "annotations") -}}
{{- range $key, $value := dict "scrape" "true" "port" (toString (int .port)) "path" "/metrics" -}}
{{- $name := printf "prometheus.io/%s" $key -}}
{{- if hasKey $annotations $name -}}
{{- fail (printf "\n\nglobal.training.podAnnotations sets %s, which follows from global.metrics: take it out.\n" $name) -}}
{{- end -}}
{{- $_ := set $annotations $name $value -}}
{{- end -}}
{{- end -}}
{{- end -}}
{{- mustToJson $annotations -}}
{{- end -}}

{{/* Labels by which a Prometheus selects its objects. Call with global.metrics. */}}
{{- define "common.metricsLabels" -}}
{{- include "common.refuseOwnLabels" (list "global.metrics.labels" .labels) -}}
{{- with .labels -}}
{{- toYaml . -}}
{{- end -}}
{{- end -}}
