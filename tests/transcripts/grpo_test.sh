#!/bin/bash
# recipes/grpo.lua by the real executable ($QENG): the built-in model learns what a reward asks for; the same bits again;
# rewards of the library; what is refused.
set -u
QENG=$(realpath "${QENG:-build/release/qeng}")
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT
failures=0
fail() { echo "FAILED $*"; failures=$((failures + 1)); }

printf '{"prompt":"Where is the hat?"}\n{"prompt":"Where is Petra?"}\n' >"$work/prompts.jsonl"
echo 'return function(_, text) return select(2, text:gsub("o", "")) / math.max(1, #text) end' >"$work/reward.lua"
run() {
  local out=$1
  shift
  "$QENG" recipes/grpo.lua --model recipes/tiny --data "$work/prompts.jsonl" --out "$work/$out" --steps 30 --prompts 2 \
    --max-tokens 20 --lr 2e-3 --dtype f32 --device cpu --threads 1 --reward "$work/reward.lua" "$@" >"$work/log" 2>&1
}
mean() { sed -n "$2p" "$work/$1/metrics.jsonl" | sed -E 's/.*"reward":([0-9.e-]+).*/\1/' | awk '{ s += $1 } END { print s / NR }'; }
run first || fail "the run: $(cat "$work/log")"
echo "mean reward: $(mean first 1,5) in the first five steps, $(mean first 26,30) in the last five"
awk "BEGIN { exit !($(mean first 26,30) > 2 * $(mean first 1,5)) }" || fail "the reward does not double"
[ "$(wc -l <"$work/first/samples.jsonl")" = 480 ] || fail "samples.jsonl"
run second || fail "the run again: $(cat "$work/log")"
cmp "$work/first/adapter/adapter_model.safetensors" "$work/second/adapter/adapter_model.safetensors" || fail "other bits"
run second --steps 1 || fail "the folder of a run that ended: $(cat "$work/log")"
[ "$(wc -l <"$work/second/earlier-1/samples.jsonl")" = 480 ] || fail "samples.jsonl of an earlier run is not kept"
[ -d "$work/second/earlier-1/adapter" ] || fail "the adapter of an earlier run is not kept"
run exact --reward exact && fail "records without answers are taken"
grep -q "reward exact: a record has no answer" "$work/log" || fail "of records without answers: $(cat "$work/log")"
run nothing --reward "$work/prompts.jsonl" && fail "a reward that is no Lua is taken"

cat >"$work/rewards.lua" <<'L'
local q = require "qeng"
local tokenizer = q.tokenizer "recipes/tiny"
local r = q.rewards
assert(r.exact({ answer = "Oslo" }, " Oslo\n") == 1 and r.exact({ answer = "Oslo" }, "In Oslo") == 0)
local schema = q.json.decode '{"type":"object","properties":{"n":{"type":"integer"}},"required":["n"]}'
assert(r.json({ schema = schema }, '{"n": 7}', tokenizer) == 1)
assert(r.json({ schema = schema }, '{"n": "7"}', tokenizer) == 0 and r.json({ schema = schema }, '{"n": 7', tokenizer) == 0)
local test = "return double(4) == 8"
assert(r.code({ test = test }, "```lua\nfunction double(x) return 2 * x end\n```") == 1)
assert(r.code({ test = test }, "function double(x) return x end") == 0 and r.code({ test = test }, "while true do end") == 0)
assert(r.code({ test = test }, "os.exit(0)") == 0)
L
"$QENG" "$work/rewards.lua" || fail "rewards"

[ $failures = 0 ] || { echo "$failures failures"; exit 1; }
echo "all passed"
