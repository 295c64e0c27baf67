-- Qwen3.5 with a mixture of experts in every layer, one of which all tokens meet (35B-A3B and its kin).

local experts = require "qeng.model.experts"
local qwen3_5 = require "qeng.models.qwen3_5"

local Qwen3_5Moe = {
  hf = "Qwen3_5MoeForCausalLM", model_type = "qwen3_5_moe_text", exact = qwen3_5.exact,
  initial = qwen3_5.initial, stored = qwen3_5.stored, peft_leaves = { "%.experts%." },
  lora = {
    "q_proj", "k_proj", "v_proj", "o_proj", "in_proj_qkv", "in_proj_z", "out_proj", "shared_expert.gate_proj",
    "shared_expert.up_proj", "shared_expert.down_proj",
  },
}

-- c.experts. opt: transformers' defaults for count and used; normalised.
function Qwen3_5Moe.experts(file, opt)
  return experts.config(file, {
    count = opt.count, used = opt.used, ffn = file:size("moe_intermediate_size", 512), normalised = opt.normalised,
    shared = file:size("shared_expert_intermediate_size", 512),
  })
end

function Qwen3_5Moe.config(file)
  local c = qwen3_5.settings(file, { kv_heads = 2, ffn = file:size("moe_intermediate_size", 512) })
  c.experts = Qwen3_5Moe.experts(file, { count = 256, used = 8, normalised = true })
  qwen3_5.no_list(file, "mlp_only_layers")
  file:must("norm_topk_prob", true)
  file:must("decoder_sparse_step", 1)
  return c
end

function Qwen3_5Moe.build(model, source, c)
  local mixture = experts.mlp {}
  return qwen3_5.decoder(model, source, c, { mlp = function() return mixture end })
end

-- ---------------------------------------------------------------- GGUF

-- The words of the expert that all tokens meet.
Qwen3_5Moe.shared_words = {
  names = {
    ["mlp.shared_expert.gate_proj"] = "ffn_gate_shexp", ["mlp.shared_expert.up_proj"] = "ffn_up_shexp",
    ["mlp.shared_expert.down_proj"] = "ffn_down_shexp",
  },
  tensors = {
    ["mlp.shared_expert_gate.weight"] = {
      "ffn_gate_inp_shexp.weight", shape = function(shape) return { shape[2] } end,
    },
  },
}

local function joined(one, other)
  local result = {}
  for _, part in ipairs { one, other } do
    for key, value in pairs(part) do result[key] = value end
  end
  return result
end

local gguf = joined(qwen3_5.gguf, { architecture = "qwen35moe", experts = true, no_ffn = true })
gguf.names = joined(qwen3_5.gguf.names, Qwen3_5Moe.shared_words.names)
gguf.tensors = joined(qwen3_5.gguf.tensors, Qwen3_5Moe.shared_words.tensors)

function Qwen3_5Moe.read_experts(r, values)
  values.num_experts, values.moe_intermediate_size = r.experts, r:size "expert_feed_forward_length"
  values.shared_expert_intermediate_size = r:size "expert_shared_feed_forward_length"
end

function Qwen3_5Moe.write_experts(add, c)
  add("expert_feed_forward_length", "u32", c.experts.ffn)
  add("expert_shared_feed_forward_length", "u32", c.experts.shared)
end

function gguf.read(r, values)
  qwen3_5.gguf.read(r, values)
  Qwen3_5Moe.read_experts(r, values)
end

function gguf.write(add, c)
  Qwen3_5Moe.write_experts(add, c)
  return qwen3_5.gguf.write(add, c)
end

Qwen3_5Moe.gguf, Qwen3_5Moe.joined = gguf, joined

Qwen3_5Moe.texts = { qwen3_5_moe_text = { 248320, 2048, nil, 40, 16, 2 } }

return Qwen3_5Moe
