-- Gemma (the first): a Llama with GELU gates. Its norms add one to their weights, and its embeddings are scaled.

local nn = require "qeng.model.nn"
local q = require "qeng.core"

local Gemma = { hf = "GemmaForCausalLM", model_type = "gemma" }

-- The settings that all Gemmas share, from their config.json. opt: as for Config:decoder.
function Gemma.decoder(file, theta, opt)
  opt.gelu, opt.tied, opt.head_dim = true, true, 256
  local c = file:decoder(theta, opt)
  c.plus_one = true
  c.embed_scale = math.sqrt(c.hidden)
  c.bias = file:get("attention_bias", false)
  file:must("use_bidirectional_attention", false)
  return c
end

-- A soft cap. default: transformers', nil for none.
function Gemma.cap(file, key, default)
  file.used[key] = true
  local value = file.values[key]
  if value == q.json.null or value == nil and not default then return nil end
  return file:positive(key, default)
end

-- The square of the number by which llama.cpp divides scores. It knows the largest model by its layers.
function Gemma.query_scalar(largest, layers, hidden, heads, head_dim)
  return layers == largest and math.floor(hidden / heads) or head_dim
end

-- GGUF's names of norms around attention and MLP.
Gemma.sandwich_names = {
  ["post_attention_layernorm"] = "post_attention_norm", ["pre_feedforward_layernorm"] = "ffn_norm",
  ["post_feedforward_layernorm"] = "post_ffw_norm",
}

function Gemma.config(file) return Gemma.decoder(file, 1e4, { kv_heads = 16, max_position = 8192 }) end

function Gemma.build(model, source, c)
  local block = { mixer = nn.attention { qkv_bias = c.bias, o_bias = c.bias } }
  return nn.decoder(model, source, c, function(p) return nn.block(p, c, block) end)
end

Gemma.gguf = {
  architecture = "gemma", plus_one = true, window = false,
  read = function(_, values) values.hidden_act, values.hidden_activation = nil, "gelu_pytorch_tanh" end,
  write = function(_, c)
    if not c.tied then q.error("unsupported", "gguf: gemma has no words for a head that is not the embedding") end
    if c.bias then q.error("unsupported", "gguf: gemma has no words for biases of attention") end
  end,
}

return Gemma
