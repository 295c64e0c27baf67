-- What a route takes: the fields of a JSON body, each checked, and nothing else.
--
--   local opt = fields.read(body, {
--     { "messages", "array", required = true },
--     { "temperature", "number", min = 0, max = 2, default = 1 },
--     { "stream_options", "object", fields = { { "include_usage", "boolean" } } },
--     { "user", "string", unused = true },                       -- says nothing about the answer
--     { "store", "boolean", only = false },                      -- another value would change what is done
--     { "modalities", "array", each = { "text" } },              -- what its items may be
--   })
--
-- null counts as absent. A field that is not in the list is refused: a setting that is not heeded would change the
-- answer unseen.

local problem = require "qeng.server.problem"
local q = require "qeng.core"

local fields = {}

local array = getmetatable(q.json.array {})

-- The name of a JSON value's type.
function fields.type_of(value)
  if value == q.json.null then return "null" end
  if type(value) ~= "table" then return type(value) end
  return getmetatable(value) == array and "array" or "object"
end

local function fits(kind, value)
  local found = fields.type_of(value)
  if kind == "integer" then return found == "number" and value == math.floor(value) end
  return kind == "any" or found == kind
end

local function bad(name, text) problem.raise(400, ("Invalid value for '%s': %s."):format(name, text), name) end

-- kind: a type's name, or several with "or" between them.
local function check_type(name, kind, value)
  for one in kind:gmatch "[^|]+" do
    if fits(one, value) then return end
  end
  problem.raise(400, ("Invalid type for '%s': expected %s, but got %s instead."):format(name,
    (kind:gsub("|", " or ")), fields.type_of(value)), name, "invalid_type")
end

local check_value
function check_value(name, entry, value)
  check_type(name, entry[2], value)
  if type(value) == "number" and (entry.min and value < entry.min or entry.max and value > entry.max) then
    bad(name, ("%.15g, expected %s"):format(value, entry.min and entry.max
      and ("%.15g to %.15g"):format(entry.min, entry.max) or entry.min and ("at least %.15g"):format(entry.min)
      or ("at most %.15g"):format(entry.max)))
  end
  if entry.most and type(value) == "table" and #value > entry.most then
    bad(name, ("%d items, expected at most %d"):format(#value, entry.most))
  end
  if entry.each then
    local item = { nil, "any", choices = entry.each }
    for i, one in ipairs(value) do check_value(("%s[%d]"):format(name, i - 1), item, one) end
  end
  local allowed = entry.only ~= nil and { entry.only } or entry.choices
  if not allowed then return end
  for _, one in ipairs(allowed) do
    if value == one then return end
  end
  local names = {}
  for i, one in ipairs(allowed) do names[i] = tostring(one) end
  bad(name, ("%s is not supported here, only %s"):format(tostring(value):sub(1, 100), table.concat(names, ", ")))
end

-- The values of an object by name, with defaults. where: the object's own name, for errors.
function fields.read(object, list, where)
  if fields.type_of(object) ~= "object" then
    problem.raise(400, ("%s: expected a JSON object, got %s"):format(where or "the body", fields.type_of(object)),
      where)
  end
  local known, found = {}, {}
  for _, entry in ipairs(list) do known[entry[1]] = true end
  for name in pairs(object) do
    if not known[name] then
      local full = where and where .. "." .. tostring(name) or tostring(name)
      problem.raise(400, "Unrecognized request argument supplied: " .. full, full, "unknown_parameter")
    end
  end
  for _, entry in ipairs(list) do
    local name, value = entry[1], object[entry[1]]
    local full = where and where .. "." .. name or name
    if value == q.json.null then value = nil end
    if value == nil and entry.required then
      problem.raise(400, ("Missing required parameter: '%s'."):format(full), full, "missing_required_parameter")
    end
    if value ~= nil then
      check_value(full, entry, value)
      if entry.fields then value = fields.read(value, entry.fields, full) end
    end
    if value == nil then value = entry.default end
    if not entry.unused then found[name] = value end
  end
  return found
end

return fields
