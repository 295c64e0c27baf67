-- One-bit models. The weights of every linear layer are 1 or -1, with one trained f32 scale for each row; embeddings,
-- norms, biases and head stay floats. How the bits learn is a rule:
--
--   counter    integer counters fed with pulses of the gradient (onebit/inertia.lua): `levels` 1, 3, 7, 15 or 255
--   bop        int8 momenta and a threshold (Helwegen et al. 2019, arXiv 1906.02107), to compare with
--   frozen     the bits do not learn: random features, which every rule has to beat
--
-- onebit/compare_rules.lua has the rules of other kinds of weights that they are compared with.

local experts = require "qeng.model.experts"
local part_names = require "qeng.model.names"
local q = require "qeng.core"

local onebit = {}

onebit.rules = { "frozen", "counter", "bop", "latent", "grid", "dense" }

local residual = { o_proj = true, down_proj = true }  -- layers that write to the residual stream

-- The scale that a row of a layer starts with. Outputs have the spread of the inputs, and depth does not make the
-- residual stream grow.
local function first_scale(layer, layers)
  local inputs = layer.weight:shape()[2]
  return 1 / math.sqrt(inputs) / (residual[layer.role] and math.sqrt(2 * layers) or 1)
end

-- What a rule of onebit/compare_rules.lua does; {} for the rules of bits.
local function rule_of(name)
  for _, known in ipairs(onebit.rules) do
    if name == known then
      local of_bits = name == "counter" or name == "bop" or name == "frozen"
      return of_bits and {} or require("qeng.onebit.compare_rules")[name]
    end
  end
  q.error("value", ("rule %s: one of %s"):format(tostring(name), table.concat(onebit.rules, ", ")))
end

local function random_bits(shape, seed, subsequence, spilled)
  local bits = spilled and q.stream.spilled(shape, "one_bit", "weights") or q.empty(shape, "one_bit", "weights")
  q.onebit.random_signs(bits, { seed = seed, subsequence = subsequence })
  return bits
end

-- A model whose linear layers hold random bits, from the keys of a config.json. opt:
--   rule ("frozen"), seed, levels (of grid: 1)
--   dtype     of all else (f32)
--   std       of the embedding (0.5)
--   head_std  of the head (0.5 / sqrt(hidden))
--   weights   "stream": on the CPU the bits, learning ones too, lie in a temporary file and are in memory as far as
--             host_budget allows; for a GPU they lie in the host's memory
--   further options are those of model/stream.lua
function onebit.random(values, opt)
  opt = opt or {}
  local models = require "qeng.model"
  local rule, seed, dtype, subsequence = opt.rule or "frozen", opt.seed or 0, opt.dtype or "f32", 0
  local special, spilled = rule_of(rule), opt.weights == "stream"
  if spilled and special.learn then
    q.error("unsupported", ("weights = stream: rule %s keeps more than bits; take counter, bop or frozen"):format(rule))
  end
  local model = models.random(values, { dtype = dtype, weights = function(name, shape, plus_one)
    subsequence = subsequence + 1
    if #shape == 1 then return q.zeros(shape, dtype, "weights"):fill(name:find "norm" and not plus_one and 1 or 0) end
    if name:find "_proj[%w_]*%.weight$" then
      if special.weight then return special.weight(shape, { seed = seed, subsequence = subsequence, dtype = dtype }) end
      return random_bits(shape, seed, subsequence, spilled)
    end
    local std = name:find "lm_head" and (opt.head_std or 0.5 / math.sqrt(shape[2])) or name:find "positions" and 0.1 or
      opt.std or 0.5
    return q.randn(shape, { std = std, seed = seed, subsequence = subsequence, dtype = dtype, label = "weights" })
  end })
  onebit.learn(model, rule, opt)
  if spilled then
    require("qeng.model.stream").attach(model, { weights = "stream", host_budget = opt.host_budget,
      stream_slack = opt.stream_slack, stream_keep = opt.stream_keep,
      stream_depth = opt.stream_depth, writable = true })
  end
  return model
end

-- Sets the scales of the rows of a layer's weight: [out] f32.
function onebit.give_scale(model, layer, scale)
  layer.row_scale = scale:label(layer.name .. ".weight_scale")
  for _, parameter in ipairs(model.parameters) do
    if parameter.tensor == layer.weight then parameter.row_scale = scale end
  end
end

-- A model of a GGUF file whose linear weights are q1_0 or tq2_0 with one scale a row. They become bits or ternary words
-- with that scale; the bits can learn. A file with a scale for each group is refused.
function onebit.unpack(model)
  experts.refuse(model, "unpack")
  for _, layer in ipairs(model.linears) do
    local dtype = layer.weight:dtype()
    if dtype ~= "q1_0" and dtype ~= "tq2_0" then
      q.error("dtype", ("unpack: the weight of %s is %s, expected q1_0 or tq2_0"):format(layer.name, dtype))
    end
    local weight, scale = q.onebit.split_row_scale(layer.weight)
    for _, parameter in ipairs(model.parameters) do
      if parameter.tensor == layer.weight then parameter.tensor = weight:label(parameter.name) end
    end
    layer.weight = weight
    onebit.give_scale(model, layer, scale)
  end
  return model
end

-- Makes a model whose linear layers hold bits (or what `rule` keeps instead) learn by that rule. Each layer gets its
-- scale, and model:trainable() lists what learns. Counters and momenta belong to q.inertia.
function onebit.learn(model, rule, opt)
  experts.refuse(model, "one-bit training")
  local special = rule_of(rule)
  if special.learn and model.linears[1].row_scale then
    q.error("unsupported",
      ("rule %s: draws weights of its own, and this model has some; take counter, bop or frozen"):format(rule))
  end
  model.mode, model.rule, model.latents, model.row_scales, model.grid_levels = "onebit", rule, {}, {}, opt.levels or 1
  for index, layer in ipairs(model.linears) do
    if not special.unscaled then
      local shape = layer.weight:shape()
      if not layer.row_scale then
        onebit.give_scale(model, layer,
          q.zeros({ shape[1] }, "f32", "weights"):fill(first_scale(layer, model.config.layers)))
      end
      layer.row_scale:requires_grad(true)
      table.insert(model.row_scales,
        { name = layer.name .. ".weight_scale", tensor = layer.row_scale, rate = "scales" })
    end
    if special.learn then special.learn(model, layer, index, opt.seed or 0, residual[layer.role]) end
  end
  if rule == "grid" then require("qeng.onebit.compare_rules").settle(model, 6000) end  -- by numbers that no step draws
  return model
end

-- What AdamW trains beside the bits: embedding, norms, biases and head, then the scales of rows. Each is {name, tensor,
-- rate}.
function onebit.float_parameters(model)
  local list, learned = {}, {}
  for _, layer in ipairs(model.linears) do learned[layer.weight] = true end
  for _, parameter in ipairs(model.parameters) do
    if not learned[parameter.tensor] then
      parameter.tensor:requires_grad(true)
      list[#list + 1] = parameter
    end
  end
  for _, scale in ipairs(model.row_scales) do list[#list + 1] = scale end
  return list
end

-- Refuses sizes (hidden, ffn, heads) of which no model can be made.
function onebit.check_sizes(opt)
  for _, name in ipairs { "hidden", "ffn" } do
    if opt[name] % 32 ~= 0 then
      q.error("value", ("--%s is %d, expected a multiple of 32: rows of weights are words of 32 bits"):format(
        name, opt[name]))
    end
  end
  if opt.hidden / opt.heads % 2 ~= 0 then
    q.error("value", ("--heads %d: --hidden %d divided by it is the size of a head, expected an even number"):format(
      opt.heads, opt.hidden))
  end
end

-- The linear layers of each block, in the model's order.
function onebit.blocks(model)
  local blocks, by_name = {}, {}
  for _, layer in ipairs(model.linears) do
    local name = part_names.plain(model.arch, layer.name):match "layers%.(%d+)%." or layer.name
    if not by_name[name] then
      by_name[name] = {}
      blocks[#blocks + 1] = by_name[name]
    end
    table.insert(by_name[name], layer)
  end
  return blocks
end

-- Weights in linear layers.
function onebit.weights(model)
  local count = 0
  for _, layer in ipairs(model.linears) do count = count + layer.weight:elements() end
  return count
end

return onebit
