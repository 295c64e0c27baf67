-- What the REPL (bindings/repl.cpp) needs of Lua: printing results and completing names. help() is in console/help.lua.
local help = require "qeng.console.help"
local core = require "qeng.core"

local repl = {}

local kDepth, kItems, kLines = 4, 40, 60 -- what fits a screen

local function key_text(key)
  if type(key) == "string" and key:match "^[%a_][%w_]*$" then return key end
  return "[" .. (type(key) == "string" and string.format("%q", key) or tostring(key)) .. "]"
end

local function compare(a, b)
  if type(a) == type(b) and (type(a) == "number" or type(a) == "string") then return a < b end
  if type(a) ~= type(b) then return type(a) < type(b) end
  return tostring(a) < tostring(b)
end

-- Any value as text. Tables show their fields (with limits on depth and width, cycles named), tensors their values.
function repl.text(value, width, depth, open)
  width, depth, open = width or core.host.columns(), depth or 0, open or {}
  local meta = getmetatable(value)
  if type(value) == "string" then
    if depth == 0 then return value end
    return (string.format("%q", value):gsub("\\\n", "\\n"))
  end
  if type(value) ~= "table" or (type(meta) == "table" and meta.__tostring) then
    local _, text = pcall(tostring, value)
    text = tostring(text)
    return depth == 0 and text or text:match "^[^\n]*"
  end
  if open[value] then return "<cycle>" end
  if depth == kDepth then return next(value) == nil and "{}" or "{...}" end

  open[value] = true
  local items, length = {}, #value
  local inner = width - 2
  for i = 1, math.min(length, kItems) do items[i] = repl.text(value[i], inner, depth + 1, open) end
  if length > kItems then items[#items + 1] = string.format("... %d more", length - kItems) end
  local keys = {}
  for key in pairs(value) do
    local listed = type(key) == "number" and key >= 1 and key <= length and key == math.floor(key)
    if not listed then keys[#keys + 1] = key end
  end
  table.sort(keys, compare)
  for i = 1, math.min(#keys, kItems) do
    items[#items + 1] = key_text(keys[i]) .. " = " .. repl.text(value[keys[i]], inner, depth + 1, open)
  end
  if #keys > kItems then items[#items + 1] = string.format("... %d more", #keys - kItems) end
  open[value] = nil

  local flat = table.concat(items, ", ")
  if #flat + 2 <= width and not flat:find "\n" then return "{" .. flat .. "}" end
  return "{\n  " .. table.concat(items, ",\n"):gsub("\n", "\n  ") .. "\n}"
end

-- The first kLines lines of a table's text. Its fields can be asked for one by one.
local function cut(text)
  local _, lines = text:gsub("\n", "")
  if lines < kLines then return text end
  local last = 0
  for _ = 1, kLines do last = text:find("\n", last + 1, true) end
  return text:sub(1, last) .. ("... %d more lines"):format(lines + 1 - kLines)
end

function repl.show(...)
  if select("#", ...) == 1 and select(1, ...) == nil then return end
  local parts = {}
  for i = 1, select("#", ...) do
    local value = select(i, ...)
    parts[i] = type(value) == "table" and cut(repl.text(value)) or repl.text(value)
  end
  print(table.concat(parts, "\t"))
  _G._ = (...)
end

local function fields(value, found)
  if type(value) == "table" then
    for key in pairs(value) do
      if type(key) == "string" then found[key] = true end
    end
  end
  local meta = getmetatable(value)
  local index = type(meta) == "table" and rawget(meta, "__index")
  if type(index) == "table" and index ~= value then fields(index, found) end
end

-- The names that may continue text: globals, fields, methods (also of userdata and strings).
function repl.complete(text)
  local path, last = text:match "^(.-)([%w_]*)$"
  local value = _G
  for name in path:gmatch "[%w_]+" do
    local ok, field = pcall(function() return value[name] end)
    if not ok or field == nil then return {} end
    value = field
  end
  local found, words = {}, {}
  fields(value, found)
  for key in pairs(found) do
    if key:sub(1, #last) == last and key:match "^[%a_]" then words[#words + 1] = path .. key end
  end
  table.sort(words)
  return words
end

function repl.install()
  _G.help = help
end

return repl
