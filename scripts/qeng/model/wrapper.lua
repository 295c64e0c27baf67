-- Models of text and images. config.json has the text model's settings in text_config, or among the others (older
-- Qwen-VL), and its tensors have a prefix. The text model alone is run. What belongs to images is kept as it is
-- (model/kept.lua), and a line says so.

local architectures = require "qeng.model.architectures"
local q = require "qeng.core"

local wrapper = {}

-- Architectures whose text part is a text model of its own, also without an image; and the prefixes of its tensors.
local plain, nested = { "language_model.", "model.language_model." }, { "model.text_model." }
local known = {
  Gemma3ForConditionalGeneration = plain, LlavaForConditionalGeneration = plain,
  LlavaNextForConditionalGeneration = plain, LlavaOnevisionForConditionalGeneration = plain,
  VipLlavaForConditionalGeneration = plain, Mistral3ForConditionalGeneration = plain,
  InternVLForConditionalGeneration = plain, Qwen2VLForConditionalGeneration = plain,
  Qwen2_5_VLForConditionalGeneration = plain, Qwen3VLForConditionalGeneration = plain,
  Qwen3_5ForConditionalGeneration = plain, Qwen3_5MoeForConditionalGeneration = plain,
  Idefics3ForConditionalGeneration = nested, SmolVLMForConditionalGeneration = nested,
}

-- The model file for a text_config of this model_type, and transformers' defaults for keys that it leaves out.
local function text_of(kind)
  for _, arch in ipairs(architectures.known) do
    if arch.texts and arch.texts[kind] then return arch, arch.texts[kind] end
  end
end
local sizes = {
  "vocab_size", "hidden_size", "intermediate_size", "num_hidden_layers", "num_attention_heads", "num_key_value_heads",
}
local flat = { qwen2_vl = "qwen2_vl_text", qwen2_5_vl = "qwen2_5_vl_text" }

local of_images = {}
for key in ([[
  vision_config vision_start_token_id vision_end_token_id vision_token_id image_token_id video_token_id text_config
]]):gmatch "%S+" do of_images[key] = true end

local function given(value) return value ~= nil and value ~= q.json.null end

-- Images have three rows of positions. In text they are one, and the rotation is the ordinary one.
local function plain_rope(values)
  for _, key in ipairs { "rope_scaling", "rope_parameters" } do
    local rope = values[key]
    if type(rope) == "table" and (rope.type == "mrope" or rope.rope_type == "mrope") then
      local copy = {}
      for name, value in pairs(rope) do copy[name] = value end
      copy.type, copy.rope_type = nil, "default"
      values[key] = copy
    end
  end
end

-- The text model's settings as a config.json of its own, and the wrapper's architecture; or `values` as they are. path:
-- for errors.
function wrapper.text_values(values, path)
  local architecture = type(values.architectures) == "table" and values.architectures[1] or nil
  if not known[architecture] then return values end
  local inner = values.text_config
  if inner ~= nil and (type(inner) ~= "table" or #inner > 0) then
    q.error("format", path .. ": key text_config is no object")
  end
  local kind = type(inner) == "table" and inner.model_type or flat[values.model_type]
  local arch, text = text_of(kind)
  if not arch then
    q.error("unsupported", ("%s: the text part of %s is of model_type %s, which is not known"):format(path,
      architecture, tostring(kind)))
  end
  local result = {}
  for key, value in pairs(inner or values) do
    if inner or not of_images[key] then result[key] = value end
  end
  if given(values.tie_word_embeddings) then result.tie_word_embeddings = values.tie_word_embeddings end
  for _, key in ipairs { "quantization_config", "eos_token_id", "bos_token_id", "torch_dtype", "dtype" } do
    if not given(result[key]) then result[key] = values[key] end
  end
  for i, key in ipairs(sizes) do
    if not given(result[key]) then result[key] = text[i] end
  end
  if not given(result.rms_norm_eps) then result.rms_norm_eps = text.eps end
  if not given(result.rope_theta) and not given(result.rope_parameters) then result.rope_theta = text.theta end
  plain_rope(result)
  result.architectures, result.model_type = q.json.array { arch.hf }, arch.model_type
  return result, architecture
end

local View = {}
View.__index = View

function View:info(name) return self.file:info(self.stored[name] or name) end
function View:tensor(name, opt) return self.file:tensor(self.stored[name] or name, opt) end
function View:same(a, b) return self.file:same(self.stored[a] or a, self.stored[b] or b) end
function View:load(opt) return self.file:load(opt) end
function View:names() return self.list end
function View:remarks() return self.file:remarks() end

-- A folder's tensors under the names of the text model, and the names of the others. architecture: as text_values gives
-- it; nil: the folder's own.
function wrapper.weights(file, architecture)
  if not architecture then return file, {} end
  local view, left = setmetatable({ file = file, stored = {}, list = {} }, View), {}
  for _, name in ipairs(file:names()) do
    local text
    for _, part in ipairs { "model%.layers%.", "model%.embed_tokens%.", "model%.norm%.", "lm_head%." } do
      if name:find("^" .. part) then text = name end
    end
    for _, prefix in ipairs(known[architecture]) do
      if name:sub(1, #prefix) == prefix then
        text = name:sub(#prefix + 1)
        if not text:find "^model%." and not text:find "^lm_head%." then text = "model." .. text end
      end
    end
    if text then
      view.stored[text], view.list[#view.list + 1] = name, text
    else
      left[#left + 1] = name
    end
  end
  return view, left
end

-- ---------------------------------------------------------------- saving

-- What saving needs of a wrapper: {architecture =, name(name), raw =, before =}. name(name): what the folder calls a
-- tensor of the text model. raw: its config.json. before: the text model's settings as they were read.
function wrapper.of(view, architecture, raw, values)
  local first, before = view.stored["model.embed_tokens.weight"] or "model.embed_tokens.weight", {}
  local prefix = first:gsub("embed_tokens%.weight$", "")
  local head = view.stored["lm_head.weight"] or (prefix:match "^(language_model%.)model%.$" or "") .. "lm_head.weight"
  for key, value in pairs(values) do before[key] = value end
  local function name(text) return text == "lm_head.weight" and head or (text:gsub("^model%.", prefix)) end
  return { architecture = architecture, name = name, raw = raw, before = before }
end

-- The config.json of the wrapper, with what the text model's settings have become.
function wrapper.saved(wrapped, values)
  local raw, inner = {}, {}
  for key, value in pairs(wrapped.raw) do raw[key] = value end
  if type(raw.text_config) == "table" then
    for key, value in pairs(raw.text_config) do inner[key] = value end
    raw.text_config = inner
  else
    inner = raw
  end
  local function take(key)
    if values[key] == wrapped.before[key] then return end
    inner[key] = values[key]
    if raw[key] ~= nil then raw[key] = values[key] end
  end
  for key in pairs(wrapped.before) do take(key) end
  if wrapped.before.mtp_num_hidden_layers == nil then take "mtp_num_hidden_layers" end
  for _, settings in ipairs { raw, inner } do
    for _, key in ipairs { "torch_dtype", "dtype" } do
      if settings[key] ~= nil then settings[key] = values.torch_dtype end
    end
    settings.quantization_config = nil
  end
  return raw
end

return wrapper
