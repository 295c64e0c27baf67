-- When the operations of a training step ran, and what was exchanged with other ranks meanwhile: a file of trace
-- events, which chrome://tracing and ui.perfetto.dev show. Rank 0 writes its own.
--
-- It is of the third step that is computed, when the pass has been captured and memory has been touched (of the last
-- where there are fewer). Operations are waited for one by one, so a GPU takes longer than in other steps.

local q = require "qeng.core"

local Timeline = {}
Timeline.__index = Timeline

local timeline = {}

local shown = 3

-- path: nil or "" writes nothing. passes: of train/pass.lua.
function timeline.new(path, run, passes)
  return setmetatable({ path = path, passes = passes, left = path and path ~= "" and run.ranks.first and shown or 0 },
    Timeline)
end

-- Runs compute(), which is a step.
function Timeline:step(compute)
  if self.left == 0 then return compute() end
  self.passes:trace(true)
  self.operations = q.timeline(compute)
end

-- After Pass:exchanged.
function Timeline:write()
  if self.left == 0 then return end
  self.left = self.left - 1
  local events, begin = {}, math.huge
  local lanes = { { "operations", self.operations }, { "exchange", self.passes.jobs },
    { "waiting", self.passes.waits } }
  for _, lane in ipairs(lanes) do
    for _, span in ipairs(lane[2] or {}) do begin = math.min(begin, span.begin) end
  end
  for thread, lane in ipairs(lanes) do
    if lane[2] and #lane[2] > 0 then
      events[#events + 1] = { name = "thread_name", ph = "M", pid = 0, tid = thread, args = { name = lane[1] } }
    end
    for _, span in ipairs(lane[2] or {}) do
      events[#events + 1] = { name = span.name, cat = lane[1], ph = "X", pid = 0, tid = thread,
        ts = 1e6 * (span.begin - begin), dur = 1e6 * span.seconds, args = { block = span.block or "" } }
    end
  end
  q.fs.write(self.path, q.json.encode { traceEvents = events, displayTimeUnit = "ms" } .. "\n")
  self.passes:trace(false)
end

return timeline
