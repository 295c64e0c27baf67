-- Mistral (dense): a Llama without biases. Its attention may look back over a sliding window only. GGUF has no word of
-- its own for it: a file of llama's architecture is a Mistral if it has a window.

local llama = require "qeng.models.llama"
local nn = require "qeng.model.nn"

local Mistral = { hf = "MistralForCausalLM", model_type = "mistral" }

function Mistral.config(file)
  local c = file:decoder(1e4, { kv_heads = 8, max_position = 131072 })
  c.window = file:window(c.layers, true)
  return c
end

function Mistral.build(model, source, c)
  local block = { mixer = nn.attention { window = c.window } }
  return nn.decoder(model, source, c, function(p) return nn.block(p, c, block) end)
end

Mistral.gguf = {
  architecture = "llama", rope_freqs = true, llama_rows = llama.gguf.llama_rows,
  reads = function(file)
    return file:get "qeng.sliding_window" ~= nil and (file:get "llama.expert_count" or 0) == 0
  end,
}

Mistral.texts = { mistral = { 32000, 4096, 14336, 32, 32, 8 } }

return Mistral
