-- Training in fp8 (--dtype fp8): a model in bf16, most of whose products are of numbers rounded to E4M3. Weights,
-- activations, gradients and what the optimizer keeps are as in bf16.

local lora = require "qeng.model.lora"
local q = require "qeng.core"

local fp8 = {}

-- The options of the bf16 model that it begins with.
function fp8.begin(opt)
  local own = {}
  for name, value in pairs(opt) do own[name] = value end
  own.dtype = "bf16"
  return own
end

-- Layers on which adapters are put by default multiply in E4M3 from now on. Embedding, head, experts, and gates and
-- routers of few outputs, which decide much and cost nothing, stay in bf16. Returns the model.
function fp8.set(model)
  local roles, count = lora.roles(model), 0
  for _, layer in ipairs(model.linears) do
    local wanted = false
    for _, role in ipairs(roles) do wanted = wanted or layer.role == role or lora.matches(layer.name, role) end
    if wanted and not layer.experts then
      local dtype = layer.weight:dtype()
      if dtype ~= "bf16" and dtype ~= "f32" then
        q.error("unsupported", ("fp8 rounds weights of bf16 or f32, and that of %s is stored as %s: leave --dtype fp8, "
          .. "or start from the model in bf16"):format(layer.name, dtype))
      end
      layer.fp8, count = true, count + 1
    end
  end
  if count == 0 then q.error("unsupported", "fp8: this model has no linear layers but those of experts") end
  model.fp8 = count
  return model
end

-- What it means, for the facts of a run.
function fp8.text(model)
  local text = ("fp8: bf16, and products of %d of %d linear layers in E4M3"):format(model.fp8, #model.linears)
  for _, one in ipairs(q.devices()) do
    local capability = tonumber(one.description:match "compute capability ([%d.]+)")
    if one.in_use and not (capability and capability >= 8.9) then
      text = text .. ", which this device multiplies in bf16: the same numbers, and slower"
    end
  end
  return text
end

return fp8
