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

{{/*
Settings of the launcher's pod, as JSON; settings that break it are refused. It needs neither GPUs nor the workers' network, so it has its own
pod settings; its own scheduling replaces global.scheduling key by key.
*/}}
{{- define "mpijob.launcherPod" -}}
{{- $pod := include "common.podSettings" .Values.launcher | fromJson -}}
{{- $shared := omit .Values.global.scheduling "topologySpreadConstraints" -}}
{{- $_ := set $pod "scheduling" (include "common.placement" (list $shared $pod.scheduling) | fromJson) -}}
{{- $own := list "HOME" "PYTHONUNBUFFERED" "TRAINYARD_JOB" "TRAINYARD_NAMESPACE" "TRAINYARD_RELEASE" "TRAINYARD_WAIT_SECONDS" "TRAINYARD_GRACE_SECONDS" -}}
{{- $mounts := list "/etc/trainyard" "/results" "/tmp" "/home/trainer" "/etc/trainyard-ca" "/etc/passwd" -}}
{{- $volumes := list "trainyard" "results" "tmp" "home" "ca-bundle" -}}
{{- include "common.checkPod" (dict "path" "mpijob.launcher" "pod" $pod "env" $own "mounts" $mounts "volumes" $volumes "containers" (list "launcher")) -}}
{{- mustToJson $pod -}}
{{- end -}}

{{/* The launcher's pod template: it runs mpirun, so it gets settings and results, no GPU, no dataset and no secrets. */}}
{{- define "mpijob.launcher" -}}
{{- $root := .root -}}
{{- $run := .run -}}
{{- $pod := include "mpijob.launcherPod" $root | fromJson -}}
{{- $own := include "common.jobSelector" $run | fromJson -}}
{{- $_ := set $own.labelSelector.matchLabels "training.kubeflow.org/job-role" "launcher" -}}
metadata:
  {{- include "common.podMetadata" (dict "root" $root "pod" $pod) | nindent 2 }}
spec:
  {{- include "common.podHead" (dict "root" $root "pod" $pod "scheduling" $pod.scheduling "own" $own) | nindent 2 }}
  terminationGracePeriodSeconds: {{ int $run.training.gracePeriodSeconds }}
  {{- with include "common.sidecars" $pod | trim }}
  initContainers:
    {{- . | nindent 4 }}
  {{- end }}
  containers:
    - name: launcher
      image: {{ $run.image | quote }}
      imagePullPolicy: {{ $root.Values.global.image.pullPolicy }}
      command:
        {{- toYaml $run.command | nindent 8 }}
      env:
        {{- $wait := dict "TRAINYARD_WAIT_SECONDS" (int $root.Values.launcher.wait | toString) }}
        {{- include "common.trainerEnv" (dict "root" $root "run" $run "own" $wait "env" $pod.env) | nindent 8 }}
      {{- with $pod.envFrom }}
      envFrom:
        {{- toYaml . | nindent 8 }}
      {{- end }}
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
        {{- with $pod.extraVolumeMounts }}
        {{- toYaml . | nindent 8 }}
        {{- end }}
  volumes:
    {{- include "common.trainerConfigVolume" (dict "root" $root "run" $run) | nindent 4 }}
    {{- include "common.claimVolume" (list $root "results") | nindent 4 }}
    {{- include "common.scratchVolumes" $root | nindent 4 }}
    {{- with $pod.extraVolumes }}
    {{- toYaml . | nindent 4 }}
    {{- end }}
{{- end -}}

{{/* Refuse what ssh between the pods cannot do: sshd looks users up by name, and as root it needs more capabilities than the pods have. */}}
{{- define "mpijob.check" -}}
{{- if not (include "common.uid" .) -}}
{{- fail "\n\nglobal.storage.uid is platform, and an MPIJob's ssh looks its user up by number: set a uid that the namespace may use. On OpenShift, kubectl get namespace NAME -o jsonpath='{.metadata.annotations.openshift\\.io/sa\\.scc\\.uid-range}' prints the first of them, such as 1000730000; global.storage.gid is the same number there. Or train as a PyTorchJob.\n" -}}
{{- end -}}
{{- if dig "unrestricted" "runAsRoot" false (include "common.overridden" (list .Values.global .Values) | fromJson) -}}
{{- fail "\n\nglobal.training.unrestricted.runAsRoot is for PyTorchJobs and TrainJobs: an MPIJob's sshd as root would need capabilities that its pods do not get.\n" -}}
{{- end -}}
{{- end -}}

{{/* The MPIJob. */}}
{{- define "mpijob.job" -}}
{{- include "mpijob.check" . -}}
{{- $run := include "mpijob.run" . | fromJson -}}
apiVersion: kubeflow.org/v2beta1
kind: MPIJob
metadata:
  name: {{ $run.name }}
  labels:
    {{- include "common.jobLabels" . | nindent 4 }}
  {{- with $run.training.jobAnnotations }}
  annotations:
    {{- toYaml . | nindent 4 }}
  {{- end }}
spec:
  slotsPerWorker: {{ int $run.processes }}
  sshAuthMountPath: /home/trainer/.ssh
  launcherCreationPolicy: WaitForWorkersReady
  mpiImplementation: OpenMPI
  runPolicy:
    {{- include "common.runPolicy" (dict "root" . "operator" "kubeflow.org/mpi-operator" "clean" "Running" "least" $run.nodes) | nindent 4 }}
  mpiReplicaSpecs:
    Launcher:
      replicas: 1
      restartPolicy: Never
      template:
        {{- include "mpijob.launcher" (dict "root" . "run" $run) | nindent 8 }}
    Worker:
      replicas: {{ int $run.nodes }}
      # The operator keeps a failed pod and never replaces it, so a worker restarts inside its pod.
      restartPolicy: OnFailure
      template:
        {{- $worker := list "python" "-m" "trainers.mpi" "worker" }}
        {{- include "common.trainerPod" (dict "root" . "run" $run "container" "worker" "command" $worker "ports" (list (dict "name" "ssh" "containerPort" 2222)) "extra" (include "mpijob.sshd" .)) | nindent 8 }}
{{- end -}}

{{/* Its run's settings. */}}
{{- define "mpijob.settings" -}}
{{- include "common.runConfig" (dict "root" . "run" (include "mpijob.run" . | fromJson)) -}}
{{- end -}}
