-- Models as GGUF files. A source says what is written: {metadata = {{key, type, value}...}, tensors = {{name =, shape
-- =, read =, heads =, signs =, stored =}...}, shape = for gguf_types, files = paths it is read from (none), notes =
-- what the file cannot say (none)}. read() gives the tensor. heads: its rows have to move to llama's order. stored:
-- the type of a GGUF file's tensor. signs: "one_bit" or "ternary" if the tensor is that; then read() also gives the
-- f32 scale of each row.

local architectures = require "qeng.model.architectures"
local config = require "qeng.model.config"
local hadamard = require "qeng.gguf.hadamard"
local hub = require "qeng.hub"
local names = require "qeng.gguf.names"
local q = require "qeng.core"
local request = require "qeng.infer.request"
local types = require "qeng.gguf.types"

local export = {}

-- ---------------------------------------------------------------- metadata

local function add_rope(add, arch, c)
  local a, scaling = arch.gguf.architecture, c.rope.scaling
  add(a .. ".rope.freq_base", "f32", c.rope.theta)
  if not scaling then return end
  local kind = scaling.rope_type
  if kind == "llama3" and not arch.gguf.rope_freqs then
    q.error("unsupported", ("gguf: rope scaling llama3 has no words in architecture %s"):format(a))
  end
  if kind == "llama3" then return end  -- tensor rope_freqs.weight says it
  if kind == "longrope" and arch.gguf.longrope then  -- and two tensors have its factors
    local original = scaling.original_max_position_embeddings or c.max_position
    local longer = scaling.factor or c.max_position / original
    add(a .. ".rope.scaling.original_context_length", "u32", original)
    add(a .. ".rope.scaling.attn_factor", "f32", scaling.attention_factor
      or longer > 1 and math.sqrt(1 + math.log(longer) / math.log(original)) or 1)
    return
  end
  if kind ~= "linear" and kind ~= "yarn" then
    q.error("unsupported", ("gguf: rope scaling %s has no words in the format"):format(kind))
  end
  add(a .. ".rope.scaling.type", "string", kind)
  add(a .. ".rope.scaling.factor", "f32", scaling.factor)
  if kind == "yarn" then
    add(a .. ".rope.scaling.original_context_length", "u32", scaling.original_max_position_embeddings or c.max_position)
    local own_betas = (scaling.beta_fast or 32) ~= 32 or (scaling.beta_slow or 1) ~= 1
    if own_betas or scaling.truncate == false and not arch.gguf.untruncated or scaling.mscale then
      q.error("unsupported", "gguf: YaRN with beta_fast, beta_slow, truncate or mscale of its own is not written")
    end
    if scaling.attention_factor then
      add(a .. ".rope.scaling.attn_factor", "f32", scaling.attention_factor / (0.1 * math.log(scaling.factor) + 1))
    end
  end
end

-- The ids that end an answer beside eos. llama.cpp reads one as eot and one as eom, and knows those with common names.
-- The others go to an entry that only qeng reads. Returns a note about those, or nil. stops: a set of all.
local function add_stops(add, tokenizer, stops)
  local space, eot = "tokenizer.ggml.", nil
  for _, name in ipairs { "<|im_end|>", "<|eot_id|>", "<end_of_turn>" } do eot = eot or tokenizer:id(name) end
  local by_name, others = request.stops { tokenizer = tokenizer }, {}
  for id in pairs(stops) do
    if not by_name[id] then others[#others + 1] = id end
  end
  table.sort(others)
  eot = eot or table.remove(others, 1)
  local eom = table.remove(others, 1)
  if eot then add(space .. "eot_token_id", "u32", eot) end
  if eom then add(space .. "eom_token_id", "u32", eom) end
  if #others == 0 then return nil end
  add("qeng.stop_token_ids", "[u32]", others)
  return ("answers also end at token %s, for which llama.cpp has no key: qeng alone stops there"):format(
    table.concat(others, ", "))
end

local function add_tokenizer(add, tokenizer, vocab, stops)
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
  local note = add_stops(add, tokenizer, stops)
  if info.pad then add(space .. "padding_token_id", "u32", info.pad) end
  add(space .. "add_bos_token", "bool", info.add_bos)
  if lists.model == "llama" then add(space .. "add_space_prefix", "bool", lists.add_space_prefix) end
  if info.chat_template then add("tokenizer.chat_template", "string", info.chat_template) end
  return note
end

-- The window of all layers. Returns a note if the window matters and llama.cpp has no key for it.
local function add_window(add, arch, c)
  if (c.window or 0) == 0 then return nil end
  if arch.gguf.window then return add(arch.gguf.architecture .. "." .. arch.gguf.window, "u32", c.window) end
  add("qeng.sliding_window", "u32", c.window)
  if c.window >= c.max_position then return nil end
  return ("attention looks back over %d tokens, for which llama.cpp has no key in this architecture: it looks at all "
    .. "%d, qeng alone keeps the window"):format(c.window, c.max_position)
end

-- The metadata of a model with settings c, the architecture's GGUF word, and a list of notes. stops: a set of the ids
-- that end an answer. The model file's gguf.write(add, c) adds further entries of the architecture, with keys that lack
-- its word. It may return a note.
local function metadata(arch, c, name, tokenizer, stops)
  local a = names.architecture(arch)
  local list = {}
  local function add(key, type, value) list[#list + 1] = { key, type, value } end
  add("general.architecture", "string", a)
  add("general.type", "string", "model")
  add("general.name", "string", name)
  add(a .. ".block_count", "u32", c.layers)
  add(a .. ".context_length", "u32", c.max_position)
  add(a .. ".embedding_length", "u32", c.hidden)
  add(a .. ".feed_forward_length", "u32", c.ffn)
  if c.experts then
    add(a .. ".expert_count", "u32", c.experts.count)
    add(a .. ".expert_used_count", "u32", c.experts.used)
  end
  add(a .. ".attention.head_count", "u32", arch.gguf.values and 0 or c.heads)
  if not arch.gguf.values then
    add(a .. ".attention.head_count_kv", "u32", c.kv_heads)
    add(a .. ".attention.key_length", "u32", c.head_dim)
    add(a .. ".attention.value_length", "u32", c.head_dim)
  end
  add(a .. "." .. (arch.gguf.eps or "attention.layer_norm_rms_epsilon"), "f32", c.eps)
  if c.rope then add(a .. ".rope.dimension_count", "u32", c.rotary or c.head_dim) end
  add(a .. ".vocab_size", "u32", c.vocab)
  local notes = { add_window(add, arch, c) }
  if arch.gguf.write then
    notes[#notes + 1] = arch.gguf.write(function(key, type, value) add(a .. "." .. key, type, value) end, c)
  end
  if c.rope then add_rope(add, arch, c) end
  notes[#notes + 1] = add_tokenizer(add, tokenizer, c.vocab, stops)
  return list, a, notes
end

-- The factors of tensor rope_freqs.weight as a Lua array; nil if c needs none.
local function rope_factors(c)
  if not c.rope then return nil end
  if c.rope.factors then return c.rope.factors end
  local scaling = c.rope.scaling
  if not scaling or scaling.rope_type ~= "llama3" then return nil end
  local plain = q.rope_table { dim = c.head_dim, theta = c.rope.theta }.inv_freq:table()
  local scaled = q.rope_table {
    dim = c.head_dim, theta = c.rope.theta, type = "llama3", factor = scaling.factor,
    low_freq_factor = scaling.low_freq_factor, high_freq_factor = scaling.high_freq_factor,
    original_max_position_embeddings = scaling.original_max_position_embeddings,
  }.inv_freq:table()
  for i, each in ipairs(scaled) do plain[i] = plain[i] / each end
  return plain
end

-- ---------------------------------------------------------------- sources

-- from: {tokenizer =, dir =, stop_ids =} of the model, as request.stops takes them.
local function source_of(arch, c, name, from, parameters)
  local list, a, notes = metadata(arch, c, name, from.tokenizer, request.stops(from))
  local source = {
    metadata = list, architecture = a, tensors = {}, files = {}, notes = notes,
    shape = {
      layers = c.layers, groups = c.kv_heads and c.heads / c.kv_heads or 1, tied = c.tied,
      experts = c.experts and c.experts.count or 0,
    },
  }
  local scaling = c.rope and c.rope.scaling or {}
  local function add_factors(stored, factors)
    if not factors then return end
    table.insert(source.tensors, {
      name = stored, shape = { #factors }, read = function() return q.tensor(factors, "f32") end,
    })
  end
  add_factors("rope_freqs.weight", rope_factors(c))
  add_factors("rope_factors_long.weight", scaling.long_factor)
  add_factors("rope_factors_short.weight", scaling.short_factor)
  for _, parameter in ipairs(parameters) do
    local stored, read, shape = names.to_gguf(parameter.name, arch), parameter.read, parameter.shape
    if not stored then q.error("unsupported", ("gguf: tensor %s has no name in the format"):format(parameter.name)) end
    if names.plus_one(arch, parameter.name) then
      read = function() return parameter.read():to "f32" + q.zeros(parameter.shape, "f32"):fill(1) end
    end
    local unlike = names.unlike(arch, parameter.name)
    if unlike then
      shape = unlike.shape and unlike.shape(shape, c) or shape
      read = function()
        local tensor = parameter.read():to "f32"
        return (unlike.write and unlike.write(tensor) or tensor):reshape(shape)
      end
    end
    table.insert(source.tensors, {
      name = stored, shape = shape, read = read, heads = names.heads(arch, parameter.name, c),
      signs = parameter.signs,
    })
  end
  return source
end

-- The name of a file or folder.
local function basename(path)
  path = path:gsub("/+$", ""):gsub("%.gguf$", "")
  return path:match "([^/]+)$" or path
end

-- The rotation in which a model's parameter is stored. The embedding has that of its rows, and so has a head that is
-- tied to it.
local function rotation_of(model, parameter)
  local shape = parameter.tensor:shape()
  if not model.rotations or #shape == 1 then return nil end
  local forward, inverse = model.rotations(parameter.name, shape[2])
  if parameter.tensor == model.embed then return inverse end
  return forward
end

-- The source of a loaded model as it is, rotated weights unrotated. Adapters have to be merged first.
function export.of_model(model)
  if model.adapter then
    q.error("value", "save_gguf: merge the adapter first (model:merge()), or save it apart (save_adapter_gguf)")
  end
  local parameters = {}
  for i, parameter in ipairs(model.parameters) do
    local scale, rotation = parameter.row_scale, rotation_of(model, parameter)
    if scale and rotation then
      q.error("unsupported", ("save_gguf: %s is stored as rotated signs, which are no signs once unrotated; "
        .. "recipes/quantize.lua copies the file as it is"):format(parameter.name))
    end
    parameters[i] = {
      name = parameter.name, shape = parameter.tensor:shape(), signs = scale and parameter.tensor:dtype(),
      read = function()
        if rotation then return hadamard.undo(parameter.tensor, rotation) end
        return parameter.tensor, scale
      end,
    }
  end
  local path = model.gguf and model.gguf.path
  local name = model.dir or path
  local source = source_of(model.arch, model.config, name and basename(name) or "model", model, parameters)
  source.files = { path }
  if model.rotations then
    table.insert(source.notes, "the weights were stored rotated: they are written unrotated, and lose more in types of "
      .. "few bits than as they were")
  end
  return source
end

-- The parameters that a model has by its configuration: {{name =, shape =}...}.
local function parameters_of(arch, c)
  local list, stand_in = {}, q.zeros({ 1 }, "f32")
  arch.build({ parameters = {}, linears = {}, states = {}, places = {} }, function(name, shape)
    list[#list + 1] = { name = name, shape = shape }
    return stand_in
  end, c)
  return list
end

-- The source of a Hugging Face folder, tensor by tensor as stored. A folder of packed layers is loaded as a model
-- first. The tensors have to be exactly those that config.json asks for.
function export.of_folder(dir)
  local known, file, weights = {}, config.read(dir, q.weights.open(dir))
  local packed = file.values.quantization_config
  if packed ~= nil and packed ~= q.json.null then
    return export.of_model(require("qeng.model").load(dir, { dtype = "f32", weights = "map" }))
  end
  local arch, c = architectures.of(file)
  local parameters = parameters_of(arch, c)
  for _, parameter in ipairs(parameters) do
    local name, turns = file:stored(parameter.name), arch.transposed and arch.transposed(parameter.name)
    local info, scale = weights:info(name), name .. "_scale"
    if not info then
      q.error("format", ("%s: tensor %s is missing, though config.json asks for it"):format(dir, name))
    end
    local shape = turns and { parameter.shape[2], parameter.shape[1] } or parameter.shape
    local given, asked = table.concat(info.shape, ", "), table.concat(shape, ", ")
    if given ~= asked then
      q.error("shape", ("%s: tensor %s is [%s], config.json says [%s]"):format(dir, name, given, asked))
    end
    local scaled = info.dtype == "one_bit" or info.dtype == "ternary" or weights:info(scale) ~= nil
    if scaled and not weights:info(scale) then
      q.error("format", ("%s: tensor %s is missing: the weight beside it has no scale of its own"):format(dir, scale))
    end
    known[name], known[scale] = true, scaled
    parameter.signs = scaled and info.dtype or nil
    parameter.read = function()
      local tensor = weights:tensor(name)
      return turns and tensor:to("f32"):transpose():clone() or tensor, scaled and weights:tensor(scale)
    end
  end
  for _, name in ipairs(weights:names()) do
    if not known[name] and not file:is_spare(name, c.tied) then
      q.error("format", ("%s: tensor %s belongs to no part of a %s"):format(dir, name, arch.hf))
    end
  end
  local ok, tokenizer = pcall(q.tokenizer, dir)
  -- A folder without a tokenizer gives a file without one.
  if not ok and tokenizer.code ~= "io" then error(tokenizer, 0) end
  return source_of(arch, c, basename(dir), { tokenizer = ok and tokenizer or nil, dir = dir }, parameters)
end

local dropped = { ["general.file_type"] = true, ["general.quantization_version"] = true, ["general.alignment"] = true }

-- The source of a GGUF file: its own entries and tensors, whatever the architecture.
function export.of_gguf(path)
  local file = q.gguf.open(path)
  local a = file:get "general.architecture"
  if type(a) ~= "string" or file:get "general.type" == "adapter" then q.error("value", path .. ": is not a model") end
  local source = { metadata = {}, architecture = a, tensors = {}, files = file:files(), notes = {} }
  for _, key in ipairs(file:keys()) do
    if not dropped[key] and key:sub(1, 6) ~= "split." and key:sub(1, 9) ~= "quantize." then
      local value, kind = file:get(key)
      table.insert(source.metadata, { key, kind, value })
    end
  end
  for _, name in ipairs(file:names()) do
    local info = file:info(name)
    local function read() return file:tensor(name) end
    table.insert(source.tensors, { name = name, shape = info.shape, stored = info.dtype, read = read })
  end
  -- An entry of the architecture, which may be unknown. Where each layer has its own, that of the first.
  local function number(key, otherwise)
    local value = file:get(a .. "." .. key)
    if type(value) == "table" then value = value[1] end
    return type(value) == "number" and value or otherwise
  end
  local heads = math.max(1, number("attention.head_count", 1))
  source.shape = {
    layers = number("block_count", 1), tied = not file:info "output.weight",
    groups = heads / math.max(1, number("attention.head_count_kv", heads)), experts = number("expert_count", 0),
  }
  return source
end

-- The source of a folder, a GGUF file or a name on the hub.
function export.open(path)
  path = hub.resolve_model(path)
  return q.fs.kind(path) == "file" and export.of_gguf(path) or export.of_folder(path)
end

-- ---------------------------------------------------------------- writing

local is_dense = { f32 = true, f16 = true, bf16 = true }

-- The matrices of experts in blocks, each by its own importance. One that no token met counts evenly.
local function quantize_experts(tensor, type, importance)
  local shape = tensor:shape()
  local result = q.empty(shape, type)
  for e = 0, shape[1] - 1 do
    local own = importance:rows(e, 1):reshape { shape[3] }
    local matrix = tensor:rows(e, 1):reshape { shape[2], shape[3] }
    local blocks = q.quantize(matrix, type, { importance = own:sum():item() > 0 and own or nil })
    result:rows(e, 1):copy(blocks:reshape { 1, shape[2], shape[3] })
  end
  return result
end

local function to_type(tensor, type, importance, scale)
  if scale then
    local exact = tensor:dtype() == "one_bit" and "q1_0" or "tq2_0"
    if is_dense[type] or type == exact then return q.onebit.join_row_scale(tensor, scale, type) end
    tensor = q.onebit.join_row_scale(tensor, scale, "f32")
  end
  if tensor:dtype() == type then return tensor end
  if is_dense[type] then return tensor:to(type) end
  if not is_dense[tensor:dtype()] then tensor = tensor:to "f32" end
  if importance and #importance:shape() == 2 then return quantize_experts(tensor, type, importance) end
  return q.quantize(tensor, type, { importance = importance })
end

-- How many of a source's matrices an importance matrix weighs, and how many there are. Refuses one of another model.
local function count_weighed(job, importance)
  local weighed, matrices = 0, 0
  for i, tensor in ipairs(job.source.tensors) do
    if not is_dense[job.specs[i].dtype] then
      matrices, weighed = matrices + 1, weighed + (importance[tensor.name] and 1 or 0)
    end
  end
  if matrices > 0 and weighed == 0 then
    q.error("value", ("the importance matrix has none of the names of the %d matrices to be quantized: it is of "
      .. "another model"):format(matrices))
  end
  return weighed, matrices
end

local Job = {}
Job.__index = Job

-- Writes `source` to path by a plan of gguf_types, in two steps. `begin` refuses what can be refused before the work.
-- job:finish does the work. part_bytes: the bytes of tensors in a part of a split file; nil: one file.
function export.begin(path, source, plan, part_bytes)
  local stem = path:gsub("%.gguf$", "")
  for _, from in ipairs(source.files or {}) do
    local part = from:match "^.*(%-%d+%-of%-%d+%.gguf)$"  -- parts that are written have such names
    if q.fs.same(path, from) or part_bytes and part and q.fs.same(stem .. part, from) then
      q.error("value", ("%s: is what is read (%s): give the file that is written another name"):format(path, from))
    end
  end
  local list, specs, notes = {}, {}, {}
  for i, entry in ipairs(source.metadata) do list[i] = entry end
  if plan.file_type then list[#list + 1] = { "general.file_type", "u32", plan.file_type } end
  list[#list + 1] = { "general.quantization_version", "u32", 2 }
  for i, tensor in ipairs(source.tensors) do
    local type, note = plan:type_of(tensor.name, tensor.shape, tensor.signs, tensor.stored)
    if note then
      if not notes[note] then notes[note], notes[#notes + 1] = 0, note end
      notes[note] = notes[note] + 1
    end
    specs[i] = { name = tensor.name, dtype = type, shape = tensor.shape }
  end
  plan:check()
  for i, note in ipairs(notes) do
    notes[i] = ("%d tensor%s %s"):format(notes[note], notes[note] > 1 and "s" or "", note)
  end
  for _, note in ipairs(source.notes or {}) do notes[#notes + 1] = note end
  local writer = q.gguf.writer(path, specs, list, { part_bytes = part_bytes })
  return setmetatable({ source = source, specs = specs, notes = notes, writer = writer }, Job)
end

-- opt: importance (name -> tensor), progress(done, bytes, name), measure. Returns {by_type = {{type, tensors, elements,
-- bytes, rmse}...}, bytes =, elements =, notes = {...}, paths = {...}}. rmse is relative to the weights' rms.
function Job:finish(opt)
  opt = opt or {}
  local source, specs, writer, notes, by_type, order = self.source, self.specs, self.writer, self.notes, {}, {}
  if opt.importance then
    local weighed, matrices = count_weighed(self, opt.importance)
    notes[#notes + 1] = ("%d of %d quantized matrices are weighed by importance"):format(weighed, matrices)
  end
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
      if is_dense[type] or opt.measure and result ~= original then
        if scale then original = q.onebit.join_row_scale(original, scale, "f32") end
        local off, all = q.quant.squared_error(original, result)
        if is_dense[type] and not (off < math.huge) then
          local limit = type == "f16" and ", or above 65504, the largest of f16" or ""
          q.error("value", ("tensor %s holds a weight that is not finite%s"):format(tensor.name, limit))
        end
        sums.error, sums.total = sums.error + off, sums.total + all
      end
      local bytes, elements = writer:write(tensor.name, result, { heads = tensor.heads }), result:elements()
      sums.tensors, sums.elements, sums.bytes = sums.tensors + 1, sums.elements + elements, sums.bytes + bytes
      total.elements, total.bytes = total.elements + elements, total.bytes + bytes
    end)
    if opt.progress then opt.progress(i, #source.tensors, total.bytes, tensor.name) end
  end
  local paths = writer:commit()
  for _, sums in ipairs(order) do sums.rmse = sums.total == 0 and 0 or math.sqrt(sums.error / sums.total) end
  table.sort(order, function(x, y) return x.bytes > y.bytes end)
  return { by_type = order, elements = total.elements, bytes = total.bytes, notes = notes, paths = paths }
end

function export.write(path, source, plan, opt)
  return export.begin(path, source, plan, opt and opt.part_bytes):finish(opt)
end

-- Model:save_gguf(path, {type = "f16", overrides = "", part_bytes = nil, ...}). opt: as for write.
function export.save(model, path, opt)
  opt = opt or {}
  local source = export.of_model(model)
  local plan = types.plan(opt.type or "f16", opt.overrides, source.shape, opt.importance ~= nil)
  return export.write(path, source, plan, opt)
end

return export
