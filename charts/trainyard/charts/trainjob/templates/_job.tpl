{{/*
A TrainingRuntime and its run's settings, as items of a list. Call with a dict: root; run; config, what the settings are; nodes, how many pods train
and wait; and spares, how many of them wait, if any.
*/}}
{{- define "trainjob.runtime" -}}
{{- $root := .root -}}
{{- $run := .run -}}
{{- $spares := int .spares -}}
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
{{- $run = merge (dict "training" $training) (omit $run "training") -}}
{{- $mpi := $root.Job.mpi -}}
{{- $pod := dict "root" $root "run" $run "command" $run.command "own" $own "container" "node" "restartPolicy" "Never" "extra" "workingDir: /home/trainer" -}}
{{- $jobs := list (dict "name" "node" "main" true "pod" $pod) -}}
{{- if $mpi -}}
{{- $_ := set $pod "ssh" true -}}
{{- $_ := set $pod "command" (list "python" "-m" "trainers.mpi" "worker") -}}
{{- $settings := deepCopy $root.Facts.launcher -}}
{{- if and $settings.resources.limits (not (hasKey $settings.resources.limits "cpu")) -}}
{{- $_ := set $settings.resources "requests" (merge (dict) ($settings.resources.requests | default dict) (dict "cpu" "100m")) -}}
{{- $_ := set $settings.resources.limits "cpu" "1000" -}}
{{- end -}}
{{- $launcher := dict "root" $root "run" $run "launcher" $settings "own" $own "container" "node" "restartPolicy" "Never" -}}
{{- /* Pods that start as a gang cannot wait for each other; the launcher itself waits for the workers' ssh */ -}}
{{- $after := ternary "" "node" (not (empty $gang.enabled)) -}}
{{- $jobs = list (dict "name" "node" "pod" $pod "pods" $run.nodes) (dict "name" "launcher" "main" true "pod" $launcher "after" $after) -}}
{{- end -}}
-
  apiVersion: trainer.kubeflow.org/v1alpha1
  kind: TrainingRuntime
  metadata:
    name: {{ $run.name }}
    labels:
      {{- include "common.labels" $root | nindent 6 }}
      # Without it the SDK refuses the runtime, and with it all TrainJobs of the namespace
      trainer.kubeflow.org/framework: {{ ternary "horovod" "torch" $mpi }}
    {{- include "common.annotations" (list $root 4) }}
  spec:
    mlPolicy:
      {{- if $mpi }}
      # Launchers; the job `node` has the workers' number, which a TrainJob's numNodes replaces
      numNodes: 1
      mpi:
        numProcPerNode: {{ $run.processes }}
        mpiImplementation: OpenMPI
        sshAuthMountPath: /home/trainer/.ssh
        runLauncherAsNode: false
      {{- else }}
      numNodes: {{ .nodes }}
      torch: {}
      {{- end }}
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
        {{- if $mpi }}
        # The workers serve ssh until they are told to end
        successPolicy:
          operator: All
          targetReplicatedJobs:
            - launcher
        {{- end }}
        replicatedJobs:
          {{- range $jobs }}
          - name: {{ .name }}
            replicas: 1
            {{- with .after }}
            dependsOn:
              - name: {{ . }}
                status: Ready
            {{- end }}
            template:
              {{- if .main }}
              metadata:
                labels:
                  trainer.kubeflow.org/trainjob-ancestor-step: trainer
              {{- end }}
              spec:
                backoffLimit: 0
                {{- with .pods }}
                parallelism: {{ . }}
                completions: {{ . }}
                {{- end }}
                {{- if hasKey $root.Values.runPolicy "ttlSecondsAfterFinished" }}
                # Of the Job, not of the JobSet: Trainer up to 2.3 starts a failed TrainJob again when its JobSet is gone
                ttlSecondsAfterFinished: {{ int (get $root.Values.runPolicy "ttlSecondsAfterFinished") }}
                {{- end }}
                podFailurePolicy:
                  rules:
                    {{- if $spares }}
                    # A spare pod takes its place: it alone is replaced. 201 is a failed GPU
                    - action: Ignore
                      onExitCodes:
                        operator: In
                        values: [143, 201]
                    {{- end }}
                    - action: {{ ternary "Ignore" "Count" (gt $spares 0) }}
                      onPodConditions:
                        - type: DisruptionTarget
                          status: "True"
                    - action: FailJob
                      onExitCodes:
                        operator: In
                        values: {{ untilStep 1 128 1 | toJson }}
                template:
                  {{- include (ternary "common.launcherPod" "common.trainerPod" (eq .name "launcher")) .pod | nindent 18 }}
          {{- end }}
-
  apiVersion: v1
  kind: ConfigMap
  metadata:
    name: {{ $run.name }}-run
    labels:
      {{- include "common.labels" $root | nindent 6 }}
    {{- include "common.annotations" (list $root 4) }}
  data:
    config.json: |
      {{- mustToPrettyJson .config | nindent 6 }}
    {{- with $root.User.passwd }}
    passwd: |
      {{- . | nindent 6 }}
    {{- end }}
{{- end -}}
