{{/* What differs from other kinds of jobs, for common.run: the command of its containers, and what else makes it another job. */}}
{{- define "pytorchjob.job" -}}
{{- $command := list "python" "-m" "trainers.launch" "-m" "trainers.ddp" "--config" "/etc/trainyard/config.json" -}}
{{- $launch := list "python" "-m" "trainers.launch" "--no-python" -}}
{{- $elastic := eq .Values.form "elastic" -}}
{{- $spares := ternary (int .Values.elastic.spares) 0 $elastic -}}
{{- $identity := list .Values.form -}}
{{- if $elastic -}}
{{- $identity = append $identity (ternary .Values.elastic (omit .Values.elastic "spares") (gt $spares 0)) -}}
{{- end -}}
{{- $_ := set . "Job" (dict "command" $command "launch" $launch "identity" (mustToJson $identity) "spares" $spares) -}}
{{- end -}}
