{{/* Helm options that turn all jobs off. */}}
{{- define "trainyard.off" -}}
{{- $off := list "--set pytorchjob.enabled=false" -}}
{{- if .Values.global.training.operator -}}{{- $off = prepend $off "--set global.training.operator=" -}}{{- end -}}
{{- range list "mpijob" "trainjob" -}}
{{- if (index $.Values .).enabled -}}{{- $off = append $off (printf "--set %s.enabled=false" .) -}}{{- end -}}
{{- end -}}
{{- join " " $off -}}
{{- end -}}

{{/* Warnings about weaker security and about waiting, a paragraph each. */}}
{{- define "trainyard.warnings" -}}
{{- $facts := .Facts -}}
{{- $trainings := $facts.trainings -}}
{{- with get $trainings "pytorchjob" }}
{{- if and (ne (toString $.Values.pytorchjob.form) "elastic") (gt (int .nodes) 1) }}
WARNING: a stock training-operator gives the Workers an init container without a securityContext, and a namespace that enforces the
`restricted` Pod Security Standard refuses it. Either set pytorchjob.form=elastic, which needs no such container, or start the operator
with --pytorch-init-container-template-file and a template that has one. trainyard why reports such a refusal.
{{ end }}
{{- end }}
{{- if and (has "pytorchjob" $facts.programs) (ne (toString $.Values.pytorchjob.form) "elastic") }}
{{- if not (get $.Values.pytorchjob.runPolicy "activeDeadlineSeconds") }}
WARNING: training-operator recreates a pod of global.training.command that ends with 128 or above without limit; only starts that are killed within 5
minutes are bounded, by four in a row. Set pytorchjob.runPolicy.activeDeadlineSeconds, or pytorchjob.form=elastic with pytorchjob.runPolicy.backoffLimit.
{{ end }}
{{- end }}
{{- if gt (len $facts.trains) 1 }}
WARNING: {{ join " and " $facts.trains }} train at once, each on its own nodes and GPUs. For one of them, set global.training.operator.
{{ end }}
{{- $given := list }}
{{- $pods := 0 }}
{{- range $job, $training := $trainings }}
{{- $pods = max $pods (add (int $training.nodes) (get $facts.spares $job)) }}
{{- range $key := list "resource" "by" }}
{{- if get $training.rdma $key }}
{{- $given = append $given (printf "rdma.%s is set, so the training pods request the capability IPC_LOCK" $key) }}
{{- end }}
{{- end }}
{{- if $training.unrestricted.runAsRoot }}{{ $given = append $given
  "unrestricted.runAsRoot is set: the training pods run as root with the capability IPC_LOCK" }}{{ end }}
{{- if $training.unrestricted.hostNetwork }}{{ $given = append $given
  "unrestricted.hostNetwork is set: the training pods use the node's network, and no NetworkPolicy applies to them" }}{{ end }}
{{- if $training.unrestricted.privileged }}{{ $given = append $given
  "unrestricted.privileged is set: the training container sees every device of its node and can take the node over" }}{{ end }}
{{- end }}
{{- range $given | uniq }}
WARNING: training.{{ . }}, which the `restricted` standard refuses.
{{ end }}
{{- if and $trainings (not (or .Values.networkPolicy.ingress .Values.networkPolicy.enabled)) }}
WARNING: networkPolicy.ingress is false: any pod of the cluster can reach the ports of the training pods, which trust who connects; torch's
rendezvous even runs code that it is sent. Set it to true, unless policies of your own keep other pods out (docs/security.md).
{{ end }}
{{- range $which := list "data" "results" }}
{{- $claim := index $.Values.global.storage $which }}
{{- if and (gt (int $pods) 1) (eq (join "," $claim.accessModes) "ReadWriteOnce") }}
WARNING: global.storage.{{ $which }}.accessModes is ReadWriteOnce, which lets one node use the claim, and {{ $pods }} pods train: unless they
all fit on one node, the others never start. ReadWriteMany needs a StorageClass that supports it (NFS, CephFS, Filestore, FSx, Azure Files).
{{ end }}
{{- end }}
{{- if .Values.evaluate.enabled }}
{{- if and (get .Values.evaluate "resourceClaims") (not .Values.evaluate.gpus) }}
WARNING: evaluate.resourceClaims is set and evaluate.gpus is 0: the model is measured on the CPU. Set evaluate.gpus to the claims' GPUs.
{{ end }}
{{- end }}
{{- if and .Values.dataset.enabled (hasPrefix "az://" .Values.dataset.source.url) }}
WARNING: dataset.source.url is az://..., which needs the package adlfs. This project's images do not have it: build one that has, or mount the
container and set dataset.source.path (docs/dataset.md).
{{ end }}
{{- if and .Values.dataset.enabled (hasPrefix "gs://" .Values.dataset.source.url) }}
WARNING: dataset.source.url is gs://..., which needs the package gcsfs. This project's images do not have it: build one that
has, or read the bucket through s3:// and the endpoint https://storage.googleapis.com, or mount it and set dataset.source.path (docs/dataset.md).
{{ end }}
{{- $made := dict }}
{{- range pick .Values.secrets "kaggle" "objectstore" "http" "wandb" "mlflow" "registry" }}{{ $made = merge $made (dict (values . | compact | join "")
  true) }}{{ end }}
{{- if and .Values.secrets.enabled (compact (keys $made)) }}
WARNING: secrets created from values can be read in the release's values. Beyond a trial, create them yourself and name them in global.secrets.
{{ end }}
{{- with .Values.filebrowser }}
{{- if and .enabled .auth.password }}
WARNING: filebrowser.auth.password can be read in the release's values. Beyond a trial, name a Secret in filebrowser.auth.existingSecret.
{{ end }}
{{- if and .enabled .ingress.enabled (not .ingress.tls.secretName) }}
WARNING: filebrowser.ingress has no tls.secretName: unless a proxy before it speaks TLS, the password is sent in clear text.
{{ end }}
{{- end }}
{{- end -}}
