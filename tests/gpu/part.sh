#!/usr/bin/env bash
# tests/gpu/part.sh NAME: one part of scripts/gpu-check, which says what each is and sets what they work with.
# Exit status 0: passed, 77: skipped (with a line SKIPPED: why), else failed.
set -euo pipefail
part=$1
: "${root:?run scripts/gpu-check}" "${bin:?}" "${qeng:?}" "${conformance:?}" "${out:?}" "${device:?}" "${python:?}" "${limit:?}" "${quick:?}" "${emulated:?}"
tests=$root/tests/lua recipe=$root/recipes/lora_qwen.lua

skip() { echo "SKIPPED: $*"; exit 77; }
summary() { echo "$*" >"$out/$part.summary"; }  # what the table says of the part
# Runs the commands of its input, one a line, as many at a time as there are processors, each for at most `each` seconds;
# their outputs follow in order, of those that pass only the last two lines. Fails if one does.
each=$limit
side_by_side() {
  local lines=() jobs=() status=0 code i most
  most=$(nproc)
  mapfile -t lines
  for i in "${!lines[@]}"; do
    while (($(jobs -rp | wc -l) >= most)); do sleep 0.02; done
    # In the foreground: in a group of its own it would outlive this part, where that is ended.
    timeout --foreground -k 2 "$each" bash -c "exec ${lines[i]}" >"$out/$part.$i.part" 2>&1 </dev/null &
    jobs+=($!)
  done
  for i in "${!jobs[@]}"; do
    code=0
    wait "${jobs[i]}" || code=$?
    if ((code == 0)); then
      grep -v '^ *$' "$out/$part.$i.part" | tail -n 2
    else
      status=1
      echo "FAILED: ${lines[i]}"
      tail -n 60 "$out/$part.$i.part"
      if ((code == 124 || code == 137)); then echo "no end within $each s"; else echo "exit status $code"; fi
    fi
    rm -f "$out/$part.$i.part"
  done
  return "$status"
}
# The last lines of a run's log, where it fails.
run() {
  local log=$1
  shift
  "$@" >"$log" 2>&1 </dev/null || { echo "FAILED: $*"; tail -n 15 "$log"; return 1; }
}
same_bits() { sha256sum <"$1" | cut -c1-16; }

part_system() {
  uname -srm
  nproc
  "$qeng" "$root/tests/gpu/system.lua" "$device" "$out/system.json" "$out/system.summary"
  ((!emulated)) || return 0
  ldconfig -p | grep -E 'libcublasLt|libcuda\.so' || true
  echo "LD_LIBRARY_PATH=${LD_LIBRARY_PATH:-} QENG_CUBLASLT=${QENG_CUBLASLT:-}"
  nvidia-smi --query-gpu=name,driver_version,memory.total,compute_cap,clocks.max.sm --format=csv,noheader || true
  # From a cold disk these take the most time, and nothing below needs them.
  "$python" -c 'import torch; print("torch", torch.__version__, "CUDA", torch.version.cuda, "cuDNN", torch.backends.cudnn.version())' 2>/dev/null || echo "no PyTorch"
  "$python" -c 'import transformers, peft; print("transformers", transformers.__version__, "PEFT", peft.__version__)' 2>/dev/null || echo "no transformers or no PEFT"
}

part_instructions() {
  local test=$bin/qeng_hopper_test
  [[ -x $test ]] || test=$bin/tests/gpu/qeng_hopper_test
  [[ -x $test ]] || skip "qeng_hopper_test is missing (scripts/bundle --check, or scripts/build release qeng_hopper_test)"
  local capability=9.0
  ! command -v nvidia-smi >/dev/null || capability=$(nvidia-smi --query-gpu=compute_cap --format=csv,noheader -i "${device#cuda:}")
  [[ $capability == 9.0 ]] || skip "the GPU is of compute capability $capability, not 9.0"
  "$test" | tee "$out/instructions.text" || return 1
  summary "$(tail -n 2 "$out/instructions.text" | tr '\n' ' ')"
}

# A process for each operation: after a bad access a process's device is lost to it. One that hangs is ended, and is wrong.
# Attention comes first and alone: most of what follows needs it.
part_conformance() {
  [[ -x $conformance ]] || skip "$conformance is missing (scripts/bundle --check, or a build with Catch2)"
  export QENG_BACKENDS=cuda
  each=$((limit / 6))  # an operation takes seconds; attention may take this twice by either way, and time is left for the others
  local operations first="" others="" status=0 name note=""
  local float64='every op agrees with float64 on every backend' bits='an op gives the same bits with one thread and with two and twice on a GPU'
  local refused='an op with one view of a wrong shape or dtype or order of rows is refused before it writes'
  operations=$(sed -n 's/.*constexpr const char\* name = "\(.*\)";.*/\1/p' "$root"/kernels/ops/*.h)
  if ((emulated)); then export QENG_ROUNDS=3 operations="add_rmsnorm"; fi  # CTest runs all of them there
  for name in $operations; do
    case $name in attention | attention_grad) first+=" $name" ;; *) others+=" $name" ;; esac
  done
  check_operations() { for name; do printf '%q %q -c %s\n' "$conformance" "$float64,$bits,$refused" "$name"; done | side_by_side | tee -a "$out/conformance.text"; }
  wrong() { sed -n 's/^FAILED: .* -c //p' "$out/conformance.text" | sort -u | paste -sd ' '; }
  : >"$out/conformance.text"
  for name in $first; do check_operations "$name" || status=1; done
  if ((status)); then  # mma.sync is the other way, on every GPU
    if for name in $first; do printf 'env QENG_ATTENTION=mma %q %q -c %s\n' "$conformance" "$float64" "$name"; done | side_by_side; then
      echo mma >"$out/attention.txt"
      note=" (right with QENG_ATTENTION=mma, which the parts below use)"
    else
      echo none >"$out/attention.txt"
      note=" (wrong with QENG_ATTENTION=mma too)"
    fi
    note="; wrong: $(wrong)$note"
    summary "attention alone$note"
  fi
  # shellcheck disable=SC2086  # words
  check_operations $others || status=1
  local skipped more
  more=$(for name in $(wrong); do [[ " $first " == *" $name "* ]] || echo "$name"; done | paste -sd ' ')
  [[ -z $more ]] || note+="; wrong: $more"
  skipped=$(grep -c 'SKIPPED on' "$out/conformance.text" || true)
  summary "$(wc -w <<<"$operations") operations$note$( ((skipped == 0)) || echo ", $skipped not on this device")"
  return "$status"
}

part_parity() {
  local names=(qwen2_tied qwen2_untied qwen3_tied qwen3_untied llama_llama3 llama_yarn llama_linear llama_dynamic mistral mistral_window)
  ((!quick)) || names=(qwen2_tied qwen3_untied llama_llama3)
  ((!emulated)) || names=(qwen2_tied)
  export QENG_TEST_DEVICE=$device
  ((!emulated)) || export QENG_PARITY=short
  summary "${#names[@]} models against transformers and PEFT"
  for name in "${names[@]}"; do echo "'$qeng' '$tests/parity_test.lua' $name"; done | side_by_side
}

# A short run of the main recipe on the demo's model and task; in the emulator on a smaller model.
model=$root/recipes/tiny data=$out/examples.jsonl
((!emulated)) || model=$out/small/model data=$out/small/data.jsonl
prepare() {
  if ((emulated)); then "$qeng" "$tests/small_model.lua" "$out/small"; else "$qeng" "$root/tests/gpu/examples.lua" "$data" 2000; fi
}
recipe_run() {
  local folder=$1
  shift
  [[ " $* " == *" --resume "* ]] || rm -rf "$out/$folder/checkpoints"  # a check that was stopped leaves some
  run "$out/$folder.log" "$qeng" "$recipe" --model "$model" --data "$data" --out "$out/$folder" --eval-share 0 \
    --save-every 0 --row-tokens 256 --rows 2 --lr 3e-3 --threads 4 "$@"
}
part_losses() {
  local steps=30 modes="lora full" worst="" status=0 mode dtype allowed line of_cpu
  ((!emulated)) || steps=2 modes=lora
  prepare
  local short=()
  ((!emulated)) || short=(--row-tokens 32 --rows 1)
  for mode in $modes; do
    for dtype in f32 bf16; do
      recipe_run "losses_cpu_${dtype}_$mode" --mode "$mode" --steps $steps --device cpu --dtype $dtype --lr 1e-3 "${short[@]}" || return 1
    done
    # How far rounding takes a run in bf16 depends on the task: the CPU's own says. 1e-4: what tests/golden allow f32.
    line=$("$qeng" "$root/tests/gpu/losses.lua" "$out/losses_cpu_f32_$mode/metrics.jsonl" "$out/losses_cpu_bf16_$mode/metrics.jsonl" 1)
    of_cpu=${line%% *}
    echo "$mode, CPU in bf16, CPU in f32: $line"
    for dtype in bf16 f32; do
      allowed=1e-4
      [[ $dtype == f32 ]] || allowed=$(awk -v of_cpu="$of_cpu" 'BEGIN { print 2 * of_cpu }')
      recipe_run "losses_${dtype}_$mode" --mode "$mode" --steps $steps --device "$device" --dtype $dtype --lr 1e-3 "${short[@]}" || { status=1; continue; }
      line=$("$qeng" "$root/tests/gpu/losses.lua" "$out/losses_cpu_f32_$mode/metrics.jsonl" "$out/losses_${dtype}_$mode/metrics.jsonl" "$allowed") || status=1
      echo "$mode, GPU in $dtype, CPU in f32: $line"
      worst+="${worst:+, }$mode $dtype ${line%% *}"
    done
    worst+=" (CPU's bf16 $of_cpu)"
  done
  summary "largest relative difference over $steps steps: $worst"
  return "$status"
}

part_bits() {
  local status=0 dtype first kind count=0 steps=40 more=() job
  prepare
  ((!emulated)) || steps=2 more=(--row-tokens 32 --rows 1)
  check() {  # NAME FILE: against the first
    local now
    now=$(same_bits "$2")
    count=$((count + 1))
    if [[ $now == "$first" ]]; then echo "$1: the same bits"; else echo "FAILED: $1 differs"; status=1; fi
  }
  if ((!emulated)) && [[ -x $conformance ]]; then  # of instructions whose bits only a GPU can tell, and of its own roundings
    for kind in 'a row of a linear layer*' 'paged attention gives*' 'a recording of decoder layers*'; do
      count=$((count + 1))
      if QENG_BACKENDS=cuda "$conformance" "$kind" >"$out/bits_$count.text" 2>&1; then
        echo "$kind: the same bits"
      else
        echo "FAILED: $kind: other bits: $(grep -m1 'rows\|cuda' "$out/bits_$count.text")"
        status=1
      fi
    done
  fi
  local adapter=adapter/adapter_model.safetensors
  for dtype in f32 bf16; do
    again() {
      local name=$1
      shift
      recipe_run "bits_$name" --dtype "$dtype" --steps $steps --accumulate 2 --dropout 0.1 --device "$device" "${more[@]}" "$@"
    }
    again a || return 1
    first=$(same_bits "$out/bits_a/$adapter")
    for kind in repeated eager recompute; do
      local flags=()
      [[ $kind == repeated ]] || flags=("--$kind")
      again $kind "${flags[@]}" && check "recipe, $dtype, $kind" "$out/bits_$kind/$adapter" || status=1
    done
    if ((!emulated)); then  # stopped in the middle, then to the end
      rm -rf "$out/bits_resumed"
      "$qeng" "$recipe" --model "$model" --data "$data" --out "$out/bits_resumed" --eval-share 0 --save-every 5 --row-tokens 256 --rows 2 \
        --lr 3e-3 --threads 4 --dtype "$dtype" --steps $steps --accumulate 2 --dropout 0.1 --device "$device" >"$out/bits_resumed.log" 2>&1 </dev/null &
      job=$!
      for _ in $(seq 200); do
        [[ $(wc -l <"$out/bits_resumed/metrics.jsonl" 2>/dev/null || echo 0) -lt 8 ]] || break
        sleep 0.02
      done
      kill -9 "$job" 2>/dev/null && echo "killed after $(wc -l <"$out/bits_resumed/metrics.jsonl") of $steps steps" || echo "the run was over before it was killed"
      wait "$job" 2>/dev/null || true
      again resumed --resume && check "recipe, $dtype, killed and resumed" "$out/bits_resumed/$adapter" || status=1
    fi
    ((!emulated)) || break
  done
  # The shapes of a real model take other paths through the kernels.
  local shape=0.5B rows="--row-tokens 2048 --rows 2"
  ((!emulated)) || shape=tiny rows="--row-tokens 32 --rows 1"
  for kind in a repeated eager recompute; do
    local flags=()
    [[ $kind == a || $kind == repeated ]] || flags=("--$kind")
    ((!emulated)) || [[ $kind == a || $kind == eager ]] || continue
    # shellcheck disable=SC2086  # words
    run "$out/bits_large.log" "$qeng" "$root/bench/train.lua" --shape $shape --steps $((emulated ? 1 : 3)) $rows --device "$device" --adapter --out "$out/bits_large_$kind" "${flags[@]}" || { status=1; continue; }
    if [[ $kind == a ]]; then first=$(same_bits "$out/bits_large_a/adapter.safetensors"); else check "$shape shape, $kind" "$out/bits_large_$kind/adapter.safetensors"; fi
  done
  rm -rf "$out"/bits_*
  summary "$count comparisons"
  return "$status"
}

part_streaming() {
  local names=(stream_device onebit_stream_test program_test)
  ((!emulated)) || names=(program_test)  # CTest runs the others and the recordings there
  export QENG_BACKENDS=cuda
  summary "${names[*]}$( ((emulated)) || echo ", recordings")"
  {
    for name in "${names[@]}"; do printf '%q %q %s\n' "$qeng" "$tests/$name.lua" "$device"; done
    ((emulated)) || [[ ! -x $conformance ]] || printf '%q %q\n' "$conformance" '*recording*'
  } | side_by_side
}

part_verify() {
  local options=(--models '1.5B,0.5B' --tokens 1024 --budget $((limit - 8)))
  ((!emulated)) || options=(--models tiny --tokens 16)
  local status=0
  "$bin/qeng_bench_ops" --verify --device "$device" "${options[@]}" --json "$out/verify.jsonl" | tee "$out/verify.text" || status=$?
  summary "$(tail -n 1 "$out/verify.text")"
  return "$status"
}

part_sanitizer() {
  ((!emulated)) || skip "the emulator has its own checks"
  [[ -x $conformance ]] || skip "$conformance is missing"
  local tool found="" status=0 rounds text=""
  found=$(command -v compute-sanitizer || compgen -G '/usr/local/cuda*/bin/compute-sanitizer' | head -n 1 || true)
  [[ -n $found ]] || skip "compute-sanitizer is not on this machine"
  for tool in memcheck racecheck; do
    rounds=1 code=0
    [[ $tool == racecheck ]] || rounds=2
    # What an API call refuses our code says itself, and libraries try calls that may fail.
    QENG_BACKENDS=cuda QENG_ROUNDS=$rounds timeout -k 5 $((limit / 2 - 8)) "$found" --tool "$tool" --report-api-errors no --error-exitcode 86 "$conformance" \
      'every op agrees with float64 on every backend' >"$out/$tool.text" 2>&1 </dev/null || code=$?
    tail -n 25 "$out/$tool.text"
    if grep -qE 'ERROR SUMMARY: [1-9]|RACECHECK SUMMARY: [1-9]|========= (Invalid|Error: |Race reported|Barrier error)' "$out/$tool.text"; then
      status=1 text+="${text:+, }$tool found errors: $(grep -m 1 -A 1 -E '^========= (Invalid|Error|Race|Barrier|Misaligned|Address|Program)' "$out/$tool.text" | cut -c 11- | tr '\n' ' ')"
    elif ((code == 124 || code == 137)); then
      text+="${text:+, }$tool not finished in its time, no error until then"
    elif ((code == 0)); then
      text+="${text:+, }$tool clean"
    else
      status=1 text+="${text:+, }$tool ended with status $code"
    fi
  done
  summary "$text"
  return "$status"
}

part_ops() {
  local options=(--models '1.5B,7B,0.5B' --budget $((limit - 18)))
  ((!quick)) || options=(--models 1.5B --budget 30)
  ((!emulated)) || options=(--models tiny --tokens 16 --seconds 0 --no-cycle)
  local status=0
  "$bin/qeng_bench_ops" --device "$device" "${options[@]}" --json "$out/ops.jsonl" | tee "$out/ops.text" || status=$?
  # Attention's other way, to see which is faster where.
  ((emulated)) || QENG_ATTENTION=mma "$bin/qeng_bench_ops" --device "$device" --models '1.5B,0.5B' --only attention --budget 8 --json "$out/attention_mma.jsonl" || status=1
  summary "$(grep -cE '(copy|GEMM)$' "$out/ops.text") operations timed$(grep 'left out' "$out/ops.text" | sed 's/^/, /')"
  return "$status"
}

train_gpu() {  # OPTIONS...
  local status=0
  QENG=$qeng "$root/bench/train_gpu.sh" --out "$out/train" --device "$device" --python "$python" --budget $((limit - 10)) "$@" 2>&1 | tee "$out/$part.text" || status=$?
  summary "$(grep -cE '^(0.5B|1.5B|7B|tiny) ' "$out/$part.text") configurations$(grep -c 'left out' "$out/$part.text" | sed 's/^0$//; s/.\+/, & runs left out/')"
  return "$status"
}
part_train() {
  local options=(--no-peers)
  ((!quick)) || options+=(--only '1.5B lora 8192')
  ((!emulated)) || options+=(--tiny)
  train_gpu "${options[@]}"
}

part_peers() {
  "$python" -c 'import torch, sys; sys.exit(not torch.cuda.is_available())' 2>/dev/null || skip "$python has no PyTorch that finds a GPU"
  [[ -s $out/ops.jsonl ]] || skip "the part ops measured nothing to compare with"
  local status=0
  "$python" "$root/bench/peers_gpu.py" --ops "$out/ops.jsonl" --json "$out/peers.jsonl" --budget $((limit - 12)) 2>"$out/peers.err" | tee "$out/peers.text" || status=$?
  ((status == 0)) || tail -n 5 "$out/peers.err"
  summary "$(grep -c 'ratio [0-9]' "$out/peers.text") times of PyTorch"
  return "$status"
}

part_train_peers() {
  "$python" -c 'import torch, transformers, sys; sys.exit(not torch.cuda.is_available())' 2>/dev/null || skip "$python has no transformers, or no PyTorch that finds a GPU"
  train_gpu --go-on --only '1.5B lora 8192'
}

case $part in
  system) part_system ;;
  instructions) part_instructions ;;
  conformance) part_conformance ;;
  parity) part_parity ;;
  losses) part_losses ;;
  bits) part_bits ;;
  streaming) part_streaming ;;
  verify) part_verify ;;
  sanitizer) part_sanitizer ;;
  ops) part_ops ;;
  train) part_train ;;
  peers) part_peers ;;
  train_peers) part_train_peers ;;
  *) echo "part.sh: no part is called '$part'" >&2; exit 2 ;;
esac
