-- Adapters as GGUF files, as llama.cpp loads them beside a model: TENSOR.lora_a [rank, in] and TENSOR.lora_b [out, rank] in f32,
-- y += (alpha / rank) b a x. The rows of b are in llama's order where those of the weight are.

local names = require "qeng.gguf_names"
local q = require "qeng.core"

local lora = {}

function lora.save(model, path)
  local adapter = model.adapter
  if not adapter then q.error("value", "save_adapter_gguf: this model has no adapter") end
  local a = names.architecture(model.arch.hf)
  -- llama.cpp divides alpha by the rank; rsLoRA by its root.
  local alpha = adapter.rslora and adapter.alpha * math.sqrt(adapter.rank) or adapter.alpha
  local specs, parts = {}, {}
  for _, layer in ipairs(model.linears) do
    if layer.lora then
      local weight = layer.name .. ".weight"
      local stored = names.to_gguf(weight)
      parts[#parts + 1] = { name = stored .. ".lora_a", tensor = layer.lora.a }
      parts[#parts + 1] = { name = stored .. ".lora_b", tensor = layer.lora.b, heads = names.heads(a, weight, model.config) }
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
      writer:write(part.name, tensor, { heads = part.heads })
    end)
  end
  writer:commit()
end

-- Puts the adapter of a GGUF file on the model.
function lora.load(model, path)
  local file = q.gguf.open(path)
  local a = names.architecture(model.arch.hf)
  if file:get "general.type" ~= "adapter" or file:get "adapter.type" ~= "lora" then
    q.error("value", path .. ": is not a LoRA adapter (general.type = adapter, adapter.type = lora)")
  end
  if file:get "general.architecture" ~= a then
    q.error("value", ("%s: is for architecture %s, this model is %s"):format(path, tostring(file:get "general.architecture"), a))
  end
  local rank, roles, targets, known = nil, {}, {}, 0
  for _, layer in ipairs(model.linears) do
    local info = file:info(names.to_gguf(layer.name .. ".weight") .. ".lora_a")
    if info then
      rank = rank or info.shape[1]
      if info.shape[1] ~= rank then q.error("unsupported", path .. ": ranks differ between layers") end
      if not roles[layer.role] then roles[layer.role], targets[#targets + 1] = true, layer.role end
      known = known + 2
    end
  end
  if not rank or known ~= #file:names() then
    q.error("format", ("%s: %d tensors, of which this model has %d"):format(path, #file:names(), known))
  end
  model:lora { rank = rank, alpha = file:get "adapter.lora.alpha", targets = targets }
  for _, layer in ipairs(model.linears) do
    if layer.lora then
      local weight = layer.name .. ".weight"
      local stored = names.to_gguf(weight)
      if not file:info(stored .. ".lora_a") or not file:info(stored .. ".lora_b") then
        q.error("unsupported", ("%s: has no adapter for %s, though for its like in other layers"):format(path, stored))
      end
      layer.lora.a:copy(file:tensor(stored .. ".lora_a", { dtype = model.dtype, shape = layer.lora.a:shape() }))
      layer.lora.b:copy(file:tensor(stored .. ".lora_b", { dtype = model.dtype, shape = layer.lora.b:shape(), heads = names.heads(a, weight, model.config) }))
    end
  end
  file:close()
  return model
end

return lora
