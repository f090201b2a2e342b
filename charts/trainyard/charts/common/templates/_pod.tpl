{{/*
The settings that every kind of pod has under the same names, as JSON; each is empty if the user does not set it. Call with the part of the
values that holds them: global.training, mpijob.launcher, dataset or filebrowser.
*/}}
{{- define "common.podSettings" -}}
{{- $settings := dict "podLabels" dict "podAnnotations" dict "scheduling" dict "securityContext" dict "runtimeClassName" "" -}}
{{- range list "env" "envFrom" "extraVolumes" "extraVolumeMounts" "extraContainers" "extraInitContainers" "resourceClaims" -}}
{{- $_ := set $settings . list -}}
{{- end -}}
{{- range $key, $value := . -}}
{{- if and (hasKey $settings $key) (not (kindIs "invalid" $value)) -}}
{{- $_ := set $settings $key $value -}}
{{- end -}}
{{- end -}}
{{- $_ := set $settings "unrestricted" (.unrestricted | default dict) -}}
{{- mustToJson $settings -}}
{{- end -}}

{{/* Labels and annotations of a pod. Call with a dict: root, pod (its settings), and annotations where a part adds to the user's. */}}
{{- define "common.podMetadata" -}}
labels:
  {{- include "common.podLabels" .root | nindent 2 }}
  {{- with .pod.podLabels }}
  {{- toYaml . | nindent 2 }}
  {{- end }}
{{- with .annotations | default .pod.podAnnotations }}
annotations:
  {{- toYaml . | nindent 2 }}
{{- end }}
{{- end -}}

{{/*
User and security of a pod: passes the `restricted` Pod Security Standard, unless unrestricted.runAsRoot is set. With `uid: platform` the
cluster chooses the user and the group of the volumes, as OpenShift does. Call with a dict: root, pod.
*/}}
{{- define "common.podSecurity" -}}
{{- $storage := .root.Values.global.storage -}}
{{- $security := dict "runAsNonRoot" true "fsGroupChangePolicy" $storage.fsGroupChangePolicy "seccompProfile" (dict "type" "RuntimeDefault") -}}
{{- $uid := include "common.uid" .root -}}
{{- $gid := include "common.gid" .root -}}
{{- if dig "runAsRoot" false .pod.unrestricted -}}
{{- $_ := mergeOverwrite $security (dict "runAsUser" 0 "runAsGroup" 0) -}}
{{- $_ := set $security "runAsNonRoot" false -}}
{{- else if $uid -}}
{{- $_ := set $security "runAsUser" (int64 $uid) -}}
{{- if $gid -}}{{- $_ := set $security "runAsGroup" (int64 $gid) -}}{{- end -}}
{{- end -}}
{{- if $gid -}}{{- $_ := set $security "fsGroup" (int64 $gid) -}}{{- end -}}
{{- with $storage.supplementalGroups -}}{{- $_ := set $security "supplementalGroups" . -}}{{- end -}}
{{- toYaml (mergeOverwrite $security .pod.securityContext) -}}
{{- end -}}

{{/* Number of the pods' user; nothing if the platform chooses it. */}}
{{- define "common.uid" -}}
{{- if ne (toString .Values.global.storage.uid) "platform" -}}{{- int64 .Values.global.storage.uid -}}{{- end -}}
{{- end -}}

{{/* Number of the pods' group, which owns their volumes; nothing if the platform chooses it, as it does if it chooses the user. */}}
{{- define "common.gid" -}}
{{- $gid := .Values.global.storage.gid -}}
{{- if eq (toString $gid) "" -}}
{{- if include "common.uid" . -}}1000{{- end -}}
{{- else if ne (toString $gid) "platform" -}}
{{- int64 $gid -}}
{{- end -}}
{{- end -}}

{{/* Security of every container. Call with a non-empty value if it locks memory, as RDMA does; it then gets IPC_LOCK. */}}
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

{{/* Where a container leaves its termination message for the operators and scripts/why: its own message, else the end of its log. */}}
{{- define "common.lastWord" -}}
terminationMessagePath: /dev/termination-log
terminationMessagePolicy: FallbackToLogsOnError
{{- end -}}

{{/*
Placement of a pod: each of its own keys replaces the shared one, so that a pod can run on other nodes than the rest. Call with a list: the
shared placement, and the pod's own. As JSON.
*/}}
{{- define "common.placement" -}}
{{- $placement := deepCopy (first .) -}}
{{- range $key, $value := last . -}}
{{- if not (kindIs "invalid" $value) -}}{{- $_ := set $placement $key $value -}}{{- end -}}
{{- end -}}
{{- mustToJson $placement -}}
{{- end -}}

{{/*
Where a pod goes. Call with a dict: scheduling, and own, the parts of a spread constraint that count the pod's like unless it says otherwise.
*/}}
{{- define "common.scheduling" -}}
{{- $own := .own -}}
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

{{/* First lines of every pod's spec. Call with a dict: root, pod (its settings), scheduling, own. */}}
{{- define "common.podHead" -}}
automountServiceAccountToken: false
enableServiceLinks: false
{{- with .root.Values.global.serviceAccountName }}
serviceAccountName: {{ . | quote }}
{{- end }}
securityContext:
  {{- include "common.podSecurity" (pick . "root" "pod") | nindent 2 }}
{{- if dig "hostNetwork" false .pod.unrestricted }}
hostNetwork: true
dnsPolicy: ClusterFirstWithHostNet
{{- end }}
{{- with .pod.runtimeClassName }}
runtimeClassName: {{ . | quote }}
{{- end }}
{{- with .pod.resourceClaims }}
resourceClaims:
  {{- toYaml . | nindent 2 }}
{{- end }}
{{- with .root.Values.global.image.pullSecrets }}
imagePullSecrets:
  {{- range . }}
  - name: {{ . | quote }}
  {{- end }}
{{- end }}
{{- with include "common.scheduling" (pick . "scheduling" "own") | trim }}
{{ . }}
{{- end }}
{{- end -}}

{{/* Pods of a part, as a spread constraint counts them, as JSON. */}}
{{- define "common.partSelector" -}}
{{- $labels := dict "app.kubernetes.io/name" .Chart.Name "app.kubernetes.io/instance" .Release.Name -}}
{{- mustToJson (dict "labelSelector" (dict "matchLabels" $labels)) -}}
{{- end -}}

{{/*
The user's additional containers as native sidecars (init containers that keep running), which are stopped after the main container: an
ordinary second container would keep a finished pod alive. Call with the pod's settings.
*/}}
{{- define "common.sidecars" -}}
{{- range .extraContainers }}
- {{ merge (dict "restartPolicy" "Always") . | toYaml | nindent 2 | trim }}
{{- end }}
{{- end -}}

{{/*
Environment of a container: the chart's own, without names that the user sets too, then the user's. Call with a dict: root, own (from names to
values; a value that is not a text is taken as in a container's spec) and env, the user's list.
*/}}
{{- define "common.env" -}}
{{- $own := merge (include "common.baseEnv" .root | fromJson) .own -}}
{{- $taken := dict -}}
{{- range .env -}}{{- $_ := set $taken .name true -}}{{- end -}}
{{- $env := list -}}
{{- range $name, $value := $own -}}
{{- if not (hasKey $taken $name) -}}
{{- $env = append $env (merge (dict "name" $name) (ternary $value (dict "value" $value) (kindIs "map" $value))) -}}
{{- end -}}
{{- end -}}
{{- toYaml (concat $env .env) -}}
{{- end -}}

{{/* Volumes of every pod: space for files outside the claims, and the certificates of global.caBundle. */}}
{{- define "common.scratchVolumes" -}}
{{- range list "tmp" "home" }}
- name: {{ . }}
  emptyDir:
    sizeLimit: {{ $.Values.global.storage.scratchSize | quote }}
{{- end }}
{{- with .Values.global.caBundle }}
{{- if .configMap }}
- name: ca-bundle
  configMap:
    name: {{ .configMap | quote }}
    items:
      - key: {{ .key | quote }}
        path: ca-bundle.crt
{{- end }}
{{- end }}
{{- end -}}

{{/* Where they are mounted. */}}
{{- define "common.scratchMounts" -}}
- name: tmp
  mountPath: /tmp
- name: home
  mountPath: /home/trainer
{{- if .Values.global.caBundle.configMap }}
- name: ca-bundle
  mountPath: /etc/trainyard-ca
  readOnly: true
{{- end }}
{{- end -}}

{{/*
Environment of every container, as JSON: the home; the variables by which clients in Python, Go and from Amazon find the certificates of
global.caBundle; and a name for the platform's user, which has no entry in /etc/passwd.
*/}}
{{- define "common.baseEnv" -}}
{{- $env := dict "HOME" "/home/trainer" "PYTHONUNBUFFERED" "1" -}}
{{- if not (include "common.uid" .) -}}{{- $_ := set $env "USER" "trainer" -}}{{- end -}}
{{- if .Values.global.caBundle.configMap -}}
{{- range list "SSL_CERT_FILE" "REQUESTS_CA_BUNDLE" "AWS_CA_BUNDLE" -}}
{{- $_ := set $env . "/etc/trainyard-ca/ca-bundle.crt" -}}
{{- end -}}
{{- end -}}
{{- mustToJson $env -}}
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

{{/* The image has a user with uid 1000; ssh and torch look users up by name, so another uid gets its own line in /etc/passwd. */}}
{{- define "common.passwd" -}}
{{- $uid := include "common.uid" . -}}
{{- if not (has $uid (list "" "1000")) -}}
root:x:0:0:root:/root:/usr/sbin/nologin
trainer:x:{{ $uid }}:{{ include "common.gid" . | default "0" }}::/home/trainer:/bin/sh
nobody:x:65534:65534:nobody:/nonexistent:/usr/sbin/nologin
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
