#!/bin/bash
# recipes/preference.lua by the real executable ($QENG) on the built-in model, which then prefers what was chosen also
# for questions that it has not seen; the same bits again; what is refused.
set -u
. "$(dirname "$0")/stopped.sh"
QENG=$(realpath "${QENG:-build/release/qeng}")
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT
failures=0
fail() { echo "FAILED $*"; failures=$((failures + 1)); }

cat >"$work/make.lua" <<'L'
local q = require "qeng"
local things, places = { "brush", "hat", "ladder", "kettle" }, { "Oslo", "Porto", "Quito", "Lima" }
local seen, unseen = {}, {}
for i = 0, 23 do
  local thing, place = things[i % 4 + 1], places[math.floor(i / 4) % 4 + 1]
  table.insert(i % 3 == 2 and unseen or seen, q.json.encode {
    prompt = ("Where is the %s of %s?"):format(thing, place), chosen = "It is in " .. place .. ".",
    rejected = "Perhaps not in " .. place .. ".",
  })
end
q.fs.write(arg[1] .. "/seen.jsonl", table.concat(seen, "\n"))
q.fs.write(arg[1] .. "/unseen.jsonl", table.concat(unseen, "\n"))
L
cat >"$work/margin.lua" <<'L'
local q = require "qeng"
q.device { device = "cpu", threads = 1 }
local model = q.load("recipes/tiny", { dtype = "f32" })
if arg[2] then model:load_adapter(arg[2]) end
local set = q.preferences(arg[1] .. "/unseen.jsonl", model.tokenizer)
local packed = set:take(0, #set)
local sums = q.no_grad(function() return packed:sums(model:logprobs(packed)):compute() end)
print(("%.3f"):format((sums:slice(1, 0, nil, 2) - sums:slice(1, 1, nil, 2)):mean():item()))
L
"$QENG" "$work/make.lua" "$work" || fail "making the pairs"
before=$("$QENG" "$work/margin.lua" "$work") || fail "the margin before"
train() {
  ${EXEC:-} "$QENG" recipes/preference.lua --model recipes/tiny --data "$work/seen.jsonl" --steps 30 --lr 2e-3 --dtype f32 \
    --device cpu --threads 1 "$@" >"$work/log" 2>&1
}
for loss in dpo orpo kto; do
  train --loss $loss --out "$work/$loss" || fail "$loss: $(cat "$work/log")"
  after=$("$QENG" "$work/margin.lua" "$work" "$work/$loss/adapter") || fail "$loss: the margin after"
  echo "$loss: margin of unseen pairs $before before, $after after"
  awk "BEGIN { exit !($after > $before + 3) }" || fail "$loss: the margin does not grow"
  [ "$(wc -l <"$work/$loss/metrics.jsonl")" = 30 ] || fail "$loss: metrics.jsonl"
done
train --loss dpo --out "$work/again" || fail "dpo again"
cmp "$work/dpo/adapter/adapter_model.safetensors" "$work/again/adapter/adapter_model.safetensors" || fail "other bits"
train --loss dpo --out "$work/short" --max-tokens 3 && fail "pairs that are too long are taken"
grep -q "no pair of at most 3 tokens" "$work/log" || fail "of pairs that are too long: $(cat "$work/log")"
train --loss kto --pairs 1 --out "$work/short" && fail "KTO takes pairs alone"
grep -q "takes --pairs 2 or more" "$work/log" || fail "of pairs alone: $(cat "$work/log")"
train --loss orpo --smoothing 0.1 --out "$work/short" && fail "ORPO takes a smoothing"
grep -q -- "--smoothing goes with --loss dpo" "$work/log" || fail "of a smoothing: $(cat "$work/log")"
train --loss dpo --out "$work/dpo" --rank 4 || fail "a folder of a run that ended: $(cat "$work/log")"
for name in checkpoints adapter; do
  [ -d "$work/dpo/earlier-1/$name" ] || fail "$name of an earlier run is not moved away"
done

# Stopped after some steps, it goes on to the same bits.
stopped "$work/stop" train --loss dpo --out "$work/stop" && fail "a stopped run ends well"
grep -q "go on with --resume" "$work/log" || fail "of a stopped run: $(cat "$work/log")"
train --loss dpo --out "$work/stop" && fail "a stopped run is begun anew without a word"
train --loss dpo --out "$work/stop" --resume --beta 0.2 && fail "a run is resumed with another beta"
grep -q "has beta 0.1, this one 0.2" "$work/log" || fail "of another beta: $(cat "$work/log")"
train --loss dpo --out "$work/stop" --resume || fail "resumed: $(cat "$work/log")"
cmp "$work/again/adapter/adapter_model.safetensors" "$work/stop/adapter/adapter_model.safetensors" || fail "other bits when resumed"
[ "$(wc -l <"$work/stop/metrics.jsonl")" = 30 ] || fail "metrics.jsonl of the resumed run"

[ $failures = 0 ] || { echo "$failures failures"; exit 1; }
echo "all passed"
