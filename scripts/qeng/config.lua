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

config.most_layers = 65536  -- hundreds of times what models have: a damaged number must not be counted up to

local Config = {}
Config.__index = Config

-- The config of folder `dir`, its keys consumed by get() and must().
function config.read(dir)
  local path = dir .. "/config.json"
  local values = q.json.decode(q.fs.read(path))
  if type(values) ~= "table" then q.error("format", path .. ": not a JSON object") end
  return config.wrap(values, path)
end

function config.wrap(values, path)
  return setmetatable({ values = values, path = path or "config", used = {} }, Config)
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
    q.error("format", ("%s: key %s is a %s, expected a %s"):format(self.path, key, type(value), kind))
  end
  return value
end

-- most: 2^31 where there is no smaller limit.
function Config:size(key, default, most)
  local value = self:get(key, default, "number")
  most = most or 2 ^ 31
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

-- {theta, scaling}: from rope_theta and rope_scaling, or from rope_parameters (newer files). kind: which of rope_parameters'
-- where these differ between layers; theta_key: what the older files call its theta.
function Config:rope(default_theta, kind, theta_key)
  local scaling = self.values.rope_parameters
  if given(scaling) and kind and (scaling.full_attention or scaling.sliding_attention) then scaling = scaling[kind] end
  if not given(scaling) and kind ~= "sliding_attention" then scaling = self.values.rope_scaling end
  if not given(scaling) then scaling = {} end
  local theta = scaling.rope_theta or self.values[theta_key or "rope_theta"]
  if not given(theta) then theta = default_theta end
  for name, value in pairs { theta = theta, factor = given(scaling.factor) and scaling.factor or nil } do
    if not is_positive(value) then q.error("format", ("%s: the rotation's %s is %s, expected a positive number"):format(self.path, name, tostring(value))) end
  end
  local rope = { theta = theta, partial = scaling.partial_rotary_factor or 1, factors = self.rope_factors }
  local kind = scaling.rope_type or scaling.type or "default"
  if kind ~= "default" then rope.scaling = scaling end
  return rope
end

-- The sliding window in tokens, 0 for none; `always`: the window counts unless null (Mistral).
function Config:window(always)
  local window = self.values.sliding_window
  if not given(window) then return 0 end
  if not always and self.values.use_sliding_window ~= true then return 0 end
  local types = self.values.layer_types
  if given(types) then
    for _, kind in ipairs(types) do
      if kind ~= types[1] then
        q.error("unsupported", self.path .. ": layer_types mixes " .. kind .. " and " .. types[1] .. " layers; one kind only is supported")
      end
    end
    if types[1] == "full_attention" then return 0 end
  elseif not always and (self.values.max_window_layers or 0) > 0 then
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
  local types, list = self.values.layer_types, {}
  if given(types) and #types ~= layers then
    q.error("format", ("%s: layer_types has %d entries, expected one for each of %d layers"):format(self.path, #types, layers))
  end
  for i = 1, layers do
    local kind = given(types) and types[i] or i % pattern ~= 0 and "sliding_attention" or "full_attention"
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
    hidden = self:size("hidden_size"), layers = self:size("num_hidden_layers", nil, config.most_layers), heads = self:size("num_attention_heads"),
    ffn = self:size("intermediate_size"), vocab = self:size("vocab_size"), eps = self:positive("rms_norm_eps", 1e-6),
    max_position = self:size("max_position_embeddings", 2048),
    tied = self:get("tie_word_embeddings", opt.tied or false),
  }
  c.kv_heads = self:size("num_key_value_heads", c.heads)
  c.head_dim = self:size("head_dim", math.floor(c.hidden / c.heads))
  if c.heads % c.kv_heads ~= 0 then
    q.error("format", ("%s: %d heads cannot share %d key/value heads"):format(self.path, c.heads, c.kv_heads))
  end
  c.rope = self:rope(theta)
  c.gelu = opt.gelu or false
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
