#!/usr/bin/env bash
# bench/train_gpu.sh [--out DIR] [--budget SECONDS] [--only TEXT] [--no-peers] [--go-on] [--device cuda] [--python python3] [--tiny]
# LoRA (rank 16, all linear layers) and full fine-tuning of the shapes of Qwen2.5-0.5B, 1.5B and 7B with random weights,
# packed rows of 2048 and 8192: all of qeng, then transformers and PEFT on the same weights and tokens. What matters most
# comes first; what the budget leaves no room for is named. Figures go into DIR as they are measured; a table, DIR/train.json
# and DIR/results.tar.gz, which has all of that, last.
# --only: the configurations whose name contains TEXT ("1.5B lora 8192"). --go-on: what DIR has is not measured again.
# --tiny: a small model, to try the script.
set -euo pipefail
root=$(readlink -f "$(dirname "$(readlink -f "$0")")/..")
out=out/train_gpu budget=1500 only="" peers=1 go_on=0 device=cuda python=python3 tiny=0
while (($#)); do
  case $1 in
    --no-peers) peers=0; shift; continue ;;
    --go-on) go_on=1; shift; continue ;;
    --tiny) tiny=1; shift; continue ;;
    --out) out=$2 ;;
    --budget) budget=$2 ;;
    --only) only=$2 ;;
    --device) device=$2 ;;
    --python) python=$2 ;;
    *) sed -n '2,9s/^# //p' "$0" >&2; exit 2 ;;
  esac
  shift 2
done
qeng=${QENG:-$root/build/release/qeng}
[[ -x $qeng ]] || qeng=$root/bin/qeng
[[ -x $qeng ]] || { echo "train_gpu: no qeng: build it, or set QENG" >&2; exit 1; }
mkdir -p "$out"
out=$(readlink -f "$out")
# shellcheck source=scripts/gpu-environment
source "$root/scripts/gpu-environment"
find_cublas "$python"
keep_choices "$out"

# shape, mode, tokens of a row, rows, steps, recompute, peers
configurations=(
  "1.5B lora 8192 1 13 - eager,compiled,helped,helped+compiled"
  "7B lora 8192 1 11 - eager,compiled"
  "1.5B full 8192 1 13 - eager,compiled"
  "0.5B lora 8192 1 13 - eager,compiled"
  "0.5B full 8192 1 13 - eager"
  "1.5B lora 2048 4 13 - eager,compiled"
  "7B lora 2048 4 11 - eager"
  "1.5B full 2048 4 13 - eager"
  "0.5B lora 2048 4 13 - eager"
  "0.5B full 2048 4 13 - eager"
  "7B full 2048 1 8 recompute -"   # 18 bytes a parameter are 128 GiB: nothing of transformers fits beside it
  "7B full 8192 1 8 recompute -"
)
((tiny == 0)) || configurations=("tiny lora 64 1 3 - eager,helped" "tiny full 64 1 3 recompute eager")

if ((peers)) && ! "$python" -c 'import torch, transformers' 2>/dev/null; then
  echo "SKIPPED: transformers and PEFT: $python has no torch or no transformers"
  peers=0
fi

# Runs a command under a limit, and writes the most device memory that was in use meanwhile to FILE (MiB).
watched() {
  local limit=$1 file=$2 sampler="" status=0
  shift 2
  if [[ $device == cuda* ]] && command -v nvidia-smi >/dev/null; then
    nvidia-smi --query-gpu=memory.used --format=csv,noheader,nounits -i "$([[ $device == cuda:* ]] && echo "${device#cuda:}" || echo 0)" -lms 100 >"$file.samples" 2>/dev/null &
    sampler=$!
  fi
  timeout -k 5 "$limit" "$@" || status=$?
  if [[ -n $sampler ]]; then
    kill "$sampler" 2>/dev/null || true
    wait "$sampler" 2>/dev/null || true
    sort -n "$file.samples" | tail -n 1 >"$file"
    rm -f "$file.samples"
  fi
  return "$status"
}

left() { echo $((budget - SECONDS)); }
failed=0
folder() { echo "$out/${1}_${2}_${3}"; }

ours() {
  local shape=$1 mode=$2 row_tokens=$3 rows=$4 steps=$5 recompute=$6 dir status=0
  dir=$(folder "$shape" "$mode" "$row_tokens")
  mkdir -p "$dir"
  ((!go_on)) || [[ ! -s $dir/result.json || ! -s $dir/batches.json ]] || return 0  # the peers need its batches
  (($(left) > 15)) || { echo "left out for the budget: qeng $shape $mode $row_tokens"; return 0; }
  local flags=(--batches)
  [[ $recompute != recompute ]] || flags+=(--recompute)
  watched "$(($(left) < 120 ? $(left) : 120))" "$dir/qeng.mib" "$qeng" "$root/bench/train.lua" --device "$device" --shape "$shape" --mode "$mode" \
    --row-tokens "$row_tokens" --rows "$rows" --steps "$steps" "${flags[@]}" --out "$dir" 2>"$dir/qeng.log" || status=$?
  ((status == 0)) || { failed=1; echo "qeng $shape $mode $row_tokens: FAILED ($status): $(tail -n 3 "$dir/qeng.log")" | tee "$dir/qeng.failed"; }
}

theirs() {
  local shape=$1 mode=$2 row_tokens=$3 recompute=$6 variants=$7 dir name status
  dir=$(folder "$shape" "$mode" "$row_tokens")
  [[ $variants != - && -e $dir/result.json ]] || return 0
  local flags=()
  [[ $recompute != recompute ]] || flags+=(--recompute)
  for variant in ${variants//,/ }; do
    name=${variant//+/, } status=0
    ((!go_on)) || [[ ! -s $dir/${variant//+/_}.json ]] || continue
    (($(left) > 25)) || { echo "left out for the budget: $name $shape $mode $row_tokens"; continue; }
    watched "$(left)" "$dir/${variant//+/_}.mib" "$python" "$root/bench/train_peer.py" --dir "$dir" --variant "$name" --budget "$(($(left) - 10))" \
      --device "${device%%:*}" "${flags[@]}" 2>"$dir/${variant//+/_}.log" || status=$?
    # A peer that cannot run (memory, a missing package) is no failure of ours.
    ((status == 0)) || echo "$name $shape $mode $row_tokens: not available ($status): $(tail -n 1 "$dir/${variant//+/_}.log")" | tee "$dir/${variant//+/_}.failed"
  done
}

chosen=()
for configuration in "${configurations[@]}"; do [[ $configuration != *"$only"* ]] || chosen+=("$configuration"); done
((${#chosen[@]})) || { echo "train_gpu: no configuration contains '$only'" >&2; exit 2; }
for configuration in "${chosen[@]}"; do
  read -ra words <<<"$configuration"
  ours "${words[@]}"
done
for configuration in "${chosen[@]}"; do
  read -ra words <<<"$configuration"
  ((!peers)) || theirs "${words[@]}"
done
"$qeng" "$root/bench/compare_train.lua" "$out"
pack_results "$out"
exit "$failed"
