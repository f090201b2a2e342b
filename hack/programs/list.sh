# The Go programs: which package each is, and what its linker is told. Names are those in build/bin and in the cache.
# shellcheck shell=bash disable=SC2034
TOOLS=(helm3 helm-unittest helm4 ct kubeconform helm-docs helm-values-schema-json podsecurity render kubectl actionlint)
CLUSTER=(kubectl kubernetes coredns local-path-provisioner training-operator mpi-operator pause)
EXTRAS=(jobset trainer kueue argocd)

# members NAME...: programs, and all of a group
members() {
  local name
  for name in "$@"; do
    case $name in
      tools) echo "${TOOLS[@]}" ;;
      cluster) echo "${CLUSTER[@]}" ;;
      extras) echo "${EXTRAS[@]}" ;;
      *) echo "$name" ;;
    esac
  done | tr ' ' '\n' | awk '!seen[$0]++'
}

# package_of NAME
package_of() {
  case $1 in
    helm3) echo helm.sh/helm/v3/cmd/helm ;;
    helm4) echo helm.sh/helm/v4/cmd/helm ;;
    helm-unittest) echo github.com/helm-unittest/helm-unittest/cmd/helm-unittest ;;
    ct) echo github.com/helm/chart-testing/v3/ct ;;
    kubeconform) echo github.com/yannh/kubeconform/cmd/kubeconform ;;
    helm-docs) echo github.com/norwoodj/helm-docs/cmd/helm-docs ;;
    helm-values-schema-json) echo github.com/losisin/helm-values-schema-json/v2 ;;
    kubectl) echo k8s.io/kubernetes/cmd/kubectl ;;
    actionlint) echo github.com/rhysd/actionlint/cmd/actionlint ;;
    kubernetes | coredns | pause | podsecurity | render) echo "trainyard.invalid/programs/cmd/$1" ;;
    local-path-provisioner) echo github.com/rancher/local-path-provisioner ;;
    training-operator) echo github.com/kubeflow/training-operator/cmd/training-operator.v1 ;;
    mpi-operator) echo github.com/kubeflow/mpi-operator/cmd/mpi-operator ;;
    jobset) echo sigs.k8s.io/jobset ;;
    trainer) echo github.com/kubeflow/trainer/v2/cmd/trainer-controller-manager ;;
    kueue) echo sigs.k8s.io/kueue/cmd/kueue ;;
    argocd) echo github.com/argoproj/argo-cd/v3/cmd ;;
    *) return 1 ;;
  esac
}

# alone NAME: two packages of one name, and two whose imports differ in case alone (logrus), cannot be built by one command
alone() { case $1 in helm4 | local-path-provisioner) return 0 ;; *) return 1 ;; esac; }

# pinned MODULE: its version in go.mod, read without Go
pinned() { sed -nE "s#^[[:space:]]*$1 (v[0-9][^ ]*).*#\1#p" "$PROGRAMS/go.mod"; }

# variables_of NAME: what else its linker is told; most programs do not know their own version, and call themselves v0.0.0
variables_of() {
  local m
  case $1 in
    helm3 | helm-unittest | render)
      m=helm.sh/helm/v3
      echo "-X $m/internal/version.version=$(pinned $m) $(helm3_kube $m/pkg/chartutil) $(helm3_kube $m/pkg/lint/rules)"
      ;;
    helm4) echo "-X helm.sh/helm/v4/internal/version.version=$(pinned helm.sh/helm/v4)" ;;
    ct) echo "-X github.com/helm/chart-testing/v3/ct/cmd.Version=$(pinned github.com/helm/chart-testing/v3)" ;;
    kubeconform) echo "-X main.version=$(pinned github.com/yannh/kubeconform)" ;;
    helm-docs) echo "-X main.version=$(pinned github.com/norwoodj/helm-docs)" ;;
    kueue) echo "-X sigs.k8s.io/kueue/pkg/version.GitVersion=$(pinned sigs.k8s.io/kueue)" ;;
    argocd) m=$(pinned github.com/argoproj/argo-cd/v3) && echo "-X github.com/argoproj/argo-cd/v3/common.version=${m#v}" ;;
    kubernetes | kubectl) kubernetes_version ;;
  esac
}

# helm3_kube PACKAGE: as a library Helm 3 takes Kubernetes 1.20 unless told; Helm's own Makefile gives it client-go's version
helm3_kube() { echo "-X $1.k8sVersionMajor=1 -X $1.k8sVersionMinor=$(pinned k8s.io/client-go | cut -d. -f2)"; }

kubernetes_version() {
  local v major minor p=k8s.io/component-base/version
  v=$(pinned k8s.io/kubernetes)
  IFS=. read -r major minor _ <<< "${v#v}"
  echo "-X $p.gitVersion=$v -X $p.gitMajor=$major -X $p.gitMinor=$minor -X $p.gitTreeState=clean -X $p.buildDate=1970-01-01T00:00:00Z"
}
