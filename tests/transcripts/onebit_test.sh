#!/usr/bin/env bash
# The recipes of one-bit training by the real executable ($QENG), very small: what they print and leave, resuming, errors.
set -euo pipefail
QENG=$(realpath "${QENG:-build/release/qeng}")
out=$(mktemp -d)
trap 'rm -rf "$out"' EXIT
export XDG_CACHE_HOME=$out/cache
expect() { grep -qE -- "$1" "$2" || { echo "expected '$1' in:"; cat "$2"; exit 1; }; }
try() { timeout 120 "$QENG" "recipes/$1.lua" "${@:2}" > "$out/log" 2>&1 < /dev/null; }
run() { try "$@" || { echo "FAILED: $*"; cat "$out/log"; exit 1; }; }
refuses() { if try "${@:2}"; then echo "not refused: ${*:2}"; exit 1; fi; expect "$1" "$out/log"; }

for i in $(seq 400); do echo "line $i of a text that says little, and says it again: $((i * i))."; done > "$out/text.txt"
for i in $(seq 150); do echo "{\"text\": \"Anna has $i brown geese, and Tom has $((i * 3)).\"}"; done > "$out/data.jsonl"

# The comparison: a table with the control and the share of the gap; what is done is not done again.
small=(--data "$out/text.txt" --out "$out/compare" --steps 12 --rows 2 --tokens 16 --hidden 32 --layers 1 --heads 2 --ffn 32 --seeds 1,2 --lrs 6e-3)
run onebit_compare "${small[@]}" --methods frozen,latent,7
expect '^\| frozen random bits \| 0 \| 0?.[0-9]+( \(edge\))? \| [0-9.]+ / [0-9.]+ \|' "$out/log"
expect '^\| counter of 8 levels, q 0.15, friction 0.2 \| 3 bits \|' "$out/log"
cp "$out/compare/runs.jsonl" "$out/finished.jsonl"
run onebit_compare "${small[@]}" --methods frozen,latent,7,phased
[ "$(grep -cFxf "$out/finished.jsonl" "$out/compare/runs.jsonl")" = "$(wc -l < "$out/finished.jsonl")" ] || { echo "finished runs were run again"; exit 1; }
expect '"key":"phased lr 0.[0-9]+ seed 2"' "$out/compare/runs.jsonl"
expect 'two-step machine' "$out/compare/report.html"
[ "$(grep -o '<svg' "$out/compare/report.html" | wc -l)" = 2 ] || { echo "the report has not its two charts"; exit 1; }
refuses 'holds runs of other settings .*: give another --out' onebit_compare "${small[@]}" --methods frozen --layers 2
sed -i 's/"rule":"frozen random bits"/"rule":"frozen ternary weights"/' "$out/compare/runs.jsonl"
refuses 'holds frozen lr .* by another rule than frozen random bits: give another --out' onebit_compare "${small[@]}" --methods frozen
head -c 100 "$out/text.txt" > "$out/short.txt"
refuses 'held-out part has 10 characters, fewer than a window of 16 and one' onebit_compare "${small[@]}" --data "$out/short.txt" --out "$out/short"
refuses 'method mean: one of frozen, latent' onebit_compare "${small[@]}" --methods frozen,mean --out "$out/none"
[ ! -e "$out/none" ] || { echo "methods were run before all of them were looked at"; exit 1; }
refuses 'lrs: 0 is no learning rate' onebit_compare "${small[@]}" --lrs 0
refuses '--seeds: at least one' onebit_compare "${small[@]/1,2/,}"
refuses '--heads 64: --hidden 32 divided by it' onebit_compare "${small[@]}" --heads 64
# Columns of other seeds are of the rate in the row, and a best rate at an edge is marked.
few=(--data "$out/text.txt" --out "$out/rates" --steps 12 --rows 2 --tokens 16 --hidden 32 --layers 1 --heads 2 --ffn 32 --methods latent)
run onebit_compare "${few[@]}" --seeds 2 --lrs 1e-3
run onebit_compare "${few[@]}" --seeds 1,2 --lrs 1e-2
expect '\| 0.01 \(edge\) \|' "$out/log"
expect '^\(edge\): the best of the rates' "$out/log"
grep -o '"key":"latent lr 0.01 seed 2"' "$out/rates/runs.jsonl" > /dev/null || { echo "the second seed was not run at the best rate of the first"; exit 1; }
# Latent signs flip; weights that are no bits have no flips.
run onebit_compare "${few[@]/latent/latent,grid1,dense}" --out "$out/flips" --seeds 1 --lrs 1e-2
expect '^\| straight-through.*\| (0\.0[1-9]|0\.[1-9][0-9]|[1-9][0-9.]*) \|$' "$out/log"
[ "$(grep -cE '^\| (ternary without latent copy|f32 weights), AdamW \|.*\| - \|$' "$out/log")" = 2 ] || { echo "weights that are no bits have flips:"; cat "$out/log"; exit 1; }
# A damaged list of finished runs says where and what to do.
cp "$out/flips/runs.jsonl" "$out/runs.jsonl"
for damage in '2s/.\{20\}$//' '2s/.*/null/' '2s/"curve"/"curves"/' '2s/"loss":[0-9.]*/"loss":"2"/'; do
  sed "$damage" "$out/runs.jsonl" > "$out/flips/runs.jsonl"
  refuses "$out/flips/runs.jsonl, line 2: .*: the file is damaged; delete the line, and its run is done again" onebit_compare "${few[@]}" --out "$out/flips" --seeds 1 --lrs 1e-2
done
refuses 'holds latent lr .* by another rule than straight-through, f32 latent weights, its rate 0.002: give another --out' \
  onebit_compare "${few[@]}" --seeds 1 --lrs 1e-2 --latent-lr 2e-3
refuses 'which text\? --data FILE' onebit_compare

# Pretraining, by phases too; the saved model answers, and its bits are a GGUF file of one bit a weight.
tiny=(--data "$out/data.jsonl" --hidden 128 --layers 2 --heads 2 --ffn 128 --row-tokens 64 --rows 1 --steps 12 --eval-share 0.1)
run onebit_pretrain "${tiny[@]}" --out "$out/whole"
expect '0.2[0-9] million one-bit weights' "$out/log"
expect '"flip_rate":' "$out/whole/metrics.jsonl"
expect '^held-out loss: [0-9.]+ before, [0-9.]+ after$' "$out/log"
expect 'last training loss [0-9.]+, held-out loss [0-9.]+, before training [0-9.]+,' "$out/whole/report.html"
run onebit_pretrain "${tiny[@]}" --out "$out/whole" --resume --lr 0.5
expect '^resume: lr was 0.006 and is 0.5 now$' "$out/log"
refuses 'stands at step 12, beyond the 6 steps asked for: give 12 or more' onebit_pretrain "${tiny[@]}" --steps 6 --out "$out/whole" --resume
run onebit_phased "${tiny[@]}" --out "$out/phased" --phase-steps 3 --by rows --save-every 1
mv "$out/phased/model" "$out/first"
rm -r "$out/phased/checkpoints/step-000012"
run onebit_phased "${tiny[@]}" --out "$out/phased" --phase-steps 3 --by rows --save-every 1 --resume
cmp "$out/first/model.safetensors" "$out/phased/model/model.safetensors" || { echo "a resumed run gives other weights"; exit 1; }
run onebit_phased "${tiny[@]}" --out "$out/streamed" --phase-steps 3 --by rows --save-every 1 --weights stream --host-budget 2G
rm -r "$out/streamed/checkpoints/step-000012"
run onebit_phased "${tiny[@]}" --out "$out/streamed" --phase-steps 3 --by rows --save-every 1 --weights stream --host-budget 2G --resume
cmp "$out/first/model.safetensors" "$out/streamed/model/model.safetensors" || { echo "streamed bits differ from those in memory"; exit 1; }
refuses '--host-budget' onebit_phased "${tiny[@]}" --out "$out/bad" --weights stream --host-budget 20M
run quantize "$out/whole/model" "$out/bits.gguf" --type q1_0
for model in "$out/whole/model" "$out/bits.gguf"; do run generate --model "$model" --prompt Anna --temperature 0 --max-tokens 5; done
refuses 'has levels 7, this one 3; give the same' onebit_pretrain "${tiny[@]}" --out "$out/whole" --levels 3 --resume
refuses 'has rule counter, this one phases of counter' onebit_phased "${tiny[@]}" --out "$out/whole" --resume
refuses 'phases: active is 10; by = rows needs [0-9]+ at least, a row of each matrix' onebit_phased "${tiny[@]}" --out "$out/bad" --by rows --active 10
refuses 'k = 3 is of 255 levels; with 7, set q' onebit_pretrain "${tiny[@]}" --out "$out/bad" --k 3
refuses 'add --weights stream' onebit_pretrain "${tiny[@]}" --out "$out/bad" --host-budget 1G
refuses '--heads 3: --hidden 128' onebit_pretrain "${tiny[@]}" --out "$out/bad" --heads 3
refuses 'levels is 5, expected 1 \(strict\), 3, 7, 15 or 255' onebit_pretrain "${tiny[@]}" --out "$out/bad" --levels 5
refuses 'hidden is 100, expected a multiple of 32' onebit_pretrain "${tiny[@]}" --out "$out/bad" --hidden 100
refuses 'which data\? --data FILE' onebit_phased --out "$out/bad"

# From a trained model.
run onebit_convert --model recipes/tiny --data "$out/data.jsonl" --out "$out/converted" --steps 8 --row-tokens 64 --rows 1
expect 'held-out loss: [0-9.]+ as given, [0-9.]+ with one-bit weights \(3 of 3' "$out/log"
report=$out/converted/report.html
expect 'last loss against samples of the teacher [0-9.]+, held-out loss of the text [0-9.]+, before training [0-9.]+,' "$report"
expect '<span><b class="s1"></b>loss against samples of the teacher</span>' "$report"
[ "$(grep -o '<figure><figcaption>Loss <.*</figure>' "$report" | sed 's/<\/figure>.*//; s/<g class="log">.*//' | grep -o 'class="dot s2"' | wc -l)" = 2 ] || {
  echo "the held-out loss has not two points, before training and after"; exit 1; }
refuses 'is one_bit, expected f32, bf16 or f16: convert the model that this one was made from' onebit_convert --model "$out/converted/model" --data "$out/data.jsonl" --out "$out/bad"
! grep -q 'held-out' "$out/log" || { echo "a model of bits was evaluated before it was refused"; exit 1; }
run generate --model "$out/converted/model" --prompt Anna --temperature 0 --max-tokens 5
echo "onebit: ok"
