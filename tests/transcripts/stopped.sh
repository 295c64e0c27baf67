# For transcripts of runs: a run that Ctrl-C stops. Its function begins with ${EXEC:-}, so that the signal reaches it.

# stopped FOLDER COMMAND...: runs the command, interrupts it after three lines of FOLDER/metrics.jsonl, and has its status.
stopped() {
  local out=$1
  shift
  set -m  # else it would not see the signal
  EXEC=exec "$@" &
  local pid=$!
  set +m
  for _ in $(seq 600); do
    [ "$(cat "$out/metrics.jsonl" 2>/dev/null | wc -l)" -ge 3 ] && break
    sleep 0.05
  done
  kill -INT $pid
  wait $pid
}
