# The node as the machine sees it: is it well, start one of its daemons, take it away.
# shellcheck shell=bash disable=SC2119,SC2120 # faults.sh names one node, teardown none
. "$HERE/node/cgroups.sh"

# in_our_cgroup PID: is this process one of the node's? (A number alone may long be another process.)
in_our_cgroup() { grep -qs "/$CGROUP" "/proc/$1/cgroup"; }

# our_cgroups [NAME]: those of all nodes, or of one
our_cgroups() {
  local name=${1:-$CGROUP} others=${1:-$CGROUP-[0-9]}
  find /sys/fs/cgroup -type d \( -name "$name" -o -name "$name.scope" -o -name "$others" -o -name "$others.scope" \) -prune 2> /dev/null
}

# daemon NAME COMMAND...: start it in the node; it keeps nothing of ours open, not even the machine's lock
daemon() {
  local name=$1
  shift
  (
    for fd in /proc/"$BASHPID"/fd/*; do
      fd=${fd##*/}
      if [ "$fd" -gt 2 ]; then eval "exec $fd>&-"; fi
    done
    ulimit -Sn "$(ulimit -Hn)" # pods inherit it
    exec setsid "${CLEAN[@]}" "$@"
  ) > "$LOG/$name.log" 2>&1 < /dev/null &
  echo $! > "$RUN/pids/$name"
}

daemon_alive() { in_our_cgroup "$(cat "$RUN/pids/$1")"; }

# node_daemon NAME COMMAND...: a daemon inside the node's namespaces. The API server spends 15 % of its time on garbage collection (a profile
# of 100 s under the tests) unless its heap may grow; the limit bounds it.
node_daemon() {
  local name=$1
  shift
  daemon "$name" "$HERE/in-node" env GOGC=400 GOMEMLIMIT=2GiB "$@"
}

# import_image ARCHIVE.tar|OCI_FOLDER: into the node's containerd, under the name that the archive carries
import_image() {
  image_tar "$1" | "$HERE/in-node" ctr -a "$NODE_RUN/containerd.sock" -n k8s.io images import - > /dev/null ||
    die "containerd could not import $1 (room on the disk of $STATE? its log: $LOG/containerd$SUFFIX.log)"
}

# wait_for SECONDS DAEMON COMMAND...: until COMMAND succeeds, PATIENCE times SECONDS at most; ends early, with the log's tail, when DAEMON has ended
wait_for() {
  local end=$((SECONDS + $1 * PATIENCE)) name=$2 why=
  shift 2
  until "$@" > /dev/null 2>&1; do
    if [ -e "$RUN/pids/$name" ] && [ ! -e "/proc/$(cat "$RUN/pids/$name")" ]; then why="$name has ended"; fi
    if [ $SECONDS -ge $end ]; then why="no success in time: $*"; fi
    if [ -n "$why" ]; then
      echo "$why; the end of its log:"
      tail -n 12 "$LOG/$name.log"
      return 1
    fi
    sleep 0.2
  done
}

nodes_ready() {
  local ready
  ready=$(kubectl get --request-timeout=$((10 * PATIENCE))s nodes -o 'jsonpath={.items[*].status.conditions[?(@.type=="Ready")].status}' 2> /dev/null) || return 1
  [ "$(grep -ow True <<< "$ready" | wc -l)" = "$NODES" ]
}

# healthy: is there a complete cluster of this very version, and does it answer? A busy machine may make it slow:
# one whose programs all live is given time, since what replaces it would start empty.
healthy() {
  local pid item end=$((SECONDS + 180 * PATIENCE))
  [ "$(cat "$RUN/ready" 2> /dev/null)" = "$VERSION" ] || return 1
  for pid in "$RUN"/pids/*; do daemon_alive "${pid##*/}" || return 1; done
  until nodes_ready; do
    [ $SECONDS -lt $end ] || return 1
    sleep 1
  done
  for item in "${DEPLOYMENTS[@]}"; do
    kubectl -n "${item%/*}" wait --for=condition=Available --timeout=$((180 * PATIENCE))s "deploy/${item#*/}" > /dev/null 2>&1 || return 1
  done
}

# cgroup_processes [NAME]: all that runs in the nodes, or in one
cgroup_processes() { our_cgroups "$@" | while read -r dir; do find "$dir" -name cgroup.procs -exec cat {} + 2> /dev/null; done | sort -u; }

# end_processes [NAME]: kill all that runs in the nodes, or in one
end_processes() {
  local _ pids
  for _ in $(seq $((100 * PATIENCE))); do # killing a node's pid 1 takes most with it; whoever was just being born comes next round
    mapfile -t pids < <(cgroup_processes "$@")
    [ ${#pids[@]} -gt 0 ] || break
    kill -9 "${pids[@]}" 2> /dev/null || true
    sleep 0.1
  done
}

# remove_cgroups [NAME]
remove_cgroups() {
  local _ dir
  for _ in $(seq $((100 * PATIENCE))); do # the kernel needs a moment after the last process has left
    our_cgroups "$@" | while read -r dir; do find "$dir" -depth -type d -exec rmdir {} \; 2> /dev/null; done || true
    [ -n "$(our_cgroups "$@")" ] || break
    sleep 0.1
  done
}

# teardown: nothing of the nodes is left, in whatever state they were
teardown() {
  end_processes
  ip link del "$LINK" 2> /dev/null || true
  remove_cgroups
  leave_root_as_it_was
  cat "$RUN"/made "$RUN"/node-*/made 2> /dev/null | xargs -r rmdir 2> /dev/null || true # folders that a node had to make as mount points
  rm -rf "$RUN"
  rm -f "$OWN_KUBECONFIG"
  [ -z "$(our_cgroups)" ] || die "these cgroups cannot be removed: $(our_cgroups | tr '\n' ' '); processes in them: $(cgroup_processes | tr '\n' ' ')"
}
