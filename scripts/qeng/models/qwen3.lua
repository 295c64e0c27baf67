-- Qwen3 (dense): as Qwen2 without the bias, with RMSNorm on each head of q and k before RoPE and a head_dim of its own.

local nn = require "qeng.model.nn"
local qwen2 = require "qeng.models.qwen2"

local Qwen3 = { hf = "Qwen3ForCausalLM", model_type = "qwen3" }

function Qwen3.config(file)
  local c = file:decoder(1e4, { kv_heads = 32, head_dim = 128, max_position = 32768 })
  c.bias = file:get("attention_bias", false)
  c.window = file:window(c.layers)
  return c
end

function Qwen3.build(model, source, c)
  local block = { mixer = nn.attention { qkv_bias = c.bias, o_bias = c.bias, qk_norm = true, window = c.window } }
  return nn.decoder(model, source, c, function(p) return nn.block(p, c, block) end)
end

Qwen3.gguf = {
  architecture = "qwen3",
  read = function(r, values)
    qwen2.gguf.read(r, values)
    values.attention_bias = r:has "blk.0.attn_q.bias"
  end,
}

Qwen3.texts = {
  qwen3 = { 151936, 4096, 22016, 32, 32, 32 }, qwen3_vl_text = { 151936, 4096, 22016, 32, 32, 32, theta = 5e5 },
}

return Qwen3
