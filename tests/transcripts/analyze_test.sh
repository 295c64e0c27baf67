#!/bin/bash
# recipes/analyze.lua by the real executable ($QENG), on a small model: what it finds, and how its estimates meet what came.
set -u
QENG=$(realpath "${QENG:-build/release/qeng}")
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT
export XDG_CACHE_HOME=$work/cache
failures=0
fail() { echo "FAILED $*"; failures=$((failures + 1)); }
# expect NAME STATUS "PATTERN;PATTERN..." COMMAND...: exit status, and patterns (grep -E) in stdout and stderr together
expect() {
  local name=$1 status=$2 patterns=$3 output got pattern
  shift 3
  output=$(timeout 120 "$@" 2>&1 </dev/null)
  got=$?
  [ "$got" = "$status" ] || fail "$name: exit status $got, expected $status: $output"
  while IFS= read -r -d ';' pattern; do
    printf '%s' "$output" | grep -qE -- "$pattern" || fail "$name: no '$pattern' in: $output"
  done <<<"$patterns;"
}

"$QENG" tests/lua/small_model.lua "$work" || { echo "FAILED: no model"; exit 1; }
head -n 10 "$work/data.jsonl" >"$work/same"
cat "$work/same" >>"$work/data.jsonl"
echo '{"prompt": "red", "completion": ""}' >>"$work/data.jsonl"

cd "$work" || exit 1
recipes=$OLDPWD/recipes
expect "analyze raw data" 0 '311 records;1 empty;10 duplicates;number 0, is there 2 times;0x04 instruction;recommended;measured here: [0-9]+ slots;not known here yet;command: qeng;report.html' \
  "$QENG" "$recipes/analyze.lua" data.jsonl --model model --out a --threads 1
grep -q '<svg' a/report.html || fail "the analysis has no chart"
expect "analyze packets alone" 0 '311 records;told with --model;recommended' "$QENG" "$recipes/analyze.lua" a/data.qubgpu --out b
expect "analyze raw data without a model" 2 'model is needed to convert' "$QENG" "$recipes/analyze.lua" data.jsonl --out c

"$QENG" "$recipes/quantize.lua" model model.gguf --type f16 >log 2>&1 || fail "a GGUF file: $(cat log)"
cp data.jsonl 'my data.jsonl'
expect "analyze for a GGUF file" 0 "command: qeng .* --model model.gguf --data 'my data.jsonl' .* --dtype f32 --special text" \
  "$QENG" "$recipes/analyze.lua" 'my data.jsonl' --model model.gguf --out e --threads 1 --steps 0 --dtype f32 --special text

# ---- training with what was recommended is compared with the estimate, and the next analysis tells by how much it was off
command=$("$QENG" "$recipes/analyze.lua" a/data.qubgpu --model model --out d --threads 1 2>/dev/null | sed -n 's/^command: qeng recipes.lora_qwen.lua//p')
# shellcheck disable=SC2086  # the words of a command
expect "the recommended command" 0 'adapter/' "$QENG" "$recipes/lora_qwen.lua" $command --out trained --threads 1 --steps 8 --eval-share 0
grep -q '"actual"' "$work/cache/qeng/estimates.jsonl" || fail "the run was not compared with its estimate"
expect "the error of earlier estimates" 0 '1 earlier estimates were put to the test: time was off by [0-9]+ %' "$QENG" "$recipes/analyze.lua" a/data.qubgpu --model model --out d --threads 1
printf '{"kind": "actual", "key": 3}\nnonsense\n' >"$work/cache/qeng/estimates.jsonl"
expect "a spoilt history" 0 'not known here yet' "$QENG" "$recipes/analyze.lua" a/data.qubgpu --model model --out d --threads 1

[ $failures = 0 ] && echo "analyze: ok"
exit $((failures > 0))
