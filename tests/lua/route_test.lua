-- Packets addressed to some parameters move those and no others, as in a run in which only those are trained. Losses
-- are reported by source. Curricula in Lua are called with steps and sources, and their errors tell both.
local q = require "qeng"
local route = require "qeng.train.route"
q.device { threads = 1 }  -- the shapes are small

local root = os.tmpname()
q.fs.remove(root)
q.fs.mkdir(root)

local config = {
  architectures = q.json.array { "Qwen2ForCausalLM" }, model_type = "qwen2", hidden_size = 32, intermediate_size = 48,
  num_hidden_layers = 2,
  num_attention_heads = 4, num_key_value_heads = 2, vocab_size = 64, max_position_embeddings = 64, rms_norm_eps = 1e-6,
  rope_theta = 10000, tie_word_embeddings = false, hidden_act = "silu",
}
local function new_model(tied)
  config.tie_word_embeddings = tied or false
  return q.random_model(config, { seed = 3, std = 0.2 })
end

-- 60 documents addressed in turn to the given destinations. Their source tells which.
local function dataset(name, destinations)
  local path = ("%s/%s.qubgpu"):format(root, name)
  local writer = q.ndp.create(path)
  for i = 1, 60 do
    local tokens = {}
    for t = 1, 5 + i % 9 do tokens[t] = (i * 7 + t * t * 3) % 64 end
    local at = (i - 1) % #destinations + 1
    writer:add(tokens, nil, { src = at, dst = destinations[at] })
  end
  writer:finish()
  return q.ndp.open(path)
end

local function weights_of(model)
  local values = {}
  for i, parameter in ipairs(model:trainable()) do values[i] = parameter.tensor:table() end
  return values
end

local function same(a, b)
  if type(a) ~= "table" then return a == b end
  for i = 1, #a do
    if not same(a[i], b[i]) then return false end
  end
  return true
end

local function refused(pattern, fn, ...)
  local _, err = q.try(fn, ...)
  assert(err and err.message:match(pattern), tostring(err))
end

local count = 0
local function train(model, file, more)
  count = count + 1
  local opt = { model = model, data = file, out = ("%s/run%d"):format(root, count), steps = 6, accumulate = 4,
    row_tokens = 16, rows = 2, lr = 1e-2, decay = 0.1, seed = 9, checkpoints = false }
  for key, value in pairs(more or {}) do opt[key] = value end
  return q.train(opt)
end

-- One destination: what it does not address keeps its bits. The rest has the bits of a run in which only that is
-- trained.
for _, destination in ipairs { 1, 2, 3, 4, 6 } do
  local name = route.destination_name(destination)
  local file = dataset("to_" .. name, { destination })
  local model = new_model():full()
  local before = weights_of(model)
  train(model, file)
  local after = weights_of(model)
  local frozen = {}
  for _, tensor in ipairs(route.plan(model, { [destination] = 1 }).frozen[destination]) do
    frozen[tensor:label()] = true
  end

  local alone = new_model():full()
  local open = {}
  for _, parameter in ipairs(alone.parameters) do
    if frozen[parameter.name] then parameter.tensor:requires_grad(false) else open[#open + 1] = parameter end
  end
  alone.trainable = function() return open end
  train(alone, dataset("to_all", { 0 }))
  local expected = {}
  for _, parameter in ipairs(open) do expected[parameter.name] = parameter.tensor:table() end

  local moved = 0
  for i, parameter in ipairs(model:trainable()) do
    if frozen[parameter.name] then
      assert(same(before[i], after[i]), ("%s moved %s"):format(name, parameter.name))
    else
      moved = moved + 1
      assert(not same(before[i], after[i]), ("%s left %s"):format(name, parameter.name))
      assert(same(after[i], expected[parameter.name]), ("%s: %s differs from a run with only that trained"):format(
        name, parameter.name))
    end
  end
  assert(moved == ({ 1, 14, 6, 5, nil, 1 })[destination], name .. " moves " .. moved)
end

-- Several in one run: what none addresses stays. What a destination does not address does not move in steps that hold
-- only that destination. Eager and captured agree.
local mixed = dataset("mixed", { 2, 3 })
local a, b = new_model():full(), new_model():full()
local before = weights_of(a)
local result = train(a, mixed)
train(b, mixed, { eager = true })
local after, eager = weights_of(a), weights_of(b)
for i, parameter in ipairs(a:trainable()) do
  local addressed = parameter.name:find("attn%.") or parameter.name:find("mlp%.")
  assert(same(before[i], after[i]) == not addressed, parameter.name)
  assert(same(after[i], eager[i]), "eager and captured differ: " .. parameter.name)
end

-- The losses by source add up to the loss of the step.
for _, row in ipairs(result.metrics) do
  local sum, tokens = 0, 0
  for _, part in pairs(row.by_source) do
    sum, tokens = sum + part.loss * part.trained_tokens, tokens + part.trained_tokens
  end
  assert(tokens == row.trained_tokens and math.abs(sum / tokens - row.loss) < 1e-4 * row.loss)
end
assert(result.metrics[1].by_source.TEXT_CORPUS and result.metrics[1].by_source.CODE_REPO)
local evaluated = train(new_model():full(), dataset("eval", { 0, 0, 0 }), { eval_share = 0.3 })
local last = evaluated.metrics[#evaluated.metrics]
local sum, tokens = 0, 0
for _, part in pairs(last.eval_by_source) do
  sum, tokens = sum + part.loss * part.trained_tokens, tokens + part.trained_tokens
end
assert(math.abs(sum / tokens - last.eval_loss) < 1e-4 * last.eval_loss)
assert(q.fs.read(root .. "/run" .. count .. "/report.html"):find("CODE_REPO held out"))
assert(not train(new_model():full(), dataset("one", { 0 })).metrics[1].by_source)

-- Stopped and resumed, a run has the same counts of steps of the groups, and the same of everything else.
local straight, halves, out = new_model():full(), new_model():full(), root .. "/halves"
train(straight, mixed, { schedule = "constant" })
train(new_model():full(), mixed, { schedule = "constant", steps = 3, out = out, checkpoints = true })
train(halves, mixed, { schedule = "constant", out = out, checkpoints = true, resume = true })
assert(same(weights_of(halves), weights_of(straight)))
refused("has drop 0, this one 0.5", train, new_model():full(), mixed, { out = out, resume = true, drop = 0.5 })

-- Adapters: LORA and ALL move all of them, ATTENTION those of the attention. A destination without a trained parameter
-- is an error.
local lora = new_model():lora { rank = 2 }
assert(route.plan(lora, { [0] = 1, [5] = 1 }) == nil)
assert(#route.plan(lora, { [2] = 1 }).frozen[2] == 12)
refused("12 packets are addressed to NORM, and nothing of that is trained %(mode lora%)", route.plan, lora,
  { [4] = 12 })
refused("destination 0x09", route.plan, lora, { [9] = 12 })
refused("nothing of that is trained", train, new_model():full(), dataset("to_lora", { 5 }))
local tied = new_model(true):full()
assert(#route.plan(tied, { [1] = 1 }).frozen[1] == #route.plan(tied, { [6] = 1 }).frozen[6])

-- Curricula.
local file = dataset("curriculum", { 0, 0, 0 })
local calls = {}
local batches = file:batches { row_tokens = 32, batches_per_step = 2, weights = function(step, source)
  calls[#calls + 1] = step .. ":" .. source
  if step == 3 and source == 2 then q.error("value", "no idea") end
  return source == 3 and 0 or 1
end }
for _ = 1, 6 do
  for source, part in pairs(batches:next():by_source()) do
    assert(source ~= 3 and part.documents > 0 and part.nll == 0)
  end
end
assert(calls[1] == "0:1" and calls[3] == "0:3" and calls[4] == "1:1")
refused("weights%(3, 0x02%): no idea", function() for _ = 1, 3 do batches:next() end end)
refused("source 0x09 has a weight, and no training record", function()
  file:batches({ row_tokens = 32, weights = { [9] = 1 } }):next()
end)
refused("function%(step, source%) or table expected", file.batches, file, { row_tokens = 32, weights = 3 })
refused("number expected", function()
  file:batches({ row_tokens = 32, weights = function() return "much" end }):next()
end)
refused("source nothing: a number from 0 to 255", route.source_list, "chat, nothing")
assert(#route.source_list "chat, 0x41" == 2 and route.source_list "" == nil)
local fixed = file:batches { row_tokens = 32, weights = { [1] = 3, [2] = 1 }, drop = 0.1, sources = { 1, 2 } }
local state = fixed:state()
local first = fixed:next():info()
fixed:restore(state)
assert(fixed:next():info().real_tokens == first.real_tokens)
assert(fixed:plan().sources[1] == 20 and fixed:plan().destinations[0] == 40)
local trained = train(new_model():full(), file,
  { weights = function(step, source) return source == step % 3 + 1 and 1 or 0.001 end, steps = 3, drop = 0.05 })
assert(trained.steps == 3 and trained.metrics[1].crc_dropped)
q.fs.remove(root)
print "route: ok"
