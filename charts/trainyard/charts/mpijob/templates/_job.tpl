{{/* What differs from other kinds of jobs, for common.run: the command of the launcher, and what else makes it another job. */}}
{{- define "mpijob.job" -}}
{{- $hvd := list "python" "-m" "trainers.hvd" "--config" "/etc/trainyard/config.json" -}}
{{- $start := list "python" "-m" "trainers.mpi" "launch" "--np" "<np>" -}}
{{- with int .Values.spares -}}{{- $start = concat $start (list "--spares" (toString .)) -}}{{- end -}}
{{- $start = append $start "--" -}}
{{- $launch := concat $start (list "python" "-m" "trainers.mpi" "rank" "--") -}}
{{- $command := concat $start $hvd -}}
{{- $_ := set . "Job" (dict "command" $command "launch" $launch "identity" "mpi") -}}
{{- end -}}
