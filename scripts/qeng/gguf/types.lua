-- Chooses the type of each tensor of a quantized file: llama.cpp's mixes by their names (q4_k_m), with its fallbacks.

local q = require "qeng.core"

local types = {}

-- Mixes: the type of most matrices, and general.file_type if llama.cpp has a number for it.
local mixes = {
  f32 = { "f32", 0 }, f16 = { "f16", 1 }, bf16 = { "bf16", 32 }, q8_0 = { "q8_0", 7 },
  q4_0 = { "q4_0", 2 }, q4_1 = { "q4_1", 3 }, q5_0 = { "q5_0", 8 }, q5_1 = { "q5_1", 9 },
  iq4_nl = { "iq4_nl", 25 }, iq4_xs = { "iq4_xs", 30 },
  q2_k = { "q2_k", 10 }, q3_k_s = { "q3_k", 11 }, q3_k_m = { "q3_k", 12 }, q3_k_l = { "q3_k", 13 },
  q4_k_s = { "q4_k", 14 }, q4_k_m = { "q4_k", 15 }, q5_k_s = { "q5_k", 16 }, q5_k_m = { "q5_k", 17 },
  q6_k = { "q6_k", 18 },
  tq1_0 = { "tq1_0", 36 }, tq2_0 = { "tq2_0", 37 }, mxfp4 = { "mxfp4" }, q1_0 = { "q1_0" }, q2_0 = { "q2_0" },
  pq2_0 = { "pq2_0" }, ptq1_0 = { "ptq1_0" },
}
local aliases = { q3_k = "q3_k_m", q4_k = "q4_k_m", q5_k = "q5_k_m" }
local ternary = { tq1_0 = true, tq2_0 = true, q1_0 = true, q2_0 = true, pq2_0 = true, ptq1_0 = true }

-- Elements of a block, and the types that take the place of one whose blocks do not fit a row.
local block = {
  q2_k = 256, q3_k = 256, q4_k = 256, q5_k = 256, q6_k = 256, iq4_xs = 256, tq1_0 = 256, tq2_0 = 256,
  q1_0 = 128, pq2_0 = 128, ptq1_0 = 128, q2_0 = 64, f32 = 1, f16 = 1, bf16 = 1,
}
local fallback = { q2_k = "iq4_nl", q3_k = "iq4_nl", iq4_xs = "iq4_nl", q4_k = "q5_0", q5_k = "q5_1", q6_k = "q8_0" }

-- Tensors that llama.cpp's quantizer leaves as they are: small or sensitive ones, also of architectures whose files are
-- only copied. A tensor is one of these if its name holds one of these texts (llama-quant.cpp,
-- tensor_allows_quantization).
local kept = {}
for text in ([[
  _norm.weight ffn_gate_inp.weight ffn_gate_tid2eid.weight altup laurel per_layer_model_proj position_embd.weight
  token_types.weight ssm_conv1d shortconv.conv.weight indexer.k_proj.weight indexer.q_proj.weight
  time_mix_first.weight time_mix_w0.weight time_mix_w1.weight time_mix_w2.weight time_mix_v0.weight
  time_mix_v1.weight time_mix_v2.weight time_mix_a0.weight time_mix_a1.weight time_mix_a2.weight time_mix_g1.weight
  time_mix_g2.weight time_mix_decay_w1.weight time_mix_decay_w2.weight time_mix_lerp_fused.weight attn_rel_b.weight
  .position_embd sam.pos_embd sam.neck. sam.net_ .rel_pos .patch_embd .patch_merger a.rvq.codebook mm.a.code_embd
]]):gmatch "%S+" do kept[#kept + 1] = text end

local function is_kept(name)
  if not name:find "weight$" then return true end
  for _, text in ipairs(kept) do
    if name:find(text, 1, true) then return true end
  end
  return false
end

function types.names()
  local list = {}
  for name in pairs(mixes) do list[#list + 1] = name end
  table.sort(list)
  return list
end

local function known(name)
  name = name:lower()
  name = aliases[name] or name
  if not mixes[name] then
    q.error("value", ("there is no type %s; there are %s"):format(name, table.concat(types.names(), ", ")))
  end
  return name
end

-- A type that fits rows of `columns`: `type`, or the one that stands in for it.
function types.fitting(type, columns)
  while columns % (block[type] or 32) ~= 0 do
    type = (block[type] or 32) == 32 and "f16" or fallback[type] or "q4_0"
  end
  return type
end

-- llama.cpp's choice of layers that get more bits: the first and last eighth, and every third between.
local function more_bits(layer, layers)
  local eighth = math.floor(layers / 8)
  return layer < eighth or layer >= math.floor(7 * layers / 8) or (layer - eighth) % 3 == 2
end

-- Mixes of which attn_output has more bits in a model of eight experts, beside which it is small.
local few_bits = {
  q2_k = true, q3_k_s = true, q3_k_m = true, q4_k_s = true, q4_k_m = true, iq4_nl = true, iq4_xs = true,
}

-- The type of a matrix by the mix, from its GGUF name. shape: {layers =, groups = heads / kv_heads, tied =, experts =}
-- of the model. weighed: by importance.
local function of_mix(mix, name, shape, weighed)
  local base = mixes[mix][1]
  if base == "f32" or base == "f16" or base == "bf16" or mix == "q8_0" then return base end
  local embedding = name == "token_embd.weight"
  if name == "output.weight" or (embedding and (shape.tied or ternary[base])) then return "q6_k" end
  local layer, part = name:match "^blk%.(%d+)%.([%w_]+)%.weight$"
  if not layer then return base end
  layer, part = tonumber(layer), part:gsub("_exps$", ""):gsub("_shexp$", "")
  if shape.experts == 8 then  -- as of Mixtral, whose attention is a small part of the file
    if part == "attn_v" or part == "attn_k" then return "q8_0" end
    if part == "attn_output" then return few_bits[mix] and "q5_k" or base end
  end
  local early = layer < math.floor(shape.layers / 8)
  if part == "attn_v" then
    if mix == "q2_k" then return shape.groups >= 4 and "q4_k" or "q3_k" end
    if mix == "q3_k_m" then return layer < 2 and "q5_k" or "q4_k" end
    if mix == "q3_k_l" then return "q5_k" end
    if mix == "q4_k_s" and layer < 4 or base:find "^iq4" and shape.groups >= 4 then return "q5_k" end
    if (mix == "q4_k_m" or mix == "q5_k_m") and more_bits(layer, shape.layers) then return "q6_k" end
  elseif part == "attn_qkv" then
    return ({ q3_k_m = "q4_k", q3_k_l = "q4_k", q4_k_m = "q5_k", q5_k_m = "q6_k" })[mix] or base
  elseif part == "ffn_down" then
    if mix == "q2_k" then return "q3_k" end
    if mix == "q3_k_m" then return layer < math.floor(shape.layers / 16) and "q5_k" or "q4_k" end
    if mix == "q3_k_l" then return "q5_k" end
    if early and (mix == "q4_k_s" or base:find "^iq4" and not weighed) then return "q5_k" end
    if (mix == "q4_k_m" or mix == "q5_k_m") and more_bits(layer, shape.layers) then return "q6_k" end
  elseif part == "attn_output" then
    if mix == "q2_k" then return "q3_k" end
    if mix == "q3_k_m" then return "q4_k" end
    if mix == "q3_k_l" then return "q5_k" end
  end
  return base
end

-- "ffn_down=q6_k,output=q8_0": patterns and types. A pattern is the beginning of a tensor's name, or of what follows a
-- dot in it, with * for anything. "output" is the head alone, not attn_output. The last that fits counts.
local function read_overrides(text)
  local list = {}
  for entry in text:gmatch "[^,%s]+" do
    local pattern, name = entry:match "^(.+)=([%w_]+)$"
    if not pattern then q.error("usage", ("'%s' is not PATTERN=TYPE"):format(entry)) end
    local type = mixes[known(name)][1]
    local escaped = pattern:gsub("[%^%$%(%)%%%.%[%]%+%-%?]", "%%%0"):gsub("%*", ".*")
    list[#list + 1] = { pattern = "%." .. escaped, text = pattern, type = type, used = false }
  end
  return list
end

-- A plan: plan:type_of(name, shape of the tensor, signs, stored) -> type, and the reason if it is not what was asked
-- for. signs: as in gguf/export.lua. A tensor of signs never falls back to a type of few bits, which would round what
-- is exact. stored: the type of a tensor that is left as it is (f32 by default).
local Plan = {}
Plan.__index = Plan

-- overrides: text as above, or "". shape, weighed: see of_mix.
function types.plan(mix, overrides, shape, weighed)
  mix = known(mix)
  return setmetatable({
    mix = mix, file_type = mixes[mix][2], overrides = read_overrides(overrides or ""), shape = shape,
    weighed = weighed or false,
  }, Plan)
end

function Plan:type_of(name, dims, signs, stored)
  if #dims == 1 then return "f32" end
  local type = is_kept(name) and (stored or "f32") or of_mix(self.mix, name, self.shape, self.weighed)
  for _, override in ipairs(self.overrides) do
    if ("." .. name):find(override.pattern) then type, override.used = override.type, true end
  end
  local fits = types.fitting(type, dims[#dims])
  if fits ~= type and signs then
    q.error("shape", ("%s: %s weights, and blocks of %s hold %d, which do not divide %d columns: give it a type that "
      .. "fits, such as %s=f16 in the overrides"):format(name, signs, type, block[type] or 32, dims[#dims], name))
  end
  if fits ~= type then
    return fits, ("as %s instead of %s, whose blocks of %d do not divide %d columns"):format(fits, type,
      block[type] or 32, dims[#dims])
  end
  return type
end

-- Refuses overrides that no tensor had.
function Plan:check()
  for _, override in ipairs(self.overrides) do
    if not override.used then q.error("value", ("no matrix is called like %s"):format(override.text)) end
  end
end

return types
