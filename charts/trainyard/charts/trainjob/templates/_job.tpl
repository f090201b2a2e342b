{{/*
What differs from other kinds of jobs, for common.run: the command of its containers, and what else makes it another job. Fields that the API
makes immutable in a TrainJob are part of that: a change is a new job instead of a refused upgrade.
*/}}
{{- define "trainjob.job" -}}
{{- $command := list "python" "-m" "trainers.launch" "-m" "trainers.ddp" "--config" "/etc/trainyard/config.json" -}}
{{- $fixed := pick .Values.runPolicy "activeDeadlineSeconds" "managedBy" -}}
{{- $_ := set . "Job" (dict "command" $command "identity" (printf "trainjob %s" (mustToJson $fixed))) -}}
{{- end -}}

{{/*
A TrainingRuntime and its run's settings, as items of a list. Call with a dict: root, run, and config, what the settings are.
*/}}
{{- define "trainjob.runtime" -}}
{{- $root := .root -}}
{{- $run := .run -}}
{{- $training := deepCopy $run.training -}}
{{- /* The SDK cannot read limits without a GPU or CPU: one TrainJob with such a container makes its list_jobs() fail for the whole namespace.
The added limit is one that no node reaches. */ -}}
{{- $known := and $training.gpusPerNode (or (eq $training.gpuResource "nvidia.com/gpu") (hasPrefix "nvidia.com/mig-" $training.gpuResource)) -}}
{{- $limited := or $training.resources.limits (and $training.gpusPerNode $training.gpuResource) -}}
{{- if and $limited (not $known) (not (hasKey $training.resources.limits "cpu")) -}}
{{- if not (hasKey $training.resources.requests "cpu") -}}
{{- $_ := set $training.resources.requests "cpu" (toString (int ($training.gpusPerNode | default $training.processesPerNode))) -}}
{{- end -}}
{{- $_ := set $training.resources.limits "cpu" "1000" -}}
{{- end -}}
{{- $gang := $root.Values.global.scheduling.gang -}}
{{- $labels := dict "app.kubernetes.io/name" $root.Chart.Name "app.kubernetes.io/instance" $root.Release.Name -}}
{{- $own := dict "labelSelector" (dict "matchLabels" $labels) "matchLabelKeys" (list "jobset.sigs.k8s.io/jobset-name") -}}
{{- $pod := dict "root" $root "run" (merge (dict "training" $training) (omit $run "training")) "command" $run.command "own" $own -}}
{{- $_ := merge $pod (dict "container" "node" "restartPolicy" "Never" "extra" "workingDir: /home/trainer") -}}
-
  apiVersion: trainer.kubeflow.org/v1alpha1
  kind: TrainingRuntime
  metadata:
    name: {{ $run.name }}
    labels:
      {{- include "common.labels" $root | nindent 6 }}
      # Without it the SDK refuses the runtime, and with it all TrainJobs of the namespace
      trainer.kubeflow.org/framework: torch
  spec:
    mlPolicy:
      numNodes: {{ $run.nodes }}
      torch: {}
    {{- if $gang.enabled }}
    podGroupPolicy:
      {{- if eq (toString $training.scheduling.schedulerName) "volcano" }}
      volcano: {}
      {{- else }}
      coscheduling:
        scheduleTimeoutSeconds: {{ int ($gang.timeoutSeconds | default 60) }}
      {{- end }}
    {{- end }}
    template:
      metadata:
        labels:
          {{- include "common.labels" (list $root dict "pod") | nindent 10 }}
        {{- if and $gang.enabled $gang.queue }}
        annotations:
          scheduling.volcano.sh/queue-name: {{ $gang.queue | quote }}
        {{- end }}
      spec:
        # A pod has a name once its training container runs, as the check of the peers takes it
        network:
          publishNotReadyAddresses: false
        {{- with $root.Values.runPolicy }}
        {{- if hasKey . "ttlSecondsAfterFinished" }}
        ttlSecondsAfterFinished: {{ int .ttlSecondsAfterFinished }}
        {{- end }}
        {{- /* Pods whose exit code is 128 or above are recreated, all of them together, since a process group cannot admit a single restarted
        process; codes below are permanent (src/trainyard/core/exits.py). A drained node counts as a restart, whatever the code. One backoffLimit of 0
        makes any failure the Job's own, and the JobSet decides by its reason. */}}
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
                  {{- include "common.trainerPod" $pod | nindent 18 }}
-
  apiVersion: v1
  kind: ConfigMap
  metadata:
    name: {{ $run.name }}-run
    labels:
      {{- include "common.labels" $root | nindent 6 }}
  data:
    config.json: |
      {{- mustToPrettyJson .config | nindent 6 }}
    {{- with $root.User.passwd }}
    passwd: |
      {{- . | nindent 6 }}
    {{- end }}
{{- end -}}
