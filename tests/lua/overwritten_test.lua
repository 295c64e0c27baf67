-- Writing to tensors that others have read: expressions that are pending keep their values, however it is written, and
-- a gradient that needs overwritten values is refused.
local q = require "qeng"

q.device { device = os.getenv "QENG_TEST_DEVICE" or "cpu" }

local function values(t)
  local list = {}
  for _, row in ipairs(t:table()) do list[#list + 1] = type(row) == "table" and table.concat(row, " ") or row end
  return table.concat(list, " ")
end
local function refused(text, fn, ...)
  local ok, err = pcall(fn, ...)
  assert(not ok and tostring(err.message):find(text, 1, true), ok and "no error" or err.message)
end

local x, w = q.tensor { 1, 2 }, q.tensor { { 1, 2 }, { 3, 4 } }
local doubled, has_view, view = x * 2, pcall(x.view, x)
if has_view then view[0] = 10 else x:set { 10 } end
assert(values(doubled) == "2 4" and values(x) == "10 2")
w:requires_grad(true)
local adam, scratch = q.adamw_state { w }, q.zeros { 2, 2 }
for _, write in ipairs {
  function(t) t:set(t - 1) end, function(t) t:set { 5 } end, function(t) t:fill(2) end, function(t) t[1] = 7 end,
  function(t) t:copy(scratch) end, function(t) if has_view then t:view()[3] = 7 else t:fill(3) end end,
  function(t) if t == w then adam:step { lr = 0.1 } else t:fill(4) end end,
} do
  for _, written in ipairs { w, q.randn { 2, 2 } } do
    local y = q.linear(written, w):square():sum():compute()
    q.no_grad(write, written)
    refused("was written to after", y.backward, y)
    q.linear(written, w):sum():backward()
  end
end

-- Nor by a program, whichever run it is. A step of another expression is refused then, also as a part of a third one.
local v = q.tensor { 4, 4 }
local program = q.capture(function() v:set(v - 1) end)
for n = 4, 2, -1 do
  local unread, step = v * v, v * 2
  local whole = step + 1
  program:run()
  assert(v:at(0) == n - 1 and unread:at(0) == n * n and whole:at(0) == 2 * n + 1)
  for _, read in ipairs { step.table, step.sum, step.exp } do refused("was a step of another", read, step) end
end
-- Not of what is not written to, where an optimizer's program is captured as well.
w:grad():fill(0)
local first = q.adamw_state { w }
local doubles = v * 2
local of_w = w * 1
local cost = (of_w + doubles):sum()
cost:backward()
first:step { lr = 0.1 }
assert((doubles + 1):at(0) == 3)
refused("was a step of another", of_w.exp, of_w)

-- Not of a group that is not stepped.
local moved, stays = q.zeros { 2 }, q.randn { 2 }
moved:requires_grad(true)
stays:requires_grad(true)
local apart = q.adamw_state({ moved, stays }, { groups = { 0, 1 }, allow_unused = true })
moved:sum():backward()
local of_it = stays:square():sum():compute()
apart:step { lr = 0.1, groups = { 0 } }
of_it:backward()

-- Not where the gradient needs no value, and not for gradients, or what a checkpoint writes for itself.
local function scaled(h)
  q.no_grad(scratch.set, scratch, 3)
  return h * scratch
end
local a = w * 2
local loss = (q.checkpoint("one", scaled, a) + q.checkpoint("two", scaled, a) + (a - w + 1)):sum():compute()
q.no_grad(w.set, w, 1)
w:grad():fill(0)
loss:backward()
assert(values(w:grad()) == "13 13 13 13", values(w:grad()))
print "overwritten: ok"
