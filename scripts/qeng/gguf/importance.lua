-- How much each column of a model's weights matters: the mean squares of each linear layer's inputs over a text. They
-- are kept as llama.cpp's importance matrices: NAME.in_sum2 [1, columns], the sums, and NAME.counts [1, 1], the number
-- of rows in them. Each expert has its own: NAME.in_sum2 [experts, columns], NAME.counts [experts, 1].

local names = require "qeng.gguf.names"
local progress = require "qeng.console.progress"
local q = require "qeng.core"
local value_heads = require "qeng.model.value_heads"

local importance = {}

-- Adds the rows of x to an entry. first: of experts, where their rows begin.
local function add(entry, x, first)
  local bounds, columns = first and first:table() or { 0, x:shape()[1] }, x:shape()[2]
  for e = 1, #bounds - 1 do
    local count = bounds[e + 1] - bounds[e]
    local sums = entry.sums:rows(e - 1, 1):reshape { columns }
    if count > 0 then q.quant.add_column_squares(sums, x:rows(bounds[e], count)) end
    entry.counts[e] = (entry.counts[e] or 0) + count
  end
end

-- Runs `text` through the model in documents of `length` tokens, at most `chunks` of them. Returns {[gguf name] =
-- {sums = [matrices, columns], counts = {rows of each matrix...}}}.
function importance.collect(model, text, opt)
  opt = opt or {}
  local length, chunks = opt.length or 512, opt.chunks or 128
  local ids = model.tokenizer:encode(text)
  local count = math.min(chunks, math.floor(#ids / length))
  if count == 0 then
    q.error("value", ("the calibration text has %d tokens, expected %d at least: give a longer --calibration text")
      :format(#ids, length))
  end
  local found = {}
  model.observe = function(name, x, first)
    local stored = names.all(name, model.arch)
    local entry = found[stored[1]]
    if not entry then
      local matrices = first and first:elements() - 1 or 1
      entry = { sums = q.keep(q.zeros({ matrices, x:shape()[2] }, "f32", "workspace")), counts = {} }
      for _, each in ipairs(stored) do found[each] = entry end
    end
    add(entry, value_heads.to(model.config, "columns", name, x, true), first)
  end
  local line = progress.new()
  for chunk = 0, count - 1 do
    local piece = {}
    for i = 1, length do piece[i] = ids[chunk * length + i] end
    q.no_grad(q.scope, function()
      model.observe(model.config.tied and "model.embed_tokens.weight" or "lm_head.weight", model:hidden(piece))
    end)
    line:line(("calibration: %d of %d documents of %d tokens"):format(chunk + 1, count, length))
  end
  line:finish()
  model.observe = nil
  return found
end

function importance.save(found, path, chunk_size)
  local tensors, order = {}, {}
  for name in pairs(found) do order[#order + 1] = name end
  table.sort(order)
  for _, name in ipairs(order) do
    local entry, counts = found[name], {}
    for i, count in ipairs(entry.counts) do counts[i] = count / chunk_size end
    tensors[#tensors + 1] = { name .. ".in_sum2", entry.sums }
    tensors[#tensors + 1] = { name .. ".counts", q.tensor(counts, "f32"):reshape { #counts, 1 } }
  end
  q.gguf.save(path, tensors, {
    { "general.type", "string", "imatrix" }, { "imatrix.datasets", "[string]", {} },
    { "imatrix.chunk_count", "u32", 0 },
    { "imatrix.chunk_size", "u32", chunk_size },
  })
end

function importance.load(path)
  local file, found = q.gguf.open(path), {}
  if file:get "general.type" ~= "imatrix" then
    q.error("format", path .. ": is not an importance matrix (general.type = imatrix)")
  end
  for _, name in ipairs(file:names()) do
    local stored = name:match "^(.*)%.in_sum2$"
    if stored then
      local shape, counts = file:info(name).shape, {}
      local columns = shape[#shape]
      local sums = file:tensor(name, { dtype = "f32", copy = true })
      for i = 1, sums:elements() / columns do counts[i] = 1 end
      found[stored] = { sums = sums:reshape { #counts, columns }, counts = counts }
    end
  end
  return found
end

-- name -> importance, as q.quantize takes it: sums [columns], or of experts [experts, columns]. Their scale does not
-- matter.
function importance.tensors(found)
  local tensors = {}
  for name, entry in pairs(found) do
    local shape = entry.sums:shape()
    tensors[name] = shape[1] == 1 and entry.sums:reshape { shape[2] } or entry.sums
  end
  return tensors
end

return importance
