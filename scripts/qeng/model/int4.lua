-- Hugging Face folders whose linear layers AWQ or GPTQ quantized to 4 bits. config.json says so (quantization_config),
-- and such a layer has qweight, qzeros and scales in place of its weight. Each becomes a tensor of int4 blocks of the
-- same values; or of f16 if GPTQ chose the order of the inputs (act-order).

local nf4 = require "qeng.model.nf4"
local q = require "qeng.core"

local int4 = {}

local instead = "convert the unquantized model with recipes/quantize.lua instead"

local function refuse(file, key, value, expected)
  q.error("unsupported", ("%s: quantization_config.%s is %s; %s is supported: %s"):format(file.path, key,
    tostring(value), expected, instead))
end

-- Keys of quantization_config that decide how weights are packed, and their values, by method. nil and null fit too.
local demands = {
  awq = { bits = 4, w_bit = 4, version = "gemm", zero_point = true },
  gptq = { bits = 4, checkpoint_format = "gptq" },
}

-- The method of a config (model/config.lua), "awq" or "gptq", and the group size (0: whole rows). nil: not quantized.
local function method_of(file)
  local values = file.values.quantization_config
  if values == nil or values == q.json.null then return nil end
  file.used.quantization_config = true
  local method = type(values) == "table" and values.quant_method
  local wanted = demands[method]
  if not wanted then refuse(file, "quant_method", method, "awq, gptq or bitsandbytes") end
  for key, expected in pairs(wanted) do
    local value = values[key]
    if type(value) == "string" then value = value:lower() end
    if value ~= nil and value ~= q.json.null and value ~= expected then refuse(file, key, value, tostring(expected)) end
  end
  local group = values.group_size or values.q_group_size or 128
  if type(group) ~= "number" or group ~= -1 and (group < 32 or group % 32 ~= 0) then
    refuse(file, "group_size", group, "a multiple of 32, or -1")
  end
  return method, math.max(group, 0)
end

-- Reads a quantized folder: {take(name, shape, known), spare(name)}; nil if it is not quantized. take: the tensor of a
-- weight, whose parts it marks in known; nil if it is stored as it is. spare: whether a tensor is a bias of zeros that
-- GPTQ gave to a layer without one. dtype: the model's; NF4 weights of bitsandbytes take it (model/nf4.lua).
function int4.of(file, weights, dtype)
  local settings = file.values.quantization_config
  if type(settings) == "table" and settings.quant_method == "bitsandbytes" then return nf4.of(file, weights, dtype) end
  local method, group = method_of(file)
  if not method then return nil end
  local told = false
  local function take(name, shape, known)
    local layer = name:match "^(.*)%.weight$"
    if not layer or not weights:info(layer .. ".qweight") then return nil end
    local parts = { name = ("%s: layer %s"):format(file.path, layer) }
    for _, part in ipairs { "qweight", "qzeros", "scales", "g_idx" } do
      local full = layer .. "." .. part
      if weights:info(full) then
        parts[part], known[full] = weights:tensor(full), true
      elseif part ~= "g_idx" then
        q.error("format", ("%s: tensor %s is missing beside %s.qweight"):format(file.path, full, layer))
      end
    end
    local tensor = q.repack_int4(method, parts)
    local found = tensor:shape()
    if found[1] ~= shape[1] or found[2] ~= shape[2] then
      q.error("shape", ("%s: layer %s is [%d, %d], expected [%d, %d]: the file belongs to another model or "
        .. "configuration"):format(file.path, layer, found[1], found[2], shape[1], shape[2]))
    end
    local groups = parts.scales:shape()[1]
    if shape[2] / groups ~= (group > 0 and group or shape[2]) then
      q.error("format", ("%s: layer %s has groups of %d inputs, quantization_config says %d"):format(file.path, layer,
        shape[2] / groups, group))
    end
    if tensor:dtype() == "f16" and not told then
      told = true
      io.stderr:write(file.path, ": weights of GPTQ's act-order are decoded to f16, and take four times their size in "
        .. "memory\n")
    end
    return tensor
  end
  local function spare(name)
    local layer = name:match "^(.*)%.bias$"
    if not layer or not weights:info(layer .. ".qweight") then return false end
    for _, value in ipairs(weights:tensor(name):table()) do
      if value ~= 0 then return false end
    end
    return true
  end
  return { take = take, spare = spare }
end

return int4
