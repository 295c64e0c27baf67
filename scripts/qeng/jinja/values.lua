-- Python's values as a template sees them: Lua strings, booleans, numbers (numbers.lua), and tables marked with their
-- kind. No value changes once it is made, except the names of a namespace.
--
--   list, tuple, range, view   the items, 1 .. n
--   generator                  the items, until it is walked through
--   dict                       {keys = in order, map = by key}
--   namespace, loop            {map = by name}
--   function                   {name =, call = of (arguments, named)}
--   none; undefined            {name =}
--   markup                     {text}: from the filter "safe"; it escapes what is added to it

local limits = require "qeng.jinja.limits"
local numbers = require "qeng.jinja.numbers"
local q = require "qeng.core"
local strings = require "qeng.jinja.strings"

local values = {}

local fail = limits.fail

local metas = {}
for kind in ("list tuple range view generator dict namespace loop function none undefined markup"):gmatch "%a+" do
  metas[kind] = { kind = kind }
end

local none = setmetatable({}, metas.none)
values.none = none

function values.list(t) return setmetatable(t, metas.list) end
function values.tuple(t) return setmetatable(t, metas.tuple) end
function values.generator(t) return setmetatable(t, metas.generator) end
-- name: what Python prints the view as.
function values.view(t, name) t.name = name; return setmetatable(t, metas.view) end
function values.range(t, name) t.name = name; return setmetatable(t, metas.range) end
function values.object(kind, map) return setmetatable({ map = map }, metas[kind]) end
function values.undefined(name) return setmetatable({ name = name }, metas.undefined) end
-- call: a function of the arguments (n of them) and the named ones.
function values.callable(name, call) return setmetatable({ name = name, call = call }, metas["function"]) end

function values.markup(text) return setmetatable({ text }, metas.markup) end
function values.is_markup(v) return getmetatable(v) == metas.markup end
-- A markup's text; any other value itself.
function values.plain(v) return getmetatable(v) == metas.markup and v[1] or v end

function values.is_undefined(v) return getmetatable(v) == metas.undefined end

-- Python's name of a value's type, or the kind of a table of this file.
function values.kind(v)
  local kind = type(v)
  if kind == "string" then return "str" end
  if kind == "number" then return v == math.floor(v) and "int" or "float" end
  if kind == "boolean" then return "bool" end
  return getmetatable(v).kind
end
local kind_of = values.kind

local sequences = { list = true, tuple = true, range = true }
function values.is_sequence(v) return type(v) == "table" and sequences[getmetatable(v).kind] == true end
function values.is_dict(v) return getmetatable(v) == metas.dict end

-- ---------------------------------------------------------------- dicts

-- A key as it stands in the map. Equal numbers are one key.
local function key_of(v)
  if type(v) ~= "table" then return v end
  local number = numbers.value(v)
  if number then return number end
  -- An undefined value is the key of nothing.
  if v == none or values.is_undefined(v) or kind_of(v) == "tuple" then return v end
  fail("a %s as the key of a dict", kind_of(v))
end

function values.dict(keys, map) return setmetatable({ keys = keys, map = map }, metas.dict) end
function values.get(dict, key) return dict.map[key_of(key)] end

-- A dict of pairs {key, value}. A key that comes twice keeps its place.
function values.dict_of(pairs_of)
  local dict = values.dict({}, {})
  for _, pair in ipairs(pairs_of) do
    if kind_of(pair[1]) == "tuple" then fail "a tuple as the key of a dict" end
    local key = key_of(pair[1])
    if dict.map[key] == nil then dict.keys[#dict.keys + 1] = pair[1] end
    dict.map[key] = pair[2]
  end
  return dict
end

function values.items_of(dict)
  limits.look(#dict.keys)
  local out = {}
  for i, key in ipairs(dict.keys) do out[i] = values.tuple { key, values.get(dict, key) } end
  return out
end

-- ---------------------------------------------------------------- what holds for values of every kind

function values.truth(v)
  if v == nil or v == false or v == 0 or v == "" then return false end
  if type(v) ~= "table" then return true end
  local kind = getmetatable(v).kind
  if kind == "none" or kind == "undefined" then return false end
  if kind == "float" then return v[1] ~= 0 end
  if kind == "markup" then return v[1] ~= "" end
  if kind == "dict" then return v.keys[1] ~= nil end
  if sequences[kind] or kind == "view" then return v[1] ~= nil end
  return true
end

function values.length(v)
  local kind = kind_of(v)
  if kind == "str" then return strings.length(v) end
  if kind == "dict" then return #v.keys end
  if sequences[kind] or kind == "view" then return #v end
  if kind == "undefined" then return 0 end
  fail("a %s has no length", kind)
end

-- The items of a value, 1 .. n. A generator is empty afterwards.
function values.iterate(v)
  local kind = kind_of(v)
  if sequences[kind] or kind == "view" then return v end
  if kind == "dict" then return v.keys end
  if kind == "str" then return strings.characters(v) end
  if kind == "undefined" then return {} end
  if kind ~= "generator" then fail("a %s is not iterable", kind) end
  local items = {}
  for i = 1, #v do items[i], v[i] = v[i], nil end
  return items
end

-- The items of a list in a table of their own.
function values.copied(items)
  limits.look(#items / 10)
  local out = {}
  for i = 1, #items do out[i] = items[i] end
  return out
end

local function same_items(a, b, equal)
  if #a ~= #b then return false end
  limits.look(#a)
  for i = 1, #a do if not equal(a[i], b[i]) then return false end end
  return true
end

function values.equal(a, b)
  a, b = values.plain(a), values.plain(b)
  if rawequal(a, b) then return a == a end
  if numbers.value(a) then return numbers.value(b) ~= nil and numbers.equal(a, b) end
  if type(a) ~= "table" or type(b) ~= "table" then return false end
  local kind = kind_of(a)
  if kind ~= kind_of(b) then return false end
  if kind == "undefined" then return true end
  if sequences[kind] then return same_items(a, b, values.equal) end
  if kind ~= "dict" or #a.keys ~= #b.keys then return false end
  limits.look(#a.keys)
  for _, key in ipairs(a.keys) do
    local other = values.get(b, key)
    if other == nil or not values.equal(values.get(a, key), other) then return false end
  end
  return true
end

-- Whether a < b. Values without an order are an error.
function values.less(a, b)
  if type(a) == "string" and type(b) == "string" then return a < b end
  if numbers.value(a) and numbers.value(b) then return numbers.less(a, b) end
  local kind = kind_of(a)
  if (kind ~= "list" and kind ~= "tuple") or kind ~= kind_of(b) then
    fail("a %s and a %s have no order", kind, kind_of(b))
  end
  limits.look(math.min(#a, #b))
  for i = 1, math.min(#a, #b) do if not values.equal(a[i], b[i]) then return values.less(a[i], b[i]) end end
  return #a < #b
end

values.order = {
  ["<"] = values.less,
  [">"] = function(a, b) return values.less(b, a) end,
  ["<="] = function(a, b) return values.less(a, b) or (values.equal(a, b)) end,
  [">="] = function(a, b) return values.less(b, a) or (values.equal(a, b)) end,
}

function values.contains(where, v)
  where, v = values.plain(where), values.plain(v)
  local kind = kind_of(where)
  if kind == "str" then
    if type(v) ~= "string" then fail("a %s is looked for in a string", kind_of(v)) end
    return where:find(v, 1, true) ~= nil
  end
  if kind == "dict" then return values.get(where, v) ~= nil end
  local items = values.iterate(where)
  local at = 1
  while at <= #items and not values.equal(items[at], v) do at = at + 1 end
  limits.look(at)
  return at <= #items
end

-- ---------------------------------------------------------------- from Lua

-- A Lua value as a template's. q.json.null is none. Tables with items 1 .. n, and those marked as JSON arrays, are
-- lists. Other tables are dicts, in the order of __keys, which decoded JSON has, else sorted. A template's value
-- stays. change(text, is_key), if given, is called for every text.
function values.from_lua(v, change)
  if v == nil or v == q.json.null then return none end
  if type(v) == "string" then return change and change(v) or v end
  if type(v) == "number" then return v == math.floor(v) and math.abs(v) > 2 ^ 53 and numbers.float(v) or v end
  if type(v) == "function" then
    return values.callable("function", function(arguments)
      return values.from_lua(v(unpack(arguments, 1, #arguments)), change)
    end)
  end
  if type(v) ~= "table" then return v end
  local meta = getmetatable(v)
  if meta and meta.kind then return v end
  if meta and meta.json_number then return v.digits and numbers.digits(v.digits) or numbers.float(v.value) end
  local keys = meta and meta.__keys
  if not keys and (v[1] ~= nil or (meta and next(v) == nil)) then
    local list = {}
    for i, item in ipairs(v) do list[i] = values.from_lua(item, change) end
    return values.list(list)
  end
  local order, known = {}, {}
  for _, key in ipairs(keys or {}) do
    if v[key] ~= nil then order[#order + 1] = key end
    known[key] = true
  end
  local others = {}
  for key in pairs(v) do if not known[key] then others[#others + 1] = key end end
  table.sort(others, function(a, b) return tostring(a) < tostring(b) end)
  for _, key in ipairs(others) do order[#order + 1] = key end
  local map = {}
  for i, key in ipairs(order) do
    order[i] = change and type(key) == "string" and change(key, true) or key
    map[order[i]] = values.from_lua(v[key], change)
  end
  return values.dict(order, map)
end

return values
