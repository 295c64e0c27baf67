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

-- Text of which some bytes are no UTF-8 (an answer that ends within a character), with U+FFFD in their place.
local function readable(text)
  if pcall(q.json.encode, text) then return text end
  local parts, at = {}, 1
  while at <= #text do
    local length = text:byte(at) < 0xc0 and 1 or text:byte(at) < 0xe0 and 2 or text:byte(at) < 0xf0 and 3 or 4
    local part = text:sub(at, at + length - 1)
    local fine = #part == length and pcall(q.json.encode, part)
    parts[#parts + 1] = fine and part or "\239\191\189"
    at = at + (fine and length or 1)
  end
  return table.concat(parts)
end

-- JSON has no NaN: such a value becomes null.
local function clean(value)
  if type(value) == "string" then return readable(value) end
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
