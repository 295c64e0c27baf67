-- OLMo 2: a Llama whose norms stand after attention and MLP, not before. q and k are normed over all heads at once.

local nn = require "qeng.model.nn"
local q = require "qeng.core"

local Olmo2 = { hf = "Olmo2ForCausalLM", model_type = "olmo2" }

function Olmo2.config(file)
  local c = file:decoder(1e4, { eps = 1e-5 })
  c.bias = file:get("attention_bias", false)
  return c
end

function Olmo2.build(model, source, c)
  local block = {
    mixer = nn.attention { qkv_bias = c.bias, o_bias = c.bias, qk_norm = "whole" }, norms = nn.branch_norms,
  }
  return nn.decoder(model, source, c, function(p) return nn.block(p, c, block) end)
end

Olmo2.gguf = {
  architecture = "olmo2", window = "attention.sliding_window",
  names = {
    ["post_attention_layernorm"] = "post_attention_norm", ["post_feedforward_layernorm"] = "post_ffw_norm",
  },
  read = function(r, values)
    if r.window > 0 then
      q.error("unsupported", ("%s: olmo2.attention.sliding_window = %g: it is an OLMo 3, whose layers with a window "
        .. "are not supported; expected an OLMo 2"):format(r.path, r.window))
    end
    values.sliding_window = nil
  end,
  write = function(_, c)
    if c.tied then q.error("unsupported", "gguf: olmo2 has no words for a head that is the embedding") end
    if c.bias then q.error("unsupported", "gguf: olmo2 has no words for biases of attention") end
  end,
}

return Olmo2
