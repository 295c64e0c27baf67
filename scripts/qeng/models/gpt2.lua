-- GPT-2: LayerNorm before attention and MLP, learned positions, biases everywhere, an MLP of GELU without a gate. q, k
-- and v are one matrix. Its checkpoints have matrices as [in, out], and words of their own for all parts.

local nn = require "qeng.model.nn"
local q = require "qeng.core"

local GPT2 = { hf = "GPT2LMHeadModel", model_type = "gpt2" }

GPT2.names = { body = "transformer", embed = "wte", positions = "wpe", layers = "h", norm = "ln_f" }

function GPT2.transposed(name) return name:find "%.c_%a+%.weight$" ~= nil end

function GPT2.config(file)
  local c = {
    hidden = file:size("n_embd", 768), layers = file:size("n_layer", 12), heads = file:size("n_head", 12),
    vocab = file:size("vocab_size", 50257), max_position = file:size("n_positions", 1024),
    eps = file:positive("layer_norm_epsilon", 1e-5), tied = file:tied(true),
    learned_positions = true, layer_norm = true,
  }
  c.ffn, c.kv_heads, c.head_dim = file:size("n_inner", 4 * c.hidden), c.heads, c.hidden / c.heads
  if c.head_dim % 1 ~= 0 then
    q.error("format", ("%s: n_embd = %d is no multiple of n_head = %d"):format(file.path, c.hidden, c.heads))
  end
  if file.values.activation_function ~= "gelu_pytorch_tanh" then file:must("activation_function", "gelu_new") end
  file:must("scale_attn_weights", true)
  file:must("scale_attn_by_inverse_layer_idx", false)
  file:must("add_cross_attention", false)
  for key in ("activation_function reorder_and_upcast_attn n_ctx resid_pdrop embd_pdrop attn_pdrop summary_type "
    .. "summary_use_proj summary_activation summary_proj_to_labels summary_first_dropout"):gmatch "%S+" do
    file.used[key] = true  -- of training and of other heads, or the same sums in another order
  end
  file.optional, file.spare = "transformer.", { "attn%.bias$", "attn%.masked_bias$" }
  return c
end

local function mlp(block, c)
  local p = block:at "mlp"
  local fc, proj = p:linear("c_fc", c.ffn, c.hidden, true), p:linear("c_proj", c.hidden, c.ffn, true)
  local passed = block:place "mlp"
  return function(x, seq)
    local inner = nn.project(seq, x, fc)
    return passed((nn.project(seq, inner:gelu(true), proj)))
  end
end

function GPT2.build(model, source, c)
  local block = {
    mixer = nn.attention {
      at = "attn", fused = "c_attn", out = "c_proj", qkv_bias = true, o_bias = true, no_rope = true,
    },
    mlp = mlp, norms = nn.norms_named { mixer = "ln_1", mlp = "ln_2" },
  }
  return nn.decoder(model, source, c, function(p) return nn.block(p, c, block) end)
end

-- The keys of GPT-2 for those that most models have.
local own_keys = {
  hidden_size = "n_embd", num_hidden_layers = "n_layer", num_attention_heads = "n_head", intermediate_size = "n_inner",
  max_position_embeddings = "n_positions", rms_norm_eps = "layer_norm_epsilon", num_key_value_heads = false,
  head_dim = false, hidden_act = false, rope_theta = false,
}

GPT2.gguf = {
  architecture = "gpt2", eps = "attention.layer_norm_epsilon", window = false,
  names = {
    ln_1 = "attn_norm", ["attn.c_attn"] = "attn_qkv", ["attn.c_proj"] = "attn_output", ln_2 = "ffn_norm",
    ["mlp.c_fc"] = "ffn_up", ["mlp.c_proj"] = "ffn_down",
  },
  read = function(_, values)
    for key, own in pairs(own_keys) do
      if own then values[own] = values[key] end
      values[key] = nil
    end
  end,
}

return GPT2
