-- How much each column of a model's weights matters: the mean squares of each linear layer's inputs over a text. They
-- are kept as llama.cpp's importance matrices: NAME.in_sum2 [1, columns], the sums, and NAME.counts [1], the number of
-- rows in them.

local names = require "qeng.gguf.names"
local progress = require "qeng.console.progress"
local q = require "qeng.core"

local importance = {}

-- Runs `text` through the model in documents of `length` tokens, at most `chunks` of them. Returns {[gguf name] =
-- {sums =, count =}}.
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
  model.observe = function(name, x)
    local stored = names.to_gguf(name, model.arch)
    local entry = found[stored]
    if not entry then
      entry = { sums = q.keep(q.zeros({ x:shape()[2] }, "f32", "workspace")), count = 0 }
      found[stored] = entry
    end
    q.quant.add_column_squares(entry.sums, x)
    entry.count = entry.count + x:shape()[1]
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
    tensors[#tensors + 1] = { name .. ".in_sum2", found[name].sums:reshape { 1, found[name].sums:elements() } }
    tensors[#tensors + 1] = { name .. ".counts", q.tensor({ found[name].count / chunk_size }, "f32"):reshape { 1, 1 } }
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
      local shape = file:info(name).shape
      if #shape > 1 and shape[1] ~= 1 then
        q.error("unsupported", ("%s: %s is of several experts"):format(path, stored))
      end
      found[stored] = { sums = file:tensor(name, { dtype = "f32", copy = true }):reshape { shape[#shape] }, count = 1 }
    end
  end
  return found
end

-- name -> importance, as q.quantize takes it: sums. Their scale does not matter.
function importance.tensors(found)
  local tensors = {}
  for name, entry in pairs(found) do tensors[name] = entry.sums end
  return tensors
end

return importance
