-- Opens a GGUF file as a model's checkpoint.

local architectures = require "qeng.model.architectures"
local experts = require "qeng.model.experts"
local gguf_config = require "qeng.gguf.config"
local hadamard = require "qeng.gguf.hadamard"
local names = require "qeng.gguf.names"
local q = require "qeng.core"
local range = require "qeng.model.range"
local stops = require "qeng.gguf.stops"
local stream = require "qeng.model.stream"

local gguf = {}

-- Whether a tensor holds no weights: tables that llama.cpp's older files keep, and what gguf/config.lua reads.
local function is_table(name)
  return (name:find "^rope_f[%a_]+%.weight$" or name:find "%.attn_rot_embd%." or name:find "%.rope_freqs%.") ~= nil
end

-- The dtype of activations and of what is not a matrix: bf16 if all matrices are, else f32. Matrices of f16 and of
-- block formats stay as stored, and under f32 those of bf16 too. What the model file lists apart (gguf/names.lua) is no
-- matrix, whatever its shape.
local function activation_dtype(file, arch)
  local apart = {}
  for _, unlike in pairs(arch.gguf.tensors or {}) do apart[unlike[1]] = true end
  for _, name in ipairs(file:names()) do
    local info = file:info(name)
    local matrix = #info.shape > 1 and not apart[name:match "^blk%.%d+%.(.*)$"]
    if matrix and info.dtype ~= "bf16" then return "f32" end
  end
  return "bf16"
end

-- Whether an open file has experts that are joined when they are read (engine/formats/experts.h).
local function joins_experts(file)
  for _, name in ipairs(file:names()) do
    if name:find(".experts.", 1, true) then return true end
  end
  return false
end

-- Brings the weights of an open GGUF or safetensors file into memory as q.load's options ask. Returns whether they are
-- there. Experts that are joined get memory of their own, and the file none beside it.
function gguf.into_memory(file, opt)
  if opt.weights and opt.weights ~= "copy" and opt.weights ~= "map" and opt.weights ~= "stream" then
    q.error("value", ("weights = %q: expected \"map\", \"copy\" or \"stream\""):format(tostring(opt.weights)))
  end
  if opt.weights == "map" or opt.weights == "stream" or not opt.weights and opt.writable then return false end
  if joins_experts(file) then return false end
  return file:load { if_room = not opt.weights, only = range.names(file:names(), opt.range) }
end

-- The factor of a whole matrix, as files of NVFP4 have one beside each. nil if there is none, or if it is 1.
-- input_scale says how the makers of such files round the matrix's inputs. A product in f32 does not need it.
local function whole_scale(file, name, known)
  local stem = name:match "^(.*)%.weight$"
  local scale = stem and stem .. ".scale"
  if stem and file:info(stem .. ".input_scale") then known[stem .. ".input_scale"] = true end
  if not stem or not file:info(scale) then return nil end
  known[scale] = true
  local values = file:tensor(scale, { dtype = "f32" }):table()
  if #values ~= 1 then
    q.error("unsupported", ("%s has %d elements; one for the whole matrix is supported"):format(scale, #values))
  end
  return values[1] ~= 1 and values[1] or nil
end

-- Says which weights are kept in another form than the file's.
local function tell_decoded(file, path)
  local some, scaled = false, false
  for _, name in ipairs(file:names()) do
    some = some or file:info(name).dtype == "nvfp4"
    scaled = scaled or name:find "%.scale$" ~= nil
  end
  if some or scaled then
    local which = some and "NVFP4" or "matrices with a scale beside them"
    local times = not some and "up to 16" or scaled and "7" or "3.6"
    io.stderr:write(("%s: weights of %s are decoded, and take %s times their size in memory\n"):format(path, which,
      times))
  end
end

-- A shape's dimensions but those of 1, which some writers leave out and others not.
local function without_ones(shape)
  local list = {}
  for _, size in ipairs(shape) do list[#list + 1] = size ~= 1 and size or nil end
  return table.concat(list, " ")
end

-- Opens `path` and returns {values = of a config.json, factors =, layout =, dtype =, rotations =, source(name, shape),
-- finish(model)}. opt: dtype, writable, weights, as for q.load. own: the user's model file, or nil.
function gguf.open(path, opt, own)
  local file = q.gguf.open(path)
  range.check(path, opt)
  stream.check(path, opt)
  local in_memory = gguf.into_memory(file, opt)
  local values, arch, factors, layout = gguf_config.read(file, path, hadamard.keys, own)
  local dtype = opt.dtype or activation_dtype(file, arch)
  local known = {}
  tell_decoded(file, path)

  local function source(name, shape, _, elsewhere, _, c)
    local stored, whole, half_of = names.to_gguf(name, arch), shape, nil
    if stored then stored, whole, half_of = experts.fused_in_gguf(file, stored, shape) end
    local info = stored and file:info(stored)
    if not info then q.error("format", ("%s: tensor %s is missing"):format(path, stored or name)) end
    known[stored] = true
    if elsewhere then
      whole_scale(file, stored, known)
      return nil
    end
    if names.plus_one(arch, name) then
      return q.no_grad(function()
        return (file:tensor(stored, { dtype = "f32", shape = shape }) + q.zeros(shape, "f32"):fill(-1)):to(dtype)
      end)
    end
    local unlike = names.unlike(arch, name)
    if unlike then
      return q.no_grad(function()
        local expected = unlike.shape and unlike.shape(shape, c) or shape
        if without_ones(info.shape) == without_ones(expected) then expected = info.shape end
        local tensor = file:tensor(stored, { dtype = "f32", shape = expected })
        if unlike.read then tensor = unlike.read(tensor) end
        return tensor:reshape(shape):to(architectures.is_exact(arch, name) and "f32" or dtype):label "weights"
      end)
    end
    local factor = whole_scale(file, stored, known)
    local converted = info.dtype == "f32" or info.dtype == "bf16" and dtype == "bf16"
    local as = factor and "f32" or (converted or #shape == 1 or opt.writable) and dtype or nil
    local tensor = file:tensor(stored, {
      dtype = as, shape = whole, heads = names.heads(arch, name, c),
      copy = opt.writable and not opt.shared_out and not half_of,
      stream = opt.weights == "stream",
      label = opt.weights == "stream" and "weights in files" or "weights",
      -- Not if only single rows are read, or some of them.
      interleave = in_memory and not half_of and (stored ~= "token_embd.weight" or not file:info "output.weight"),
    })
    if not factor and not half_of then return tensor end
    if opt.weights == "stream" then
      local why = half_of and "is gate and up of experts in one, so they are copied"
        or "has a scale beside it, so it is decoded in memory"
      q.error("unsupported", ("%s: tensor %s %s, and cannot be streamed"):format(path, stored, why))
    end
    if half_of then tensor = half_of(tensor) end
    if not factor then return tensor end
    return q.no_grad(function() return (tensor * factor):to(opt.writable and dtype or "f32") end)
  end

  local function finish(model)
    local drafts, left = file:get(arch.gguf.architecture .. ".nextn_predict_layers") or 0, 0
    for _, name in ipairs(file:names()) do
      local block = drafts ~= 0 and tonumber(name:match "^blk%.(%d+)%.")
      if block and block >= model.config.layers then
        left = left + 1
      elseif not known[name] and not is_table(name) then
        q.error("format", ("%s: tensor %s belongs to no part of a %s model"):format(path, name, arch.gguf.architecture))
      end
    end
    if left > 0 then
      io.stderr:write(("%s: %d tensors of blocks that draft tokens (nextn) are left: what is saved has none\n"):format(
        path, left))
    end
    if drafts == 1 then  -- for model:attach_mtp, which reads them of the open file
      model.draft_source = function(name, shape, plus_one)
        return source(names.behind(name, model.config.layers), shape, plus_one, false, arch, model.config)
      end
    end
    model.gguf = { path = path, architecture = arch.gguf.architecture }
    local ok, tokenizer = pcall(q.tokenizer, path)
    if ok then model.tokenizer = tokenizer else model.tokenizer_error = tokenizer end
    model.stop_ids = stops.of_file(file, model.tokenizer)
    model.suppressed = stops.suppressed(file)
    if not model.draft_source then file:close() end
  end
  return {
    values = values, factors = factors, layout = layout, dtype = dtype, rotations = hadamard.read(file, path, arch),
    source = source, finish = finish,
  }
end

return gguf
