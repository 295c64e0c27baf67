-- The metadata of a GGUF file as the keys of a Hugging Face config.json, which the models read. A key means what llama.cpp makes of it
-- in that architecture; one that it does not read there is not applied, which a line says; one that may change the mathematics
-- and is not understood is refused by name.

local config = require "qeng.model.config"
local q = require "qeng.core"

local gguf_config = {}

-- The architectures of GGUF that are read: which model file computes them.
local architectures = {
  llama = "LlamaForCausalLM", qwen2 = "Qwen2ForCausalLM", qwen3 = "Qwen3ForCausalLM", gemma = "GemmaForCausalLM",
  gemma3 = "Gemma3ForCausalLM",
}

-- What keeps an architecture out that looks like a known one.
local lacking = { gemma2 = "attention logit soft-capping" }

-- Namespaces and keys that say nothing about what the network computes.
local harmless_space = { general = true, tokenizer = true, split = true, quantize = true }
local harmless = {}
for key in ([[
  vocab_size tensor_data_layout rope.scaling.finetuned
]]):gmatch "%S+" do harmless[key] = true end

-- What llama.cpp has no key for, and this program writes (gguf/export.lua).
local ours = { ["qeng.stop_token_ids"] = true, ["qeng.sliding_window"] = true }

local Reader = {}
Reader.__index = Reader

-- A value of the architecture's own key; kind: its Lua type.
function Reader:get(key, kind, default)
  self.used[key] = true
  local name = self.architecture .. "." .. key
  local value = self.file:get(name)
  if value == nil then
    if default == nil then q.error("format", ("%s: entry %s is missing"):format(self.path, name)) end
    return default
  end
  if type(value) ~= kind then
    q.error("format", ("%s: entry %s is a %s, expected a %s"):format(self.path, name, type(value), kind))
  end
  if kind == "number" and not (math.abs(value) < math.huge) then
    q.error("format", ("%s: entry %s is %s, expected a finite number"):format(self.path, name, tostring(value)))
  end
  return value
end

function Reader:check_size(key, value, most)
  if type(value) ~= "number" or not (value >= 1 and value <= most) or value % 1 ~= 0 then
    q.error("format", ("%s: entry %s.%s is %s, expected a positive integer, at most %d"):format(self.path, self.architecture, key, tostring(value), most))
  end
  return value
end

function Reader:size(key, most) return self:check_size(key, self:get(key, "number"), most or 2 ^ 31) end

-- A size that some files give for each layer.
function Reader:same_for_layers(key, default)
  local value = self.file:get(self.architecture .. "." .. key)
  if type(value) ~= "table" then return self:check_size(key, self:get(key, "number", default), 2 ^ 31) end
  self.used[key] = true
  for _, each in ipairs(value) do
    if each ~= value[1] then q.error("unsupported", ("%s: %s.%s differs between layers"):format(self.path, self.architecture, key)) end
  end
  return self:check_size(key, value[1], 2 ^ 31)
end

-- A key that is supported at one value only.
function Reader:must(key, value)
  local given = self:get(key, type(value), value)
  if given ~= value then
    q.error("unsupported", ("%s: %s.%s = %s is not supported, only %s"):format(self.path, self.architecture, key, tostring(given), tostring(value)))
  end
end

-- A key that llama.cpp does not read in this architecture, where it takes `taken`: followed, and said where the file has something else.
function Reader:not_applied(key, taken)
  self.used[key] = true
  local name = self.architecture .. "." .. key
  local value = self.file:get(name)
  if value ~= nil and value ~= taken then
    io.stderr:write(("%s: %s = %s is not applied, as in llama.cpp, which does not read it in this architecture and takes %s\n")
      :format(self.path, name, type(value) == "table" and "a list" or tostring(value), tostring(taken)))
  end
end

-- What rope.scaling.* says, as rope_scaling. A factor whose type is not said is linear.
function Reader:rope_scaling()
  local kind = self:get("rope.scaling.type", "string", "linear")
  local factor = self:get("rope.scaling.factor", "number", self:get("rope.scale_linear", "number", 1))
  local original = self:get("rope.scaling.original_context_length", "number", 0)
  local attention = self:get("rope.scaling.attn_factor", "number", 1)
  if factor == 0 then factor = 1 end
  if kind == "yarn" then
    self:not_applied("rope.scaling.yarn_beta_fast", 32)
    self:not_applied("rope.scaling.yarn_beta_slow", 1)
    self:not_applied("rope.scaling.yarn_attn_factor", 1)
    self:not_applied("rope.scaling.yarn_ext_factor", 1)
  else
    for _, key in ipairs { "beta_fast", "beta_slow", "attn_factor", "ext_factor" } do self.used["rope.scaling.yarn_" .. key] = true end
  end
  if kind ~= "yarn" or self.architecture == "gemma3" then self:must("rope.scaling.attn_factor", 1) end
  if kind == "none" or kind == "linear" and factor == 1 then return nil end
  if kind == "linear" then return { rope_type = kind, factor = factor } end
  if kind ~= "yarn" then q.error("unsupported", ("%s: rope scaling %s; linear and yarn are read"):format(self.path, kind)) end
  return {
    rope_type = kind, factor = factor, original_max_position_embeddings = original > 0 and original or nil,
    -- llama.cpp multiplies YaRN's own factor by this one; Hugging Face's attention_factor stands in place of it.
    attention_factor = attention ~= 1 and attention * (1 + 0.1 * math.log(math.max(1, factor))) or nil,
  }
end

-- The settings of Llama 3's rope scaling whose factors are those of tensor rope_freqs, or nil. The files hold the factors
-- alone, and published models have had these.
local function llama3_scaling(factors, theta)
  local dim = 2 * #factors
  local plain = q.rope_table { dim = dim, theta = theta }.inv_freq:table()
  for _, factor in ipairs { 8, 32, 4, 16, 64 } do
    local scaling = {
      rope_type = "llama3", factor = factor, low_freq_factor = 1, high_freq_factor = 4, original_max_position_embeddings = 8192,
    }
    local table_ = q.rope_table {
      dim = dim, theta = theta, type = "llama3", factor = factor, low_freq_factor = 1, high_freq_factor = 4,
      original_max_position_embeddings = 8192,
    }.inv_freq:table()
    local same = true
    for i, each in ipairs(factors) do same = same and math.abs(plain[i] / table_[i] / each - 1) < 1e-5 end
    if same then return scaling end
  end
end

-- What Gemma 3's own entries say, where `values` has what all architectures share. llama.cpp knows the pattern of windows, the
-- frequencies of the layers that have one, and the scale of attention by the architecture; newer files say the first two.
function Reader:gemma3(values, window)
  local layers, types = values.num_hidden_layers, {}
  local pattern = self.file:get "gemma3.attention.sliding_window_pattern" or 6
  self.used["attention.sliding_window_pattern"] = true
  local listed = type(pattern) == "table"
  if listed and #pattern ~= layers or not listed and (type(pattern) ~= "number" or pattern < 1 or pattern % 1 ~= 0) then
    q.error("format", ("%s: entry gemma3.attention.sliding_window_pattern %s, expected a positive integer, or one entry for each of %d layers")
      :format(self.path, listed and ("has %d entries"):format(#pattern) or "is " .. tostring(pattern), layers))
  end
  for i = 1, layers do
    local near
    if listed then near = pattern[i] == true or pattern[i] == 1 else near = i % pattern ~= 0 end
    types[i] = window > 0 and near and "sliding_attention" or "full_attention"
  end
  values.layer_types = q.json.array(types)
  values.sliding_window = window > 0 and window or nil
  values.rope_local_base_freq = self:get("rope.freq_base_swa", "number", 10000)
  values.query_pre_attn_scalar = gguf_config.query_scalar(values)
end

-- The square of what llama.cpp divides Gemma 3's scores by: the largest, which it knows by its layers, has another than the rest.
function gguf_config.query_scalar(values)
  if values.num_hidden_layers == 62 then return math.floor(values.hidden_size / values.num_attention_heads) end
  return values.head_dim
end

function Reader:finish()
  for _, name in ipairs(self.file:keys()) do
    local space, key = name:match "^([^.]*)%.(.*)$"
    local known = harmless_space[space] or ours[name] or (space == self.architecture and (self.used[key] or harmless[key])) or self.known[name]
    if not known then
      q.error("unsupported", ("%s: unknown entry %s: it may change the mathematics, so this model is refused"):format(self.path, name))
    end
  end
end

-- Returns the values of a config.json, and the factors by which rotation frequencies are divided where no setting of
-- config.json says them. known_keys: a set of other keys, which the caller reads.
function gguf_config.read(file, path, known_keys)
  local architecture = file:get "general.architecture"
  if file:get "general.type" == "adapter" then
    q.error("value", ("%s: is an adapter, not a model: load its base, and then model:load_adapter"):format(path))
  end
  if lacking[architecture] then
    q.error("unsupported", ("%s: architecture %s needs %s, which is not supported"):format(path, architecture, lacking[architecture]))
  end
  if not architectures[architecture] then
    local known = {}
    for name in pairs(architectures) do known[#known + 1] = name end
    table.sort(known)
    q.error("unsupported", ("%s: architecture %s is not known; known are %s"):format(path, tostring(architecture), table.concat(known, ", ")))
  end
  local r = setmetatable({ file = file, path = path, architecture = architecture, used = {}, known = known_keys }, Reader)
  local embedding = file:info "token_embd.weight"
  if not embedding then q.error("format", path .. ": has no tensor token_embd.weight") end
  local heads = r:same_for_layers "attention.head_count"
  local hidden = r:size "embedding_length"
  local head_dim = r:get("attention.key_length", "number", math.floor(hidden / heads))
  r:must("attention.value_length", head_dim)
  r:must("rope.dimension_count", head_dim)
  r:must("expert_count", 0)
  r:must("expert_used_count", 0)
  r:must("attention.causal", true)
  local window = file:get "qeng.sliding_window"
  if architecture == "gemma3" then
    window = r:get("attention.sliding_window", "number", 0)
    r:must("final_logit_softcapping", 0)
  elseif window then
    r.used["attention.sliding_window"] = true
    if architecture == "gemma" or type(window) ~= "number" then q.error("format", path .. ": entry qeng.sliding_window, which is a number, of llama, qwen2 and qwen3") end
  else
    r:not_applied("attention.sliding_window", 0)
  end
  local theta = r:get("rope.freq_base", "number", 10000)
  local hf = architectures[architecture]
  if hf == "LlamaForCausalLM" and window then hf = "MistralForCausalLM" end
  local values = {
    architectures = q.json.array { hf }, model_type = architecture == "gemma3" and "gemma3_text" or hf:match("^(%w-)ForCausalLM$"):lower(),
    hidden_size = hidden, num_hidden_layers = r:size("block_count", config.most_layers), num_attention_heads = heads,
    num_key_value_heads = r:same_for_layers("attention.head_count_kv", heads), head_dim = head_dim,
    intermediate_size = r:same_for_layers "feed_forward_length", vocab_size = embedding.shape[1],
    rms_norm_eps = r:get("attention.layer_norm_rms_epsilon", "number"),
    max_position_embeddings = r:get("context_length", "number"), rope_theta = theta, rope_scaling = r:rope_scaling(),
    tie_word_embeddings = file:info "output.weight" == nil,
    bos_token_id = file:get "tokenizer.ggml.bos_token_id", eos_token_id = file:get "tokenizer.ggml.eos_token_id",
  }
  local gemma = architecture == "gemma" or architecture == "gemma3"
  values[gemma and "hidden_activation" or "hidden_act"] = gemma and "gelu_pytorch_tanh" or "silu"
  if hf == "LlamaForCausalLM" then
    values.attention_bias = file:info "blk.0.attn_q.bias" ~= nil
    values.mlp_bias = file:info "blk.0.ffn_gate.bias" ~= nil
  elseif hf == "Qwen3ForCausalLM" then
    values.attention_bias = file:info "blk.0.attn_q.bias" ~= nil
  end
  if architecture == "gemma3" then
    r:gemma3(values, window)
  elseif window then
    values.sliding_window = window
    if hf ~= "MistralForCausalLM" then values.use_sliding_window, values.max_window_layers = true, 0 end
  end
  local factors
  if file:info "rope_freqs.weight" then
    if architecture ~= "llama" then q.error("unsupported", ("%s: tensor rope_freqs.weight, which %s has not"):format(path, architecture)) end
    factors = file:tensor("rope_freqs.weight", { dtype = "f32" }):table()
    if #factors ~= head_dim / 2 then
      q.error("format", ("%s: rope_freqs.weight has %d factors, expected %d"):format(path, #factors, head_dim / 2))
    end
    if values.rope_scaling then q.error("unsupported", path .. ": both rope.scaling and rope_freqs.weight") end
    values.rope_scaling = llama3_scaling(factors, theta)
    if values.rope_scaling then factors = nil end
  end
  r:finish()
  return values, architecture, factors
end

gguf_config.architectures = architectures
return gguf_config
