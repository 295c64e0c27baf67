-- Adapters as PEFT stores them: adapter_config.json and adapter_model.safetensors with base_model.model.<layer>.lora_A.weight
-- [rank, in] and lora_B.weight [out, rank].

local q = require "qeng.core"

local peft = {}
local prefix = "base_model.model."

function peft.config(model)
  local adapter = model.adapter
  return {
    peft_type = "LORA", task_type = "CAUSAL_LM", base_model_name_or_path = model.dir or "", r = adapter.rank,
    lora_alpha = adapter.alpha, lora_dropout = adapter.dropout, use_rslora = adapter.rslora,
    target_modules = q.json.array(adapter.targets), bias = "none", fan_in_fan_out = false, inference_mode = true,
  }
end

function peft.save(model, dir)
  if not model.adapter then q.error("value", "save_adapter: this model has no adapter") end
  local tensors = {}
  for _, parameter in ipairs(model.adapter.parameters) do
    tensors[#tensors + 1] = { prefix .. parameter.name, parameter.tensor }
  end
  q.fs.write_dir(dir, function(folder)
    q.safetensors.save(folder .. "/adapter_model.safetensors", tensors, { metadata = { format = "pt" } })
    q.fs.write(folder .. "/adapter_config.json", q.json.encode(peft.config(model), { pretty = true }) .. "\n")
  end)
end

local neutral = {  -- keys that change the mathematics, at the only values supported
  bias = "none", fan_in_fan_out = false, use_dora = false, lora_bias = false, peft_type = "LORA", use_qalora = false,
}

local harmless = { [true] = true, [false] = true, gaussian = true, eva = true, orthogonal = true }  -- init_lora_weights that leave the base model as it is

-- The config of folder `dir`, refused where it asks for what is not supported.
local function read_config(dir)
  local path = dir .. "/adapter_config.json"
  local c = q.json.decode(q.fs.read(path))
  for key, value in pairs(neutral) do
    if c[key] ~= nil and c[key] ~= q.json.null and c[key] ~= value then
      q.error("unsupported", ("%s: %s = %s is not supported, only %s"):format(path, key, tostring(c[key]), tostring(value)))
    end
  end
  for _, key in ipairs { "rank_pattern", "alpha_pattern", "modules_to_save", "layers_to_transform", "layer_replication", "alora_invocation_tokens" } do
    if type(c[key]) == "table" and next(c[key]) ~= nil then q.error("unsupported", ("%s: %s is not supported"):format(path, key)) end
  end
  local init = c.init_lora_weights
  if init ~= nil and init ~= q.json.null and not harmless[init] then
    q.error("unsupported", ("%s: init_lora_weights = %s means a changed base model; save the adapter as one of the model itself (PEFT's path_initial_model_for_weight_conversion)")
      :format(path, tostring(init)))
  end
  for _, key in ipairs { "r", "lora_alpha" } do
    if type(c[key]) ~= "number" or not (c[key] > 0 and c[key] < math.huge) then
      q.error("format", ("%s: %s is %s, expected a positive number"):format(path, key, c[key] == nil and "missing" or tostring(c[key])))
    end
  end
  if type(c.target_modules) ~= "table" then q.error("unsupported", path .. ": target_modules has to be a list of layer names") end
  return c
end

local function adapter_tensor(file, dir, name, dtype, shape)
  if not file:info(prefix .. name) then q.error("format", ("%s: tensor %s is missing: the adapter belongs to another model"):format(dir, prefix .. name)) end
  return file:tensor(prefix .. name, { dtype = dtype, shape = shape })
end

-- Puts the adapter of folder `dir` on the model.
function peft.load(model, dir)
  local c = read_config(dir)
  model:lora { rank = c.r, alpha = c.lora_alpha, rslora = c.use_rslora, dropout = c.lora_dropout, targets = c.target_modules }
  local file = q.safetensors.open(dir .. "/adapter_model.safetensors")
  for _, parameter in ipairs(model.adapter.parameters) do
    parameter.tensor:copy(adapter_tensor(file, dir, parameter.name, model.dtype, parameter.tensor:shape()))
  end
  if #file:names() ~= #model.adapter.parameters then
    q.error("format", ("%s: %d tensors, of which this model has %d"):format(dir, #file:names(), #model.adapter.parameters))
  end
  file:close()
  return model
end

-- The adapter of folder `dir` for single requests.
function peft.read(model, dir)
  local c = read_config(dir)
  local file, targets, adapter, count = q.safetensors.open(dir .. "/adapter_model.safetensors"), {}, { dir = dir, layers = {} }, 0
  for _, name in ipairs(c.target_modules) do targets[name] = true end
  for _, layer in ipairs(model.linears) do
    if targets[layer.role] then
      local shape = layer.weight:shape()
      adapter.layers[layer.name] = {
        a = q.keep(adapter_tensor(file, dir, layer.name .. ".lora_A.weight", model.dtype, { c.r, shape[2] }):clone()),
        b = q.keep(adapter_tensor(file, dir, layer.name .. ".lora_B.weight", model.dtype, { shape[1], c.r }):clone()),
        scale = c.lora_alpha / (c.use_rslora and math.sqrt(c.r) or c.r),
      }
      count = count + 2
    end
  end
  if #file:names() ~= count then
    q.error("format", ("%s: %d tensors, of which this model has %d"):format(dir, #file:names(), count))
  end
  file:close()
  return adapter
end

-- Adds scale * b a to each weight, in f32, and drops the adapter. The merged weight is rounded once to the model's dtype, also
-- where it was stored in another (f16, a block format, bits or ternary words with the scales of their rows, which become ordinary
-- weights). A weight that is stored rotated stays so: a is rotated to it.
function peft.merge(model)
  for _, layer in ipairs(model.linears) do
    if layer.lora then
      local lora = layer.lora
      local a = layer.rotation and q.no_grad(function() return q.hadamard(lora.a:to "f32", layer.rotation) end) or lora.a
      local base = layer.row_scale and q.join_row_scale(layer.weight, layer.row_scale, "f32") or layer.weight
      local merged = q.merge_lora(base, { a = a, b = lora.b, scale = lora.scale })
      if merged:dtype() ~= model.dtype then merged = merged:to(model.dtype) end
      for _, parameter in ipairs(model.parameters) do
        if parameter.tensor == layer.weight then parameter.tensor, parameter.row_scale = merged:label(parameter.name), nil end
      end
      layer.weight, layer.row_scale, layer.lora = merged, nil, nil
    end
  end
  model.adapter, model.mode = nil, "frozen"
  return model
end

return peft
