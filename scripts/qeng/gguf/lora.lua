-- Adapters as GGUF files, which llama.cpp loads beside a model: TENSOR.lora_a [rank, in] and TENSOR.lora_b [out, rank]
-- in f32, y += (alpha / rank) b a x. The rows of b and the columns of a are in llama's order if those of the weight
-- are. Those of all experts are one tensor, with a dimension in front. Of a layer that GGUF has as several each has the
-- same a.

local model_lora = require "qeng.model.lora"
local names = require "qeng.gguf.names"
local q = require "qeng.core"
local range = require "qeng.model.range"
local value_heads = require "qeng.model.value_heads"

local lora = {}

-- The matrices of a layer's adapter as the file has them: {{name, a, b}...}.
local function as_stored(model, layer)
  local c, weight = model.config, layer.name .. ".weight"
  local apart, a, b = names.apart(model.arch, weight), layer.lora.a, layer.lora.b
  if not apart then
    return { {
      names.to_gguf(weight, model.arch), value_heads.to(c, "columns", layer.name, a, true),
      value_heads.to(c, "rows", layer.name, b, true),
    } }
  end
  local list, rows = {}, { q.no_grad(apart.rows, b, c) }
  for i, stored in ipairs(names.all(weight, model.arch)) do list[i] = { stored, a, rows[i] } end
  return list
end

-- Refuses an adapter that such a file cannot hold.
function lora.check(model)
  if model.extra then
    q.error("unsupported", "save_adapter_gguf: GGUF's adapters have no embedding; merge the adapter and write the "
      .. "model (recipes/quantize.lua)")
  end
  if model.adapter.dora then
    q.error("unsupported", "save_adapter_gguf: GGUF has no DoRA; merge the adapter and write the model "
      .. "(recipes/quantize.lua)")
  end
end

function lora.save(model, path)
  local adapter = model.adapter
  if not adapter then q.error("value", "save_adapter_gguf: this model has no adapter") end
  local a = names.architecture(model.arch)
  lora.check(model)
  -- llama.cpp divides one alpha by each layer's rank. The rest of a layer's scale goes into its b.
  local alpha = adapter.rslora and adapter.alpha * math.sqrt(adapter.rank) or adapter.alpha
  local specs, parts = {}, {}
  for _, layer in ipairs(model.linears) do
    if layer.lora then
      local factor = layer.lora.scale * model_lora.rank(layer.lora.a) / alpha
      local heads = names.heads(model.arch, layer.name .. ".weight", model.config)
      for _, each in ipairs(as_stored(model, layer)) do
        parts[#parts + 1] = { name = each[1] .. ".lora_a", tensor = each[2] }
        parts[#parts + 1] = {
          name = each[1] .. ".lora_b", tensor = each[3], heads = heads,
          factor = math.abs(factor - 1) > 1e-9 and factor,
        }
      end
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

-- a and b of a layer's adapter from an open file, and how many tensors that are; nil if it has none.
local function of_file(model, layer, file, path)
  local c, weight = model.config, layer.name .. ".weight"
  local stored, apart = names.all(weight, model.arch), names.apart(model.arch, weight)
  local info = stored[1] and file:info(stored[1] .. ".lora_a")
  if not info then return nil end
  local rank = info.shape[#info.shape - 1]
  local shape_a, shape_b = model_lora.shapes(layer, rank)
  local function part(name, size, heads)
    if not file:info(name) then q.error("format", ("%s: tensor %s is missing"):format(path, name)) end
    return file:tensor(name, { dtype = model.dtype, shape = size, heads = heads }):clone()
  end
  local a = part(stored[1] .. ".lora_a", shape_a)
  if not apart then
    local b = part(stored[1] .. ".lora_b", shape_b, names.heads(model.arch, weight, c))
    return value_heads.from(c, "columns", layer.name, a, true), value_heads.from(c, "rows", layer.name, b, true), 2
  end
  local rows = {}
  for i, name in ipairs(stored) do
    rows[i] = part(name .. ".lora_b", { apart.counts(c)[i], rank })
    if part(name .. ".lora_a", shape_a):hash() ~= a:hash() then
      q.error("unsupported", ("%s: %s and %s have adapters of their own, and are one layer in this model: put the "
        .. "adapter on the GGUF file that it is for"):format(path, stored[1], name))
    end
  end
  rows[#rows + 1] = c
  return a, q.no_grad(apart.join, unpack(rows)), 2 * #stored
end

-- What is known of an adapter. The last two say what it is for, not what it computes.
local entries = {
  ["adapter.type"] = true, ["adapter.lora.alpha"] = true, ["adapter.lora.task_name"] = true,
  ["adapter.lora.prompt_prefix"] = true,
}

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
  for _, key in ipairs(file:keys()) do
    if key:find "^adapter%." and not entries[key] then
      local alora = key:find "^adapter%.alora%." and ": an activated LoRA (aLoRA) begins at its invocation tokens, and "
        .. "here an adapter is for all tokens; use a plain LoRA of the same task" or ""
      q.error("unsupported", ("%s: has the entry %s, which may change what the adapter computes, so it is refused%s")
        :format(path, key, alora))
    end
  end
  local adapter, count = { dir = path, layers = {} }, 0
  for _, layer in ipairs(model.linears) do
    local inner, outer, tensors = of_file(model, layer, file, path)
    if inner then
      local scale = alpha == 0 and 1 or alpha / model_lora.rank(inner)  -- llama.cpp's
      adapter.layers[layer.name] = { a = q.keep(inner), b = q.keep(outer), scale = scale }
      count = count + tensors
    end
  end
  adapter.taken, adapter.tensors = count, #file:names()
  range.check_adapter(model, path, count, adapter.tensors)
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
