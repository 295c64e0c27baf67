-- What the REPL (bindings/repl.cpp) needs of Lua: printing results and completing names. help() is in console/help.lua.
local help = require "qeng.console.help"
local core = require "qeng.core"
local paths = require "qeng.console.paths"
local prompt = require "qeng.console.prompt"

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

-- The names of a value's fields, and of those of its class; callable: only of functions.
local function fields(value, found, callable)
  if type(value) == "table" then
    for key, field in pairs(value) do
      if type(key) == "string" and (not callable or type(field) == "function") then found[key] = true end
    end
  end
  local meta = getmetatable(value)
  local index = type(meta) == "table" and (rawget(meta, "__methods") or rawget(meta, "__index"))
  if type(index) == "table" and index ~= value then fields(index, found, callable) end
end

-- What an expression of names, fields and constant indices stands for, as `model.parameters[1].tensor`. After a call it
-- is not known; most calls give tensors.
local function value_of(text)
  local keys, rest = {}, text
  while rest do
    local before, key = rest:match "^(.*)%.([%a_][%w_]*)$"
    if not before then before, key = rest:match "^(.*)%[[\"']([^\"']*)[\"']%]$" end
    if not before then
      before, key = rest:match "^(.*)%[(%d+)%]$"
      key = tonumber(key)
    end
    if key then table.insert(keys, 1, key) end
    text, rest = rest, before
  end
  if #keys == 0 and text:find "[)}]$" then return core.Tensor end
  local name = not text:find ":[%w_]*$" and text:match "[%a_][%w_]*$"
  local value = name and _G[name]
  for _, key in ipairs(keys) do
    local ok, found = pcall(function() return value[key] end)
    value = ok and found or nil
  end
  return value
end

-- The words that may stand for `word`, which follows `before` on its line: globals, fields, methods after a colon, and
-- files in a string.
function repl.complete(word, before)
  local line, words = (before or "") .. word, {}
  local quote, path = line:match "([\"'])([^\"']*)$"
  if quote and select(2, line:gsub(quote, "")) % 2 == 1 then
    for i, each in ipairs(paths(path)) do words[i] = word .. each:sub(#path + 1) end
    return words
  end
  local owner, separator, last = line:match "^(.-)([.:])([%w_]*)$"
  if not owner then last = line:match "[%w_]*$" end
  local value = _G
  if owner then value = value_of(owner) end
  local found = {}
  if value ~= nil then
    fields(value, found, separator == ":")
  end
  for key in pairs(found) do
    if key:sub(1, #last) == last and key:match "^[%a_][%w_]*$" and (last ~= "" or key:sub(1, 1) ~= "_") then
      words[#words + 1] = word:sub(1, #word - #last) .. key
    end
  end
  table.sort(words)
  return words
end

repl.run = prompt.run

function repl.install()
  _G.help = help
end

return repl
