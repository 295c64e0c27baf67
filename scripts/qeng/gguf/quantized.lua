-- Writes a model's folder or file as GGUF with a progress line, and says what became of it: what recipes/quantize.lua
-- and the wizard share.

local export = require "qeng.gguf.export"
local progress = require "qeng.console.progress"
local q = require "qeng.core"
local types = require "qeng.gguf.types"

local quantized = {}

-- Refuses what can be refused before the work. opt: type, tensor (types of single tensors), split (bytes of a part),
-- model_file, weighed (whether an importance matrix will be there).
function quantized.begin(from, to, opt)
  local source = export.open(from, { model_file = opt.model_file })
  return export.begin(to, source, types.plan(opt.type, opt.tensor, source.shape, opt.weighed), opt.split)
end

-- Does the work of begin. importance: name -> tensor, or nil.
function quantized.finish(job, importance)
  local line, began = progress.new(), q.time()
  local result = job:finish {
    importance = importance, measure = true,
    progress = function(done, count, bytes, name)
      local took = progress.duration(q.time() - began)
      line:line(("%d of %d tensors, %s, %s: %s"):format(done, count, progress.bytes(bytes), took, name))
    end,
  }
  line:finish()
  return result
end

function quantized.write(from, to, opt) return quantized.finish(quantized.begin(from, to, opt)) end

-- What was written, as lines: notes, a table of types, the file.
function quantized.lines(result)
  local lines = {}
  for i, note in ipairs(result.notes) do lines[i] = "note: " .. note end
  lines[#lines + 1] = ("%-8s %8s %14s %10s %6s %9s"):format("type", "tensors", "elements", "bytes", "bits", "rel. RMSE")
  for _, row in ipairs(result.by_type) do
    lines[#lines + 1] = ("%-8s %8d %14d %10s %6.2f %9.5f"):format(row.type, row.tensors, row.elements,
      progress.bytes(row.bytes), 8 * row.bytes / row.elements, row.rmse)
  end
  local name = result.paths[1] .. (#result.paths > 1 and (" and %d more"):format(#result.paths - 1) or "")
  lines[#lines + 1] = ("%s: %s, %.2f bits per weight"):format(name, progress.bytes(result.bytes),
    8 * result.bytes / result.elements)
  return lines
end

return quantized
