{{/*
Refuse what a program of the user's (global.training.command) cannot follow: the recipe and the settings of this project's trainers. Call with a
dict: training, and job, its kind. A TrainJob alone keeps `config.strategy`, by which mpirun starts its ranks.
*/}}
{{- define "common.checkProgram" -}}
{{- $training := .training -}}
{{- if $training.command -}}
{{- if ne $training.recipe "resnet50-nvidia-90" -}}
{{- include "common.refuse" (printf (print "\n\nglobal.training.recipe is %s beside global.training.command: a recipe has the settings of the project's own "
  "trainers, and the command starts another program. Take one of them out.\n") $training.recipe) -}}
{{- end -}}
{{- $config := omit ($training.config | default dict) (ternary "strategy" "" (eq .job "trainjob")) -}}
{{- with keys $config | sortAlpha -}}
{{- include "common.refuse" (printf (print "\n\nglobal.training.config sets %s beside global.training.command: these are settings of the project's own "
  "trainers, and the command starts another program. Take them out, and give the program its own in the command or in global.training.env.\n")
  (join ", " .)) -}}
{{- end -}}
{{- end -}}
{{- end -}}

{{/*
What a program finds in its environment, set into a map: the folder of its run on the results claim, and the port for its metrics. Call with a
dict: into, dir, and metrics (global.metrics).
*/}}
{{- define "common.programEnv" -}}
{{- $_ := set .into "TRAINYARD_RUN_DIR" .dir -}}
{{- if .metrics.enabled -}}{{- $_ := set .into "TRAINYARD_METRICS_PORT" (int .metrics.port | toString) -}}{{- end -}}
{{- end -}}
