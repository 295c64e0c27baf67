-- q.loop: a loop that is stopped goes on to the same bits; what is not the same run is refused; steps that are not
-- finite are said.
package.path = (arg[0]:match "^(.*/)" or "./") .. "?.lua;" .. package.path
local ffi = require "ffi"
local q = require "qeng"
local scratch = require "scratch"
q.device { device = "cpu", threads = 1 }
ffi.cdef "int raise(int signal);"

-- The bits of w after `steps`; stop: the step after which Ctrl-C comes. factor(step): of the loss.
local function train(name, opt, stop, factor)
  local w = q.randn({ 4, 3 }, { seed = 1 })
  w:requires_grad(true)
  local parameters = { { name = "w", tensor = w } }
  local adamw = q.adamw(parameters, { lr = q.constant(0.1) })
  local run = q.loop { out = scratch.at(name), steps = opt.steps or 6, optimizer = adamw, parameters = parameters,
    settings = { width = opt.width or 3, lr = 0.1, data = opt.data }, save_every = 2, resume = opt.resume,
    overwrite = opt.overwrite }
  for step in run:steps() do
    q.scope(function()
      local moved = q.dropout(w * q.randn({ 3 }, { seed = step }), 0.25)
      local loss = moved:square():sum() * (factor and factor(step) or 1)
      loss:backward()
      adamw:step { clip = 1 }
      if step + 1 == stop then ffi.C.raise(2) end
      run:log { loss = loss }
    end)
  end
  return w:hash(4)
end

local whole = train("whole", {})
assert(train("again", {}) == whole)
local err = select(2, pcall(train, "stopped", {}, 3))
assert(err.code == "interrupted" and err.message:find "go on with %-%-resume", tostring(err))
scratch.refused("is a run that stood at step", train, "stopped", {})
scratch.refused("has width 3, this one 4; give the same", train, "stopped", { resume = true, width = 4 })
scratch.refused("beyond the 1 steps asked for", train, "stopped", { resume = true, steps = 1 })
assert(train("stopped", { resume = true }) == whole, "a resumed loop has other bits")
local lines = select(2, q.fs.read(scratch.at "stopped/metrics.jsonl"):gsub("\n", ""))
assert(lines == 6, lines .. " lines of metrics")

local data = scratch.at "data.jsonl"
q.fs.write(data, "{}")
assert(not pcall(train, "other", { data = data }, 3))
q.fs.write(data, "[]")
scratch.refused("has content of data ", train, "other", { resume = true, data = data })
q.fs.write(scratch.at "moved.jsonl", "{}")
assert(train("other", { resume = true, data = scratch.at "moved.jsonl" }) == whole, "the same data by another name")

local said, fine = scratch.said(pcall, train, "bad", {}, nil, function() return 0 / 0 end)
assert(not fine and said:find "step 5: loss or gradient is not finite", said)
-- An average of the weights and a count of steps, which the optimizer does not train, are kept as well.
local function averaged(name, kind, resume, stop)
  local w, mean, count = q.randn({ 4, 3 }, { seed = 1 }), q.zeros { 4, 3 }, q.zeros({ 1 }, "i32")
  w:requires_grad(true)
  local optimizer = q.optim[kind]({ w }, { lr = 0.1 })
  local run = q.loop { out = scratch.at(name), steps = 5, optimizer = optimizer, resume = resume, parameters = {
    { name = "count", tensor = count }, { name = "w", tensor = w }, { name = "mean", tensor = mean } } }
  for step in run:steps() do
    (w * q.randn({ 3 }, { seed = step })):square():sum():backward()
    optimizer:step()
    mean:set(0.9 * mean + 0.1 * q.no_grad(w.clone, w))
    count:set(count + 1)
    if step + 1 == stop then ffi.C.raise(2) end
    run:log {}
  end
  return ("%s %s %d"):format(w:hash(), mean:hash(), count:item())
end
for _, kind in ipairs { "adamw", "lion" } do
  assert(not pcall(averaged, kind, kind, false, 3))
  assert(averaged(kind, kind, true) == averaged(kind .. " whole", kind), kind .. ": what is kept has other bits")
end

-- States are called by the optimizer's order, whatever that of `parameters` is.
local function swapped(name, order, resume, stop)
  local all = { a = q.tensor { 1, 1 }, b = q.tensor { 2, 2 } }
  for _, tensor in pairs(all) do tensor:requires_grad(true) end
  local optimizer, parameters = q.adamw({ all.a, all.b }, { lr = 0.1 }), {}
  for i, each in ipairs(order) do parameters[i] = { name = each, tensor = all[each] } end
  local run = q.loop { out = scratch.at(name), steps = 5, optimizer = optimizer, parameters = parameters,
    resume = resume }
  for step in run:steps() do
    (all.a * all.a * 5 + all.b):sum():backward()
    optimizer:step()
    if step + 1 == stop then ffi.C.raise(2) end
    run:log {}
  end
  return all.a:hash() .. all.b:hash()
end
assert(not pcall(swapped, "swapped", { "b", "a" }, false, 3))
assert(swapped("swapped", { "a", "b" }, true) == swapped("in order", { "a", "b" }), "moments went to another parameter")

local one = q.zeros { 1 }
one:requires_grad(true)
local parameters = { { name = "w", tensor = one } }
scratch.refused("trains 1 tensors, of which 0 are among `parameters`", q.loop, { out = scratch.at "lacks", steps = 2,
  parameters = {}, optimizer = q.adamw(parameters, { lr = 1 }) })
local open = q.loop { out = scratch.at "open", steps = 2, optimizer = q.adamw(parameters, { lr = 1 }),
  parameters = parameters }
scratch.refused("a step did not end with run:log", function()
  for step in open:steps() do assert(step == 0) end
end)
print "ok"
