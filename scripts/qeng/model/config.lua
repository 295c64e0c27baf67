-- Reads a Hugging Face config.json strictly. A key that a model file neither uses nor knows to be harmless may change
-- the mathematics, so it is refused by name. For an absent key transformers' default is taken.

local q = require "qeng.core"
local wrapper = require "qeng.model.wrapper"

local config = {}

-- Keys that say nothing about what the network computes. quantization_config says how weights are stored, which their
-- reader checks (engine/formats/packed_layers.h).
local harmless = {}
for key in ([[
  _name_or_path architectures model_type torch_dtype dtype transformers_version use_cache bos_token_id eos_token_id
  pad_token_id initializer_range attention_dropout hidden_dropout max_position_embeddings tie_word_embeddings
  sep_token_id decoder_start_token_id return_dict output_attentions output_hidden_states unsloth_version unsloth_fixed
  chunk_size_feed_forward id2label label2id problem_type finetuning_task task_specific_params auto_map
  quantization_config_removed use_sliding_window sliding_window max_window_layers layer_types is_encoder_decoder
  _attn_implementation_autoset name_or_path rope_theta rope_scaling rope_parameters rope_interleaved is_decoder
  add_cross_attention cross_attention_hidden_size quantization_config
  tie_encoder_decoder cache_implementation is_llama_config transformers.js_config
  mtp_num_hidden_layers
]]):gmatch("%S+") do harmless[key] = true end

-- Limits of eight times the largest published model's, or more. A damaged number must not be counted up to, and no
-- memory must be asked for it.
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
  if type(value) == "table" and type(value.__float__) == "string" then return value.__float__ end
  if type(value) == "string" then return ('a string ("%s")'):format(value) end
  return type(value) == "table" and (is_object(value) and "an object" or "a list") or "a " .. type(value)
end

local function shown(value) return type(value) == "table" and described(value) or tostring(value) end

local read_from = setmetatable({}, { __mode = "k" })  -- the files of values, for errors

-- NaN and Infinity, which Python writes though JSON has neither. They become the objects that transformers writes for
-- them, so that whatever reads a number refuses them by their key.
local function tagged(text)
  if not text:find "NaN" and not text:find "Infinity" then return text end
  local names, parts, at = {}, {}, 1
  for _, name in ipairs { "NaN", "Infinity", "-Infinity" } do names[name] = ('{"__float__": "%s"}'):format(name) end
  while at <= #text do
    local quote = text:find('"', at, true) or #text + 1
    parts[#parts + 1] = text:sub(at, quote - 1):gsub("%-?%a+", names)
    local last = quote
    repeat
      last = text:find('["\\]', last + 1) or #text
      local escapes = text:sub(last, last) == "\\"
      if escapes then last = last + 1 end
    until not escapes
    parts[#parts + 1] = text:sub(quote, last)
    at = last + 1
  end
  return table.concat(parts)
end

-- The keys and values of the file, or of the text model that it wraps; and what wraps it (model/wrapper.lua).
function config.values(path)
  local values, why = q.try(q.json.decode, tagged(q.fs.read(path)))
  if not is_object(values) then
    q.error("format", ("%s: not a JSON object%s"):format(path, why and ": " .. why.message:gsub("^json: ", "") or ""))
  end
  local text, wrapped_by = wrapper.text_values(values, path)
  read_from[text] = path
  return text, wrapped_by
end

-- The config of folder `dir`, whose keys get() and must() consume, and its tensors. weights: the folder's safetensors.
-- file.left: names of those that are not the text model's. file.wrapped: of what wraps it, for saving.
function config.read(dir, weights)
  local path = dir .. "/config.json"
  local values, wrapped_by = config.values(path)
  local file = config.wrap(values)
  file.weights, file.left = wrapper.weights(weights, wrapped_by)
  local raw = wrapped_by and q.json.decode(tagged(q.fs.read(path)), { exact = true })
  file.wrapped = wrapped_by and wrapper.of(file.weights, wrapped_by, raw, values)
  return file, file.weights
end

-- path: where `values` come from, if config.values() did not read them.
function config.wrap(values, path)
  return setmetatable({ values = values, path = path or read_from[values] or "config", used = {} }, Config)
end

local function given(value) return value ~= nil and value ~= q.json.null end

-- A value of the type of `default`: number, boolean or string. If default is nil the key is required; pass kind, as
-- "number".
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

-- A whole number, at most what models have, or 2^31 if most_of has no smaller limit.
function Config:size(key, default)
  local value = self:get(key, default, "number")
  local most = most_of[key] or 2 ^ 31
  if not (value >= 1 and value <= most) or value ~= math.floor(value) then
    q.error("format", ("%s: key %s is %s, expected a positive integer, at most %d"):format(self.path, key,
      tostring(value), most))
  end
  return value
end

local function is_positive(value) return type(value) == "number" and value > 0 and value < math.huge end

function Config:positive(key, default)
  local value = self:get(key, default, "number")
  if not is_positive(value) then
    q.error("format", ("%s: key %s is %s, expected a positive number"):format(self.path, key, tostring(value)))
  end
  return value
end

-- Whether the embedding is the head too. If a folder holds another head, that one counts, as in transformers, and a
-- saved model says so.
function Config:tied(default)
  local tied = self:get("tie_word_embeddings", default)
  if tied and self.weights and self.weights:info "lm_head.weight" and self.weights:info "model.embed_tokens.weight"
    and not self.weights:same("lm_head.weight", "model.embed_tokens.weight") then
    local said = given(self.values.tie_word_embeddings) and "true" or "true by default"
    io.stderr:write(("%s: tie_word_embeddings is %s, but the weights hold an lm_head.weight that is not the embedding: "
      .. "it is used, as transformers does\n"):format(self.path, said))
    self.values.tie_word_embeddings, tied = false, false
  end
  return tied
end

-- A key that this model supports at one value only.
function Config:must(key, value)
  self.used[key] = true
  local actual = self.values[key]
  if given(actual) and actual ~= value then
    q.error("unsupported", ("%s: %s = %s changes the mathematics; this model supports %s only")
      :format(self.path, key, shown(actual), tostring(value)))
  end
end

-- Refuses a model that has `what`, if this key says that it does.
function Config:without(key, what)
  self.used[key] = true
  if given(self.values[key]) then
    q.error("unsupported", ("%s: %s = %s asks for %s, which is not supported"):format(self.path, key,
      shown(self.values[key]), what))
  end
end

-- What rope_scaling and rope_parameters may hold for every rotation. All other entries are numbers. mrope_*: how
-- positions of images are laid out; they say nothing of text.
local rope_types = {
  rope_type = "string", type = "string", mrope_section = "table", mrope_interleaved = "boolean", truncate = "boolean",
  finetuned = "boolean", short_factor = "table", long_factor = "table",
}
local of_all = {
  rope_type = true, type = true, rope_theta = true, partial_rotary_factor = true, finetuned = true,
  mrope_section = true, mrope_interleaved = true,
}

-- The further entries of each rotation. true: it may not be missing.
local of_rotation = {
  default = {}, linear = { factor = true }, dynamic = { factor = true },
  llama3 = { factor = true, low_freq_factor = true, high_freq_factor = true, original_max_position_embeddings = false },
  yarn = {
    factor = true, original_max_position_embeddings = false, attention_factor = false, beta_fast = false,
    beta_slow = false, mscale = false, mscale_all_dim = false, truncate = false,
  },
  longrope = {
    short_factor = true, long_factor = true, factor = false, attention_factor = false,
    original_max_position_embeddings = false,
  },
}
local most_rotations = { "default", "linear", "dynamic", "llama3", "yarn" }

-- The entries (numbers, strings and so on) of the object at `key`, or of `kind` in it, that are not null; and the name
-- of the object. nil if there are none.
function Config:rope_entries(key, kind)
  local object, name, entries = self.values[key], key, {}
  local function expect_object()
    if given(object) and not is_object(object) then
      q.error("format", ("%s: key %s is %s, expected an object"):format(self.path, name, described(object)))
    end
  end
  expect_object()
  if kind and given(object) and next(object) ~= nil then
    if object.full_attention == nil and object.sliding_attention == nil then
      q.error("format", ("%s: key %s has neither full_attention nor sliding_attention; expected an object for each "
        .. "kind of layer"):format(self.path, name))
    end
    object, name = object[kind], key .. "." .. kind
    expect_object()
  end
  for entry, value in pairs(given(object) and object or {}) do
    if given(value) then
      local expected = rope_types[entry] or "number"
      if type(value) ~= expected then
        q.error("format", ("%s: key %s.%s is %s, expected a %s"):format(self.path, name, entry, described(value),
          expected == "table" and "list" or expected))
      end
      if expected == "number" and not is_positive(value) then
        q.error("format", ("%s: key %s.%s is %s, expected a positive number"):format(self.path, name, entry,
          tostring(value)))
      end
      entries[entry] = value
    end
  end
  if next(entries) ~= nil then return entries, name end
end

-- One of the two objects in the form of Config:rope; nil if it says nothing. theta: used if the object has none.
function Config:rotation(key, kind, theta)
  local entries, name = self:rope_entries(key, kind)
  if not entries then return nil end
  local function refuse(code, text, ...) q.error(code, ("%s: " .. text):format(self.path, ...)) end
  local named = entries.rope_type or entries.type
  if not named and entries.factor and entries.factor ~= 1 then
    refuse("format", "the rotation has factor = %s, but no rope_type says what it is of", tostring(entries.factor))
  end
  if named == "su" then named = "longrope" end  -- its older name
  local supported, known = self.rotations or most_rotations, nil
  for _, each in ipairs(supported) do
    if each == (named or "default") then known = of_rotation[each] end
  end
  if not known then
    refuse("unsupported", "key %s.rope_type is %s; %s and %s are supported", name, named,
      table.concat(supported, ", ", 1, #supported - 1), supported[#supported])
  end
  if (entries.partial_rotary_factor or 1) ~= 1 and not self.partial_rotary then
    refuse("unsupported", "key %s.partial_rotary_factor is %s; only 1 is supported: transformers turns whole heads of "
      .. "this architecture whatever it says, other programs a part of each",
      name, tostring(entries.partial_rotary_factor))
  end
  local scaling = { rope_type = named }
  for entry, value in pairs(entries) do
    if known[entry] ~= nil then
      scaling[entry] = value
    elseif not of_all[entry] and not (entry == "factor" and value == 1) then
      refuse("unsupported", "key %s.%s is %s, which a rotation of type %s has not", name, entry, tostring(value),
        named or "default")
    end
  end
  for entry, needed in pairs(known) do
    if needed and not scaling[entry] then
      refuse("format", "key %s.%s is missing, which a rotation of type %s needs", name, entry, named)
    end
  end
  if known.original_max_position_embeddings ~= nil and self.original_length then
    scaling.original_max_position_embeddings = self.original_length
  end
  for _, each in ipairs { "short_factor", "long_factor" } do
    for i, factor in ipairs(scaling[each] or {}) do
      if not is_positive(factor) then
        refuse("format", "key %s.%s[%d] is %s, expected a positive number", name, each, i - 1, shown(factor))
      end
    end
  end
  return {
    theta = entries.rope_theta or theta, scaling = next(known) and scaling or nil, part = entries.partial_rotary_factor,
  }
end

local function same_rotation(a, b)
  local one, other = a.scaling or {}, b.scaling or {}
  local function text(value) return type(value) == "table" and table.concat(value, " ") or value end
  for entry, value in pairs(one) do
    if text(other[entry]) ~= text(value) then return false end
  end
  for entry in pairs(other) do
    if one[entry] == nil then return false end
  end
  return a.theta == b.theta and a.part == b.part
end

-- {theta, scaling} from rope_theta and rope_scaling, or from rope_parameters (newer files), whose theta counts before
-- rope_theta. scaling: rope_type and its entries of of_rotation; nil if nothing is scaled. kind: which entry of
-- rope_parameters, if they differ between layers. theta_key: the key of this kind's theta in older files.
function Config:rope(default_theta, kind, theta_key)
  local theta = self:positive(theta_key or "rope_theta", default_theta)
  local newer = self:rotation("rope_parameters", kind, theta)
  local older = kind ~= "sliding_attention" and self:rotation("rope_scaling", nil, theta) or nil
  if newer and older and not same_rotation(newer, older) then
    q.error("format", ("%s: rope_parameters and rope_scaling (with rope_theta) say different things; transformers "
      .. "takes the second, others the first: remove the wrong one"):format(self.path))
  end
  local rope = newer or older or { theta = theta }
  rope.factors = self.rope_factors
  return rope
end

-- layer_types as a list of strings; nil if there is none. layers: how many entries it has to have.
function Config:layer_types(layers)
  local types = self.values.layer_types
  if not given(types) then return nil end
  if type(types) ~= "table" or #types == 0 then
    q.error("format", ("%s: key layer_types is %s, expected a list of strings"):format(self.path, described(types)))
  end
  if layers and #types ~= layers then
    q.error("format", ("%s: layer_types has %d entries, expected one for each of %d layers"):format(self.path, #types,
      layers))
  end
  for i, kind in ipairs(types) do
    if type(kind) ~= "string" then
      q.error("format", ("%s: layer_types[%d] is %s, expected a string"):format(self.path, i - 1, described(kind)))
    end
  end
  return types
end

local function must_be_kind(self, kind)
  if kind ~= "sliding_attention" and kind ~= "full_attention" then
    q.error("unsupported", ("%s: layer_types has %s; full_attention and sliding_attention are supported"):format(
      self.path, tostring(kind)))
  end
end

-- The sliding window of all `layers` in tokens, 0 for none. always: every layer has it, whatever layer_types says
-- (Mistral). Otherwise use_sliding_window decides, for the layers that layer_types names, or from max_window_layers on
-- (Qwen).
function Config:window(layers, always)
  local used = always or self:get("use_sliding_window", false)
  local window = self.values.sliding_window
  if not used or window == q.json.null or window == 0 then
    window = 0
  else
    window = self:size("sliding_window", 4096)
  end
  local types = self:layer_types(layers)
  for _, kind in ipairs(types or {}) do
    must_be_kind(self, kind)
    if kind ~= types[1] then
      q.error("unsupported", ("%s: layer_types mixes %s and %s layers; one kind only is supported"):format(self.path,
        kind, types[1]))
    end
  end
  if types and (types[1] == "sliding_attention") ~= (window > 0) and (always or window == 0) then
    local contradiction = "use_sliding_window and sliding_window give them no window"
    if window > 0 then
      contradiction = "this architecture has a sliding_window in all of them"
    elseif always then
      contradiction = "sliding_window is null"
    end
    q.error("format", ("%s: layer_types has %s layers, but %s"):format(self.path, types[1], contradiction))
  end
  if window == 0 or types and types[1] == "full_attention" then return 0 end
  local first = not types and not always and self:get("max_window_layers", 28) or 0
  if first >= layers then return 0 end
  if first > 0 then
    q.error("unsupported", ("%s: max_window_layers = %s with use_sliding_window mixes kinds of layers; one kind only "
      .. "is supported"):format(self.path, tostring(first)))
  end
  return window
end

-- The name under which the checkpoint has a parameter. self.optional: a prefix that some checkpoints leave out.
function Config:stored(name)
  local short = self.optional and name:sub(1, #self.optional) == self.optional and name:sub(#self.optional + 1)
  return short and not self.weights:info(name) and self.weights:info(short) and short or name
end

-- Whether a tensor that no part of the model asks for computes nothing: a tied head, a table that older files keep, or
-- a bias of zeros, which GPTQ gives to layers that have none. self.spare: patterns of further ones.
function Config:is_spare(name, tied)
  if name == "lm_head.weight" then return tied end
  if name:find("rotary_emb.inv_freq", 1, true) then return true end
  for _, pattern in ipairs(self.spare or {}) do
    if name:find(pattern) then return true end
  end
  if not name:find "%.bias$" or not self.weights:info(name).readable then return false end
  local bias = self.weights:tensor(name)
  for _, value in ipairs(bias:reshape({ bias:elements() }):table()) do
    if value ~= 0 then return false end
  end
  return true
end

-- Refuses what is left. To be called last.
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

-- Which layers look at the window only: a list of booleans. It comes from layer_types, or from sliding_window_pattern:
-- every so many-th layer looks at all tokens.
function Config:local_layers(layers, default_pattern)
  local pattern = self:size("sliding_window_pattern", self:size("_sliding_window_pattern", default_pattern))
  local types, list = self:layer_types(layers), {}
  for i = 1, layers do
    local kind = types and types[i] or i % pattern ~= 0 and "sliding_attention" or "full_attention"
    must_be_kind(self, kind)
    list[i] = kind == "sliding_attention"
  end
  return list
end

-- The settings that most decoders share. opt:
--   gelu               MLPs are gated by GELU's tanh form
--   kinds              layers rotate by their kind
--   kv_heads, head_dim, max_position, tied   transformers' defaults for the architecture, if they are not as many as
--                      heads, hidden / heads, 2048 and false
--   ffn                the width of MLPs, of an architecture that need not say it
--   eps                transformers' default for rms_norm_eps, if it is not 1e-6
--   partial_rotary     c.rotary elements of each head are turned, as partial_rotary_factor says; a number: the default
--   rotations          the rope_types that transformers has for the architecture, if not all but longrope
--   original_length    the length before longrope, if the file says it outside the rope settings
function Config:decoder(theta, opt)
  opt = opt or {}
  local c = {
    hidden = self:size("hidden_size"), layers = self:size "num_hidden_layers", heads = self:size("num_attention_heads"),
    ffn = self:size("intermediate_size", opt.ffn), vocab = self:size("vocab_size"),
    eps = self:positive("rms_norm_eps", opt.eps or 1e-6),
    max_position = self:size("max_position_embeddings", opt.max_position or 2048),
    tied = self:tied(opt.tied or false),
  }
  local absent = self.values.num_key_value_heads == nil
  c.kv_heads = self:size("num_key_value_heads", absent and opt.kv_heads or c.heads)
  absent = self.values.head_dim == nil
  local default = absent and opt.head_dim or nil
  if not opt.head_dim then default = math.floor(c.hidden / c.heads) end
  c.head_dim = self:size("head_dim", default)
  if c.heads % c.kv_heads ~= 0 then
    q.error("format", ("%s: %d heads cannot share %d key/value heads"):format(self.path, c.heads, c.kv_heads))
  end
  c.gelu = opt.gelu or false
  self.partial_rotary, self.rotations, self.original_length = opt.partial_rotary, opt.rotations, opt.original_length
  c.rope = self:rope(theta, opt.kinds and "full_attention" or nil)
  if opt.partial_rotary then
    local part = c.rope.part or self:positive("partial_rotary_factor", tonumber(opt.partial_rotary) or 1)
    self.used.partial_rotary_factor = true
    c.rotary = math.floor(c.head_dim * part)
    if c.rotary < 2 or c.rotary > c.head_dim or c.rotary % 2 ~= 0 then
      q.error("format", ("%s: partial_rotary_factor turns %s of a head's %d elements, expected an even number of them")
        :format(self.path, tostring(c.rotary), c.head_dim))
    end
  else
    self:must("partial_rotary_factor", 1)
  end
  self:must("use_mrope", false)  -- positions of images
  if c.gelu then
    self:must("hidden_activation", "gelu_pytorch_tanh")
    -- Early files of the first Gemma say "gelu". transformers reads it as the tanh form, with which Gemma was trained.
    if self.values.hidden_act == "gelu" then
      self.used.hidden_act = true
    else
      self:must("hidden_act", "gelu_pytorch_tanh")
    end
  else
    self:must("hidden_act", "silu")
  end
  return c
end

-- Keys that transformers takes floats for: it refuses 50 where 50.0 stood.
local floats = ([[
  attn_logit_softcapping final_logit_softcapping swiglu_limit swiglu_alpha router_aux_loss_coef router_jitter_noise
  initializer_range rms_norm_eps layer_norm_epsilon time_step_min time_step_max time_step_floor
]]):gmatch "%S+"
local is_float = {}
for key in floats do is_float[key] = true end

-- The text of a config.json of these values.
function config.text(values)
  local text = q.json.encode(values, { pretty = true }) .. "\n"
  return (text:gsub('("([%w_]+)": *%-?%d+)(,?\n)', function(entry, key, rest)
    return is_float[key] and entry .. ".0" .. rest or nil
  end))
end

return config
