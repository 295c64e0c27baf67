-- Mistral (dense): a Llama without biases whose attention may look back over a sliding window only.

local nn = require "qeng.model.nn"

local Mistral = { hf = "MistralForCausalLM", model_type = "mistral" }

function Mistral.config(file)
  local c = file:decoder(1e4, { kv_heads = 8, max_position = 131072 })
  c.window = file:window(c.layers, true)
  return c
end

function Mistral.build(model, source, c)
  return nn.decoder(model, source, c, function(p) return nn.block(p, c, { window = c.window }) end)
end

return Mistral
