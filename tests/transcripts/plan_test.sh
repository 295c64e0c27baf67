#!/usr/bin/env bash
# recipes/plan.lua: its table, its sentence, its errors; and that plans of small models are what training then takes.
set -euo pipefail
out=$(mktemp -d)
trap 'rm -rf "$out"' EXIT
expect() { grep -qE -- "$1" "$2" || { echo "expected '$1' in:"; cat "$2"; exit 1; }; }
plan() { "$QENG" recipes/plan.lua --device cpu --bandwidth 100 --flops 10 "$@" > "$out/log" 2>&1; }
refuses() { if plan "${@:2}"; then echo "not refused: ${*:2}"; exit 1; fi; expect "$1" "$out/log"; }

# A model of 90 billion weights, with address space only.
plan --model 90b --mode lora --row-tokens 64 --recompute
expect '^90b: 90.2[0-9]* billion parameters, 103 layers, bf16, lora' "$out/log"
expect '^weights +180.5 GB' "$out/log"
plan --model 7b --row-tokens 64
expect '^full +[0-9.]+ GB' "$out/log"
expect '^by phases +[0-9.]+ GB' "$out/log"
expect '^inference +[0-9.]+ GB' "$out/log"
expect '80.86 GB dense with AdamW, 4.21 GB with one bit and ternary gradients and state' "$out/log"
expect 'by phases of 1.5 billion 0.94 GB on the device and 0.84 GB on the host' "$out/log"

# Budgets: what is resident and what is streamed, and the least that works, which then does.
plan --model 7b --mode lora --stored q4_k --row-tokens 64 --device-budget 2.5G --host-budget 5G --link 25
expect '^Fits in 2.5 GB with --weights stream --stream-keep [0-9]+M: [0-9]+ of 34 units resident, [0-9.]+ GB streamed' "$out/log"
expect 'streamed a step: .* at 25.0 GB/s' "$out/log"
plan --model 7b --mode lora --stored q4_k --row-tokens 64 --device-budget 2.5G --host-budget 1G
expect '^Fits in 2.5 GB with --weights stream --stream-keep [0-9]+M: .* GB streamed, [0-9.]+ GB of that from the file each time' "$out/log"
plan --model 7b --mode lora --stored q4_k --row-tokens 64 --device-budget 2.5G --host-budget 100M
expect '^Does not fit: [0-9.]+ [MG]B of weights have to be streamed from pinned memory of the host, whose budget is 100.0 MB' "$out/log"
plan --model 7b --mode lora --stored q4_k --row-tokens 64 --device-budget 500M
expect '^Does not fit in 500.0 MB: the least device budget that works is [0-9.]+ [MG]B \(weights streamed\)' "$out/log"
plan --model 7b --mode full --row-tokens 64 --device-budget 20G
expect '^Does not fit in 20.0 GB: the least device budget that works is [0-9.]+ GB; train adapters' "$out/log"

# One-bit training: of the bits, a bit and a counter each; frozen ones may be streamed.
plan --model 7b --mode onebit --active 0 --levels 3 --row-tokens 64
expect '^weights +1.[0-9] GB' "$out/log"
plan --model 7b --mode onebit --row-tokens 64 --device-budget 1G
expect '^Does not fit in 1.0 GB: .*smaller vocabulary' "$out/log"

# A folder, a config.json, and inference.
plan --model recipes/tiny --mode full
expect '^optimizer ' "$out/log"
plan --model recipes/tiny/config.json --mode inference --context 64 --kv f16
expect '^kv ' "$out/log"
expect '^decoding step of 1 tokens' "$out/log"
plan --model recipes/tiny --mode inference
expect '^kv +1.6 MB' "$out/log"
plan --model recipes/tiny/config.json --mode inference --context 64 --kv auto
expect '^kv auto: counted as tq4' "$out/log"

# A machine that is not here, by name.
"$QENG" recipes/plan.lua --model qwen3.5-0.8b --device gb10 --row-tokens 64 --mode lora --examples 100 > "$out/log" 2>&1
expect '^100 examples of 1000 tokens, 1 epoch: 0.1 million tokens; at the limits [0-9.]+ ' "$out/log"
expect '^Fits on gb10 \(DGX Spark, GB10\): ' "$out/log"

# Inference over machines that a file describes; without it, as above.
peers() { "$QENG" recipes/plan.lua --peers "$@" > "$out/log" 2>&1; }
peers recipes/cluster.json --model 70b --stored q4_k --batch 8
expect '^70b: 70.55 billion parameters, 80 layers, bf16; a cache of 8 x 4096 tokens in bf16 takes 10.7 GB' "$out/log"
expect '^machine +layers +memory +of +a step +two hops' "$out/log"
expect '^desk +0 to [0-9]+ +2[01].[0-9] GB +22.0 GB +[0-9.]+ ms' "$out/log"
expect '^left out: laptop: a step would take [0-9.]+ ms with it, and takes [0-9.]+ ms without' "$out/log"
expect '^one request: [0-9.]+ tokens/s, a step of [0-9.]+ ms, of which links [0-9]+ us' "$out/log"
expect '^8 requests: [0-9.]+ tokens/s, a step of [0-9.]+ ms, of which links [0-9.]+ ms' "$out/log"
expect '^prompts in pieces of 256 tokens: [0-9.]+ tokens/s' "$out/log"
echo 'return { { name = "a", coordinator = true, memory = "10G", bandwidth = "1T", flops = "1T", speed = 3 } }' > "$out/peers.lua"
if peers "$out/peers.lua" --model 7b; then exit 1; fi
expect 'peers.lua: machine 1: unknown key speed' "$out/log"
sed -i 's/, speed = 3//' "$out/peers.lua"
if peers "$out/peers.lua" --model 7b; then exit 1; fi
expect 'of 32 layers, which take .* the machines hold [0-9]+ .*: [0-9.]+ GB are lacking; add a machine' "$out/log"
if peers "$out/peers.lua" --model 1b --row-tokens 64; then exit 1; fi
expect '--row-tokens says nothing of inference over machines' "$out/log"

refuses 'example_tokens and epochs are of examples' --model 7b --mode lora --epochs 3

refuses 'plan: 6b is no file, no folder and no shape' --model 6b
refuses 'shapes are qwen3.5-0.8b, 1b, qwen3.5-2b, 3b, .*, 90b' --model nowhere/config.json
refuses '--device-budget lots: expected a size, as 500M, 1.5G' --model 7b --mode lora --device-budget lots
echo '[1' > "$out/config.json"
refuses 'config.json: not a JSON object: parse error at line' --model "$out/config.json"
sed 's/"hidden_size": 128/"hidden_size": 144/' recipes/tiny/config.json > "$out/config.json"
plan --model "$out/config.json" --row-tokens 64
expect '^onebit +rows of one_bit .* are not whole blocks of 32' "$out/log"
expect '^lora +[0-9.]+ MB' "$out/log"
expect "^context: 1024 tokens, the model's max_position_embeddings, not 4096" "$out/log"
sed 's/"vocab_size"/"num_experts": 8, "vocab_size"/' recipes/tiny/config.json > "$out/config.json"
refuses 'config.json: unknown key num_experts' --model "$out/config.json"
refuses 'stored = q4_k is of frozen weights, and mode onebit trains them' --model 7b --mode onebit --stored q4_k
refuses 'row-tokens 1e12: has to be at most 16777216' --model 7b --mode lora --row-tokens 1e12
refuses 'bench/README.md: does not begin with "GGUF"' --model bench/README.md
if "$QENG" recipes/plan.lua --model 7b --flops 3 > "$out/log" 2>&1; then exit 1; fi
expect 'bandwidth and --flops go together' "$out/log"

# On the CPU, for which the process counts too: the least that is said is what a run then does with.
"$QENG" tests/lua/small_model.lua "$out/made"
least=(--model "$out/made/model" --row-tokens 64)
"$QENG" recipes/plan.lua --device cpu "${least[@]}" --mode lora --host-budget 1M > "$out/log" 2>&1
expect '^tensors only: .*, and the process itself, [0-9.]+ MB' "$out/log"
expect '^Does not fit in 1.0 MB: the least host budget that works is [0-9.]+ MB .*of which the process itself [0-9.]+ MB' "$out/log"
budget=$(sed -n 's/.*least host budget that works is \([0-9.]*\) MB.*/\1M/p' "$out/log")
"$QENG" recipes/lora_qwen.lua --device cpu "${least[@]}" --data "$out/made/data.jsonl" --out "$out/run" --steps 3 --weights stream \
  --host-budget "$budget" > "$out/log" 2>&1 || { echo "not enough: $budget"; cat "$out/log"; exit 1; }

"$QENG" tests/campaigns/plan.lua small > "$out/log" 2>&1 || { cat "$out/log"; exit 1; }
expect '^all [0-9]+ within 5 %' "$out/log"
echo "plan: passed"
