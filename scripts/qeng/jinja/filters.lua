-- Jinja's filters, without those for web pages: functions (v, arguments, named, words). words: the template's
-- operations.

local calls = require "qeng.jinja.calls"
local formatting = require "qeng.jinja.formatting"
local limits = require "qeng.jinja.limits"
local numbers = require "qeng.jinja.numbers"
local q = require "qeng.core"
local strings = require "qeng.jinja.strings"
local text = require "qeng.jinja.text"
local values = require "qeng.jinja.values"

local filters = {}

local fail = limits.fail
local list, generator = values.list, values.generator
local function given(v) if v ~= values.none then return v end end
local function number(v)
  v = given(v)
  return v and (numbers.value(v) or fail("a %s is given for a number", values.kind(v)))
end

-- The items of a value, for a filter that goes through all of them.
local function iterate(v)
  local items = values.iterate(v)
  limits.look(#items * 5)  -- each is given to a function
  return items
end
-- An item of them. Long text counts by its length.
local function looked_at(item)
  if type(item) == "string" and #item > 500 then limits.look(#item / 10) end
  return item
end

local function define(names, parameters, fn)
  for name in names:gmatch "%S+" do filters[name] = calls.of_value(name, parameters, fn) end
end

-- ---------------------------------------------------------------- texts

for _, name in ipairs { "lower", "upper", "capitalize" } do
  define(name, "", function(v) return strings[name](text.str(v)) end)
end
define("string", "", text.str)
define("safe", "", function(v) return values.markup(text.str(v)) end)
define("trim", "chars", function(v, chars) return strings.strip(text.str(v), given(chars), true, true) end)
define("replace", "old new / count", function(v, old, new, count)
  return strings.replace(text.str(v), text.str(old), text.str(new), number(count))
end)
define("center", "width", function(v, width) return strings.padded(text.str(v), number(width) or 80, " ", "center") end)
define("title", "", function(v)
  local begins, out = true, {}
  v = text.str(v)
  limits.look(#v * 20)  -- each character is a text of its own
  for i, c in ipairs(strings.characters(v)) do
    out[i] = begins and strings.upper(c) or strings.lower(c)
    begins = c:find "^[-({%[<]" ~= nil or strings.strip(c, nil, true, true) == ""
  end
  return table.concat(out)
end)
define("indent", "width first blank", function(v, width, first, blank)
  local pad = type(width) == "string" and width or strings.times(" ", number(width) or 4)
  if type(v) ~= "string" then fail("indent of a %s", values.kind(v)) end
  local lines = strings.splitlines(v .. "\n")
  return limits.collected(function(put)
    for i, line in ipairs(lines) do
      if i > 1 then put "\n" end
      if i == 1 and values.truth(first) or i > 1 and (line ~= "" or values.truth(blank)) then put(pad) end
      put(line)
    end
  end)
end)
define("tojson", "ensure_ascii indent separators sort_keys", text.json)
define("from_json", "", function(v)
  limits.look(type(v) == "string" and #v or 0)
  return values.from_lua(q.json.decode(v, { ordered = true, exact = true }))
end)
function filters.format(v, arguments, named)
  if next(named) then return formatting.percent(text.str(v), values.from_lua(named)) end
  return formatting.percent(text.str(v), values.tuple(arguments))
end

-- ---------------------------------------------------------------- numbers

define("abs", "", function(v)
  local x = numbers.value(v) or fail("abs of a %s", values.kind(v))
  if numbers.is_float(v) then return numbers.float(math.abs(x)) end
  return x < 0 and numbers.negative(v) or numbers.truncated(v)
end)
define("int", "default base", function(v, default, base)
  if values.is_undefined(v) then fail "int of an undefined value" end
  if default == nil then default = 0 end
  if type(v) == "string" then
    base = number(base) or 10
    local whole
    if base == 10 then whole = numbers.int_of_text(v)
    else whole = tonumber(strings.strip(v, nil, true, true), base) end
    if whole then return whole end
    v = numbers.float_of_text(v)
  end
  local x = v ~= nil and numbers.value(v)
  if not x or x ~= x or math.abs(x) == math.huge then return default end
  return numbers.truncated(v)
end)
define("float", "default", function(v, default)
  if values.is_undefined(v) then fail "float of an undefined value" end
  if default == nil then default = numbers.float(0) end
  if type(v) == "string" then v = numbers.float_of_text(v) end
  local x = v ~= nil and numbers.value(v)
  if not x then return default end
  return numbers.float(x)
end)
define("round", "precision method", function(v, precision, method)
  local x = numbers.value(v) or fail("round of a %s", values.kind(v))
  precision = number(precision) or 0
  if method == nil or method == "common" then
    local rounded = numbers.rounded(x, precision)
    return numbers.is_float(v) and numbers.float(rounded) or numbers.int(rounded)
  end
  if method ~= "ceil" and method ~= "floor" then fail "round: the method is common, ceil or floor" end
  return numbers.float((method == "ceil" and math.ceil or math.floor)(x * 10 ^ precision) / 10 ^ precision)
end)

-- ---------------------------------------------------------------- attributes of items, and orders

-- A function from an item to its attribute "a.b", by words, or to the item itself. lowered: in lower case.
local function getter(words, attribute, lowered, default)
  local path = {}
  if type(attribute) == "string" then
    for part in (attribute .. "."):gmatch "(.-)%." do path[#path + 1] = tonumber(part) or part end
  elseif given(attribute) ~= nil then
    path[1] = attribute
  end
  return function(item)
    for _, part in ipairs(path) do
      item = words.item(item, part)
      if default ~= nil and values.is_undefined(item) then item = default end
    end
    looked_at(item)
    return lowered and type(item) == "string" and strings.lower(item) or item
  end
end

-- Filters that look at items' attributes get the words too: fn(v, words, ...).
local function define_with_words(name, parameters, fn)
  local call = calls.of_value(name, parameters, function(both, ...) return fn(both[1], both[2], ...) end)
  filters[name] = function(v, arguments, named, words) return call({ v, words }, arguments, named) end
end

-- Items in order of key(item). Equal ones keep their order.
local function sorted(items, key, reverse)
  limits.look(#items * 40)  -- comparisons
  local order = {}
  for i, item in ipairs(items) do order[i] = { key(item), i, item } end
  table.sort(order, function(a, b)
    if rawequal(a, b) then return false end
    if values.less(a[1], b[1]) then return not reverse end
    if values.less(b[1], a[1]) then return reverse end
    return a[2] < b[2]
  end)
  for i, entry in ipairs(order) do order[i] = entry[3] end
  return order
end

define_with_words("sort", "reverse case_sensitive attribute", function(v, words, reverse, case, attribute)
  return list(sorted(iterate(v), getter(words, attribute, not values.truth(case)), values.truth(reverse)))
end)
define_with_words("dictsort", "case_sensitive by reverse", function(v, words, case, by, reverse)
  if not values.is_dict(v) then fail("dictsort of a %s", values.kind(v)) end
  local key = getter(words, by == "value" and 1 or 0, not values.truth(case))
  return list(sorted(values.items_of(v), key, values.truth(reverse)))
end)
for name, sign in pairs { min = false, max = true } do
  define_with_words(name, "case_sensitive attribute", function(v, words, case, attribute)
    local key, best = getter(words, attribute, not values.truth(case)), nil
    for _, item in ipairs(iterate(v)) do
      local a, b = key(item), best ~= nil and key(best)
      if best == nil or (sign and values.less(b, a)) or (not sign and values.less(a, b)) then best = item end
    end
    return best == nil and values.undefined(name) or best
  end)
end
define_with_words("unique", "case_sensitive attribute", function(v, words, case, attribute)
  local key, seen, out = getter(words, attribute, not values.truth(case)), {}, {}
  for _, item in ipairs(iterate(v)) do
    local k = key(item)
    if type(k) == "table" and (values.is_dict(k) or values.kind(k) == "list") then
      fail("unique of a %s", values.kind(k))
    end
    if not values.contains(list(seen), k) then seen[#seen + 1] = k; out[#out + 1] = item end
  end
  return generator(out)
end)
define_with_words("sum", "attribute start", function(v, words, attribute, start)
  local key, total = getter(words, attribute), start == nil and 0 or start
  for _, item in ipairs(iterate(v)) do total = looked_at(words.binary("+", total, key(item))) end
  return total
end)
define_with_words("join", "d attribute", function(v, words, separator, attribute)
  local key = getter(words, attribute)
  separator = separator == nil and "" or words.text(separator)
  return limits.collected(function(put)
    for i, item in ipairs(iterate(v)) do
      if i > 1 then put(separator) end
      put(words.text(key(item)))
    end
  end)
end)
define_with_words("attr", "name /", function(v, words, name) return words.attribute(v, name) end)

function filters.map(v, arguments, named, words)
  local out = {}
  if not words.truth(v) then return generator {} end
  if #arguments == 0 then
    local key = getter(words, named.attribute, false, named.default)
    for i, item in ipairs(iterate(v)) do out[i] = key(item) end
    return generator(out)
  end
  local filter = words.filters[arguments[1]] or fail("filter '%s' is not known", tostring(arguments[1]))
  local rest = { unpack(arguments, 2) }
  for i, item in ipairs(iterate(v)) do out[i] = filter(looked_at(item), rest, named, words) end
  return generator(out)
end

-- Items that pass a test, or do not; without a test, those that are true. by_attribute: an attribute is tested.
local function selection(keep, by_attribute)
  return function(v, arguments, named, words)
    if not words.truth(v) then return generator {} end
    local first = by_attribute and 2 or 1
    local key, name = getter(words, by_attribute and arguments[1] or nil), arguments[first]
    local test = name ~= nil and (words.tests[name] or fail("test '%s' is not known", tostring(name)))
    local rest, out = { unpack(arguments, first + 1) }, {}
    for _, item in ipairs(iterate(v)) do
      local passed
      if test then passed = test(key(item), rest, named) else passed = words.truth(key(item)) end
      if passed == keep then out[#out + 1] = item end
    end
    return generator(out)
  end
end
filters.select, filters.reject = selection(true, false), selection(false, false)
filters.selectattr, filters.rejectattr = selection(true, true), selection(false, true)

-- ---------------------------------------------------------------- collections

define("length count", "", values.length)
define("list", "", function(v) return list(values.copied(values.iterate(v))) end)
define("first", "", function(v)
  local item = values.iterate(v)[1]
  return item == nil and values.undefined "first" or item
end)
define("last", "", function(v)
  if values.kind(v) == "generator" then fail "last of a generator: make it a list" end
  local items = values.iterate(v)
  return #items == 0 and values.undefined "last" or items[#items]
end)
define("reverse", "", function(v)
  local items, back = iterate(v), {}
  for i = #items, 1, -1 do back[#back + 1] = items[i] end
  return type(v) == "string" and table.concat(back) or generator(back)
end)
define("items", "", function(v)
  if values.is_undefined(v) then return generator {} end
  if not values.is_dict(v) then fail("items of a %s", values.kind(v)) end
  return generator(values.items_of(v))
end)
define("default d", "default_value boolean", function(v, other, falsy)
  local replaced = values.is_undefined(v) or falsy ~= nil and values.truth(falsy) and not values.truth(v)
  if replaced then return other == nil and "" or other end
  return v
end)

return filters
