-- One-bit training: the counters follow their tables, frozen weights stay, a seed gives the same bits, and a run that
-- was stopped and resumed gives them too, also across a switch of phases.
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
  local layer = model.linears[3]
  local got = model.latents[3].tensor:grad():table()
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

-- ---------------------------------------------------------------- whole runs, stopped and resumed

local dir = os.getenv "TMPDIR" or "/tmp"
dir = ("%s/qeng_onebit_%d_%d"):format(dir, os.time(), math.random(1e9))
q.fs.mkdir(dir)
local tokenizer = q.tokenizer "recipes/tiny"
local template = q.chat_template(tokenizer, "chatml")
local function write_data(path, first, last, change)
  local writer = q.ndp.create(path, { meta = { tokenizer_hash = tokenizer:hash() } })
  for i = first, last do
    local tokens = template:encode { text = ("Anna counts to %d and then to %d again."):format(i, i + 3) }
    if change then tokens[1] = tokens[1] + 1 end
    writer:add(tokens)
  end
  writer:finish()
end
write_data(dir .. "/data.qubgpu", 1, 60)

-- how: fields of q.train instead of these
local function run(out, make, steps_at_once, how)
  local model = q.onebit.random({
    architectures = { "Qwen3ForCausalLM" }, model_type = "qwen3", vocab_size = tokenizer:vocab_size(), hidden_size = 32,
    num_hidden_layers = 2, num_attention_heads = 2,
    num_key_value_heads = 1, head_dim = 16, intermediate_size = 64, max_position_embeddings = 128, rms_norm_eps = 1e-6,
    rope_theta = 10000, hidden_act = "silu",
    tie_word_embeddings = false }, { rule = "counter", seed = 2 })
  local stop = { steps_at_once }
  local options = {
    model = model, bits = make(model), data = q.ndp.open(dir .. "/data.qubgpu"), out = out, steps = 14, row_tokens = 48,
    rows = 1, accumulate = 2, lr = 5e-3,
    seed = 3, save_every = 1, resume = true, clip = 0,
    on_step = function(row) if stop[1] and row.step == stop[1] then q.error("value", "stopped here") end end,
  }
  for name, value in pairs(how or {}) do options[name] = value end
  local ok, err = pcall(q.train, options)
  if how then return ok, tostring(err) end
  assert(ok or tostring(err):find "stopped here", tostring(err))
  return digest(model), model
end
for name, make in pairs {
  counters = function(model) return q.inertia(model, { levels = 7, q = 0.5, target = 2 }) end,
  phases = function(model)
    return q.phases(model, { count = 3, steps = 4, by = "layer", keep = true, inertia = { levels = 3, q = 0.4 } })
  end,
  gradients = function(model)
    return q.phases(model, { count = 3, steps = 4, by = "gradient", inertia = { levels = 255, k = 30 } })
  end,
} do
  local whole, model = run(dir .. "/whole_" .. name, make)
  local resumed
  for _, stop in ipairs { 3, 5, 9, 13, false } do resumed = run(dir .. "/parts_" .. name, make, stop or nil) end
  assert(whole == resumed, name .. ": resumed bits differ")
  local function losses(out)
    local list = {}
    for line in io.lines(out .. "/metrics.jsonl") do
      local row = q.json.decode(line)
      list[row.step] = row.loss
    end
    return list
  end
  local a, b = losses(dir .. "/whole_" .. name), losses(dir .. "/parts_" .. name)
  for step = 1, 14 do
    assert(a[step] == b[step], ("%s: step %d: %s and %s"):format(name, step, tostring(a[step]), tostring(b[step])))
  end

  -- Saved and loaded, it computes what it did.
  model:save(dir .. "/saved_" .. name)
  local again = q.load(dir .. "/saved_" .. name)
  local ids = { 5, 9, 100, 7 }
  assert(q.json.encode(model:logits(ids):table()) == q.json.encode(again:logits(ids):table()),
    name .. ": the saved model computes other logits")
end

-- A run from the start does not mix with checkpoints that are there: those of an ended run go, those of another run are
-- refused.
do
  local function learner(levels) return function(model) return q.inertia(model, { levels = levels }) end end
  local out = dir .. "/again"
  local function refused(pattern, make, how)
    local ok, message = run(out, make, nil, how)
    assert(not ok and message:find(pattern), ("%s, expected %s"):format(message, pattern))
  end
  assert(run(out, learner(7), nil, { steps = 6, resume = false }))
  assert(run(out, learner(7), nil, { steps = 3, resume = false, lr = 1e-3 }))
  assert(table.concat(q.fs.list(out .. "/checkpoints"), " ") == "step-000002 step-000003",
    table.concat(q.fs.list(out .. "/checkpoints"), " "))
  run(out, learner(7), 5)
  refused("stood at step 4: go on with %-%-resume", learner(7), { resume = false })
  refused("has levels 7, this one 255", learner(255), {})
  refused("has rule counter, this one phases of counter", function(model)
    return q.phases(model, { count = 2, steps = 2 })
  end, {})
  refused("has target false, this one 2", function(model) return q.inertia(model, { target = 2 }) end, {})
  refused("has q 0.15, this one 0.3", function(model) return q.inertia(model, { q = 0.3 }) end, {})
  refused("has schedule cosine, this one constant", function(model)
    return q.inertia(model, { schedule = "constant" })
  end, {})
  refused("has friction 0.2, this one 0.1", function(model)
    return q.inertia(model, { levels = 7, friction = 0.1 })
  end, {})
  local state = out .. "/checkpoints/step-000004/state.json"
  local whole = q.fs.read(state)
  for _, damage in ipairs { { '"step": 4', '"step": "4"' }, { '"step": 4', '"step": -4' },
    { '"bits": {', '"bits": 5, "were": {' }, { '"optimizer_steps"', '"steps"' },
    { "^.*$", "{" }, { "^.*$", "[]" }, { '"batches"', '"packets"' } } do
    local damaged, times = whole:gsub(damage[1], (damage[2]:gsub("%%", "%%%%")))
    assert(times == 1 and damaged ~= whole, damage[1] .. " is not in " .. whole)
    q.fs.write(state, damaged)
    refused("checkpoint", learner(7), {})
  end
  q.fs.write(state, (whole:gsub('"fed": %d+', '"fed": "1"')))
  refused("checkpoints/step%-000004: .* is damaged; delete it to go on from an earlier one", learner(7), {})
  q.fs.write(state, whole)
  refused("has eval_share 0, this one 0.2; give the same", learner(7), { eval_share = 0.2 })
  -- the others are as many, and as long
  for name, documents in pairs { shorter = { 1, 59 }, other = { 1, 60, true } } do
    local path = ("%s/%s.qubgpu"):format(dir, name)
    write_data(path, unpack(documents))
    refused("has data 60 records, digest %x+, this one %d+ records, digest %x+; give the same", learner(7),
      { data = q.ndp.open(path) })
  end
  refused("stands at step 4, beyond the 2 steps asked for: give 4 or more", learner(7), { steps = 2 })
  for _, name in ipairs { "parameters", "optimizer", "bits" } do
    local part = ("%s/checkpoints/step-000004/%s.safetensors"):format(out, name)
    local content = q.fs.read(part)
    for _, damage in ipairs { function() q.fs.write(part, content:sub(1, -100)) end,
        function() q.fs.remove(part) end } do
      damage()
      refused(name .. "%.safetensors.*; delete .*/step%-000004 to go on from an earlier one", learner(7), {})
    end
    q.fs.write(part, content)
  end
  local bare, times = whole:gsub('"data": "[^"]*",%s*', "")
  assert(times == 1)
  q.fs.write(state, bare)
  refused("has data none, this one 60 records", learner(7), {})
  bare, times = whole:gsub('"fixed"', '"known"')
  assert(times == 1)
  q.fs.write(state, bare)
  refused("does not say all that decides the result, as those of earlier versions: finish the run with that version",
    learner(7), {})
  bare, times = whole:gsub('"eval_share": [%d.]+,%s*', "")
  assert(times == 1)
  q.fs.write(state, bare)  -- what is off is as if it were not there
  run(out, learner(7))
end

-- An error in the last evaluation loses nothing: all is saved before it, and resuming does what is left of the step.
do
  local function evaluated(out, broken, stop)
    local file = q.ndp.open(dir .. "/data.qubgpu")
    local data = setmetatable({}, { __index = function(_, name)
      return function(_, ...)
        if name == "batches" and (...).split == "eval" then
          broken = broken and broken - 1
          if broken == 0 then q.error("io", "no held-out documents now") end
        end
        return file[name](file, ...)
      end
    end })
    local ok, err = run(out, function(model)
      return q.inertia(model, { levels = 7, q = 0.5 })
    end, nil, { steps = 6, eval_share = 0.2, eval_every = 2, save_every = 0, data = data,
      on_step = function(row) if row.step == stop then q.error("io", "no held-out documents now") end end })
    assert(ok == not (broken == 0 or stop) and (ok or err:find "no held%-out documents now"), err)
    local rows = {}
    for line in io.lines(out .. "/metrics.jsonl") do
      local row = q.json.decode(line)
      rows[#rows + 1] = ("%d %.17g %.17g"):format(row.step, row.loss, row.eval_loss or 0)
    end
    local found = q.fs.kind(out .. "/checkpoints/step-000006/state.json") and
      q.json.decode(q.fs.read(out .. "/checkpoints/step-000006/state.json"))
    return rows, found or {}
  end
  local rows, found = evaluated(dir .. "/evaluated")
  assert(#rows == 6 and found.finished and found.last_eval and found.best)
  -- for a look at them, before the first step, after two, four and six
  local _, left = evaluated(dir .. "/unevaluated", 5)
  assert(left.step == 6 and not left.finished, "nothing was saved before the last evaluation")
  evaluated(dir .. "/unevaluated", nil, 6)  -- stopped between the row of metrics and the checkpoint
  local again, whole = evaluated(dir .. "/unevaluated")
  assert(table.concat(again, "\n") == table.concat(rows, "\n"), table.concat(again, "\n"))
  assert(whole.finished and whole.last_eval == found.last_eval and whole.best == found.best and
    whole.eval_before == found.eval_before)
end

do  -- the newest of checkpoints is that of the most steps, also where their number gets longer
  local checkpoint, out = require "qeng.train.checkpoint", dir .. "/many"
  local adamw = { state = function() return { { "m", q.zeros { 1 } } }, 0 end }
  for step = 999998, 1000001 do
    checkpoint.save(out, { { name = "w", tensor = q.zeros { 1 } } }, adamw, { step = step }, 2)
  end
  assert(table.concat(checkpoint.list(out), " ") == "step-1000000 step-1000001",
    table.concat(checkpoint.list(out), " "))
end

-- As a GGUF file of one bit a weight and back: the same signs, scales rounded to f16.
do
  local model = q.onebit.random({
    architectures = { "Qwen3ForCausalLM" }, model_type = "qwen3", vocab_size = tokenizer:vocab_size(),
    hidden_size = 128, num_hidden_layers = 1, num_attention_heads = 2,
    num_key_value_heads = 2, head_dim = 64, intermediate_size = 128, max_position_embeddings = 128, rms_norm_eps = 1e-6,
    rope_theta = 10000, hidden_act = "silu",
    tie_word_embeddings = false }, { seed = 6 })
  model.tokenizer = tokenizer
  model:save_gguf(dir .. "/bits.gguf",
    { type = "q1_0", overrides = "token_embd=f32,output.weight=f32,attn_output.weight=q1_0" })
  local again = q.onebit.unpack(q.load(dir .. "/bits.gguf", { weights = "map" }))
  local ids = { 5, 9, 100, 7 }
  local a, b, worst = model:logits(ids):table(), again:logits(ids):table(), 0
  for i, row in ipairs(a) do
    for j, value in ipairs(row) do worst = math.max(worst, math.abs(value - b[i][j])) end
  end
  assert(worst < 0.02, "one bit a weight by way of GGUF: logits differ by " .. worst)
  for i, layer in ipairs(model.linears) do
    assert(q.onebit.count_bits(layer.weight, again.linears[i].weight) == 0, layer.name .. ": other signs")
  end
end
-- A run of a comparison that was stopped goes on to the same figures, whatever the rule.
do
  local run_one, char_text = require "qeng.onebit.compare_run", require "qeng.onebit.compare_text"
  local lines = {}
  for i = 1, 300 do lines[i] = ("line %d of a text: %d\n"):format(i, i * i) end
  q.fs.write(dir .. "/text.txt", table.concat(lines))
  local text = char_text.open(dir .. "/text.txt")
  local function set_of(folder)
    return { text = text, rows = 2, tokens = 16, steps = 20, points = 4, point_windows = 4, folder = folder,
        save_every = 3, settings = "these", values = {
      architectures = { "QengAbsoluteForCausalLM" }, model_type = "qeng_absolute", vocab_size = #text.symbols,
      hidden_size = 32, num_hidden_layers = 1,
      num_attention_heads = 2, num_key_value_heads = 2, intermediate_size = 32, max_position_embeddings = 16,
      rms_norm_eps = 1e-6, hidden_act = "silu",
      tie_word_embeddings = false } }
  end
  local function figures(result)
    result.seconds = nil
    return q.json.encode(result)
  end
  for number, more in ipairs { { rule = "frozen" }, { rule = "latent" }, { rule = "counter", levels = 255 },
    { rule = "counter", levels = 7, target = 2 }, { rule = "bop" },
    { rule = "grid", grid_levels = 1 }, { rule = "dense" },
        { rule = "counter", levels = 3, phases = { parts = 2, steps = 4 } } } do
    local case = { name = "case " .. number, lr = 1e-2, seed = 3 }
    for key, value in pairs(more) do case[key] = value end
    local whole, folder = figures(run_one(case, set_of())), ("%s/case_%d"):format(dir, number)
    q.fs.mkdir(folder)
    for _, stop in ipairs { 5, 11, 19 } do  -- it goes on from the steps 0, 3 and 9
      assert(not pcall(run_one, case, set_of(folder), function(step) if step == stop then error "stopped" end end))
    end
    local first
    local resumed = figures(run_one(case, set_of(folder), function(step) first = first or step end))
    assert(first == 19, case.name .. ": went on with step " .. first)
    assert(resumed == whole, ("case %d resumed: %s, whole: %s"):format(number, resumed, whole))
    local others = set_of(folder)
    others.settings = "others"
    local ok, err = pcall(run_one, case, others)
    assert(not ok and tostring(err.message):find "holds a run of other settings %(these; these are others%)",
      tostring(err.message))
    for pattern, change in pairs {
      ["has case.lr 0.01, this one 0.02; give the same"] = function(c) c.lr = 2e-2 end,
      ["has case.scale_rate none, this one 0.1"] = function(c) c.scale_rate = 0.1 end,
      ["has values.num_attention_heads 2, this one 1"] = function(_, s)
        s.values.num_attention_heads, s.values.num_key_value_heads = 1, 1
      end,
    } do
      local other, here = set_of(folder), {}
      for key, value in pairs(case) do here[key] = value end
      change(here, other)
      ok, err = pcall(run_one, here, other)
      assert(not ok and tostring(err.message):find(pattern, 1, true),
        ("%s, expected %s"):format(tostring(err.message), pattern))
    end
  end
  -- Latent signs flip, and the points of the curve show it: here the bits that move are counted one by one. Weights
  -- that are no bits have no flips.
  do
    local before, moved = {}, 0
    local settle = rules.settle
    rules.settle = function(model, subsequence)
      for i, latent in ipairs(model.latents) do before[i] = latent.bits:to "f32":table() end
      settle(model, subsequence)
      for i, latent in ipairs(model.latents) do
        local after = latent.bits:to "f32":table()
        for r, row in ipairs(after) do
          for c, sign in ipairs(row) do moved = moved + (sign ~= before[i][r][c] and 1 or 0) end
        end
      end
    end
    local ok, result = pcall(run_one, { name = "latent", rule = "latent", lr = 1e-2, latent_lr = 0.1, seed = 3 },
      set_of())
    rules.settle = settle
    assert(ok, tostring(result))
    local weights, by_tenth = 7 * 32 * 32, 0
    for _, rate in ipairs(result.flips) do by_tenth = by_tenth + rate * 2 * weights / 1000 end  -- a tenth is two steps
    assert(moved > 0 and result.flips_per_weight == moved / weights,
      ("%g flips a weight, %d signs changed"):format(result.flips_per_weight, moved))
    assert(#result.flips == 10 and math.abs(by_tenth - moved) < 1e-6 * moved, "the tenths have other flips")
    for _, rule in ipairs { "grid", "dense" } do
      local other = run_one({ name = rule, rule = rule, lr = 1e-2, seed = 3 }, set_of())
      assert(other.flips_per_weight == nil and #other.flips == 0, rule .. " weights have flips")
    end
  end
  do  -- each part has its turn in a run shorter than its phases
    local total, phased = 7 * 32 * 32, run_one({ name = "short", rule = "counter", levels = 3, lr = 1e-2, seed = 3,
      phases = { parts = 4, steps = 100, keep = true } }, set_of())
    for _, count in ipairs(phased.levels) do total = total - count end
    assert(total == 0, total .. " weights never had counters")
  end
  -- scales beyond f32
  local lost = run_one({ name = "diverging", rule = "latent", lr = 1, seed = 3, scale_rate = 1e38 }, set_of())
  assert(lost.diverged and lost.diverged < 20 and not lost.loss, "a loss that is not a number is no end of the run")
end
q.fs.remove(dir)
print "one-bit training: ok"
