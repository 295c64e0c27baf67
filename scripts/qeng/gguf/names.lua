-- What tensors are called: in GGUF, and in Hugging Face's checkpoints, by whose names a model knows its parameters.

local q = require "qeng.core"

local names = {}

local whole = {
  ["model.embed_tokens"] = "token_embd", ["model.norm"] = "output_norm", ["lm_head"] = "output",
}
local layer = {
  ["input_layernorm"] = "attn_norm", ["post_attention_layernorm"] = "ffn_norm",
  ["self_attn.q_proj"] = "attn_q", ["self_attn.k_proj"] = "attn_k", ["self_attn.v_proj"] = "attn_v",
  ["self_attn.o_proj"] = "attn_output", ["self_attn.q_norm"] = "attn_q_norm", ["self_attn.k_norm"] = "attn_k_norm",
  ["mlp.gate_proj"] = "ffn_gate", ["mlp.up_proj"] = "ffn_up", ["mlp.down_proj"] = "ffn_down",
}

-- Where an architecture means something else by a name, or has one more.
local own = {
  gemma3 = {
    ["post_attention_layernorm"] = "post_attention_norm", ["pre_feedforward_layernorm"] = "ffn_norm",
    ["post_feedforward_layernorm"] = "post_ffw_norm",
  },
}

-- "model.layers.3.mlp.up_proj.weight" -> "blk.3.ffn_up.weight"; nil for a name that GGUF has no word for. architecture: GGUF's
-- word, which the names of norms depend on, those of matrices not.
function names.to_gguf(name, architecture)
  local stem, ending = name:match "^(.*)%.(%w+)$"
  if ending ~= "weight" and ending ~= "bias" then return nil end  -- of a quantized folder, for example
  if whole[stem] then return whole[stem] .. "." .. ending end
  local index, part = stem:match "^model%.layers%.(%d+)%.(.*)$"
  local word = index and (own[architecture] and own[architecture][part] or layer[part])
  return word and ("blk.%s.%s.%s"):format(index, word, ending) or nil
end

local architectures = {
  LlamaForCausalLM = "llama", MistralForCausalLM = "llama", Qwen2ForCausalLM = "qwen2", Qwen3ForCausalLM = "qwen3",
  GemmaForCausalLM = "gemma", Gemma3ForCausalLM = "gemma3",
}

-- GGUF's word for a Hugging Face architecture.
function names.architecture(hf)
  return architectures[hf] or q.error("unsupported", ("gguf: architecture %s has no words in the format here"):format(tostring(hf)))
end

-- How many heads the rows of a tensor belong to if the llama architecture keeps them in its own order; nil for the others.
function names.heads(architecture, name, c)
  if architecture ~= "llama" then return nil end
  if name:find("self_attn.q_proj.", 1, true) then return c.heads end
  if name:find("self_attn.k_proj.", 1, true) then return c.kv_heads end
end

-- Whether GGUF keeps a tensor with one added to it: norms that add it themselves elsewhere.
function names.plus_one(architecture, name)
  return (architecture == "gemma" or architecture == "gemma3") and name:find "norm%.weight$" ~= nil
end

return names
