-- Adapters as PEFT stores them: adapter_config.json, and adapter_model.safetensors with tensors
-- base_model.model.<layer>.lora_A.weight [rank, in], lora_B.weight [out, rank] and, under DoRA, lora_magnitude_vector
-- [out]. Of experts each has its own, under the names of layers that checkpoints have; PEFT fuses them when it loads
-- such a folder.

local experts = require "qeng.model.experts"
local lora = require "qeng.model.lora"
local mtp = require "qeng.model.mtp"
local new_tokens = require "qeng.model.new_tokens"
local q = require "qeng.core"
local range = require "qeng.model.range"
local value_heads = require "qeng.model.value_heads"

local peft = { prefix = "base_model.model." }
local prefix = peft.prefix

-- {layer = number} of the layers whose adapter's number is not the default. Names are whole, so no order matters.
local function exceptions(model, patterns, default)
  local object = {}
  for _, layer in ipairs(model.linears) do
    local number = layer.lora and lora.of_pattern(patterns, layer.name, default)
    if number and number ~= default then object[layer.name] = number end
  end
  return object
end

-- The names of what is saved whole beside the adapters. Of a tied model that is the head too: PEFT keeps it apart if
-- told to.
local function modules_to_save(model)
  return model.extra and q.json.array { "embed_tokens", "lm_head" } or nil
end

function peft.config(model)
  local adapter = model.adapter
  return {
    modules_to_save = modules_to_save(model),
    peft_type = "LORA", task_type = "CAUSAL_LM", base_model_name_or_path = model.dir or "", r = adapter.rank,
    lora_alpha = adapter.alpha, lora_dropout = adapter.dropout, use_rslora = adapter.rslora, use_dora = adapter.dora,
    rank_pattern = exceptions(model, adapter.ranks, adapter.rank),
    alpha_pattern = exceptions(model, adapter.alphas, adapter.alpha),
    target_modules = q.json.array(adapter.targets), bias = "none", fan_in_fan_out = model.arch.transposed ~= nil,
    inference_mode = true,
  }
end

-- Says which adapters only this program reads. (PEFT 0.21 turns targets of experts into others for transformers 5, for
-- some architectures alone, and those of an expert that all tokens meet get lost on the way.)
local function tell_left(model, dir)
  local left, first = 0, nil
  for _, layer in ipairs(model.linears) do
    for _, pattern in ipairs(layer.lora and model.arch.peft_leaves or {}) do
      if layer.name:find(pattern) then left, first = left + 1, first or layer.name end
    end
  end
  if left > 0 then
    io.stderr:write(("%s: PEFT leaves out %d of its adapters, as of %s, without an error: merge the adapter for other "
      .. "programs\n"):format(dir, left, first))
  end
end

function peft.save(model, dir)
  if not model.adapter then q.error("value", "save_adapter: this model has no adapter") end
  tell_left(model, dir)
  local tensors = {}
  for _, parameter in ipairs(model.adapter.parameters) do
    local tensor = value_heads.adapter_to(model.config, parameter.name, parameter.tensor)
    local parts = experts.matrices(prefix .. parameter.name, tensor)
    for _, part in ipairs(parts) do tensors[#tensors + 1] = part end
  end
  if model.extra then
    tensors[#tensors + 1] = { prefix .. new_tokens.embed_name, model.embed }
    tensors[#tensors + 1] = { prefix .. new_tokens.head_name, model.head }
  end
  q.fs.write_dir(dir, function(folder)
    if model.tokenizer_dir then new_tokens.copy_tokenizer(model.tokenizer_dir, folder) end
    q.safetensors.save(folder .. "/adapter_model.safetensors", tensors, { metadata = { format = "pt" } })
    q.fs.write(folder .. "/adapter_config.json", q.json.encode(peft.config(model), { pretty = true }) .. "\n")
    if model.mtp and model.mtp.weight > 0 then mtp.save(model, folder) end
  end)
end

-- Keys that change the mathematics, at the only values that are supported.
local neutral = {
  bias = "none", lora_bias = false, peft_type = "LORA", use_qalora = false,
}

-- Keys that are read, or do not say what the adapter computes. Any other is refused unless it is null, false or empty.
local known = {}
for key in ([[
  r fan_in_fan_out lora_alpha lora_dropout use_rslora use_dora rank_pattern alpha_pattern target_modules exclude_modules
  layers_to_transform layers_pattern init_lora_weights task_type inference_mode auto_mapping
  base_model_name_or_path revision peft_version megatron_core qalora_group_size
  modules_to_save ensure_weight_tying loftq_config eva_config corda_config lora_ga_config runtime_config
]]):gmatch "%S+" do known[key] = true end

-- Values of init_lora_weights that leave the base model as it is.
local harmless = { [true] = true, [false] = true, gaussian = true, eva = true, orthogonal = true }

local function given(value)
  if type(value) == "table" and next(value) == nil then return false end
  return value ~= nil and value ~= q.json.null and value ~= false
end

-- A pattern of layers as a list of {pattern, number}, in the file's order.
local function read_patterns(c, key, path)
  local patterns = {}
  if not given(c[key]) then return patterns end
  if type(c[key]) ~= "table" then q.error("format", ("%s: %s is not an object"):format(path, key)) end
  for _, name in ipairs(getmetatable(c[key]).__keys or {}) do
    local plain = name:gsub("\\%.", "."):gsub("^%^", ""):gsub("%$$", "")
    if plain:find "[^%w_.]" then
      q.error("unsupported", ("%s: %s: %s is a pattern; names of layers are supported, and the ends of names"):format(
        path, key, name))
    end
    patterns[#patterns + 1] = { plain, c[key][name] }
  end
  return patterns
end

-- The config of folder `dir`. It is refused if it asks for what is not supported.
local function read_config(dir)
  local path = dir .. "/adapter_config.json"
  local c = q.json.decode(q.fs.read(path), { ordered = true })
  if type(c) ~= "table" then q.error("format", path .. ": not a JSON object") end
  for key, value in pairs(c) do
    local only = neutral[key]
    if only ~= nil and given(value) and value ~= only then
      q.error("unsupported", ("%s: %s = %s is not supported, only %s"):format(path, key, tostring(value),
        tostring(only)))
    end
    if only == nil and not known[key] and given(value) then
      q.error("unsupported", ("%s: %s is not supported: it may change what the adapter computes"):format(path, key))
    end
  end
  local init = c.init_lora_weights
  if init ~= nil and init ~= q.json.null and not harmless[init] then
    q.error("unsupported", ("%s: init_lora_weights = %s means a changed base model; save the adapter as one of the "
      .. "model itself (PEFT's path_initial_model_for_weight_conversion)"):format(path, tostring(init)))
  end
  for _, key in ipairs { "r", "lora_alpha" } do
    if type(c[key]) ~= "number" or not (c[key] > 0 and c[key] < math.huge) then
      local shown = c[key] == nil and "missing" or tostring(c[key])
      q.error("format", ("%s: %s is %s, expected a positive number"):format(path, key, shown))
    end
  end
  if type(c.target_modules) ~= "table" and type(c.target_modules) ~= "string" then
    q.error("format", path .. ": target_modules has to be a list of layer names, or a pattern")
  end
  for _, name in ipairs(given(c.modules_to_save) and c.modules_to_save or {}) do
    if name ~= "embed_tokens" and name ~= "lm_head" then
      q.error("unsupported", ("%s: modules_to_save has %s; embed_tokens and lm_head are supported"):format(path,
        tostring(name)))
    end
  end
  c.ranks, c.alphas = read_patterns(c, "rank_pattern", path), read_patterns(c, "alpha_pattern", path)
  return c
end

-- Whether the config lists the layer. nil if a pattern or a key that excludes layers says it, or if the layer is of
-- experts, whose fused weights PEFT may have left alone: then the file decides.
local function listed(c, layer)
  if type(c.target_modules) == "string" or given(c.exclude_modules) or given(c.layers_to_transform) then return nil end
  for _, target in ipairs(c.target_modules) do
    if lora.matches(layer.name, target) then return not layer.experts or nil end
  end
  return false
end

-- The targets of the layers that were found: the config's, if each is of some, and they are of no others; else the
-- names of the layers. PEFT takes targets that match nothing.
local function targets_of(model, c, names)
  local targets, found, used = c.target_modules, {}, {}
  if type(targets) == "string" then return names end
  for _, name in ipairs(names) do found[name] = true end
  for _, layer in ipairs(model.linears) do
    local matched = nil
    for _, target in ipairs(targets) do
      if lora.matches(layer.name, target) then matched, used[target] = true, true end
    end
    if matched ~= found[layer.name] then return names end
  end
  for _, target in ipairs(targets) do
    if not used[target] then return names end
  end
  return targets
end

-- The patterns that match one of these layers. PEFT takes others, too.
local function patterns_of(patterns, names)
  local list = {}
  for _, entry in ipairs(patterns) do
    local used = false
    for _, name in ipairs(names) do used = used or lora.matches(name, entry[1]) end
    if used then list[#list + 1] = entry end
  end
  return list
end

-- Calls visit(layer, rank, alpha, tensor(part, shape)) for each layer that the adapter of folder `dir` has. Returns its
-- config. Missing parts of layers, and tensors that belong to no layer, are errors.
local function each_layer(model, dir, visit)
  local c, file, count = read_config(dir), q.weights.open(dir .. "/adapter_model.safetensors"), 0
  for _, layer in ipairs(model.linears) do
    local base = prefix .. layer.name
    local wanted, first = listed(c, layer), file:info(base .. ".lora_A.weight")
    if wanted or wanted == nil and first then
      local rank = lora.of_pattern(c.ranks, layer.name, c.r)
      visit(layer, rank, lora.of_pattern(c.alphas, layer.name, c.lora_alpha), function(part, shape, dtype)
        if not file:info(base .. part) then
          q.error("format", ("%s: tensor %s is missing: the adapter belongs to another model"):format(dir,
            base .. part))
        end
        count = count + 1
        local tensor = file:tensor(base .. part, { dtype = dtype or model.dtype, shape = shape })
        return value_heads.adapter_from(model.config, layer.name .. part, tensor)
      end, c)
    end
  end
  local embeddings = {}
  for _, name in ipairs { new_tokens.embed_name, new_tokens.head_name } do
    local info = file:info(prefix .. name)
    if info then count, embeddings[name] = count + 1, info end
  end
  range.check_adapter(model, dir, count, #file:names())
  return c, file, embeddings, count
end

-- Takes over the embedding and head that an adapter brings. One that it does not bring stays the base model's, also if
-- that is tied: PEFT keeps a copy of the trained one and leaves the other alone.
local function take_embeddings(model, dir, c, file, embeddings)
  local function matrix(name, base)
    local info = embeddings[name]
    if not info then return q.keep(base:dtype() == model.dtype and base:clone() or base:to(model.dtype)) end
    local shape = { info.shape[1], model.config.hidden }
    return q.keep(file:tensor(prefix .. name, { dtype = model.dtype, shape = shape }):clone())
  end
  local embed, head = matrix(new_tokens.embed_name, model.embed), matrix(new_tokens.head_name, model.head)
  if embed:shape()[1] ~= head:shape()[1] then
    q.error("format", ("%s: embed_tokens has %d rows, lm_head %d"):format(dir, embed:shape()[1], head:shape()[1]))
  end
  if model.config.tied and (c.ensure_weight_tying == true or embed:hash() == head:hash()) then head = embed end
  new_tokens.set_embeddings(model, embed, head)
  new_tokens.train_embeddings(model)
end

-- An adapter folder's own tokenizer takes the place of the model's, if it is another one.
local function take_tokenizer(model, dir)
  if q.fs.kind(dir .. "/tokenizer.json") ~= "file" and q.fs.kind(dir .. "/tokenizer.model") ~= "file" then return end
  local tokenizer = q.tokenizer(dir)
  local own = model.tokenizer
  local same_tokens = own and tokenizer:hash() == own:hash()
  if same_tokens and tokenizer:info().chat_template == own:info().chat_template then return end
  if tokenizer:vocab_size() > model.config.vocab then
    q.error("format", ("%s: its tokenizer has %d tokens, the model with it %d"):format(dir, tokenizer:vocab_size(),
      model.config.vocab))
  end
  io.stderr:write(dir .. ": its tokenizer and chat template are used instead of the model's\n")
  model.tokenizer, model.tokenizer_dir = tokenizer, dir
end

-- Puts the adapter of folder `dir` on the model, and the head that drafts tokens if one was trained beside it.
function peft.load(model, dir)
  local layers, names = {}, {}
  local c, file, embeddings = each_layer(model, dir, function(layer, rank, _, tensor, config)
    local shape_a, shape_b = lora.shapes(layer, rank)
    layers[layer] = { a = tensor(".lora_A.weight", shape_a), b = tensor(".lora_B.weight", shape_b) }
    if config.use_dora == true then
      layers[layer].magnitude = tensor(".lora_magnitude_vector", { shape_b[1] }, "f32")
    end
    names[#names + 1] = layer.name
  end)
  model:lora {
    rank = c.r, alpha = c.lora_alpha, rslora = c.use_rslora == true, dropout = tonumber(c.lora_dropout) or 0,
    dora = c.use_dora == true, targets = targets_of(model, c, names), ranks = patterns_of(c.ranks, names),
    alphas = patterns_of(c.alphas, names),
  }
  for layer, parts in pairs(layers) do
    for part, tensor in pairs(parts) do layer.lora[part]:copy(tensor) end
  end
  if next(embeddings) then take_embeddings(model, dir, c, file, embeddings) end
  take_tokenizer(model, dir)
  if q.fs.kind(mtp.beside(dir)) then mtp.attach(model, { from = dir, writable = true }) end
  file:close()
  return model
end

-- The adapter of folder `dir` for single requests.
function peft.read(model, dir)
  local adapter = { dir = dir, layers = {} }
  local _, file, embeddings, taken = each_layer(model, dir, function(layer, rank, alpha, tensor, config)
    local shape_a, shape_b = lora.shapes(layer, rank)
    local parts = {
      a = q.keep(tensor(".lora_A.weight", shape_a):clone()), b = q.keep(tensor(".lora_B.weight", shape_b):clone()),
      scale = lora.scale(alpha, rank, config.use_rslora == true),
    }
    if config.use_dora == true then
      parts.magnitude = q.keep(tensor(".lora_magnitude_vector", { shape_b[1] }, "f32"):clone())
      parts.squares = lora.squares(model, layer)
    end
    adapter.layers[layer.name] = parts
  end)
  if next(embeddings) then
    q.error("unsupported", dir .. ": brings an embedding of its own, which a single request cannot have: load_adapter "
      .. "puts it on the model")
  end
  adapter.taken, adapter.tensors = taken, #file:names()
  file:close()
  return adapter
end

-- The weights of a layer of experts with the adapter of each.
local function merged_experts(layer, adapter)
  local shape, list = layer.weight:shape(), {}
  local function of(tensor, e)
    local its = tensor:shape()
    return tensor:rows(e, 1):reshape { its[2], its[3] }
  end
  for e = 0, shape[1] - 1 do
    list[e + 1] = q.adapters.merge_lora(of(layer.weight, e),
      { a = of(adapter.a, e), b = of(adapter.b, e), scale = adapter.scale })
  end
  return q.no_grad(q.stack, list)
end

-- Adds scale * b a to each weight, in f32, and drops the adapter. Under DoRA rows take the lengths of its magnitude.
-- The merged weight is rounded once, to the model's dtype. This holds for weights stored in another one, too: f16, a
-- block format, or bits and ternary words with the scales of their rows, which become ordinary weights. A weight that
-- is stored rotated stays so: a is rotated to it.
function peft.merge(model)
  for _, layer in ipairs(model.linears) do
    if layer.lora then
      local adapter = layer.lora
      local a = adapter.a
      if layer.rotation then
        a = q.no_grad(function() return q.hadamard(adapter.a:to "f32", layer.rotation) end)
      end
      local base = layer.row_scale and q.onebit.join_row_scale(layer.weight, layer.row_scale, "f32") or layer.weight
      local parts = { a = a, b = adapter.b, scale = adapter.scale }
      local merged = layer.experts and merged_experts(layer, adapter)
        or adapter.magnitude and q.adapters.merge_dora(base, parts, adapter.magnitude)
        or q.adapters.merge_lora(base, parts)
      if merged:dtype() ~= model.dtype then merged = merged:to(model.dtype) end
      for _, parameter in ipairs(model.parameters) do
        if parameter.tensor == layer.weight then
          parameter.tensor, parameter.row_scale = merged:label(parameter.name), nil
        end
      end
      layer.weight, layer.row_scale, layer.lora = merged, nil, nil
    end
  end
  for _, parameter in ipairs(model.extra or {}) do parameter.tensor:requires_grad(false) end
  model.adapter, model.extra, model.mode = nil, nil, "frozen"
  return model
end

return peft
