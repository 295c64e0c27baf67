-- Gemma: the forms of its config.json mean the same, each layer has its own window and rotation, inference computes
-- what training does, and gradients are those of finite differences. (gguf_test.lua compares with llama.cpp.)
local paged = require "qeng.infer.paged"
local q = require "qeng"
q.device { device = "cpu", threads = 1 }

local function check(condition, ...)
  if not condition then error(string.format(...), 2) end
end

local ids = {}
for i = 1, 40 do ids[i] = (i * i * 7 + 3 * i) % 96 end

local function values_of(more)
  local values = {
    architectures = { "Gemma3ForCausalLM" }, hidden_size = 64, intermediate_size = 48, num_hidden_layers = 4,
    num_attention_heads = 4,
    num_key_value_heads = 2, head_dim = 16, vocab_size = 96, max_position_embeddings = 128,
    hidden_activation = "gelu_pytorch_tanh",
    query_pre_attn_scalar = 24, sliding_window = 8,
  }
  for key, value in pairs(more) do values[key] = value end
  return values
end

-- The same weights for every form of the settings; norms away from zero.
local function model_of(more, dtype)
  local model = q.random_model(values_of(more), { seed = 5, std = 0.15, dtype = dtype })
  for i, parameter in ipairs(model.parameters) do
    local shape = parameter.tensor:shape()
    if #shape == 1 then
      parameter.tensor:copy(q.randn(shape, { std = 0.2, seed = 6, subsequence = i, dtype = dtype }))
    end
  end
  return model
end
local function flat(tensor) return tensor:reshape({ tensor:elements() }):table() end
local function distance(a, b)
  local off, size = 0, 0
  for i = 1, #a do off, size = off + (a[i] - b[i]) ^ 2, size + a[i] ^ 2 end
  return math.sqrt(off / size)
end

-- transformers 4: one theta for each kind of layer and a pattern; transformers 5: rope_parameters and layer_types.
local old = {
  rope_theta = 50000, rope_local_base_freq = 300, rope_scaling = { rope_type = "linear", factor = 4 },
  sliding_window_pattern = 2,
}
local kinds = { "sliding_attention", "full_attention", "sliding_attention", "full_attention" }
local new = {
  layer_types = kinds, rope_parameters = {
    full_attention = { rope_type = "linear", factor = 4, rope_theta = 50000 },
    sliding_attention = { rope_type = "default", rope_theta = 300 },
  },
}
local model = model_of(old)
local logits = flat(model:logits(ids))
check(distance(logits, flat(model_of(new):logits(ids))) == 0, "the two forms of config.json differ")

-- Each setting counts.
for key, value in pairs { rope_theta = 60000, rope_local_base_freq = 400, sliding_window_pattern = 3,
    sliding_window = 9, query_pre_attn_scalar = 25 } do
  local changed = {}
  for k, v in pairs(old) do changed[k] = v end
  changed[key] = value
  check(distance(logits, flat(model_of(changed):logits(ids))) > 1e-5, "%s changes nothing", key)
end

-- Pages, and one token at a time at the end.
local first = {
  architectures = { "GemmaForCausalLM" }, hidden_size = 64, intermediate_size = 48, num_hidden_layers = 2,
  num_attention_heads = 4,
  num_key_value_heads = 1, head_dim = 32, vocab_size = 96, max_position_embeddings = 128, hidden_act = "gelu",
}
local second = values_of {
  architectures = { "Gemma2ForCausalLM" }, attn_logit_softcapping = 2, final_logit_softcapping = 5,
}
for name, values in pairs { gemma = first, gemma2 = second, gemma3 = values_of(old) } do
  local one = q.random_model(values, { seed = 5, std = 0.15 })
  local expected = one:logits(ids)
  local runner = paged.new(one, { pages = 8, kv = "f32" })
  local id = runner.pool:open(0)
  local rows = {}
  local function keep(result) for _, row in ipairs(result:table()) do rows[#rows + 1] = row end end
  runner:extend(id, ids, 1, 30)
  local wanted = {}
  for i = 0, 29 do wanted[#wanted + 1] = i end
  runner:run({ { id = id, count = 30 } }, wanted, keep)
  runner.pool:commit(id)
  for i = 31, #ids do
    runner:extend(id, ids, i, i)
    runner:run({ { id = id, count = 1 } }, { 0 }, keep)
    runner.pool:commit(id)
  end
  local all = {}
  for _, row in ipairs(rows) do for _, value in ipairs(row) do all[#all + 1] = value end end
  check(#all == expected:elements() and distance(flat(expected), all) < 1e-5,
    "%s: inference differs from training", name)
end

-- The derivative along the gradient itself, by a central difference.
model = model_of(old):full()
local micro_batch = q.micro_batch(#ids, 1)
local targets, positions = {}, {}
for i = 1, #ids do targets[i], positions[i] = ids[i + 1] or -1, i - 1 end
micro_batch.tokens:set(ids)
micro_batch.targets:set(targets)
micro_batch.positions:set(positions)
micro_batch.cu_q:set { 0, #ids }
micro_batch.scale:fill(1 / (#ids - 1))
model:loss(micro_batch):backward()
local again = model_of(old):full()
again.recompute = true
again:loss(micro_batch):backward()
for i, parameter in ipairs(model.parameters) do
  check(distance(flat(parameter.tensor:grad()), flat(again.parameters[i].tensor:grad())) == 0,
    "%s: recomputed gradients differ", parameter.name)
end
local square, gradients = 0, {}
for i, parameter in ipairs(model.parameters) do
  gradients[i] = flat(parameter.tensor:grad())
  for _, g in ipairs(gradients[i]) do square = square + g * g end
end
local function loss_at(step)
  return q.no_grad(q.scope, function()
    for i, parameter in ipairs(model.parameters) do
      local values = flat(parameter.tensor)
      for k, g in ipairs(gradients[i]) do values[k] = values[k] + step * g / math.sqrt(square) end
      parameter.tensor:set(values)
    end
    return model:loss(micro_batch):item()
  end)
end
local above = loss_at(0.01)
local below = loss_at(-0.02)
local slope = (above - below) / 0.02
check(math.abs(slope / math.sqrt(square) - 1) < 2e-3, "the slope is %g, the gradient's norm %g", slope,
  math.sqrt(square))

-- Embeddings are scaled by the root of hidden_size, in bf16 by what bf16 holds of it: 90.5 for 8192, 90.50967.
first.hidden_size, first.num_hidden_layers = 8192, 1
for dtype, factor in pairs { f32 = math.sqrt(8192), bf16 = 90.5 } do
  local one, seen = q.random_model(first, { dtype = dtype, std = 0 }), nil
  one.embed:fill(1)
  local norm = q.add_rmsnorm
  q.add_rmsnorm = function(x, ...) seen = seen or flat(x:rows(0, 1):to "f32")[1]; return norm(x, ...) end
  one:logits { 3 }
  q.add_rmsnorm = norm
  check(math.abs(seen - factor) < 1e-4, "%s: embeddings are scaled by %g, expected %g", dtype, seen, factor)
end
do  -- transformers refuses a cap of 5 where 5.0 stood
  local text = require("qeng.model.config").text { final_logit_softcapping = 5, swiglu_limit = 0.5, hidden_size = 8 }
  assert(text:find '"final_logit_softcapping": 5%.0,?\n' and text:find '"swiglu_limit": 0%.5,?\n'
    and text:find '"hidden_size": 8,?\n', text)
end
print "gemma: its forms agree, inference is what training computes, gradients are true"
