#!/bin/bash
# LoRA of 3 steps on a 7B-shaped Q4_K base under 3 GB and on a 13B-shaped Q1_0 base under 2 GB of resident memory (VmHWM of the whole
# process), and the same steps with the weights mapped and resident: losses have to be equal. Writes 6.3 GB into DIR.
#   QENG=build/release/qeng bash tests/campaigns/stream_big.sh DIR [tokens 64]
set -u
QENG=${QENG:-build/release/qeng}
dir=${1:?folder for the models}
tokens=${2:-64}
script=$(dirname "$0")/stream_big.lua
mkdir -p "$dir"
failures=0
losses() { grep -o 'loss [^ ]*' "$1"; }

for case in "7b q4_k 2900000000 3000000" "13b q1_0 1900000000 2000000"; do
  set -- $case
  file=$dir/$1-$2.gguf
  [ -e "$file" ] || "$QENG" "$script" write "$1" "$2" "$file" || exit 1
  "$QENG" "$script" train "$file" stream "$3" "$tokens" | tee "$dir/$1-stream.log"
  "$QENG" "$script" train "$file" map "" "$tokens" | tee "$dir/$1-map.log"
  if [ -n "$(losses "$dir/$1-stream.log")" ] && [ "$(losses "$dir/$1-stream.log")" = "$(losses "$dir/$1-map.log")" ]; then
    echo "$1 $2: the losses are equal"
  else
    echo "FAILED $1 $2: the losses differ"; failures=$((failures + 1))
  fi
  peak=$(sed -n 's/^VmHWM \([0-9.]*\) GB.*/\1/p' "$dir/$1-stream.log")
  awk "BEGIN { exit !($peak * 1e6 < $4) }" || { echo "FAILED $1 $2: VmHWM of $peak GB"; failures=$((failures + 1)); }
done
exit $failures
