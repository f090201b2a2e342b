# What the add-ons are built from and of: programs of the Go modules beside this file, images that hold them, manifests.
# shellcheck shell=bash disable=SC2034
ADD_ONS=(trainer kueue argocd mpi-operator)

# modules_of NAME: the folders here that the add-on is made from
modules_of() { case $1 in trainer) echo jobset trainer ;; *) echo "$1" ;; esac; }

# source_of PROGRAM: the Go module that it comes from, which also has its manifests
source_of() {
  case $1 in
    jobset) echo sigs.k8s.io/jobset ;;
    trainer) echo github.com/kubeflow/trainer/v2 ;;
    kueue) echo sigs.k8s.io/kueue ;;
    argocd) echo github.com/argoproj/argo-cd/v3 ;;
    mpi-operator) echo github.com/kubeflow/mpi-operator ;;
  esac
}
# folder_of PROGRAM: where its go.mod is; TRAINYARD_TRAINER=2.1 takes another Trainer, and the JobSet that it asks for
folder_of() {
  local other
  case $1 in
    jobset | trainer) other=${TRAINYARD_TRAINER:+trainer-$TRAINYARD_TRAINER} ;;
    kueue) other=${TRAINYARD_KUEUE:+kueue-$TRAINYARD_KUEUE} ;;
    mpi-operator) other=${TRAINYARD_MPI_OPERATOR:+mpi-operator-$TRAINYARD_MPI_OPERATOR} ;;
  esac
  if [ -n "${other:-}" ]; then echo "$ROOT/hack/versions/$other/$1"; else echo "$PROGRAMS"; fi
}
version_of() { sed -nE "s#^[[:space:]]*$(source_of "$1") (v[0-9][^ ]*).*#\1#p" "$(folder_of "$1")/go.mod"; }
# program_of PROGRAM: its file, in the cache
program_of() {
  local folder
  folder=$(folder_of "$1")
  if [ "$folder" = "$PROGRAMS" ]; then echo "$(programs_home)/$1"; else "$ROOT/hack/versions/build" "${folder#"$ROOT/hack/versions/"}"; fi
}
# gates_of PROGRAM: the option for what only the newest Trainer can do
gates_of() { if [ "$1" = trainer ] && [ "${TRAINYARD_TRAINER:-}" != 2.1 ]; then echo --feature-gates=TrainJobStatus=true; fi; }

# extra_key NAME, extra_home NAME: what its content is named by, and where it is cached
extra_key() {
  local modules module
  read -ra modules <<< "$(modules_of "$1")"
  files "${modules[@]/#/extras/}" extras/build.sh images/oci.py |
    content_key "$(basename "$(programs_home)")" "$IMAGE" "$(for module in "${modules[@]}"; do version_of "$module"; done)"
}
extra_home() { echo "$CACHE/cluster/extra-$1-$(extra_key "$1")"; }

# manifests MODULE FOLDER IMAGE: its own, from FOLDER of its module, with our image and settings; `upstream` beside ours is that folder
manifests() {
  local work=$PARTIAL/work/$1 module file
  module=$(module_dir "$(source_of "$1")" "$(folder_of "$1")")
  mkdir -p "$work"
  for file in "$HERE/extras/$1"/*.yaml; do
    sed "s#@IMAGE@#$3#; s#@VERSION@#$(version_of "$1")#; s#@GATES@#$(gates_of "$1")#" "$file" > "$work/${file##*/}"
  done
  cp -r --no-preserve=mode "$module/$2" "$work/upstream"
  # one replica: nobody to agree with, and a busy machine would lose the lease, which ends the process
  find "$work/upstream" -name controller_manager_config.yaml -exec sed -i 's/leaderElect: true/leaderElect: false/' {} +
  "$KUBECTL" kustomize "$work" > "$PARTIAL/manifests/$1.yaml"
}

# controller MODULE FOLDER: a program that runs as a pod. Its image is tagged by version and content: another one is rolled out.
controller() {
  local tagged
  tagged=$IMAGE/$1:$(version_of "$1")-$KEY
  python3 "$HERE/images/oci.py" "$tagged" "$PARTIAL/images/$1.tar" "$(program_of "$1"):/manager" -- /manager
  manifests "$1" "$2" "$tagged"
}

build_jobset() { controller jobset config; }
build_trainer() { controller trainer manifests; }
build_mpi-operator() { controller mpi-operator manifests; }
build_kueue() { controller kueue config; }
# One program that plays the part it is called by; two scripts of its own that it calls by name
build_argocd() {
  local part module
  mkdir -p "$PARTIAL/bin"
  ln -f "$(programs_home)/argocd" "$PARTIAL/bin/"
  for part in repo-server application-controller applicationset-controller; do ln -sf argocd "$PARTIAL/bin/argocd-$part"; done
  module=$(module_dir "$(source_of argocd)")
  install -m 755 "$module"/hack/{git-verify-wrapper,gpg-wrapper}.sh "$PARTIAL/bin/"
  manifests argocd manifests none
}

# build_extra NAME: into the cache, unless it is there
build_extra() {
  local home module
  KEY=$(extra_key "$1")
  home=$(extra_home "$1")
  PARTIAL=$home.part
  [ ! -d "$home" ] || { touch "$home"; return 0; }
  [ -n "${LOCK_FD:-}" ] || locked "$CACHE/cluster/.lock"
  [ ! -d "$home" ] || return 0
  need_go
  rm -rf "$PARTIAL"
  mkdir -p "$PARTIAL"/{images,manifests}
  for module in $(modules_of "$1"); do
    step "$module $(version_of "$module"): image and manifests" "$CACHE/cluster/extra-$module.log" "build_$module"
  done
  rm -rf "$PARTIAL/work"
  mv "$PARTIAL" "$home"
  find "$CACHE/cluster" -mindepth 1 -maxdepth 1 -name "extra-$1-*" -mtime +14 -exec rm -rf {} + # what nobody used lately
}
