{{/*
All that this TrainJob runs with, as JSON. Fields that the API makes immutable in a TrainJob are part of its identity: a change is a new job
instead of a refused upgrade.
*/}}
{{- define "trainjob.run" -}}
{{- $command := list "python" "-m" "trainers.launch" "-m" "trainers.ddp" "--config" "/etc/trainyard/config.json" -}}
{{- $peers := (include "common.training" . | fromJson).peers -}}
{{- if and $peers.check (eq (int $peers.port) 29500) -}}
{{- fail "\n\nglobal.training.peers.port is 29500, where the process group of a TrainJob meets: choose another.\n" -}}
{{- end -}}
{{- $fixed := pick .Values.runPolicy "activeDeadlineSeconds" "managedBy" -}}
{{- include "common.run" (dict "root" . "command" $command "identity" (printf "trainjob %s" (mustToJson $fixed))) -}}
{{- end -}}

{{/*
Settings of what runs through the release's own TrainingRuntime, as JSON: many TrainJobs, each with a run directory of its name. A TrainJob
that names no command, or a function that calls the trainers, trains with the release's settings.
*/}}
{{- define "trainjob.shared" -}}
{{- $run := include "trainjob.run" . | fromJson -}}
{{- $dir := "/results/runs/$(TRAINYARD_JOB)" -}}
{{- $_ := set $run "name" .Release.Name -}}
{{- $_ := set $run "shared" true -}}
{{- $_ := set $run "command" (concat $run.command (list "--set" (printf "run.dir=%s" $dir))) -}}
{{- $_ := set $run.config "run" (merge (dict "dir" $dir) $run.config.run) -}}
{{- $_ := set $run "keyless" (not .Values.runtime.wandb) -}}
{{- $_ := set $run "ungated" (not .Values.runtime.waitForDataset) -}}
{{- $_ := set $run.training "env" (concat $run.training.env (include "trainjob.torchrun" $run | fromYamlArray)) -}}
{{- mustToJson $run -}}
{{- end -}}

{{/*
torchrun's settings for a TrainJob without a `trainer`: Trainer gives such a job none, and each node would train alone. Those that Trainer
gives take precedence.
*/}}
{{- define "trainjob.torchrun" -}}
- name: PET_NNODES
  value: {{ int .nodes | quote }}
- name: PET_NPROC_PER_NODE
  value: {{ int .processes | quote }}
- name: PET_NODE_RANK
  valueFrom:
    fieldRef:
      fieldPath: metadata.annotations['batch.kubernetes.io/job-completion-index']
- name: PET_MASTER_ADDR
  value: $(TRAINYARD_JOB)-node-0-0.$(TRAINYARD_JOB)
- name: PET_MASTER_PORT
  value: "29500"
{{- end -}}

{{/*
Resources of the training container. The SDK cannot read limits without a GPU or CPU: one TrainJob with such a container makes its list_jobs()
fail for the whole namespace. The added limit is one that no node reaches.
*/}}
{{- define "trainjob.training" -}}
{{- $training := deepCopy . -}}
{{- $known := and .gpusPerNode (or (eq .gpuResource "nvidia.com/gpu") (hasPrefix "nvidia.com/mig-" .gpuResource)) -}}
{{- $limited := or .resources.limits (include "common.gpus" . | fromJson) -}}
{{- if and $limited (not $known) (not (hasKey .resources.limits "cpu")) -}}
{{- if not (hasKey .resources.requests "cpu") -}}
{{- $_ := set $training.resources.requests "cpu" (toString (int (.gpusPerNode | default .processesPerNode))) -}}
{{- end -}}
{{- $_ := set $training.resources.limits "cpu" "1000" -}}
{{- end -}}
{{- mustToJson $training -}}
{{- end -}}

{{/*
How pods start together, if a gang scheduler is enabled: Volcano by its name, otherwise coscheduling. Call with a dict: root, scheduler.
*/}}
{{- define "trainjob.gang" -}}
{{- $scheduling := .root.Values.global.scheduling -}}
{{- if $scheduling.gang.enabled -}}
{{- if eq (toString $.scheduler) "volcano" -}}
volcano: {}
{{- else -}}
coscheduling:
  scheduleTimeoutSeconds: {{ int ($scheduling.gang.timeoutSeconds | default 60) }}
{{- end -}}
{{- end -}}
{{- end -}}

{{/*
A TrainingRuntime. Call with a dict: root, run, name. Pods whose exit code is 128 or above are recreated, all of them together, since a
process group cannot admit a single restarted process; codes below are permanent (trainers/exits.py). A drained node counts as a restart,
whatever the code. One backoffLimit of 0 makes any failure the Job's own, and the JobSet decides by its reason.
*/}}
{{- define "trainjob.runtime" -}}
{{- $root := .root -}}
{{- $training := include "trainjob.training" .run.training | fromJson -}}
{{- $run := merge (dict "training" $training) (omit .run "training") -}}
{{- $pods := dict "app.kubernetes.io/name" $root.Chart.Name "app.kubernetes.io/instance" $root.Release.Name -}}
{{- $own := dict "labelSelector" (dict "matchLabels" $pods) "matchLabelKeys" (list "jobset.sigs.k8s.io/jobset-name") -}}
apiVersion: trainer.kubeflow.org/v1alpha1
kind: TrainingRuntime
metadata:
  name: {{ .name }}
  labels:
    {{- include "common.labels" $root | nindent 4 }}
    # Without it the SDK refuses the runtime, and with it all TrainJobs of the namespace
    trainer.kubeflow.org/framework: torch
spec:
  mlPolicy:
    numNodes: {{ int $run.nodes }}
    torch: {}
  {{- with include "trainjob.gang" (dict "root" $root "scheduler" $run.scheduling.schedulerName) }}
  podGroupPolicy:
    {{- . | nindent 4 }}
  {{- end }}
  template:
    metadata:
      labels:
        {{- include "common.ownLabels" $root | nindent 8 }}
      {{- with $root.Values.global.scheduling.gang }}
      {{- if and .enabled .queue }}
      annotations:
        scheduling.volcano.sh/queue-name: {{ .queue | quote }}
      {{- end }}
      {{- end }}
    spec:
      # A pod has a name once its training container runs, as the check of the peers takes it
      network:
        publishNotReadyAddresses: false
      {{- with $root.Values.runPolicy }}
      {{- if hasKey . "ttlSecondsAfterFinished" }}
      ttlSecondsAfterFinished: {{ int .ttlSecondsAfterFinished }}
      {{- end }}
      failurePolicy:
        maxRestarts: {{ int .backoffLimit }}
        rules:
          - name: permanent
            action: FailJobSet
            onJobFailureReasons:
              - PodFailurePolicy
      {{- end }}
      replicatedJobs:
        - name: node
          replicas: 1
          template:
            metadata:
              labels:
                trainer.kubeflow.org/trainjob-ancestor-step: trainer
            spec:
              backoffLimit: 0
              podFailurePolicy:
                rules:
                  - action: Count
                    onPodConditions:
                      - type: DisruptionTarget
                        status: "True"
                  - action: FailJob
                    onExitCodes:
                      operator: In
                      values: {{ untilStep 1 128 1 | toJson }}
              template:
                {{- $pod := dict "root" $root "run" $run "container" "node" "command" $run.command "restartPolicy" "Never" "own" $own }}
                {{- include "common.trainerPod" (merge (dict "extra" "workingDir: /home/trainer") $pod) | nindent 16 }}
{{- end -}}

{{/*
One list, in this order. Helm sorts by kind and would create the TrainJob first, and Trainer and Kueue refuse one whose runtime they have not
seen yet: so the job's runtime comes first, and everything else before the TrainJob.
*/}}
{{- define "trainjob.objects" -}}
{{- $trains := has "trainjob" .Facts.trains -}}
{{- $shared := include "trainjob.shared" . | fromJson -}}
{{- $run := include "trainjob.run" . | fromJson -}}
apiVersion: v1
kind: List
items:
  {{- if $trains }}
  # The TrainJob's own runtime, named for what it runs: an upgrade cannot change what a TrainJob starts with
  - {{- include "trainjob.runtime" (dict "root" . "run" $run "name" $run.name) | nindent 4 }}
  - {{- include "common.runConfig" (dict "root" . "run" $run) | nindent 4 }}
  {{- end }}
  - {{- include "trainjob.runtime" (dict "root" . "run" $shared "name" .Release.Name) | nindent 4 }}
  {{- $_ := set $shared.config "run" (omit $shared.config.run "dir") }}
  - {{- include "common.runConfig" (dict "root" . "run" $shared) | nindent 4 }}
  {{- if $trains }}
  - apiVersion: trainer.kubeflow.org/v1alpha1
    kind: TrainJob
    metadata:
      name: {{ $run.name }}
      labels:
        {{- include "common.jobLabels" . | nindent 8 }}
      {{- with $run.training.jobAnnotations }}
      annotations:
        {{- toYaml . | nindent 8 }}
      {{- end }}
    spec:
      runtimeRef:
        apiGroup: trainer.kubeflow.org
        kind: TrainingRuntime
        name: {{ $run.name }}
      trainer:
        numNodes: {{ int $run.nodes }}
        numProcPerNode: {{ int $run.processes }}
      {{- with pick .Values.runPolicy "activeDeadlineSeconds" "suspend" "managedBy" }}
      {{- toYaml . | nindent 6 }}
      {{- end }}
  {{- end }}
{{- end -}}
