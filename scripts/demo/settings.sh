# Settings of the demo, to be sourced from the project's root. Each can be set in the environment.
CACHE=${TRAINYARD_CACHE:-$HOME/.cache/trainyard}
NAMESPACE=${NAMESPACE:-trainyard-demo}
OWNER=app.kubernetes.io/managed-by # label of what the demo makes: what has its names without it is another's
RELEASE=${RELEASE:-demo}
if [ -n "${KUBECONFIG:-}" ] && [ "$KUBECONFIG" != "$PWD/build/kubeconfig" ]; then
  OWN_CLUSTER=no
  REGISTRY=${REGISTRY:?KUBECONFIG names a cluster of your own: set REGISTRY too, where it can pull images from, such as registry.example.com/team}
else
  OWN_CLUSTER=yes
  export KUBECONFIG=$PWD/build/kubeconfig
  REGISTRY=localhost
fi
KUBECTL=kubectl
[ ! -x build/bin/kubectl ] && [ "$OWN_CLUSTER" = no ] || KUBECTL=build/bin/kubectl
