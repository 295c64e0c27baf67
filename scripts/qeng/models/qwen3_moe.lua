-- Qwen3 with a mixture of experts: a Qwen3 whose MLPs, but for those that the config excepts, are of many experts.

local experts = require "qeng.model.experts"
local nn = require "qeng.model.nn"
local q = require "qeng.core"
local qwen3 = require "qeng.models.qwen3"

local Qwen3Moe = {
  hf = "Qwen3MoeForCausalLM", model_type = "qwen3_moe", lora = { "q_proj", "k_proj", "v_proj", "o_proj" },
}

-- Which layers have experts: every so many-th, but for those listed.
function Qwen3Moe.mixed_layers(file, layers)
  local every, plain, list = file:size("decoder_sparse_step", 1), file.values.mlp_only_layers, {}
  file.used.mlp_only_layers = true
  for i = 1, layers do list[i] = i % every == 0 end
  for i, index in ipairs(type(plain) == "table" and plain or {}) do
    if list[tonumber(index) and index + 1 or 0] == nil then
      q.error("format", ("%s: mlp_only_layers[%d] is %s, expected the number of a layer, from 0 to %d")
        :format(file.path, i - 1, tostring(index), layers - 1))
    end
    list[index + 1] = false
  end
  return list
end

function Qwen3Moe.config(file)
  local c = file:decoder(1e4, { kv_heads = 4, max_position = 32768 })
  c.bias = file:get("attention_bias", false)
  c.window = file:get("use_sliding_window", false) and file:window(c.layers, true) or 0
  file.used.max_window_layers = true
  c.experts = experts.config(file, {
    count = 128, used = 8, ffn = file:size("moe_intermediate_size", 768),
    normalised = file:get("norm_topk_prob", false),
  })
  c.mixed = Qwen3Moe.mixed_layers(file, c.layers)
  return c
end

function Qwen3Moe.build(model, source, c)
  local mixer = nn.attention { qkv_bias = c.bias, o_bias = c.bias, qk_norm = true, window = c.window }
  local mixture, plain = experts.mlp {}, nn.swiglu_mlp {}
  return nn.decoder(model, source, c, function(p, index)
    return nn.block(p, c, { mixer = mixer, mlp = c.mixed[index + 1] and mixture or plain })
  end)
end

-- llama.cpp gives every layer experts, and always normalises their scores.
Qwen3Moe.gguf = {
  architecture = "qwen3moe", experts = true,
  read = function(r, values)
    qwen3.gguf.read(r, values)
    values.moe_intermediate_size = r:size "expert_feed_forward_length"
    values.num_experts, values.norm_topk_prob = r.experts, true
  end,
  write = function(add, c)
    if not c.experts.normalised then
      q.error("unsupported", "gguf: qwen3moe has no words for norm_topk_prob = false")
    end
    for i, mixed in ipairs(c.mixed) do
      if not mixed then
        q.error("unsupported", ("gguf: qwen3moe has no words for a layer without experts, as %d is here"):format(i - 1))
      end
    end
    add("expert_feed_forward_length", "u32", c.experts.ffn)
  end,
}

return Qwen3Moe
