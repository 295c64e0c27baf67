-- Models as GGUF files. A source is what is written: {metadata = {{key, type, value}...}, tensors = {{name =, shape =, read =,
-- heads =, signs =}...}, shape = for gguf_types}; read() gives the tensor, heads says that its rows have to move to llama's order.
-- signs: "one_bit" or "ternary" where the tensor is that, and read() also gives the f32 scale of each row.

local architectures = require "qeng.architectures"
local config = require "qeng.config"
local gguf_config = require "qeng.gguf_config"
local hub = require "qeng.hub"
local names = require "qeng.gguf_names"
local q = require "qeng.core"
local types = require "qeng.gguf_types"

local export = {}

-- ---------------------------------------------------------------- metadata

local function add_rope(add, a, c)
  local scaling = c.rope.scaling
  add(a .. ".rope.freq_base", "f32", c.rope.theta)
  if c.rope.partial ~= 1 then q.error("unsupported", "gguf: a rotation of part of each head has no words in this architecture") end
  if not scaling then return end
  local kind = scaling.rope_type or scaling.type
  if kind == "llama3" then return end  -- tensor rope_freqs.weight says it
  if kind ~= "linear" and kind ~= "yarn" then q.error("unsupported", ("gguf: rope scaling %s has no words in the format"):format(kind)) end
  add(a .. ".rope.scaling.type", "string", kind)
  add(a .. ".rope.scaling.factor", "f32", scaling.factor)
  if kind == "yarn" then
    add(a .. ".rope.scaling.original_context_length", "u32", scaling.original_max_position_embeddings or c.max_position)
    if (scaling.beta_fast or 32) ~= 32 or (scaling.beta_slow or 1) ~= 1 or scaling.truncate == false or scaling.mscale then
      q.error("unsupported", "gguf: YaRN with beta_fast, beta_slow, truncate or mscale of its own is not written")
    end
    if scaling.attention_factor then
      add(a .. ".rope.scaling.attn_factor", "f32", scaling.attention_factor / (0.1 * math.log(scaling.factor) + 1))
    end
  end
end

local function add_tokenizer(add, tokenizer, vocab)
  local space = "tokenizer.ggml."
  if not tokenizer then return add(space .. "model", "string", "none") end
  local lists, info = tokenizer:vocabulary(), tokenizer:info()
  local missing = lists.model == "llama" and "<unused%d>" or "[PAD%d]"
  if #lists.tokens > vocab then
    q.error("value", ("gguf: the tokenizer has %d tokens, the model %d embeddings"):format(#lists.tokens, vocab))
  end
  for id = #lists.tokens, vocab - 1 do
    lists.tokens[id + 1], lists.types[id + 1] = missing:format(id), 5
    if lists.scores then lists.scores[id + 1] = -1e4 end
  end
  add(space .. "model", "string", lists.model)
  add(space .. "pre", "string", lists.pre)
  add(space .. "tokens", "[string]", lists.tokens)
  if lists.scores then add(space .. "scores", "[f32]", lists.scores) end
  add(space .. "token_type", "[i32]", lists.types)
  if lists.merges then add(space .. "merges", "[string]", lists.merges) end
  if info.bos then add(space .. "bos_token_id", "u32", info.bos) end
  if info.eos then add(space .. "eos_token_id", "u32", info.eos) end
  for _, name in ipairs { "<|im_end|>", "<|eot_id|>", "<end_of_turn>" } do
    local id = tokenizer:id(name)
    if id then
      add(space .. "eot_token_id", "u32", id)
      break
    end
  end
  if info.pad then add(space .. "padding_token_id", "u32", info.pad) end
  add(space .. "add_bos_token", "bool", info.add_bos)
  if lists.model == "llama" then add(space .. "add_space_prefix", "bool", lists.add_space_prefix) end
  if info.chat_template then add("tokenizer.chat_template", "string", info.chat_template) end
end

-- llama.cpp knows these of Gemma 3 by its architecture: a model that has others would be read as another one.
local function check_gemma3(c)
  local known = gguf_config.query_scalar { num_hidden_layers = c.layers, hidden_size = c.hidden, num_attention_heads = c.heads, head_dim = c.head_dim }
  local function must(what, ok) if not ok then q.error("unsupported", "gguf: gemma3 has no words for " .. what) end end
  must("query_pre_attn_scalar = " .. c.query_pre_attn_scalar, c.query_pre_attn_scalar == known)
  must("rope frequencies of the local layers other than those of theta 10000", c.rope_local.theta == 10000 and not c.rope_local.scaling)
  for i, near in ipairs(c.local_layers) do
    must("other layers with a window than five in six", near == (i % 6 ~= 0) and c.window > 0)
  end
end

-- Of a model of Hugging Face's architecture hf with settings c.
local function metadata(hf, c, name, tokenizer)
  local a = names.architecture(hf)
  local list = {}
  local function add(key, type, value) list[#list + 1] = { key, type, value } end
  add("general.architecture", "string", a)
  add("general.type", "string", "model")
  add("general.name", "string", name)
  add(a .. ".block_count", "u32", c.layers)
  add(a .. ".context_length", "u32", c.max_position)
  add(a .. ".embedding_length", "u32", c.hidden)
  add(a .. ".feed_forward_length", "u32", c.ffn)
  add(a .. ".attention.head_count", "u32", c.heads)
  add(a .. ".attention.head_count_kv", "u32", c.kv_heads)
  add(a .. ".attention.key_length", "u32", c.head_dim)
  add(a .. ".attention.value_length", "u32", c.head_dim)
  add(a .. ".attention.layer_norm_rms_epsilon", "f32", c.eps)
  add(a .. ".rope.dimension_count", "u32", c.head_dim)
  add(a .. ".vocab_size", "u32", c.vocab)
  if a == "gemma3" then check_gemma3(c) end
  if (c.window or 0) > 0 then add(a .. ".attention.sliding_window", "u32", c.window) end
  add_rope(add, a, c)
  add_tokenizer(add, tokenizer, c.vocab)
  return list, a
end

-- The factors of tensor rope_freqs.weight, where c asks for it: a Lua array, or nil.
local function rope_factors(c)
  if c.rope.factors then return c.rope.factors end
  local scaling = c.rope.scaling
  if not scaling or (scaling.rope_type or scaling.type) ~= "llama3" then return nil end
  local plain = q.rope_table { dim = c.head_dim, theta = c.rope.theta }.inv_freq:table()
  local scaled = q.rope_table {
    dim = c.head_dim, theta = c.rope.theta, type = "llama3", factor = scaling.factor, low_freq_factor = scaling.low_freq_factor,
    high_freq_factor = scaling.high_freq_factor, original_max_position_embeddings = scaling.original_max_position_embeddings,
  }.inv_freq:table()
  for i, each in ipairs(scaled) do plain[i] = plain[i] / each end
  return plain
end

-- ---------------------------------------------------------------- sources

local function source_of(hf, c, name, tokenizer, parameters)
  local list, a = metadata(hf, c, name, tokenizer)
  local source = { metadata = list, architecture = a, tensors = {}, shape = { layers = c.layers, groups = c.heads / c.kv_heads, tied = c.tied } }
  local factors = rope_factors(c)
  if factors then
    source.tensors[1] = { name = "rope_freqs.weight", shape = { #factors }, read = function() return q.tensor(factors, "f32") end }
  end
  for _, parameter in ipairs(parameters) do
    local stored, read = names.to_gguf(parameter.name, a), parameter.read
    if not stored then q.error("unsupported", ("gguf: tensor %s has no name in the format"):format(parameter.name)) end
    if names.plus_one(a, parameter.name) then
      read = function() return parameter.read():to "f32" + q.zeros(parameter.shape, "f32"):fill(1) end
    end
    table.insert(source.tensors, {
      name = stored, shape = parameter.shape, read = read, heads = names.heads(a, parameter.name, c), signs = parameter.signs,
    })
  end
  return source
end

-- The name of a file or folder.
local function basename(path)
  path = path:gsub("/+$", ""):gsub("%.gguf$", "")
  return path:match "([^/]+)$" or path
end

-- A loaded model as it is: merge adapters first.
function export.of_model(model)
  if model.adapter then q.error("value", "save_gguf: merge the adapter first (model:merge()), or save it apart (save_adapter_gguf)") end
  if model.rotations then q.error("unsupported", "save_gguf: this model's weights are stored rotated; quantize.lua copies such a file") end
  local parameters = {}
  for i, parameter in ipairs(model.parameters) do
    local scale = parameter.row_scale
    parameters[i] = {
      name = parameter.name, shape = parameter.tensor:shape(), signs = scale and parameter.tensor:dtype(),
      read = function() return parameter.tensor, scale end,
    }
  end
  local name = model.dir or model.gguf and model.gguf.path
  return source_of(model.arch.hf, model.config, name and basename(name) or "model", model.tokenizer, parameters)
end

-- A Hugging Face folder, tensor by tensor as it is stored.
function export.of_folder(dir)
  local arch, c = architectures.of(config.read(dir))
  local weights, parameters = q.safetensors.open(dir), {}
  for _, name in ipairs(weights:names()) do
    local info, scale = weights:info(name), name .. "_scale"
    local signs = (info.dtype == "one_bit" or info.dtype == "ternary") and info.dtype or nil
    local of_rows = name:match "^(.*%.weight)_scale$"  -- read with the weight that it belongs to
    if not name:find("rotary_emb.inv_freq", 1, true) and not (c.tied and name == "lm_head.weight") and not (of_rows and weights:info(of_rows)) then
      if signs and not weights:info(scale) then q.error("format", ("%s: tensor %s is missing"):format(dir, scale)) end
      parameters[#parameters + 1] = {
        name = name, shape = info.shape, signs = signs,
        read = function() return weights:tensor(name), signs and weights:tensor(scale) end,
      }
    end
  end
  local ok, tokenizer = pcall(q.tokenizer, dir)
  if not ok and tokenizer.code ~= "io" then error(tokenizer, 0) end  -- a folder without a tokenizer gives a file without one
  return source_of(arch.hf, c, basename(dir), ok and tokenizer or nil, parameters)
end

local dropped = { ["general.file_type"] = true, ["general.quantization_version"] = true, ["general.alignment"] = true }

-- A GGUF file: its own entries and tensors, whatever the architecture.
function export.of_gguf(path)
  local file = q.gguf.open(path)
  local a = file:get "general.architecture"
  if type(a) ~= "string" or file:get "general.type" == "adapter" then q.error("value", path .. ": is not a model") end
  local source = { metadata = {}, architecture = a, tensors = {} }
  for _, key in ipairs(file:keys()) do
    if not dropped[key] and key:sub(1, 6) ~= "split." and key:sub(1, 9) ~= "quantize." then
      local value, kind = file:get(key)
      table.insert(source.metadata, { key, kind, value })
    end
  end
  for _, name in ipairs(file:names()) do
    table.insert(source.tensors, { name = name, shape = file:info(name).shape, read = function() return file:tensor(name) end })
  end
  local function first(value) return type(value) == "table" and value[1] or value end
  local heads = first(file:get(a .. ".attention.head_count")) or 1
  source.shape = {
    layers = file:get(a .. ".block_count") or 1, tied = not file:info "output.weight",
    groups = heads / (first(file:get(a .. ".attention.head_count_kv")) or heads),
  }
  return source
end

-- A folder, a GGUF file or a name on the hub.
function export.open(path)
  path = hub.resolve_model(path)
  return q.fs.kind(path) == "file" and export.of_gguf(path) or export.of_folder(path)
end

-- ---------------------------------------------------------------- writing

local function to_type(tensor, type, importance, scale)
  local dense = type == "f32" or type == "f16" or type == "bf16"
  if scale then
    local exact = tensor:dtype() == "one_bit" and "q1_0" or "tq2_0"
    if dense or type == exact then return q.join_row_scale(tensor, scale, type) end
    tensor = q.join_row_scale(tensor, scale, "f32")
  end
  if tensor:dtype() == type then return tensor end
  if dense then return tensor:to(type) end
  local kind = tensor:dtype()
  if kind ~= "f32" and kind ~= "f16" and kind ~= "bf16" then tensor = tensor:to "f32" end
  return q.quantize(tensor, type, { importance = importance })
end

-- Writes `source` to path by a plan of gguf_types. opt: importance (name -> tensor), progress(done, bytes, name), measure.
-- Returns {by_type = {{type, tensors, elements, bytes, rmse}...}, bytes =, elements =, notes = {...}}; rmse relative to the weights' rms.
function export.write(path, source, plan, opt)
  opt = opt or {}
  local list, specs, notes, by_type, order = {}, {}, {}, {}, {}
  for i, entry in ipairs(source.metadata) do list[i] = entry end
  if plan.file_type then list[#list + 1] = { "general.file_type", "u32", plan.file_type } end
  list[#list + 1] = { "general.quantization_version", "u32", 2 }
  for i, tensor in ipairs(source.tensors) do
    local type, note = plan:type_of(tensor.name, tensor.shape, tensor.signs)
    if note then
      if not notes[note] then notes[note], notes[#notes + 1] = 0, note end
      notes[note] = notes[note] + 1
    end
    specs[i] = { name = tensor.name, dtype = type, shape = tensor.shape }
  end
  plan:check()
  local writer = q.gguf.writer(path, specs, list)
  local total = { elements = 0, bytes = 0 }
  for i, tensor in ipairs(source.tensors) do
    q.no_grad(q.scope, function()
      local type = specs[i].dtype
      local original, scale = tensor.read()
      local result = to_type(original, type, opt.importance and opt.importance[tensor.name], scale)
      local sums = by_type[type]
      if not sums then
        sums = { type = type, tensors = 0, elements = 0, bytes = 0, error = 0, total = 0 }
        by_type[type], order[#order + 1] = sums, sums
      end
      if opt.measure and result ~= original then
        if scale then original = q.join_row_scale(original, scale, "f32") end
        local off, all = q.squared_error(original, result)
        sums.error, sums.total = sums.error + off, sums.total + all
      end
      local bytes, elements = writer:write(tensor.name, result, { heads = tensor.heads }), result:elements()
      sums.tensors, sums.elements, sums.bytes = sums.tensors + 1, sums.elements + elements, sums.bytes + bytes
      total.elements, total.bytes = total.elements + elements, total.bytes + bytes
    end)
    if opt.progress then opt.progress(i, #source.tensors, total.bytes, tensor.name) end
  end
  writer:commit()
  for i, note in ipairs(notes) do notes[i] = ("%d tensor%s %s"):format(notes[note], notes[note] > 1 and "s" or "", note) end
  for _, sums in ipairs(order) do sums.rmse = sums.total > 0 and math.sqrt(sums.error / sums.total) or 0 end
  table.sort(order, function(x, y) return x.bytes > y.bytes end)
  return { by_type = order, elements = total.elements, bytes = total.bytes, notes = notes }
end

-- Model:save_gguf(path, {type = "f16", overrides = "", ...}); opt as for write.
function export.save(model, path, opt)
  opt = opt or {}
  local source = export.of_model(model)
  return export.write(path, source, types.plan(opt.type or "f16", opt.overrides, source.shape), opt)
end

return export
