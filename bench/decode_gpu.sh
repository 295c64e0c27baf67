#!/usr/bin/env bash
# bench/decode_gpu.sh [--out DIR] [--budget SECONDS] [--only TEXT,TEXT] [--no-peers] [--from RESULTS] [--models DIR] [--device cuda]
#   [--python python3] [--tiny]
# Inference of the shapes of Qwen3-8B and 1.7B with random weights in TQ2_0, Q2_0, Q4_K, Q8_0 and bf16, by recipes/bench_decode.lua:
# batch 1 to 64 against the bandwidth measured in the same process, and prefill; beside bf16, minutes apart, PyTorch with a static
# cache and torch.compile (bench/decode_peer.py). What matters most comes first. Each part is done once: called again, it goes on
# where the budget ended it, on another machine with --from its results.tar.gz. DIR: a folder for each part, decode.md, decode.json
# with everything measured, results.tar.gz with all of that. A model is written to --models (by default to memory, where
# /dev/shm has 20 GB, else to TMPDIR), and removed after its part.
# --only: the parts whose name contains a TEXT ("8B tq2_0", "bf16"). --tiny: a small model, to try the script, on a CPU too.
set -euo pipefail
root=$(readlink -f "$(dirname "$(readlink -f "$0")")/..")
out=out/decode_gpu budget=570 only="" peers=1 from="" models="" device=cuda python=python3 tiny=0
while (($#)); do
  case $1 in
    --no-peers) peers=0; shift; continue ;;
    --tiny) tiny=1; shift; continue ;;
    --out) out=$2 ;;
    --budget) budget=$2 ;;
    --only) only=$2 ;;
    --from) from=$2 ;;
    --models) models=$2 ;;
    --device) device=$2 ;;
    --python) python=$2 ;;
    *) sed -n '2,11s/^# \{0,1\}//p' "$0" >&2; exit 2 ;;
  esac
  shift 2
done
[[ -z $from || -r $from ]] || { echo "decode_gpu: --from: no such file: $from" >&2; exit 2; }
qeng=${QENG:-$root/build/release/qeng}
[[ -x $qeng ]] || qeng=$root/bin/qeng
[[ -x $qeng ]] || { echo "decode_gpu: no qeng: build it, or set QENG" >&2; exit 1; }
mkdir -p "$out"
out=$(readlink -f "$out")
[[ -z $from ]] || tar -xzf "$from" -C "$out"
# shellcheck source=scripts/gpu-environment
source "$root/scripts/gpu-environment"
find_cublas "$python"
keep_choices "$out"

# shape, type, seconds that ours may take, seconds that the peer may take (it compiles for a minute or two)
configurations=(
  "8B tq2_0 120 0"
  "8B bf16 200 300"
  "1.7B tq2_0 90 0"
  "1.7B bf16 120 240"
  "8B q4_k_s 150 0"   # nearly all its matrices are Q4_K; q4_k_m has half of some in Q6_K
  "8B q8_0 150 0"
  "8B q2_0 120 0"
  "1.7B q4_k_s 90 0"
  "1.7B q8_0 90 0"
  "1.7B q2_0 90 0"
)
batches=1,2,4,8,16,32,64 prompt=512 tokens=128 repeats=5
if ((tiny)); then
  configurations=("tiny tq2_0 120 0" "tiny bf16 120 240" "tiny q4_k_s 120 0")
  batches=1,2 prompt=16 tokens=8 repeats=2
fi
chosen=()
IFS=, read -ra texts <<<"$only"
for configuration in "${configurations[@]}"; do
  read -r shape type _ <<<"$configuration"
  fits=$((${#texts[@]} == 0))
  for text in "${texts[@]}"; do [[ "$shape $type" != *"$text"* ]] || fits=1; done
  ((!fits)) || chosen+=("$configuration")
done
((${#chosen[@]})) || { echo "decode_gpu: no part contains '$only'" >&2; exit 2; }

if [[ -z $models ]]; then
  models=${TMPDIR:-/tmp}
  [[ ! -w /dev/shm ]] || (($(df -Pk /dev/shm | awk 'NR == 2 {print $4}') < 20000000)) || models=/dev/shm
fi
mkdir -p "$models"
model=$(mktemp -d "$models/qeng_decode.XXXXXX")/model.gguf
trap 'rm -rf "$(dirname "$model")"; pack_results "$out"' EXIT

if ((peers)) && ! "$python" -c 'import torch, transformers' 2>/dev/null; then
  echo "SKIPPED: PyTorch: $python has no torch or no transformers"
  peers=0
fi
description=$("$qeng" -e 'local q = require "qeng"
  q.device { device = "'"$device"'" }
  for _, one in ipairs(q.devices()) do if one.name:find("'"$device"'", 1, true) == 1 then print(one.description) break end end')
commit=$(cat "$root/COMMIT" 2>/dev/null || git -C "$root" describe --always --dirty --abbrev=12 2>/dev/null || echo unknown)
left() { echo $((budget - SECONDS)); }
within() { local most=$(($(left) < $1 ? $(left) : $1)); echo $((most > 1 ? most : 1)); }  # seconds; 0 would be no limit to timeout
failed=0

# ours DIR SHAPE TYPE SECONDS: DIR/decode.json and DIR/run.json
ours() {
  local dir=$1 shape=$2 type=$3 limit=$4 status=0
  {
    timeout -k 5 "$(within "$limit")" "$qeng" "$root/bench/decode_model.lua" --shape "$shape" --type "$type" --out "$model" --config "$dir/config.json" &&
      timeout -k 5 "$(within "$limit")" "$qeng" "$root/recipes/bench_decode.lua" --model "$model" --device "$device" --dtype bf16 --weights map \
        --batch "$batches" --prompt "$prompt" --context "$prompt" --tokens "$tokens" --repeats "$repeats" --out "$dir/decode.json"
  } >"$dir/qeng.log" 2>&1 </dev/null || status=$?
  rm -f "$model"
  tail -n 10 "$dir/qeng.log"
  ((status == 0)) || return "$status"
  printf '{"shape": "%s", "type": "%s", "device": "%s", "commit": "%s", "date": "%s", "context": %d, "tokens": %d}\n' "$shape" "$type" \
    "${description//\"/}" "$commit" "$(date -u '+%F %T UTC')" "$prompt" "$tokens" >"$dir/run.json"
}

theirs() {  # DIR SECONDS: DIR/peer.json
  local dir=$1 limit=$2 status=0
  limit=$(within "$limit")
  timeout -k 5 "$limit" "$python" "$root/bench/decode_peer.py" --config "$dir/config.json" --context "$prompt" --tokens "$tokens" --repeats "$repeats" \
    --device "${device%%:*}" --budget $((limit - 15)) >"$dir/peer.json.new" 2>"$dir/peer.log" </dev/null || status=$?
  if ((status)); then
    echo "PyTorch: not available ($status): $(tail -n 1 "$dir/peer.log")" | tee "$dir/peer.failed"
    rm -f "$dir/peer.json.new"
    return "$status"
  fi
  rm -f "$dir/peer.failed"
  mv "$dir/peer.json.new" "$dir/peer.json"
  cat "$dir/peer.json"
}

for configuration in "${chosen[@]}"; do
  read -r shape type seconds peer_seconds <<<"$configuration"
  name=${shape}_$type dir=$out/${shape}_$type
  ((peers)) || peer_seconds=0
  # Where the peer lacks, and can be had now, both are measured anew: their ratio is of one run.
  ((peer_seconds > 0)) && done=$dir/peer.json || done=$dir/run.json
  [[ ! -e $out/$name.done || ! -e $done ]] || { echo "$shape $type: done"; continue; }
  (($(left) > (seconds + peer_seconds) / 2)) || { echo "$shape $type: no time left; call again"; failed=3; continue; }
  echo "==== $shape $type"
  rm -rf "$dir" "$out/$name.done"
  mkdir -p "$dir"
  if ! ours "$dir" "$shape" "$type" "$seconds"; then
    echo "$shape $type: FAILED, see $dir/qeng.log" | tee "$dir/qeng.failed"
    failed=1
    continue
  fi
  # A peer that cannot run is no failure of ours, but it is said, and tried again by the next call.
  if ((peer_seconds == 0)) || theirs "$dir" "$peer_seconds"; then touch "$out/$name.done"; fi
  pack_results "$out"
done
"$qeng" "$root/bench/decode_table.lua" "$out" >"$out/decode.md"
cat "$out/decode.md"
exit "$failed"
