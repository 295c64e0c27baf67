#!/bin/bash
# recipes/generate.lua and recipes/chat.lua as a user sees them ($QENG), on the built-in model.
set -u
QENG=$(realpath "${QENG:-build/release/qeng}")
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT
failures=0

# expect NAME STATUS PATTERN COMMAND... : wants that status and the pattern (grep -E, lines joined by |) in stdout and stderr.
expect() {
  local name=$1 status=$2 pattern=$3 output got
  shift 3
  output=$(timeout 100 "$@" 2>&1)
  got=$?
  output=$(printf '%s' "$output" | tr '\n' '|')
  [ "$got" = "$status" ] || { echo "FAILED $name: exit status $got, expected $status: $output"; failures=$((failures + 1)); }
  printf '%s' "$output" | grep -qE -- "$pattern" || { echo "FAILED $name: no '$pattern' in: $output"; failures=$((failures + 1)); }
}

generate=("$QENG" recipes/generate.lua --model recipes/tiny --threads 1 --temperature 0 --max-tokens 20 --prompt "Tom went")
text=$("${generate[@]}")
expect "greedy text" 0 '^ ?[a-z].*' "${generate[@]}"
for more in "--lookup 4" "--draft recipes/tiny" "--kv f32"; do
  # shellcheck disable=SC2086
  [ "$("${generate[@]}" $more)" = "$text" ] || { echo "FAILED $more changes the text"; failures=$((failures + 1)); }
done
sampled=("${generate[@]}" --temperature 1 --seed 3)
[ "$("${sampled[@]}" --draft recipes/tiny)" = "$("${sampled[@]}")" ] || { echo "FAILED a draft changes sampled text"; failures=$((failures + 1)); }
word=$(printf '%s' "$text" | awk '{print $3}')
printf '%s' "$("${generate[@]}" --stop " $word")" | grep -q "$word" && { echo "FAILED --stop '$word' is in the text"; failures=$((failures + 1)); }
# A prompt from a file or a pipe gives what the same one on the command line does.
from=("$QENG" recipes/generate.lua --model recipes/tiny --threads 1 --temperature 0 --max-tokens 20)
printf 'Tom went\n' > "$work/prompt"
[ "$("${from[@]}" --prompt-file "$work/prompt" < /dev/null)" = "$text" ] || { echo "FAILED --prompt-file"; failures=$((failures + 1)); }
[ "$("${from[@]}" < "$work/prompt")" = "$text" ] || { echo "FAILED a prompt piped in"; failures=$((failures + 1)); }
[ "$("${from[@]}" --prompt-file - < "$work/prompt")" = "$text" ] || { echo "FAILED --prompt-file -"; failures=$((failures + 1)); }
printf 'Tom\nwent' > "$work/lines"
[ "$("${from[@]}" < "$work/lines")" = "$("${generate[@]}" --prompt $'Tom\nwent')" ] || { echo "FAILED a prompt of several lines"; failures=$((failures + 1)); }
expect "no prompt" 2 'the prompt is empty: standard input holds no text' "${from[@]}" < /dev/null
expect "no such file" 1 'none: no such file' "${from[@]}" --prompt-file "$work/none"
expect "two prompts" 2 'both say what the prompt is' "${generate[@]}" --prompt-file "$work/prompt"
expect "speed line" 0 'prompt [0-9]+ tokens, [0-9]+ tokens/s; answer 20 tokens, [0-9.]+ tokens/s; KV cache 0\.[0-9]+ MB' "${generate[@]}" --speed
expect "a kv dtype that is not known" 2 'kv' "${generate[@]}" --kv q3

chat=("$QENG" recipes/chat.lua --model recipes/tiny --threads 1 --temperature 0 --max-tokens 12)
printf 'hello\n/help\n/nothing\nagain\n/save %s\n/reset\nhello\n/system Be brief.\nhello\n/quit\nnever\n' "$work/saved.jsonl" > "$work/input"
output=$(timeout 100 "${chat[@]}" < "$work/input" 2> "$work/speed")
status=$?
[ "$status" = 0 ] || { echo "FAILED chat: exit status $status: $output"; failures=$((failures + 1)); }
first=$(printf '%s\n' "$output" | sed -n 1p)
for pattern in '^/reset  ' '^/system ' '^/save FILE' '^there is no command /nothing; /help lists them$' '^saved to '; do
  printf '%s\n' "$output" | grep -qE -- "$pattern" || { echo "FAILED chat: no '$pattern' in: $output"; failures=$((failures + 1)); }
done
[ "$(printf '%s\n' "$output" | grep -cxF -- "$first")" -ge 2 ] || { echo "FAILED chat: after /reset the answer is another one: $output"; failures=$((failures + 1)); }
[ "$(grep -c 'tokens/s' "$work/speed")" = 4 ] || { echo "FAILED chat: four speed lines expected: $(cat "$work/speed")"; failures=$((failures + 1)); }
sed -n 2p "$work/speed" | grep -qE 'prompt [0-9]+ tokens \([0-9]+ remembered\)' || { echo "FAILED chat: the second turn computed everything: $(cat "$work/speed")"; failures=$((failures + 1)); }
[ "$(grep -o '"role"' "$work/saved.jsonl" | wc -l)" = 4 ] || { echo "FAILED chat: saved: $(cat "$work/saved.jsonl")"; failures=$((failures + 1)); }

# Another answer, another question, and a conversation that was saved.
printf 'hello\n/set seed 5\n/set temperature 1\n/regenerate\n/regenerate\n/edit good day\n/set top_k x\n/set colour 3\n/save %s\n/reset\n/regenerate\n/load %s\n/load %s\ntwo \\\nlines\n/save %s\n' \
  "$work/edited.jsonl" "$work/edited.jsonl" "$work/prompt" "$work/loaded.jsonl" > "$work/input"
output=$(timeout 100 "${chat[@]}" --system Short. < "$work/input" 2> "$work/speed")
for pattern in 'top.k x: not a number' '^/set NAME VALUE, with a name of: .*temperature' '^nothing was asked yet$' '^2 messages of ' 'prompt: expected a line'; do
  printf '%s\n' "$output" | grep -qE -- "$pattern" || { echo "FAILED chat: no '$pattern' in: $output"; failures=$((failures + 1)); }
done
[ "$(printf '%s\n' "$output" | sed -n 1,4p | sort -u | wc -l)" = 4 ] || { echo "FAILED /regenerate or /edit answer the same: $output"; failures=$((failures + 1)); }
[ "$(grep -o '"[^"]*","role":"[us][^"]*"' "$work/loaded.jsonl" | tr '\n' ' ')" = '"Short.","role":"system" "good day","role":"user" "two \nlines","role":"user" ' ] ||
  { echo "FAILED /load: $(cat "$work/loaded.jsonl")"; failures=$((failures + 1)); }

printf 'hello\n%s\n' "$(printf 'red bells %.0s' $(seq 40))" > "$work/input"
expect "what does not fit the context" 0 'a prompt of [0-9]+ tokens leaves no room in a context of 40: give a shorter prompt, or a longer --context' "${chat[@]}" --context 40 < "$work/input"
expect "what fits the model's own" 0 'prompt [0-9]+ tokens.*prompt [0-9]{2,} tokens' "${chat[@]}" < "$work/input"
expect "a context below 0" 2 '--context' "${chat[@]}" --context -1

# Ctrl-C stops the answer only: a model that would talk for minutes.
"$QENG" tests/lua/small_model.lua "$work/small" > /dev/null || exit 1
sed -i 's/"max_position_embeddings": *256/"max_position_embeddings": 200000/' "$work/small/model/config.json"
mkfifo "$work/keys"
"$QENG" recipes/chat.lua --model "$work/small/model" --threads 1 --temperature 0 --max-tokens 190000 < "$work/keys" > "$work/out" 2> "$work/err" &
pid=$!
exec 3> "$work/keys"
echo "the cat" >&3
for _ in $(seq 100); do
  [ "$(wc -c < "$work/out")" -gt 200 ] && break
  sleep 0.1
done
kill -INT "$pid"
echo "/quit" >&3
exec 3>&-
wait "$pid"
status=$?
[ "$status" = 0 ] || { echo "FAILED Ctrl-C: exit status $status: $(tail -c 300 "$work/err")"; failures=$((failures + 1)); }
grep -q '^stopped; prompt' "$work/err" || { echo "FAILED Ctrl-C: $(tail -c 300 "$work/err")"; failures=$((failures + 1)); }

[ "$failures" = 0 ] && echo "chat: passed"
exit "$failures"
