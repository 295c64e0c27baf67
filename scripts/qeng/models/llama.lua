-- Llama 2 and 3 (and derivatives of the same architecture): pre-norm decoder, grouped-query attention, RoPE, SwiGLU.

local nn = require "qeng.model.nn"

local Llama = { hf = "LlamaForCausalLM", model_type = "llama" }

function Llama.config(file)
  local c = file:decoder(1e4)
  c.attention_bias = file:get("attention_bias", false)
  c.mlp_bias = file:get("mlp_bias", false)
  file:must("pretraining_tp", 1)  -- a way to split the matrices; any other value asks for other sums
  return c
end

function Llama.build(model, source, c)
  local block = {
    mixer = nn.attention { qkv_bias = c.attention_bias, o_bias = c.attention_bias },
    mlp = nn.swiglu_mlp { bias = c.mlp_bias },
  }
  return nn.decoder(model, source, c, function(p) return nn.block(p, c, block) end)
end

Llama.gguf = {
  architecture = "llama", rope_freqs = true,
  llama_rows = { ["self_attn.q_proj"] = "heads", ["self_attn.k_proj"] = "kv_heads" },
  read = function(r, values)
    values.attention_bias = r:has "blk.0.attn_q.bias"
    values.mlp_bias = r:has "blk.0.ffn_gate.bias"
  end,
}

Llama.texts = { llama = { 32000, 4096, 11008, 32, 32 } }

return Llama
