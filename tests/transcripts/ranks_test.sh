#!/usr/bin/env bash
# Training on several ranks by mpirun: the bits of one rank, with LoRA and with every weight, whatever ranks share out (--zero 0 to 3); a rank
# that is killed ends the job, which goes on with another number of ranks to the same bits; what knows no ranks says so.
set -uo pipefail
qeng=${QENG:?the qeng executable}
if ! command -v mpirun >/dev/null; then
  echo "SKIPPED ranks: there is no mpirun (Debian's openmpi-bin)"
  exit 0
fi
if [[ ! -e $(dirname "$qeng")/libqeng_mpi.so ]]; then
  echo "SKIPPED ranks: libqeng_mpi.so is not built here (Debian's libopenmpi-dev)"
  exit 0
fi
dir=$(mktemp -d)
trap 'rm -rf "$dir"' EXIT
failed=0
fail() { echo "FAILED $*"; failed=1; }

# More ranks than cores, as root, which share a machine with other tests.
export OMPI_ALLOW_RUN_AS_ROOT=1 OMPI_ALLOW_RUN_AS_ROOT_CONFIRM=1 OMPI_MCA_rmaps_base_oversubscribe=1 OMPI_MCA_mpi_yield_when_idle=1
export OMPI_MCA_hwloc_base_binding_policy=none OMPI_MCA_btl_vader_single_copy_mechanism=none
export PRTE_MCA_rmaps_default_mapping_policy=:oversubscribe PRTE_MCA_hwloc_default_binding_policy=none  # what Open MPI 5 calls them
on() {  # RANKS COMMAND...
  local ranks=$1
  shift
  mpirun -n "$ranks" "$qeng" "$@" --threads 1 </dev/null
}

"$qeng" -e 'require("qeng.train.demo").write_examples(..., 7, 300)' "$dir/data.jsonl" || fail "the examples"
common=(recipes/lora_qwen.lua --model recipes/tiny --data "$dir/data.jsonl" --accumulate 4 --rows 1 --row-tokens 128 --steps 12
  --eval-share 0.1 --eval-every 6 --save-every 4 --schedule constant --seed 3)

# What a run has come to: its losses, norms of gradients and evaluations, and the trained tensors.
came_to() {
  "$qeng" -e 'local q, out = require "qeng", ...
    for line in io.lines(out .. "/metrics.jsonl") do
      local row = q.json.decode(line)
      print(("%d %.17g %.17g %.17g"):format(row.step, row.loss, row.grad_norm, row.eval_loss or -1))
    end' "$1"
  (cd "$1" && find adapter model checkpoints -name '*.safetensors' 2>/dev/null | sort | xargs sha256sum)
}
same() {  # WHAT RUN RUN
  local a b
  a=$(came_to "$2") b=$(came_to "$3")
  [[ $(wc -l <<<"$a") -gt 12 && $a == "$b" ]] || fail "$1: $(diff <(echo "$a") <(echo "$b") | head -5)"
}

for mode in lora full; do
  more=(--mode "$mode")
  [[ $mode == lora ]] || more+=(--lr 1e-4 --dtype bf16)
  on 1 "${common[@]}" "${more[@]}" --out "$dir/$mode-1" >"$dir/log" 2>&1 || fail "$mode on one rank: $(cat "$dir/log")"
  numbers=(2 4)
  [[ $mode == lora ]] || numbers=(3)
  for ranks in "${numbers[@]}"; do
    on $ranks "${common[@]}" "${more[@]}" --out "$dir/$mode-$ranks" >"$dir/log" 2>&1 || fail "$mode on $ranks ranks: $(cat "$dir/log")"
    same "$mode on $ranks ranks" "$dir/$mode-1" "$dir/$mode-$ranks"
  done
done
[[ $(grep -c "metrics.jsonl, report.html" "$dir/log") == 1 ]] || fail "one rank speaks: $(cat "$dir/log")"
grep -q '^ranks    3, on cpu, cpu, cpu$' "$dir/log" || fail "the devices of ranks: $(cat "$dir/log")"

# Ranks of a machine take its GPUs in turn, unless a number is given.
emulated=$(dirname "$qeng")/libqeng_cuda_emulated.so
if [[ -e $emulated ]]; then
  takes() {  # DEVICE EXPECTED
    local names
    names=$(QENG_CUDA_LIBRARY=$emulated QENG_EMULATOR_DEVICES=2 on 3 -e 'local q = require "qeng"
      q.device { device = ... }
      q.zeros { 1 }
      for _, one in ipairs(q.devices()) do if one.in_use then print(os.getenv "OMPI_COMM_WORLD_RANK", one.name) end end' "$1" |
      sort | cut -f 2 | xargs)
    [[ $names == "$2" ]] || fail "--device $1 on three ranks: $names, expected $2"
  }
  takes auto "cuda:0 cuda:1 cuda:0"
  takes cuda "cuda:0 cuda:1 cuda:0"
  takes cuda:1 "cuda:1 cuda:1 cuda:1"
fi

# Each rank keeps a part of the gradients, and of the weights; three ranks of four micro-batches have a round that two sit out. An adapter is
# whole on each.
final() { came_to "$1" | grep -v checkpoints; }
ended_as() {  # WHAT RUN RUN
  local a b
  a=$(final "$2") b=$(final "$3")
  [[ $(wc -l <<<"$a") -gt 12 && $a == "$b" ]] || fail "$1: $(diff <(echo "$a") <(echo "$b") | head -5)"
}
shared=(--mode full --lr 1e-4 --dtype bf16)
for how in "2 2" "4 2" "2 3 --recompute"; do
  read -r ranks zero more <<<"$how"
  on "$ranks" "${common[@]}" "${shared[@]}" --zero "$zero" ${more:+"$more"} --out "$dir/zero-$zero" --overwrite --timeline "$dir/times" >"$dir/log" 2>&1 || fail "zero $zero on $ranks ranks: $(cat "$dir/log")"
  ended_as "zero $zero on $ranks ranks $more" "$dir/full-1" "$dir/zero-$zero"
done
# What ranks exchange goes on beside operations: the gradients of a layer while those before it compute theirs.
"$qeng" -e 'local q, path = require "qeng", ...
  local operations, jobs = {}, {}
  for _, event in ipairs(q.json.decode(q.fs.read(path)).traceEvents) do
    if event.cat == "operations" then operations[#operations + 1] = event end
    if event.cat == "exchange" then jobs[#jobs + 1] = event end
  end
  local last, beside = 0, 0
  for i, operation in ipairs(operations) do
    assert(i == 1 or operation.ts >= operations[i - 1].ts + operations[i - 1].dur, "operations run one after another")
    if operation.args.block == "layers.0" then last = operation.ts + operation.dur end
  end
  for _, job in ipairs(jobs) do if job.name:find "^gradients of" and job.ts < last then beside = beside + 1 end end
  assert(#operations > 100 and beside >= 2, ("%d operations, %d of %d jobs beside them"):format(#operations, beside, #jobs))
' "$dir/times" >"$dir/log" 2>&1 || fail "the times of a step: $(cat "$dir/log")"
on 2 "${common[@]}" --zero 3 --out "$dir/lora-zero" >"$dir/log" 2>&1 || fail "LoRA with zero 3: $(cat "$dir/log")"
ended_as "LoRA with zero 3" "$dir/lora-1" "$dir/lora-zero"
grep -q 'note: --zero 3 is of --mode full.* as with --zero 1' "$dir/log" || fail "LoRA with zero 3 says nothing: $(cat "$dir/log")"

# The same of a model whose head is not its embedding, on an odd number of layers, with the best weights at the end.
"$qeng" -e 'local q, out = require "qeng", ...
  local values = q.json.decode(q.fs.read "recipes/tiny/config.json")
  values.tie_word_embeddings, values.hidden_size, values.intermediate_size, values.num_hidden_layers = false, 64, 96, 5
  q.random_model(values):save(out)
  for _, name in ipairs { "tokenizer.json", "tokenizer_config.json" } do q.fs.copy("recipes/tiny/" .. name, out .. "/" .. name) end' "$dir/untied" || fail "the untied model"
untied=("${common[@]}" --model "$dir/untied" --mode full --lr 10 --warmup 60 --eval-every 2 --best)  # which spoils the last steps
on 1 "${untied[@]}" --out "$dir/untied-1" >"$dir/log" 2>&1 || fail "untied on one rank: $(cat "$dir/log")"
grep -q 'the weights of step .* are kept' "$dir/log" || fail "the best weights are the last: $(cat "$dir/log")"
for zero in 2 3; do
  on 3 "${untied[@]}" --zero $zero --out "$dir/untied-$zero" >"$dir/log" 2>&1 || fail "untied with zero $zero: $(cat "$dir/log")"
  ended_as "untied with zero $zero" "$dir/untied-1" "$dir/untied-$zero"
done

# Each rank writes its part of a checkpoint, and another number of ranks goes on with it, sharing out something else.
on 4 "${common[@]}" "${shared[@]}" --zero 3 --steps 5 --out "$dir/parts" >"$dir/log" 2>&1 || fail "zero 3 on four ranks: $(cat "$dir/log")"
[[ $(find "$dir/parts/checkpoints/step-000005" -name 'parameters-?.safetensors' | wc -l) == 4 ]] || fail "no part of each rank: $(ls "$dir/parts/checkpoints/"*)"
on 2 "${common[@]}" "${shared[@]}" --zero 3 --steps 9 --resume --out "$dir/parts" >"$dir/log" 2>&1 || fail "zero 3 on two ranks: $(cat "$dir/log")"
on 3 "${common[@]}" "${shared[@]}" --zero 2 --resume --out "$dir/parts" >"$dir/log" 2>&1 || fail "zero 2 on three ranks: $(cat "$dir/log")"
without() { final "$1" | grep -v -e '^5 ' -e '^9 '; }
[[ $(without "$dir/parts") == "$(without "$dir/full-1")" ]] || fail "4, 2, 3 ranks: $(diff <(without "$dir/parts") <(without "$dir/full-1"))"
on 3 "${common[@]}" "${shared[@]}" --zero 1 --steps 9 --out "$dir/zero" >"$dir/log" 2>&1 || fail "zero 1 on three ranks: $(cat "$dir/log")"
[[ $(find "$dir/zero/checkpoints/step-000009" -name 'optimizer-?.safetensors' | wc -l) == 3 ]] || fail "no part of each rank: $(ls "$dir/zero/checkpoints/"*)"
on 2 "${common[@]}" "${shared[@]}" --zero 1 --steps 10 --resume --out "$dir/zero" >"$dir/log" 2>&1 || fail "zero 1 on two ranks: $(cat "$dir/log")"
on 1 "${common[@]}" "${shared[@]}" --resume --out "$dir/zero" >"$dir/log" 2>&1 || fail "on one rank after zero 1: $(cat "$dir/log")"
whole() { came_to "$1" | grep -v -e '^9 ' -e '^10 ' -e step-00000 -e step-000010; }
[[ $(whole "$dir/zero") == "$(whole "$dir/full-1")" ]] || fail "zero 1: $(diff <(whole "$dir/zero") <(whole "$dir/full-1"))"

# A device whose memory the host does not reach: the CUDA emulator. NCCL needs a GPU.
emulated=$(dirname "$qeng")/libqeng_cuda_emulated.so
if [[ -e $emulated ]]; then
  device=("${common[@]}" "${shared[@]}" --device cuda:0 --accumulate 3 --steps 2 --eval-share 0)
  QENG_CUDA_LIBRARY=$emulated on 1 "${device[@]}" --out "$dir/device-1" >"$dir/log" 2>&1 || fail "a device on one rank: $(cat "$dir/log")"
  QENG_CUDA_LIBRARY=$emulated on 2 "${device[@]}" --zero 3 --out "$dir/device-3" >"$dir/log" 2>&1 || fail "a device with zero 3: $(cat "$dir/log")"
  [[ -n $(final "$dir/device-1") && $(final "$dir/device-1") == "$(final "$dir/device-3")" ]] || fail "a device with zero 3: $(diff <(final "$dir/device-1") <(final "$dir/device-3"))"
  output=$(QENG_NCCL=1 QENG_CUDA_LIBRARY=$emulated on 2 "${device[@]}" --out "$dir/device-nccl" 2>&1) && fail "NCCL without a GPU ended well"
  grep -q "qeng: .*ranks: .*; without QENG_NCCL gradients go through the host's memory" <<<"$output" || fail "NCCL without a GPU: $output"
else
  echo "SKIPPED ranks on a device: libqeng_cuda_emulated.so is not built here"
fi

# A rank dies: the launcher ends the job and names it, and the run goes on with fewer ranks, then with more.
common+=(--steps 200 --eval-every 0 --save-every 20)
on 1 "${common[@]}" --out "$dir/whole" >"$dir/log" 2>&1 || fail "the whole run: $(cat "$dir/log")"
run=("${common[@]}" --out "$dir/killed")
on 4 "${run[@]}" >"$dir/log" 2>&1 &
job=$!
for ((i = 0; i < 600; ++i)); do
  [[ ! -e $dir/killed/checkpoints/step-000020 ]] || break
  sleep 0.05
done
for process in $(pgrep -f -- "--out $dir/killed"); do
  if grep -qzx OMPI_COMM_WORLD_RANK=2 "/proc/$process/environ"; then kill -9 "$process"; fi
done
begin=$SECONDS
wait $job && fail "a job with a dead rank ended well"
((SECONDS - begin < 10)) || fail "the job took $((SECONDS - begin)) s to end"
tr "\n" " " <"$dir/log" | grep "process rank 2 .*signal 9" >/dev/null || fail "who died: $(cat "$dir/log")"
on 2 "${run[@]}" --steps 150 --resume >"$dir/log" 2>&1 || fail "resumed on two ranks: $(cat "$dir/log")"
on 3 "${run[@]}" --resume >"$dir/log" 2>&1 || fail "resumed on three ranks: $(cat "$dir/log")"
grep -q "resuming at step 150 of 200" "$dir/log" || fail "it did not go on: $(cat "$dir/log")"
on_the_way() { final "$1" | grep -v "^150 "; }
[[ $(on_the_way "$dir/killed") == "$(on_the_way "$dir/whole")" ]] || fail "killed and resumed: $(diff <(on_the_way "$dir/killed") <(on_the_way "$dir/whole") | head -5)"

# A rank that is told to end stops all of them, with a checkpoint; another may be told while that is written, or after.
run=("${common[@]}" --out "$dir/told" --eval-every 7)
on 3 "${run[@]}" >"$dir/log" 2>&1 &
job=$!
for ((i = 0; i < 600; ++i)); do
  [[ ! -e $dir/told/checkpoints/step-000020 ]] || break
  sleep 0.05
done
tell() {
  for process in $(pgrep -f -- "--out $dir/told"); do
    if grep -qzx OMPI_COMM_WORLD_RANK="$1" "/proc/$process/environ"; then kill -TERM "$process"; fi
  done
}
tell 1
for ((i = 0; i < 400; ++i)); do
  [[ $(find "$dir/told/checkpoints" -maxdepth 1 -name 'step-??????' | wc -l) == 1 ]] || break
  sleep 0.01
done
tell 0
wait $job && fail "a job that was told to end ended well"
grep -q "stopped after step .*go on with --resume" "$dir/log" || fail "told to end: $(cat "$dir/log")"
stood=$(grep -o 'stopped after step [0-9]*' "$dir/log" | grep -o '[0-9]*$')
[[ -e $(printf '%s/told/checkpoints/step-%06d' "$dir" "$stood") ]] || fail "no checkpoint of step $stood: $(ls "$dir/told/checkpoints")"
on 2 "${run[@]}" --resume >"$dir/log" 2>&1 || fail "resumed after it was told to end: $(cat "$dir/log")"
[[ $(grep -o '"loss":[^,}]*' "$dir/told/metrics.jsonl") == "$(grep -o '"loss":[^,}]*' "$dir/whole/metrics.jsonl")" ]] || fail "told to end and resumed: other losses"
[[ $(grep -c eval_loss "$dir/told/metrics.jsonl") == 29 ]] || fail "an evaluation was lost: $(grep -c eval_loss "$dir/told/metrics.jsonl") of 29"

# So does SIGUSR2, which mpirun hands on; at Ctrl-C it would kill ranks whose step takes longer than a second.
on 2 "${common[@]}" --steps 100000 --out "$dir/handed" >"$dir/log" 2>&1 &
job=$!
for ((i = 0; i < 600; ++i)); do
  [[ ! -s $dir/handed/metrics.jsonl ]] || break
  sleep 0.05
done
kill -USR2 "$(pgrep -P $job)"
status=0
wait $job || status=$?
[[ $status == 140 ]] && grep -q "stopped after step .*go on with --resume" "$dir/log" || fail "SIGUSR2 to mpirun: status $status: $(cat "$dir/log")"
grep -q "note: mpirun kills its ranks two seconds after Ctrl-C: stop it by kill -USR2 PID" "$dir/log" || fail "no note of Ctrl-C: $(cat "$dir/log")"

# An error of one rank, and of all.
says() {  # STATUS PATTERN RANKS COMMAND...
  local status=$1 pattern=$2 got=0 output
  shift 2
  output=$(on "$@" 2>&1) || got=$?
  [[ $got == "$status" && $(grep -cE "$pattern" <<<"$output") == 1 ]] || fail "$*: status $got, expected $status and '$pattern' once: $output"
}
says 2 '4 ranks share the micro-batches of a step, which are 2: --accumulate 4' 4 "${common[@]}" --accumulate 2 --out "$dir/few"
# Tasks of Slurm that no MPI joins would each train the whole model.
output=$(SLURM_STEP_NUM_TASKS=2 "$qeng" "${common[@]}" --out "$dir/task" 2>&1) && fail "a task without MPI trains: $output"
[[ $output == *"srun --mpi=pmix"* && ! -e $dir/task ]] || fail "a task without MPI: $output"
for recipe in "inspect recipes/tiny" own_loop "convert $dir/data.jsonl $dir/converted.qubgpu --tokenizer recipes/tiny"; do
  read -ra words <<<"$recipe"
  says 2 'this recipe runs in one process, and this is one of 2' 2 "recipes/${words[0]}.lua" "${words[@]:1}"
done
# Ranks that were started with different options, or read different models.
says 1 'start all ranks with the same: rank 1 has mode full .rank 0: lora., seed 4 .rank 0: 3., zero 3 .rank 0: 0.' 1 "${common[@]}" --out "$dir/apart" \
  : -n 1 "$qeng" "${common[@]}" --out "$dir/apart" --seed 4 --mode full --zero 3
cp -r recipes/tiny "$dir/other"
"$qeng" -e 'local q, out = require "qeng", ...
  local model = q.load("recipes/tiny", { writable = true })
  model.parameters[1].tensor:fill(0.5)
  model:save(out)' "$dir/other" || fail "the other model"
says 1 'start all ranks with the same: rank 1 has base weights ' 1 "${common[@]}" --mode full --out "$dir/apart" --model "$dir/other" \
  : -n 1 "$qeng" "${common[@]}" --mode full --out "$dir/apart"
says 1 'none: ' 2 recipes/lora_qwen.lua --model "$dir/none" --data "$dir/data.jsonl" --accumulate 2 --out "$dir/none-out"
exit $failed
