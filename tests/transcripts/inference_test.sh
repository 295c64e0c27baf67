#!/usr/bin/env bash
# The recipes that judge and measure inference ($QENG), on the built-in model: golden, perplexity, bench_decode, chat_quality; what
# binds and ends a generated text; and an adapter written as GGUF.
set -euo pipefail
QENG=$(realpath "${QENG:-build/release/qeng}")
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT
failures=0
fail() { echo "FAILED $*"; failures=$((failures + 1)); }

# expect NAME STATUS PATTERN COMMAND... : wants that status and the pattern (grep -E, lines joined by |) in stdout and stderr.
expect() {
  local name=$1 status=$2 pattern=$3 output got=0
  shift 3
  output=$(timeout 100 "$@" 2>&1 < /dev/null) || got=$?
  output=${output//$'\n'/|}
  [ "$got" = "$status" ] || fail "$name: exit status $got, expected $status: $output"
  grep -qE -- "$pattern" <<< "$output" || fail "$name: no '$pattern' in: $output"
}
model=(--model recipes/tiny --threads 1)

# ---- golden: the same model, a rounded one, one with another vocabulary
golden=("$QENG" recipes/golden.lua --threads 1 --file "$work/golden.json")
expect "golden, written" 0 'golden.json: 10 answers of 8 tokens$' "${golden[@]}" --model recipes/tiny --write --steps 8
expect "golden, the same" 0 '^"The capital of France is" +same +\(KL .*\|10 of 10 answers the same, 0 ties, 0 different$' "${golden[@]}" --model recipes/tiny
"$QENG" recipes/quantize.lua recipes/tiny "$work/coarse.gguf" --type tq2_0 > "$work/log" 2>&1 || fail "quantize: $(cat "$work/log")"
expect "golden, another model" 1 'different at token [0-9]+: "[^|]*" for "[^|]*", gap .*\|[0-9] of 10 answers the same, [0-9]+ ties, [1-9][0-9]* different$' \
  "${golden[@]}" --model "$work/coarse.gguf"
expect "golden, all of it a tie" 0 '[1-9][0-9]* ties, 0 different$' "${golden[@]}" --model "$work/coarse.gguf" --epsilon 1e9
"$QENG" tests/lua/small_model.lua "$work/small" > /dev/null
expect "golden, another tokenizer" 1 'the set was made with another tokenizer; write it anew' "${golden[@]}" --model "$work/small/model"
expect "golden, no file" 1 'none.json: no such file' "$QENG" recipes/golden.lua "${model[@]}" --file "$work/none.json"
expect "golden, no golden set" 1 'README.md: is no golden set; --write makes one' "$QENG" recipes/golden.lua "${model[@]}" --file README.md
expect "golden, no steps" 2 'steps 0: has to be at least 1' "${golden[@]}" --model recipes/tiny --write --steps 0

# ---- perplexity: both methods, what they count, the error of the mean
for _ in $(seq 12); do printf 'Record: On Tuesday David cleaned five blue rings in Malta. '; done > "$work/text"
perplexity=("$QENG" recipes/perplexity.lua "${model[@]}" --data "$work/text")
# scored EVERY METHOD OPTION...: each window scores EVERY tokens.
scored() {
  local every=$1 method=$2 line figures
  shift 2
  line=$("${perplexity[@]}" --context 32 --out "$work/ppl.json" "$@" 2> "$work/log") || { fail "perplexity $*: $line $(cat "$work/log")"; return; }
  figures=$(sed -nE "s/^perplexity [0-9.]+ \+- [0-9.]*[1-9][0-9]* over ([0-9]+) tokens in ([0-9]+) windows of 32, $method\$/\1 \2/p" <<< "$line")
  read -r count windows <<< "$figures"
  [ -n "$figures" ] && [ "$windows" -gt 1 ] && [ "$count" = $((windows * every)) ] || fail "perplexity $*: $line"
  grep -qE "\"count\": $count,?\$" "$work/ppl.json" && grep -q '"ppl_error"' "$work/ppl.json" || fail "perplexity's JSON: $(cat "$work/ppl.json")"
}
scored 15 'second halves'
scored 8 '8 apart' --stride 8
expect "perplexity, against itself" 0 'ratio 1.000000\|KL\(reference \|\| model\) -?[0-9.]+e(-[0-9]+|\+00) .*\|same likeliest token in 100.000 %' \
  "${perplexity[@]}" --context 32 --windows 2 --reference recipes/tiny
expect "perplexity, a stride too long" 1 'a stride of 32 tokens in a context of 32 leaves no context' "${perplexity[@]}" --context 32 --stride 32
expect "perplexity, a text too short" 1 'a window needs 1024; give more text, or a smaller context' "${perplexity[@]}" --context 1024
expect "perplexity, more than the model has" 1 'exceed the model.s 1024 positions' "${perplexity[@]}" --context 1100 --data recipes/tiny/tokenizer.json
expect "perplexity, too little context" 2 'context 3: has to be at least 4' "${perplexity[@]}" --context 3

# ---- bench_decode: prefill and decode, each against its limit
share='[0-9.]+ tokens/s .* [0-9]+ % of the limit of [0-9.]+, at [0-9.]+'
expect "bench_decode" 0 "matrices of 1.5 MB.*\|prefill +64 tokens +[0-9.]+ tokens/s +[0-9]+ % of the limit of [0-9.]+, at [0-9]+ GFLOP/s\|decode +batch +1 +$share GB/s\|decode +batch +2 +$share GB/s" \
  "$QENG" recipes/bench_decode.lua "${model[@]}" --batch 1,2 --prompt 64 --context 16 --tokens 3 --repeats 1 --out "$work/bench.json"
expect "bench_decode's figures" 0 '^fit$' "$QENG" -e "
  local found = q.json.decode(q.fs.read '$work/bench.json')
  for _, one in ipairs { found.prefill, found.decode[1], found.decode[2] } do
    assert(math.abs(one.tokens_per_second / one.limit / one.share - 1) < 1e-9)
  end
  -- 3 layers of 4 * 128 * 128 + 3 * 128 * 384 weights; a head of 1024 * 128; 4 heads of 32, 2080 pairs of 64 tokens
  assert(require('qeng.infer.decode_bench').prefill_flops(q.load 'recipes/tiny', 64) == 2 * 64 * 638976 + 2 * 131072 + 3 * 4 * 128 * 2080)
  print 'fit'"
expect "bench_decode, no batch" 2 'batch 0: has to be at least 1' "$QENG" recipes/bench_decode.lua "${model[@]}" --batch 1,0

# ---- an adapter, apart and as GGUF
for _ in $(seq 20); do echo '{"prompt": "Say red", "completion": "red red red"}'; done > "$work/data.jsonl"
train=("$QENG" recipes/lora_qwen.lua "${model[@]}" --data "$work/data.jsonl")
expect "an adapter as GGUF" 0 'adapter/ \(PEFT\), adapter.gguf, ' "${train[@]}" --out "$work/run" --steps 4 --lr 2e-2 --rank 4 --gguf --eval-share 0
expect "no adapter to write" 2 '--gguf writes an adapter, and --mode full trains none: recipes/quantize.lua' "${train[@]}" --out "$work/full" --mode full --gguf
[ ! -e "$work/full" ] || fail "a refused run left a folder"

# ---- chat_quality: rates and their confidence, base against tuned
rate='[0-9.]+ %  \([0-9.]+ to [0-9.]+\)  [0-9]+ of'
quality=("$QENG" recipes/chat_quality.lua "${model[@]}" --out "$work/quality" --samples 1 --max-tokens 4)
expect "chat_quality" 0 "answers that are right, with 95 % confidence\|base +$rate 40\|  lua +$rate 20\|  json +$rate 10\|  exact +$rate 10\|tuned +$rate 40\|.*tuned - base +[+-][0-9.]+ points  \([+-][0-9.]+ to [+-][0-9.]+, bootstrap over questions\)\|.*report.html" \
  "${quality[@]}" --adapter "$work/run/adapter.gguf"
[ -s "$work/quality/report.html" ] && grep -q '"count": 40' "$work/quality/quality.json" || fail "chat_quality's files: $(ls "$work/quality")"
expect "chat_quality, no samples" 2 'samples 0: has to be at least 1' "${quality[@]}" --samples 0
expect "chat_quality, no such mass" 2 'top-p 2: has to be at most 1' "${quality[@]}" --top-p 2
expect "chat_quality, a slip" 2 'did you mean --samples' "${quality[@]}" --sample 3

# ---- generate: samplers
run=("$QENG" recipes/generate.lua "${model[@]}" --dtype f32 --prompt "Tom went")
generate=("${run[@]}" --temperature 0 --max-tokens 12)
text=$("${generate[@]}")
tuned=$("${generate[@]}" --adapter "$work/run/adapter")
[ "$tuned" != "$text" ] || fail "the adapter changes nothing: $text"
[ "$("${generate[@]}" --adapter "$work/run/adapter.gguf")" = "$tuned" ] || fail "the adapter as GGUF gives another text than the folder"
first=$(awk '{print $1}' <<< "$text")
other=$("${generate[@]}" --logit-bias " $first=-100,<|im_end|>=-100")
grep -q "$first" <<< "$other" && fail "--logit-bias ' $first=-100' leaves it in: $other"
token=$("$QENG" -e "print(q.tokenizer('recipes/tiny'):encode(' $first')[1])")
[ "$("${generate[@]}" --logit-bias "$token=-100,<|im_end|>=-100")" = "$other" ] || fail "a token's number and its text are not the same to --logit-bias"
"${run[@]}" --temperature 0 --max-tokens 30 --frequency-penalty 1000 --logprobs 1 > "$work/log"
repeated=$(sed -n '/^answer /,$p' "$work/log" | sed -n 's/^\("[^"]*"\) .*/\1/p' | sort | uniq -d)
[ -z "$repeated" ] || fail "--frequency-penalty 1000, and yet it says again: $repeated"
typical=("${run[@]}" --temperature 1 --max-tokens 8 --typical-p 0.01)  # so little mass that one token is left
[ "$("${typical[@]}" --seed 1)" = "$("${typical[@]}" --seed 2)" ] || fail "--typical-p 0.01 leaves more than one token"
expect "log probabilities" 0 '^[^|]*\|prompt +logprob +likeliest\|.*\|[0-9]+ tokens, log probability -[0-9.]+, perplexity [0-9.]+\|answer +logprob +likeliest\|" [a-z]+" +-[0-9.]+  "[^|]*" -[0-9.]+  "[^|]*" -[0-9.]+\|.*3 tokens, log probability' \
  "${run[@]}" --temperature 0 --max-tokens 3 --logprobs 2 --prompt-logprobs
expect "a bias without a number" 2 'logit-bias red: "red" is not NAME=NUMBER' "${run[@]}" --logit-bias red
expect "a bias of several tokens" 1 '"grey elephant" is [0-9]+ tokens of this model, expected one' "${run[@]}" --logit-bias "grey elephant=2"
expect "a bias of no token" 1 'logit-bias 4000=1: the model has tokens 0 to 1023' "${run[@]}" --logit-bias 4000=1
expect "typical-p" 2 'typical-p 0: has to be at least 0.01' "${run[@]}" --typical-p 0
expect "a penalty" 2 'presence-penalty much: not a number' "${run[@]}" --presence-penalty much
expect "a window" 2 'penalty-window 1.5: not a whole number' "${run[@]}" --penalty-window 1.5
expect "alternatives of nothing" 2 '--prompt-logprobs goes with --logprobs N' "${run[@]}" --prompt-logprobs
expect "no head that drafts" 1 'no head that drafts tokens in its folder: train one \(recipes/mtp.lua, or --mtp\)' "${generate[@]}" --draft mtp

# ---- generate and chat: what ends or binds the text
second=$(awk '{print $2}' <<< "$text")
third=$(awk '{print $3}' <<< "$text")
[ "$("${generate[@]}" --stop "[\"$third\", \"$second\"]")" = " $first " ] || fail "--stop does not end before the first of several: $text"
expect "an empty stop" 1 'stop: string 2 is empty' "${generate[@]}" --stop '["a", ""]'
printf 'root ::= "yes" | "no"\n' > "$work/answer.gbnf"
printf 'root ::= "yes" more\n' > "$work/bad.gbnf"
echo '{"type": "object", "properties": {"colour": {"enum": ["red", "blue"]}, "many": {"type": "boolean"}}, "required": ["colour", "many"], "additionalProperties": false}' > "$work/schema.json"
expect "a grammar" 0 '^(yes|no)$' "${generate[@]}" --grammar "$work/answer.gbnf"
expect "a schema" 0 '^\{[ |]*"colour"[ |]*:[ |]*"(red|blue)"[ |]*,[ |]*"many"[ |]*:[ |]*(true|false)[ |]*\}$' "${generate[@]}" --max-tokens 40 --schema "$work/schema.json"
expect "a bad grammar" 1 'bad.gbnf: grammar, line 1, column 16: rule more is used and not defined' "${generate[@]}" --grammar "$work/bad.gbnf"
expect "no grammar" 1 'none.gbnf: no such file' "${generate[@]}" --grammar "$work/none.gbnf"
expect "both" 2 '--grammar and --schema both say' "${generate[@]}" --grammar "$work/answer.gbnf" --schema "$work/schema.json"
chat=("$QENG" recipes/chat.lua --threads 1 --temperature 0)
printf 'hello\nagain\n' > "$work/input"
"${chat[@]}" --model recipes/tiny --grammar "$work/answer.gbnf" < "$work/input" > "$work/log" 2> /dev/null || fail "chat with a grammar"
[ "$(grep -cxE 'yes|no' "$work/log")" = 2 ] || fail "chat with a grammar: $(cat "$work/log")"

# ---- a context that is full
cp -r recipes/tiny "$work/short"
sed -i 's/"max_position_embeddings": 1024/"max_position_embeddings": 48/' "$work/short/config.json"
full=("$QENG" recipes/generate.lua --model "$work/short" --threads 1 --temperature 0 --prompt "Tom went" --speed --max-tokens 60 --logit-bias "<|im_end|>=-1000,<|endoftext|>=-1000")
expect "full: the end" 0 'prompt 5 tokens.* answer 43 tokens' "${full[@]}"
expect "full: an error" 1 'the context of 48 tokens is full' "${full[@]}" --when-full error
expect "full: of the prompt" 1 'leaves no room in a context of 48: give a shorter prompt$' "${full[@]:0:6}" --prompt "$(printf 'red bells %.0s' $(seq 40))"
expect "full: goes on" 0 'prompt 5 tokens.* answer 60 tokens' "${full[@]}" --when-full shift --keep 5
expect "full: what is that" 2 'when-full wait: one of stop, error, shift' "${full[@]}" --when-full wait
expect "nothing is shifted" 2 '--keep says what a shift does not forget: give --when-full shift' "${full[@]}" --keep 5
printf 'hello there my friend of old\nhow are you today\nand what now\nagain\n/save %s\n' "$work/saved.jsonl" > "$work/input"
"${chat[@]}" --model "$work/short" --max-tokens 30 < "$work/input" > "$work/log" 2>&1 || fail "a chat in a short context"
grep -q 'leaves no room in a context of 48' "$work/log" || fail "a chat that no context of 48 holds: $(cat "$work/log")"
"${chat[@]}" --model "$work/short" --max-tokens 30 --when-full shift < "$work/input" > "$work/log" 2>&1 || fail "a chat that forgets"
grep -q 'leaves no room' "$work/log" && fail "a chat that forgets has no room: $(cat "$work/log")"
[ "$(grep -o '"role"' "$work/saved.jsonl" | wc -l)" = 8 ] || fail "a chat that forgets saves all of it: $(cat "$work/saved.jsonl")"

[ "$failures" = 0 ] && echo "inference: passed"
exit "$failures"
