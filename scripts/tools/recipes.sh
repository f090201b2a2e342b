# How each tool is built: one function a tool, in which `make_tool PACKAGE [LDFLAGS]` builds it from its folder's go.mod.
# shellcheck shell=bash disable=SC2034
TOOLS=(helm3 helm-unittest helm4 ct kubeconform helm-docs helm-values-schema-json podsecurity render kubectl)

# Helm 3 as a library takes Kubernetes 1.20 unless told, and helm-unittest is built on it: give both the version of
# the client-go that Helm 3 pins, as Helm's own Makefile does.
helm3_kube() {
  local minor chartutil=helm.sh/helm/v3/pkg/chartutil
  minor=$(module_version "$HERE/helm3" k8s.io/client-go | cut -d. -f2)
  echo "-X $chartutil.k8sVersionMajor=1 -X $chartutil.k8sVersionMinor=$minor"
}

recipe_helm3() {
  local m=helm.sh/helm/v3 kube
  kube=$(helm3_kube)
  make_tool $m/cmd/helm "-X $m/internal/version.version=$(module_version . $m) $kube ${kube//chartutil/lint/rules}"
}
# Helm 4 takes its Kubernetes version from its build information
recipe_helm4() { make_tool helm.sh/helm/v4/cmd/helm "-X helm.sh/helm/v4/internal/version.version=$(module_version . helm.sh/helm/v4)"; }
recipe_helm-unittest() { make_tool github.com/helm-unittest/helm-unittest/cmd/helm-unittest "$(helm3_kube)"; }
recipe_ct() {
  local m=github.com/helm/chart-testing/v3 etc
  make_tool $m/ct "-X $m/ct/cmd.Version=$(module_version . $m)"
  etc=$(module_dir . $m)/etc # its schema of Chart.yaml and its rules for yamllint, which `ct lint` wants as files
  install -m 644 "$etc/chart_schema.yaml" "$etc/lintconf.yaml" "$OUT/"
}
recipe_kubeconform() { make_tool github.com/yannh/kubeconform/cmd/kubeconform "-X main.version=$(module_version . github.com/yannh/kubeconform)"; }
recipe_helm-docs() { make_tool github.com/norwoodj/helm-docs/cmd/helm-docs "-X main.version=$(module_version . github.com/norwoodj/helm-docs)"; }
recipe_helm-values-schema-json() { make_tool github.com/losisin/helm-values-schema-json/v2; }
recipe_podsecurity() { make_tool .; }
recipe_render() { make_tool . "$(helm3_kube)"; }
recipe_kubectl() { make_tool k8s.io/kubernetes/cmd/kubectl "$(kubernetes_ldflags .)"; }

# tool_folder TOOL: where its go.mod is
tool_folder() { if [ "$1" = kubectl ]; then echo "$ROOT/scripts/cluster/modules/kubernetes"; else echo "$HERE/$1"; fi; }
