{{/*
The pod template of a training pod, the same for every kind of job. Call with a dict: root; run (.Run of the part's context, or a variant of
it); container, its name; command; restartPolicy if the job needs one in the pod; own, what a spread constraint counts if the operator's labels
differ; ssh, whether the pod serves it, by which mpirun starts the ranks; and extra, more YAML of the container. A run that many jobs share
(`shared`) has a small request for its preflight: with GPUs, a job that needs fewer would still get as many. Its pods may do without the key of
Weights & Biases (`keyless`), without waiting for the dataset (`ungated`) and without the data claim (`dataless`).
*/}}
{{- define "common.trainerPod" -}}
{{- $root := .root -}}
{{- $global := $root.Values.global -}}
{{- $run := .run -}}
{{- $training := $run.training -}}
{{- $own := .own | default (dict "labelSelector" (dict "matchLabels" (dict "training.kubeflow.org/job-name" $run.name))) -}}
{{- /* a part of a GPU that a scheduler gives by annotation is one container's: the preflight has none to check */ -}}
{{- $gpus := ternary 0 (int $training.gpusPerNode) (or (not (empty $run.shared)) (eq (get $training "gpusBy" | toString) "annotations")) -}}
{{- $shm := include "common.amount" $training.shmSize | float64 | int64 -}}
{{- $awaited := and (has "wandb" $root.Facts.awaited) (not $run.keyless) -}}
{{- $mlflow := and (not $run.keyless) $root.Secrets.mlflow.required -}}
{{- $env := include "common.env" (dict "root" $root "own" $run.env "env" (concat $training.env $training.rdma.env)) -}}
{{- $claims := dict "data" $global.storage.data.readOnly "results" false -}}
{{- if $run.dataless -}}{{- $claims = omit $claims "data" -}}{{- end -}}
{{- $mounts := include "common.mounts" (dict "root" $root "claims" $claims "shm" true "passwd" true) -}}

{{- /* Its resources: the user's, its GPUs and its RDMA devices, which Kubernetes requires to be equal in requests and limits. If the user names
no CPU or memory at all, requests that grow with the processes. The preflight reuses them, without what only training needs: so the pod
requests no more, and is Guaranteed, or within a LimitRange's ratio, if the training container is. */ -}}
{{- $processes := int ($training.gpusPerNode | default $training.processesPerNode) -}}
{{- $memory := printf "%dGi" (add (div (add (int64 $shm) 1073741823) 1073741824) (mul 4 $processes)) -}}
{{- $least := dict -}}
{{- range $name, $amount := dict "cpu" (toString $processes) "memory" $memory -}}
{{- if not (or (hasKey $training.resources.requests $name) (hasKey $training.resources.limits $name)) -}}
{{- $_ := set $least $name $amount -}}
{{- end -}}
{{- end -}}
{{- $devices := dict -}}
{{- if and $training.gpusPerNode $training.gpuResource -}}{{- $_ := set $devices $training.gpuResource (int $training.gpusPerNode) -}}{{- end -}}
{{- with $training.rdma.resource -}}{{- $_ := set $devices . (int $training.rdma.count) -}}{{- end -}}
{{- $resources := dict -}}
{{- with $training.resourceClaims -}}
{{- $claims := list -}}
{{- range . -}}{{- $claims = append $claims (pick . "name") -}}{{- end -}}
{{- $_ := set $resources "claims" $claims -}}
{{- end -}}
{{- $needed := pick $resources "claims" -}}
{{- range $kind := list "requests" "limits" -}}
{{- with merge (dict) $devices (get $training.resources $kind) (ternary $least (dict) (eq $kind "requests")) -}}
{{- $_ := set $resources $kind . -}}
{{- with pick . "cpu" "memory" "ephemeral-storage" $training.gpuResource -}}{{- $_ := set $needed $kind . -}}{{- end -}}
{{- end -}}
{{- end -}}
{{- if $run.shared -}}
{{- $needed = dict "requests" (dict "cpu" "100m" "memory" "128Mi") "limits" (dict "cpu" "1" "memory" "2Gi") -}}
{{- end -}}

{{ include "common.pod" (dict "root" $root "pod" $training "annotations" $run.podAnnotations "own" $own) }}
  {{- with .restartPolicy }}
  restartPolicy: {{ . }}
  {{- end }}
  terminationGracePeriodSeconds: {{ int $training.gracePeriodSeconds }}
  initContainers:
    {{- /* Waits for the dataset and for secrets that an operator creates, and checks what is local to the pod */}}
    - name: preflight
      image: {{ $run.image | quote }}
      imagePullPolicy: {{ $global.image.pullPolicy }}
      command:
        - python
        - -m
        - trainers.preflight
        {{- if not (or $run.ungated $run.config.data.dataset) }}
        - --data
        - {{ $run.config.data.dir | quote }}
        {{- end }}
        {{- if and (not $run.ungated) $training.weights }}
        - --weights
        - /etc/trainyard/config.json
        {{- end }}
        - --results
        - {{ $run.config.run.dir | quote }}
        - --shm
        - {{ $shm | quote }}
        - --timeout
        - {{ int $global.dataset.wait | quote }}
        {{- if $global.scheduling.queue }}
        - --idle
        - {{ int $global.dataset.idleWait | quote }}
        {{- end }}
        {{- with $gpus }}
        - --gpus
        - {{ . | quote }}
        {{- with $training.gpuMemoryTest }}
        - --gpu-memory
        - {{ int . | quote }}
        {{- end }}
        {{- end }}
        {{- if $awaited }}
        - --secret
        - /etc/trainyard/secrets/wandb/WANDB_API_KEY
        - --secret-timeout
        - {{ int $root.Facts.wait | quote }}
        {{- end }}
      env:
        {{- $env | nindent 8 }}
      {{- with $training.envFrom }}
      envFrom:
        {{- toYaml . | nindent 8 }}
      {{- end }}
      resources:
        {{- include "common.quantities" $needed | nindent 8 }}
      {{- include "common.container" "" | nindent 6 }}
      volumeMounts:
        - name: trainyard
          mountPath: /etc/trainyard
          readOnly: true
        {{- $mounts | nindent 8 }}
        {{- /* the GPUs' libraries, where they come from a volume and not from a device plugin */}}
        {{- with $training.extraVolumeMounts }}
        {{- toYaml . | nindent 8 }}
        {{- end }}
    {{- with $training.extraInitContainers }}
    {{- toYaml . | nindent 4 }}
    {{- end }}
    {{- /* The user's own as native sidecars, which are stopped after the main container: an ordinary second one would keep a finished pod alive */}}
    {{- range $training.extraContainers }}
    - {{ merge (dict "restartPolicy" "Always") . | toYaml | nindent 6 | trim }}
    {{- end }}
  containers:
    - name: {{ .container }}
      image: {{ $run.image | quote }}
      imagePullPolicy: {{ $global.image.pullPolicy }}
      command:
        {{- $command := .command }}
        {{- with $training.envScript }}
        {{- $unread := "test -r \"$0\" || { echo \"error: global.training.envScript: $0 cannot be read\" >&2; exit 2; }" }}
        {{- $command = concat (list "bash" "-c" (printf "%s; source \"$0\"; exec \"$@\"" $unread) .) $command }}
        {{- end }}
        {{- toYaml $command | nindent 8 }}
      env:
        {{- $env | nindent 8 }}
      {{- with $training.envFrom }}
      envFrom:
        {{- toYaml . | nindent 8 }}
      {{- end }}
      {{- $ports := ternary (list (dict "name" "ssh" "containerPort" 2222)) list (not (empty .ssh)) }}
      {{- with $global.metrics }}
      {{- if .enabled }}{{ $ports = append $ports (dict "name" "metrics" "containerPort" (int .port)) }}{{ end }}
      {{- end }}
      {{- with $ports }}
      ports:
        {{- toYaml . | nindent 8 }}
      {{- end }}
      {{- with .extra }}
      {{- . | nindent 6 }}
      {{- end }}
      {{- if .ssh }}
      readinessProbe:
        tcpSocket:
          port: ssh
        periodSeconds: 3
      {{- end }}
      resources:
        {{- include "common.quantities" $resources | nindent 8 }}
      {{- $locks := or $training.rdma.resource $training.rdma.by $training.unrestricted.runAsRoot }}
      {{- include "common.container" (ternary "privileged" $locks (not (empty $training.unrestricted.privileged))) | nindent 6 }}
      volumeMounts:
        - name: trainyard
          mountPath: /etc/trainyard
          readOnly: true
        {{- $mounts | nindent 8 }}
        {{- if $mlflow }}
        - name: secret-mlflow
          mountPath: /var/run/secrets/trainyard/mlflow
          readOnly: true
        {{- end }}
        {{- with $training.extraVolumeMounts }}
        {{- toYaml . | nindent 8 }}
        {{- end }}
  volumes:
    {{- /* The run's settings and the key of Weights & Biases. A Secret that values name must hold it; one that an operator creates is waited for */}}
    - name: trainyard
      projected:
        defaultMode: 288  # 0440
        sources:
          - configMap:
              name: {{ $run.name }}-run
          {{- if not $run.keyless }}
          - secret:
              name: {{ $root.Secrets.wandb.name | quote }}
              optional: {{ or (not $root.Secrets.wandb.required) (has "wandb" $root.Facts.awaited) }}
              items:
                - key: WANDB_API_KEY
                  path: secrets/wandb/WANDB_API_KEY
          {{- end }}
    {{- if $mlflow }}
    - name: secret-mlflow
      secret:
        secretName: {{ $root.Secrets.mlflow.name | quote }}
        defaultMode: 288  # 0440
        optional: {{ not $root.Secrets.mlflow.required }}
    {{- end }}
    {{- include "common.volumes" (dict "root" $root "claims" (keys $claims | sortAlpha) "shm" $training.shmSize) | nindent 4 }}
    {{- with $training.extraVolumes }}
    {{- toYaml . | nindent 4 }}
    {{- end }}
{{- end -}}

{{/*
Metadata, and the first lines of the spec, of every pod. Call with a dict: root; pod, its settings; own, the parts of a spread constraint that
count the pod's like unless it says otherwise, where the part's labels do not; annotations, where a part adds to the user's; and part, where the
pod's ServiceAccount is named for another than the chart's.

A pod passes the `restricted` Pod Security Standard, unless unrestricted.runAsRoot is set. With `uid: platform` the cluster chooses the user and
the group of the volumes, as OpenShift does. Istio's sidecar is off: it would keep a finished pod alive.
*/}}
{{- define "common.pod" -}}
{{- $root := .root -}}
{{- $pod := .pod -}}
{{- $user := $root.User -}}
{{- $storage := $root.Values.global.storage -}}
{{- $security := dict "runAsNonRoot" true "fsGroupChangePolicy" $storage.fsGroupChangePolicy "seccompProfile" (dict "type" "RuntimeDefault") -}}
{{- if dig "runAsRoot" false $pod.unrestricted -}}
{{- range $key, $value := dict "runAsUser" 0 "runAsGroup" 0 "runAsNonRoot" false -}}{{- $_ := set $security $key $value -}}{{- end -}}
{{- else if $user.uid -}}
{{- $_ := set $security "runAsUser" (int64 $user.uid) -}}
{{- with $user.gid -}}{{- $_ := set $security "runAsGroup" (int64 .) -}}{{- end -}}
{{- end -}}
{{- with $user.gid -}}{{- $_ := set $security "fsGroup" (int64 .) -}}{{- end -}}
{{- with $storage.supplementalGroups -}}{{- $_ := set $security "supplementalGroups" . -}}{{- end -}}
{{- $like := dict "app.kubernetes.io/name" $root.Chart.Name "app.kubernetes.io/instance" $root.Release.Name -}}
{{- $own := .own | default (dict "labelSelector" (dict "matchLabels" $like)) -}}
{{- if and (get $root.Facts "alone") (dig "create" false $pod.serviceAccount) -}}
{{- include "common.refuse" "\n\nserviceAccount.create is for the whole chart: a part used alone names one that exists in serviceAccount.name.\n" -}}
{{- end -}}
{{- $spread := list -}}
{{- range $pod.scheduling.topologySpreadConstraints -}}
{{- $spread = append $spread (merge (deepCopy .) (deepCopy $own)) -}}
{{- end -}}
metadata:
  labels:
    {{- include "common.labels" (list $root $pod.podLabels "pod") | nindent 4 }}
    {{- $standard := dict "helm.sh/chart" (printf "%s-%s" $root.Chart.Name $root.Chart.Version | replace "+" "_") }}
    {{- $_ := set $standard "app.kubernetes.io/version" $root.Chart.Version }}
    {{- $_ := set $standard "app.kubernetes.io/managed-by" $root.Release.Service }}
    {{- range $key, $value := ternary $standard dict (not (empty $root.Values.global.standardPodLabels)) }}
    {{- if not (or (hasKey $pod.podLabels $key) (hasKey $root.Values.global.labels $key)) }}
    {{ $key }}: {{ $value | quote }}
    {{- end }}
    {{- end }}
    sidecar.istio.io/inject: "false"
    {{- with $pod.podLabels }}
    {{- toYaml . | nindent 4 }}
    {{- end }}
  {{- with merge (dict) (.annotations | default $pod.podAnnotations) ($root.Values.global.podAnnotations | default dict) }}
  annotations:
    {{- toYaml . | nindent 4 }}
  {{- end }}
spec:
  automountServiceAccountToken: {{ dig "token" false $pod.serviceAccount }}
  enableServiceLinks: false
  {{- $job := has $root.Chart.Name (list "pytorchjob" "mpijob" "trainjob") }}
  {{- $made := printf "%s-%s" $root.Release.Name (.part | default (ternary "training" $root.Chart.Name $job)) }}
  {{- with $pod.serviceAccount.name | default (ternary $made $root.Values.global.serviceAccountName (dig "create" false $pod.serviceAccount)) }}
  serviceAccountName: {{ . | quote }}
  {{- end }}
  {{- with $pod.hostAliases }}
  hostAliases:
    {{- toYaml . | nindent 4 }}
  {{- end }}
  {{- with $pod.dnsConfig }}
  dnsConfig:
    {{- toYaml . | nindent 4 }}
  {{- end }}
  securityContext:
    {{- toYaml (mergeOverwrite $security $pod.securityContext) | nindent 4 }}
  {{- $hosted := dig "hostNetwork" false $pod.unrestricted }}
  {{- if $hosted }}
  hostNetwork: true
  {{- end }}
  {{- with get $pod "dnsPolicy" | default (ternary "ClusterFirstWithHostNet" "" $hosted) }}
  dnsPolicy: {{ . }}
  {{- end }}
  {{- if kindIs "bool" (get $pod "hostUsers") }}
  hostUsers: {{ $pod.hostUsers }}
  {{- end }}
  {{- with $pod.runtimeClassName }}
  runtimeClassName: {{ . | quote }}
  {{- end }}
  {{- with $pod.resourceClaims }}
  resourceClaims:
    {{- toYaml . | nindent 4 }}
  {{- end }}
  {{- with $root.Values.global.image.pullSecrets }}
  imagePullSecrets:
    {{- range . }}
    - name: {{ . | quote }}
    {{- end }}
  {{- end }}
  {{- with $pod.scheduling }}
  {{- with .nodeSelector }}
  nodeSelector:
    {{- toYaml . | nindent 4 }}
  {{- end }}
  {{- with .affinity }}
  affinity:
    {{- toYaml . | nindent 4 }}
  {{- end }}
  {{- with .tolerations }}
  tolerations:
    {{- toYaml . | nindent 4 }}
  {{- end }}
  {{- with $spread }}
  topologySpreadConstraints:
    {{- toYaml . | nindent 4 }}
  {{- end }}
  {{- with .priorityClassName }}
  priorityClassName: {{ . | quote }}
  {{- end }}
  {{- with .schedulerName }}
  schedulerName: {{ . | quote }}
  {{- end }}
  {{- end }}
{{- end -}}

{{/*
Environment of a container: the chart's own, without names that the user sets too, then the user's. Every container has a home, the variables by
which clients in Python, Go and from Amazon find the certificates of global.caBundle, and a name for the platform's user, which has no entry in
/etc/passwd. Call with a dict: root, own (from names to values; a value that is not a text is taken as in a container's spec) and env, the
user's list.
*/}}
{{- define "common.env" -}}
{{- $own := dict "HOME" "/home/trainer" "PYTHONUNBUFFERED" "1" -}}
{{- if not .root.User.uid -}}{{- $_ := set $own "USER" "trainer" -}}{{- end -}}
{{- if .root.Values.global.caBundle.configMap -}}
{{- range list "SSL_CERT_FILE" "REQUESTS_CA_BUNDLE" "AWS_CA_BUNDLE" -}}
{{- $_ := set $own . "/etc/trainyard-ca/ca-bundle.crt" -}}
{{- end -}}
{{- end -}}
{{- $taken := dict -}}
{{- range .env -}}{{- $_ := set $taken .name true -}}{{- end -}}
{{- $env := list -}}
{{- range $name, $value := merge $own .own -}}
{{- if not (hasKey $taken $name) -}}
{{- $env = append $env (merge (dict "name" $name) (ternary $value (dict "value" $value) (kindIs "map" $value))) -}}
{{- end -}}
{{- end -}}
{{- toYaml (concat $env .env) -}}
{{- end -}}

{{/*
Mounts of a container after its settings: claims, /dev/shm, space for files outside the claims, and certificates. Call with a dict: root;
claims, from their names to whether they are read-only; shm, whether it has one; and passwd, whether it has users.
*/}}
{{- define "common.mounts" -}}
{{- $root := .root -}}
{{- range $which, $readOnly := .claims -}}
- name: {{ $which }}
  mountPath: /{{ $which }}
  {{- with (index $root.Values.global.storage $which).subPath }}
  subPath: {{ . | quote }}
  {{- end }}
  {{- if $readOnly }}
  readOnly: true
  {{- end }}
{{ end -}}
{{- if .shm -}}
- name: shm
  mountPath: /dev/shm
{{ end -}}
- name: tmp
  mountPath: /tmp
- name: home
  mountPath: /home/trainer
{{- if $root.Values.global.caBundle.configMap }}
- name: ca-bundle
  mountPath: /etc/trainyard-ca
  readOnly: true
{{- end }}
{{- if and .passwd $root.User.passwd }}
- name: trainyard
  mountPath: /etc/passwd
  subPath: passwd
  readOnly: true
{{- end }}
{{- end -}}

{{/* Their volumes. Call with a dict: root; claims, a list of their names; and shm, the size of /dev/shm, if there is one. */}}
{{- define "common.volumes" -}}
{{- $root := .root -}}
{{- range .claims -}}
- name: {{ . }}
  persistentVolumeClaim:
    claimName: {{ get $root.Claims . | quote }}
{{ end -}}
{{- with .shm -}}
- name: shm
  emptyDir:
    medium: Memory
    sizeLimit: {{ . | quote }}
{{ end -}}
{{- range list "tmp" "home" }}
- name: {{ . }}
  emptyDir:
    sizeLimit: {{ $root.Values.global.storage.scratchSize | quote }}
{{- end }}
{{- with $root.Values.global.caBundle }}
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

{{/*
Requests and limits, with fractions as text: `cpu: 0.5` is a number to YAML, and the schemas of PyTorchJob and MPIJob take none.
*/}}
{{- define "common.quantities" -}}
{{- $resources := pick . "claims" -}}
{{- range $kind, $amounts := omit . "claims" -}}
{{- $texts := dict -}}
{{- range $name, $amount := $amounts -}}
{{- $fraction := and (kindIs "float64" $amount) (ne (floor $amount) $amount) -}}
{{- $_ := set $texts $name (ternary (toString $amount) $amount $fraction) -}}
{{- end -}}
{{- $_ := set $resources $kind $texts -}}
{{- end -}}
{{- toYaml $resources -}}
{{- end -}}

{{/*
Security of every container, and where it leaves its termination message for the operators and trainyard why: its own message, else the end of
its log. Call with a non-empty value if it locks memory, as RDMA does, and it gets IPC_LOCK; or with `privileged`.
*/}}
{{- define "common.container" -}}
terminationMessagePath: /dev/termination-log
terminationMessagePolicy: FallbackToLogsOnError
securityContext:
  {{- if eq (toString .) "privileged" }}
  privileged: true
  readOnlyRootFilesystem: true
  {{- else }}
  allowPrivilegeEscalation: false
  readOnlyRootFilesystem: true
  capabilities:
    drop:
      - ALL
    {{- if . }}
    add:
      - IPC_LOCK
    {{- end }}
  {{- end }}
{{- end -}}
