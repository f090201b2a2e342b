# Shared by the scripts: where things lie, progress lines with times, failures that end in a remedy.
# shellcheck shell=bash disable=SC2034
ROOT=$(cd "$(dirname "${BASH_SOURCE[0]}")/../.." && pwd)
CACHE=${TRAINYARD_CACHE:-${HOME:-/root}/.cache/trainyard}
PART=${PART:-$(basename "$0")} # what speaks: the first word of every line

say() { printf '%s: %s\n' "$PART" "$*" >&2; }
die() { say "$*"; exit 1; }

# now_ms, since MS: milliseconds, and the time since then as people read it
now_ms() { date +%s%3N; }
since() {
  local ms=$(($(now_ms) - $1))
  if [ $ms -lt 60000 ]; then printf '%d.%d s' $((ms / 1000)) $((ms % 1000 / 100)); else printf '%d min %02d s' $((ms / 60000)) $((ms / 1000 % 60)); fi
}

# step LABEL LOG COMMAND...: one progress line with its time. What COMMAND prints goes to LOG; on failure the
# log's tail is shown and the function step_failed, where there is one, says what to do. Not for use in conditions:
# COMMAND runs in a subshell of its own so that `set -e` holds inside it.
step() {
  local label=$1 log=$2 start rc
  shift 2
  start=$(now_ms)
  printf '%s: %-58s ' "$PART" "$label" >&2
  set +e
  (set -e; "$@") > "$log" 2>&1
  rc=$?
  set -e
  if [ $rc = 0 ]; then printf '%9s\n' "$(since "$start")" >&2; return 0; fi
  printf 'FAILED after %s\n' "$(since "$start")" >&2
  sed 's/^/    /' "$log" | tail -n 20 >&2
  if declare -F step_failed > /dev/null; then step_failed "$label"; fi
  if [ -e "$log" ]; then say "the whole log: $log"; fi
  exit 1
}

# content_key [TEXT...] < list of files below ROOT: one short name for their content and the texts
content_key() { (cd "$ROOT" && xargs sha256sum; printf '%s\n' "$@") | sha256sum | cut -c1-16; }

# locked FILE: hold FILE's lock until this script ends, waiting for whoever has it
locked() {
  mkdir -p "$(dirname "$1")"
  exec {LOCK_FD}> "$1"
  flock -n "$LOCK_FD" || { say "another run is at it; waiting for it to end"; flock "$LOCK_FD"; }
}

# image_tar ARCHIVE.tar|OCI_FOLDER: an image as a tar. A folder's blobs are named by their content, which containerd looks at; GNU tar ends
# with 1 where another process has made a link to one meanwhile.
image_tar() {
  if [ ! -d "$1" ]; then
    cat "$1"
  else
    tar -C "$1" --warning=no-file-changed -cf - oci-layout index.json blobs || [ $? = 1 ]
  fi
}
