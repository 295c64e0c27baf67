-- Adapters on a model's linear layers: which layers have one, of which rank, and how it is initialized.

local options = require "qeng.console.options"
local q = require "qeng.core"

local lora = {}

-- The shapes of an adapter's a [rank, in] and b [out, rank]. Of experts each has its own, with a dimension in front.
function lora.shapes(layer, rank)
  local shape = layer.weight:shape()
  if layer.experts then return { shape[1], rank, shape[3] }, { shape[1], shape[2], rank } end
  return { rank, shape[2] }, { shape[1], rank }
end

-- The rank of an adapter.
function lora.rank(a)
  local shape = a:shape()
  return shape[#shape - 1]
end

-- Whether a layer's name is the pattern or ends with it after a dot: "q_proj", "self_attn.q_proj",
-- "model.layers.3.mlp.up_proj".
function lora.matches(name, pattern)
  return name == pattern or name:sub(-#pattern - 1) == "." .. pattern
end

-- The roles of the layers that get adapters if no targets are given: those that the model file names, where the model
-- has such layers, or all.
function lora.roles(model)
  local roles, seen, named = {}, {}, {}
  for _, layer in ipairs(model.linears) do
    if not seen[layer.role] then roles[#roles + 1], seen[layer.role] = layer.role, true end
    for _, role in ipairs(model.arch.lora or {}) do named[role] = named[role] or lora.matches(layer.name, role) end
  end
  if not model.arch.lora then return roles end
  roles = {}
  for _, role in ipairs(model.arch.lora) do roles[#roles + 1] = named[role] and role or nil end
  return roles
end

-- The number that a list of {pattern, number} has for a layer: that of the first pattern that matches.
function lora.of_pattern(patterns, name, default)
  for _, entry in ipairs(patterns or {}) do
    if lora.matches(name, entry[1]) then return entry[2] end
  end
  return default
end

-- {pattern = number} as such a list, the longest patterns first: an exception then stands before the rule.
function lora.ordered(patterns)
  local list = {}
  for pattern, number in pairs(patterns or {}) do list[#list + 1] = { pattern, number } end
  table.sort(list, function(x, y)
    if #x[1] ~= #y[1] then return #x[1] > #y[1] end
    return x[1] < y[1]
  end)
  return list
end

-- The factor of an adapter's product.
function lora.scale(alpha, rank, rslora) return alpha / (rslora and math.sqrt(rank) or rank) end

-- The squared lengths of the layer's rows, for DoRA.
function lora.squares(model, layer)
  if model.stream then
    q.error("unsupported", "lora: dora needs the lengths of all weights' rows, and they are streamed; leave dora, or "
      .. "--weights stream, out")
  end
  if layer.parts then
    q.error("unsupported", ("lora: dora of %s, which is several layers in one, is not supported"):format(layer.name))
  end
  if layer.experts then
    q.error("unsupported", ("lora: dora of %s, which is of %d experts, is not supported"):format(layer.name,
      layer.experts))
  end
  if layer.rotation or layer.row_scale then
    q.error("unsupported", ("lora: dora of %s, whose weight is stored %s, is not supported"):format(layer.name,
      layer.rotation and "rotated" or "with a scale a row"))
  end
  return q.keep(q.adapters.row_squares(layer.weight))
end

-- The adapters of a model's layers, false where there is none.
function lora.current(model)
  local adapters = {}
  for i, layer in ipairs(model.linears) do adapters[i] = layer.lora or false end
  return adapters
end

-- fn(...) while the layers have these adapters.
function lora.with(model, adapters, fn, ...)
  local before = lora.current(model)
  for i, layer in ipairs(model.linears) do layer.lora = adapters[i] or nil end
  local results = { pcall(fn, ...) }
  for i, layer in ipairs(model.linears) do layer.lora = before[i] or nil end
  if not results[1] then error(results[2], 0) end
  return unpack(results, 2)
end

-- Gives a layer that has an adapter the lengths of its rows, as the magnitude to train.
local function decompose(model, layer)
  layer.lora.squares = lora.squares(model, layer)
  local lengths = layer.lora.squares:table()
  for i, square in ipairs(lengths) do lengths[i] = math.sqrt(square) end
  layer.lora.magnitude = q.keep(q.tensor(lengths, "f32")):label(layer.name .. ".lora_magnitude_vector")
  layer.lora.magnitude:requires_grad(true)
end

local function check_patterns(model, patterns, option)
  for _, entry in ipairs(patterns) do
    local pattern, value, found = entry[1], entry[2], false
    for _, layer in ipairs(model.linears) do found = found or layer.lora and lora.matches(layer.name, pattern) end
    if not found then q.error("value", ("lora: %s: no layer with an adapter is named %s"):format(option, pattern)) end
    if type(value) ~= "number" or not (value > 0 and value < math.huge) then
      q.error("value", ("lora: %s: %s is %s, expected a positive number"):format(option, pattern, tostring(value)))
    end
  end
end

-- Adds adapters. opt: rank, alpha (2 * rank), rslora, dropout, dora, seed; targets: names of layers or their ends (all
-- linear layers); ranks and alphas of single layers: {pattern = number}, or a list of {pattern, number} whose first
-- match counts. As in PEFT, a is uniform (kaiming, a = sqrt 5) and b is zero. The magnitude is that of the weight. So
-- the model computes what it did before.
function lora.add(model, opt)
  options.refuse_others("lora", opt,
    { "rank", "alpha", "rslora", "dropout", "dora", "seed", "targets", "ranks", "alphas" })
  local rank = opt.rank or 16
  local alpha = opt.alpha or 2 * rank
  local targets, count = opt.targets or lora.roles(model), {}
  local function list_of(patterns) return patterns and patterns[1] and patterns or lora.ordered(patterns) end
  local ranks, alphas = list_of(opt.ranks), list_of(opt.alphas)
  local adapter = {
    rank = rank, alpha = alpha, rslora = opt.rslora or false, dropout = opt.dropout or 0, targets = targets,
    parameters = {},
    ranks = ranks, alphas = alphas, dora = opt.dora or false,
  }
  for index, layer in ipairs(model.linears) do
    local wanted = false
    for _, target in ipairs(targets) do
      if lora.matches(layer.name, target) then wanted, count[target] = true, true end
    end
    layer.lora = nil
    if wanted then
      local whole = model.config.parts_of and model.config.parts_of[layer.role]
      if whole then
        q.error("unsupported", ("lora: %s is a part of %s in checkpoints, which adapters are of: load the model's "
          .. "folder, or leave it out"):format(layer.name, whole))
      end
      local own = lora.of_pattern(ranks, layer.name, rank)
      if own ~= math.floor(own) or own < 1 then
        q.error("value", ("lora: the rank of %s is %s, expected a positive integer"):format(layer.name, tostring(own)))
      end
      local shape_a, shape_b = lora.shapes(layer, own)
      local bound = 1 / math.sqrt(shape_a[#shape_a])
      local a = q.uniform(shape_a, {
        low = -bound, high = bound, seed = opt.seed or 0, subsequence = 1000 + index, dtype = model.dtype,
        label = "adapters",
      })
      local b = q.zeros(shape_b, model.dtype, "adapters")
      a:label(layer.name .. ".lora_A"):requires_grad(true)
      b:label(layer.name .. ".lora_B"):requires_grad(true)
      local scale = lora.scale(lora.of_pattern(alphas, layer.name, alpha), own, opt.rslora)
      layer.lora = { a = a, b = b, scale = scale, dropout = opt.dropout or 0 }
      table.insert(adapter.parameters, { name = layer.name .. ".lora_A.weight", tensor = a })
      table.insert(adapter.parameters, { name = layer.name .. ".lora_B.weight", tensor = b })
      if opt.dora then
        decompose(model, layer)
        local magnitude = layer.lora.magnitude
        table.insert(adapter.parameters, { name = layer.name .. ".lora_magnitude_vector", tensor = magnitude })
      end
    end
  end
  for _, target in ipairs(targets) do
    if not count[target] then
      q.error("value", ("lora: no layer is named %s; --targets takes those of this model, %s")
        :format(target, table.concat(lora.roles(model), ", ")))
    end
  end
  check_patterns(model, ranks, "ranks")
  check_patterns(model, alphas, "alphas")
  model.adapter, model.mode = adapter, "lora"
  return model
end

-- The factor of the columns of a DoRA layer's output, and what is then added. With y = x (w + s b a)^T + bias the layer
-- gives factor * y + (1 - factor) * bias. For inference, with the adapter as it is now.
function lora.columns(layer, adapter)
  return q.no_grad(q.scope, function()
    local factor = q.adapters.dora_scale(layer.weight, adapter, adapter.magnitude, adapter.squares)
    local added
    if layer.bias then
      local bias, numbers = layer.bias:table(), factor:table()
      for i, number in ipairs(numbers) do bias[i] = (1 - number) * bias[i] end
      added = q.keep(q.tensor(bias, "f32"))
    end
    return q.keep(factor:clone()), added
  end)
end

return lora
