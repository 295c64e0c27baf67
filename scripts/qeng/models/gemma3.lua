-- Gemma 3 (text): a Gemma with RMSNorm on each head of q and k and behind attention and MLP, five layers in six of which look
-- back over a window only and turn their heads by frequencies of their own.

local gemma = require "qeng.models.gemma"
local nn = require "qeng.model.nn"
local q = require "qeng.core"

local Gemma3 = { hf = "Gemma3ForCausalLM", model_type = "gemma3_text" }

function Gemma3.config(file)
  local c = gemma.decoder(file, 1e6, { kv_heads = 4, max_position = 131072, kinds = true })
  c.rope_local = file:rope(1e4, "sliding_attention", "rope_local_base_freq")
  file.used.rope_local_base_freq = true
  c.local_layers = file:local_layers(c.layers, 6)
  c.window = file.values.sliding_window == q.json.null and 0 or file:size("sliding_window", 4096)
  c.query_pre_attn_scalar = file:size("query_pre_attn_scalar", 256)
  c.attention_scale = 1 / math.sqrt(c.query_pre_attn_scalar)
  file:without("attn_logit_softcapping", "attention logit soft-capping")
  file:without("final_logit_softcapping", "soft-capping of the logits")
  return c
end

function Gemma3.build(model, source, c)
  return nn.decoder(model, source, c, function(p, index)
    local near = c.local_layers[index + 1]
    return nn.block(p, c, {
      qkv_bias = c.bias, o_bias = c.bias, qk_norm = true, post_norms = true, window = near and c.window or 0, local_rope = near,
    })
  end)
end

return Gemma3
