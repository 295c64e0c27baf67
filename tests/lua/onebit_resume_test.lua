-- One-bit training that was stopped and resumed gives the bits of a whole run, also across a switch of phases. What
-- does not fit its checkpoints is refused.
package.path = (arg[0]:match "^(.*/)" or "./") .. "?.lua;" .. package.path
local q = require "qeng"
local digest = require "onebit_small".digest

q.device { device = "cpu", threads = 2 }

local dir = ("%s/qeng_onebit_resume_%d_%d"):format(os.getenv "TMPDIR" or "/tmp", os.time(), math.random(1e9))
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

q.fs.remove(dir)
print "one-bit training, resumed: ok"
