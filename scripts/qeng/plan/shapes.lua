-- Shapes of models to plan for by name: what a config.json would say. Each is a published model's, except 90b, which is
-- 70b with more layers. A family, whose
-- models can be compared, are the names that begin with its name and a dash.

local q = require "qeng.core"

local function llama(hidden, layers, heads, kv_heads, ffn, vocab, tied)
  return {
    architectures = q.json.array { "LlamaForCausalLM" }, model_type = "llama", hidden_size = hidden,
    num_hidden_layers = layers,
    num_attention_heads = heads, num_key_value_heads = kv_heads, intermediate_size = ffn, vocab_size = vocab,
    hidden_act = "silu",
    tie_word_embeddings = tied or false, max_position_embeddings = 8192, rms_norm_eps = 1e-5, rope_theta = 500000,
    torch_dtype = "bfloat16",
  }
end

local function qwen3_5(hidden, layers, heads, kv_heads, value_heads, ffn, tied, more)
  local values = {
    architectures = q.json.array { "Qwen3_5ForCausalLM" }, model_type = "qwen3_5_text", hidden_size = hidden,
    num_hidden_layers = layers, num_attention_heads = heads, num_key_value_heads = kv_heads, head_dim = 256,
    linear_num_key_heads = 16, linear_num_value_heads = value_heads, linear_key_head_dim = 128,
    linear_value_head_dim = 128, linear_conv_kernel_dim = 4, intermediate_size = ffn, vocab_size = 248320,
    tie_word_embeddings = tied, max_position_embeddings = 262144, rms_norm_eps = 1e-6, rope_theta = 1e7,
    torch_dtype = "bfloat16",
  }
  for key, value in pairs(more or {}) do values[key] = value end
  return values
end

local shapes = {
  ["1b"] = llama(2048, 16, 32, 8, 8192, 128256, true),    -- Llama 3.2
  ["3b"] = llama(3072, 28, 24, 8, 8192, 128256, true),
  ["7b"] = llama(4096, 32, 32, 32, 11008, 32000),         -- Llama 2
  ["8b"] = llama(4096, 32, 32, 8, 14336, 128256),         -- Llama 3
  ["13b"] = llama(5120, 40, 40, 40, 13824, 32000),        -- Llama 2
  ["70b"] = llama(8192, 80, 64, 8, 28672, 128256),        -- Llama 3
  ["90b"] = llama(8192, 103, 64, 8, 28672, 128256),
  ["qwen3.5-0.8b"] = qwen3_5(1024, 24, 8, 2, 16, 3584, true),
  ["qwen3.5-2b"] = qwen3_5(2048, 24, 8, 2, 16, 6144, true),
  ["qwen3.5-4b"] = qwen3_5(2560, 32, 16, 4, 32, 9216, true),
  ["qwen3.5-9b"] = qwen3_5(4096, 32, 16, 4, 32, 12288, false),
  ["qwen3.5-27b"] = qwen3_5(5120, 64, 24, 4, 48, 17408, false),
  ["qwen3.5-35b-a3b"] = qwen3_5(2048, 40, 16, 2, 32, 512, false, {
    architectures = q.json.array { "Qwen3_5MoeForCausalLM" }, model_type = "qwen3_5_moe_text", num_experts = 256,
    num_experts_per_tok = 8, moe_intermediate_size = 512, shared_expert_intermediate_size = 512,
  }),
}

-- The names of those that begin with `prefix` (all), by size.
local function names(prefix)
  local found = {}
  for name in pairs(shapes) do
    if name:sub(1, #(prefix or "")) == (prefix or "") then found[#found + 1] = name end
  end
  local function size(name) return tonumber(name:match "([%d.]+)b") end  -- billions
  table.sort(found, function(a, b)
    if size(a) ~= size(b) then return size(a) < size(b) end
    return a < b
  end)
  return found
end

-- The shape of a name, in any case; the names of a family's models, none where there is no such family.
return {
  find = function(name) return shapes[name:lower()] end, names = names,
  family = function(name) return names(name:lower() .. "-") end,
}
