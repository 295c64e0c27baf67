-- Gemma (the first): a Llama gated by GELU, whose norms add one to their weights and whose embeddings are scaled.

local nn = require "qeng.model.nn"

local Gemma = { hf = "GemmaForCausalLM", model_type = "gemma" }

-- What all Gemmas share, from their config.json. opt: as for Config:decoder.
function Gemma.decoder(file, theta, opt)
  opt.gelu, opt.tied, opt.head_dim = true, true, 256
  local c = file:decoder(theta, opt)
  c.plus_one = true
  c.embed_scale = math.sqrt(c.hidden)
  c.bias = file:get("attention_bias", false)
  file:must("use_bidirectional_attention", false)
  return c
end

function Gemma.config(file) return Gemma.decoder(file, 1e4, { kv_heads = 16, max_position = 8192 }) end

function Gemma.build(model, source, c)
  return nn.decoder(model, source, c, function(p) return nn.block(p, c, { qkv_bias = c.bias, o_bias = c.bias }) end)
end

return Gemma
