#!/bin/bash
# LoRA r=16 on a randomly initialised Qwen2.5-0.5B, bf16, rows of 512, 2 threads: qeng, then transformers + PEFT on the same
# packed tokens from the same adapter, in one run.   bench/lora_cpu.sh DATA.json TOKENIZER WORK_DIR PYTHON > result.json
set -euo pipefail
data=$1 tokenizer=$2 work=$3 python=$4
qeng=${QENG:-build/release/qeng}
mkdir -p "$work"
[ -e "$work/model/config.json" ] || "$python" tests/golden/make_random_model.py --out "$work/model" --tokenizer "$tokenizer" >&2
"$qeng" recipes/convert.lua "$data" "$work/data.qubgpu" --tokenizer "$work/model" >&2
"$qeng" bench/export_batches.lua --model "$work/model" --data "$work/data.qubgpu" --out "$work" >&2
rm -rf "$work/run"
"$qeng" recipes/lora_qwen.lua --model "$work/model" --data "$work/data.qubgpu" --out "$work/run" --steps 20 --rank 16 --row-tokens 512 \
  --lr 2e-4 --schedule constant --eval-share 0 --save-every 0 --dtype bf16 --threads 2 >&2
"$python" bench/lora_vs_peft.py --model "$work/model" --batches "$work/batches.json" --init "$work/adapter0" --metrics "$work/run/metrics.jsonl"
