-- q.phases: turns cover the model once and keep within their bound; the counters of a part that goes on stay; a
-- checkpoint of other phases is refused.
package.path = (arg[0]:match "^(.*/)" or "./") .. "?.lua;" .. package.path
local q = require "qeng"
local small = require "onebit_small"

q.device { device = "cpu", threads = 2 }

local values, batch, digest, tensors = small.values, small.batch, small.digest, small.tensors

local function phased(by, steps)
  local model = q.onebit.random(values, { rule = "counter", seed = 4 })
  local adam, bits = q.adamw_state(tensors(model:trainable())),
    q.phases(model, { count = 4, steps = 3, by = by, keep = by ~= "rows", inertia = { levels = 3, q = 0.3 } })
  local most, seen, switches = 0, {}, 0
  for step = 0, steps - 1 do
    if bits:begin(step / steps, step) then switches = switches + 1 end
    most = math.max(most, bits.inertia.weights)
    for _, part in ipairs(bits.inertia.parts) do seen[part.layer.name .. part.first] = true end
    local before = digest(model)
    model:loss(batch(step)):backward()
    bits:observe()
    adam:step { lr = 1e-2 }
    local report = bits:finish()
    assert((digest(model) ~= before) == (report.flips > 0), "bits changed unseen")
  end
  local count = 0
  for _ in pairs(seen) do count = count + 1 end
  return { most = most, parts = count, switches = switches, total = q.onebit.weights(model), layers = #model.linears }
end
for _, by in ipairs { "layer", "rows", "gradient" } do
  local run = phased(by, 24)
  assert(run.most <= run.total / 4 + 96 * 64, ("by %s: %d of %d weights learn at once"):format(by, run.most, run.total))
  assert(by == "gradient" and run.switches <= 8 or run.switches == 8, by .. ": switches")
  if by ~= "gradient" then assert(run.parts >= run.layers, by .. ": some never learn") end
end

do  -- count: so many turns, each of every block or matrix once; active: a bound that is kept, or refused
  local model = q.onebit.random({ architectures = values.architectures, model_type = values.model_type, vocab_size = 61,
    hidden_size = 32, num_hidden_layers = 6,
    num_attention_heads = 2, num_key_value_heads = 2, intermediate_size = 32, max_position_embeddings = 64,
    rms_norm_eps = 1e-6, hidden_act = "silu",
    tie_word_embeddings = false }, { rule = "counter" })
  local total = q.onebit.weights(model)
  for count = 1, 7 do
    local turns, parts = q.phases(model, { count = count, steps = 1 }).turns, 0
    for _, turn in ipairs(turns) do parts = parts + #turn end
    assert(#turns == count and parts == #model.linears,
      ("%d turns of %d parts for count = %d"):format(#turns, parts, count))
  end
  for _, case in ipairs { { total / 6 }, { total / 6 - 1 }, { 32 * 32 }, { total / 6, "rows" }, { total / 5, "rows" },
      { 7 * 6 * 32, "rows" }, { total - 1, "rows" } } do
    local active, by, sum = case[1], case[2], 0
    for _, turn in ipairs(q.phases(model, { active = active, by = by, steps = 1 }).turns) do
      local held = 0
      for _, part in ipairs(turn) do held = held + part.rows * part.layer.weight:shape()[2] end
      assert(held <= active, ("%d weights learn at once where %d may"):format(held, active))
      sum = sum + held
    end
    assert(sum == total, ("the turns have %d of %d weights"):format(sum, total))
  end
  for number, bad in ipairs { { active = 32 * 32 - 1 }, { active = 32 * 32 - 1, by = "gradient" },
    { active = 7 * 6 * 32 - 1, by = "rows" }, { active = 0 }, { active = 0 / 0 }, { count = 0 },
    { count = 2.5 }, { count = 1000 }, {}, { count = 2, by = "columns" }, { count = 2, steps = 1.5 } } do
    bad.steps = bad.steps or 1
    local ok, err = pcall(q.phases, model, bad)
    assert(not ok and err.code == "value", ("case %d is not refused"):format(number))
  end
end

do  -- bands of rows may be as many as rows
  local model = q.onebit.random(values, { rule = "counter" })
  for _, turn in ipairs(q.phases(model, { count = 96, by = "rows", steps = 1 }).turns) do
    assert(#turn > 0, "a turn in which nothing learns")
  end
  local ok, err = pcall(q.phases, model, { count = 97, by = "rows", steps = 1 })
  assert(not ok and err.code == "value" and tostring(err):find "from 1 to 96", tostring(err))
end

do  -- the loop of recipes/README.md trains, with q.inertia and with phases that look at gradients
  local code = q.fs.read((arg[0]:match "^(.*/)" or "./") ..
    "../../recipes/README.md"):match "\n(    local model = q%.onebit%.random.-\n    end\n)"
  for _, learner in ipairs { "%0",
      'q.phases(model, { count = 4, steps = 2, by = "gradient", inertia = { levels = 3, q = 0.3 } })' } do
    local env = setmetatable({ config = values, batch = batch(1), steps = 6 }, { __index = _G })
    local onebit = setmetatable({ random = function(...)
      env.model = q.onebit.random(...)
      env.adamw = q.adamw_state(tensors(env.model:trainable()))
      return env.model
    end }, { __index = q.onebit })
    env.q = setmetatable({ onebit = onebit }, { __index = q })
    local text, times = code:gsub("q%.inertia%b()", learner)
    assert(times == 1, "recipes/README.md makes no q.inertia")
    setfenv(assert(loadstring(text)), env)()
    local loss = env.model:loss(env.batch):item()
    assert(loss < math.log(61), "the loop of recipes/README.md learns nothing: " .. loss)
  end
end

do  -- counters that rest are counted with those that learn
  local model = q.onebit.random(values, { rule = "counter", seed = 4 })
  model:trainable()
  local function counted(keep)
    local bits, total = q.phases(model, { count = 4, steps = 1, keep = keep, inertia = { levels = 3 } }), 0
    for step = 0, 5 do bits:begin(step / 8, step) end  -- the fifth step is the first turn's again
    for _, count in ipairs(bits:histogram()) do total = total + count end
    local active = bits.inertia.weights
    bits:free()
    return total, active
  end
  assert(counted(true) == q.onebit.weights(model), "counters that rest are missing from the histogram")
  local total, active = counted(false)
  assert(total == active, "counters that were dropped are counted")
end

-- ---------------------------------------------------------------- counters that go on, rest, or are dropped

local function feed(model, bits, step, steps)
  local changed = bits:begin(step / steps, step)
  q.rng_step(step)
  model:loss(batch(step)):backward()
  return changed, bits:finish()
end

do  -- one turn is q.inertia: nothing is handed over, nothing refilled
  local function bits_after(make)
    local model = q.onebit.random(values, { rule = "counter", seed = 4 })
    local bits, switches = make(model), 0
    model:trainable()
    for step = 0, 11 do switches = switches + (feed(model, bits, step, 12) and 1 or 0) end
    return digest(model), switches
  end
  local knobs = { levels = 3, q = 0.3 }
  local alone = bits_after(function(model) return q.inertia(model, knobs) end)
  local learned, switches = bits_after(function(model)
    return q.phases(model, { active = 1e9, steps = 2, inertia = knobs })
  end)
  assert(learned == alone and switches == 1, "one turn is not the whole model at once")
end

-- by the size of gradients: matrices chosen twice running keep their counters, and without observe() nothing is chosen
do
  local model = q.onebit.random(values, { rule = "counter", seed = 4 })
  model:trainable()
  local bits = q.phases(model, { count = 2, steps = 1, by = "gradient", inertia = { levels = 7 } })
  bits:begin(0, 0)
  local first, states = bits.inertia.parts, {}
  for _, part in ipairs(first) do
    states[part.layer] = part.state
    part.state:rows(0, 1):copy(q.empty({ 1, part.rows, part.layer.weight:shape()[2] }, "one_bit"))
  end
  bits.next = { { layer = first[2].layer, first = 0, rows = first[2].rows },
    { layer = model.linears[14], first = 0, rows = model.linears[14].weight:shape()[1] } }
  local before = states[first[2].layer]:hash()
  assert(bits:begin(0.1, 1), "the part changed")
  local parts = bits.inertia.parts
  assert(parts[1].layer == first[2].layer and parts[1].state:hash() == before and parts[2].state ~= before,
    "a matrix that goes on lost its counters")
  local ok, err = pcall(bits.begin, bits, 0.2, 2)
  assert(not ok and tostring(err):find "call observe%(%)", tostring(err))
end

-- ---------------------------------------------------------------- checkpoints

do
  local name = os.tmpname()
  local path = name .. ".safetensors"
  local function begun(steps, opt)
    local model = q.onebit.random(values, { rule = "counter", seed = 4 })
    model:trainable()
    local bits = q.phases(model, opt)
    for step = 0, steps - 1 do
      feed(model, bits, step, 12)
      bits:observe()
    end
    return bits, model
  end
  for _, opt in ipairs {
    { count = 3, steps = 2, keep = true, inertia = { levels = 3, q = 0.3 } },
    { count = 3, steps = 2, by = "rows", inertia = { levels = 255, k = 60 } },
    { count = 3, steps = 2, by = "gradient", keep = true, inertia = { levels = 7, target = 2 } } } do
    local bits, model = begun(7, opt)
    q.safetensors.save(path, bits:tensors())
    local state = q.json.encode(bits:state())
    local function restored(text)
      local other, of = begun(0, opt)
      local file = q.safetensors.open(path)
      local ok, err = pcall(other.restore, other, q.json.decode(text), file)
      file:close()
      return ok, err, other, of
    end
    local ok, err, other, of = restored(state)
    assert(ok, tostring(err))
    for step = 7, 11 do
      feed(model, bits, step, 12)
      bits:observe()
      feed(of, other, step, 12)
      other:observe()
    end
    assert(digest(model) == digest(of), "the restored phases give other bits")

    local damages = { { '"phase":3', '"phase":3.5' }, { '"phase":3', '"phase":-1' }, { '"phase":3', '"phase":"3"' },
      { '"fed":%d', '"fed":"1"' }, { '"parts":%[', '"parts":[5,' } }
    local first = state:match '"parts":%[(%[.-%])'
    damages[#damages + 1] = { '"parts":%[', '"parts":[' .. first .. "," }  -- twice
    if opt.by ~= "gradient" then damages[#damages + 1] = { '"phase":3', '"phase":4' } end
    damages[#damages + 1] = { '"parts":%[(%[[^,]*),[%d.]+,([%d.]+)', '"parts":[%1,1,%2' }
    if opt.keep then
      damages[#damages + 1] = { '"kept":{"', '"kept":{"x' }
      damages[#damages + 1] = { '"kept":{"[^"]*"', '"kept":{"' .. model.linears[1].name .. '.weight"' }
      if opt.by ~= "gradient" then damages[#damages + 1] = { '"kept":{".-%],', '"kept":{' } end  -- one is missing
    end
    for number, damage in ipairs(damages) do
      local damaged, times = state:gsub(damage[1], damage[2], 1)
      assert(times == 1 and damaged ~= state, ("damage %d: %s is not in %s"):format(number, damage[1], state))
      local fine, why = restored(damaged)
      assert(not fine and why.code == "format" and tostring(why):find "damaged",
        ("damage %d is not refused: %s"):format(number, tostring(why)))
    end
  end
  os.remove(path)
  os.remove(name)
end

-- ---------------------------------------------------------------- warnings

do  -- counters start full and first flip together: neither that nor the steps before are warned of
  local layer = { name = "layer", weight = q.empty({ 32, 32 }, "one_bit") }
  q.onebit.random_signs(layer.weight, { seed = 1 })
  local function warned(levels, of_flips)
    local bits, first = q.inertia({ linears = { layer } }, { levels = levels, k = levels == 255 and 30 or nil }), nil
    for step = 1, 60 do
      bits:begin(step / 200)
      bits.counts:set { 0, of_flips(step) }
      local report = bits:finish()
      if report.warning and not first then first = { step = step, text = report.warning } end
    end
    bits:free()
    return first
  end
  assert(not warned(7, function(step) return step < 8 and 0 or step == 8 and 20 or 2 end),
    "the first flips are warned of")
  local hot = warned(7, function() return 30 end)
  assert(hot.step == 46 and hot.text:find "29.3 flips .* too hot", hot.text)
  local cold = warned(255, function() return 0 end)
  assert(cold.step == 47 and cold.text:find "too cold", cold.text)
end
print "phases: ok"
