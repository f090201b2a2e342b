{{/* What differs from other kinds of jobs, for common.run: the command of its containers, and what else makes it another job. */}}
{{- define "pytorchjob.job" -}}
{{- $command := list "python" "-m" "trainers.launch" "-m" "trainers.ddp" "--config" "/etc/trainyard/config.json" -}}
{{- $launch := list "python" "-m" "trainers.launch" "--no-python" -}}
{{- $elastic := eq .Values.form "elastic" -}}
{{- $spares := ternary (int .Values.elastic.spares) 0 $elastic -}}
{{- $identity := ternary (list .Values.form (ternary .Values.elastic (omit .Values.elastic "spares") (gt $spares 0))) (list .Values.form) $elastic | mustToJson -}}
{{- $_ := set . "Job" (dict "command" $command "launch" $launch "identity" $identity "spares" $spares) -}}
{{- end -}}
