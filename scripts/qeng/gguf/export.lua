-- Models as GGUF files. A source says what is written: {metadata = {{key, type, value}...}, tensors = {{name =, shape
-- =, read =, heads =, signs =, stored =}...}, shape = for gguf_types, files = paths it is read from (none), notes =
-- what the file cannot say (none), left = parts of a folder that are not written (nil)}. read() gives the tensor.
-- heads: its rows have to move to llama's order. stored: the type of a GGUF file's tensor. signs: "one_bit" or
-- "ternary" if the tensor is that; then read() also gives the f32 scale of each row.

local architectures = require "qeng.model.architectures"
local config = require "qeng.model.config"
local experts = require "qeng.model.experts"
local hadamard = require "qeng.gguf.hadamard"
local hub = require "qeng.hub"
local kept = require "qeng.model.kept"
local metadata = require "qeng.gguf.metadata"
local mtp = require "qeng.model.mtp"
local names = require "qeng.gguf.names"
local q = require "qeng.core"
local types = require "qeng.gguf.types"
local value_heads = require "qeng.model.value_heads"

local export = {}

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

-- from: as for metadata.
local function source_of(arch, c, name, from, parameters)
  local list, a, notes = metadata(arch, c, name, from)
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
  -- What moves rows is given floats, and no signs.
  local function floats_of(parameter)
    local tensor, scale = parameter.read()
    if scale then
      q.error("unsupported", ("gguf: %s: its rows or columns have another order there, and it is of signs with a scale "
        .. "a row: load the model and save it first"):format(parameter.name))
    end
    local dtype = tensor:dtype()
    return (dtype == "f32" or dtype == "bf16") and tensor or tensor:to "f32"
  end
  local function add_apart(parameter, apart)
    for i, stored in ipairs(names.all(parameter.name, arch)) do
      table.insert(source.tensors, {
        name = stored, shape = { apart.counts(c)[i], parameter.shape[2] },
        read = function() return (select(i, apart.rows(floats_of(parameter), c))) end,
      })
    end
  end
  for _, parameter in ipairs(parameters) do
    local apart = names.apart(arch, parameter.name)
    local stored, read, shape = names.to_gguf(parameter.name, arch), parameter.read, parameter.shape
    if value_heads.moves(c, parameter.name, true) then
      read = function() return value_heads.weight_to(c, parameter.name, floats_of(parameter), true) end
    end
    if not stored then q.error("unsupported", ("gguf: tensor %s has no name in the format"):format(parameter.name)) end
    if names.plus_one(arch, parameter.name) then
      read = function() return parameter.read():to "f32" + q.zeros(parameter.shape, "f32"):fill(1) end
    end
    local unlike = names.unlike(arch, parameter.name)
    if unlike then
      local plain = read
      shape = unlike.shape and unlike.shape(shape, c) or shape
      read = function()
        local tensor = plain():to "f32"
        return (unlike.write and unlike.write(tensor) or tensor):reshape(shape)
      end
    end
    if apart then
      add_apart(parameter, apart)
    else
      table.insert(source.tensors, {
        name = stored, shape = shape, read = read, heads = names.heads(arch, parameter.name, c),
        signs = parameter.signs,
      })
    end
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
  local head, note = model.mtp, nil
  if head and not model.arch.gguf.nextn then
    head, note = nil, "the head that drafts tokens is not written: the architecture has no words for it"
  end
  for _, parameter in ipairs(head and head.parameters or {}) do
    parameters[#parameters + 1] = {
      name = names.behind(parameter.name, model.config.layers), shape = parameter.tensor:shape(),
      read = function() return parameter.tensor end,
    }
  end
  local path = model.gguf and model.gguf.path
  local name = model.dir or path
  local from = {
    tokenizer = model.tokenizer, dir = model.dir, stop_ids = model.stop_ids, suppressed = model.suppressed,
    drafts = head ~= nil,
  }
  local source = source_of(model.arch, model.config, name and basename(name) or "model", from, parameters)
  source.files, source.notes[#source.notes + 1] = { path }, note
  if model.rotations then
    table.insert(source.notes, "the weights were stored rotated: they are written unrotated, and lose more in types of "
      .. "few bits than as they were")
  end
  return source
end

-- The parameters that a model has by its configuration, and behind them those of its head if it `drafts` tokens:
-- {{name =, shape =}...}.
local function parameters_of(arch, c, drafts)
  local model = { config = c, parameters = {}, linears = {}, states = {}, places = {} }
  local list, stand_in = {}, q.zeros({ 1 }, "f32")
  local function source(name, shape)
    list[#list + 1] = { name = name, shape = shape }
    return stand_in
  end
  arch.build(model, source, c)
  if drafts then mtp.build(model, source) end
  return list
end

-- The source of a Hugging Face folder, tensor by tensor as stored. A folder of packed layers is loaded as a model
-- first. The tensors have to be exactly those that config.json asks for.
function export.of_folder(dir)
  local known, file, weights = {}, config.read(dir, q.weights.open(dir))
  local packed = file.values.quantization_config
  if packed ~= nil and packed ~= q.json.null then
    local model = require("qeng.model").load(dir, { dtype = "f32", weights = "map" })
    if mtp.has_own(model) then mtp.attach(model) end
    return export.of_model(model)
  end
  local arch, c = architectures.of(file)
  local drafts = arch.gguf and arch.gguf.nextn and weights:info "mtp.fc.weight" ~= nil
  local parameters = parameters_of(arch, c, drafts)
  for _, parameter in ipairs(parameters) do
    local turns = arch.transposed and arch.transposed(parameter.name)
    local name, wanted, half_of = experts.fused(weights, file:stored(parameter.name), parameter.shape)
    local info, scale = weights:info(name), name .. "_scale"
    if not info then
      q.error("format", ("%s: tensor %s is missing, though config.json asks for it"):format(dir, name))
    end
    local shape = turns and { wanted[2], wanted[1] } or wanted
    local given, asked = table.concat(info.shape, ", "), table.concat(shape, ", ")
    if given ~= asked then
      q.error("shape", ("%s: tensor %s is [%s], config.json says [%s]"):format(dir, name, given, asked))
    end
    local scaled = info.dtype == "one_bit" or info.dtype == "ternary" or weights:info(scale) ~= nil
    if scaled and not weights:info(scale) then
      q.error("format", ("%s: tensor %s is missing: the weight beside it has no scale of its own"):format(dir, scale))
    end
    known[name], known[scale] = true, scaled
    if parameter.name:find "^mtp%." then parameter.name = names.behind(parameter.name, c.layers) end
    parameter.signs = scaled and info.dtype or nil
    parameter.read = function()
      local tensor = weights:tensor(name)
      if half_of then return half_of(tensor) end
      return turns and tensor:to("f32"):transpose():clone() or tensor, scaled and weights:tensor(scale)
    end
  end
  local left = {}
  for _, name in ipairs(file.left) do
    if not known[name] then left[#left + 1] = name end
  end
  for _, name in ipairs(weights:names()) do
    if not known[name] and architectures.passes(arch, name) then
      left[#left + 1] = name
    elseif not known[name] and not file:is_spare(name, c.tied) then
      q.error("format", ("%s: tensor %s belongs to no part of a %s"):format(dir, name, arch.hf))
    end
  end
  kept.tell(dir, left, file.wrapped, ", and not written")
  local ok, tokenizer = pcall(q.tokenizer, dir)
  -- A folder without a tokenizer gives a file without one.
  if not ok and tokenizer.code ~= "io" then error(tokenizer, 0) end
  local source = source_of(arch, c, basename(dir), { tokenizer = ok and tokenizer or nil, dir = dir, drafts = drafts },
    parameters)
  source.left = #left > 0 and kept.parts(left) or nil
  return source
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
-- bytes, rmse}...}, bytes =, elements =, notes = {...}, paths = {...}, left = the source's}. rmse is relative to the
-- weights' rms.
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
  return {
    by_type = order, elements = total.elements, bytes = total.bytes, notes = notes, paths = paths, left = source.left,
  }
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
