-- Mixtral: a Mistral whose MLPs are of experts. GGUF has no word of its own for it: a file of llama's architecture is a
-- Mixtral if it has experts.

local experts = require "qeng.model.experts"
local llama = require "qeng.models.llama"
local nn = require "qeng.model.nn"

local Mixtral = {
  hf = "MixtralForCausalLM", model_type = "mixtral", lora = { "q_proj", "k_proj", "v_proj", "o_proj" },
}

function Mixtral.config(file)
  local c = file:decoder(1e6, { kv_heads = 8, max_position = 131072, eps = 1e-5 })
  c.window = file.values.sliding_window and file:window(c.layers, true) or 0
  c.experts = experts.config(file, { count = 8, used = 2, ffn = c.ffn, normalised = true })
  file:must("router_jitter_noise", 0)  -- of training
  return c
end

function Mixtral.build(model, source, c)
  local block = {
    mixer = nn.attention { window = c.window },
    mlp = experts.mlp { at = "block_sparse_moe", gate = "w1", up = "w3", down = "w2" },
  }
  return nn.decoder(model, source, c, function(p) return nn.block(p, c, block) end)
end

Mixtral.gguf = {
  architecture = "llama", experts = true, rope_freqs = true, llama_rows = llama.gguf.llama_rows,
  names = {
    ["block_sparse_moe.gate"] = "ffn_gate_inp", ["block_sparse_moe.experts.w1"] = "ffn_gate_exps",
    ["block_sparse_moe.experts.w2"] = "ffn_down_exps", ["block_sparse_moe.experts.w3"] = "ffn_up_exps",
  },
  reads = function(file) return (file:get "llama.expert_count" or 0) ~= 0 end,
  read = function(r, values) values.num_local_experts = r.experts end,
}

return Mixtral
