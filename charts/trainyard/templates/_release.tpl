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
or an operator make; awaited, those that an operator creates; wait, for how many seconds; and weights, the settings for fetching pretrained weights.
*/}}
{{- define "trainyard.facts" -}}
{{- include "common.once" (list . "FactsJson" "trainyard.gatheredFacts" .) -}}
{{- end -}}

{{- define "trainyard.gatheredFacts" -}}
{{- $trains := include "trainyard.trains" . | fromJsonArray -}}
{{- $parts := $trains -}}
{{- range list "storage" "secrets" "dataset" "evaluate" "filebrowser" "trainjob" -}}
{{- if (index $.Values .).enabled -}}{{- $parts = append $parts . -}}{{- end -}}
{{- end -}}
{{- $made := list -}}
{{- $awaited := list -}}
{{- $wait := 0 -}}
{{- /* the values of a part that is off hold no defaults */ -}}
{{- if .Values.secrets.enabled -}}
{{- $wait = .Values.secrets.external.wait -}}
{{- range $which := list "kaggle" "objectstore" "http" "wandb" "mlflow" -}}
{{- if (index $.Values.secrets.external $which).remoteKey -}}{{- $awaited = append $awaited $which -}}{{- end -}}
{{- if compact (values (index $.Values.secrets $which)) -}}{{- $made = append $made $which -}}{{- end -}}
{{- end -}}
{{- end -}}
{{- $made = concat $made $awaited | uniq -}}
{{- mustToJson (dict "trains" $trains "parts" ($parts | uniq) "made" $made "awaited" $awaited "wait" $wait "weights" (include "trainyard.weights" . | fromJsonArray)) -}}
{{- end -}}

{{/*
Settings for fetching the pretrained weights that the jobs start from, as a JSON list without doubles: the part of their settings that names
weights, so that a change of anything else does not fetch them again, and a length and a batch, which must be set.
*/}}
{{- define "trainyard.weights" -}}
{{- $weights := list -}}
{{- range include "trainyard.trainings" . | fromJson -}}
{{- if include "common.fetchedWeights" . -}}
{{- $model := pick (get .config "model" | default dict) "name" "pretrained" "pretrained_sha256" "weights_mirror" -}}
{{- $_ := set $model "weights_dir" (include "common.weightsFolder" .) -}}
{{- $data := dict "dir" (printf "/data/%s" $.Values.global.dataset.name) -}}
{{- $weights = append $weights (dict "recipe" .recipe "model" $model "data" $data "epochs" 1 "batch" (dict "global" 64)) -}}
{{- end -}}
{{- end -}}
{{- mustToJson ($weights | uniq) -}}
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

{{/*
Render an object of the evaluation, which must know the run that it measures: its name, and its settings where this release trains it. Call with
a list: the context, and the name of a template.
*/}}
{{- define "trainyard.evaluate" -}}
{{- $root := index . 0 -}}
{{- if $root.Values.evaluate.enabled -}}
{{- $_ := set (get $root.Subcharts "evaluate") "Evaluated" (include "trainyard.evaluated" $root | fromJson) -}}
{{- end -}}
{{- include "trainyard.part" (list $root "evaluate" (index . 1)) -}}
{{- end -}}

{{- define "trainyard.evaluated" -}}
{{- $run := .Values.evaluate.run -}}
{{- $config := dict -}}
{{- $names := list -}}
{{- $trainings := include "trainyard.trainings" . | fromJson -}}
{{- $trains := include "trainyard.trains" . | fromJsonArray -}}
{{- range $job := $trains -}}
{{- $training := get $trainings $job -}}
{{- $name := include "common.runName" (list $.Release.Name $job $training $trains) -}}
{{- $names = append $names $name -}}
{{- if or (eq $run $name) (and (not $run) (eq 1 (len $trains))) -}}
{{- $config = include "common.runSettings" (list $ $training $name) | fromJson -}}
{{- end -}}
{{- end -}}
{{- if and (not $run) (ne 1 (len $names)) -}}
{{- $which := ternary (printf "%s are trained" (join " and " $names)) "this release trains none" (not (empty $names)) -}}
{{- fail (printf "\n\nevaluate.run is not set, and %s: set it to the run whose model is to be measured, its folder under runs/ on the results claim.\n" $which) -}}
{{- end -}}
{{- mustToJson (dict "run" ($run | default (first $names)) "config" $config) -}}
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
