# The steps of `up`, in order. Each is run by `step`, with its output in a log. Waits end at success or when a program has ended; their
# seconds are for what hangs, several times what a slow machine needs.
# shellcheck shell=bash

# start_namespaces: the node's namespaces, and what its programs read
start_namespaces() {
  local scope file
  mkdir -p "$NODE_RUN"/{cni,kubelet}
  for file in containerd.toml kubelet.yaml kube-proxy.yaml; do fill "$HERE/node/$file.in" > "$NODE_RUN/$file"; done
  fill "$HERE/node/cni.conflist.in" > "$NODE_RUN/cni/10-pods.conflist"
  read -ra scope <<< "$(scope_command)"
  daemon "node$SUFFIX" "${scope[@]}" "$HERE/node/namespaces"
  wait_for 120 "node$SUFFIX" test -e "$NODE_RUN/node.ready"
  pgrep -P "$(cat "$RUN/pids/node$SUFFIX")" > "$NODE_RUN/node.pid"
}

start_node() {
  echo "nameserver 127.0.0.1" > "$RUN/resolv.conf" # what dnsPolicy: Default sees: nothing outside is reached
  start_namespaces
  ip link add "$LINK" type veth peer name eth0 netns "$(cat "$RUN/node.pid")"
  ip addr add "$HOST_IP/30" dev "$LINK"
  ip link set "$LINK" up
  "$HERE/in-node" sh -ec "ip addr add $NODE_IP/30 dev eth0; ip link set eth0 up; ip route add default via $HOST_IP"
}

start_api_server() {
  local pki=$RUN/pki
  node_daemon kube-apiserver "$HERE/node/again" "$BUILT/bin/kube-apiserver" --advertise-address="$API_IP" --bind-address="$API_IP" --secure-port=6443 \
    --etcd-servers=http://127.0.0.1:2379 --feature-gates=SizeBasedListCostEstimate=false --service-cluster-ip-range="$SERVICE_CIDR" \
    --allow-privileged=true --authorization-mode=Node,RBAC --enable-admission-plugins=NodeRestriction --client-ca-file="$pki/ca.crt" \
    --tls-cert-file="$pki/apiserver.crt" --tls-private-key-file="$pki/apiserver.key" \
    --kubelet-certificate-authority="$pki/ca.crt" --kubelet-preferred-address-types=InternalIP \
    --kubelet-client-certificate="$pki/apiserver-kubelet-client.crt" --kubelet-client-key="$pki/apiserver-kubelet-client.key" \
    --service-account-issuer=https://kubernetes.default.svc.cluster.local \
    --service-account-key-file="$pki/sa.pub" --service-account-signing-key-file="$pki/sa.key" \
    --requestheader-client-ca-file="$pki/ca.crt" --requestheader-allowed-names=front-proxy-client --requestheader-username-headers=X-Remote-User \
    --requestheader-group-headers=X-Remote-Group --requestheader-extra-headers-prefix=X-Remote-Extra- \
    --proxy-client-cert-file="$pki/front-proxy-client.crt" --proxy-client-key-file="$pki/front-proxy-client.key"
}

# find_images: sets `images`, what a node has: its own, and this tree's if they are built; and `unpacked`, the folder where they are unpacked once
find_images() {
  local tag
  tag=$("$ROOT/hack/images/tag") images=("$BUILT"/images/*.tar) unpacked=$CACHE/unpacked/${BUILT##*/}
  if [ "$IMAGES_THERE" != own ] && [ -e "$CACHE/images/$tag/index.json" ]; then images+=("$CACHE/images/$tag") unpacked+=-$tag; fi
}

# find_earlier_images: where this tree's are not built yet, those of the tree before, whose large layers are mostly the same: hack/images/load
# then sends the others. A folder where they are unpacked serves as long as it has all large ones of the newest build.
find_earlier_images() {
  local newest folder
  [ "$IMAGES_THERE" != own ] && [ ${#images[@]} -gt 0 ] && [ ! -d "${images[-1]}" ] || return 0
  newest=$(find "$CACHE/images" -mindepth 1 -maxdepth 1 -name '[0-9]*-*' -printf '%T@ %p\n' 2> /dev/null | sort -rn | sed 1q | cut -d' ' -f2) || true
  [ -n "$newest" ] || return 0
  for folder in "$unpacked"-*; do
    if [[ $folder != *.part ]] && has_large_layers "$folder" "$newest"; then unpacked=$folder && return 0; fi
  done
  images+=("$newest") unpacked+=-${newest##*/}
}

# has_large_layers FOLDER LAYOUT: are the layout's layers that take long to unpack in the folder?
has_large_layers() {
  local layer
  [ -d "$1/io.containerd.content.v1.content" ] || return 1
  while read -r layer; do
    [ -e "$1/io.containerd.content.v1.content/blobs/sha256/$layer" ] || return 1
  done < <(find "$2/blobs/sha256" -size +32M -printf '%f\n')
}

# linked_images: have images in a node before its containerd starts. All nodes read the files of the images where they were unpacked once, which
# no container writes to; containerd's lists of what it has are the node's own. A link to a folder is all that a removed image takes away.
SNAPSHOTS=io.containerd.snapshotter.v1.overlayfs
linked_images() {
  local images unpacked list own=$NODE_RUN/containerd/root
  find_images
  find_earlier_images
  [ "$(stat -c %d "$CACHE")" = "$(stat -c %d "$RUN")" ] || return 1 # nothing is linked from one file system to another
  "$HERE/unpack" "$unpacked" "${images[@]}" || return 1
  use_unpacked "$unpacked"
  mkdir -p "$own/$SNAPSHOTS/snapshots"
  find "$unpacked" -mindepth 1 -maxdepth 1 -name 'io.*' -not -name $SNAPSHOTS -exec cp -alt "$own" {} + || return 1
  cp "$unpacked/$SNAPSHOTS/metadata.db" "$own/$SNAPSHOTS/" && ln -st "$own/$SNAPSHOTS/snapshots" "$unpacked/$SNAPSHOTS"/snapshots/* || return 1
  for list in "$own"/*/*.db; do cp "$list" "$list.own" && mv "$list.own" "$list" || return 1; done
}

# use_unpacked FOLDER: it stays while this cluster is there. Of the others the newest stay, and those that another cluster uses.
use_unpacked() {
  local old
  mkdir -p "$1/used-by"
  ln -sfn "$RUN" "$1/used-by/$CGROUP"
  touch "$1"
  find "$CACHE/unpacked" -mindepth 1 -maxdepth 1 -type d -printf '%T@ %p\n' | sort -rn | tail -n +4 | cut -d' ' -f2 | while read -r old; do
    [ -n "$(find "$old/used-by" -xtype d -name 'trainyard-node-*' 2> /dev/null)" ] || rm -rf "$old"
  done
}

# start_containerd: with images, where they can be linked
start_containerd() {
  if [ -d "$IMAGES_THERE" ]; then
    mkdir -p "$NODE_RUN/containerd/root"
    "$HERE/in-node" mount --bind "$IMAGES_THERE" "$NODE_RUN/containerd/root"
  else
    linked_images || { touch "$NODE_RUN/no-images" && rm -rf "$NODE_RUN/containerd/root"; }
  fi
  node_daemon "containerd$SUFFIX" containerd -c "$NODE_RUN/containerd.toml"
}

# wait_containerd: until it answers, to kubelet too, and has the node's images. It reads what it has before it answers kubelet, for 40 s where
# the disk is busy with images that were just unpacked; kubelet ends at an answer that comes too early, and ctr cannot ask for it.
wait_containerd() {
  local images unpacked archive
  wait_for 180 "containerd$SUFFIX" "$HERE/in-node" ctr -a "$NODE_RUN/containerd.sock" version
  wait_for 180 "containerd$SUFFIX" grep -q "Start streaming server" "$LOG/containerd$SUFFIX.log"
  [ -e "$NODE_RUN/no-images" ] || return 0
  find_images
  for archive in "${images[@]}"; do import_image "$archive"; done
}

start_etcd() {
  local peer=http://127.0.0.1:2380 client=http://127.0.0.1:2379
  # on the node's own tmpfs: nothing of it outlives the node
  node_daemon etcd etcd --data-dir /run/etcd --listen-client-urls $client --advertise-client-urls $client --listen-peer-urls $peer --log-level warn
}

start_control_plane() {
  start_etcd
  start_containerd
  start_api_server
  wait_containerd
  wait_for 900 kube-apiserver kubectl get --raw /readyz
}

start_kubelet() {
  node_daemon "kubelet$SUFFIX" "$HERE/node/again" "$BUILT/bin/kubelet" --config="$NODE_RUN/kubelet.yaml" --kubeconfig="$RUN/kubelet$SUFFIX.conf" \
    --root-dir="$NODE_RUN/kubelet" --hostname-override="$NODE_NAME" --node-ip="$NODE_IP"
  node_daemon "kube-proxy$SUFFIX" "$HERE/node/again" "$BUILT/bin/kube-proxy" --config="$NODE_RUN/kube-proxy.yaml"
}

# wait_kubelet: until the node is Ready
wait_kubelet() {
  wait_for 600 "kubelet$SUFFIX" kubectl wait --for=create "node/$NODE_NAME" --timeout=5s
  kubectl wait --for=condition=Ready "node/$NODE_NAME" --timeout=$((900 * PATIENCE))s
}

start_node_agents() {
  local file pki=$RUN/pki
  node_daemon kube-controller-manager "$HERE/node/again" "$BUILT/bin/kube-controller-manager" --kubeconfig="$RUN/controller-manager.conf" \
    --authentication-kubeconfig="$RUN/controller-manager.conf" --authorization-kubeconfig="$RUN/controller-manager.conf" \
    --service-account-private-key-file="$pki/sa.key" --root-ca-file="$pki/ca.crt" --cluster-signing-cert-file="$pki/ca.crt" \
    --cluster-signing-key-file="$pki/ca.key" --use-service-account-credentials --leader-elect=false --bind-address=127.0.0.1
  node_daemon kube-scheduler "$HERE/node/again" "$BUILT/bin/kube-scheduler" --kubeconfig="$RUN/scheduler.conf" --authentication-kubeconfig="$RUN/scheduler.conf" \
    --authorization-kubeconfig="$RUN/scheduler.conf" --leader-elect=false --bind-address=127.0.0.1
  start_kubelet
  for file in "$HERE"/addons/*.yaml.in; do fill "$file" | kubectl apply -f -; done
  # the PyTorchJob CRD is too large for a client-side apply
  for file in "$BUILT"/manifests/*.yaml; do kubectl apply --server-side -f "$file"; done
  wait_kubelet
}

# rolled_out NAMESPACE/DEPLOYMENT: wait for it; what its pods say when it does not come
rolled_out() {
  kubectl -n "${1%/*}" rollout status "deploy/${1#*/}" --timeout=$((900 * PATIENCE))s && return 0
  kubectl -n "${1%/*}" get pods,events
  kubectl -n "${1%/*}" logs "deploy/${1#*/}" --tail=10
  return 1
}

wait_addons() {
  rolled_out "${DEPLOYMENTS[0]}"
  rolled_out "${DEPLOYMENTS[1]}"
}

# training-operator waits for a Secret that it makes itself: its kubelet mounts it when it looks at the pod next, within 90 seconds, or when
# the pod changes.
# A pod that is Ready does not mean that its webhook answers: ask it
start_operators() {
  local try
  for try in {1..20}; do
    kubectl -n kubeflow rollout status deploy/training-operator --timeout=3s && break
    kubectl -n kubeflow annotate pods --all --overwrite "trainyard/look-again=$try" || true # one of before may just have gone
  done
  rolled_out "${DEPLOYMENTS[2]}" && rolled_out "${DEPLOYMENTS[3]}" &&
    wait_for 300 kube-apiserver kubectl create --dry-run=server -f "$HERE/addons/probe.yaml"
}
