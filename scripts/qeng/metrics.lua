-- metrics.jsonl: one JSON object a step. Resuming cuts off what came after the checkpoint, so each step stands there once.

local q = require "qeng.core"

local metrics = {}

-- The rows of a file, in order; a torn last line (a killed run) is left out.
function metrics.read(path)
  local rows = {}
  if q.fs.kind(path) ~= "file" then return rows end
  for line in q.fs.read(path):gmatch("[^\n]+") do
    local ok, row = pcall(q.json.decode, line)
    if ok and type(row) == "table" then rows[#rows + 1] = row end
  end
  return rows
end

local Log = {}
Log.__index = Log

-- Opens for appending after `step`.
function metrics.open(path, step)
  local kept = {}
  if step > 0 then
    for _, row in ipairs(metrics.read(path)) do
      if row.step and row.step <= step then kept[#kept + 1] = q.json.encode(row) end
    end
  end
  q.fs.write(path, #kept > 0 and table.concat(kept, "\n") .. "\n" or "")
  local file, why = io.open(path, "a")
  if not file then q.error("io", path .. ": " .. why) end
  return setmetatable({ file = file }, Log)
end

-- JSON has no NaN: such a value is written as null.
function Log:add(row)
  local clean = {}
  for key, value in pairs(row) do
    if type(value) == "number" and (value ~= value or math.abs(value) == math.huge) then value = q.json.null end
    clean[key] = value
  end
  self.file:write(q.json.encode(clean), "\n")
  self.file:flush()
end

function Log:close()
  if self.file then self.file:close() end
  self.file = nil
end

return metrics
