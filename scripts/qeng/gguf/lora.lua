-- Adapters as GGUF files, which llama.cpp loads beside a model: TENSOR.lora_a [rank, in] and TENSOR.lora_b [out, rank]
-- in f32, y += (alpha / rank) b a x. The rows of b are in llama's order if those of the weight are. Those of all
-- experts are one tensor, with a dimension in front.

local model_lora = require "qeng.model.lora"
local names = require "qeng.gguf.names"
local q = require "qeng.core"

local lora = {}

function lora.save(model, path)
  local adapter = model.adapter
  if not adapter then q.error("value", "save_adapter_gguf: this model has no adapter") end
  local a = names.architecture(model.arch)
  if model.extra then
    q.error("unsupported", "save_adapter_gguf: GGUF's adapters have no embedding; merge the adapter and write the "
      .. "model (recipes/quantize.lua)")
  end
  if adapter.dora then
    q.error("unsupported", "save_adapter_gguf: GGUF has no DoRA; merge the adapter and write the model "
      .. "(recipes/quantize.lua)")
  end
  -- llama.cpp divides one alpha by each layer's rank. The rest of a layer's scale goes into its b.
  local alpha = adapter.rslora and adapter.alpha * math.sqrt(adapter.rank) or adapter.alpha
  local specs, parts = {}, {}
  for _, layer in ipairs(model.linears) do
    if layer.lora then
      local weight = layer.name .. ".weight"
      local stored = names.to_gguf(weight, model.arch)
      parts[#parts + 1] = { name = stored .. ".lora_a", tensor = layer.lora.a }
      local factor = layer.lora.scale * model_lora.rank(layer.lora.a) / alpha
      parts[#parts + 1] = {
        name = stored .. ".lora_b", tensor = layer.lora.b, heads = names.heads(model.arch, weight, model.config),
        factor = math.abs(factor - 1) > 1e-9 and factor,
      }
    end
  end
  for i, part in ipairs(parts) do specs[i] = { name = part.name, dtype = "f32", shape = part.tensor:shape() } end
  local writer = q.gguf.writer(path, specs, {
    { "general.architecture", "string", a }, { "general.type", "string", "adapter" }, { "general.file_type", "u32", 0 },
    { "adapter.type", "string", "lora" }, { "adapter.lora.alpha", "f32", alpha },
  })
  for _, part in ipairs(parts) do
    q.no_grad(q.scope, function()
      local tensor = part.tensor:dtype() == "f32" and part.tensor or part.tensor:to "f32"
      writer:write(part.name, part.factor and tensor * part.factor or tensor, { heads = part.heads })
    end)
  end
  writer:commit()
end

-- The adapter of a GGUF file for single requests, in the form of peft.read, and its alpha.
function lora.read(model, path)
  local file = q.gguf.open(path)
  local a = names.architecture(model.arch)
  if file:get "general.type" ~= "adapter" or file:get "adapter.type" ~= "lora" then
    q.error("value", path .. ": is not a LoRA adapter (general.type = adapter, adapter.type = lora)")
  end
  if file:get "general.architecture" ~= a then
    q.error("value", ("%s: is for architecture %s, this model is %s"):format(path,
      tostring(file:get "general.architecture"), a))
  end
  local alpha = file:get "adapter.lora.alpha"
  if type(alpha) ~= "number" then q.error("format", path .. ": has no number adapter.lora.alpha") end
  local adapter, count = { dir = path, layers = {} }, 0
  for _, layer in ipairs(model.linears) do
    local weight = layer.name .. ".weight"
    local stored = names.to_gguf(weight, model.arch)
    local info = stored and file:info(stored .. ".lora_a")
    if info then
      local rank = info.shape[#info.shape - 1]
      if not file:info(stored .. ".lora_b") then
        q.error("format", ("%s: tensor %s.lora_b is missing"):format(path, stored))
      end
      local shape_a, shape_b = model_lora.shapes(layer, rank)
      local function part(ending, size, heads)
        return q.keep(file:tensor(stored .. ending, { dtype = model.dtype, shape = size, heads = heads }):clone())
      end
      adapter.layers[layer.name] = {
        a = part(".lora_a", shape_a), b = part(".lora_b", shape_b, names.heads(model.arch, weight, model.config)),
        scale = alpha == 0 and 1 or alpha / rank,  -- llama.cpp's
      }
      count = count + 2
    end
  end
  if count == 0 or count ~= #file:names() then
    q.error("format", ("%s: %d tensors, of which this model has %d"):format(path, #file:names(), count))
  end
  file:close()
  return adapter, alpha
end

-- Puts the adapter of a GGUF file on the model.
function lora.load(model, path)
  local adapter, alpha = lora.read(model, path)
  local targets, ranks, alphas, first = {}, {}, {}, nil
  for _, layer in ipairs(model.linears) do
    local own = adapter.layers[layer.name]
    if own then
      local rank = model_lora.rank(own.a)
      first = first or rank
      targets[#targets + 1] = layer.name
      if rank ~= first then ranks[layer.name] = rank end
      if alpha == 0 and rank ~= first then alphas[layer.name] = rank end
    end
  end
  model:lora { rank = first, alpha = alpha == 0 and first or alpha, targets = targets, ranks = ranks, alphas = alphas }
  for _, layer in ipairs(model.linears) do
    if layer.lora then
      layer.lora.a:copy(adapter.layers[layer.name].a)
      layer.lora.b:copy(adapter.layers[layer.name].b)
    end
  end
  return model
end

return lora
