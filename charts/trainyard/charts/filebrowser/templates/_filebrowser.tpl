{{/*
Name of the Deployment and the Service, which has 63 characters at most and starts with a letter. A release's name that does not fit gets
a hash, as the jobs' names do.
*/}}
{{- define "filebrowser.name" -}}
{{- if and (regexMatch "^[a-z][-a-z0-9]*$" .Release.Name) (le (len .Release.Name) 51) -}}
{{- printf "%s-filebrowser" .Release.Name -}}
{{- else -}}
{{- include "common.jobName" (list . "") -}}
{{- end -}}
{{- end -}}

{{/* Labels by which Deployment, Service and NetworkPolicy find the pod. They never change: a Deployment's selector cannot. */}}
{{- define "filebrowser.selector" -}}
app.kubernetes.io/name: {{ .Chart.Name }}
app.kubernetes.io/instance: {{ .Release.Name | quote }}
{{- end -}}

{{/* Name of the Secret with the password; fails with the missing key. */}}
{{- define "filebrowser.secret" -}}
{{- with .Values.auth -}}
{{- if and .existingSecret .password -}}
{{- fail "\n\nfilebrowser.auth.existingSecret names the password's Secret, and filebrowser.auth.password would make one: leave one of them out.\n" -}}
{{- end -}}
{{- if not (or .existingSecret .password) -}}
{{- fail "\n\nThe file browser has no password: set filebrowser.auth.existingSecret, a Secret with the key password (or, for a trial, filebrowser.auth.password).\n" -}}
{{- end -}}
{{- end -}}
{{- .Values.auth.existingSecret | default (include "filebrowser.name" .) -}}
{{- end -}}

{{/*
Settings of the pod, as JSON; settings that break it are refused. It runs on the nodes that global.scheduling allows; its own scheduling
replaces that key by key.
*/}}
{{- define "filebrowser.pod" -}}
{{- $pod := include "common.podSettings" .Values | fromJson -}}
{{- $shared := pick .Values.global.scheduling "nodeSelector" "affinity" "tolerations" -}}
{{- $_ := set $pod "scheduling" (include "common.placement" (list $shared $pod.scheduling) | fromJson) -}}
{{- $own := list "HOME" "FILEBROWSER_PORT" "FILEBROWSER_WRITABLE" -}}
{{- with .Values.passwordEnv -}}{{- $own = append $own . -}}{{- end -}}
{{- $mounts := list "/srv/data" "/srv/results" "/etc/filebrowser" "/tmp" -}}
{{- $volumes := list "data" "results" "password" "tmp" -}}
{{- include "common.checkPod" (dict "path" "filebrowser" "pod" $pod "env" $own "mounts" $mounts "volumes" $volumes "containers" (list "filebrowser")) -}}
{{- mustToJson $pod -}}
{{- end -}}

{{/* The mount of a claim, below /srv. Call as common.claimMount. */}}
{{- define "filebrowser.mount" -}}
{{- include "common.claimMount" . | replace "mountPath: /" "mountPath: /srv/" -}}
{{- end -}}
