#!/bin/bash
# recipes/distill.lua by the real executable ($QENG): the built-in model, quantized to 4 bits, comes back nearer to what
# it was; stopped and resumed the run gives the same bits; another tokenizer is refused.
set -u
QENG=$(realpath "${QENG:-build/release/qeng}")
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT
failures=0
fail() { echo "FAILED $*"; failures=$((failures + 1)); }

"$QENG" recipes/quantize.lua recipes/tiny "$work/tiny.gguf" --type q4_0 >/dev/null 2>&1 || fail "quantizing"
for i in 1 2 3 4 5 6 7 8 9; do
  echo "{\"prompt\":\"Where is hat $i of Petra?\",\"completion\":\"It is in Porto, number $i.\"}"
done >"$work/data.jsonl"
run() {
  local out=$1
  shift
  "$QENG" recipes/distill.lua --model "$work/tiny.gguf" --teacher recipes/tiny --data "$work/data.jsonl" --row-tokens 64 \
    --lr 2e-3 --eval-share 0 --device cpu --threads 1 --dtype f32 --out "$work/$out" "$@" >"$work/log" 2>&1
}
loss() { sed -n "$2p" "$work/$1/metrics.jsonl" | sed -E 's/.*"loss":([0-9.e-]+).*/\1/'; }
run whole --steps 60 || fail "the run: $(cat "$work/log")"
echo "divergence from the teacher: $(loss whole 1) at first, $(loss whole 60) at last"
awk "BEGIN { exit !($(loss whole 60) < 0.5 * $(loss whole 1)) }" || fail "the divergence does not fall by half"
run part --steps 60 --save-every 30 || fail "the run with checkpoints: $(cat "$work/log")"
rm -rf "$work/part/checkpoints/step-000060"
run part --steps 60 --save-every 30 --resume || fail "resuming: $(cat "$work/log")"
cmp "$work/whole/adapter/adapter_model.safetensors" "$work/part/adapter/adapter_model.safetensors" || fail "other bits"
"$QENG" tests/lua/small_model.lua "$work" >/dev/null 2>&1
"$QENG" recipes/distill.lua --model recipes/tiny --teacher "$work/model" --data "$work/data.jsonl" --out "$work/other" \
  --device cpu >"$work/log" 2>&1 && fail "another tokenizer is taken"
grep -q "have other tokenizers" "$work/log" || fail "of another tokenizer: $(cat "$work/log")"

[ $failures = 0 ] || { echo "$failures failures"; exit 1; }
echo "all passed"
