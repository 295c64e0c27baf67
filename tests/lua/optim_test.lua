-- Optimizers in Lua: their steps are PyTorch's (tests/golden/optim_golden.py), on f32 and on bf16 parameters; clipping,
-- steps that are skipped, checkpoints, and what is refused.
local q = require "qeng"
local scratch = require "scratch"
local refused = scratch.refused

q.device { device = os.getenv "QENG_TEST_DEVICE" or "cpu" }

local golden = q.json.decode(q.fs.read "tests/golden/optim.json")
local order = { "wide", "tall", "bias" }

local values = require("golden").flat
local function text(t) return table.concat(values(t), " ") end

local function parameters(dtype)
  local list = {}
  for i, name in ipairs(order) do
    local tensor = q.zeros(golden.shapes[name]):set(golden.start[name])
    if dtype then tensor = q.keep(tensor:to(dtype)) end
    tensor:requires_grad(true)
    list[i] = { name = name, tensor = tensor }
  end
  return list
end
local function give(list, step)
  for _, each in ipairs(list) do
    local loss = (each.tensor * q.zeros(each.tensor:shape()):set(golden.gradients[step][each.name])):sum()
    loss:backward()
  end
end

local cases = {
  sgd = { "sgd", { momentum = 0.9 } }, nesterov = { "sgd", { momentum = 0.9, nesterov = true } },
  lion = { "lion", { decay = 0.1 } }, muon = { "muon", { decay = 0.1 } }, adafactor = { "adafactor", {} },
  clipped = { "sgd", { momentum = 0 }, 1.0 },
}
local worst = 0
for case, after in pairs(golden.after) do
  local which = cases[case]
  local list = parameters()
  which[2].lr = function() return golden.lr end
  local optimizer = q.optim[which[1]](list, which[2])
  for step = 1, #golden.gradients do
    q.scope(function()
      give(list, step)
      local last = optimizer:step { clip = which[3] }
      assert(not last.skipped and last.grad_norm > 1)
    end)
    for _, each in ipairs(list) do assert(each.tensor:grad():norm():item() == 0) end
  end
  for _, each in ipairs(list) do
    for i, v in ipairs(values(each.tensor)) do
      local off = math.abs(v - after[each.name][i])
      worst = math.max(worst, off)
      assert(off < 2e-5, ("%s, %s[%d]: %.8g, expected %.8g"):format(case, each.name, i, v, after[each.name][i]))
    end
  end
end
print(("six runs of four steps, furthest off: %.1e"):format(worst))

-- A run that is stopped, saved and restored goes on to the same bits; a bf16 parameter learns in f32.
local names = order
for _, kind in ipairs { "sgd", "lion", "muon", "adafactor" } do
  local function run(list, optimizer, from, to)
    for step = from, to do
      q.scope(function()
        give(list, step)
        optimizer:step { lr = 1e-3, clip = 1 }
      end)
    end
  end
  local whole, part = parameters "bf16", parameters "bf16"
  local optimizer = q.optim[kind](whole, {})
  run(whole, optimizer, 1, 4)
  local first = q.optim[kind](part, {})
  run(part, first, 1, 2)
  local tensors, steps = first:state(names)
  local path = scratch.at(kind .. ".safetensors")
  q.safetensors.save(path, tensors)
  local again = q.optim[kind](part, {})
  local file = q.safetensors.open(path)
  again:restore(file, names, steps)
  file:close()
  run(part, again, 3, 4)
  for i, each in ipairs(whole) do assert(text(each.tensor) == text(part[i].tensor), kind) end
  local ok, err = pcall(function()
    local other = q.safetensors.open(path)
    q.optim[kind == "lion" and "sgd" or "lion"](part, {}):restore(other, names, steps)
  end)
  assert(not ok and err.message:find("the run was started with other options", 1, true), err.message)
end

do  -- a step whose gradient is no number changes nothing, and says so
  local list = parameters()
  local optimizer = q.optim.lion(list, { lr = 0.1 })
  give(list, 1)
  optimizer:step()
  local before = text(list[1].tensor)
  give(list, 2)
  list[2].tensor:grad():fill(0 / 0)
  assert(optimizer:step().skipped and text(list[1].tensor) == before and optimizer.steps == 1)
  assert(list[2].tensor:grad():norm():item() == 0)
end
do  -- an optimizer of one's own; parameters that nothing reaches
  local signs = q.optim.define("signs", {}, function(p) p:move(p.g:sign()) end)
  local list = parameters()
  local optimizer = signs(list, { lr = 0.5 })
  refused("signs: no gradient reached wide", optimizer.step, optimizer)
  give(list, 1)
  optimizer:step()
  assert(math.abs(values(list[3].tensor)[1] - golden.start.bias[1]) == 0.5 or
    math.abs(math.abs(values(list[3].tensor)[1] - golden.start.bias[1]) - 0.5) < 1e-6)
  refused("which only q.adamw does", optimizer.step, optimizer, { groups = { 0 } })
  refused("signs: there is no option beta", signs, list, { beta = 1 })
  refused("signs: no parameter requires a gradient", signs, {}, {})
  refused("requires no gradient", signs, { q.zeros { 2 } }, {})
  local idle = signs(list, {})
  give(list, 2)
  refused("signs: which lr?", idle.step, idle)
end
do  -- a rule that sets p.w itself trains a bf16 parameter too
  local w = q.keep(q.tensor({ 1, 2 }, "bf16"))
  w:requires_grad(true)
  local plain = q.optim.define("plain", {}, function(p) p.w:set(p.w - p.lr * p.g) end)({ w }, { lr = 0.5 })
  for _ = 1, 2 do
    (w:to "f32" * 0.5):sum():backward()
    plain:step()
  end
  assert(text(w) == "0.5 1.5", text(w))
end
do  -- a run of before there was a choice goes on with adamw alone
  local differences = require("qeng.train.resume").differences
  assert(#differences({ rank = 1 }, { rank = 1, optim = "adamw" }) == 0 and #differences({ optim = "adamw" }, {}) == 0)
  assert(differences({ rank = 1 }, { rank = 1, optim = "lion" })[1] == "optim")
end
print "ok"
