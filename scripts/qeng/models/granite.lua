-- Granite 3 (dense): a Llama with four multipliers: of the embedding, of scores in attention, of what each branch adds
-- to the residual stream, and (a divisor) of the logits.

local llama = require "qeng.models.llama"

local Granite = { hf = "GraniteForCausalLM", model_type = "granite" }

function Granite.config(file)
  local c = file:decoder(1e4)
  c.attention_bias = file:get("attention_bias", false)
  c.mlp_bias = file:get("mlp_bias", false)
  c.embed_scale = file:positive("embedding_multiplier", 1)
  c.attention_scale = file:positive("attention_multiplier", 1)
  c.residual_scale = file:positive("residual_multiplier", 1)
  c.logit_scale = 1 / file:positive("logits_scaling", 1)
  return c
end

Granite.build = llama.build

Granite.gguf = {
  architecture = "granite", rope_freqs = true, llama_rows = llama.gguf.llama_rows,
  read = function(r, values)
    llama.gguf.read(r, values)
    values.embedding_multiplier = r:get("embedding_scale", "number", 1)
    values.attention_multiplier = r:get("attention.scale", "number", 1 / math.sqrt(values.head_dim))
    values.residual_multiplier = r:get("residual_scale", "number", 1)
    values.logits_scaling = r:get("logit_scale", "number", 1)
  end,
  write = function(add, c)
    add("embedding_scale", "f32", c.embed_scale)
    add("attention.scale", "f32", c.attention_scale)
    add("residual_scale", "f32", c.residual_scale)
    add("logit_scale", "f32", 1 / c.logit_scale)
  end,
}

return Granite
