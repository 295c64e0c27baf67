-- One-bit training: the counters follow their tables, frozen weights stay, and a seed gives the same bits, captured and
-- recomputed too.
package.path = (arg[0]:match "^(.*/)" or "./") .. "?.lua;" .. package.path
local q = require "qeng"
local rules = require "qeng.onebit.compare_rules"
local inertia = require "qeng.onebit.inertia"
local quantile = require "qeng.onebit.quantile"
local small = require "onebit_small"

q.device { device = "cpu", threads = 2 }

-- ---------------------------------------------------------------- one weight, by hand

-- A row of 32 weights with counters of the given top; all bits are +1. send(p, at): the gradient sends weight `at` the
-- pulse p, the sign that descent wants. The others get none.
local function one_row(levels, friction)
  local weight = q.empty({ 1, 32 }, "one_bit")
  q.onebit.pack_signs(q.zeros({ 1, 32 }, "f32"):fill(1), weight)
  local layer = { name = "layer", weight = weight }
  local bits = q.inertia({ linears = { layer } }, { levels = levels, friction = friction or 0, schedule = "constant",
    k = levels == 255 and 1 / math.sqrt(32) or nil })
  local row = {}
  row.weight, row.bits = weight, bits
  function row.send(p, at)
    bits:begin(0)
    local x = {}
    for i = 1, 32 do x[i] = i == at and 1 or 0 end
    local y = q.linear(q.tensor(x, "f32"):reshape { 1, 32 }, weight, { out = "f32" }):reshape { 1 }
    q.rng_step(0);
    (y * -p):backward()  -- dL/dw = -p there
    return bits:finish()
  end
  function row.sign(at) return weight:to("f32"):table()[1][at] end
  function row.level(at)  -- of the counter
    local state = bits.parts[1].state
    if state:dtype() == "u8" then return state:table()[1][at] end
    local level = 0
    for plane, value in ipairs(state:to("f32"):table()) do
      level = level + (value[1][at] > 0 and 2 ^ (plane - 1) or 0)
    end
    return level
  end
  return row
end

-- The two-step machine, as its table has it. Armed means health 0.
do
  local row = one_row(1)
  local report = row.send(1, 5)  -- agrees, disarmed already: nothing
  assert(row.sign(5) == 1 and row.level(5) == 1 and report.flips == 0 and report.pulses == 1)
  row.send(-1, 5)                -- against: armed
  assert(row.sign(5) == 1 and row.level(5) == 0)
  row.send(1, 5)                 -- agrees: disarmed
  assert(row.sign(5) == 1 and row.level(5) == 1)
  row.send(-1, 5)
  report = row.send(-1, 5)       -- against, armed: flip, disarmed
  assert(row.sign(5) == -1 and row.level(5) == 1 and report.flips == 1)
  assert(row.sign(4) == 1 and row.level(4) == 1, "another weight changed")
end

for _, levels in ipairs { 3, 7, 15 } do
  local row = one_row(levels)
  row.send(1, 9)  -- banks no more than the top
  for i = 1, levels do
    assert(row.send(-1, 9).flips == 0 and row.sign(9) == 1 and row.level(9) == levels - i,
      ("%d levels, pulse %d"):format(levels, i))
  end
  assert(row.send(1, 9).flips == 0 and row.level(9) == 1)  -- one banked, which takes one more pulse
  row.send(-1, 9)
  assert(row.send(-1, 9).flips == 1 and row.sign(9) == -1 and row.level(9) == levels, levels .. " levels: the flip")
end

-- a gradient in one place of 32 is sqrt(32) rms: k = 1 / sqrt(32) makes it one step, up to the rounding of floor(1 + u)
do
  local row = one_row(255)
  for _ = 1, 255 do assert(row.send(-1, 2).flips == 0) end
  assert(row.level(2) == 0 and row.send(-1, 2).flips == 1 and row.sign(2) == -1 and row.level(2) == 255)
end

do  -- a gradient in one place of 32 is 5.7 rms of its row; friction of 1 leaves 4.7 of one against the weight
  local row = one_row(7, 1)
  row.bits.knobs.q = 2e-7  -- whose threshold is 5.2 rms
  local report = row.send(-1, 3)
  assert(report.pulses == 0 and row.level(3) == 7, "friction did not hold the weight")
  row = one_row(7, 0.1)
  row.bits.knobs.q = 2e-7
  report = row.send(-1, 3)
  assert(report.pulses == 1 and row.level(3) == 6, "friction held more than it takes")
  row = one_row(7, 1)
  -- the threshold of the usual q is 1.44 rms. Friction moves the weights without a gradient by 1, which is below it
  report = row.send(1, 3)
  assert(report.pulses == 1, "friction alone sent pulses")

  local rising = q.inertia({ linears = { { name = "layer", weight = row.weight } } }, { levels = 7, friction = 0.5 })
  for _, progress in ipairs { 0, 0.25, 1 } do
    rising:begin(progress)
    assert(rising.hyper:table()[1][2] == 0.5 * progress, "friction at " .. progress)
  end
end

assert(inertia.knobs { levels = "strict" }.levels == 1)
assert(select(2, pcall(q.inertia, { linears = {} })).code == "value", "a model without layers learns")
for number, options in ipairs {
  { friction = -0.1 }, { friction = 1.5 }, { bop = true, friction = 0.1 }, { levels = 255, target = 2 },
  { levels = 255, q = 0.1 }, { levels = 7, k = 3 },
  { bop = true, q = 0.1 }, { bop = true, target = 2 }, { levels = 7, target = 0 }, { levels = 4 }, { q = 1 },
  { schedule = "wsd" }, { qq = 0.1 }, { levels = 255, k = -3 },
  { levels = 255, k = 0 / 0 }, { levels = 255, k = math.huge }, { bop = true, gamma = -1 }, { bop = true, gamma = 2 },
      { bop = true, tau = -1 }, { tau = 1 }, { q = "0.3" }, { friction = "0.1" }, { k = "3", levels = 255 },
      { levels = "strictly" } } do
  local ok, err = pcall(inertia.knobs, options)
  assert(not ok and err.code == "value", ("case %d is not refused"):format(number))
end

-- ---------------------------------------------------------------- random signs

do  -- fair, the same from the same seed and subsequence, and whatever the shape, which is drawn a few rows at a time
  local width = 32 * 349527  -- words of a row: not a multiple of a draw's four
  local rows, flat, other = q.empty({ 6, width }, "one_bit"), q.empty({ 1, 6 * width }, "one_bit"),
    q.empty({ 6, width }, "one_bit")
  q.onebit.random_signs(rows, { seed = 7, subsequence = 3 })
  q.onebit.random_signs(flat, { seed = 7, subsequence = 3 })
  q.onebit.random_signs(other, { seed = 7, subsequence = 4 })
  local count, deviation = 6 * width, 0.5 * math.sqrt(6 * width)
  assert(q.onebit.count_bits(rows:reshape { 1, 6 * width }, flat) == 0, "another shape has other signs")
  assert(math.abs(q.onebit.count_bits(rows) - count / 2) < 4 * deviation, "the signs are not fair")
  assert(math.abs(q.onebit.count_bits(rows, other) - count / 2) < 4 * deviation, "two subsequences are not independent")
  local ok, err = pcall(q.onebit.random_signs, q.zeros({ 2, 32 }))
  assert(not ok and err.code == "dtype", "random signs in f32 were not refused")
end

-- ---------------------------------------------------------------- thresholds

for _, case in ipairs { { 0.5, 0 }, { 0.975, 1.959963985 }, { 0.99, 2.326347874 }, { 0.001, -3.090232306 },
    { 1e-6, -4.753424309 } } do
  assert(math.abs(quantile.normal(case[1]) - case[2]) < 1e-7, "quantile of " .. case[1])
end
assert(quantile.two_sided(0) == math.huge and quantile.two_sided(1) == 0 and
  math.abs(quantile.two_sided(0.05) - 1.959963985) < 1e-7)

-- ---------------------------------------------------------------- a small model

local values, batch, digest, tensors = small.values, small.batch, small.digest, small.tensors

-- Losses and bits of `steps` steps by a rule. how: dtype, recompute, capture.
local function trained(rule, options, steps, how)
  how = how or {}
  local model = q.onebit.random(values, { rule = rule, seed = 3, dtype = how.dtype, levels = options.grid_levels })
  model.recompute = how.recompute or false
  local first = digest(model)
  local adam = q.adamw_state(tensors(model:trainable()), { beta2 = 0.99 })
  local latent = #model.latents > 0 and q.adamw_state(tensors(model.latents))
  local bits = (rule == "counter" or rule == "bop") and q.inertia(model, options) or nil
  local losses, flips = {}, 0
  q.seed(1)
  local micro_batch, program, loss = batch(0), nil, nil
  for step = 1, steps do
    local filled = batch(step % 3)
    micro_batch.tokens:copy(filled.tokens)
    micro_batch.targets:copy(filled.targets)
    if bits then bits:begin(step / steps) end
    q.rng_step(step)
    local function pass()
      local value = model:loss(micro_batch)
      value:backward()
      return value
    end
    if how.capture then
      if not program then program, loss = q.capture(pass) end
      program:run()
    else
      loss = pass()
    end
    losses[step] = loss:item()
    adam:step { lr = 1e-2 }
    if latent then
      latent:step { lr = 1e-2 }
      rules.settle(model)
    end
    if bits then flips = flips + bits:finish().flips end
  end
  return { losses = losses, flips = flips, bits = digest(model), first = first, model = model, learner = bits }
end

local function same(what, a, b)
  assert(a.bits == b.bits, what .. ": other bits")
  for i, loss in ipairs(a.losses) do
    assert(loss == b.losses[i], ("%s: step %d: %.9g and %.9g"):format(what, i, loss, b.losses[i]))
  end
end

local frozen = trained("frozen", {}, 12)
assert(frozen.bits == frozen.first, "frozen bits moved")
assert(frozen.losses[12] < frozen.losses[1] - 0.3, "floats of a frozen model learn nothing")

for _, options in ipairs { { levels = 1 }, { levels = 3 }, { levels = 7, q = 0.6 }, { levels = 15, q = 0.9 },
    { levels = 255, k = 60 } } do
  local name = options.levels .. " levels"
  local steps = options.levels == 15 and 40 or 12
  local one = trained("counter", options, steps)
  assert(one.flips > 0 and one.bits ~= one.first, name .. ": nothing flipped")
  same(name .. ", again", one, trained("counter", options, steps))
  same(name .. ", captured", one, trained("counter", options, steps, { capture = true }))
  same(name .. ", recomputed", one, trained("counter", options, steps, { recompute = true }))
  local total = 0
  for _, count in ipairs(one.learner:histogram()) do total = total + count end
  assert(total == q.onebit.weights(one.model), name .. ": counters are missing from the histogram")
end
assert(trained("counter", { levels = 7, q = 1e-9 }, 6).flips == 0, "flips without pulses")
local narrow = trained("counter", { levels = 3 }, 8, { dtype = "bf16" })
assert(narrow.flips > 0 and narrow.losses[8] < narrow.losses[1], "bf16")
assert(trained("bop", { bop = true, gamma = 0.3, tau = 0.5 }, 12).flips > 0, "bop: nothing flipped")
for _, rule in ipairs { "latent", "dense" } do
  local one = trained(rule, {}, 12)
  assert(one.bits ~= one.first and one.losses[12] < one.losses[1], rule)
end
local grid = trained("grid", { grid_levels = 1 }, 6)
for _, value in ipairs(grid.model.linears[1].weight:table()[1]) do
  assert(value == 0 or math.abs(value) == 1, "off the grid")
end

-- The gradient of a latent weight is that of the same model with dense weights of 1 and -1. The sums of its products
-- with bits have another order: a few roundings of 6e-8 a layer.
do
  local micro_batch = batch(1)
  local model = q.onebit.random(values, { rule = "latent", seed = 5 })
  model:trainable()
  model:loss(micro_batch):backward()
  local layer, latent = model.linears[3], model.latents[3].tensor
  local got = latent:grad():table()
  latent:grad():fill(0)
  q.freeze({ latent }, function() model:loss(micro_batch):backward() end)
  assert(latent:grad():norm():item() == 0 and latent:requires_grad())
  for _, each in ipairs(model.linears) do
    each.weight = each.weight:to "f32"
    each.weight:requires_grad(true)
  end
  model:loss(micro_batch):backward()
  local wanted, worst, largest = layer.weight:grad():table(), 0, 0
  for i, row in ipairs(wanted) do
    for j, value in ipairs(row) do
      worst, largest = math.max(worst, math.abs(value - got[i][j])), math.max(largest, math.abs(value))
    end
  end
  assert(largest > 0 and worst <= 1e-5 * largest, ("straight-through gradients differ by %g of %g"):format(
    worst, largest))
end
print "one-bit training: ok"
