#!/usr/bin/env bash
# bench/onebit_gpu.sh --data TEXT [--out DIR] [--budget SECONDS] [--methods NAME,NAME] [--lrs LR,LR] [--seeds N,N]
#   [--from RESULTS] [--device cuda] [--python python3] [--tiny]
# One-bit training on a GPU, what matters most first: a phased step of a 90B shape within 8 GB of the device and 64 GB of the host, with
# 1, 2 and 4 layers copied ahead; products of one-bit weights against cuBLAS and the bandwidth; rules compared at 5 million weights over
# 20 million characters of TEXT, a process each, all on the same GPU. Each part is done once: called again, it goes on where the budget
# ended it, the comparison within its runs. DIR: step.txt, ops.txt, compare/report.html and table.md; results.tar.gz has all
# of that, and what a call goes on from on another machine, --from it: parts and runs that have finished.
# --tiny: small shapes, to try the script, on the emulator too.
set -euo pipefail
root=$(readlink -f "$(dirname "$(readlink -f "$0")")/..")
out=out/onebit_gpu budget=590 device=cuda data="" tiny=0 python=python3 from=""
methods=frozen,latent,255,7,3,bop,phased lrs="" seeds=1,2
while (($#)); do
  case $1 in
    --tiny) tiny=1; shift; continue ;;
    --data) data=$2 ;;
    --out) out=$2 ;;
    --budget) budget=$2 ;;
    --methods) methods=$2 ;;
    --lrs) lrs=$2 ;;
    --seeds) seeds=$2 ;;
    --from) from=$2 ;;
    --device) device=$2 ;;
    --python) python=$2 ;;
    *) sed -n '2,10s/^# \{0,1\}//p' "$0" >&2; exit 2 ;;
  esac
  shift 2
done
[[ -r $data ]] || { echo "onebit_gpu: --data: no such file: $data" >&2; exit 2; }
[[ -z $from || -r $from ]] || { echo "onebit_gpu: --from: no such file: $from" >&2; exit 2; }
qeng=${QENG:-$root/build/release/qeng}
[[ -x $qeng ]] || qeng=$root/bin/qeng
ops=$(dirname "$qeng")/qeng_bench_ops
[[ -x $qeng && -x $ops ]] || { echo "onebit_gpu: no qeng or no qeng_bench_ops: build them, or set QENG" >&2; exit 1; }
mkdir -p "$out"
out=$(readlink -f "$out")
data=$(readlink -f "$data")
[[ -z $from ]] || tar -xzf "$from" -C "$out"
cd "$root"
source scripts/gpu-environment
find_cublas "$python"
keep_choices "$out"
trap 'pack_results "$out"' EXIT
left() { echo $((budget - SECONDS)); }

shape=(--shape 90b --active 1.5e9 --keep 1.5e9 --device-budget 8G --host-budget 64G --phases 1 --phase-steps 4)
lengths=(--steps 10000 --rows 16 --tokens 128 --hidden 256 --layers 6 --heads 4 --ffn 768 --held-out 0.01)
models=7B
if ((tiny)); then
  shape=(--shape tiny --tokens 64 --keep 0 --device-budget 64M --phases 1 --phase-steps 4)
  lengths=(--steps 10 --rows 2 --tokens 16 --hidden 32 --layers 1 --heads 2 --ffn 32 --held-out 0.1)
  models=0.5B
  lrs=${lrs:-1e-2}
fi

# part NAME SECONDS FILE COMMAND...: once; FILE has the output of what ended well.
part() {
  local name=$1 limit=$2 file=$3
  shift 3
  [[ ! -e $out/$name.done ]] || return 0
  (($(left) > limit / 2)) || { echo "$name: no time left; call again"; return 0; }
  echo "==== $name"
  if timeout -k 5 "$(($(left) < limit ? $(left) : limit))" "$@" >>"$out/$file" 2>&1; then touch "$out/$name.done"; else echo "$name: FAILED, see $out/$file"; fi
  tail -n 8 "$out/$file"
  pack_results "$out"
}
for depth in 2 1 4; do
  part "step_$depth" 120 step.txt "$qeng" bench/onebit_step.lua "${shape[@]}" --dtype bf16 --device "$device" --depth "$depth"
done
if ((!tiny)); then
  part row_linear 60 ops.txt "$ops" --device "$device" --json "$out/row_linear.jsonl" --models $models --only "row_linear one_bit"
  part row_dense 60 ops.txt "$ops" --device "$device" --json "$out/row_dense.jsonl" --models $models --only "row_linear bf16"
fi

# The rules at once: each is far from filling a GPU.
IFS=, read -ra methods <<<"$methods"
compare() {  # METHODS OUT [OPTIONS]
  timeout -s INT -k 20 "$(($(left) > 25 ? $(left) - 20 : 5))" "$qeng" recipes/onebit_compare.lua --data "$data" --lrs "${lrs:-6e-3,1.2e-2,2.4e-2}" --seeds "$seeds" "${lengths[@]}" --device "$device" \
    --methods "$1" --out "$2" --threads 2 "${@:3}" >>"$2.log" 2>&1 </dev/null
}
if (($(left) > 30)); then
  echo "==== compare"
  for method in "${methods[@]}"; do
    rm -f "$out/$method.done"
    { compare "$method" "$out/$method" && touch "$out/$method.done"; } &
  done
  wait || true
fi
mkdir -p "$out/compare"
cat "$out"/*/runs.jsonl 2>/dev/null | sort -u >"$out/compare/runs.new" || true
mv "$out/compare/runs.new" "$out/compare/runs.jsonl"
for method in "${methods[@]}"; do
  [[ -e $out/$method.done ]] || { echo "$method: has not finished; call again"; exit 3; }
done
budget=$((SECONDS + 60))
compare "$(IFS=,; echo "${methods[*]}")" "$out/compare"  # all is done: this writes the report
cat "$out/compare/table.md"
