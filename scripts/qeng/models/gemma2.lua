-- Gemma 2: a Gemma with norms after attention and MLP too. Scores and logits are soft-capped, and every second layer,
-- from the first on, looks back over a window only.

local gemma = require "qeng.models.gemma"
local nn = require "qeng.model.nn"
local q = require "qeng.core"

local Gemma2 = { hf = "Gemma2ForCausalLM", model_type = "gemma2" }

function Gemma2.config(file)
  local c = gemma.decoder(file, 1e4, { kv_heads = 4, max_position = 8192 })
  c.local_layers = file:local_layers(c.layers, 2)
  c.window = file.values.sliding_window == q.json.null and 0 or file:size("sliding_window", 4096)
  c.query_pre_attn_scalar = file:size("query_pre_attn_scalar", 256)
  c.attention_scale = 1 / math.sqrt(c.query_pre_attn_scalar)
  c.attention_softcap = gemma.cap(file, "attn_logit_softcapping", 50)
  c.logit_softcap = gemma.cap(file, "final_logit_softcapping", 30)
  return c
end

function Gemma2.build(model, source, c)
  return nn.decoder(model, source, c, function(p, index)
    return nn.block(p, c, {
      mixer = nn.attention {
        qkv_bias = c.bias, o_bias = c.bias, window = c.local_layers[index + 1] and c.window or 0,
      },
      norms = nn.sandwich_norms,
    })
  end)
end

-- ---------------------------------------------------------------- GGUF

local gguf = {
  architecture = "gemma2", plus_one = true, window = "attention.sliding_window", names = gemma.sandwich_names,
}

-- llama.cpp derives the scale of attention from the architecture: the largest model, which it knows by its layers, has
-- another than the rest. Layers with a window alternate, and the other settings have defaults.
local largest = 46

function gguf.read(r, values)
  gemma.gguf.read(r, values)
  values.attn_logit_softcapping = r:get("attn_logit_softcapping", "number", 50)
  values.final_logit_softcapping = r:get("final_logit_softcapping", "number", 30)
  values.sliding_window = r:get("attention.sliding_window", "number", 4096)
  values.query_pre_attn_scalar = gemma.query_scalar(largest, values.num_hidden_layers, values.hidden_size,
    values.num_attention_heads, values.head_dim)
end

function gguf.write(add, c)
  local function must(what, ok) if not ok then q.error("unsupported", "gguf: gemma2 has no words for " .. what) end end
  gemma.gguf.write(add, c)
  must("query_pre_attn_scalar = " .. c.query_pre_attn_scalar,
    c.query_pre_attn_scalar == gemma.query_scalar(largest, c.layers, c.hidden, c.heads, c.head_dim))
  must("a model without soft-capping", c.attention_softcap and c.logit_softcap)
  must("a model without a window", c.window > 0)
  for i, near in ipairs(c.local_layers) do
    must("windows in other layers than every second", near == (i % 2 == 1))
  end
  add("attn_logit_softcapping", "f32", c.attention_softcap)
  add("final_logit_softcapping", "f32", c.logit_softcap)
end

Gemma2.gguf = gguf

return Gemma2
