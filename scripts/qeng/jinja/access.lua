-- What stands after a dot or in brackets: items, attributes, slices, and the methods of values.

local calls = require "qeng.jinja.calls"
local formatting = require "qeng.jinja.formatting"
local limits = require "qeng.jinja.limits"
local numbers = require "qeng.jinja.numbers"
local q = require "qeng.core"
local strings = require "qeng.jinja.strings"
local text = require "qeng.jinja.text"
local values = require "qeng.jinja.values"

local access = {}

local fail = limits.fail
local list, tuple = values.list, values.tuple
local function given(v) return v ~= values.none and v or nil end  -- None is an argument that is left out
local function number(v)
  return given(v) and (numbers.value(v) or fail("a %s is given for a number", values.kind(v)))
end
local function want(v) return type(v) == "string" and v or fail("a %s is given for a string", values.kind(v)) end
local function want_chars(v) return given(v) and want(v) end

-- ---------------------------------------------------------------- methods: by kind, functions (v, arguments, named)

local methods = { str = {}, list = {}, tuple = {}, dict = {}, loop = {} }

local function define(kind, name, parameters, fn) methods[kind][name] = calls.of_value(name, parameters, fn) end

for name, sides in pairs { strip = { true, true }, lstrip = { true, false }, rstrip = { false, true } } do
  define("str", name, "chars", function(s, chars) return strings.strip(s, want_chars(chars), sides[1], sides[2]) end)
end
define("str", "split", "sep maxsplit", function(s, sep, most)
  return list(strings.split(s, want_chars(sep), number(most)))
end)
define("str", "rsplit", "sep maxsplit", function(s, sep, most)
  return list(strings.rsplit(s, want_chars(sep), number(most)))
end)
define("str", "splitlines", "keepends", function(s, ends) return list(strings.splitlines(s, values.truth(ends))) end)
define("str", "partition", "sep /", function(s, sep) return tuple(strings.partition(s, want(sep))) end)
define("str", "rpartition", "sep /", function(s, sep) return tuple(strings.partition(s, want(sep), true)) end)

-- Whether s begins, or ends, with a text or with one of a tuple.
local function with_end(name, fits)
  define("str", name, "prefix /", function(s, ends)
    if type(ends) == "string" then return fits(s, ends) end
    if values.kind(ends) ~= "tuple" then fail("%s needs a string or a tuple of them", name) end
    for _, one in ipairs(ends) do if fits(s, want(one)) then return true end end
    return false
  end)
end
with_end("startswith", function(s, prefix) return s:sub(1, #prefix) == prefix end)
with_end("endswith", function(s, suffix) return suffix == "" or s:sub(-#suffix) == suffix end)
define("str", "removeprefix", "prefix /", function(s, prefix)
  return prefix ~= "" and s:sub(1, #prefix) == want(prefix) and s:sub(#prefix + 1) or s
end)
define("str", "removesuffix", "suffix /", function(s, suffix)
  return suffix ~= "" and s:sub(-#suffix) == want(suffix) and s:sub(1, -#suffix - 1) or s
end)

for _, name in ipairs { "lower", "upper", "title", "capitalize" } do define("str", name, "", strings[name]) end
define("str", "casefold", "", strings.lower)
define("str", "replace", "old new / count", function(s, old, new, count)
  return strings.replace(s, want(old), want(new), number(count))
end)
define("str", "find", "sub /", function(s, sub) return strings.find(s, want(sub)) or -1 end)
define("str", "rfind", "sub /", function(s, sub) return strings.find(s, want(sub), true) or -1 end)
define("str", "index", "sub /", function(s, sub)
  return strings.find(s, want(sub)) or fail "index: not in the string"
end)
define("str", "rindex", "sub /", function(s, sub)
  return strings.find(s, want(sub), true) or fail "rindex: not in the string"
end)
define("str", "count", "sub /", function(s, sub) return strings.count(s, want(sub)) end)
define("str", "zfill", "width /", function(s, width)
  local sign = s:match "^[-+]" or ""
  return sign .. strings.padded(s:sub(#sign + 1), number(width) - #sign, "0", "right")
end)
for name, side in pairs { ljust = "left", rjust = "right", center = "center" } do
  define("str", name, "width / fillchar", function(s, width, fill)
    return strings.padded(s, number(width), fill and want(fill) or " ", side)
  end)
end
for _, class in ipairs { "alpha", "digit", "alnum", "space", "upper", "lower" } do
  define("str", "is" .. class, "", function(s) return q.unicode.is(s, class) end)
end
define("str", "join", "iterable /", function(s, items)
  return limits.collected(function(put)
    for i, item in ipairs(values.iterate(items)) do
      if i > 1 then put(s) end
      put(want(item))
    end
  end)
end)
methods.str.format = function(s, arguments, named) return formatting.format(s, arguments, named, access) end

local function index_of(v, wanted)
  limits.look(#v)
  for i, item in ipairs(v) do if values.equal(item, wanted) then return i - 1 end end
  fail "index: not in the list"
end
local function count_of(v, wanted)
  limits.look(#v)
  local count = 0
  for _, item in ipairs(v) do if values.equal(item, wanted) then count = count + 1 end end
  return count
end
for _, kind in ipairs { "list", "tuple" } do
  define(kind, "index", "value /", index_of)
  define(kind, "count", "value /", count_of)
end
define("list", "copy", "", function(v) return v end)
define("dict", "copy", "", function(v) return v end)
define("dict", "items", "", function(v) return values.view(values.items_of(v), "dict_items") end)
define("dict", "keys", "", function(v) return values.view(values.copied(v.keys), "dict_keys") end)
define("dict", "values", "", function(v)
  limits.look(#v.keys)
  local out = {}
  for i, key in ipairs(v.keys) do out[i] = values.get(v, key) end
  return values.view(out, "dict_values")
end)
define("dict", "get", "key / default", function(v, key, default)
  local found = values.get(v, key)
  if found ~= nil then return found end
  return default == nil and values.none or default
end)

-- Methods that change a value are refused, as in the sandbox that transformers renders in.
local changing = {
  list = "append clear extend insert pop remove reverse sort", dict = "clear pop popitem setdefault update",
}
for kind, names in pairs(changing) do
  for name in names:gmatch "%a+" do
    methods[kind][name] = function() fail("'%s' changes a %s, which a template may not", name, kind) end
  end
end

define("loop", "cycle", "a b c d e f g h", function(loop, ...)
  local count = select("#", ...)
  while count > 0 and select(count, ...) == nil do count = count - 1 end
  if count == 0 then fail "cycle: nothing to choose from" end
  return (select(loop.map.index0 % count + 1, ...))
end)
define("loop", "changed", "a b c d", function(loop, ...)
  local now = tuple { ... }
  local before = loop.before
  loop.before = now
  return before == nil or not values.equal(before, now)
end)

-- A method as a value that can be called, or nil.
local function method(v, kind, name)
  local of_kind = methods[kind]
  local call = of_kind and of_kind[name]
  return call and values.callable(name, function(arguments, named) return call(v, arguments, named) end)
end

-- ---------------------------------------------------------------- v.name and v[key]

local function check(v, name)
  if not values.is_undefined(v) then return end
  fail("'%s' of %s, which is undefined", text.str(name), v.name and "'" .. tostring(v.name) .. "'" or "a value")
end

local function own(v, kind, name)
  if kind == "dict" then
    -- A list or a dict is the key of nothing.
    if values.is_dict(name) or type(name) == "table" and values.kind(name) == "list" then return nil end
    return values.get(v, name)
  end
  -- A recursive loop is a function with fields.
  if kind == "namespace" or kind == "loop" or kind == "function" and v.map then return v.map[name] end
end

-- v.name. A method goes before a key of its name (t.items() of a schema with a key "items"). Undefined if there is
-- neither.
function access.attribute(v, name)
  check(v, name)
  local kind = values.kind(v)
  local found = method(v, kind, name)
  if found == nil then found = own(v, kind, name) end
  if found == nil then return values.undefined(name) end
  return found
end

-- v[key]. A key goes before a method of its name.
function access.item(v, key)
  check(v, key)
  local kind = values.kind(v)
  local at = type(key) ~= "string" and not numbers.is_float(key) and numbers.value(key) or nil
  local found
  if at and (values.is_sequence(v) or kind == "str") then
    local items = kind == "str" and not v:find "[\128-\255]" and #v or kind == "str" and strings.characters(v) or v
    local count = type(items) == "number" and items or #items
    local place = at < 0 and count + 1 + at or at + 1
    if place >= 1 and place <= count then found = type(items) == "number" and v:sub(place, place) or items[place] end
  elseif kind ~= "loop" then
    found = own(v, kind, key)
  end
  if found == nil and type(key) == "string" then
    found = method(v, kind, key) or kind == "loop" and v.map[key] or nil
  end
  if found == nil then return values.undefined(key) end
  return found
end

-- v[from:to:step] by Python's rules. A part that is left out is nil.
function access.slice(v, from, to, step)
  check(v, "a slice")
  from, to, step = number(from), number(to), number(step) or 1
  if step == 0 then fail "a slice needs a step other than 0" end
  local kind = values.kind(v)
  if kind ~= "str" and not values.is_sequence(v) then fail("a slice of a %s", kind) end
  local items = kind == "str" and strings.characters(v) or v
  local n = #items
  local function place(i, default)
    if i == nil then return default end
    if i < 0 then i = i + n end
    return math.max(step < 0 and -1 or 0, math.min(i, step < 0 and n - 1 or n))
  end
  local out = {}
  local first = place(from, step < 0 and n - 1 or 0)
  local last = place(to, step < 0 and -1 or n) + (step > 0 and -1 or 1)
  for i = first, last, step do out[#out + 1] = items[i + 1] end
  limits.look(#out)
  if kind == "str" then return table.concat(out) end
  return kind == "tuple" and tuple(out) or list(out)
end

return access
