-- Phi-3, Phi-3.5 and Phi-4 mini (dense): a Llama whose q, k and v are one matrix, and gate and up another. A part of
-- each head may be turned, by factors of longrope that differ beyond the original length. Attention may look back over
-- a window only.

local nn = require "qeng.model.nn"

local Phi3 = { hf = "Phi3ForCausalLM", model_type = "phi3" }

function Phi3.config(file)
  local c = file:decoder(1e4, {
    max_position = 4096, partial_rotary = true, rotations = { "default", "longrope" },
    original_length = file:size("original_max_position_embeddings", 4096),
  })
  c.window = file.values.sliding_window and file:window(c.layers, true) or 0
    for _, key in ipairs { "resid_pdrop", "embd_pdrop" } do file.used[key] = true end  -- for training only
    -- Further keys of Phi-4 mini.
  for _, key in ipairs { "attention_bias", "mlp_bias", "lm_head_bias" } do file:must(key, false) end
  for _, key in ipairs { "full_attn_mod", "interpolate_factor" } do file:must(key, 1) end
  return c
end

function Phi3.build(model, source, c)
  local block = {
    mixer = nn.attention { fused = "qkv_proj", window = c.window }, mlp = nn.swiglu_mlp { fused = "gate_up_proj" },
  }
  return nn.decoder(model, source, c, function(p) return nn.block(p, c, block) end)
end

Phi3.gguf = {
  architecture = "phi3", partial_rotary = true, longrope = true,
  read = function(_, values)
    local scaling = values.rope_scaling or {}
    values.original_max_position_embeddings = scaling.original_max_position_embeddings
  end,
}

return Phi3
