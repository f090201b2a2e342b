{{/* What differs from other kinds of jobs, for common.run: the command of its containers, and what else makes it another job. */}}
{{- define "pytorchjob.job" -}}
{{- $command := list "python" "-m" "trainers.launch" "-m" "trainers.ddp" "--config" "/etc/trainyard/config.json" -}}
{{- $launch := list "python" "-m" "trainers.launch" "--no-python" -}}
{{- $identity := ternary (list .Values.form .Values.elastic) (list .Values.form) (eq .Values.form "elastic") | mustToJson -}}
{{- $_ := set . "Job" (dict "command" $command "launch" $launch "identity" $identity) -}}
{{- end -}}
