# Go programs with a go.mod of their own, beside hack/programs: built once into the cache, which their content names.
# shellcheck shell=bash
. "$(dirname "${BASH_SOURCE[0]}")/go.sh"

step_failed() { say "modules come from the Go module proxy (GOPROXY=$(go env GOPROXY)): is it reachable, and is there room in $CACHE?"; }

# compile_module OUT PACKAGE...
compile_module() {
  local out=$1
  shift
  rm -rf "$out.part" && mkdir -p "$out.part"
  go_build "$out.part/" "-ldflags=-s -w" "$@"
  mv "$out.part" "$out"
}

# module_programs FOLDER PACKAGE...: build the packages of FOLDER/go.mod, where they are missing, and print the folder that has the programs
module_programs() {
  local folder=$1 out lock
  shift
  PROGRAMS=$ROOT/$folder # where go_build builds
  out=$CACHE/modules/${folder##*/}-$( (cd "$ROOT" && find "$folder" -type f; echo hack/lib/go.sh) | LC_ALL=C sort | content_key "$(go_version)")
  lock=$CACHE/modules/.lock-${folder##*/} # of its own: what is compiled slowly, beside other work, keeps nobody from the others
  if [ ! -d "$out" ]; then
    locked "$lock"
    if [ ! -d "$out" ]; then # whoever held the lock may have built it
      need_go
      step "$folder" "$CACHE/modules/log-${folder##*/}" compile_module "$out" "$@"
    fi
  fi
  touch "$out"
  # others may take some away, or give them their names, meanwhile
  find "$CACHE/modules" -ignore_readdir_race -mindepth 1 -maxdepth 1 -type d -mtime +14 -exec rm -rf {} + # what nobody used lately
  echo "$out"
}
