#!/bin/bash
# recipes/ab_pipeline.lua and ab_settings.lua by the real executable ($QENG), on a small model: the three ways get the same rows, and
# the report says what they make of them; two settings are the same to the bit or are not, and what differs by design is refused.
set -u
QENG=$(realpath "${QENG:-build/release/qeng}")
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT
export XDG_CACHE_HOME=$work/cache
failures=0
fail() { echo "FAILED $*"; failures=$((failures + 1)); }

"$QENG" tests/lua/small_model.lua "$work" || { echo "FAILED: no model"; exit 1; }
run() { timeout 120 "$QENG" recipes/ab_pipeline.lua --seeds 3 --steps 20 --row-tokens 128 --rows 1 --out "$work/ab" --threads 1 "$@" 2>&1 </dev/null; }
output=$(run --model "$work/model" --data "$work/data.jsonl")
got=$?
[ $got = 0 ] || fail "exit status $got, expected 0: $output"
for pattern in 'the same to the last bit' 'CRC-Drop' '3 seeds' 'figures.json'; do
  printf '%s' "$output" | grep -q -- "$pattern" || fail "no '$pattern' in: $output"
done
[ "$(grep -o '<svg' "$work/ab/report.html" | wc -l)" = 3 ] || fail "the report has not its three charts"

# ---- data that are not a record a line are refused, and so is a model without data
printf '[{"prompt": "red", "completion": "cat"},\n {"prompt": "blue", "completion": "dog"}]\n' >"$work/array.json"
output=$(run --model "$work/model" --data "$work/array.json")
got=$?
[ $got = 1 ] || fail "an array: exit status $got, expected 1: $output"
printf '%s' "$output" | grep -q 'JSONL, one record a line' || fail "an array: $output"
output=$(run --model "$work/model")
got=$?
[ $got = 2 ] || fail "a model without data: exit status $got, expected 2: $output"

# ---- settings side by side
settings() {  # settings STATUS PATTERN OPTIONS...
  local status=$1 pattern=$2
  shift 2
  output=$(timeout 120 "$QENG" recipes/ab_settings.lua --model "$work/model" --data "$work/data.jsonl" --steps 4 --row-tokens 64 \
    --threads 1 --out "$work/settings" "$@" 2>&1 </dev/null)
  got=$?
  [ $got = "$status" ] || fail "$*: exit status $got, expected $status: $output"
  printf '%s' "$output" | grep -q -- "$pattern" || fail "$*: no '$pattern' in: $output"
}
settings 0 'Equal to the bit: losses, gradient norms and trained parameters of 4 steps' --a recompute=true --b recompute=false
settings 0 'padding-free packing .*within' --table
[ "$(grep -o '<svg' "$work/settings/report.html" | wc -l)" = 10 ] || fail "the report of a table has not its ten charts"
settings 2 'did you mean recompute' --a recompte=true
settings 1 'row_tokens: other batches' --a row_tokens=128
settings 0 'they differ by design: row_tokens' --a row_tokens=128 --costs

[ $failures = 0 ] && echo "ab: ok"
exit $((failures > 0))
