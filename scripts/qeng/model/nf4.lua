-- Hugging Face folders whose linear layers bitsandbytes quantized to 4 bits (QLoRA's bases). Loading decodes their
-- weights to the very numbers that bitsandbytes computes with. They then take the memory of 16-bit weights.

local q = require "qeng.core"

local nf4 = {}

local dtypes = { bfloat16 = "bf16", float16 = "f16", float32 = "f32" }

local function refuse(file, key, value, expected)
  q.error("unsupported", ("%s: quantization_config.%s is %s; %s is supported: convert the unquantized model with "
    .. "recipes/quantize.lua instead"):format(file.path, key, tostring(value), expected))
end

-- A quantization state. safetensors hold it as the bytes of a JSON text.
local function read_state(tensor, name)
  local bytes = tensor:table()
  if #bytes > 65536 then q.error("format", name .. ": is no quantization state") end
  for i, byte in ipairs(bytes) do bytes[i] = string.char(byte) end
  local ok, state = pcall(q.json.decode, table.concat(bytes))
  if not ok or type(state) ~= "table" then q.error("format", name .. ": is no JSON object") end
  return state
end

-- Reads a folder with quant_method = bitsandbytes: {take(name, shape, known), spare(name)}, as int4.of has them. dtype:
-- the model's.
function nf4.of(file, weights, dtype)
  local values = file.values.quantization_config
  if values.load_in_4bit ~= true then refuse(file, "load_in_4bit", values.load_in_4bit, "true") end
  if values.bnb_4bit_quant_type ~= "nf4" then refuse(file, "bnb_4bit_quant_type", values.bnb_4bit_quant_type, "nf4") end
  local storage = values.bnb_4bit_quant_storage
  if storage ~= nil and storage ~= q.json.null and storage ~= "uint8" then
    refuse(file, "bnb_4bit_quant_storage", storage, "uint8")
  end
  file.values.quantization_config = nil  -- what is saved of the model is not quantized
  io.stderr:write(file.path, ": weights of bitsandbytes' NF4 are decoded, and take four times their size in memory\n")

  local function take(name, shape, known)
    local state_name = name .. ".quant_state.bitsandbytes__nf4"
    if not weights:info(state_name) then return nil end
    local state = read_state(weights:tensor(state_name), file.path .. ": " .. state_name)
    known[name], known[state_name] = true, true
    local function part(ending)
      local full = name .. "." .. ending
      if not weights:info(full) then return nil end
      known[full] = true
      return weights:tensor(full)
    end
    local sizes = type(state.shape) == "table" and state.shape or {}
    if sizes[1] ~= shape[1] or sizes[2] ~= shape[2] or #sizes ~= 2 then
      q.error("shape", ("%s: layer %s is [%s], expected [%d, %d]: the file belongs to another model or configuration")
        :format(file.path, name, table.concat(sizes, ", "), shape[1], shape[2]))
    end
    local own = dtypes[state.dtype]
    if not own then
      q.error("format", ("%s: %s: dtype is %s, expected bfloat16, float16 or float32"):format(file.path, state_name,
        tostring(state.dtype)))
    end
    local decoded = q.decode_nf4({
      codes = weights:tensor(name), map = part "quant_map", absmax = part "absmax", block = state.blocksize,
      nested_map = part "nested_quant_map", nested_absmax = part "nested_absmax", nested_offset = state.nested_offset,
      nested_block = state.nested_blocksize, name = file.path .. ": " .. name,
    }, shape, own)
    return own == dtype and decoded or decoded:to(dtype)
  end
  return { take = take, spare = function() return false end }
end

return nf4
