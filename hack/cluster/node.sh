# The node as the machine sees it: is it well, start one of its daemons, take it away.
# shellcheck shell=bash
. "$HERE/node/cgroups.sh"

# in_our_cgroup PID: is this process one of the node's? (A number alone may long be another process.)
in_our_cgroup() { grep -qs "/$CGROUP" "/proc/$1/cgroup"; }

our_cgroups() { find /sys/fs/cgroup -type d \( -name "$CGROUP" -o -name "$CGROUP.scope" \) -prune 2> /dev/null; }

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

node_ready() {
  kubectl get --request-timeout=$((10 * PATIENCE))s node "$NODE_NAME" -o 'jsonpath={.status.conditions[?(@.type=="Ready")].status}' 2> /dev/null | grep -qx True
}

# healthy: is there a complete cluster of this very version, and does it answer? A busy machine may make it slow:
# one whose programs all live is given time, since what replaces it would start empty.
healthy() {
  local pid item end=$((SECONDS + 180 * PATIENCE))
  [ "$(cat "$RUN/ready" 2> /dev/null)" = "$VERSION" ] || return 1
  for pid in "$RUN"/pids/*; do daemon_alive "${pid##*/}" || return 1; done
  until node_ready; do
    [ $SECONDS -lt $end ] || return 1
    sleep 1
  done
  for item in "${DEPLOYMENTS[@]}"; do
    kubectl -n "${item%/*}" wait --for=condition=Available --timeout=$((180 * PATIENCE))s "deploy/${item#*/}" > /dev/null 2>&1 || return 1
  done
}

# cgroup_processes: all that runs in the node
cgroup_processes() { our_cgroups | while read -r dir; do find "$dir" -name cgroup.procs -exec cat {} + 2> /dev/null; done | sort -u; }

# teardown: nothing of the node is left, in whatever state it was
teardown() {
  local _ pids dir
  for _ in $(seq 100); do # killing the node's pid 1 takes most with it; whoever was just being born comes next round
    mapfile -t pids < <(cgroup_processes)
    [ ${#pids[@]} -gt 0 ] || break
    kill -9 "${pids[@]}" 2> /dev/null || true
    sleep 0.1
  done
  ip link del "$LINK" 2> /dev/null || true
  for _ in $(seq 100); do # the kernel needs a moment after the last process has left
    our_cgroups | while read -r dir; do find "$dir" -depth -type d -exec rmdir {} \; 2> /dev/null; done || true
    [ -n "$(our_cgroups)" ] || break
    sleep 0.1
  done
  leave_root_as_it_was
  if [ -e "$RUN/made" ]; then xargs rmdir < "$RUN/made" 2> /dev/null || true; fi # folders that the node had to make as mount points
  rm -rf "$RUN"
  rm -f "$OWN_KUBECONFIG"
  [ -z "$(our_cgroups)" ] || die "these cgroups cannot be removed: $(our_cgroups | tr '\n' ' '); processes in them: $(cgroup_processes | tr '\n' ' ')"
}
