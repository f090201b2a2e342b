{{/*
Render an object of a part, if the part is on. The parts' own charts hold values and named templates; this template sees all parts and decides
which of them a release has. Call with a list: the context, the part, and the name of a template.
*/}}
{{- define "trainyard.part" -}}
{{- $root := index . 0 -}}
{{- $part := index . 1 -}}
{{- if not (hasKey $root "Facts") -}}
{{- $_ := set $root "Facts" (include "trainyard.facts" $root | fromJson) -}}
{{- end -}}
{{- if has $part $root.Facts.parts -}}
{{- $context := get $root.Subcharts $part -}}
{{- $_ := set $context "Facts" $root.Facts -}}
{{- include (index . 2) $context -}}
{{- end -}}
{{- end -}}

{{/*
What the parts must know of each other, as JSON: trains, the jobs that train; parts, those that render anything; made, the secrets that values
or an operator make; awaited, those that an operator creates; and wait, for how many seconds.
*/}}
{{- define "trainyard.facts" -}}
{{- include "common.once" (list . "FactsJson" "trainyard.gatheredFacts" .) -}}
{{- end -}}

{{- define "trainyard.gatheredFacts" -}}
{{- $trains := include "trainyard.trains" . | fromJsonArray -}}
{{- $parts := $trains -}}
{{- range list "storage" "secrets" "dataset" "filebrowser" "trainjob" -}}
{{- if (index $.Values .).enabled -}}{{- $parts = append $parts . -}}{{- end -}}
{{- end -}}
{{- $made := list -}}
{{- $awaited := list -}}
{{- $wait := 0 -}}
{{- /* the values of a part that is off hold no defaults */ -}}
{{- if .Values.secrets.enabled -}}
{{- $wait = .Values.secrets.external.wait -}}
{{- range $which := list "kaggle" "objectstore" "http" "wandb" -}}
{{- if (index $.Values.secrets.external $which).remoteKey -}}{{- $awaited = append $awaited $which -}}{{- end -}}
{{- if compact (values (index $.Values.secrets $which)) -}}{{- $made = append $made $which -}}{{- end -}}
{{- end -}}
{{- end -}}
{{- $made = concat $made $awaited | uniq -}}
{{- mustToJson (dict "trains" $trains "parts" ($parts | uniq) "made" $made "awaited" $awaited "wait" $wait) -}}
{{- end -}}

{{/*
The jobs that train, as JSON. If global.training.operator is set, it alone decides; otherwise the enabled jobs train, or a PyTorchJob if there
is none and its `enabled` is empty.
*/}}
{{- define "trainyard.trains" -}}
{{- $trains := list -}}
{{- with .Values.global.training.operator -}}
{{- $trains = list . -}}
{{- else -}}
{{- range list "mpijob" "trainjob" -}}
{{- $values := index $.Values . -}}
{{- if and $values.enabled (ne (toString (dig "job" "enabled" true $values)) "false") -}}{{- $trains = append $trains . -}}{{- end -}}
{{- end -}}
{{- if or (eq (toString .Values.pytorchjob.enabled) "true") (and (eq (toString .Values.pytorchjob.enabled) "") (not $trains)) -}}
{{- $trains = prepend $trains "pytorchjob" -}}
{{- end -}}
{{- end -}}
{{- mustToJson $trains -}}
{{- end -}}

{{/* The training settings of each job that trains, as JSON by job. */}}
{{- define "trainyard.trainings" -}}
{{- include "common.once" (list . "Trainings" "trainyard.gatheredTrainings" .) -}}
{{- end -}}

{{- define "trainyard.gatheredTrainings" -}}
{{- $trainings := dict -}}
{{- range include "trainyard.trains" . | fromJsonArray -}}
{{- $_ := set $trainings . (include "common.overridden" (list $.Values.global (index $.Values .)) | fromJson) -}}
{{- end -}}
{{- mustToJson $trainings -}}
{{- end -}}
