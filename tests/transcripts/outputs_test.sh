#!/usr/bin/env bash
# What the recipes ($QENG) write over: nothing that they read, and nothing of another kind, unless --overwrite is given; several
# files, folders and patterns are inputs; a folder belongs to one run at a time, and its results to one run.
set -uo pipefail
QENG=$(realpath "${QENG:-build/release/qeng}")
root=$(pwd)
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT
failures=0
fail() { echo "FAILED $*"; failures=$((failures + 1)); }

# expect NAME STATUS PATTERN RECIPE ARGUMENTS...: exit status and a pattern (grep -E) in stdout and stderr together
expect() {
  local name=$1 status=$2 pattern=$3 recipe=$4 output got
  shift 4
  output=$(timeout 100 "$QENG" "$root/recipes/$recipe.lua" "$@" 2>&1 < /dev/null)
  got=$?
  [ "$got" = "$status" ] || fail "$name: exit status $got, expected $status: $output"
  grep -qE -- "$pattern" <<< "$output" || fail "$name: no '$pattern' in: $output"
}
state() { (cd "$1" && find . -type f ! -name .lock -exec sha256sum {} + | sort); }
# keeps NAME PATTERN RECIPE ARGUMENTS...: refused, and no file of the folder is another than before
keeps() {
  local name=$1 before
  before=$(state .)
  expect "$name" "${status:-1}" "${@:2}"
  [ "$before" = "$(state .)" ] || fail "$name: files changed: $(diff <(echo "$before") <(state .))"
}

"$QENG" tests/lua/small_model.lua "$work" || exit 1
cd "$work" || exit 1
mv data.jsonl a.jsonl
sed 's/cat/dog/' a.jsonl > b.jsonl
mkdir data && head -n 100 a.jsonl > data/1.jsonl && gzip -c b.jsonl > data/2.jsonl.gz && echo 'About this.' > data/README.md && ln -s a.jsonl linked.jsonl
cp a.jsonl c.qubgpu  # by its name only

# ---- convert: what is written
T=(--tokenizer model)
status=2 keeps "in and out the same" 'a.jsonl: the last word is the dataset that is written, and ends in .qubgpu' convert a.jsonl a.jsonl "${T[@]}"
status=2 keeps "a shell's pattern without an output" 'b.jsonl: the last word' convert a.jsonl b.jsonl "${T[@]}"
status=2 keeps "no output" 'which data\?|no words' convert "${T[@]}"
status=2 keeps "no input" 'which data\?' convert all.qubgpu "${T[@]}"
keeps "the input as --output" 'a.jsonl is read .* --overwrite' convert a.jsonl --output a.jsonl "${T[@]}"
keeps "the input by another name" './/a.jsonl is read .linked.jsonl.' convert linked.jsonl --output .//a.jsonl "${T[@]}"
keeps "the input by its link" 'linked.jsonl is read' convert a.jsonl --output linked.jsonl "${T[@]}"
keeps "a file of another kind" 'b.jsonl is there, and is not a .qubgpu dataset' convert a.jsonl --output b.jsonl "${T[@]}"
keeps "text under the name of a dataset" 'c.qubgpu is there, and is not' convert a.jsonl c.qubgpu "${T[@]}"
expect "--overwrite" 0 '300 records' convert a.jsonl c.qubgpu "${T[@]}" --overwrite
expect "an older dataset is replaced" 0 '300 records' convert b.jsonl c.qubgpu "${T[@]}"
keeps "a dataset as input" 'c.qubgpu.* packet dataset already' convert c.qubgpu d.qubgpu "${T[@]}"
output=$("$QENG" -e 'q.convert("a.jsonl", "./a.jsonl", { tokenizer = q.tokenizer "model" })' 2>&1) && fail "q.convert over its input"
grep -q 'is read' <<< "$output" || fail "q.convert: $output"

# ---- convert: what is read
expect "two files" 0 'two.qubgpu: 600 records' convert a.jsonl b.jsonl two.qubgpu "${T[@]}"
expect "a pattern" 0 '600 records' convert '[ab].jsonl' pattern.qubgpu "${T[@]}"
expect "a folder" 0 'data: 2 files are read; left out, no data by their names: README.md' convert data folder.qubgpu "${T[@]}"
expect "a folder" 0 '400 records' convert data/ folder.qubgpu "${T[@]}"
mkdir splits && cp a.jsonl splits/train.jsonl && cp b.jsonl splits/test.jsonl && mkdir -p below/data && cp a.jsonl below/data
expect "a folder of splits" 0 'splits: by their names its files are of the splits train, test, and all are read: test.jsonl, train.jsonl;' \
  convert splits folder.qubgpu "${T[@]}"
keeps "a folder whose data are below" 'without data files .*; is it below/data that is meant\?' convert below none.qubgpu "${T[@]}"
expect "files, --input and --output" 0 '437 records, .* 563 duplicates' convert b.jsonl data --input a.jsonl --output all.qubgpu "${T[@]}" --dedupe
keeps "a pattern of nothing" 'data none/\*.jsonl: no such file' convert 'none/*.jsonl' none.qubgpu "${T[@]}"
mkdir empty && keeps "a folder of nothing" 'empty: a folder without data files' convert empty none.qubgpu "${T[@]}"
cmp -s two.qubgpu pattern.qubgpu || fail "a pattern gives another dataset than its files"

# ---- packets
keeps "merge into an input" 'a.qubgpu is there already|is there already' packets merge two.qubgpu c.qubgpu
keeps "merge over text" 'is there already' packets merge a.jsonl c.qubgpu
expect "merge, replaced" 0 '900 records' packets merge all.qubgpu two.qubgpu c.qubgpu --overwrite
keeps "filter into its input" 'c.qubgpu is read' packets filter c.qubgpu ./c.qubgpu
keeps "filter over text" 'a.jsonl is there, and is not a .qubgpu dataset' packets filter c.qubgpu a.jsonl
cp a.jsonl parts-1-of-2.qubgpu
keeps "split over text" 'parts-1-of-2.qubgpu is there, and is not' packets split c.qubgpu parts.qubgpu --count 150
keeps "export over text" 'a.jsonl is there, and is not a file of bare frames' packets export a.jsonl c.qubgpu
expect "export" 0 '300 records' packets export c.ndp c.qubgpu
cp c.qubgpu more.qubgpu
expect "append" 0 '900 records' packets append more.qubgpu two.qubgpu
expect "export again" 0 '300 records' packets export c.ndp c.qubgpu
keeps "import over text" 'a.jsonl is there' packets import a.jsonl c.ndp

# ---- other recipes that write files
keeps "a tokenizer into a model" 'model/tokenizer.json would be replaced, and beside it is config.json' train_tokenizer --data a.jsonl --vocab 300 --out model
expect "a tokenizer" 0 'tok: 300 ids' train_tokenizer 'a.js*' b.jsonl --vocab 300 --out tok
expect "a tokenizer again" 0 'tok: 300 ids' train_tokenizer data/1.jsonl --vocab 300 --out tok
keeps "a compressed text" '2.jsonl.gz: is compressed' train_tokenizer data/2.jsonl.gz --vocab 300 --out tok2
keeps "quantize over text" 'a.jsonl is there, and is not a GGUF file' quantize model a.jsonl
keeps "quantize over a weight file" 'model.safetensors is there' quantize model model/model.safetensors
expect "quantize" 0 'small.gguf' quantize model small.gguf --type f16
keeps "an importance matrix over a model" 'small.gguf is there, and is not an importance matrix' quantize model o.gguf --calibration a.jsonl --importance small.gguf
status=1 keeps "golden over a config" 'config.json is there, and is not a golden set' golden --model model --file model/config.json --write --threads 1
keeps "perplexity over its text" 'a.jsonl is read' perplexity --model model --data a.jsonl --out a.jsonl
keeps "perplexity over a config" 'config.json is there, and is not figures' perplexity --model model --data a.jsonl --out model/config.json
keeps "an analysis in a model" 'model is read' analyze c.qubgpu --model model --out model
status=2 keeps "a word beside its option" 'b.qubgpu: unexpected beside --file' analyze --file c.qubgpu b.qubgpu

printf '/save a.jsonl\n/save talk.jsonl\n/save talk.jsonl\n/quit\n' | "$QENG" "$root/recipes/chat.lua" --model model --threads 1 > log 2>&1 || fail "chat: $(cat log)"
grep -q 'a.jsonl is there, and is not a conversation that was saved: give another name$' log || fail "chat saves over data: $(cat log)"
[ "$(grep -c 'saved to talk.jsonl' log)" = 2 ] || fail "chat does not save twice: $(cat log)"
for recipe in "$root"/recipes/*.lua; do  # whoever writes to a path that is named asks before writing over something else
  help=$("$QENG" "$recipe" --help)
  ! grep -qE -- '--(out|output|write) ?' <<< "$help" || grep -qE -- '--(overwrite|redo)' <<< "$help" || fail "$recipe has no --overwrite"
done

# ---- training: what it reads, a stopped run, a run that goes on, the run after
train=(lora_qwen --model model --row-tokens 64 --threads 1 --eval-share 0.1)
keeps "into the model" 'model is (what is )?read' "${train[@]}" --data a.jsonl --out ./model
expect "a folder as data" 0 'adapter' "${train[@]}" --data data --out folder --steps 2
expect "a run" 0 'adapter' "${train[@]}" --data a.jsonl --out run --steps 6 --eval-every 3 --merge --gguf
cp -r run first
expect "the next run" 0 'run: adapter, adapter.gguf, best, checkpoints, data.qubgpu, merged, metrics.jsonl, options.json, report.html of an earlier run: moved to run/earlier-1' \
  "${train[@]}" --data a.jsonl --out run --steps 4 --eval-every 0 --seed 7
for name in merged adapter.gguf; do [ -e "run/$name" ] && fail "$name of the earlier run is beside the new adapter"; done
[ "$(state run/earlier-1)" = "$(state first)" ] || fail "what was moved is not what was there"
[ "$(wc -l < run/metrics.jsonl)" = 4 ] || fail "metrics of two runs"
keeps "its own earlier data" 'run/data.qubgpu is read, and is of an earlier run in run' "${train[@]}" --data run/data.qubgpu --out run --steps 2
keeps "a model that is not there" 'no such file' "${train[@]}" --data a.jsonl --out run --steps 2 --model nothing
keeps "data that are not there" 'no such file' "${train[@]}" --data nothing.jsonl --out run --steps 2
expect "--overwrite" 0 'of an earlier run: deleted' "${train[@]}" --data a.jsonl --out run --steps 4 --eval-every 0 --merge --overwrite
[ -e run/earlier-2 ] && fail "--overwrite kept what it was to delete"
expect "a longer run" 0 'run: merged of an earlier run: moved to run/earlier-2' "${train[@]}" --data a.jsonl --out run --steps 8 --eval-every 0 --resume
[ -e run/merged ] && fail "merged is of fewer steps than the adapter"

"$QENG" "$root/recipes/lora_qwen.lua" "${train[@]:1}" --data a.jsonl --out stopped --steps 1000000 > log 2>&1 &
job=$!
mkdir kept.of
for _ in $(seq 200); do [ -s stopped/metrics.jsonl ] && break; sleep 0.05; done
cp stopped/options.json stopped/data.qubgpu kept.of
expect "a folder in use" 1 "stopped is in use by process $job on $(hostname): wait until that run has ended" "${train[@]}" --data b.jsonl --out stopped
expect "a folder in use, to go on" 1 "in use by process $job" "${train[@]}" --data b.jsonl --out ./stopped --resume
for name in options.json data.qubgpu; do cmp -s stopped/$name kept.of/$name || fail "a folder in use was written to: $name"; done
kill -TERM $job
wait $job
keeps "a stopped run" 'stood at step [0-9]+: go on with --resume' "${train[@]}" --data b.jsonl --out stopped --seed 3
cp -r stopped kept
expect "other data" 1 'resume: the run in stopped has data' "${train[@]}" --data data --out stopped --steps 1000000 --resume
cmp -s stopped/options.json kept/options.json && cmp -s stopped/data.qubgpu kept/data.qubgpu || fail "a run that was refused left its options or data"
[ "$(cat stopped/.lock)" != "" ] || fail "nobody held the folder"

# ---- loops of a recipe: what it wrote itself is moved away, too; what it reads is not written over
loop=(own_loop --model model --data a.jsonl --threads 1 --steps 2 --out loop)
expect "a loop" 0 'adapter' "${loop[@]}"
before=$(state loop/adapter)
expect "a loop again" 0 'loop: .*adapter.* of an earlier run: moved to loop/earlier-1' "${loop[@]}" --seed 5
[ "$(state loop/earlier-1/adapter)" = "$before" ] || fail "the adapter of an earlier loop is not kept"
head=(mtp --data a.jsonl --threads 1 --steps 1 --prompts 1 --row-tokens 64 --out heads)
expect "a head" 0 'heads/model' "${head[@]}" --model model
for more in "" --strip --overwrite --resume; do
  keeps "a head over its model $more" 'heads/model is read, and is of an earlier run' "${head[@]}" --model heads/model $more
done
touch heads/model/mine
expect "without the head" 0 'heads: .*model of an earlier run: moved to heads/earlier-1' "${head[@]}" --model model --strip
[ -e heads/earlier-1/model/mine ] || fail "what was in the folder of the model is gone"

# ---- one-bit training and the comparison: the same folder rules
bits=(--data a.jsonl --hidden 32 --layers 1 --heads 1 --ffn 32 --row-tokens 64 --rows 1 --steps 3 --eval-share 0 --tokenizer model)
expect "one-bit training" 0 'bits/model' onebit_pretrain "${bits[@]}" --out bits
expect "one-bit training again" 0 'moved to bits/earlier-1' onebit_pretrain "${bits[@]}" --out bits
mkdir mine && echo mine > mine/table.md && echo mine > mine/thesis.tex
keeps "a table of somebody's" 'mine/table.md would be replaced, and beside it is thesis.tex' onebit_compare --data a.jsonl --out mine

[ $failures = 0 ] && echo "outputs: ok"
exit $((failures > 0))
