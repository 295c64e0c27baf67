#!/bin/bash
# Converting by the real executable ($QENG): compressed input and standard input give the same dataset as plain files; a
# conversion that is killed or interrupted leaves no file under the final name and resumes to the same bits; other options
# and other input are refused; bad lines are named. QENG_KILLS: how many kills (8; a campaign takes 200).
set -u
QENG=$(realpath "${QENG:-build/release/qeng}")
recipe=$(pwd)/recipes/convert.lua
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT
cd "$work" || exit 1
failures=0
fail() { echo "FAILED $*"; failures=$((failures + 1)); }

# expect NAME STATUS PATTERN COMMAND...: exit status and a pattern (grep -E) in stdout and stderr together
expect() {
  local name=$1 status=$2 pattern=$3 output got
  shift 3
  output=$(timeout 120 "$@" 2>&1)
  got=$?
  [ "$got" = "$status" ] || fail "$name: exit status $got, expected $status: $output"
  printf '%s' "$output" | grep -qE -- "$pattern" || fail "$name: no '$pattern' in: $output"
}

"$QENG" -e 'q.train_bpe({"the cat sees the dog and says one two three"}, {vocab = 300, specials = {"<|endoftext|>", "<|im_start|>", "<|im_end|>"}, out = "tok"})
  local file = io.open("data.jsonl", "w")
  for i = 1, 60000 do
    local s = ("the cat %d sees the dog and says "):format(i % 20011):rep(1 + i % 3)
    if i % 1000 == 0 then file:write("not JSON\n")
    elseif i % 2 == 0 then file:write(q.json.encode({ prompt = s, completion = "one two " .. i % 7 }), "\n")
    else file:write(q.json.encode({ messages = { { role = "user", content = s }, { role = "assistant", content = "three" } } }), "\n") end
  end
  file:close()' || { echo "FAILED: no data"; exit 1; }
convert=("$QENG" "$recipe" --tokenizer tok)
bits() { sha256sum <"$1"; }
# The same but for the names of the inputs, which the meta data holds.
records() { "$QENG" -e 'local f = q.ndp.open(arg[1]); for i = 0, f:records() - 1, 500 do local t, m = f:read(i); print(table.concat(t, " "), table.concat(m, " ")) end; print(f:records())' "$1" | sha256sum; }

expect "help" 0 'usage: .*convert.lua' "$QENG" "$recipe" --help
expect "convert" 0 '59940 records.*60 bad .60: not JSON' "${convert[@]}" data.jsonl plain.qubgpu --dedupe
expect "bad lines" 0 'data.jsonl:1000: not JSON: .*left out' "${convert[@]}" data.jsonl plain.qubgpu
expect "verify" 0 'records' "$QENG" "$(dirname "$recipe")/inspect.lua" plain.qubgpu --verify
gzip -k data.jsonl
expect "gzip" 0 '59940 records' "${convert[@]}" data.jsonl.gz gz.qubgpu
[ "$(records plain.qubgpu)" = "$(records gz.qubgpu)" ] || fail "gzip gives other records"
if command -v zstd >/dev/null; then
  zstd -q data.jsonl
  expect "zstd" 0 '59940 records' "${convert[@]}" data.jsonl.zst zst.qubgpu
  [ "$(records plain.qubgpu)" = "$(records zst.qubgpu)" ] || fail "zstd gives other records"
else
  echo "SKIPPED zstd input: no zstd on this machine"
fi
expect "standard input" 0 '59940 records' "${convert[@]}" - stdin.qubgpu <data.jsonl
[ "$(records plain.qubgpu)" = "$(records stdin.qubgpu)" ] || fail "standard input gives other records"
head -n 30000 data.jsonl >a.jsonl && tail -n +30001 data.jsonl >b.jsonl
expect "two files" 0 '59940 records' "${convert[@]}" a.jsonl,b.jsonl two.qubgpu
[ "$(records plain.qubgpu)" = "$(records two.qubgpu)" ] || fail "two files give other records"
expect "standard input does not resume" 1 'cannot be resumed' "${convert[@]}" - stdin.qubgpu --resume <data.jsonl
truncate -s 20000 data.jsonl.gz
expect "cut off gzip" 1 'ends early' "${convert[@]}" - cut.qubgpu <data.jsonl.gz
expect "cut off gzip file" 1 'data.jsonl.gz: the gzip data ends early' "${convert[@]}" data.jsonl.gz cut.qubgpu
[ -e cut.qubgpu ] && fail "a cut off input gave a dataset"

# ---- plain text; what the summary says and shows; special tokens that texts spell
printf 'the cat sees\nthe dog\n\nand says <|im_end|>\n' >text.txt
expect "blank lines part a text" 0 'text.qubgpu: 2 records, .*; template: ChatML, special tokens in texts parsed$' "${convert[@]}" text.txt text.qubgpu
expect "a record is shown" 0 '^record 0, what is trained between >> and <<:$' "${convert[@]}" text.txt text.qubgpu
expect "a whole file" 0 ' 1 records.*, special tokens in texts taken as text$' "${convert[@]}" text.txt text.qubgpu --documents file --special text
expect "the trained part" 0 '^  >>three<.im_end.><<$' "${convert[@]}" a.jsonl shown.qubgpu
"$QENG" -e 'io.open("long.txt", "w"):write(("word "):rep(4000000))'
expect "one long document" 1 'long.txt:1: .*cut the text into documents by paragraph or line .--documents.' "${convert[@]}" long.txt long.qubgpu --documents file
expect "no folder" 1 'does not exist' "${convert[@]}" data.jsonl none/out.qubgpu

# ---- kills at random moments, then to the end
RANDOM=${QENG_SEED:-4711}
seconds() { date +%s.%N; }
for input in data.jsonl packed.jsonl.gz; do
  gzip -c data.jsonl >packed.jsonl.gz
  began=$(seconds)
  "${convert[@]}" $input straight.qubgpu --dedupe >/dev/null 2>&1 || fail "straight through"
  took=$(echo "$(seconds) - $began" | bc -l 2>/dev/null || echo 1)
  landed=0 resumed=0
  for kill in $(seq "${QENG_KILLS:-8}"); do
    "$QENG" "$recipe" $input killed.qubgpu --tokenizer tok --dedupe --checkpoint 0 --resume >log 2>&1 &
    sleep "$(awk -v t="$took" -v r=$RANDOM 'BEGIN { printf "%.3f", t * (0.05 + 0.75 * r / 32768) }')"
    kill -9 $! 2>/dev/null && landed=$((landed + 1))
    wait $! 2>/dev/null
    grep -q 'resumed after' log && resumed=$((resumed + 1))
    if [ -e killed.qubgpu ]; then  # it was faster than the kill
      [ "$(bits straight.qubgpu)" = "$(bits killed.qubgpu)" ] || fail "resumed after kill $kill of $input: other bits"
      rm -f killed.qubgpu
    fi
  done
  "${convert[@]}" $input killed.qubgpu --dedupe --resume >log 2>&1 || fail "resume after kills: $(cat log)"
  [ "$(bits straight.qubgpu)" = "$(bits killed.qubgpu)" ] || fail "killed and resumed differs from straight through ($input)"
  ls killed.qubgpu.* >/dev/null 2>&1 && fail "left over: $(ls killed.qubgpu.*)"
  rm -f killed.qubgpu
  echo "$input: $landed of ${QENG_KILLS:-8} kills met a running process, $resumed runs resumed"
  [ $landed -gt 0 ] || fail "no kill met a running process"
done

# ---- what a resume refuses, and Ctrl-C; of an input that takes longer than the fifth of a second in which Ctrl-C is noticed
for _ in 1 2 3 4 5 6; do cat data.jsonl; done >long.jsonl
"${convert[@]}" long.jsonl long.qubgpu >/dev/null 2>&1 || fail "long input"
stop_midway() {
  rm -f stopped.qubgpu stopped.qubgpu.*
  "$QENG" "$recipe" long.jsonl stopped.qubgpu --tokenizer tok --checkpoint 0 --threads 1 >log 2>&1 &
  local job=$!
  for _ in $(seq 500); do [ -e stopped.qubgpu.partial.journal ] && break; sleep 0.01; done
  kill "-$1" $job
  wait $job
  status=$?
}
stop_midway INT
[ $status = 130 ] || fail "Ctrl-C: exit status $status: $(cat log)"
grep -q 'can be resumed (--resume)' log || fail "Ctrl-C: no word of --resume: $(cat log)"
[ -e stopped.qubgpu ] && fail "Ctrl-C left a dataset"
expect "other options" 1 'another dedupe: false, now true' "${convert[@]}" long.jsonl stopped.qubgpu --resume --dedupe
expect "other special tokens" 1 'another (special|meta|renderer): .*"parse".*, now .*"text"' "${convert[@]}" long.jsonl stopped.qubgpu --resume --special text
cp long.jsonl other.jsonl && echo '{"text": "more"}' >>long.jsonl
expect "other input" 1 'another inputs' "${convert[@]}" long.jsonl stopped.qubgpu --resume
mv other.jsonl long.jsonl
expect "resume after Ctrl-C" 0 'resumed after .* records' "${convert[@]}" long.jsonl stopped.qubgpu --resume
[ "$(bits long.qubgpu)" = "$(bits stopped.qubgpu)" ] || fail "resumed after Ctrl-C: other bits"
stop_midway TERM
[ $status = 143 ] || fail "SIGTERM: exit status $status: $(cat log)"
expect "resume after SIGTERM" 0 'resumed after .* records' "${convert[@]}" long.jsonl stopped.qubgpu --resume
[ "$(bits long.qubgpu)" = "$(bits stopped.qubgpu)" ] || fail "resumed after SIGTERM: other bits"
stop_midway KILL
expect "replaced" 0 'is replaced' "${convert[@]}" long.jsonl stopped.qubgpu
[ "$(bits long.qubgpu)" = "$(bits stopped.qubgpu)" ] || fail "replaced: other bits"
expect "nothing to resume" 0 'nothing to resume' "${convert[@]}" long.jsonl stopped.qubgpu --resume
stop_midway KILL
printf 'x' | dd of=stopped.qubgpu.partial bs=1 seek=5000 conv=notrunc status=none
expect "damaged partial file" 1 'not what its journal says' "${convert[@]}" long.jsonl stopped.qubgpu --resume

[ $failures = 0 ] && echo "convert transcripts: ok"
exit $failures
