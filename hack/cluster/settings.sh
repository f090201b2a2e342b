# Settings of the one-node cluster, shared by every script here. Those with TRAINYARD_ in front can be set in the environment.
# shellcheck shell=bash disable=SC2034
HERE=$(cd "$(dirname "${BASH_SOURCE[0]}")" && pwd)
. "$HERE/../lib/common.sh"
# One state a machine means one cluster a machine. Another state is another cluster, and then LINK, HOST_IP and NODE_IP must differ too.
STATE=${TRAINYARD_STATE:-/var/lib/trainyard}
RUN=$STATE/run                               # all that the running cluster writes; gone after `down`
LOG=$RUN/log
NODE_NAME=trainyard
CGROUP=trainyard-node-$(cksum <<< "$STATE" | cut -d' ' -f1) # the node's cgroup, in every controller
LINK=${TRAINYARD_LINK:-trainyard0} # the host's end of the cable to the node
HOST_IP=${TRAINYARD_HOST_IP:-10.90.0.1}
NODE_IP=${TRAINYARD_NODE_IP:-10.90.0.2}
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

# What runs in the node gets this environment and nothing of the caller's, whose variables may hold secrets
CLEAN=(env -i PATH=/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin HOME=/root TRAINYARD_STATE="$STATE" TRAINYARD_CACHE="$CACHE"
  TRAINYARD_LINK="$LINK" TRAINYARD_HOST_IP="$HOST_IP" TRAINYARD_NODE_IP="$NODE_IP" TRAINYARD_POD_CIDR="$POD_CIDR" TRAINYARD_SERVICE_CIDR="$SERVICE_CIDR")

kubectl() { "$KUBECTL" --kubeconfig "$RUN/admin.conf" "$@"; }
# fill TEMPLATE: print it with @NAME@ replaced by the variable of that name
fill() {
  local text name
  text=$(< "$1")
  for name in RUN NODE_NAME NODE_IP POD_CIDR SERVICE_CIDR DNS_IP IMAGE; do text=${text//@$name@/${!name}}; done
  printf '%s\n' "$text"
}
# files DIR...: the files below folders of hack/cluster, as content_key wants them
files() { (cd "$ROOT" && find "${@/#/hack/cluster/}" -type f -not -name '*.md' | LC_ALL=C sort); }
# users_cluster: is KUBECONFIG set to another cluster than ours?
users_cluster() {
  [ -n "${KUBECONFIG:-}" ] && [ "$(realpath -m "$KUBECONFIG")" != "$(realpath -m "$OWN_KUBECONFIG")" ] && [ "$KUBECONFIG" != "$RUN/admin.conf" ]
}
