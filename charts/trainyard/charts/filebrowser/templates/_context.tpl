{{/*
What the page's manifests read, gathered once on the part's context:

  .Name    of the Deployment and the Service, which has 63 characters at most and starts with a letter. A release's name that does not fit gets
           a hash, as the jobs' names do.
  .Secret  the name of the Secret with the password
*/}}
{{- define "filebrowser.context" -}}
{{- if not (hasKey . "Name") -}}
{{- include "common.context" . -}}
{{- if and (regexMatch "^[a-z][-a-z0-9]*$" .Release.Name) (le (len .Release.Name) 51) -}}
{{- $_ := set . "Name" (printf "%s-filebrowser" .Release.Name) -}}
{{- else -}}
{{- $_ := set . "Name" (include "common.jobName" (list . "")) -}}
{{- end -}}
{{- with .Values.auth -}}
{{- if and .existingSecret .password -}}
{{- include "common.refuse" (print "\n\nfilebrowser.auth.existingSecret names the password's Secret, and filebrowser.auth.password would make one: "
  "leave one of them out.\n") -}}
{{- end -}}
{{- if not (or .existingSecret .password) -}}
{{- include "common.refuse" (print "\n\nThe file browser has no password: set filebrowser.auth.existingSecret, a Secret with the key password "
  "(or, for a trial, filebrowser.auth.password).\n") -}}
{{- end -}}
{{- end -}}
{{- $_ := set . "Secret" (.Values.auth.existingSecret | default .Name) -}}
{{- end -}}
{{- end -}}
