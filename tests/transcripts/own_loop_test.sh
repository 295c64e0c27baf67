#!/bin/bash
# recipes/own_loop.lua by the real executable ($QENG): a loop in a page trains to the bits of q.train; killed or
# interrupted within any step and resumed, to the same. What a page does wrong is told.
set -u
QENG=$(realpath "${QENG:-build/release/qeng}")
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT
failures=0
fail() { echo "FAILED $*"; failures=$((failures + 1)); }

"$QENG" tests/lua/small_model.lua "$work" || { echo "FAILED: no model"; exit 1; }
given=(--model "$work/model" --data "$work/data.jsonl" --steps 6 --seed 3 --threads 1)
bits() {
  local out=$work/$1
  cat "$out/adapter/adapter_model.safetensors" <(grep -oE '"(loss|eval_loss|grad_norm|lr)":[^,}]*' "$out/metrics.jsonl") | sha256sum
}
run() { "$QENG" "$@" >"$work/log" 2>&1; }
works() { local name=$1; shift; run "$@" || fail "$name: $(cat "$work/log")"; }
told() { grep -qE -- "$2" "$work/log" || fail "$1: no '$2' in: $(cat "$work/log")"; }

# The recipe, which a signal meets in step AT, before that is logged.
cat >"$work/struck.lua" <<'L'
local ffi = require "ffi"
ffi.cdef "int raise(int signal);"
local Run = require("qeng.train.run").Run
local log, at, signal = Run.log, tonumber(os.getenv "AT"), tonumber(os.getenv "SIGNAL")
function Run.log(run, figures)
  if run.state.step + 1 == at then ffi.C.raise(signal) end
  log(run, figures)
end
dofile "recipes/own_loop.lua"
L

works "the recipe" recipes/own_loop.lua "${given[@]}" --out "$work/whole"
works "q.train" recipes/lora_qwen.lua "${given[@]}" --lr 3e-3 --warmup 10 --eval-share 0.02 --eval-every 100 --out "$work/train"
[ "$(bits whole)" = "$(bits train)" ] || fail "the loop in a page and q.train differ"
grep -q 'Finished: step 6 of 6' "$work/whole/report.html" || fail "the report does not say that the run is over"

for case in "9 137 1" "9 137 3" "2 130 3"; do
  read -r signal status every <<<"$case"
  out=$work/struck_${signal}_$every
  for at in 1 2 3 4 5 6; do
    AT=$at SIGNAL=$signal run "$work/struck.lua" "${given[@]}" --save-every "$every" --resume --out "$out"
    got=$?
    [ "$signal$at" = 26 ] || [ $got = "$status" ] || fail "signal $signal in step $at: status $got: $(cat "$work/log")"
    if [ "$signal" = 2 ] && [ $at != 6 ]; then
      told "Ctrl-C in step $at" "stopped after step $at; the checkpoint is in .*; go on with --resume"
      grep -q "Stopped after step $at of 6; --resume goes on" "$out/report.html" || fail "Ctrl-C in step $at: the report"
    fi
  done
  works "resumed" recipes/own_loop.lua "${given[@]}" --save-every "$every" --resume --out "$out"
  [ "$(bits whole)" = "$(bits "struck_${signal}_$every")" ] || fail "signal $signal, checkpoints every $every: other bits"
done 2>/dev/null
run recipes/own_loop.lua "${given[@]}" --rank 4 --resume --out "$work/whole" && fail "another rank is not refused"
told "another rank" 'has rank 16, this one 4; give the same'

# ---- pages that are wrong, and micro-batches
cat >"$work/page.lua" <<'L'
local q = require "qeng"
q.device { threads = 1 }
local work = arg[1]
local data = q.packets(work .. "/data.qubgpu", {})
local function run(page, more)
  local model = q.load(work .. "/model"):lora { rank = 2, seed = 1 }
  local opt = { model = model, data = data, out = work .. "/page", seed = 1, row_tokens = 64, steps = 3,
    overwrite = true, optimizer = q.adamw(model:trainable(), { lr = 1e-3 }) }
  for name, value in pairs(more or {}) do opt[name] = value end
  return q.try(function() return page(q.run(opt), model, opt.optimizer) or true end)
end
local function refused(text, page, more)
  local ok, err = run(page, more)
  assert(not ok and err.message:find(text, 1, true), tostring(err and err.message))
  q.host.defer_interrupt(false)
end
local function unlogged(r, model)
  for _, batch in r:steps() do model:loss(batch):backward() end
end
refused("did not end with run:log", unlogged)
refused("a step of this run is 2 micro-batches", unlogged, { accumulate = 2 })
refused("which optimizer?", function(r) r.optimizer = nil for _ in r:steps() do end end)

local result = assert(run(function(r, model, adamw)
  for step, batch in r:steps() do
    for part in batch:parts() do model:loss(part):backward() end
    adamw:step { lr = 1e-2 / (step + 1) }
    r:log { loss = 0.5, mine = step }
    if step == 1 then break end
  end
  return r:finish()
end, { accumulate = 2 }))
local row = result.metrics[2]
assert(result.steps == 2 and row.mine == 1 and row.lr == 5e-3 and row.grad_norm > 0)
print "pages: ok"
L
works "convert" recipes/convert.lua "$work/data.jsonl" "$work/data.qubgpu" --tokenizer "$work/model"
works "pages" "$work/page.lua" "$work"

# ---- without arguments
works "the demo" recipes/own_loop.lua --steps 30 --out "$work/demo"
told "the demo" 'held-out loss 8\..* before, [0-3]\..* after'

[ $failures = 0 ] && echo "own loop: ok"
exit $((failures > 0))
