{{/* All that this MPIJob runs with, as JSON. */}}
{{- define "mpijob.run" -}}
{{- $command := list "python" "-m" "trainers.mpi" "launch" "--np" "<np>" "--" "python" "-m" "trainers.hvd" "--config" "/etc/trainyard/config.json" -}}
{{- include "common.run" (dict "root" . "command" $command "identity" "mpi") -}}
{{- end -}}

{{/* What a worker has beside a trainer's container: sshd, on the port `ssh`, by which mpirun starts the ranks. */}}
{{- define "mpijob.sshd" -}}
readinessProbe:
  tcpSocket:
    port: ssh
  periodSeconds: 3
{{- end -}}

{{/* The launcher's pod template: it runs mpirun, so it gets settings and results, no GPU and no dataset. */}}
{{- define "mpijob.launcher" -}}
{{- $root := .root -}}
{{- $run := .run -}}
metadata:
  labels:
    {{- include "common.podLabels" $root | nindent 4 }}
    {{- with $run.training.podLabels }}
    {{- toYaml . | nindent 4 }}
    {{- end }}
  {{- with $run.training.podAnnotations }}
  annotations:
    {{- toYaml . | nindent 4 }}
  {{- end }}
spec:
  {{- include "common.podHead" (dict "root" $root "scheduling" (omit $root.Values.global.scheduling "topologySpreadConstraints") "job" $run.name) | nindent 2 }}
  terminationGracePeriodSeconds: {{ int $run.training.gracePeriodSeconds }}
  containers:
    - name: launcher
      image: {{ $run.image | quote }}
      imagePullPolicy: {{ $root.Values.global.image.pullPolicy }}
      command:
        {{- toYaml $run.command | nindent 8 }}
      env:
        {{- include "common.trainerEnv" $run | nindent 8 }}
        - name: TRAINYARD_WAIT_SECONDS
          value: {{ int $root.Values.launcher.wait | quote }}
      resources:
        {{- include "common.quantities" $root.Values.launcher.resources | nindent 8 }}
      {{- include "common.lastWord" . | nindent 6 }}
      securityContext:
        {{- include "common.containerSecurity" "" | nindent 8 }}
      volumeMounts:
        - name: trainyard
          mountPath: /etc/trainyard
          readOnly: true
        {{- include "common.claimMount" (list $root "results" false) | nindent 8 }}
        {{- include "common.scratchMounts" $root | nindent 8 }}
        {{- with include "common.passwdMount" $root }}
        {{- . | nindent 8 }}
        {{- end }}
  volumes:
    {{- include "common.trainerConfigVolume" . | nindent 4 }}
    {{- include "common.claimVolume" (list $root "results") | nindent 4 }}
    {{- include "common.scratchVolumes" $root | nindent 4 }}
{{- end -}}
