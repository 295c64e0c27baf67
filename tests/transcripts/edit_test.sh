#!/bin/bash
# recipes/edit.lua by the real executable ($QENG): the table, the bits of a second run, the folder that it writes, and what
# it refuses. The built-in model knows no facts: what is asked of it here is only that it says what it was told to.
set -u
QENG=$(realpath "${QENG:-build/release/qeng}")
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT
failures=0
fail() { echo "FAILED $*"; failures=$((failures + 1)); }

for i in $(seq 40); do echo "Where is the hat of Petra? It is in Oslo. How many dogs are there? There are three."; done >"$work/text"
cat >"$work/facts.jsonl" <<'END'
{"subject":"the hat","prompt":"Where is {}? It is in","target_new":"Petra","target_true":"Kiel","neighborhood":["Where is the dog? It is in"]}
{"subject":"the kettle","prompt":"Is {} here? It is in","target_new":"Kiel","target_true":"Oslo","paraphrases":["Where is {}? It is in"]}
END
run() {
  "$QENG" recipes/edit.lua --model recipes/tiny --facts "$work/facts.jsonl" --text "$work/text" --layers 0,1 --lambda 0.1 \
    --continue 12 --device cpu --threads 1 "$@" >"$work/log" 2>"$work/err"
}
cell() { grep "^$1" "$work/log" | sed 's/^.\{18\}//; s/ %//g' | awk "{ print \$$2 }"; }  # of a row, without its name
same() { [ "$2" = "$3" ] || fail "$1: $2, expected $3"; }

run --out "$work/edited" || fail "the run: $(cat "$work/log" "$work/err")"
cat "$work/log"
grep -q "^2 facts; keys of 1080 tokens of $work/text: " "$work/log" || fail "the first line"
same "rows" "$(grep -cE '^(before|ROME, layer 0|MEMIT, layers 0-1) ' "$work/log")" 3
same "efficacy before" "$(cell before 1)" 0.0
same "kept before" "$(cell before 5)" 100.0
for row in ROME MEMIT; do same "efficacy of $row" "$(cell $row 1)" 100.0; done
tail -n 1 "$work/log" | grep -q "^undone: the weights are what they were, bit for bit$" || fail "the last line"

# The folder has the facts: its own "before" is what MEMIT reached.
reached=$(cell MEMIT 1)
"$QENG" recipes/edit.lua --model "$work/edited" --facts "$work/facts.jsonl" --text "$work/text" --layers 0 --steps 1 --continue 0 \
  --method memit --device cpu --threads 1 >"$work/log" 2>"$work/err" || fail "of the folder: $(cat "$work/err")"
same "efficacy of the folder" "$(cell before 1)" "$reached"
same "fluency without a continuation" "$(cell before 6)" "-"

run --method memit --out "$work/again" || fail "the run again: $(cat "$work/err")"
cmp "$work/edited/model.safetensors" "$work/again/model.safetensors" || fail "other bits"
grep -q "^ROME" "$work/log" && fail "--method memit runs ROME"

refused() {
  local text=$1
  shift
  run "$@" && fail "taken: $*"
  grep -qF -- "$text" "$work/err" || fail "of $*: $(cat "$work/err")"
}
refused "--out keeps what MEMIT gives" --method rome --out "$work/rome"
refused "there is no layer 7; the model has layers 0 to 2" --layers 7
refused "there is no layer one" --layers one
echo '{"subject":"the hat","prompt":"Where?","target_new":"a","target_true":"b"}' >"$work/facts.jsonl"
refused 'facts.jsonl: record 1: the prompt "Where?" has {} 0 times' --method rome

[ $failures = 0 ] || { echo "$failures failures"; exit 1; }
echo "all passed"
