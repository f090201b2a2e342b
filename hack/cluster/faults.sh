# The faults of `fault`: make_NAME makes one, undo_NAME undoes it and does no harm where it was not made.
# shellcheck shell=bash

# use_node_named NAME [FIRST]: FIRST is 1 where the first node may be meant, too
use_node_named() {
  local number names=()
  for ((number = ${2:-2}; number <= NODES; number++)); do
    use_node "$number"
    if [ "$NODE_NAME" = "$1" ]; then return 0; fi
    names+=("$NODE_NAME")
  done
  [ ${#names[@]} -gt 0 ] || need_several
  die "no node '$1' that this can be done to; there are: ${names[*]}"
}
need_several() { [ "$NODES" != 1 ] || die "the only node has the control plane, and its own disk for storage: make cluster NODES=3 has more"; }

# at_switch COMMAND...: at the other end of the nodes' cables
at_switch() { TRAINYARD_NODE=0 "$HERE/in-node" "$@"; }

make_kill() {
  use_node_named "$1"
  end_processes "$NODE_CGROUP"
  remove_cgroups "$NODE_CGROUP"
  rm -f "$NODE_RUN/node.pid"
  at_switch ip link del "cable$NODE" 2> /dev/null || true # it would go with the node's network, a moment later
}
undo_kill() {
  use_node_named "$1"
  [ ! -e "$NODE_RUN/node.pid" ] || return 0
  rm -rf "$NODE_RUN"
  step "start $NODE_NAME again" "$LOG/again$SUFFIX.log" start_again
}
start_again() {
  start_worker "$NODE"
  start_worker_agents "$NODE"
}

# drop TABLE RULE...: a table of its own whose rules see every packet, with the address that a service's has become
drop() {
  local table=$1 hook rule
  shift
  for hook in input output forward; do
    echo "add chain inet $table $hook { type filter hook $hook priority filter - 5; }"
    for rule in "$@"; do echo "add rule inet $table $hook $rule"; done
  done | sed "1i add table inet $table" | "$HERE/in-node" nft -f -
}
make_cut() {
  local number other=''
  undo_cut "$@"
  case $2 in
    nodes)
      for number in $(others); do other+=", $CABLES.$number, $(pods_of "$number")"; done
      # the API server asks the kubelet from the first node's address
      drop fault-nodes "tcp dport 10250 accept" "tcp sport 10250 accept" "ip saddr { ${other#, } } drop" "ip daddr { ${other#, } } drop"
      ;;
    api) drop fault-api "ip saddr $API_IP drop" "ip daddr $API_IP drop" "ip saddr $CABLES.1 tcp dport 10250 drop" ;;
    storage) drop fault-storage "ip saddr $SERVER_IP drop" "ip daddr $SERVER_IP drop" ;;
    all) at_switch ip link set "cable$NODE" down ;;
  esac
}
undo_cut() {
  use_node_named "$1"
  case $2 in
    nodes | api | storage) "$HERE/in-node" nft delete table inet "fault-$2" 2> /dev/null || true ;;
    all) at_switch ip link set "cable$NODE" up ;;
    *) usage ;;
  esac
}

# both ends of the cable
make_slow() {
  need_several
  use_node_named "$1" 1
  "$HERE/in-node" tc qdisc replace dev eth1 root tbf rate "$2" burst 64kb latency 400ms || usage
  at_switch tc qdisc replace dev "cable$NODE" root tbf rate "$2" burst 64kb latency 400ms
}
undo_slow() {
  need_several
  use_node_named "$1" 1
  "$HERE/in-node" tc qdisc del dev eth1 root 2> /dev/null || true
  at_switch tc qdisc del dev "cable$NODE" root 2> /dev/null || true
}

make_drain() {
  use_node_named "$1" 1
  kubectl drain "$NODE_NAME" --ignore-daemonsets --delete-emptydir-data --force --timeout=$((300 * PATIENCE))s
}
undo_drain() {
  use_node_named "$1" 1
  kubectl uncordon "$NODE_NAME"
}

server_pid() { pgrep -P "$(cat "$RUN/pids/file-server")" glusterfsd; }
# fill_disk: with files of half of what is free, until no block is; nothing is written to this machine's disk
# shellcheck disable=SC2016 # $1 belongs to the shell at the switch
fill_disk() {
  at_switch bash -c 'while free=$(stat -fc %f "$1") && [ "$free" -gt 0 ]; do
    fallocate -l $(((free + 1) / 2 * $(stat -fc %S "$1"))) "$1/full-$free" 2> /dev/null || break
  done' - "$RUN/node-0/disk"
}
make_storage() {
  need_several
  case $1 in
    hang) kill -STOP "$(server_pid)" ;;
    down) kill_daemon file-server ;;
    full) fill_disk ;;
    *) usage ;;
  esac
}
undo_storage() {
  need_several
  use_node 0
  case $1 in
    hang) kill -CONT "$(server_pid)" ;;
    down) daemon_alive file-server || start_file_server ;;
    full) at_switch find "$RUN/node-0/disk" -maxdepth 1 -name 'full-*' -delete ;;
    *) usage ;;
  esac
}

# kill_daemon NAME: and what would start it again
kill_daemon() { if daemon_alive "$1"; then kill -9 -- "-$(cat "$RUN/pids/$1")"; fi; }

# namespace_of OPERATOR
namespace_of() { case $1 in training-operator) echo kubeflow ;; mpi-operator) echo mpi-operator ;; *) return 1 ;; esac; }
make_down() {
  local namespace
  case $1 in
    api) kill_daemon kube-apiserver ;;
    etcd) kill_daemon etcd ;;
    *)
      namespace=$(namespace_of "$1") || usage
      kubectl -n "$namespace" scale "deploy/$1" --replicas=0
      kubectl -n "$namespace" delete pods --all --grace-period=0 --force
      ;;
  esac
}
undo_down() {
  local namespace
  case $1 in
    api) daemon_alive kube-apiserver || start_api_server ;;
    etcd) daemon_alive etcd || start_etcd ;;
    *)
      namespace=$(namespace_of "$1") || usage
      kubectl -n "$namespace" scale "deploy/$1" --replicas=1
      start_operators
      return
      ;;
  esac
  wait_for 300 kube-apiserver kubectl get --raw /readyz
}
