#!/usr/bin/env bash
# --device: what is said where there is no GPU; and, with the CUDA backend in the emulator, a whole run of the recipe: its
# losses are the CPU's, and repeated, eager, recomputed and resumed runs give the same bits.
set -uo pipefail
qeng=${QENG:?the qeng executable}
emulated=$(dirname "$qeng")/libqeng_cuda_emulated.so
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

recipe=recipes/lora_qwen.lua
expect 1 'device cuda: cannot load the CUDA backend: .*/nothing.so' env QENG_CUDA_LIBRARY=/nothing.so "$qeng" $recipe --device cuda
expect 1 'device: .tpu.; expected auto, cuda, cpu, opencl, or one of several as NAME:1' "$qeng" $recipe --device tpu
expect 0 '^cpu$' env QENG_CUDA_LIBRARY=/nothing.so "$qeng" -e 'q.device { device = "auto" } print(q.devices()[1].name)'
if [[ -e $(dirname "$qeng")/libqeng_cuda.so && ! -e /dev/nvidiactl ]]; then
  expect 1 'device cuda: no NVIDIA driver is running on this machine; needed is one for CUDA [0-9.]+ or newer' "$qeng" $recipe --device cuda
fi

# Weights that are copied into memory count against the device's budget while someone has them; by default they then stay mapped.
expect 1 'weights in memory .recipes.tiny.: 1548200 bytes more would exceed the 1000000 that the device.s budget leaves.*--device-budget' "$qeng" -e "
  q.device { device = 'cpu', budget = 1e6 } q.load('recipes/tiny', { weights = 'copy' })"
expect 0 '^mapped$' "$qeng" -e "
  q.device { device = 'cpu', budget = 1e6 } q.load('recipes/tiny'):logits { 1, 2, 3 } print 'mapped'"
expect 0 '^again$' "$qeng" -e "
  q.device { device = 'cpu', budget = 3e6 }
  for i = 1, 9 do q.load('recipes/tiny', { weights = 'copy' }):logits { 1, 2, 3 } end print 'again'"

if [[ ! -e $emulated ]]; then
  echo "SKIPPED: without the emulator the CUDA backend does not run here"
  exit $failed
fi
export QENG_CUDA_LIBRARY=$emulated
expect 1 'device cuda:7: there is none of this number; this machine has cuda:0, cpu' "$qeng" -e 'q.device { device = "cuda:7" } q.zeros({ 1 })'
expect 1 'Tensor:view: the tensor is not in host memory; use :table' "$qeng" -e 'q.device { device = "cuda" } q.zeros({ 1 }):view()'
expect 1 'token 9 at position 1 is outside the table of 4 rows' "$qeng" -e \
  'q.device { device = "cuda" } print(q.embedding(q.zeros({ 4, 8 }), q.tensor({ 0, 9 }, "i32")):table()[1][1])'

# The device is let go before exit() ends CUDA, which the emulator checks, wherever a script ends.
expect 0 '^over$' "$qeng" -e 'q.device { device = "cuda" } x = q.zeros({ 1 }) print "over"'
# Without true the Lua state is not closed, and what it holds counts as leaked.
expect 3 '^over$' env ASAN_OPTIONS="${ASAN_OPTIONS:-}:detect_leaks=0" "$qeng" -e 'q.device { device = "cuda" } x = q.zeros({ 1 }) print "over" os.exit(3)'
expect 3 '^over$' "$qeng" -e 'q.device { device = "cuda" } q.zeros({ 1 }) q.rehearsal.run(function() x = q.zeros({ 1 }) print "over" os.exit(3, true) end)'

# 2.8 MB lie idle where an operation needs one for a product that it then rounds; 4 MB are all there is.
expect 0 '^256 1024$' env QENG_EMULATOR_MB=4 "$qeng" -e 'q.device { device = "cuda" }
  q.zeros({ 7e5 }):free()
  local y = q.linear(q.zeros({ 256, 8 }, "bf16"), q.zeros({ 1024, 8 }, "bf16"), { bias = q.zeros({ 1024 }) })
  print(y:shape()[1] .. " " .. y:shape()[2])'

expect 0 'while streamed weights were let go: token 9 at position 1 is outside' "$qeng" -e '
  q.device { device = "cuda" } local model = q.load("recipes/tiny", { weights = "stream", stream_keep = 0 })
  q.embedding(q.zeros({ 4, 8 }), q.tensor({ 0, 9 }, "i32")) model = nil collectgarbage() collectgarbage()'
expect 0 'goes on where its input is mended' timeout 120 "$qeng" tests/lua/program_test.lua cuda
expect 0 'streamed to the device: the bits of a resident model' timeout 120 "$qeng" tests/lua/stream_device.lua cuda
expect 0 'streamed by layer, recomputed: the bits' timeout 120 "$qeng" tests/lua/onebit_stream_test.lua cuda

settings=(timeout 120 "$qeng" recipes/ab_settings.lua --steps 2 --row-tokens 128 --rank 2 --out "$dir/settings")
expect 0 'Equal to the bit: losses, gradient norms and trained parameters' "${settings[@]}" --device cuda --a recompute=true,eager=true
expect 0 'Within what rounding in f32 explains' "${settings[@]}" --a device=cpu --b device=cuda

for i in $(seq 90); do echo "line $i of a text that says little: $((i * i))."; done >"$dir/text.txt"
expect 0 '^\| counter of 8 levels, q 0.15, friction 0.2 \| 3 bits \| 0.01 (\(edge\) )?\| [0-9.]+ \| ' timeout 120 "$qeng" recipes/onebit_compare.lua --data "$dir/text.txt" \
  --out "$dir/compare" --methods latent,7 --lrs 1e-2 --seeds 1 --steps 10 --rows 2 --tokens 16 --hidden 32 --layers 1 --heads 2 --ffn 32 --device cuda

# One-bit weights in phases, streamed from pinned memory and resumed in the middle of a phase: the model of a run in the device's memory.
for i in $(seq 150); do echo "{\"text\": \"Anna has $i brown geese, and Tom has $((i * 3)).\"}"; done >"$dir/text.jsonl"
phased() {  # OUT OPTIONS...
  expect 0 'bits and floats, which q.load reads' timeout 120 "$qeng" recipes/onebit_phased.lua --data "$dir/text.jsonl" --hidden 64 --layers 2 --heads 2 --ffn 96 \
    --row-tokens 32 --rows 1 --steps 6 --eval-share 0.02 --phase-steps 3 --by rows --levels 1 --q 0.5 --save-every 2 --device cuda --out "$@"
}
phased "$dir/inside"
streaming=(--weights stream --host-budget 30M --stream-keep 1 --device-budget 60M)
phased "$dir/streamed" "${streaming[@]}"
rm -r "$dir/streamed/checkpoints/step-000006"
phased "$dir/streamed" "${streaming[@]}" --resume
cmp "$dir/inside/model/model.safetensors" "$dir/streamed/model/model.safetensors" || fail "streamed bits differ from those in memory"
grep -q '"stream_bytes":[1-9][0-9]*,.*"stream_hidden":' "$dir/streamed/metrics.jsonl" || fail "no figures of streaming"

"$qeng" tests/lua/small_model.lua "$dir/small" >/dev/null || fail "small_model.lua"
train() {  # OUT OPTIONS...
  local out=$1
  shift
  "$qeng" $recipe --model "$dir/small/model" --data "$dir/small/data.jsonl" --out "$dir/$out" --row_tokens 64 --rows 2 --accumulate 2 \
    --steps 4 --seed 3 --dropout 0.1 --eval_share 0.02 "$@" >"$dir/$out.log" 2>&1 || fail "$out: $(tail -n 3 "$dir/$out.log")"
}
losses() { grep -o '"loss":[0-9.e-]*' "$dir/$1/metrics.jsonl"; }
same() { cmp -s "$dir/gpu/adapter/adapter_model.safetensors" "$dir/$1/adapter/adapter_model.safetensors" || fail "$1 and gpu: the adapters differ"; }
# cuBLASLt is opened by the first product that wants it: inference has none, training says what is missing.
absent=(env QENG_CUBLASLT=/absent/libcublasLt.so.13)
for options in "generate.lua --prompt Record --max-tokens 2" "perplexity.lua --data README.md --context 16 --windows 1"; do
  # shellcheck disable=SC2086  # words
  expect 0 "" "${absent[@]}" "$qeng" recipes/$options --model "$dir/small/model" --device cuda
done
expect 1 'cuBLASLt: QENG_CUBLASLT is /absent/libcublasLt.so.13 .no such file.; set it to' "${absent[@]}" "$qeng" $recipe --model "$dir/small/model" \
  --data "$dir/small/data.jsonl" --out "$dir/absent" --row_tokens 64 --rows 1 --steps 1 --device cuda
train cpu --device cpu
train gpu --device cuda
paste -d: <(losses cpu) <(losses gpu) | awk -F: '{ d = ($2 - $4) / $2; if (d > 1e-5 || d < -1e-5) bad = 1; n++ } END { exit bad || n != 4 }' ||
  fail "losses differ: $(losses cpu | tr '\n' ' ') and $(losses gpu | tr '\n' ' ')"
train again --device cuda && same again
train eager --device cuda --eager && same eager
train recompute --device cuda --recompute && same recompute
QENG_EMULATOR_SEED=2 train seed2 --device cuda && same seed2
# Where the GPU reads the host's memory nothing is copied to it: weights, batches.
export QENG_EMULATOR_ONE_MEMORY=1
expect 0 'one memory: the bits of weights that were copied' timeout 120 "$qeng" tests/lua/one_memory.lua
expect 0 '^Fits in 8.0 GB with --weights stream: [0-9]+ of 34 units resident, [0-9.]+ GB streamed' timeout 120 "$qeng" recipes/plan.lua --model 7b \
  --mode lora --device cuda --device-budget 8G
train one_memory --device cuda && same one_memory
train one_streamed --device cuda --weights stream && same one_streamed
unset QENG_EMULATOR_ONE_MEMORY
train resumed --device cuda --save_every 2
rm -rf "$dir/resumed/adapter"
ls -d "$dir"/resumed/checkpoints/* | sort -V | tail -n +2 | xargs rm -rf  # as after a kill behind step 2
train resumed --device cuda --resume && same resumed
grep -q 'resuming at step 2 of 4' "$dir/resumed.log" || fail "resumed: did not resume: $(cat "$dir/resumed.log")"
exit $failed
