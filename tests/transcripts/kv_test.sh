#!/bin/bash
# recipes/kv_capture.lua, kv_rotations.lua, kv_evaluate.lua and kv_quality.lua by the real executable ($QENG) on the built-in model: each goes on after
# SIGKILL to the same bytes, and says what is wrong with what it is given.
set -u
QENG=$(realpath "${QENG:-build/release/qeng}")
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT
failures=0
fail() { echo "FAILED $*"; failures=$((failures + 1)); }

for i in $(seq 400); do printf 'The %s is behind the %s, said %d of them. ' "hat$((i % 7))" "door$((i % 5))" "$i"; done >"$work/text.txt"
capture() { "$QENG" recipes/kv_capture.lua --model recipes/tiny --dtype f32 --threads 1 --data "$work/text.txt" --tokens 200 --documents 6 --out "$@"; }
rotations() { "$QENG" recipes/kv_rotations.lua --captures "$work/whole" --documents 3 --threads 1 --out "$@"; }
evaluate() {
  "$QENG" recipes/kv_evaluate.lua --captures "$work/whole" --from 4 --rotations "$work/rotations" --queries 24 --threads 1 \
    --methods hadamard2/sphere3,transport/sphere3,so8_minus/sphere2,random_haar/product3,identity/q8_0 --out "$@"
}
capture "$work/whole" >"$work/log" 2>&1 </dev/null || fail "capture: $(cat "$work/log")"
rotations "$work/rotations" >"$work/log" 2>&1 </dev/null || fail "rotations: $(cat "$work/log")"
evaluate "$work/evaluated" >"$work/log" 2>&1 </dev/null || fail "evaluate: $(cat "$work/log")"
for pattern in 'transport/sphere3' 'less that of hadamard2/sphere3' 'trials.csv, summary.md'; do
  grep -q -- "$pattern" "$work/log" || fail "no '$pattern' in: $(cat "$work/log")"
done
[ "$(wc -l <"$work/evaluated/trials.csv")" = $((1 + 3 * 3 * 5)) ] || fail "trials.csv has not a line for each document, layer and method"
grep -q '^4,0,hadamard2/sphere3,' "$work/evaluated/trials.csv" || fail "documents are not counted from --from"

quality() {
  "$QENG" recipes/kv_quality.lua --model recipes/tiny --dtype f32 --threads 1 --data "$work/text.txt" --tokens 64,200 --documents 4 \
    --types "tq4,tail=16 q8_0 sim:identity/exact" --out "$@"
}
quality "$work/quality" >"$work/log" 2>&1 </dev/null || fail "quality: $(cat "$work/log")"
for pattern in '^tq4,tail=16 ' 'q8_0 .*0.00' 'sim:identity/exact .* 0.00000 (0.00000 to 0.00000)' '^4 documents of 64 tokens' '^4 documents of 200 tokens'; do
  grep -q -- "$pattern" "$work/log" || fail "no '$pattern' in: $(cat "$work/log")"
done

# killed PATTERN FUNCTION FOLDER: kills the run as soon as a file of that name is there, until one came to its end.
killed() {
  local kills=0
  while :; do
    "$2" "$3" >"$work/log" 2>&1 </dev/null &
    local job=$! before
    before=$(find "$3" -name "$1" 2>/dev/null | wc -l)
    while kill -0 $job 2>/dev/null && [ "$(find "$3" -name "$1" 2>/dev/null | wc -l)" = "$before" ]; do sleep 0.005; done
    kill -9 $job 2>/dev/null && kills=$((kills + 1))
    if wait $job 2>/dev/null; then break; fi
    [ $kills -lt 30 ] || { fail "$2 does not come to its end: $(cat "$work/log")"; return; }
  done
  [ $kills -ge 1 ] || fail "$2 was never killed"
}
same() {  # same A B PATTERN
  (cd "$1" && find . -name "$3" -exec cksum {} + | sort) >"$work/a"
  (cd "$2" && find . -name "$3" -exec cksum {} + | sort) >"$work/b"
  [ -s "$work/a" ] && cmp -s "$work/a" "$work/b" || fail "$2 is another than $1: $(diff "$work/a" "$work/b")"
}
killed '*.safetensors' capture "$work/killed"
same "$work/whole" "$work/killed" '*[!k]'
killed '*.safetensors' rotations "$work/killed_rotations"
same "$work/rotations" "$work/killed_rotations" '*.safetensors'
killed '*.json' quality "$work/killed_quality"
same "$work/quality" "$work/killed_quality" '*.[jm]*'
killed '*.json' evaluate "$work/killed_evaluated"
same "$work/evaluated" "$work/killed_evaluated" '*.[jcm]*'

refused() {  # refused STATUS PATTERN COMMAND...
  local status=$1 pattern=$2
  shift 2
  output=$("$@" 2>&1 </dev/null)
  got=$?
  [ $got = "$status" ] || fail "$*: exit status $got, expected $status: $output"
  printf '%s' "$output" | grep -q -- "$pattern" || fail "$*: no '$pattern' in: $output"
}
refused 1 'captured with other settings' capture "$work/whole" --layers 1
refused 1 'layer 7 has no keys' capture "$work/other" --layers 7
refused 2 '--layers x: not a number' capture "$work/other" --layers 0,x
refused 1 'was fitted to another capture or otherwise' rotations "$work/rotations" --bits 2
refused 1 'figures of another capture or other methods' evaluate "$work/evaluated" --queries 8
refused 1 '--from 7: has to be at most 6' evaluate "$work/other" --from 7
refused 1 'rotation spin; expected one of' evaluate "$work/other" --methods spin/sphere3
refused 1 'has fitted: --rotations' "$QENG" recipes/kv_evaluate.lua --captures "$work/whole" --out "$work/other" --methods transport/sphere3
refused 1 'needles take' quality "$work/other" --needle 200
refused 2 '--tokens x: not a number' quality "$work/other" --tokens x
refused 2 '--tokens 100.5: not a whole number' quality "$work/other" --tokens 100.5
refused 2 '--from 63: has to be at most 62 in documents of 64 tokens' quality "$work/other" --from 63
refused 2 '--types: expected types of --kv' quality "$work/other" --types ''
refused 2 'expected some of transport' rotations "$work/other" --names spin
exit $((failures > 0))
