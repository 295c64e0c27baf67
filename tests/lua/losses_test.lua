-- Losses in Lua and their gradients are PyTorch's (tests/golden/losses_golden.py); token_nll is the log_softmax of all
-- logits.
local flat = require("golden").flat
local q = require "qeng"

q.device { device = os.getenv "QENG_TEST_DEVICE" or "cpu" }

local golden = q.json.decode(q.fs.read "tests/golden/losses.json")
local targets = q.tensor(golden.targets, "i32")
local weight, good = q.tensor(golden.weight), q.tensor(golden.good):gt(0.5)
local L = q.losses
local cases = {
  cross_entropy = function(x) return L.cross_entropy(x.logits, targets) end,
  smoothed = function(x) return L.cross_entropy(x.logits, targets, { smoothing = 0.1 }) end,
  z = function(x) return L.cross_entropy(x.logits, targets, { z = 1e-2 }) end,
  dpo = function(x) return (L.dpo(x.chosen, x.rejected, x.reference_chosen, x.reference_rejected)) end,
  dpo_smoothed = function(x)
    return (L.dpo(x.chosen, x.rejected, x.reference_chosen, x.reference_rejected, { smoothing = 0.2 }))
  end,
  orpo = function(x) return (L.orpo(x.likely, x.unlikely, { beta = 0.2 })) end,
  kto = function(x) return (L.kto(x.chosen, x.reference_chosen, good, { kl = 0.3, unwanted = 1.5 })) end,
  distill = function(x) return L.distill(x.logits, x.teacher) end,
  distill_soft = function(x) return L.distill(x.logits, x.teacher, { temperature = 2, weight = weight }) end,
  distill_top = function(x) return L.distill(x.logits, x.teacher, { temperature = 1.5, top = 3 }) end,
}
local worst = 0
local function near(got, want, what)
  local off = math.abs(got - want) / (1 + math.abs(want))
  worst = math.max(worst, off)
  assert(off < 5e-6, ("%s: %.8g, expected %.8g"):format(what, got, want))
end
local count = 0
for name, want in pairs(golden.cases) do
  local x = {}
  for input, values in pairs(golden.inputs) do
    x[input] = q.tensor(values)
    x[input]:requires_grad(true)
  end
  local loss = cases[name](x)
  near(loss:item(), want.loss, name)
  loss:backward()
  for input in pairs(golden.inputs) do
    local grad = flat(x[input]:grad())
    for i, v in ipairs(grad) do
      near(v, want.gradients[input] and want.gradients[input][i] or 0, ("%s, gradient of %s"):format(name, input))
    end
  end
  count = count + 1
end
print(("%d losses and their gradients, furthest off: %.1e"):format(count, worst))

do  -- the nll of tokens, and its gradient under any weights, also recomputed
  local h, w = q.randn({ 7, 16 }, { seed = 1 }), q.randn({ 33, 16 }, { seed = 2 })
  local at = q.tensor({ 3, -1, 32, 0, 5, 5, -1 }, "i32")
  local coefficient = q.randn({ 7 }, { seed = 3 })
  h:requires_grad(true)
  local function slopes(f)
    h:grad():fill(0)
    local loss = (f(h * 1) * coefficient):sum()
    loss:backward()
    return flat(h:grad()), loss:item()
  end
  local function plain(x)
    local log_p = q.linear(x, w):log_softmax()
    return -q.where(at:unsqueeze(2):eq(q.arange(33)), log_p, 0):sum(-1)
  end
  local got, loss = slopes(function(x) return q.token_nll(x, w, at) end)
  local again = slopes(function(x) return q.checkpoint("head", function(y) return q.token_nll(y, w, at) end, x) end)
  local want, expected = slopes(plain)
  near(loss, expected, "token_nll")
  for i, v in ipairs(want) do
    near(got[i], v, "token_nll: gradient")
    assert(again[i] == got[i])
  end
  w:requires_grad(true)
  local ok, err = pcall(q.token_nll, h, w, at)
  assert(not ok and err.message:find "the head is trained")
  ok, err = pcall(L.dpo, 1, 1, 1, 1, { betta = 1 })
  assert(not ok and err.message == "losses.dpo: there is no option betta")
end
do  -- a target that is no class is refused, also where a program is run again
  local logits, at = q.randn { 3, 5 }, q.tensor({ 4, -1, 0 }, "i32")
  local program, loss = q.capture(function() return L.cross_entropy(logits, at) end)
  program:run()
  assert(loss:item() == L.cross_entropy(logits, at):item())
  for _, wrong in ipairs { 5, -2 } do
    at:set { 4, -1, wrong }
    for _, fn in ipairs { function() program:run() return loss:item() end,
        function() return L.cross_entropy(logits, at):item() end } do
      local ok, err = pcall(fn)
      assert(not ok and err.message:find("index " .. wrong .. " ", 1, true) and err.message:find "outside %[0, 5%)")
    end
  end
end
print "ok"
