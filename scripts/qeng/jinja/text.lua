-- Values as text: str, repr, and JSON as Python's json.dumps writes it.

local limits = require "qeng.jinja.limits"
local numbers = require "qeng.jinja.numbers"
local strings = require "qeng.jinja.strings"
local values = require "qeng.jinja.values"

local text = {}

local fail = limits.fail
local most_depth = 64

local function put_items(put, v, depth, write)
  for i, item in ipairs(v) do
    if i > 1 then put ", " end
    write(put, item, depth + 1)
  end
end

local write_repr

local around = {
  list = function(put, v, depth) put "["; put_items(put, v, depth, write_repr); put "]" end,
  tuple = function(put, v, depth) put "("; put_items(put, v, depth, write_repr); put(#v == 1 and ",)" or ")") end,
  view = function(put, v, depth) put(v.name .. "(["); put_items(put, v, depth, write_repr); put "])" end,
  range = function(put, v) put(v.name) end,
  dict = function(put, v, depth)
    put "{"
    for i, key in ipairs(v.keys) do
      if i > 1 then put ", " end
      write_repr(put, key, depth + 1)
      put ": "
      write_repr(put, values.get(v, key), depth + 1)
    end
    put "}"
  end,
  none = function(put) put "None" end,
  undefined = function(put) put "Undefined" end,
}

function write_repr(put, v, depth)
  v = values.plain(v)
  if depth > most_depth then fail "a value to be printed is nested too deeply" end
  if type(v) == "string" then return put(strings.quoted(v)) end
  if type(v) == "boolean" then return put(v and "True" or "False") end
  if numbers.value(v) then return put(numbers.text(v)) end
  local kind = values.kind(v)
  local write = around[kind] or fail("a %s cannot be printed", kind)
  write(put, v, depth)
end

function text.repr(v) return limits.collected(function(put) write_repr(put, v, 0) end) end

function text.str(v)
  v = values.plain(v)
  if type(v) == "string" then return v end
  if values.is_undefined(v) then return "" end
  return text.repr(v)
end

-- ---------------------------------------------------------------- JSON

local escapes = {
  ['"'] = '\\"', ["\\"] = "\\\\", ["\n"] = "\\n", ["\r"] = "\\r", ["\t"] = "\\t", ["\b"] = "\\b", ["\f"] = "\\f",
}

local function json_string(s, ascii)
  local found
  s, found = s:gsub('[%z\1-\31"\\]', function(c) return escapes[c] or ("\\u%04x"):format(c:byte()) end)
  limits.look(found)
  if not ascii then return '"' .. s .. '"' end
  return '"' .. s:gsub("[\194-\244][\128-\191]+", function(c)
    local code = c:byte() % (#c == 2 and 32 or #c == 3 and 16 or 8)
    for i = 2, #c do code = code * 64 + c:byte(i) % 64 end
    if code < 0x10000 then return ("\\u%04x"):format(code) end
    return ("\\u%04x\\u%04x"):format(0xd800 + math.floor((code - 0x10000) / 0x400), 0xdc00 + code % 0x400)
  end) .. '"'
end

local function json_number(v)
  local written = numbers.text(v)
  return ({ nan = "NaN", inf = "Infinity", ["-inf"] = "-Infinity" })[written] or written
end

local function json_key(v)
  if type(v) == "string" then return v end
  if type(v) == "boolean" then return v and "true" or "false" end
  if v == values.none then return "null" end
  return json_number(v)
end

-- opt: indent (text for each level), comma, colon, sort, ascii.
local function write_json(put, v, opt, depth)
  v = values.plain(v)
  if depth > most_depth then fail "tojson: nested too deeply" end
  if v == values.none then return put "null" end
  if type(v) == "boolean" then return put(v and "true" or "false") end
  if numbers.value(v) then return put(json_number(v)) end
  if type(v) == "string" then return put(json_string(v, opt.ascii)) end
  local dict = values.is_dict(v)
  if not dict and not values.is_sequence(v) or values.kind(v) == "range" then
    fail("tojson: a %s has no JSON", values.kind(v))
  end
  local items = dict and v.keys or v
  if dict and opt.sort then
    items = values.copied(items)
    table.sort(items, values.less)
  end
  local function newline(levels)
    if not opt.indent then return end
    put("\n" .. strings.times(opt.indent, levels))
  end
  put(dict and "{" or "[")
  for i, item in ipairs(items) do
    if i > 1 then put(opt.comma) end
    newline(depth + 1)
    if dict then
      put(json_string(json_key(item), opt.ascii) .. opt.colon)
      item = values.get(v, item)
    end
    write_json(put, item, opt, depth + 1)
  end
  if items[1] ~= nil then newline(depth) end
  put(dict and "}" or "]")
end

-- indent: text, or a number of spaces, for each level; separators: a tuple of two.
function text.json(v, ascii, indent, separators, sort)
  local width
  if indent ~= nil and indent ~= values.none then
    local spaces = numbers.value(indent)
    width = (spaces and strings.times(" ", spaces) or indent) or nil
  end
  local pair = separators ~= nil and separators ~= values.none and separators or { width and "," or ", ", ": " }
  local opt = {
    indent = width, comma = pair[1], colon = pair[2], sort = values.truth(sort), ascii = values.truth(ascii),
  }
  return limits.collected(function(put) write_json(put, v, opt, 0) end)
end

return text
