-- What q.train does with data that it cannot learn from, documents longer than a row, steps without a trained token,
-- and parameters that no gradient reaches: it refuses, tells, or leaves all as it was.
local q = require "qeng"
q.device { threads = 1 }  -- the shapes are small

local root = os.tmpname()
q.fs.remove(root)
q.fs.mkdir(root)

local config = {
  architectures = q.json.array { "Qwen2ForCausalLM" }, model_type = "qwen2", hidden_size = 32, intermediate_size = 64,
  num_hidden_layers = 1,
  num_attention_heads = 2, num_key_value_heads = 2, vocab_size = 64, max_position_embeddings = 64, rms_norm_eps = 1e-6,
  rope_theta = 10000, tie_word_embeddings = false, hidden_act = "silu",
}
local function new_model() return q.random_model(config, { seed = 3, std = 0.2 }):full() end

-- documents: {tokens, trained from this token on, number (its place)}...
local function dataset(name, documents)
  local path = ("%s/%s.qubgpu"):format(root, name)
  local writer = q.ndp.create(path)
  for i, document in ipairs(documents) do
    local tokens, mask = {}, {}
    for t = 1, document[1] do
      tokens[t], mask[t] = ((document[3] or i) * 7 + t * t * 3) % 64, t >= document[2] and 1 or 0
    end
    writer:add(tokens, mask)
  end
  writer:finish()
  return q.ndp.open(path)
end

local progress = require "qeng.console.progress"
local new = progress.new

-- What every run says at its start (banner.lua) and end.
local function frame(text)
  return text:find "^model " or text:find "^trained " or text:find "^data " or text:find "^batch " or
    text:find "^steps " or text:find "^device " or text:find "^%d+ steps? in"
end

-- Trains; returns the result, or nil and the error's message, and what was said.
local count = 0
local function train(model, file, more)
  count = count + 1
  local opt = { model = model, data = file, out = ("%s/run%d"):format(root, count), steps = 4, row_tokens = 16,
    lr = 1e-2, decay = 0.1, seed = 9 }
  for key, value in pairs(more or {}) do opt[key] = value end
  local said = {}
  progress.new = function()
    local speak = new()
    return setmetatable({ say = function(_, text)
      if not frame(text) then said[#said + 1] = text end
    end, line = function() end }, { __index = speak })
  end
  local result, err = q.try(q.train, opt)
  progress.new = new
  return result, result and table.concat(said, "\n") or err.message
end
local function refused(pattern, ...)
  local result, message = train(...)
  assert(not result and message:find(pattern), tostring(message))
end
local function told(pattern, ...)
  local result, said = train(...)
  assert(result and said:find(pattern or "^$"), said)
  return result
end

-- ---------------------------------------------------------------- longer than a row

local mixed = {}
for i = 1, 30 do mixed[i] = { 8, 5 } end
for i = 31, 33 do mixed[i] = { 40, 20 } end  -- conversations
mixed[34] = { 20, 1 }                        -- a text
mixed[35] = { 40, 4 }
mixed = dataset("mixed", mixed)
told("note: 1 text is longer than a row of 16 tokens and is split\nnote: 4 conversations are longer than a row " ..
  "of 16 tokens and are left out %(%-%-long split or truncate keeps them%)",
  new_model(), mixed)
told("note: 5 documents are longer than a row of 16 tokens and are split$", new_model(), mixed, { long = "split" })
told("note: 2 documents are longer than a row of 16 tokens and are cut to their first tokens\n" ..
  "note: 3 documents are longer than a row of 16 tokens and are left out: no token that fits is trained$", new_model(),
    mixed, { long = "truncate" })
told("note: 5 documents are longer than a row of 16 tokens and are left out$", new_model(), mixed, { long = "drop" })
told("note: 4 conversations, %d of them held out, are longer than a row", new_model(), mixed, { eval_share = 0.4 })
assert(told(nil, new_model(), dataset("short", { { 8, 5 }, { 16, 1 } })).steps == 4)
refused("'long' of 'PacketFile:batches': cut is none of auto, split, truncate, drop", new_model(), mixed,
  { long = "cut" })

local long = dataset("long", { { 40, 20 }, { 40, 20 }, { 30, 20 } })
refused("each of the 3 training documents is longer than a row of 16 tokens and is left out: give longer rows " ..
  "%(%-%-row%-tokens%), or %-%-long split or truncate", new_model(), long)
refused("longer than a row of 16 tokens, has no trained token before its end and is left out: .*, or %-%-long split$",
  new_model(), long, { long = "truncate" })

-- All held-out documents are too long: there is no held-out loss, and the run says so.
local held = {}
for i = 1, 10 do held[i] = { 40, 20 } end
held[11] = { 8, 5 }
local result = told("no token of the held%-out documents is trained: there is no held%-out loss", new_model(),
  dataset("held", held), { eval_share = 0.5, seed = 1 })
assert(not result.eval_loss and not result.eval_before)

-- ---------------------------------------------------------------- nothing is trained

local untrained = {}
for i = 1, 12 do untrained[i] = { 16, 17 } end
refused("none of the 12 training documents has a trained token, so nothing would be learned", new_model(),
  dataset("untrained", untrained))

-- Of twelve rows one is trained. The others leave parameters, moments and the count of steps as they are.
untrained[12] = { 16, 9 }
local seldom = dataset("seldom", untrained)
local model, changed = new_model(), 0
local before
local function weights(m)
  local parts = {}
  for i, parameter in ipairs(m:trainable()) do parts[i] = parameter.tensor:hash() end
  return table.concat(parts)
end
before = weights(model)
told(
  "step %d+: none of its 16 tokens is trained; it changes nothing, and further such steps are counted.*11 of " ..
  "12 steps had no trained token and changed nothing$",
  model, seldom, { steps = 12, schedule = "constant", on_step = function(row)
    local now = weights(model)
    assert((now ~= before) == (row.trained_tokens > 0), "step " .. row.step)
    assert((row.loss ~= nil) == (row.trained_tokens > 0) and (row.loss or 1) > 0)
    changed, before = changed + (now ~= before and 1 or 0), now
  end })
assert(changed == 1)
-- the trained row alone gives the same weights: for the optimizer the steps around it do not exist
local again = new_model()
told(nil, again, dataset("alone", { { 16, 9, 12 } }), { steps = 1, schedule = "constant" })
assert(weights(again) == weights(model), "steps without a trained token left a trace")

-- One-bit weights learn nothing in such a step either.
local bits_model = q.onebit.random(config, { rule = "counter", seed = 1 })
local bits = q.inertia(bits_model, { levels = 3, q = 0.4, target = 2 })
before = nil
told("11 of 12 steps", bits_model, seldom, { bits = bits, steps = 12, on_step = function(row)
  local parts = { weights(bits_model), q.json.encode(bits:state()) }
  for _, each in ipairs(bits:tensors()) do parts[#parts + 1] = each[2]:hash() end
  local now = table.concat(parts)
  assert(not before or (now ~= before) == (row.trained_tokens > 0), "bits changed in step " .. row.step)
  before = now
end })

-- ---------------------------------------------------------------- parameters that no gradient reaches

local short = q.ndp.open(root .. "/short.qubgpu")
-- A model that reads a parameter only before the passes: a copy learns nothing, and would be saved as if it had.
local broken = new_model()
local layer = broken.linears[3]
layer.weight = layer.weight:rows(0, layer.weight:shape()[1])
for _, eager in ipairs { true, false } do
  refused("no gradient reached parameter model%.layers%.0%.self_attn%.v_proj%.weight: the loss does not depend on it",
    broken, short, { eager = eager })
end
told(nil, broken, short, { allow_unused = true })
-- A zero gradient is a gradient: LoRA's B is zero at first, so every element of A's gradient is zero.
local adapted = q.random_model(config, { seed = 3, std = 0.2 }):lora { rank = 4 }
told(nil, adapted, short)
told(nil, q.random_model(config, { seed = 3, std = 0.2 }):lora { rank = 4, targets = { "q_proj" } }, short,
  { accumulate = 2 })
-- Recomputed blocks, a tied head, and a model of which only the embedding is read.
local recomputed = new_model()
recomputed.recompute = true
told(nil, recomputed, short)
config.tie_word_embeddings = true
told(nil, new_model(), short)
config.tie_word_embeddings = false

-- In a loop of your own the error comes from the optimizer, at the first step that would move the parameter.
do
  local function parameter(name)
    local t = q.randn({ 4, 4 }, { seed = 1 }):label(name)
    t:requires_grad(true)
    return t
  end
  local used, unused = parameter "used", parameter "unused"
  local targets, scale = q.tensor({ 1, 2 }, "i32"), q.tensor { 1 }
  local function pass()
    q.scope(function()
      q.lm_head_loss(q.linear(q.randn({ 2, 4 }, { seed = 2 }), used), used, targets, scale):backward()
    end)
  end
  local adamw = q.adamw_state { used, unused }
  pass()
  local _, err = q.try(adamw.step, adamw, { lr = 1 })
  assert(err and err.message:find "^adamw: no gradient reached parameter unused: .*set allow_unused", tostring(err))
  assert(not adamw:step({ lr = 0, groups = {} }).skipped)  -- no group moves
  assert(q.try(function() return q.adamw_state({ used, unused }, { allow_unused = true }):step { lr = 0.1 } end))
  local grouped = q.adamw_state({ used, unused }, { groups = { 0, 1 } })
  pass()
  assert(grouped:step { lr = 0.1, groups = { 0 } })
  _, err = q.try(grouped.step, grouped, { lr = 0.1, groups = { 1 } })
  assert(err and err.message:find "parameter unused")
end

q.fs.remove(root)
print "training data: ok"
