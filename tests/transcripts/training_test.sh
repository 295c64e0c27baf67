#!/bin/bash
# Training by the real executable ($QENG): runs, eager or captured, recomputed, killed and resumed give the same bits; no
# kill leaves an unreadable checkpoint; Ctrl-C exits 130 with a checkpoint; bad input gets a clear error.
set -u
QENG=$(realpath "${QENG:-build/release/qeng}")
root=$(pwd)
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT
failures=0
fail() { echo "FAILED $*"; failures=$((failures + 1)); }

# expect NAME STATUS PATTERN COMMAND...: exit status and a pattern (grep -E) in stdout and stderr together
expect() {
  local name=$1 status=$2 pattern=$3 output got
  shift 3
  output=$(timeout 120 "$@" 2>&1 </dev/null)
  got=$?
  [ "$got" = "$status" ] || fail "$name: exit status $got, expected $status: $output"
  printf '%s' "$output" | grep -qE -- "$pattern" || fail "$name: no '$pattern' in: $output"
}

"$QENG" tests/lua/small_model.lua "$work" || { echo "FAILED: no model"; exit 1; }
recipe=$root/recipes/lora_qwen.lua
run() { "$QENG" "$recipe" --model "$work/model" --data "$work/data.qubgpu" --steps 700 --row-tokens 64 --rows 2 --accumulate 2 --dropout 0.1 \
  --eval-share 0.1 --eval-every 100 --save-every 2 --threads 1 "$@" >"$work/log" 2>&1; }
bits() { sha256sum <"$work/$1/adapter/adapter_model.safetensors"; }

expect "convert" 0 '300 records.* 0 bad' "$QENG" recipes/convert.lua "$work/data.jsonl" "$work/data.qubgpu" --tokenizer "$work/model"
expect "inspect" 0 'record 1: .*trained' "$QENG" recipes/inspect.lua "$work/data.qubgpu" --tokenizer "$work/model" --verify

printf 'the cat sees\nthe dog\n\nthe dog sees\n\nthe cat\n' >"$work/text.txt"
expect "a text file" 0 'text.txt: 3 records, .*template: .*special tokens in texts parsed' "$QENG" "$recipe" --model "$work/model" --data "$work/text.txt" \
  --out "$work/t" --steps 2 --row-tokens 32 --eval-share 0 --threads 1
expect "one document of it" 0 'text.txt: 1 records, ' "$QENG" "$recipe" --model "$work/model" --data "$work/text.txt" --documents file \
  --out "$work/u" --steps 2 --row-tokens 32 --eval-share 0 --threads 1

# ---- the same bits
run --out "$work/a" || { fail "training"; cat "$work/log"; }
short=(--steps 100 --eval-every 40)
run --out "$work/b" "${short[@]}" || { fail "training"; cat "$work/log"; }
run --out "$work/again" "${short[@]}" && [ "$(bits again)" = "$(bits b)" ] || fail "two runs differ"
run --out "$work/c" "${short[@]}" --eager && [ "$(bits b)" = "$(bits c)" ] || fail "eager and captured differ"
run --out "$work/d" "${short[@]}" --recompute && [ "$(bits b)" = "$(bits d)" ] || fail "recompute on and off differ"
[ "$(wc -l <"$work/a/metrics.jsonl")" = 700 ] || fail "metrics.jsonl has not one line a step"
grep -q '<svg' "$work/a/report.html" || fail "report.html has no curve"
grep -q 'Finished: step 700 of 700' "$work/a/report.html" || fail "report.html does not say that the run is over"

# ---- what a run says of itself, through a pipe as well
says() { grep -qE -- "$1" "$work/log" || { fail "the run does not say '$1'"; cat "$work/log"; }; }
run --out "$work/said" --steps 3
says '^model    qwen2, 2 layers, hidden 48, f32$'
says '^trained  LoRA of rank 16, alpha 32, on all linear layers: 24\.6 k \(30 % of 81\.8 k\)$'
says '^data     270 documents, .* tokens, .* of them trained; 10 % held out; template chatml$'
says '^batch    4 rows of 64 a step: about [0-9.]+ documents, [0-9]+ trained tokens; rows 9[0-9]\.[0-9] % full$'
says '^steps    3, 0\..* epochs; learning rate 0\.0002, cosine$'
says '^device   .*, 1 thread, '
says '^step 1/3  loss .*  lr 2\.0e-4  norm [0-9.]+  [0-9]+ tok/s .*% of GEMM limit  ETA'
says '^3 steps in .*; last training loss [0-9.]+; held-out loss [0-9.]+ before, [0-9.]+ after'
grep -q '"limit_share":' "$work/said/metrics.jsonl" || fail "metrics.jsonl has no share of the limit"
run --out "$work/odd" --steps 3 --lr 0; says '^warning: the learning rate is 0'
run --out "$work/odd" --steps 3 --warmup 9; says '^warning: the warm-up of 9 steps is not over when the run ends after 3: the learning rate gets to 6\.67e-05 at most'
run --out "$work/odd" --steps 3 --warmup 3; grep -q warning "$work/log" && { fail "a warm-up as long as the run"; cat "$work/log"; }
expect "a rate that only skips updates" 1 '2 of 3 updates were skipped because loss or gradient were not finite, so nothing was learned; lower the learning rate \(--lr, now 1e\+30\)' \
  "$QENG" "$recipe" --model "$work/model" --data "$work/data.qubgpu" --out "$work/odd" --steps 3 --lr 1e30
echo "A text." >"$work/one.txt"
expect "a text that is one document" 1 '--eval-share 0.*--documents paragraph' "$QENG" "$recipe" --model "$work/model" --data "$work/one.txt" --out "$work/odd"

# ---- streamed weights: the same bits, and figures of what was streamed
run --out "$work/m" --steps 30 --weights map || { fail "mapped weights"; cat "$work/log"; }
run --out "$work/s" --steps 30 --weights stream --host-budget 1.5G && [ "$(bits m)" = "$(bits s)" ] || { fail "streamed weights"; cat "$work/log"; }
grep -q 'streamed .* % hidden' "$work/log" || fail "no word of streaming in the progress line"
grep -q '"stream_bytes".*"stream_hidden"' "$work/s/metrics.jsonl" || fail "metrics.jsonl says nothing of streaming"
expect "a limit that is too small" 1 'largest unit of .* of --host-budget; give at least' "$QENG" "$recipe" --model "$work/model" \
  --data "$work/data.qubgpu" --out "$work/s" --weights stream --host-budget 20M
expect "a device budget that is too small" 1 '^qeng: .* bytes more would exceed the 1000000 that the device.s budget leaves.*Give the device.s budget more.*\(--device-budget; --rows, --row-tokens; --recompute; --weights stream\)' \
  "$QENG" "$recipe" --model "$work/model" --data "$work/data.qubgpu" --out "$work/s" --device-budget 1M --row-tokens 2048
expect "no size" 2 'host-budget lots: expected a size, as 500M' "$QENG" "$recipe" --host-budget lots
expect "a limit without streaming" 1 'load with weights = "stream"' "$QENG" "$recipe" --model "$work/model" --data "$work/data.qubgpu" --out "$work/s" --host-budget 1G
expect "full training of streamed weights" 1 'trained in full cannot be streamed' "$QENG" "$recipe" --model "$work/model" \
  --data "$work/data.qubgpu" --out "$work/s" --mode full --weights stream

# ---- ten kills, each after a random step, then to the end
RANDOM=${QENG_SEED:-4711}
landed=0
steps() { wc -l 2>/dev/null <"$work/k/metrics.jsonl" || echo 0; }
for kill in 1 2 3 4 5 6 7 8 9 10; do
  "$QENG" "$recipe" --model "$work/model" --data "$work/data.qubgpu" --steps 700 --row-tokens 64 --rows 2 --accumulate 2 --dropout 0.1 \
    --eval-share 0.1 --eval-every 100 --save-every 2 --threads 1 --out "$work/k" --resume >"$work/log" 2>&1 &
  at=$((60 * kill + RANDOM % 60 - 50))
  until [ "$(steps)" -ge $at ] || ! kill -0 $! 2>/dev/null; do sleep 0.005; done
  kill -9 $! 2>/dev/null && landed=$((landed + 1))
  wait $! 2>/dev/null
  for state in "$work"/k/checkpoints/step-*/state.json; do
    [ -e "$state" ] || continue
    expect "checkpoint after kill $kill" 0 'whole' "$QENG" -e "
      local q = require 'qeng'
      local dir = '$(dirname "$state")'
      q.json.decode(q.fs.read(dir .. '/state.json'))
      assert(#q.safetensors.open(dir .. '/parameters.safetensors'):names() > 0)
      assert(#q.safetensors.open(dir .. '/optimizer.safetensors'):names() > 0)
      print 'whole'"
  done
done
[ $landed -ge 5 ] || fail "only $landed of 10 kills met a running process"
echo "$landed of 10 kills met a running process"
(sleep 0 & echo $! >"$work/pid"; wait)  # a process that is no more
mkdir -p "$work/k/checkpoints/step-000001.tmp" "$work/k/adapter.tmp-$(cat "$work/pid")-3"
touch "$work/k/data.qubgpu.tmp-$(cat "$work/pid")-0" "$work/k/notes.tmp-mine"
run --out "$work/k" --resume || { fail "resume after kills"; cat "$work/log"; }
grep -q 'data.qubgpu.tmp-.* left by a killed run, deleted' "$work/log" || fail "what a killed run left is not told"
[ "$(find "$work/k" -name '*.tmp*')" = "$work/k/notes.tmp-mine" ] || fail "left half written: $(find "$work/k" -name '*.tmp*')"
[ "$(bits a)" = "$(bits k)" ] || fail "killed and resumed differs from straight through"
[ "$(wc -l <"$work/k/metrics.jsonl")" = 700 ] || fail "metrics.jsonl of the resumed run has not one line a step"

# ---- resuming another run
run --out "$work/k" --resume --lr 1e-3 --warmup 9 || { fail "resume with another rate"; cat "$work/log"; }
grep -q '^resume: lr was 0.0002 and is 0.001 now, warmup was 0 and is 9 now$' "$work/log" || { fail "another rate is not told"; cat "$work/log"; }
resumes() { run --out "$work/k" --resume "${@:2}" && fail "resume with ${*:2}: not refused"; grep -qE "$1" "$work/log" || { fail "resume with ${*:2}"; cat "$work/log"; }; }
head -n 250 "$work/data.jsonl" >"$work/fewer.jsonl"
resumes 'has eval_share 0.1, this one 0.2; give the same' --eval-share 0.2
resumes 'has data 300 records, digest .*, this one 250 records' --data "$work/fewer.jsonl"
resumes 'has alpha 32, this one 8; give the same' --alpha 8
resumes 'has rslora false, this one true' --rslora
resumes 'has dropout 0.1, this one 0.2' --dropout 0.2
resumes 'has targets q_proj,.*,down_proj, this one q_proj,v_proj' --targets q_proj,v_proj
resumes 'has rank 16, this one 8' --rank 8
resumes 'has mode lora, this one full' --mode full --dropout 0
resumes 'has dtype f32, this one bf16' --dtype bf16
resumes 'has template auto, this one chatml' --template chatml
resumes 'has long auto, this one split' --long split
resumes 'has seed 0, this one 1' --seed 1
# another base of the same shape; the same elsewhere, held otherwise, is the same
"$QENG" -e "local q = require 'qeng'; local m = q.load('$work/model', { writable = true }); m.linears[5].weight:rows(3, 1):fill(0.25); m:save('$work/other')"
resumes 'has base weights 26 tensors, digest .*, this one 26 tensors, digest .*; give the same' --model "$work/other"
mkdir "$work/moved" && cp "$work"/model/* "$work/moved"
sed 's/"rope_theta": *10000\(\.0\)\?/"rope_theta": 20000/' "$work/model/config.json" >"$work/other/config.json"
cp "$work/model/model.safetensors" "$work/other/"
resumes 'has config.rope.theta 10000, this one 20000' --model "$work/other"
run --out "$work/k" --resume --lr 1e-3 --warmup 9 --model "$work/moved" --weights map --recompute --eval-every 50 || { fail "resume with a moved model"; cat "$work/log"; }
grep -q "^resume: eval_every was 100 and is 50 now, lr was .*, model was $work/model and is $work/moved now, recompute was false and is true now, warmup was .*, weights was not given and is map now$" "$work/log" ||
  { fail "what a resumed run changes is not told"; cat "$work/log"; }
[ "$(bits a)" = "$(bits k)" ] || fail "a finished run changes when it is resumed"
resumes 'stands at step 700, beyond the 600 steps asked for: give 700 or more, or another --out' --steps 600

# ---- filters and CRC-Drop
run --out "$work/s" --steps 3 --sources instruction --drop 0.1 || { fail "sources and drop"; cat "$work/log"; }
grep -q '"crc_dropped"' "$work/s/metrics.jsonl" || fail "metrics do not count what CRC-Drop left out"
expect "a source that is not there" 1 'no training record' "$QENG" "$recipe" --model "$work/model" --data "$work/data.qubgpu" --out "$work/e" --sources chat
expect "a source that is none" 2 'code_repo' "$QENG" "$recipe" --model "$work/model" --data "$work/data.qubgpu" --out "$work/e" --sources chta

# ---- documents longer than a row, and data that train nothing
"$QENG" -e 'local long = ("the cat sees a dog and "):rep(20); for i = 1, 40 do
  print(i % 4 == 0 and ([[{"prompt": "%s", "completion": "red"}]]):format(long) or i % 7 == 0 and ([[{"text": "%s"}]]):format(long) or [[{"prompt": "one", "completion": "two"}]]) end' >"$work/long.jsonl"
run --out "$work/l" --steps 2 --data "$work/long.jsonl" || { fail "long documents"; cat "$work/log"; }
grep -q '^note: 10 conversations.* are longer than a row of 64 tokens and are left out (--long split or truncate keeps them)$' "$work/log" || { fail "no word of conversations left out"; cat "$work/log"; }
grep -q '^note: 4 texts.* are longer than a row of 64 tokens and are split$' "$work/log" || { fail "no word of texts split"; cat "$work/log"; }
for long in split truncate drop; do
  run --out "$work/l" --steps 2 --data "$work/long.jsonl" --long $long || { fail "--long $long"; cat "$work/log"; }
done
grep -q '^note: 14 documents.* are longer than a row of 64 tokens and are left out$' "$work/log" || { fail "no word of documents left out"; cat "$work/log"; }
sed -n '4p;8p;12p' "$work/long.jsonl" >"$work/longer.jsonl"
expect "only long conversations" 1 'each of the 2 training documents is longer than a row of 64 tokens and is left out: give longer rows \(--row-tokens\), or --long split' \
  "$QENG" "$recipe" --model "$work/model" --data "$work/longer.jsonl" --out "$work/e" --row-tokens 64
for i in $(seq 20); do echo '{"messages": [{"role": "user", "content": "the cat"}]}'; done >"$work/untrained.jsonl"
expect "no answer anywhere" 1 'none of the 19 training documents has a trained token, so nothing would be learned.*recipes/inspect.lua' \
  "$QENG" "$recipe" --model "$work/model" --data "$work/untrained.jsonl" --out "$work/e"

# ---- Ctrl-C
"$QENG" "$recipe" --model "$work/model" --data "$work/data.qubgpu" --steps 100000 --row-tokens 64 --threads 1 --out "$work/i" >"$work/log" 2>&1 &
job=$!
for _ in $(seq 100); do [ -s "$work/i/report.html" ] && break; sleep 0.1; done
grep -q 'http-equiv="refresh"' "$work/i/report.html" && grep -q 'Running: step [0-9]* of 100000, about .* left' "$work/i/report.html" || fail "no report while training"
kill -INT $job
wait $job
status=$?
[ $status = 130 ] || fail "Ctrl-C: exit status $status: $(cat "$work/log")"
ls "$work"/i/checkpoints/step-*/state.json >/dev/null 2>&1 || fail "Ctrl-C: no checkpoint"
grep -q 'Stopped after step [0-9]* of 100000; --resume goes on' "$work/i/report.html" || fail "the report does not say that the run was stopped"
grep -q 'http-equiv="refresh"' "$work/i/report.html" && fail "the report of a stopped run goes on reloading itself"

# ---- full fine-tuning, generation, merge
run --out "$work/f" --mode full --dropout 0 --steps 3 && [ -s "$work/f/model/config.json" ] || { fail "full fine-tuning"; cat "$work/log"; }
expect "generate" 0 '.' "$QENG" recipes/generate.lua --model "$work/f/model" --prompt "the cat" --max-tokens 5
run --out "$work/m" --steps 2 --merge || fail "merge"
expect "merge the demo" 0 'merged: the model with the adapter merged in' "$QENG" "$recipe" --steps 2 --eval-every 0 --merge --out "$work/demo" --threads 1
expect "merge no adapter" 2 '--mode full trains none: leave it out' "$QENG" "$recipe" --mode full --merge --out "$work/none"
expect "generate with an adapter" 0 '.' "$QENG" recipes/generate.lua --model "$work/model" --adapter "$work/m/adapter" --chat --prompt "the cat" --max-tokens 5
expect "generate from the merged model" 0 '.' "$QENG" recipes/generate.lua --model "$work/m/merged" --chat --prompt "the cat" --max-tokens 5

# ---- errors that say what to do
expect "help" 0 'usage: .*lora_qwen' "$QENG" "$recipe" --help
expect "mistyped option" 2 'did you mean --rank' "$QENG" "$recipe" --rnak 4
expect "range" 2 'at least 1' "$QENG" "$recipe" --rank 0
expect "not a number" 2 'not a number' "$QENG" "$recipe" --rank many
expect "nan" 2 'lr nan: not a number' "$QENG" "$recipe" --lr nan
expect "infinity" 2 'lr 1e999: not a number' "$QENG" "$recipe" --lr 1e999
expect "a run in the folder of one that was stopped" 1 "stood at step [0-9]+: go on with --resume; or delete $work/i/checkpoints" "$QENG" "$recipe" \
  --model "$work/model" --data "$work/data.qubgpu" --steps 3 --row-tokens 64 --threads 1 --out "$work/i"
expect "missing model" 1 'no such file or folder' "$QENG" "$recipe" --model "$work/none" --data "$work/data.jsonl" --out "$work/e"
expect "missing data" 1 'no such file' "$QENG" "$recipe" --model "$work/model" --data "$work/none.jsonl" --out "$work/e"
broken() { rm -rf "$work/bad"; cp -r "$work/model" "$work/bad"; }
train_bad() { expect "$1" 1 "$2" "$QENG" "$recipe" --model "$work/bad" --data "$work/data.jsonl" --out "$work/e" --steps 1 --row-tokens 64; }
broken; truncate -s -100 "$work/bad/model.safetensors"; train_bad "truncated safetensors" 'model.safetensors'
broken; printf '\xff\xff\xff\xff\xff\xff\xff\x7f' | dd of="$work/bad/model.safetensors" conv=notrunc status=none; train_bad "lying header length" 'model.safetensors.*header'
broken; sed -i 's/"data_offsets":\[0,/"data_offsets":[4,/' "$work/bad/model.safetensors"; train_bad "lying offsets" 'model.safetensors'
broken; sed -i 's/"hidden_size": *48/"hidden_size": 50/' "$work/bad/config.json"; train_bad "lying shapes" 'expected \[|heads|head_dim'
broken; sed -i 's/"hidden_act"/"logit_soft_cap": 30, "hidden_act"/' "$work/bad/config.json"; train_bad "unknown config key" 'logit_soft_cap'
broken; sed -i 's/Qwen2ForCausalLM/MambaForCausalLM/' "$work/bad/config.json"; train_bad "unknown architecture" 'MambaForCausalLM.*Qwen2ForCausalLM'
broken; sed -i 's/"the"/"teh"/' "$work/bad/tokenizer.json"
"$QENG" -e "local q = require 'qeng'; q.train_bpe({'other words entirely'}, {vocab = 262, specials = {'<|endoftext|>', '<|im_start|>', '<|im_end|>'}, out = '$work/bad'})"
expect "another tokenizer's packets" 1 'convert the data again' "$QENG" "$recipe" --model "$work/bad" --data "$work/data.qubgpu" --out "$work/e" --steps 1

[ $failures = 0 ] && echo "training transcripts: ok"
exit $failures
