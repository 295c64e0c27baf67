-- Qwen2 and Qwen2.5 (dense): pre-norm decoder, grouped-query attention with bias on q, k and v, RoPE, SwiGLU.

local nn = require "qeng.model.nn"

local Qwen2 = { hf = "Qwen2ForCausalLM", model_type = "qwen2" }

function Qwen2.config(file)
  local c = file:decoder(1e4, { kv_heads = 32, max_position = 32768 })
  c.window = file:window(c.layers)
  return c
end

function Qwen2.build(model, source, c)
  local block = { mixer = nn.attention { qkv_bias = true, window = c.window } }
  return nn.decoder(model, source, c, function(p) return nn.block(p, c, block) end)
end

Qwen2.gguf = {
  architecture = "qwen2",
  read = function(r, values)
    if r.window then values.use_sliding_window, values.max_window_layers = true, 0 end
  end,
}

local vl = { 152064, 8192, 29568, 80, 64, 8, eps = 1e-5, theta = 1e6 }
Qwen2.texts = { qwen2 = { 151936, 4096, 22016, 32, 32, 32 }, qwen2_vl_text = vl, qwen2_5_vl_text = vl }

return Qwen2
