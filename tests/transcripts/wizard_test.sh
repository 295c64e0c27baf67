#!/bin/bash
# recipes/wizard.lua by the real executable ($QENG), from records to an answer of what it made: unattended, stopped at each step and
# continued, and answered by a terminal that a pipe types at.
set -u
QENG=$(realpath "${QENG:-build/release/qeng}")
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT
export XDG_CACHE_HOME=$work/cache HF_HOME=$work/hub HF_HUB_OFFLINE=1 LC_ALL=C.UTF-8 TERM=xterm
failures=0
fail() { echo "FAILED $*"; failures=$((failures + 1)); }
# expect NAME STATUS "PATTERN;PATTERN..." COMMAND...: exit status, and patterns (grep -E) in stdout and stderr together
expect() {
  local name=$1 status=$2 patterns=$3 got pattern
  shift 3
  output=$(timeout 120 "$@" 2>&1 </dev/null)
  got=$?
  [ "$got" = "$status" ] || fail "$name: exit status $got, expected $status: $output"
  while IFS= read -r -d ';' pattern; do
    printf '%s' "$output" | grep -qE -- "$pattern" || fail "$name: no '$pattern' in: $output"
  done <<<"$patterns;"
}
same() { cmp -s "$2" "$3" || fail "$1: $2 and $3 differ"; }
# shellcheck source=tests/transcripts/stopped.sh
. "$(dirname "$0")/stopped.sh"
wizard=(recipes/wizard.lua --data "$work/chats.jsonl" --threads 1)
steps=(data model settings estimate before train after merge export serve)

# 60 records of five shapes, three duplicates, one over-long, one without an answer, one of no known shape, one that is no JSON
colours=(red blue green white black grey) things=(lamp book ring cup bell hat kite jar) days=(Monday Tuesday Friday Sunday)
for i in $(seq 60); do
  colour=${colours[i * 7 % 6]} thing=${things[i * 5 % 8]} day=${days[i * 3 % 4]}
  question="On $day the $i of May I saw a $colour $thing. Which colour was it?" answer="The $thing is $colour."
  case $((i % 5)) in
    0) echo "{\"messages\": [{\"role\": \"user\", \"content\": \"$question\"}, {\"role\": \"assistant\", \"content\": \"$answer\"}]}" ;;
    1) echo "{\"prompt\": \"$question\", \"completion\": \"$answer\"}" ;;
    2) echo "{\"instruction\": \"Say the colour.\", \"input\": \"$question\", \"output\": \"$answer\"}" ;;
    3) echo "{\"conversations\": [{\"from\": \"human\", \"value\": \"$question\"}, {\"from\": \"gpt\", \"value\": \"$answer\"}]}" ;;
    4) echo "{\"text\": \"Das ist nicht die Antwort, und der Tag ist $day der $i.\"}" ;;
  esac
done >"$work/good.jsonl"
{
  cat "$work/good.jsonl"
  sed -n 1,3p "$work/good.jsonl"
  echo "{\"prompt\": \"$(printf 'the lamp is red %.0s' $(seq 600))\", \"completion\": \"yes\"}"
  echo '{"prompt": "Where is the hat?", "completion": ""}'
  echo '{"question": "Who?"}'
  echo 'no JSON'
} >"$work/chats.jsonl"

# ---- unattended, to a served answer
found='67 records: 15 prompt and completion, 13 conversations, 13 instruction and output, 12 messages, 12 text, 1 of no known'
found+=';left out: 1 not JSON \(.*chats.jsonl:67\);1 without an answer to train on \(.*:65\);1 no known shape: keys question'
found+=';3 duplicates;English 80 %, German 20 %;53 records to train on, 8 held out, 6 left out;over-long: 1 of the records'
found+=';model: tiny; no other model is here;>>The [a-z]+ is [a-z]+.<\|im_end\|><<'
chosen='rank: 8; it holds far more;row tokens: [0-9]+; the shortest that;epochs: [0-9]+; .*lowest held-out loss'
took='Training takes about .* of memory;not known here yet;estimated .* took'
made='before: held-out loss [0-9.]+; 6 questions;after:  held-out loss;q8_0  ;serve.lua --model .*/whole/model-q8_0.gguf;it answers:'
expect "unattended" 0 "$found;$chosen;$took;$made" "$QENG" "${wizard[@]}" --out "$work/whole" --yes --try
before=$(printf '%s' "$output" | sed -n 's/^before: held-out loss \([0-9.]*\);.*/\1/p')
after=$(printf '%s' "$output" | sed -n 's/^after:  held-out loss \([0-9.]*\);.*/\1/p')
awk "BEGIN { exit !($after < $before / 2) }" || fail "the held-out loss was $before and is $after"
[ "$(grep -c . "$work/whole/data/held_out.jsonl") $(grep -c . "$work/whole/data/left_out.jsonl")" = "8 6" ] || fail "data/ has other counts"
[ "$(cd "$work/whole/steps" && echo *)" = "$(printf '%s\n' "${steps[@]}" | awk '{ printf("%s%02d-%s.json", NR == 1 ? "" : " ", NR, $1) }')" ] || fail "other steps"
if command -v curl >/dev/null; then
  command=$(printf '%s' "$output" | sed -n 's/^to serve it: qeng //p' | tail -1)
  : >"$work/served"
  # shellcheck disable=SC2086  # the words of a command
  "$QENG" $command --port 0 --threads 1 --max-batch 2 --log none >"$work/served" 2>&1 &
  server=$!
  for _ in $(seq 200); do grep -q 'answers at' "$work/served" && break; sleep 0.05; done
  address=$(sed -n 's/.* answers at \(.*\)$/\1/p' "$work/served")
  curl -sS -m 60 "$address/chat/completions" -H 'Content-Type: application/json' \
    -d '{"messages": [{"role": "user", "content": "On Friday the 3 of May I saw a red lamp. Which colour was it?"}], "temperature": 0, "max_tokens": 12}' \
    | grep -qE '"content": ?"The ' || fail "what is served does not answer: $(cat "$work/served")"
  kill $server && wait $server
fi

# ---- the same command again, and what is refused
expect "again" 0 'data: done;serve: done;to serve it' "$QENG" "${wizard[@]}" --out "$work/whole" --yes
expect "an answer that changed" 1 'rank 32: this run was answered 8 at the step settings; .*--redo settings' "$QENG" "${wizard[@]}" --out "$work/whole" --yes --rank 32
expect "a dtype where none was given" 1 'dtype f32: this run was answered nothing at the step model; .*--redo model' \
  "$QENG" "${wizard[@]}" --out "$work/whole" --yes --dtype f32
cp "$work/chats.jsonl" "$work/kept.jsonl"
echo '{"text": "One more."}' >>"$work/chats.jsonl"
expect "data that changed" 1 'not what was read at the step data: give --redo data' "$QENG" "${wizard[@]}" --out "$work/whole" --yes
mv "$work/kept.jsonl" "$work/chats.jsonl"
expect "a folder of something else" 1 'is there, and is no run of the wizard' "$QENG" "${wizard[@]}" --out "$work" --yes
expect "no terminal" 2 'no terminal to ask at: give --yes' "$QENG" "${wizard[@]}" --out "$work/none"
expect "no data" 2 'give --data' "$QENG" recipes/wizard.lua --yes --out "$work/none2"
printf 'a,b\n1,2\n' >"$work/table.csv"
expect "a table of something else" 1 'no known shape: keys a, b;1 of 1 records are bad' "$QENG" recipes/wizard.lua --yes --out "$work/none3" --data "$work/table.csv"
expect "packets" 1 'holds tokens of some model, not records' "$QENG" recipes/wizard.lua --yes --out "$work/none7" --data "$work/whole/packets/train.qubgpu"
gzip -c "$work/good.jsonl" >"$work/good.jsonl.gz"
expect "packed data" 0 'records of files that are not JSON, as JSON;60 records: 12 conversations, .*12 text;ended after the step data' \
  "$QENG" recipes/wizard.lua --yes --out "$work/packed" --data "$work/good.jsonl.gz" --until data
same "packed data" <(sort "$work"/packed/data/{train,held_out}.jsonl) <(sort "$work/good.jsonl")
head -n 4 "$work/chats.jsonl" >"$work/few.jsonl"
expect "few records" 1 '4 records that can be trained on, of 4; expected 8 at least' "$QENG" recipes/wizard.lua --yes --out "$work/none4" --data "$work/few.jsonl"
expect "data in its own folder" 1 'is in the folder of the run' "$QENG" "${wizard[@]}" --yes --out "$work/whole" --redo data --data "$work/whole/data/train.jsonl"
expect "no such type" 1 'there is no type q9; expected none, or one of bf16' "$QENG" "${wizard[@]}" --yes --out "$work/none6" --gguf q9
expect "too large a model" 1 'does not fit; take a smaller model' "$QENG" "${wizard[@]}" --yes --out "$work/none5" --model 90b

# ---- ended after each step and continued: the same result to the bit
for step in "${steps[@]}"; do
  expect "--until $step" 0 '' "$QENG" "${wizard[@]}" --out "$work/parts" --yes --until "$step"
  compgen -G "$work/parts/steps/*-$step.json" >/dev/null || fail "--until $step: no file of the step"
done
same "ended after each step" "$work"/{whole,parts}/train/adapter/adapter_model.safetensors
same "ended after each step" "$work"/{whole,parts}/merged/model.safetensors
same "ended after each step" "$work"/{whole,parts}/model-q8_0.gguf
same "ended after each step" "$work"/{whole,parts}/answers-after.jsonl

# ---- Ctrl-C in each step, or killed, and continued
turn=0
for step in "${steps[@]}"; do
  : >"$work/said"
  set -m  # else it would not see the signal
  "$QENG" "${wizard[@]}" --out "$work/stopped" --yes >"$work/said" 2>&1 &
  pid=$!
  set +m
  for _ in $(seq 600); do grep -q "^${step^^}\$" "$work/said" && break; kill -0 $pid 2>/dev/null || break; sleep 0.01; done
  signals=(INT KILL) turn=$((turn + 1))
  kill -"${signals[turn % 2]}" $pid 2>/dev/null
  wait $pid 2>/dev/null
  status=$?
  [ $status = 130 ] || [ $status = 137 ] || [ $status = 0 ] || fail "${signals[turn % 2]} in $step: exit status $status: $(tail -3 "$work/said")"
done
expect "continued after signals" 0 'data: done;to serve it' "$QENG" "${wizard[@]}" --out "$work/stopped" --yes
same "stopped in each step" "$work"/{whole,stopped}/train/adapter/adapter_model.safetensors
same "stopped in each step" "$work"/{whole,stopped}/model-q8_0.gguf

# ---- begun anew at the settings, for longer; Ctrl-C in the middle of training
anew() { ${EXEC:-} "$QENG" "${wizard[@]}" --out "$1" --yes --rank 4 --epochs 60 "${@:2}" >"$work/said" 2>&1; }
anew "$work/parts" --redo settings || fail "--redo settings: $(tail -3 "$work/said")"
[ -f "$work/parts/earlier-1/train/adapter/adapter_model.safetensors" ] || fail "--redo settings kept nothing of before"
[ ! -e "$work/parts/earlier-1/data" ] || fail "--redo settings took the data away"
anew "$work/stopped" --redo settings --until before || fail "--until before: $(tail -3 "$work/said")"
stopped "$work/stopped/train" anew "$work/stopped"
status=$?
{ [ $status = 130 ] && grep -q 'the same command goes on' "$work/said"; } || fail "Ctrl-C in training: exit status $status: $(tail -3 "$work/said")"
anew "$work/stopped" || fail "going on with training: $(tail -3 "$work/said")"
grep -q 'resuming at step' "$work/said" || fail "training began anew: $(cat "$work/said")"
same "stopped in training" "$work"/{parts,stopped}/train/adapter/adapter_model.safetensors

# ---- at a terminal
if command -v script >/dev/null; then
  # open COMMAND: begins it in a terminal that writes to $work/screen
  open() {
    prompts=0 screen=$work/screen
    rm -f "$work/keys" && mkfifo "$work/keys"
    script -qfec "stty cols 200; $1" /dev/null <"$work/keys" >"$screen" 2>&1 &
    pid=$!
    exec 3>"$work/keys"
  }
  keys() { # keys TEXT...: each typed (as printf has it) at the next prompt
    local text
    for text; do
      prompts=$((prompts + 1))
      for _ in $(seq 600); do
        [ "$(grep -ao $'\033\\[?2004h' "$screen" | wc -l)" -ge $prompts ] && break
        sleep 0.05
      done
      printf '%b' "$text" >&3
    done
  }
  closed() { # closed NAME STATUS
    local got=0
    exec 3>&-
    wait $pid || got=$?
    [ $got = "$2" ] || fail "$1: exit status $got, expected $2: $(tail -c 600 "$screen" | cat -v)"
  }
  shows() { grep -qaE -- "$2" "$screen" || fail "$1: no '$2' in: $(cat -v "$screen")"; }
  typed="$QENG recipes/wizard.lua --threads 1 --out $work/typed"
  open "$typed --rank 8"
  keys 'nothing.jsonl\r' "$work/cha\t\r" '?\r' '\r' 'many\r' '8\r' 'tiny\r' '\003'
  closed "Ctrl-C at a question" 130
  shows "a file that is not there" 'nothing.jsonl: no such file'
  shows "explained" 'one of drop, keep'
  shows "no number" 'many: not a number'
  shows "models" 'Qwen/Qwen3-0.6B +596 million parameters, needs'
  shows "spans in colour" $'\033\\[32m.*is [a-z]+\\.<\\|im_end\\|>'
  open "$typed --rank 8"
  keys '\004'
  closed "the end of the input" 2
  shows "the end of the input" 'ended at the question for mode: give --mode, or --yes'
  open "$typed --rank 8"
  keys '\r' '5\r' '\r' '\r' '\r' '0.0016\r' 'perhaps\r' '\r' '\r'
  closed "answered at a terminal" 0
  shows "a flag is not asked" 'rank: 8, by --rank'
  shows "out of range" "from 16 to the model's 1024"
  shows "yes or no" 'yes or no; no ends here'
  same "answered at a terminal" "$work"/{whole,typed}/train/adapter/adapter_model.safetensors
fi

[ $failures = 0 ] && echo "wizard: ok"
exit $((failures > 0))
