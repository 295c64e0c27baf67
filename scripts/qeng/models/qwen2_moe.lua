-- Qwen2 with a mixture of experts (Qwen1.5-MoE-A2.7B, Qwen2-57B-A14B), one of which all tokens meet.

local experts = require "qeng.model.experts"
local moe = require "qeng.models.qwen3_5_moe"
local nn = require "qeng.model.nn"
local q = require "qeng.core"
local qwen3_moe = require "qeng.models.qwen3_moe"

local Qwen2Moe = { hf = "Qwen2MoeForCausalLM", model_type = "qwen2_moe", lora = qwen3_moe.lora,
  peft_leaves = { "%.shared_expert%." } }

function Qwen2Moe.config(file)
  local c = file:decoder(1e4, { kv_heads = 16, max_position = 32768 })
  c.bias = file:get("qkv_bias", true)
  file:must("use_sliding_window", false)
  file:window(c.layers)
  c.experts = experts.config(file, {
    count = 60, used = 4, ffn = file:size("moe_intermediate_size", 1408),
    normalised = file:get("norm_topk_prob", false), shared = file:size("shared_expert_intermediate_size", 5632),
  })
  c.mixed = qwen3_moe.mixed_layers(file, c.layers)
  return c
end

function Qwen2Moe.build(model, source, c)
  local mixer, mixture, plain = nn.attention { qkv_bias = c.bias }, experts.mlp {}, nn.swiglu_mlp {}
  return nn.decoder(model, source, c, function(p, index)
    return nn.block(p, c, { mixer = mixer, mlp = c.mixed[index + 1] and mixture or plain })
  end)
end

-- llama.cpp gives every layer experts, and never normalises their scores.
Qwen2Moe.gguf = {
  architecture = "qwen2moe", experts = true, names = moe.shared_words.names, tensors = moe.shared_words.tensors,
  read = function(r, values)
    moe.read_experts(r, values)
    values.qkv_bias, values.norm_topk_prob = r:has "blk.0.attn_q.bias", false
  end,
  write = function(add, c)
    if c.experts.normalised then q.error("unsupported", "gguf: qwen2moe has no words for norm_topk_prob = true") end
    for i, mixed in ipairs(c.mixed) do
      if not mixed then
        q.error("unsupported", ("gguf: qwen2moe has no words for a layer without experts, as %d is here"):format(i - 1))
      end
    end
    moe.write_experts(add, c)
  end,
}

return Qwen2Moe
