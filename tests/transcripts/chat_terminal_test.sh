#!/usr/bin/env bash
# recipes/chat.lua and the REPL in a terminal ($QENG): a pseudo-terminal of script(1), whose keys a pipe types. Each key waits for the
# prompt before it, not for a time.
set -u
QENG=$(realpath "${QENG:-build/release/qeng}")
command -v script > /dev/null || { echo "SKIPPED chat_terminal: no script(1)"; exit 0; }
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT
export TERM=xterm LC_ALL=C.UTF-8 HOME=$work QENG_CHAT_HISTORY=$work/history
failures=0
fail() { echo "FAILED $*"; failures=$((failures + 1)); }

# open NAME COMMAND: begins it in a terminal that writes to $work/NAME.
open() {
  screen=$work/$1.screen prompts=0
  rm -f "$work/keys" && mkfifo "$work/keys"
  script -qfec "stty cols 120; $2" /dev/null < "$work/keys" > "$screen" 2>&1 &
  pid=$!
  exec 3> "$work/keys"
}
# until_shown PATTERN COUNT: waits until so many lines or parts of the screen match.
until_shown() {
  for _ in $(seq 300); do
    [ "$(grep -aoE -- "$1" "$screen" | wc -l)" -ge "$2" ] && return
    sleep 0.1
  done
  fail "$(basename "$screen"): no '$1' ($2 times) in: $(tail -c 600 "$screen" | cat -v)"
}
# keys TEXT: types it (as printf has it) at the next prompt.
keys() {
  prompts=$((prompts + 1))
  until_shown $'\033\\[\\?2004h' "$prompts"
  printf '%b' "$1" >&3
}
# close_screen STATUS: waits for its end.
close_screen() {
  local got=0
  exec 3>&-
  wait "$pid" || got=$?
  [ "$got" = "$1" ] || fail "$(basename "$screen"): exit status $got, expected $1: $(tail -c 600 "$screen" | cat -v)"
}
shows() { grep -qaE -- "$2" "$screen" || fail "$1: no '$2' in: $(cat -v "$screen")"; }
said() { # said NAME FILE CONTENTS...: what the user said in a saved conversation
  local name=$1 file=$2 got
  shift 2
  got=$(grep -o '{"content":"[^"]*","role":"user"}' "$file" 2> /dev/null | sed 's/{"content":"\(.*\)","role":"user"}/\1/')
  [ "$got" = "$(printf '%s\n' "$@")" ] || fail "$name: said '$got', expected '$(printf '%s|' "$@")'"
}

chat="$QENG recipes/chat.lua --model recipes/tiny --threads 1 --temperature 0 --max-tokens 8"
open chat "$chat"
keys 'hello\r'
keys '\003'                                          # at an empty prompt: the conversation stays
keys 'hallo\0001X\0177\0005\0177\0177lo there\r'       # the cursor to the beginning and the end, and corrections
keys '\033[200~first line\n\tsecond line\033[201~\r'  # pasted: one message
keys "/save $work/one.jsonl\r"
keys '\033[A\033[A\r'                                # up in history, past the command: the pasted text again
keys 'two\033\rlines\r'                              # Alt-Enter
keys 'it goes \\\ron\r'
prompts=$((prompts + 1))                             # the second line had a prompt of its own
keys '/edit\r'
keys ' and on\r'
keys "/save $work/two.jsonl\r"
keys '/he\t\r'                                       # completed
keys '/regen\t\r'
keys '/set top-k 5\r'
keys '/set top_k none\r'
keys '/set mirostat 2\r'
keys '/set\r'
keys "/load $work/one.jsonl\r"
keys "/save $work/three.jsonl\r"
keys "/load $work/history\r"
keys '/system Be brief.\r'
keys "/save $work/four.jsonl\r"
keys '\004'
close_screen 0
first=$(tr -d '\r' < "$screen" | head -1)
[ "$first" = "tiny; /help lists the commands" ] || fail "the first line is '$first'"
shows "Ctrl-C at an empty prompt" 'Ctrl-D or /quit ends the chat'
said "typed and pasted" "$work/one.jsonl" hello 'hallo there' 'first line\n\tsecond line'
said "several lines, edited" "$work/two.jsonl" hello 'hallo there' 'first line\n\tsecond line' 'first line\n\tsecond line' 'two\nlines' 'it goes \non and on'
said "loaded" "$work/three.jsonl" hello 'hallo there' 'first line\n\tsecond line'
grep -q '{"content":"Be brief.","role":"system"}' "$work/four.jsonl" || fail "/system: $(cat "$work/four.jsonl")"
shows "/help, completed" '/load FILE +goes on with'
shows "/set, what is no number" 'top-k none: not a number'
shows "/set, what does not go together" 'top_k is not used beside mirostat'
shows "/set alone" 'top_k +5'
shows "/load, what is no conversation" 'history: expected a line'
[ "$(grep -ac 'tokens/s' "$screen")" = 8 ] || fail "eight answers expected: $(grep -a 'tokens/s' "$screen")"

# History is in the file, and a long paste stands for itself.
open later "$chat"
keys '\033[A\033[A\033[A'
until_shown '/load ' 1
printf '\003' >&3
keys "\033[200~$(printf 'a line\\n%.0s' $(seq 60))end\033[201~ of it\r"
keys "/save $work/long.jsonl\r"
keys '/quit\r'
close_screen 0
shows "history of another run" '/load '
shows "a long paste" '\[pasted 61 lines #1\] of it'
said "a long paste" "$work/long.jsonl" "$(printf 'a line\\n%.0s' $(seq 60))end of it"

# Ctrl-C stops an answer, and the chat goes on. A model of random weights that would talk for minutes.
"$QENG" tests/lua/small_model.lua "$work/small" > /dev/null || exit 1
sed -i 's/"max_position_embeddings": *256/"max_position_embeddings": 200000/' "$work/small/model/config.json"
open stopped "$QENG recipes/chat.lua --model $work/small/model --threads 1 --temperature 0 --max-tokens 190000"
keys 'the cat\r'
until_shown '[[:alnum:]]{4}.*[[:alnum:]]{4}' 3
printf '\003' >&3
keys '/edit\003'
keys '\004'
close_screen 0
shows "a stopped answer" 'stopped; prompt'

# Reasoning is dimmed: a template opens the model's thoughts, which nothing ends.
cp -r recipes/tiny "$work/thinks"
sed -i 's/<|endoftext|>/<think>/' "$work/thinks/tokenizer.json" "$work/thinks/tokenizer_config.json"
sed -i "s/assistant\([^']*\)' }}{% endif/assistant\1<think>' }}{% endif/" "$work/thinks/tokenizer_config.json"
open thinks "$QENG recipes/chat.lua --model $work/thinks --threads 1 --temperature 0 --max-tokens 8"
keys 'hello\r'
keys '\004'
close_screen 0
shows "reasoning" $'\033\\[\\?2004l\033\\[2m ?[A-Za-z]+.*\033\\[0m'

open repl "$QENG"
keys '\033[200~for i = 1, 2 do\n  print("n" .. i)\nend\033[201~\r'
keys '\004'
close_screen 0
shows "a chunk pasted into the REPL" '^n2'

[ "$failures" = 0 ] && echo "chat in a terminal: passed"
exit "$failures"
