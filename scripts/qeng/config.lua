-- Reads a Hugging Face config.json strictly: a key that a model file neither uses nor knows to be harmless is refused by
-- name, because it may change the mathematics.

local q = require "qeng.core"

local config = {}

-- Keys that say nothing about what the network computes.
local harmless = {}
for key in ([[
  _name_or_path architectures model_type torch_dtype dtype transformers_version use_cache bos_token_id eos_token_id
  pad_token_id initializer_range attention_dropout hidden_dropout max_position_embeddings tie_word_embeddings
  sep_token_id decoder_start_token_id return_dict output_attentions output_hidden_states unsloth_version unsloth_fixed
  chunk_size_feed_forward id2label label2id problem_type finetuning_task task_specific_params auto_map quantization_config_removed
  use_sliding_window sliding_window max_window_layers layer_types is_encoder_decoder _attn_implementation_autoset name_or_path
  rope_theta rope_scaling rope_parameters rope_interleaved is_decoder add_cross_attention cross_attention_hidden_size
  tie_encoder_decoder cache_implementation
]]):gmatch("%S+") do harmless[key] = true end

-- Eight times what the largest published models have, or more: a damaged number must not be counted up to, nor memory asked for it.
config.most_layers = 1024        -- 126: Llama 3.1 405B
local most_of = {
  hidden_size = 2 ^ 18,          -- 16384: the same
  intermediate_size = 2 ^ 20,    -- 53248: the same
  num_hidden_layers = config.most_layers,
  num_attention_heads = 2 ^ 11,  -- 128: the same
  num_key_value_heads = 2 ^ 11,
  head_dim = 2 ^ 12,             -- 256: Gemma
  vocab_size = 2 ^ 23,           -- 262144: Gemma 3
}

local Config = {}
Config.__index = Config

local array = getmetatable(q.json.array {})
local function is_object(value) return type(value) == "table" and getmetatable(value) ~= array and #value == 0 end

local function described(value)
  if type(value) == "string" then return ('a string ("%s")'):format(value) end
  return type(value) == "table" and (is_object(value) and "an object" or "a list") or "a " .. type(value)
end

local read_from = setmetatable({}, { __mode = "k" })  -- the files of values, for errors

-- The keys and values of the file.
function config.values(path)
  local text = q.fs.read(path)
  local values, why = q.try(q.json.decode, text)
  if not is_object(values) then
    q.error("format", ("%s: not a JSON object%s"):format(path, why and ": " .. why.message:gsub("^json: ", "") or ""))
  end
  read_from[values] = path
  return values
end

-- The config of folder `dir`, its keys consumed by get() and must().
function config.read(dir) return config.wrap(config.values(dir .. "/config.json")) end

-- path: where `values` are from, if config.values() did not read them.
function config.wrap(values, path)
  return setmetatable({ values = values, path = path or read_from[values] or "config", used = {} }, Config)
end

local function given(value) return value ~= nil and value ~= q.json.null end

-- A number (or boolean, string) of the type of `default`; required where default is nil: pass kind = "number".
function Config:get(key, default, kind)
  self.used[key] = true
  local value = self.values[key]
  if not given(value) then
    if default == nil then q.error("format", ("%s: key %s is missing"):format(self.path, key)) end
    return default
  end
  kind = kind or type(default)
  if type(value) ~= kind then
    q.error("format", ("%s: key %s is %s, expected a %s"):format(self.path, key, described(value), kind))
  end
  return value
end

-- At most what models have, or 2^31 where there is no smaller limit.
function Config:size(key, default)
  local value = self:get(key, default, "number")
  local most = most_of[key] or 2 ^ 31
  if not (value >= 1 and value <= most) or value ~= math.floor(value) then
    q.error("format", ("%s: key %s is %s, expected a positive integer, at most %d"):format(self.path, key, tostring(value), most))
  end
  return value
end

local function is_positive(value) return type(value) == "number" and value > 0 and value < math.huge end

function Config:positive(key, default)
  local value = self:get(key, default, "number")
  if not is_positive(value) then q.error("format", ("%s: key %s is %s, expected a positive number"):format(self.path, key, tostring(value))) end
  return value
end

-- A key this model supports at one value only.
function Config:must(key, value)
  self.used[key] = true
  local actual = self.values[key]
  if given(actual) and actual ~= value then
    q.error("unsupported", ("%s: %s = %s changes the mathematics; this model supports %s only")
      :format(self.path, key, tostring(actual), tostring(value)))
  end
end

-- Refuses a model that has `what`, as this key would say.
function Config:without(key, what)
  self.used[key] = true
  if given(self.values[key]) then
    q.error("unsupported", ("%s: %s = %s asks for %s, which is not supported"):format(self.path, key, tostring(self.values[key]), what))
  end
end

-- What rope_scaling and rope_parameters may hold; all else are numbers.
local rope_types = { rope_type = "string", type = "string", mrope_section = "table", mrope_interleaved = "boolean", truncate = "boolean", finetuned = "boolean", short_factor = "table", long_factor = "table" }
local must_be_positive = { rope_theta = true, factor = true, partial_rotary_factor = true, original_max_position_embeddings = true }

-- The entries of the object at `key` (in it, at `kind`) that are not null; nil where there is none.
function Config:rope_entries(key, kind)
  local object, name, entries = self.values[key], key, {}
  local function expect_object()
    if given(object) and not is_object(object) then
      q.error("format", ("%s: key %s is %s, expected an object"):format(self.path, name, described(object)))
    end
  end
  expect_object()
  if given(object) and kind and (object.full_attention or object.sliding_attention) then
    object, name = object[kind], key .. "." .. kind
    expect_object()
  end
  if not given(object) then return nil end
  for entry, value in pairs(object) do
    if given(value) then
      local expected = rope_types[entry] or "number"
      if type(value) ~= expected then
        q.error("format", ("%s: key %s.%s is %s, expected a %s"):format(self.path, name, entry, described(value), expected == "table" and "list" or expected))
      end
      if must_be_positive[entry] and not is_positive(value) then
        q.error("format", ("%s: key %s.%s is %s, expected a positive number"):format(self.path, name, entry, tostring(value)))
      end
      entries[entry] = value
    end
  end
  return entries
end

-- {theta, scaling}: from rope_theta and rope_scaling, or from rope_parameters (newer files). kind: which of rope_parameters'
-- where these differ between layers; theta_key: what the older files call its theta.
function Config:rope(default_theta, kind, theta_key)
  theta_key = theta_key or "rope_theta"
  local scaling = self:rope_entries("rope_parameters", kind)
  if not scaling and kind ~= "sliding_attention" then scaling = self:rope_entries "rope_scaling" end
  scaling = scaling or {}
  local rope = { theta = scaling.rope_theta or self:positive(theta_key, default_theta), partial = scaling.partial_rotary_factor or 1, factors = self.rope_factors }
  local named = scaling.rope_type or scaling.type
  if not named and scaling.factor and scaling.factor ~= 1 then
    q.error("format", ("%s: the rotation has factor = %s, but no rope_type says what it is of"):format(self.path, tostring(scaling.factor)))
  end
  if named and named ~= "default" then rope.scaling = scaling end
  return rope
end

-- layer_types as a list of strings; nil where there is none. layers: how many it has to name.
function Config:layer_types(layers)
  local types = self.values.layer_types
  if not given(types) then return nil end
  if type(types) ~= "table" or #types == 0 then q.error("format", ("%s: key layer_types is %s, expected a list of strings"):format(self.path, described(types))) end
  if layers and #types ~= layers then
    q.error("format", ("%s: layer_types has %d entries, expected one for each of %d layers"):format(self.path, #types, layers))
  end
  for i, kind in ipairs(types) do
    if type(kind) ~= "string" then q.error("format", ("%s: layer_types[%d] is %s, expected a string"):format(self.path, i - 1, described(kind))) end
  end
  return types
end

-- The sliding window in tokens, 0 for none; `always`: the window counts unless null (Mistral).
function Config:window(always)
  if not given(self.values.sliding_window) then return 0 end
  if not always and not self:get("use_sliding_window", false) then return 0 end
  if self.values.sliding_window == 0 then return 0 end
  local window = self:size "sliding_window"
  local types = self:layer_types()
  if types then
    for _, kind in ipairs(types) do
      if kind ~= types[1] then
        q.error("unsupported", self.path .. ": layer_types mixes " .. kind .. " and " .. types[1] .. " layers; one kind only is supported")
      end
    end
    if types[1] == "full_attention" then return 0 end
  elseif not always and self:get("max_window_layers", 0) > 0 then
    q.error("unsupported", self.path .. ": max_window_layers with use_sliding_window mixes kinds of layers; one kind only is supported")
  end
  return window
end

-- Call last: refuses what is left.
function Config:finish()
  local unknown = {}
  for key in pairs(self.values) do
    if not self.used[key] and not harmless[key] then unknown[#unknown + 1] = key end
  end
  if #unknown > 0 then
    table.sort(unknown)
    q.error("unsupported", ("%s: unknown key%s %s: it may change the mathematics, so this model is refused")
      :format(self.path, #unknown > 1 and "s" or "", table.concat(unknown, ", ")))
  end
end

-- Which layers look at the window only: a list of booleans, from layer_types or from sliding_window_pattern, by which every
-- so many-th layer looks at all.
function Config:local_layers(layers, default_pattern)
  local pattern = self:size("sliding_window_pattern", self:size("_sliding_window_pattern", default_pattern))
  local types, list = self:layer_types(layers), {}
  for i = 1, layers do
    local kind = types and types[i] or i % pattern ~= 0 and "sliding_attention" or "full_attention"
    if kind ~= "sliding_attention" and kind ~= "full_attention" then
      q.error("unsupported", ("%s: layer_types has %s; full_attention and sliding_attention are supported"):format(self.path, tostring(kind)))
    end
    list[i] = kind == "sliding_attention"
  end
  return list
end

-- What the decoders of this house share. opt.gelu: their MLPs are gated by GELU's tanh form; opt.tied: they are where the
-- file does not say.
function Config:decoder(theta, opt)
  opt = opt or {}
  local c = {
    hidden = self:size("hidden_size"), layers = self:size "num_hidden_layers", heads = self:size("num_attention_heads"),
    ffn = self:size("intermediate_size"), vocab = self:size("vocab_size"), eps = self:positive("rms_norm_eps", 1e-6),
    max_position = self:size("max_position_embeddings", 2048),
    tied = self:get("tie_word_embeddings", opt.tied or false),
  }
  c.kv_heads = self:size("num_key_value_heads", c.heads)
  c.head_dim = self:size("head_dim", math.floor(c.hidden / c.heads))
  if c.heads % c.kv_heads ~= 0 then
    q.error("format", ("%s: %d heads cannot share %d key/value heads"):format(self.path, c.heads, c.kv_heads))
  end
  c.gelu = opt.gelu or false
  c.rope = self:rope(theta, c.gelu and "full_attention" or nil)  -- a Gemma may say it by kinds of layers
  if c.gelu then
    self:must("hidden_activation", "gelu_pytorch_tanh")
    -- "gelu" is what early files of the first Gemma say; transformers reads it as the tanh form, which it is trained with.
    if self.values.hidden_act == "gelu" then self.used.hidden_act = true else self:must("hidden_act", "gelu_pytorch_tanh") end
  else
    self:must("hidden_act", "silu")
  end
  return c
end

return config
