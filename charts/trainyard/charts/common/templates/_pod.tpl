{{/* Security of every pod: passes the `restricted` Pod Security Standard. */}}
{{- define "common.podSecurity" -}}
runAsNonRoot: true
runAsUser: {{ int64 .Values.global.storage.uid }}
runAsGroup: {{ int64 .Values.global.storage.gid }}
fsGroup: {{ int64 .Values.global.storage.gid }}
fsGroupChangePolicy: {{ .Values.global.storage.fsGroupChangePolicy }}
{{- with .Values.global.storage.supplementalGroups }}
supplementalGroups:
  {{- toYaml . | nindent 2 }}
{{- end }}
seccompProfile:
  type: RuntimeDefault
{{- end -}}

{{/* Security of every container. Call with the RDMA resource, or nothing: RDMA registers memory and needs IPC_LOCK. */}}
{{- define "common.containerSecurity" -}}
allowPrivilegeEscalation: false
readOnlyRootFilesystem: true
capabilities:
  drop:
    - ALL
  {{- if . }}
  add:
    - IPC_LOCK
  {{- end }}
{{- end -}}

{{/* Where a container leaves its last word for the operators and scripts/why: its own message, else the end of its log. */}}
{{- define "common.lastWord" -}}
terminationMessagePath: /dev/termination-log
terminationMessagePolicy: FallbackToLogsOnError
{{- end -}}

{{/*
Where a pod goes. Call with a dict: scheduling, and job, whose pods a spread constraint counts unless it says otherwise, or own, the parts
of a constraint that count them.
*/}}
{{- define "common.scheduling" -}}
{{- $own := .own | default (dict "labelSelector" (dict "matchLabels" (dict "training.kubeflow.org/job-name" .job))) -}}
{{- $spread := list -}}
{{- range .scheduling.topologySpreadConstraints -}}
{{- $spread = append $spread (merge (deepCopy .) (deepCopy $own)) -}}
{{- end -}}
{{- with .scheduling.nodeSelector }}
nodeSelector:
  {{- toYaml . | nindent 2 }}
{{- end }}
{{- with .scheduling.affinity }}
affinity:
  {{- toYaml . | nindent 2 }}
{{- end }}
{{- with .scheduling.tolerations }}
tolerations:
  {{- toYaml . | nindent 2 }}
{{- end }}
{{- with $spread }}
topologySpreadConstraints:
  {{- toYaml . | nindent 2 }}
{{- end }}
{{- with .scheduling.priorityClassName }}
priorityClassName: {{ . | quote }}
{{- end }}
{{- with .scheduling.schedulerName }}
schedulerName: {{ . | quote }}
{{- end }}
{{- end -}}

{{/* First lines of every pod's spec. Call with a dict: root, scheduling, job or own. */}}
{{- define "common.podHead" -}}
automountServiceAccountToken: false
enableServiceLinks: false
{{- with .root.Values.global.serviceAccountName }}
serviceAccountName: {{ . | quote }}
{{- end }}
securityContext:
  {{- include "common.podSecurity" .root | nindent 2 }}
{{- with .root.Values.global.image.pullSecrets }}
imagePullSecrets:
  {{- range . }}
  - name: {{ . | quote }}
  {{- end }}
{{- end }}
{{- with include "common.scheduling" (pick . "scheduling" "job" "own") | trim }}
{{ . }}
{{- end }}
{{- end -}}

{{/* Volumes that every pod has: room for what programs write outside the claims. */}}
{{- define "common.scratchVolumes" -}}
- name: tmp
  emptyDir: {}
- name: home
  emptyDir: {}
{{- end -}}

{{/* Where they are mounted. */}}
{{- define "common.scratchMounts" -}}
- name: tmp
  mountPath: /tmp
- name: home
  mountPath: /home/trainer
{{- end -}}

{{/* A claim as a volume. Call with a list: the context, and `data` or `results`. */}}
{{- define "common.claimVolume" -}}
- name: {{ index . 1 }}
  persistentVolumeClaim:
    claimName: {{ include "common.claim" . | quote }}
{{- end -}}

{{/*
Where a claim is mounted. Call with a list: the context, `data` or `results`, and whether read-only.
*/}}
{{- define "common.claimMount" -}}
- name: {{ index . 1 }}
  mountPath: /{{ index . 1 }}
  {{- with (index (index . 0).Values.global.storage (index . 1)).subPath }}
  subPath: {{ . | quote }}
  {{- end }}
  {{- if index . 2 }}
  readOnly: true
  {{- end }}
{{- end -}}

{{/* The image knows uid 1000; ssh and torch look others up by name, so another uid gets a line of its own in /etc/passwd. */}}
{{- define "common.passwd" -}}
{{- with .Values.global.storage -}}
{{- if ne (int64 .uid) 1000 -}}
root:x:0:0:root:/root:/usr/sbin/nologin
trainer:x:{{ int64 .uid }}:{{ int64 .gid }}::/home/trainer:/bin/sh
nobody:x:65534:65534:nobody:/nonexistent:/usr/sbin/nologin
{{- end -}}
{{- end -}}
{{- end -}}

{{/* Where that file is mounted, when there is one. */}}
{{- define "common.passwdMount" -}}
{{- if include "common.passwd" . -}}
- name: trainyard
  mountPath: /etc/passwd
  subPath: passwd
  readOnly: true
{{- end -}}
{{- end -}}

{{/*
Keys of a Secret as files of a projected volume, under secrets/<which>/. A Secret that values do not name may be absent.
Call with a dict: root, which (`kaggle` or `wandb`), keys, and optional, whether one that values name may lack keys or be absent too.
*/}}
{{- define "common.secretSource" -}}
{{- $which := .which -}}
{{- $named := (index .root.Values.global.secrets $which).existingSecret -}}
- secret:
    name: {{ include "common.secret" (list .root $which) | quote }}
    optional: {{ or .optional (not $named) }}
    items:
      {{- range .keys }}
      - key: {{ . }}
        path: secrets/{{ $which }}/{{ . }}
      {{- end }}
{{- end -}}
