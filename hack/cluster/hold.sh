# Who has the machine: one lock, held by whoever starts, stops or uses the cluster, and a line that says who that is.
# shellcheck shell=bash disable=SC2034
HOLD_SECONDS=${TRAINYARD_WAIT:-600} # how long to wait for another one

# holder: the words of whoever holds the machine; the lock of one that was killed lasts until its last child has ended
holder() {
  local pid words
  read -r pid words 2> /dev/null < "$STATE/owner" || { echo "another run"; return 0; }
  if [ -e "/proc/$pid" ]; then echo "$words"; else echo "what is left of $words"; fi
}

# hold_machine WORDS: hold the machine until this script ends; whoever calls us may hold it already
hold_machine() {
  mkdir -p "$STATE" || die "$STATE cannot be made: run as root, or set TRAINYARD_STATE to a folder of yours"
  if [ -n "${TRAINYARD_HOLD:-}" ] && [ "$(cut -d' ' -f1 "$STATE/owner" 2> /dev/null)" = "$TRAINYARD_HOLD" ] && kill -0 "$TRAINYARD_HOLD"; then return 0; fi
  exec {HOLD_FD}> "$STATE/lock"
  if ! flock -n "$HOLD_FD"; then
    say "the machine is held by $(holder); waiting up to $HOLD_SECONDS s (TRAINYARD_WAIT)"
    flock -w "$HOLD_SECONDS" "$HOLD_FD" || die "still held by $(holder): let it end, or end it, then try again"
  fi
  echo "$$ $1 (pid $$, in $ROOT, since $(date +%H:%M:%S))" > "$STATE/owner"
  export TRAINYARD_HOLD=$$
}
