# Start an add-on in the running cluster; is it there, of this very version, and well?
# shellcheck shell=bash
LIVE=$RUN/extras # what runs: gone with the cluster
# Argo CD's daemons, in the order in which they start, and the ports of the node's loopback that they answer on
DAEMONS=(argocd-redis:6379 argocd-repo-server:8081 argocd-application-controller:8082 argocd-applicationset-controller:8087)

# deployments_of NAME
deployments_of() {
  case $1 in
    trainer) echo jobset-system/jobset-controller-manager kubeflow-system/kubeflow-trainer-controller-manager ;;
    kueue) echo kueue-system/kueue-controller-manager ;;
    mpi-operator) echo mpi-operator/mpi-operator ;;
  esac
}

# extra_version NAME: what runs is of this version when neither what was built nor how it is started has changed
extra_version() { { files extras/start.sh; also "$1"; } | content_key "$(extra_key "$1")"; }

# also NAME: files of the project, for users too, that the add-on wants applied: mpi-operator's own role lacks what resumes an MPIJob
also() { if [ "$1" = kueue ]; then echo examples/kueue/mpi-operator.yaml; fi; }

# look: which deployments are there and well? Asked once for all add-ons
look() {
  FOUND=$(kubectl get deployments -A -o 'jsonpath={range .items[*]}{.metadata.namespace}/{.metadata.name} {.status.conditions[?(@.type=="Available")].status}{"\n"}{end}')
}

# extra_healthy NAME: a busy machine may make it slow, so one that has just lost its pod is given time
extra_healthy() {
  local item
  [ "$(cat "$LIVE/$1.ready" 2> /dev/null)" = "$(extra_version "$1")" ] || return 1
  for item in $(deployments_of "$1"); do
    grep -qx "$item True" <<< "$FOUND" && continue
    kubectl -n "${item%/*}" wait --for=condition=Available --timeout=180s "deploy/${item#*/}" > /dev/null 2>&1 || return 1
  done
  if [ "$1" = argocd ]; then
    for item in "${DAEMONS[@]}"; do RUN=$LIVE daemon_alive "${item%:*}" 2> /dev/null || return 1; done
  fi
}

# answers FILE: a pod that is Ready does not mean that its webhooks answer: ask for FILE as a dry run until they do
answers() {
  local end=$((SECONDS + 300)) said
  until said=$(kubectl create --dry-run=server -f "$1" 2>&1); do
    [ $SECONDS -lt $end ] || { echo "no answer for ${1##*/extras/}: $said"; return 1; }
    sleep 0.2
  done
}

# apply_extra NAME: images into the node, manifests to the API server (CRDs are too large for a client-side apply)
apply_extra() {
  local home file
  home=$(extra_home "$1")
  for file in "$home"/images/*.tar; do [ ! -e "$file" ] || "$HERE/load" "$file"; done
  for file in "$home"/manifests/*.yaml; do kubectl apply --server-side --force-conflicts --field-manager=trainyard-extra -f "$file"; done
  for file in $(also "$1"); do kubectl apply -f "$ROOT/$file"; done
}

# nudged NAMESPACE/DEPLOYMENT: a controller writes its certificate into the Secret that it mounts; the kubelet looks at that a minute later,
# or when the pod has changed
nudged() {
  local _
  for _ in $(seq 300); do
    ! kubectl -n "${1%/*}" wait --for=condition=Available --timeout=1s "deploy/${1#*/}" > /dev/null 2>&1 || return 0
    kubectl -n "${1%/*}" annotate pods --all --overwrite "trainyard.test/looked-at=$SECONDS" || true # one of before may just have gone
  done
}

# rolled_out_extras NAME...: all their pods are ready; one add-on's webhooks are asked about another's objects
rolled_out_extras() {
  local name item
  for name in "$@"; do
    for item in $(deployments_of "$name"); do
      nudged "$item"
      rolled_out "$item"
    done
  done
}

# argocd_daemon NAME COMMAND...: inside the node, so that it ends with it and listens on no address of this machine. A committer is named
# since git, where it finds none, asks DNS for this host's full name, for 10 s a call where there is no DNS. A busy machine renders charts for
# longer than the usual 60 and 90 s, and three failures would be remembered for an hour.
argocd_daemon() {
  local name=$1 home=$LIVE/argocd config=$RUN/admin.conf
  shift
  LOG=$LIVE/log RUN=$LIVE daemon "$name" "$HERE/in-node" env PATH="$home/bin:/usr/local/bin:/usr/bin:/bin" TMPDIR="$home/tmp" HOME="$home" \
    GIT_COMMITTER_NAME=argocd GIT_COMMITTER_EMAIL=argocd@localhost \
    KUBECONFIG="$config" ARGOCD_FAKE_IN_CLUSTER=true ARGOCD_GPG_ENABLED=false ARGOCD_EXEC_TIMEOUT=10m ARGOCD_PAUSE_GEN_AFTER_FAILED_ATTEMPTS=0 \
    ARGOCD_APPLICATION_CONTROLLER_REPO_SERVER_TIMEOUT_SECONDS=600 ARGOCD_APPLICATIONSET_CONTROLLER_REPO_SERVER_TIMEOUT_SECONDS=600 "$@"
}

# stop_argocd: whatever of it still runs
stop_argocd() {
  local item pid
  for item in "${DAEMONS[@]}"; do
    pid=$(cat "$LIVE/pids/${item%:*}" 2> /dev/null) || continue
    if in_our_cgroup "$pid"; then kill -9 -- "-$pid" 2> /dev/null || true; fi # its group: what nsenter started, too
  done
}

# listening PORT: on the node's loopback
listening() { "$HERE/in-node" bash -c ": < /dev/tcp/127.0.0.1/$1"; }

start_argocd() {
  local home=$LIVE/argocd redis=127.0.0.1:6379 repo=127.0.0.1:8081 item
  kubectl apply --server-side -f "$HERE/extras/argocd/project.yaml"
  # the web server, which does not run here, would make it: without it the controller passes over every change of argocd-cm
  kubectl -n argocd patch secret argocd-secret --type merge -p "{\"stringData\": {\"server.secretkey\": \"$(openssl rand -hex 16)\"}}"
  stop_argocd
  rm -rf "$home"
  mkdir -p "$home"/{bin,tmp,redis} "$LIVE"/{pids,log}
  "$ROOT/hack/tools/build" helm4
  ln -s "$(extra_home argocd)"/bin/* "$home/bin/"
  ln -s "$(readlink -f "$ROOT/build/bin/helm4")" "$home/bin/helm"
  ln -s "$(command -v redis-check-rdb)" "$home/bin/redis-server" # one program: its name decides. Debian's redis-server would start a service
  argocd_daemon argocd-redis redis-server --bind 127.0.0.1 --port 6379 --save '' --appendonly no --dir "$home/redis"
  argocd_daemon argocd-repo-server argocd-repo-server --address 127.0.0.1 --port 8081 --metrics-address 127.0.0.1 --metrics-port 8084 \
    --disable-tls --client-ca-path= --redis "$redis" --logformat text
  argocd_daemon argocd-application-controller argocd-application-controller --namespace argocd --repo-server "$repo" --repo-server-plaintext \
    --redis "$redis" --metrics-port 8082 --logformat text --persist-resource-health # the health of each object, readable with kubectl
  argocd_daemon argocd-applicationset-controller argocd-applicationset-controller --namespace argocd --argocd-repo-server "$repo" \
    --repo-server-plaintext --metrics-addr 127.0.0.1:8086 --probe-addr 127.0.0.1:8087 --webhook-addr 127.0.0.1:8088 --logformat text
  for item in "${DAEMONS[@]}"; do LOG=$LIVE/log RUN=$LIVE wait_for 300 "${item%:*}" listening "${item#*:}"; done
}

# other_version NAMESPACE/DEPLOYMENT: delete what of another version cannot stay: its selector may differ, and so may its webhooks' names
other_version() {
  local webhooks='{range .items[*]}{.kind}/{.metadata.name} {.webhooks[0].clientConfig.service.namespace}{"\n"}{end}' name namespace
  grep -q "^$1 " <<< "$FOUND" || return 0
  kubectl -n "${1%/*}" delete deployment "${1#*/}"
  kubectl get mutatingwebhookconfigurations,validatingwebhookconfigurations -o jsonpath="$webhooks" | while read -r name namespace; do
    if [ "$namespace" = "${1%/*}" ]; then kubectl delete "$name"; fi
  done
}

# start_extras NAME...: all of them come up side by side
start_extras() {
  local name item
  for name in "$@"; do
    for item in $(deployments_of "$name"); do other_version "$item"; done
    rm -f "$LIVE/$name.ready"
    apply_extra "$name"
  done
  rolled_out_extras "$@"
  for name in "$@"; do
    for item in $(modules_of "$name"); do answers "$HERE/extras/$item/probe.yaml"; done
    if [ "$name" = argocd ]; then start_argocd; fi
    extra_version "$name" > "$LIVE/$name.ready"
  done
}
