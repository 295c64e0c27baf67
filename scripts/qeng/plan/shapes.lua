-- Shapes of models to plan for by name: what a config.json would say. Each is a published model's, except 90b, which is
-- 70b with more layers.

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

local shapes = {
  ["1b"] = llama(2048, 16, 32, 8, 8192, 128256, true),    -- Llama 3.2
  ["3b"] = llama(3072, 28, 24, 8, 8192, 128256, true),
  ["7b"] = llama(4096, 32, 32, 32, 11008, 32000),         -- Llama 2
  ["8b"] = llama(4096, 32, 32, 8, 14336, 128256),         -- Llama 3
  ["13b"] = llama(5120, 40, 40, 40, 13824, 32000),        -- Llama 2
  ["70b"] = llama(8192, 80, 64, 8, 28672, 128256),        -- Llama 3
  ["90b"] = llama(8192, 103, 64, 8, 28672, 128256),
}

return shapes
