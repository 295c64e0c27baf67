#!/usr/bin/env bash
# --device opencl, on whatever driver is here: what is said where it lacks something; a run of LoRA has the CPU's losses, and
# repeated the same bits; a model and its file of 4-bit blocks say what they say on the CPU.
set -uo pipefail
qeng=${QENG:?the qeng executable}
library=$(dirname "$qeng")/libqeng_opencl.so
dir=$(mktemp -d)
trap 'rm -rf "$dir"' EXIT
failed=0
fail() { echo "FAILED $*"; failed=1; }

# expect STATUS PATTERN COMMAND...: the exit status, and one line of the output that matches.
expect() {
  local status=$1 pattern=$2 got=0 output
  shift 2
  output=$("$@" 2>&1) || got=$?
  [[ $got == "$status" ]] || fail "$*: exit status $got, expected $status: $output"
  grep -qE "$pattern" <<<"$output" || fail "$*: no line like '$pattern' in: $output"
}

expect 1 'device opencl: cannot load the OpenCL backend: .*/nothing.so' env QENG_OPENCL_LIBRARY=/nothing.so "$qeng" -e 'q.device { device = "opencl" } q.zeros({ 1 })'
if [[ ! -e $library ]]; then
  expect 1 'device opencl: this qeng has no OpenCL backend: libqeng_opencl.so is not beside it' "$qeng" -e 'q.device { device = "opencl" } q.zeros({ 1 })'
  echo "SKIPPED: without OpenCL's headers and loader its backend is not built"
  exit $failed
fi
expect 1 'device opencl: no driver for OpenCL is installed on this machine' env OCL_ICD_VENDORS="$dir" "$qeng" -e 'q.device { device = "opencl" } q.zeros({ 1 })'
if ! "$qeng" -e 'q.device { device = "opencl" } q.zeros({ 1 })' >/dev/null 2>&1; then
  echo "SKIPPED: no driver for OpenCL that serves is on this machine (Debian's pocl-opencl-icd is one)"
  exit $failed
fi

# A process that ends while its kernels are still compiled for the first time.
queued='q.device { device = "opencl" } local x = q.matmul(q.zeros { 64, 64 } + 1, q.zeros { 64, 64 }) print(x:shape()[1])'
for ending in ':0' 'os.exit(3):3' 'error "an end":1'; do
  expect "${ending##*:}" '^64$' env POCL_KERNEL_CACHE=0 "$qeng" -e "$queued ${ending%%:*}"
done
expect 1 'opencl:0: [0-9]+ bytes in one tensor; its driver gives at most [0-9]+' "$qeng" -e '
  q.device { device = "opencl" } q.zeros { math.floor(q.devices("opencl")[1].memory / 5) }'
expect 0 'Does not fit in 800.0 MB: the least device budget that works is' "$qeng" recipes/plan.lua --model 1b \
  --mode inference --stored q4_k --device opencl --device-budget 800M --context 512  # weights are not streamed to it
expect 0 '^0\s+opencl:0$' "$qeng" -e 'local n = 0 for _, one in ipairs(q.devices()) do if one.name:find "opencl" then n = n + 1 end end print(n, q.devices("opencl")[1].name)'
expect 1 "'tpu' is no backend" "$qeng" -e 'q.devices "tpu"'
expect 0 '^cpu$' "$qeng" -e 'q.device { device = "auto" } print(q.devices()[1].name)'
expect 1 'opencl: this backend has no hadamard; the CPU .device cpu. and CUDA have it' "$qeng" -e 'q.device { device = "opencl" } q.hadamard(q.zeros({ 1, 8 }), { block = 8 })'
expect 1 'token 9 at position 1 is outside the table of 4 rows' "$qeng" -e \
  'q.device { device = "opencl" } print(q.embedding(q.zeros({ 4, 8 }), q.tensor({ 0, 9 }, "i32")):table()[1][1])'
expect 1 'opencl: weights are not streamed to this device; keep them in its memory' "$qeng" -e \
  'q.device { device = "opencl" } q.load("recipes/tiny", { weights = "stream" }):logits { 1, 2, 3 }'

"$qeng" tests/lua/small_model.lua "$dir/small" >/dev/null || fail "small_model.lua"
train() {  # OUT DEVICE
  "$qeng" recipes/lora_qwen.lua --model "$dir/small/model" --data "$dir/small/data.jsonl" --out "$dir/$1" --row_tokens 64 --rows 2 --accumulate 2 \
    --steps 3 --seed 3 --dropout 0.1 --eval_share 0.02 --device "$2" >"$dir/$1.log" 2>&1 || fail "$1: $(tail -n 3 "$dir/$1.log")"
}
losses() { grep -o '"loss":[0-9.e-]*' "$dir/$1/metrics.jsonl"; }
train cpu cpu
train opencl opencl
train again opencl
paste -d: <(losses cpu) <(losses opencl) | awk -F: '{ d = ($2 - $4) / $2; if (d > 1e-5 || d < -1e-5) bad = 1; n++ } END { exit bad || n != 3 }' ||
  fail "losses differ: $(losses cpu | tr '\n' ' ') and $(losses opencl | tr '\n' ' ')"
cmp -s "$dir/opencl/adapter/adapter_model.safetensors" "$dir/again/adapter/adapter_model.safetensors" || fail "repeated, the adapter differs"

"$qeng" recipes/quantize.lua "$dir/small/model" "$dir/small.gguf" --type q4_0 >"$dir/quantize.log" 2>&1 || fail "quantize: $(tail -n 3 "$dir/quantize.log")"
for model in "$dir/small/model" "$dir/small.gguf"; do
  for device in cpu opencl; do
    "$qeng" recipes/generate.lua --model "$model" --prompt Record --max-tokens 16 --device $device >"$dir/$device.txt" 2>&1 || fail "generate: $(tail -n 3 "$dir/$device.txt")"
  done
  if [[ ! -s $dir/cpu.txt ]] || ! cmp -s "$dir/cpu.txt" "$dir/opencl.txt"; then fail "$model says another text by OpenCL"; fi
done
exit $failed
