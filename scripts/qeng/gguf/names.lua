-- The names of tensors in GGUF, and in Hugging Face's checkpoints. A model knows its parameters by the latter. Most
-- architectures share the words of this file. The table `gguf` of a model file (scripts/qeng/models) has the
-- differences:
--   architecture   GGUF's word for it
--   names          {[part of a layer] = word}, instead of those here or beside them
--   llama_rows     {[part of a layer] = key}: rows are in llama.cpp's order of rotated pairs, in c[key] heads
--   plus_one       norms are kept with one added, which the model adds itself
--   nextn          there are words for a head that drafts tokens
--   tensors        {[parameter of a layer] = {word, shape =, read =, write =}}: parameters with words of their own,
--                  endings and all. shape(shape, c): if GGUF has another; read(tensor), write(tensor): if other values
--   apart          {[part of a layer] = {words = {...}, counts =, rows =, join =}}: layers that a model of a checkpoint
--                  has as one and GGUF as several. counts(c): the rows of each; rows(x, c): those of a weight's or an
--                  adapter's x; join(..., c): back

local architectures = require "qeng.model.architectures"
local part_names = require "qeng.model.names"
local q = require "qeng.core"

local names = {}

local whole = {
  ["model.embed_tokens"] = "token_embd", ["model.embed_positions"] = "position_embd",
  ["model.norm"] = "output_norm", ["lm_head"] = "output",
}
local layer = {
  ["input_layernorm"] = "attn_norm", ["post_attention_layernorm"] = "ffn_norm",
  ["self_attn.q_proj"] = "attn_q", ["self_attn.k_proj"] = "attn_k", ["self_attn.v_proj"] = "attn_v",
  ["self_attn.qkv_proj"] = "attn_qkv", ["self_attn.o_proj"] = "attn_output",
  ["self_attn.q_norm"] = "attn_q_norm", ["self_attn.k_norm"] = "attn_k_norm",
  ["mlp.gate_proj"] = "ffn_gate", ["mlp.up_proj"] = "ffn_up", ["mlp.gate_up_proj"] = "ffn_up",
  ["mlp.down_proj"] = "ffn_down",
  ["mlp.gate"] = "ffn_gate_inp", ["mlp.experts.gate_proj"] = "ffn_gate_exps", ["mlp.experts.up_proj"] = "ffn_up_exps",
  ["mlp.experts.down_proj"] = "ffn_down_exps",
  ["mtp.fc"] = "nextn.eh_proj", ["mtp.pre_fc_norm_embedding"] = "nextn.enorm",
  ["mtp.pre_fc_norm_hidden"] = "nextn.hnorm", ["mtp.norm"] = "nextn.shared_head_norm",
}

-- A parameter of the head that drafts tokens (model/mtp.lua) as one of a layer behind the last, which GGUF has it as:
-- "mtp.layers.0.mlp.up_proj.weight" -> "model.layers.24.mlp.up_proj.weight", "mtp.fc.weight" ->
-- "model.layers.24.mtp.fc.weight".
function names.behind(name, layers)
  local part = name:match "^mtp%.layers%.0%.(.*)$" or name
  return ("model.layers.%d.%s"):format(layers, part)
end

local function part_of(stem) return stem:match "^model%.layers%.(%d+)%.(.*)$" end

-- How GGUF keeps a parameter that is unlike others, as the model file's gguf.tensors says; nil for the rest. Also the
-- number of its layer.
function names.unlike(arch, name)
  local index, part = part_of(part_names.plain(arch, name))
  local own = index and arch.gguf and arch.gguf.tensors
  return own and own[part] or nil, index
end

-- "model.layers.3.mlp.up_proj.weight" -> "blk.3.ffn_up.weight"; nil if GGUF has no word for the name.
function names.to_gguf(name, arch)
  local unlike, layer_index = names.unlike(arch, name)
  if unlike then return ("blk.%s.%s"):format(layer_index, unlike[1]) end
  local stem, ending = part_names.plain(arch, name):match "^(.*)%.(%w+)$"
  if ending ~= "weight" and ending ~= "bias" then return nil end  -- of a quantized folder, for example
  if whole[stem] then return whole[stem] .. "." .. ending end
  local index, part = part_of(stem)
  local own = arch.gguf and arch.gguf.names or {}
  local word = index and (own[part] or layer[part])
  return word and ("blk.%s.%s.%s"):format(index, word, ending) or nil
end

-- GGUF's word for an architecture, which is a model file or a name of config.json.
function names.architecture(arch)
  local hf = type(arch) == "table" and arch.hf or arch
  for _, known in ipairs(type(arch) == "table" and { arch } or architectures.known) do
    if known.hf == hf and known.gguf then return known.gguf.architecture end
  end
  q.error("unsupported", ("gguf: architecture %s has no words in the format here"):format(tostring(hf)))
end

-- How GGUF has a layer that it keeps as several, as the model file's gguf.apart says; nil for the rest.
function names.apart(arch, name)
  local index, part = part_of(name:gsub("%.weight$", ""))
  local own = index and arch.gguf and arch.gguf.apart
  return own and own[part] or nil
end

-- The names of a tensor there: that of to_gguf, or those of its parts.
function names.all(name, arch)
  local apart, index = names.apart(arch, name), name:match "%.layers%.(%d+)%."
  if not apart then return { names.to_gguf(name, arch) } end
  local list = {}
  for i, word in ipairs(apart.words) do list[i] = ("blk.%s.%s.weight"):format(index, word) end
  return list
end

-- How many heads the rows of a tensor belong to if GGUF keeps them in llama.cpp's order; nil for the others.
function names.heads(arch, name, c)
  local rows = arch.gguf and arch.gguf.llama_rows
  local _, part = part_of(name)
  return rows and part and c[rows[part:gsub("%.%w+$", "")]] or nil
end

-- Whether GGUF keeps a tensor with one added to it.
function names.plus_one(arch, name)
  return arch.gguf.plus_one and name:find "norm[%w_]*%.weight$" ~= nil and not names.unlike(arch, name)
end

return names
