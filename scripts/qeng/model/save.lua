-- Writes a model as a Hugging Face folder.

local q = require "qeng.core"
local architectures = require "qeng.model.architectures"
local config = require "qeng.model.config"
local experts = require "qeng.model.experts"
local kept = require "qeng.model.kept"
local new_tokens = require "qeng.model.new_tokens"

-- The files of a model folder that are copied as they are.
local companions = {
  "generation_config.json", "tokenizer.json", "tokenizer_config.json", "tokenizer.model", "special_tokens_map.json",
  "added_tokens.json", "vocab.json", "merges.txt", "chat_template.jinja", "chat_template.json",
  "preprocessor_config.json", "video_preprocessor_config.json", "processor_config.json",
}

-- {{name, tensor, dtype or nil}...}: the parameters as files have them. dtype: nil, or of all that need not be exact.
local function tensors_of(model, dtype)
  local parameters, by_name = { unpack(model.parameters) }, {}
  for _, parameter in ipairs(model.mtp and model.mtp.parameters or {}) do parameters[#parameters + 1] = parameter end
  for _, parameter in ipairs(parameters) do by_name[parameter.name] = parameter.tensor end
  local function plain(name) return q.no_grad(by_name[name].to, by_name[name], dtype or model.dtype) end
  local function stored(name, tensor)
    local own = model.arch.stored and model.arch.stored(name, tensor, plain, model)
    local stack = experts.is_stack(name, tensor:shape())
    return own or stack and model.fused_experts and experts.fuse(name, plain) or experts.matrices(name, tensor)
  end
  local tensors, turns = {}, model.arch.transposed or function() return false end
  for _, parameter in ipairs(parameters) do
    local name, tensor = parameter.name, parameter.tensor
    if turns(name) then tensor = q.no_grad(function() return plain(name):transpose():clone() end) end
    local exact = architectures.is_exact(model.arch, name) and tensor:dtype() == "f32" and "f32" or nil
    for _, part in ipairs(stored(name, tensor)) do
      tensors[#tensors + 1] = { kept.name(model, part[1]), part[2], exact }
    end
  end
  for _, layer in ipairs(model.linears) do
    if layer.row_scale then
      tensors[#tensors + 1] = { kept.name(model, layer.name .. ".weight_scale"), layer.row_scale, "f32" }
    end
  end
  for _, tensor in ipairs(kept.tensors(model, dtype or model.dtype)) do tensors[#tensors + 1] = tensor end
  return tensors
end

-- What config.json says.
local function values_of(model, dtype)
  local values = {}
  for key, value in pairs(model.config_values) do values[key] = value end
  values.torch_dtype = ({ f32 = "float32", bf16 = "bfloat16", f16 = "float16" })[dtype or model.dtype]
  values.dtype = values.dtype and values.torch_dtype or nil
  values.quantization_config = nil  -- what was packed is written as the values that it stood for
  return kept.values(model, values)
end

local function write_companions(model, folder)
  if model.tokenizer_dir then new_tokens.copy_tokenizer(model.tokenizer_dir, folder) end
  if model.dir then
    for _, name in ipairs(companions) do
      local from, to = model.dir .. "/" .. name, folder .. "/" .. name
      if q.fs.kind(to) ~= "file" and q.fs.kind(from) == "file" then q.fs.copy(from, to) end
    end
  elseif model.gguf and model.tokenizer then
    if not model.tokenizer_dir then model.tokenizer:save(folder) end
    local stops = { eos_token_id = q.json.array(model.stop_ids) }
    if #model.suppressed > 0 then stops.suppress_tokens = q.json.array(model.suppressed) end
    q.fs.write(folder .. "/generation_config.json", q.json.encode(stops, { pretty = true }) .. "\n")
  end
end

-- The weights as they are (merge first): config, tokenizer files, safetensors in shards, and what the model's own
-- folder has beside them (model/kept.lua). opt: dtype, max_shard_bytes. dtype: by default the weights' own. That is f16
-- if they were loaded as such, and the model's if they come from a GGUF file.
return function(model, dir, opt)
  opt = opt or {}
  if model.rotations then
    q.error("unsupported", "save: the weights are stored rotated, which a config.json cannot say; save_gguf writes "
      .. "them unrotated, and what is loaded from that file can be saved")
  end
  if model.config.rope and model.config.rope.factors then
    q.error("unsupported", "save: rope_freqs.weight holds factors of no known setting, which a config.json cannot say; "
      .. "recipes/quantize.lua copies the GGUF file with it")
  end
  local dtype = opt.dtype or model.gguf and model.dtype or model.saved_dtype
  local tensors, values = tensors_of(model, dtype), values_of(model, dtype)
  q.fs.write_dir(dir, function(folder)
    q.safetensors.save(folder, tensors, kept.copied(model, {
      metadata = { format = "pt" }, max_shard_bytes = opt.max_shard_bytes or 4e9, dtype = dtype,
    }))
    q.fs.write(folder .. "/config.json", config.text(values))
    write_companions(model, folder)
  end)
end
