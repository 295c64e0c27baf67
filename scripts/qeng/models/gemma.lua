-- Gemma (the first): a Llama gated by GELU, whose norms add one to their weights and whose embeddings are scaled.

local nn = require "qeng.nn"

local Gemma = { hf = "GemmaForCausalLM", model_type = "gemma" }

-- What all Gemmas share, from their config.json.
function Gemma.decoder(file, theta)
  file.values.head_dim = file.values.head_dim or 256  -- the architecture's default, whatever hidden / heads
  local c = file:decoder(theta, { gelu = true, tied = true })
  c.plus_one = true
  c.embed_scale = math.sqrt(c.hidden)
  c.bias = file:get("attention_bias", false)
  file:must("use_bidirectional_attention", false)
  return c
end

function Gemma.config(file) return Gemma.decoder(file, 1e4) end

function Gemma.build(model, source, c)
  return nn.decoder(model, source, c, function(p) return nn.block(p, c, { qkv_bias = c.bias, o_bias = c.bias }) end)
end

return Gemma
