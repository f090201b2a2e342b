# Several nodes: the switch that joins them, the file server at it, and the nodes after the first. The switch is a bridge in namespaces of
# its own (node 0), which the file server shares: this machine's network has one interface more, as with one node.
# shellcheck shell=bash

# pods_of NUMBER: the pods' addresses on a node
pods_of() { echo "${POD_CIDR%.*.*}.$1.0/24"; }

# others: the numbers of the other nodes
others() { seq "$NODES" | grep -vx "$NODE"; }

# start_file_server: and what its clients on all nodes read, which are started at the same time
start_file_server() {
  fill "$HERE/node/server.vol.in" > "$NODE_RUN/server.vol"
  fill "$HERE/node/client.vol.in" > "$RUN/client.vol"
  node_daemon file-server glusterfsd -N -f "$NODE_RUN/server.vol" -l "$LOG/glusterfsd.log" -p /run/glusterfsd.pid
  wait_for 60 file-server "$HERE/in-node" bash -c ": < /dev/tcp/$SERVER_IP/24007"
}

# start_switch: node 0. Its disk is a file of a bounded size, which a full claim fills in place of this machine's disk.
start_switch() {
  use_node 0
  start_namespaces
  mkdir -p "$NODE_RUN/disk"
  truncate -s "${TRAINYARD_STORAGE_GB:-8}G" "$NODE_RUN/disk.img"
  mkfs.ext4 -q -m 0 "$NODE_RUN/disk.img"
  "$HERE/in-node" sh -ec "ip link add switch type bridge; ip addr add $SERVER_IP/24 dev switch; ip link set switch up
    mount -o loop $NODE_RUN/disk.img $NODE_RUN/disk"
  start_file_server
}

# plug_in: a cable from the node to the switch, and routes to the other nodes' pods
plug_in() {
  local number route=''
  ip link add "cable$NODE" netns "$(cat "$RUN/node-0/node.pid")" type veth peer name eth1 netns "$(cat "$NODE_RUN/node.pid")"
  TRAINYARD_NODE=0 "$HERE/in-node" ip link set "cable$NODE" master switch up
  for number in $(others); do route+="ip route add $(pods_of "$number") via $CABLES.$number; "; done
  if [ "$NODE" = 1 ]; then
    # the one way out: to this machine, which knows no other address
    route+="nft 'add table ip trainyard; add chain ip trainyard out { type nat hook postrouting priority srcnat; }
      add rule ip trainyard out oifname eth0 masquerade'"
  else
    route+="ip route add default via $CABLES.1"
  fi
  "$HERE/in-node" sh -ec "ip addr add $CABLES.$NODE/24 dev eth1; ip link set eth1 up; $route"
}

# mount_volumes: what the file server serves, on this node
mount_volumes() {
  mkdir -p "$VOLUMES"
  node_daemon "glusterfs$SUFFIX" glusterfs -N -f "$RUN/client.vol" -l "$LOG/glusterfs-client$SUFFIX.log" -p /run/glusterfs.pid \
    --attribute-timeout=1 --entry-timeout=1 "$VOLUMES"
  wait_for 60 "glusterfs$SUFFIX" "$HERE/in-node" mountpoint -q "$VOLUMES"
}

# start_worker NUMBER: a node after the first, up to its containerd
start_worker() {
  use_node "$1"
  start_namespaces
  plug_in
  start_containerd
  mount_volumes
  wait_containerd
}

# each_worker COMMAND...: for all nodes after the first at once, with their number as the last word
each_worker() {
  local number pids=()
  for number in $(seq 2 "$NODES"); do
    (set -e; "$@" "$number") &
    pids+=($!)
  done
  all_of "${pids[@]}"
}

# at_once COMMAND...: all at the same time; each is a word
at_once() {
  local command pids=()
  for command in "$@"; do
    (set -e; "$command") &
    pids+=($!)
  done
  all_of "${pids[@]}"
}

# all_of PID...: wait until all have ended, so that nothing half-started goes on; fails when one has failed
all_of() {
  local pid failed=0
  for pid in "$@"; do wait "$pid" || failed=1; done
  return $failed
}

start_other_nodes() {
  (start_switch)
  use_node 1
  plug_in
  at_once mount_volumes start_workers
}
start_workers() { each_worker start_worker; }

# start_nodes: the other nodes, while the first one's control plane starts
start_nodes() { at_once start_control_plane start_other_nodes; }

# start_worker_agents NUMBER: they join the cluster, once there is an API server
start_worker_agents() {
  use_node "$1"
  start_kubelet
  wait_kubelet
  start_policies
}

# start_agents: of all nodes at once
start_first_agents() { start_node_agents; start_policies; }
start_other_agents() { each_worker start_worker_agents; }
start_agents() { at_once start_first_agents start_other_agents; }

# start_policies: NetworkPolicies are enforced on a node, which Kubernetes must know
start_policies() {
  local program
  program=$("$ROOT/hack/netpol/build")
  node_daemon "netpol$SUFFIX" "$HERE/node/again" "$program" --kubeconfig="$RUN/admin.conf" --node="$NODE_NAME" --service-cidr="$SERVICE_CIDR"
  wait_for 120 "netpol$SUFFIX" "$HERE/in-node" iptables -w -n -L KUBE-ROUTER-FORWARD
}
