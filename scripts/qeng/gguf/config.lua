-- The metadata of a GGUF file as the keys of a Hugging Face config.json, which the models read. A key means what
-- llama.cpp makes of it in that architecture. A key that llama.cpp does not read there is not applied, and a line says
-- so. A key that may change the mathematics and is not understood is refused by name. The table `gguf` of a model file
-- says how an architecture differs from the others:
--   reads(file)      whether a file is of this model, where several models have one word in GGUF
--   window           the entry with the window of attention, false if there is none; nil: it is qeng.sliding_window,
--                    which llama.cpp does not know
--   partial_rotary   rope.dimension_count may be less than the heads'
--   eps              the entry with the epsilon of norms, if it is not attention.layer_norm_rms_epsilon
--   rope_freqs       tensor rope_freqs.weight may be there
--   experts          MLPs are of experts; r.experts is how many
--   no_ffn           the width of MLPs without experts may be missing
--   untruncated      YaRN begins and ends where its settings say, not at the whole dimension next to it
--   longrope         tensors rope_factors_short.weight and rope_factors_long.weight may be there
--   read(r, values)  reads further entries into the values; r: a Reader, with r.window
--   layout(r)        what else of the file decides how the model is made, as Config.layout
--   values(r)        all values but those that every model has, in place of those of attention and MLPs

local architectures = require "qeng.model.architectures"
local config = require "qeng.model.config"
local q = require "qeng.core"

local gguf_config = {}

-- Namespaces and keys that say nothing about what the network computes.
local harmless_space = { general = true, tokenizer = true, split = true, quantize = true }
local harmless = {}
for key in ([[
  vocab_size tensor_data_layout rope.scaling.finetuned
]]):gmatch "%S+" do harmless[key] = true end

-- Keys that llama.cpp does not have and this program writes (gguf/export.lua).
local ours = { ["qeng.stop_token_ids"] = true, ["qeng.sliding_window"] = true }

local Reader = {}
Reader.__index = Reader

function Reader:has(tensor) return self.file:info(tensor) ~= nil end

-- Whether some block has a tensor of this name.
function Reader:any(part)
  for i = 0, self:size("block_count", config.most_layers) - 1 do
    if self:has(("blk.%d.%s"):format(i, part)) then return true end
  end
  return false
end

-- A value of one of the architecture's keys. kind: its Lua type.
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
    q.error("format", ("%s: entry %s.%s is %s, expected a positive integer, at most %d"):format(self.path,
      self.architecture, key, tostring(value), most))
  end
  return value
end

function Reader:size(key, most) return self:check_size(key, self:get(key, "number"), most or 2 ^ 31) end

-- A size that some files give for each layer. It has to be the same for all.
function Reader:same_for_layers(key, default)
  local value = self.file:get(self.architecture .. "." .. key)
  if type(value) ~= "table" then return self:check_size(key, self:get(key, "number", default), 2 ^ 31) end
  self.used[key] = true
  for _, each in ipairs(value) do
    if each ~= value[1] then
      q.error("unsupported", ("%s: %s.%s differs between layers"):format(self.path, self.architecture, key))
    end
  end
  return self:check_size(key, value[1], 2 ^ 31)
end

-- A key that is supported at one value only.
function Reader:must(key, value)
  local given = self:get(key, type(value), value)
  if given ~= value then
    q.error("unsupported", ("%s: %s.%s = %s is not supported, only %s"):format(self.path, self.architecture, key,
      tostring(given), tostring(value)))
  end
end

-- A key that llama.cpp does not read in this architecture, for which it takes `taken`. This program does the same, and
-- says so if the file has another value.
function Reader:not_applied(key, taken)
  self.used[key] = true
  local name = self.architecture .. "." .. key
  local value = self.file:get(name)
  if value ~= nil and value ~= taken then
    local shown = type(value) == "table" and "a list" or tostring(value)
    io.stderr:write(("%s: %s = %s is not applied, as in llama.cpp, which does not read it in this architecture and "
      .. "takes %s\n"):format(self.path, name, shown, tostring(taken)))
  end
end

-- rope_scaling for a file with longrope's two tensors. llama.cpp goes by the tensors, whatever the type says.
function Reader:longrope()
  self:get("rope.scaling.type", "string", "")
  local function factors(name) return self.file:tensor(name, { dtype = "f32" }):table() end
  return {
    rope_type = "longrope",
    short_factor = factors "rope_factors_short.weight", long_factor = factors "rope_factors_long.weight",
    attention_factor = self:get("rope.scaling.attn_factor", "number", 1),
    original_max_position_embeddings = self:get("rope.scaling.original_context_length", "number",
      self:get("context_length", "number")),
  }
end

-- rope_scaling of rope.scaling.*. A factor without a type is linear.
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
    for _, key in ipairs { "beta_fast", "beta_slow", "attn_factor", "ext_factor" } do
      self.used["rope.scaling.yarn_" .. key] = true
    end
  end
  if kind ~= "yarn" then self:must("rope.scaling.attn_factor", 1) end
  if kind == "none" or kind == "linear" and factor == 1 then return nil end
  if kind == "linear" then return { rope_type = kind, factor = factor } end
  if kind ~= "yarn" then
    q.error("unsupported", ("%s: rope scaling %s; linear and yarn are read"):format(self.path, kind))
  end
  return {
    rope_type = kind, factor = factor, original_max_position_embeddings = original > 0 and original or nil,
    -- llama.cpp multiplies YaRN's own factor by this one; Hugging Face's attention_factor stands in place of it.
    attention_factor = attention ~= 1 and attention * (1 + 0.1 * math.log(math.max(1, factor))) or nil,
  }
end

-- The settings of Llama 3's rope scaling that give the factors of tensor rope_freqs, or nil. Files hold the factors
-- alone. Published models have had the settings below.
local function llama3_scaling(factors, theta)
  local dim = 2 * #factors
  local plain = q.rope_table { dim = dim, theta = theta }.inv_freq:table()
  for _, factor in ipairs { 8, 32, 4, 16, 64 } do
    local scaling = {
      rope_type = "llama3", factor = factor, low_freq_factor = 1, high_freq_factor = 4,
      original_max_position_embeddings = 8192,
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

function Reader:finish()
  for _, name in ipairs(self.file:keys()) do
    local space, key = name:match "^([^.]*)%.(.*)$"
    local known = harmless_space[space] or ours[name] or self.known[name]
      or (space == self.architecture and (self.used[key] or harmless[key]))
    if not known then
      q.error("unsupported", ("%s: unknown entry %s: it may change the mathematics, so this model is refused"):format(
        self.path, name))
    end
  end
end

-- The model file for an open GGUF file. own: the user's model file, which then has to fit.
local function architecture_of(file, path, own)
  local word, plain = file:get "general.architecture", nil
  if file:get "general.type" == "adapter" then
    q.error("value", ("%s: is an adapter, not a model: load its base, and then model:load_adapter"):format(path))
  end
  for _, arch in ipairs(own and { own } or architectures.known) do
    if arch.gguf and arch.gguf.architecture == word then
      if arch.gguf.reads and arch.gguf.reads(file) then return arch end
      if own or not arch.gguf.reads then plain = arch end
    end
  end
  return plain or architectures.unknown(path, word, function(arch) return arch.gguf and arch.gguf.architecture end)
end

-- The window of attention that the file has; nil if it says nothing.
local function window_of(r, words)
  if words.window then return r:get(words.window, "number", 0) end
  local window = r.file:get "qeng.sliding_window"
  if not window then
    r:not_applied("attention.sliding_window", 0)
    return nil
  end
  r.used["attention.sliding_window"] = true
  if words.window == false or type(window) ~= "number" then
    q.error("format", ("%s: entry qeng.sliding_window, which is a number, and which %s has not")
      :format(r.path, r.architecture))
  end
  return window
end

-- r.experts, and r.used_experts of a token. llama.cpp's older files have a tensor for each expert, ffn_gate.0 and on.
local function read_experts(r, words)
  if not words.experts then
    r:must("expert_count", 0)
    return r:must("expert_used_count", 0)
  end
  r.experts, r.used_experts = r:size "expert_count", r:size "expert_used_count"
  if r:has "blk.0.ffn_gate.0.weight" then
    q.error("unsupported", ("%s: has a tensor for each expert (blk.0.ffn_gate.0.weight), as files of before April "
      .. "2024; expected one for all (blk.0.ffn_gate_exps.weight): convert the model again"):format(r.path))
  end
  r:must("expert_weights_scale", 1)
end

-- The factors of tensor rope_freqs.weight. If they are those of a known setting, `values` gets the setting instead.
local function rope_factors(r, values, words)
  if not r:has "rope_freqs.weight" then return nil end
  if not words.rope_freqs then
    q.error("unsupported", ("%s: tensor rope_freqs.weight, which %s has not"):format(r.path, r.architecture))
  end
  local factors = r.file:tensor("rope_freqs.weight", { dtype = "f32" }):table()
  if #factors ~= values.head_dim / 2 then
    q.error("format", ("%s: rope_freqs.weight has %d factors, expected %d")
      :format(r.path, #factors, values.head_dim / 2))
  end
  if values.rope_scaling then q.error("unsupported", r.path .. ": both rope.scaling and rope_freqs.weight") end
  values.rope_scaling = llama3_scaling(factors, values.rope_theta)
  return not values.rope_scaling and factors or nil
end

-- The values of a model of attention and MLPs.
local function of_attention(r, words)
  local heads = r:same_for_layers "attention.head_count"
  local hidden = r:size "embedding_length"
  local head_dim = r:get("attention.key_length", "number", math.floor(hidden / heads))
  r:must("attention.value_length", head_dim)
  local rotary = words.partial_rotary and r:get("rope.dimension_count", "number", head_dim) or head_dim
  r:must("rope.dimension_count", rotary)
  read_experts(r, words)
  r:must("attention.causal", true)
  r.window = window_of(r, words)
  local ffn
  if not words.no_ffn or r.file:get(r.architecture .. ".feed_forward_length") then
    ffn = r:same_for_layers "feed_forward_length"
  end
  return {
    hidden_act = "silu", hidden_size = hidden, num_attention_heads = heads,
    num_key_value_heads = r:same_for_layers("attention.head_count_kv", heads), head_dim = head_dim,
    intermediate_size = ffn,
    rms_norm_eps = r:get(words.eps or "attention.layer_norm_rms_epsilon", "number"),
    max_position_embeddings = r:get("context_length", "number"), rope_theta = r:get("rope.freq_base", "number", 10000),
    rope_scaling = words.longrope and r:has "rope_factors_long.weight" and r:longrope() or r:rope_scaling(),
    partial_rotary_factor = rotary ~= head_dim and rotary / head_dim or nil, sliding_window = r.window,
    num_experts_per_tok = r.used_experts,
  }
end

-- Returns the values of a config.json, the model file, factors that divide rotation frequencies if no setting of
-- config.json gives them, and the file's layout. known_keys: a set of other keys, which the caller reads. own: the
-- user's model file, or nil.
function gguf_config.read(file, path, known_keys, own)
  local arch = architecture_of(file, path, own)
  local words = arch.gguf
  local r = { file = file, path = path, architecture = words.architecture, used = {}, known = known_keys }
  setmetatable(r, Reader)
  local embedding = file:info "token_embd.weight"
  if not embedding then q.error("format", path .. ": has no tensor token_embd.weight") end
  local values = words.values and words.values(r) or of_attention(r, words)
  values.architectures, values.model_type = q.json.array { arch.hf }, arch.model_type
  values.num_hidden_layers = r:size("block_count", config.most_layers)
  values.vocab_size, values.tie_word_embeddings = embedding.shape[1], not r:has "output.weight"
  values.bos_token_id = file:get "tokenizer.ggml.bos_token_id"
  values.eos_token_id = file:get "tokenizer.ggml.eos_token_id"
  if words.read then words.read(r, values) end
  local factors = rope_factors(r, values, words)
  local layout = words.layout and words.layout(r)
  r:finish()
  return values, arch, factors, layout
end

return gguf_config
