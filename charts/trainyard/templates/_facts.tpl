{{/*
What the parts of a release must know of each other, gathered once, as .Facts of the umbrella's context and of each part's (in which a part
that renders alone has what it knows of itself):

  trains     the jobs that train. If global.training.operator is set, it alone decides; otherwise the enabled jobs train, or a PyTorchJob if
             there is none and its `enabled` is empty.
  trainings  their training settings, by job
  spares     how many pods wait beside them, by job
  runs       the names of their runs, by job: the release's, with the job's behind it where several train
  settings   the trainer's settings of their runs, by job, for the evaluation
  parts      the parts that render anything
  made       the secrets that values or an operator make
  awaited    those that an operator creates, and in `wait` for how many seconds
  weights    settings for fetching the pretrained weights that the jobs start from, without doubles: the part of their settings that names
             weights, so that a change of anything else does not fetch them again, and a length and a batch, which must be set
  dataless   whether no pod of the release uses the data claim: all that runs is programs of the user's (global.training.command), no dataset is
             prepared, and values name no claim for it
  mpi        the parts whose ranks mpirun starts: an MPIJob, and TrainJobs with strategy: horovod
  launcher   settings of the pod that runs mpirun, of whatever kind its job is
*/}}
{{- define "trainyard.facts" -}}
{{- if not (hasKey . "Facts") -}}
{{- $values := .Values -}}
{{- $trains := list -}}
{{- with $values.global.training.operator -}}
{{- $trains = list . -}}
{{- else -}}
{{- range list "mpijob" "trainjob" -}}
{{- $own := index $values . -}}
{{- if and $own.enabled (ne (toString (dig "job" "enabled" true $own)) "false") -}}{{- $trains = append $trains . -}}{{- end -}}
{{- end -}}
{{- $asked := toString $values.pytorchjob.enabled -}}
{{- if or (eq $asked "true") (and (eq $asked "") (not $trains)) -}}{{- $trains = prepend $trains "pytorchjob" -}}{{- end -}}
{{- end -}}
{{- $parts := $trains -}}
{{- range list "storage" "secrets" "dataset" "evaluate" "filebrowser" "trainjob" -}}
{{- if (index $values .).enabled -}}{{- $parts = append $parts . -}}{{- end -}}
{{- end -}}
{{- $made := list -}}
{{- $awaited := list -}}
{{- $wait := 0 -}}
{{- /* the values of a part that is off hold no defaults */ -}}
{{- if $values.secrets.enabled -}}
{{- $wait = $values.secrets.external.wait -}}
{{- range $which := list "kaggle" "objectstore" "http" "wandb" "mlflow" -}}
{{- if (index $values.secrets.external $which).remoteKey -}}{{- $awaited = append $awaited $which -}}{{- end -}}
{{- if compact (values (index $values.secrets $which)) -}}{{- $made = append $made $which -}}{{- end -}}
{{- end -}}
{{- end -}}
{{- $made = concat $made $awaited | uniq -}}
{{- $trainings := dict -}}
{{- $spares := dict -}}
{{- $runs := dict -}}
{{- $settings := dict -}}
{{- $weights := list -}}
{{- range $job := $trains -}}
{{- $one := dict -}}
{{- include "common.training" (dict "into" $one "shared" $values.global.training "own" (index $values $job).training) -}}
{{- $_ := set $trainings $job $one.Training -}}
{{- $own := index $values $job -}}
{{- $_ := set $spares $job (ternary (dig "elastic" "spares" 0 $own) ($own.spares | default 0) (eq (toString $own.form) "elastic") | int) -}}
{{- end -}}
{{- range $job, $training := $trainings -}}
{{- $name := $training.name | default (ternary $.Release.Name (printf "%s-%s" $.Release.Name $job) (eq 1 (len $trains))) -}}
{{- $_ := set $runs $job $name -}}
{{- $one := dict -}}
{{- include "common.config" (dict "into" $one "training" $training "run" $name "dataset" $values.global.dataset.name) -}}
{{- $_ := set $settings $job $one.config -}}
{{- with $training.weights -}}
{{- $model := pick (get $training.config "model" | default dict) "name" "pretrained" "pretrained_sha256" "weights_mirror" -}}
{{- $_ := set $model "weights_dir" . -}}
{{- $data := dict "dir" (printf "/data/%s" $values.global.dataset.name) -}}
{{- $weights = append $weights (dict "recipe" $training.recipe "model" $model "data" $data "epochs" 1 "batch" (dict "global" 64)) -}}
{{- end -}}
{{- end -}}
{{- $mpi := ternary (list "mpijob") list (has "mpijob" $trains) -}}
{{- if has "trainjob" $parts -}}
{{- $one := dict -}}
{{- include "common.training" (dict "into" $one "shared" $values.global.training "own" $values.trainjob.training) -}}
{{- if eq (dig "strategy" "" ($one.Training.config | default dict) | toString) "horovod" -}}{{- $mpi = append $mpi "trainjob" -}}{{- end -}}
{{- end -}}
{{- $programs := list -}}
{{- range $job, $training := $trainings -}}
{{- if $training.command -}}{{- $programs = append $programs $job -}}{{- end -}}
{{- end -}}
{{- $others := without $parts "storage" "secrets" | uniq | len | ne (len $programs) -}}
{{- $dataless := and $programs (not $others) (not $values.global.storage.data.existingClaim) -}}
{{- $facts := dict "trains" $trains "trainings" $trainings "spares" $spares "runs" $runs "settings" $settings "parts" ($parts | uniq) "made" $made
  "awaited" $awaited "wait" $wait "weights" ($weights | uniq) "mpi" $mpi "launcher" $values.mpijob.launcher "programs" $programs
  "dataless" (not (empty $dataless)) -}}
{{- $_ := set . "Facts" $facts -}}
{{- range .Subcharts -}}{{- $_ := set . "Facts" $facts -}}{{- end -}}
{{- end -}}
{{- end -}}

{{/* Labels by which a Prometheus selects its objects. Call with global.metrics. */}}
{{- define "trainyard.metricsLabels" -}}
{{- with include "common.labelError" (list "global.metrics.labels" .labels) -}}{{- include "common.refuse" . -}}{{- end -}}
{{- with .labels -}}
{{- toYaml . -}}
{{- end -}}
{{- end -}}
