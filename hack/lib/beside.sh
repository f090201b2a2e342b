# Work beside other work: `beside` starts it, `await` waits for it and shows what it said. What is left when the script ends is ended.
# shellcheck shell=bash
declare -A BESIDE=() # name -> process group
BESIDE_LOGS=$(mktemp -d)

# beside NAME COMMAND...: in a process group of its own, to be ended with all that it started
beside() {
  local name=$1
  shift
  set -m
  (set -e; "$@") > "$BESIDE_LOGS/$name" 2>&1 < /dev/null &
  set +m
  BESIDE[$name]=$!
}

# await NAME: ends with its exit code; 0 if it was awaited before
await() {
  local rc=0
  [ -n "${BESIDE[$1]:-}" ] || return 0
  wait "${BESIDE[$1]}" || rc=$?
  unset "BESIDE[$1]"
  cat "$BESIDE_LOGS/$1"
  return $rc
}

# end_beside: for the script's trap on EXIT
end_beside() {
  local pid
  for pid in "${BESIDE[@]}"; do kill -- "-$pid" 2> /dev/null || true; done
  rm -rf "$BESIDE_LOGS"
}
