# What a machine must have before a node is started on it; each check names the cause and the remedy.
# shellcheck shell=bash

# command:package pairs, and files by their path
NEEDED=(containerd:containerd ctr:containerd runc:runc /usr/lib/cni/ptp:containernetworking-plugins etcd:etcd-server nft:nftables iptables:iptables
  conntrack:conntrack ip:iproute2 openssl:openssl mmdebstrap:mmdebstrap nsenter:util-linux pgrep:procps python3:python3)
if [ "$NODES" != 1 ]; then NEEDED+=(glusterfsd:glusterfs-client glusterfs:glusterfs-client mkfs.ext4:e2fsprogs ipset:ipset tc:iproute2); fi

check_root() { [ "$(id -u)" = 0 ] || die "root is needed for a node's namespaces and mounts: run as root, or set KUBECONFIG to a cluster of your own"; }

check_state() {
  case $STATE in
    /run/* | /opt/* | /var/log/*) die "TRAINYARD_STATE=$STATE: the node has a /run, /opt and /var/log of its own; choose another folder" ;;
    /*) [ ${#STATE} -le 70 ] || die "TRAINYARD_STATE=$STATE is too long for the sockets in it: choose one of at most 70 characters" ;;
    *) die "TRAINYARD_STATE=$STATE must start with /" ;;
  esac
}

check_packages() {
  local pair missing=()
  for pair in "${NEEDED[@]}"; do
    if ! PATH=$PATH:/usr/sbin:/sbin command -v "${pair%%:*}" > /dev/null; then missing+=("${pair#*:}"); fi
  done
  [ ${#missing[@]} = 0 ] || die "Debian packages are missing; run: apt-get install --no-install-recommends $(printf '%s\n' "${missing[@]}" | sort -u | xargs)"
}

check_kernel() {
  local c
  case $(cgroup_version) in
    1) ;;
    2)
      for c in "${CONTROLLERS[@]}"; do
        grep -qw "$c" "$UNIFIED" ||
          die "this machine's cgroup v2 has no controller '$c' (it has: $(cat "$UNIFIED")): inside a container? Run on the machine itself, or set KUBECONFIG to a cluster of your own"
      done
      [ ! -e /sys/fs/cgroup/cgroup.type ] || die "/sys/fs/cgroup is not the root of this machine's cgroups (a container?): run on the machine itself, or set KUBECONFIG to a cluster of your own"
      ;;
    *) die "this machine has neither cgroup v2 nor v1 at /sys/fs/cgroup: set KUBECONFIG to a cluster of your own" ;;
  esac
  unshare -m -n -p --fork true 2> /dev/null || die "no new namespaces may be made here (an unprivileged container?): run on the machine itself, or set KUBECONFIG to a cluster of your own"
  grep -qw overlay /proc/filesystems || modprobe overlay 2> /dev/null || die "this kernel has no overlay file system, which containerd needs"
  [ "$NODES" = 1 ] || check_kernel_for_several
}

# check_kernel_for_several: what the switch, the file server and its clients need
check_kernel_for_several() {
  local module
  for module in bridge fuse loop; do
    [ -d "/sys/module/$module" ] || modprobe "$module" 2> /dev/null || die "this kernel has no module '$module', which several nodes need: make cluster starts one"
  done
  [ ! -d "$IMAGES_THERE" ] || die "TRAINYARD_UNPACKED_IMAGES=$IMAGES_THERE: a folder is for one node; unset it, or NODES"
}

check_disk() {
  local need=${TRAINYARD_MIN_DISK_GB:-8} free
  free=$(($(df --output=avail -k "$STATE" | tail -n 1) / 1048576))
  [ "$free" -ge "$need" ] || die "$STATE has $free GB free and the node with its images wants $need (TRAINYARD_MIN_DISK_GB): make room, or set TRAINYARD_STATE to a folder on a larger disk"
}

# check_network: nobody else uses the interface's name, the addresses, or the pods' and services' ranges
check_network() {
  local taken
  [ ! -e "/sys/class/net/$LINK" ] || die "an interface $LINK is here already and is not ours: set TRAINYARD_LINK to another name"
  taken=$(ip -4 route show table all match "$API_IP" | grep -v '^default' || true)
  [ -z "$taken" ] || die "the address $API_IP is taken (ip route: ${taken%%$'\n'*}): set TRAINYARD_HOST_IP and TRAINYARD_NODE_IP to two free ones of one /30"
}
