# Settings of the cluster, shared by every script here. Those with TRAINYARD_ in front can be set in the environment.
# shellcheck shell=bash disable=SC2034
HERE=$(cd "$(dirname "${BASH_SOURCE[0]}")" && pwd)
. "$HERE/../lib/common.sh"
# One state a machine means one cluster a machine. Another state is another cluster, and then LINK, HOST_IP and NODE_IP must differ too.
STATE=${TRAINYARD_STATE:-/var/lib/trainyard}
RUN=$STATE/run                               # all that the running cluster writes; gone after `down`
LOG=$RUN/log
NODES=${TRAINYARD_NODES:-$(cat "$RUN/count" 2> /dev/null || echo 1)} # unless told, as many as there are
CGROUP=trainyard-node-$(cksum <<< "$STATE" | cut -d' ' -f1) # of the first node, in every controller; others append their number
LINK=${TRAINYARD_LINK:-trainyard0} # the host's end of the cable to the first node
HOST_IP=${TRAINYARD_HOST_IP:-10.90.0.1}
API_IP=${TRAINYARD_NODE_IP:-10.90.0.2}         # the first node, which has the control plane
CABLES=10.92.0                                 # several nodes: their addresses on the switch that joins them, which the machine does not see
SERVER_IP=$CABLES.254                          # the file server's there
POD_CIDR=${TRAINYARD_POD_CIDR:-10.88.0.0/16}
SERVICE_CIDR=${TRAINYARD_SERVICE_CIDR:-10.96.0.0/16}
API_SERVICE_IP=${SERVICE_CIDR%.*/*}.1
DNS_IP=${SERVICE_CIDR%.*/*}.10
IMAGE=localhost/trainyard-node # the node's own images are $IMAGE/NAME:1
DEPLOYMENTS=(kube-system/coredns local-path-storage/local-path-provisioner kubeflow/training-operator mpi-operator/mpi-operator)
IMAGES_THERE=${TRAINYARD_UNPACKED_IMAGES:-}  # a containerd's root folder that has all images already (hack/vm); own: only the node's own
PATIENCE=${TRAINYARD_PATIENCE:-1}            # how many times longer than usual a slow machine may take
KUBECTL=$ROOT/build/bin/kubectl
OWN_KUBECONFIG=${TRAINYARD_KUBECONFIG:-$ROOT/build/kubeconfig}
[[ $NODES =~ ^[1-9]$ ]] || die "NODES=$NODES: a number from 1 to 9 is wanted"
# the default StorageClass, and the folder of its volumes, which all nodes share: the disk of the only node, or what the file server serves
if [ "$NODES" = 1 ]; then STORAGE_CLASS=local-path VOLUMES=$RUN/volumes; else STORAGE_CLASS=glusterfs VOLUMES=$RUN/shared; fi

# use_node NUMBER: which node the functions and scripts after it are about. 0: the switch and file server, which is no node of Kubernetes
use_node() {
  export TRAINYARD_NODE=$1
  NODE=$1 SUFFIX='' NODE_NAME=trainyard NODE_RUN=$RUN NODE_CGROUP=$CGROUP NODE_IP=$API_IP NODE_POD_CIDR=$POD_CIDR MASQUERADE=true
  if [ "$NODES" != 1 ]; then NODE_POD_CIDR=${POD_CIDR%.*.*}.$1.0/24 MASQUERADE=false; fi # pods of other nodes see a pod's own address
  if [ "$1" != 1 ]; then SUFFIX=-$1 NODE_NAME=trainyard-$1 NODE_RUN=$RUN/node-$1 NODE_CGROUP=$CGROUP-$1 NODE_IP=$CABLES.$1; fi
  # What runs in the node gets this environment and nothing of the caller's, whose variables may hold secrets
  CLEAN=(env -i PATH=/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin HOME=/root TRAINYARD_STATE="$STATE" TRAINYARD_CACHE="$CACHE"
    TRAINYARD_LINK="$LINK" TRAINYARD_HOST_IP="$HOST_IP" TRAINYARD_NODE_IP="$API_IP" TRAINYARD_POD_CIDR="$POD_CIDR" TRAINYARD_SERVICE_CIDR="$SERVICE_CIDR"
    TRAINYARD_NODES="$NODES" TRAINYARD_NODE="$NODE")
}
use_node "${TRAINYARD_NODE:-1}"

kubectl() { "$KUBECTL" --kubeconfig "$RUN/admin.conf" "$@"; }
# fill TEMPLATE: print it with @NAME@ replaced by the variable of that name
fill() {
  local text name
  text=$(< "$1")
  for name in RUN NODE_RUN NODE_NAME NODE_IP SUFFIX POD_CIDR NODE_POD_CIDR MASQUERADE SERVICE_CIDR DNS_IP IMAGE STORAGE_CLASS VOLUMES \
    CABLES SERVER_IP; do
    text=${text//@$name@/${!name}}
  done
  printf '%s\n' "$text"
}
# files DIR...: the files below folders of hack/cluster, as content_key wants them
files() { (cd "$ROOT" && find "${@/#/hack/cluster/}" -type f -not -name '*.md' | LC_ALL=C sort); }
# users_cluster: is KUBECONFIG set to another cluster than ours?
users_cluster() {
  [ -n "${KUBECONFIG:-}" ] && [ "$(realpath -m "$KUBECONFIG")" != "$(realpath -m "$OWN_KUBECONFIG")" ] && [ "$KUBECONFIG" != "$RUN/admin.conf" ]
}
