-- Streamed weights (q.load's weights = "stream"). The file is mapped, and only as much of it is in memory as a limit
-- allows. What comes next is read while the model computes (engine/stream/mapped_stream.h). Results have the same bits
-- as without.
--
-- model.stream is a WeightStream over the units embedding, layers, norm and head. model/nn.lua tells it which one is
-- used. Marks on the tape say where the gradient of a layer begins, so that the backward pass streams the other way.

local part_names = require "qeng.model.names"
local progress = require "qeng.console.progress"
local q = require "qeng.core"

local stream = {}

local slack = 64 * 2 ^ 20  -- bytes for what is not known in advance

-- The memory that this process takes beside its tensors, as a stream within a limit counts it.
function stream.process()
  local resident = tonumber(q.fs.read("/proc/self/status"):match "VmRSS:%s*(%d+)") * 1024
  for _, account in pairs(q.memory()) do resident = resident - account.bytes end
  return math.max(0, resident) + slack
end

-- Refuses options of q.load that contradict streaming, before anything is read.
function stream.check(path, opt)
  if opt.weights ~= "stream" then
    for _, name in ipairs { "host_budget", "stream_keep" } do
      if opt[name] then
        q.error("value", ("%s: %s is of streamed weights; load with weights = \"stream\""):format(path, name))
      end
    end
    return
  end
  if opt.writable then
    q.error("unsupported", path .. ": weights that are trained in full cannot be streamed; train an adapter (--mode "
      .. "lora), or load with weights = \"copy\"")
  end
end

-- Refuses what would bring the whole model into memory.
function stream.refuse(model, what)
  if model.stream then
    q.error("unsupported", what .. ": this model's weights are streamed; load it with weights = \"copy\" or \"map\" "
      .. "(--weights)")
  end
end

-- The unit of a parameter by its plain name (model/names.lua). 0: the embeddings of tokens and positions; 1 .. layers:
-- a layer; layers + 1: norm and head.
local function unit_of(name, layers)
  local layer = name:match "^model%.layers%.(%d+)%."
  if layer then return tonumber(layer) + 1 end
  return name:find "^model%.embed_" and 0 or layers + 1
end

-- The names of a model's units, and the tensors of each. A head that is the embedding is in two.
function stream.units(model)
  local layers = model.config.layers
  local names, weights = { "embedding" }, { {} }
  for i = 1, layers do names[i + 1], weights[i + 1] = "layers." .. (i - 1), {} end
  names[layers + 2], weights[layers + 2] = "head", {}
  for _, parameter in ipairs(model.parameters) do
    table.insert(weights[unit_of(part_names.plain(model.arch, parameter.name), layers) + 1], parameter.tensor)
  end
  if model.config.tied then table.insert(weights[layers + 2], model.embed) end
  return names, weights
end

-- Makes model.stream if opt.weights = "stream". opt:
--   host_budget    bytes of the process. On a GPU with memory of its own it bounds what is pinned; the rest comes from
--                  the file.
--   stream_slack   of them, bytes for memory that is not known in advance (64 MB)
--   stream_keep    on such a GPU, bytes of weights that stay there for good (half of what the device's budget leaves)
--   stream_depth   on such a GPU, units that are copied ahead (2)
--   writable       the weights are q.stream.spilled, and may be written to
function stream.attach(model, opt)
  if opt.weights ~= "stream" then return end
  local names, weights = stream.units(model)
  collectgarbage()  -- what loading left
  model.stream = q.stream.open(names, weights, {
    limit = opt.host_budget, option = "--host-budget", slack = opt.stream_slack or slack, keep = opt.stream_keep,
    depth = opt.stream_depth, writable = opt.writable or false,
  })
end

-- Figures of a step for the metrics: the difference of two results of WeightStream:figures.
function stream.since(now, before)
  local fetch = now.fetch_ms - before.fetch_ms
  local stall = now.stall_ms - before.stall_ms
  local hidden = fetch > 0 and math.max(0, 1 - stall / fetch) or (now.bytes == before.bytes and 1 or nil)
  return {
    stream_bytes = now.bytes - before.bytes, stream_fetch_ms = fetch, stream_stall_ms = stall,
    stream_hidden = hidden, stream_depth = now.depth,
  }
end

-- For the progress line.
function stream.text(row)
  local hidden = row.stream_hidden and (", %.0f %% hidden"):format(100 * row.stream_hidden) or ""
  return "streamed " .. progress.bytes(row.stream_bytes) .. hidden
end

return stream
