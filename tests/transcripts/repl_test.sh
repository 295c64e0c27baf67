#!/bin/bash
# A session at the prompt of the real executable ($QENG): load, look, hook, plot, write a loss, differentiate, step by
# hand, interrupt a run, continue it, save. And many expressions, which leave no memory behind.
set -u
QENG=$(realpath "${QENG:-build/release/qeng}")
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT
export QENG_HISTORY=$work/history
failures=0
fail() { echo "FAILED $*"; failures=$((failures + 1)); }

"$QENG" tests/lua/small_model.lua "$work" > /dev/null || { echo "FAILED: no model"; exit 1; }

# ---- 30 lines; the process sends itself what Ctrl-C would
cat > "$work/session" <<L
model = q.load("$work/model")
model.tokenizer
ids = model.tokenizer:encode "the cat"
logits = model:logits "the cat"
logits:shape()
logits:top(3)
logits:describe()
seen = model:activations "the cat"
seen["layers.0.attn"]:shape()
model:hook("layers.0.mlp", function(x) norm = x:norm():item() end)
plain = model:logits("the cat"):hash()
norm > 0
model:hook("layers.0.mlp", function(x) return 0 * x end)
plain ~= model:logits("the cat"):hash()
model:hook("layers.0.mlp", nil)
plain == model:logits("the cat"):hash()
q.plot(seen.norm:reshape { seen.norm:elements() }, { kind = "hist", width = 40, bins = 40, height = 4 })
w = q.tensor { 1, -2, 3 }
w:requires_grad(true)
function loss() return ((w - 1) ^ 2):mean() end
function step() loss():backward() q.no_grad(function() w:set(w - 0.3 * w:grad()) w:grad():fill(0) end) end
for i = 1, 3 do step() end
loss():item() < 2
w
data = q.packets("$work/data.jsonl", { tokenizer = model.tokenizer, cache_dir = "$work" })
function train(out, at) q.seed(1) local m = q.load("$work/model"):lora { rank = 2, seed = 1 } local adamw = q.adamw(m:trainable(), { lr = 1e-3 }) local r = q.run { model = m, data = data, out = "$work/" .. out, optimizer = adamw, row_tokens = 64, steps = 5, seed = 1, eval_share = 0.1, eval_every = 2 } for i, batch in r:steps() do local l = m:loss(batch) l:backward() adamw:step { clip = 1 } if i + 1 == at then raise(2) end r:log { loss = l } end return m end
ffi = require "ffi"; ffi.cdef "int raise(int signal);"; raise = ffi.C.raise
whole = train("whole"); whole:save_adapter("$work/a")
after = "nothing"; parted = train("parted", 2); parted:save_adapter("$work/b"); after = "went on"
after, parted, run
w + 1, q.seed(99)
run:continue()
after
run:continue()
q.save("$work/w.safetensors", { w = w })
q.load_tensors("$work/w.safetensors").w:hash() == w:hash()
L
"$QENG" < "$work/session" > "$work/out" 2> "$work/err" || fail "session: status $?: $(cat "$work/err")"
grep -q 'FAILED' "$work/out" && fail "session"
shows() { grep -qE -- "$1" "$work/out" || fail "session: no '$1' in: $(cat "$work/out" "$work/err")"; }
told() { grep -qE -- "$1" "$work/err" || fail "session: no '$1' on stderr: $(cat "$work/err")"; }
shows '^Tokenizer '
shows '^ +[0-9]+  0\.[0-9]{4}  "'
shows '^  mean, std '
shows '█'
shows '^f32 \[3\]  \['
shows '^nothing	nil	Run in .*/parted: step 2 of 5'
shows '^went on$'
told 'interrupted after step 2 of 5; run:continue\(\) goes on'
told 'run:continue\(\): it is not interrupted'
[ "$(grep -c '^true$' "$work/out")" = 6 ] || fail "session: six lines of true expected: $(cat "$work/out")"
cmp -s "$work/a/adapter_model.safetensors" "$work/b/adapter_model.safetensors" || fail "a run that was continued has other bits"
bits() { grep -oE '"(step|loss|eval_loss|grad_norm|lr)":[^,}]*' "$work/$1/metrics.jsonl"; }
[ "$(bits whole)" = "$(bits parted)" ] || fail "metrics of a run that was continued: $(diff <(bits whole) <(bits parted))"

# ---- memory: EXPRESSIONS lines, half of which make tensors; resident memory after a tenth and at the end
count=${EXPRESSIONS:-200000}  # a million by hand
{
  echo 'function resident() return tonumber(io.open("/proc/self/status"):read("*a"):match("VmRSS:%s*(%d+)")) end'
  echo 'x, y = q.randn { 8 }, q.zeros { 8 }'
  lines() { for ((i = 0; i < $1 / 1000; ++i)); do cat "$work/thousand"; done; }
  for ((i = 0; i < 250; ++i)); do printf '%s\n' 'x + y' 'y = x * 0.5' '(x - y):mean():item()' 'z = y:table()[1]'; done > "$work/thousand"
  lines $((count / 10))
  echo 'first = resident()'
  lines $((count - count / 10))
  echo 'q.host.hash(""), "grown by", resident() - first'
} | "$QENG" 2>&1 | tail -1 > "$work/out"
grown=$(sed -n 's/.*grown by\t//p' "$work/out")
[ -n "$grown" ] && [ "$grown" -lt $((count / 250)) ] || fail "$count expressions: resident memory grew by '$grown' kB: $(cat "$work/out")"

[ $failures = 0 ] && echo "repl: ok, $count expressions, resident memory $grown kB more"
exit $((failures > 0))
