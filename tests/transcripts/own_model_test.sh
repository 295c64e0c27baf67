#!/bin/bash
# recipes/own_model.lua by the real executable ($QENG): it learns a text, gives the same bits again, and refuses what it
# cannot take.
set -u
. "$(dirname "$0")/stopped.sh"
QENG=$(realpath "${QENG:-build/release/qeng}")
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT
failures=0
fail() { echo "FAILED $*"; failures=$((failures + 1)); }

for i in $(seq 200); do echo "the cat sat on the mat. "; done | tr -d '\n' >"$work/text"
run() {
  local out=$1
  shift
  ${EXEC:-} "$QENG" recipes/own_model.lua --data "$work/text" --width 32 --length 24 --rows 4 --steps 150 --device cpu --threads 1 \
    --prompt "the cat" --out "$work/$out" "$@" >"$work/log" 2>&1
}
run first || fail "the run: $(cat "$work/log")"
grep -q "the cat sat on the mat. the cat sat on the mat. " "$work/log" || fail "it goes on with: $(cat "$work/log")"
[ "$(wc -l <"$work/first/metrics.jsonl")" = 150 ] || fail "metrics.jsonl"
run second || fail "the run again: $(cat "$work/log")"
cmp "$work/first/model.safetensors" "$work/second/model.safetensors" || fail "other bits"

# Stopped after some steps, it goes on to the same bits.
stopped "$work/stop" run stop && fail "a stopped run ends well"
run stop --resume || fail "resumed: $(cat "$work/log")"
cmp "$work/first/model.safetensors" "$work/stop/model.safetensors" || fail "other bits when resumed"
run odd --width 30 && fail "a width that the heads do not divide is taken"

[ $failures = 0 ] || { echo "$failures failures"; exit 1; }
echo "all passed"
