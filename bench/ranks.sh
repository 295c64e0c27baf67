#!/usr/bin/env bash
# Training on two processes of one core each beside one process of two cores, in turns: tokens a second of each, and their ratio.
#   QENG=build/release/qeng bash bench/ranks.sh MODEL DATA.jsonl [options of recipes/lora_qwen.lua]       ROUNDS=3 before it
set -euo pipefail
qeng=$(realpath "${QENG:-build/release/qeng}")
model=$(realpath "$1") data=$(realpath "$2")
shift 2
cd "$(dirname "$(readlink -f "$0")")/.."
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT
export OMPI_ALLOW_RUN_AS_ROOT=1 OMPI_ALLOW_RUN_AS_ROOT_CONFIRM=1
"$qeng" recipes/convert.lua "$data" "$work/data.qubgpu" --tokenizer "$model" >/dev/null 2>&1
options=(recipes/lora_qwen.lua --model "$model" --data "$work/data.qubgpu" --accumulate 2 --steps 12 --eval-share 0 --save-every 0 "$@")
rate() {  # the median of the steps after the first four
  "$qeng" -e 'local q, list = require "qeng", {}
    for line in io.lines((...) .. "/metrics.jsonl") do list[#list + 1] = q.json.decode(line).tok_s end
    list = { unpack(list, 5) }
    table.sort(list)
    print(("%.0f"):format(list[math.ceil(#list / 2)]))' "$work/$1"
}
ratios=()
for ((round = 1; round <= ${ROUNDS:-3}; ++round)); do
  "$qeng" "${options[@]}" --threads 2 --out "$work/one" --overwrite </dev/null >"$work/log" 2>&1 || { cat "$work/log"; exit 1; }
  mpirun -n 2 --bind-to core "$qeng" "${options[@]}" --threads 1 --out "$work/two" --overwrite </dev/null >"$work/log" 2>&1 || { cat "$work/log"; exit 1; }
  one=$(rate one) two=$(rate two)
  ratios+=("$(awk "BEGIN { printf \"%.2f\", $two / $one }")")
  echo "round $round, load $(cut -d' ' -f1 /proc/loadavg): one process $one tokens/s, two ranks $two: ${ratios[-1]}"
done
echo "median ratio $(printf '%s\n' "${ratios[@]}" | sort -n | awk '{ a[NR] = $1 } END { print a[int((NR + 1) / 2)] }')"
