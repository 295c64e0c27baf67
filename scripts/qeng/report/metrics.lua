-- metrics.jsonl: one JSON object a step. Resuming cuts off what came after the checkpoint, so each step stands there
-- once.

local q = require "qeng.core"

local metrics = {}

-- The rows of a file, in order. A killed run may leave a torn last line, which is left out.
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

-- Opens the file to append the steps after `step`.
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

-- JSON has no NaN: such a value becomes null.
local function clean(value)
  if type(value) == "number" and (value ~= value or math.abs(value) == math.huge) then return q.json.null end
  if type(value) ~= "table" then return value end
  local copy = {}
  for key, inner in pairs(value) do copy[key] = clean(inner) end
  return copy
end

function Log:add(row)
  self.file:write(q.json.encode(clean(row)), "\n")
  self.file:flush()
end

function Log:close()
  if self.file then self.file:close() end
  self.file = nil
end

return metrics
