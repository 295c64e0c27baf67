-- Chat templates: the subset of Jinja2 that models' templates use. A template is untrusted: it is parsed to closures over our
-- own values (never loaded as code), every step counts against a limit, output is bounded, and only the filters, tests and
-- methods listed here exist. Source: the Jinja2 template designer documentation (syntax and truth rules).
--
--   local template = jinja.compile(text);   template { messages = ..., add_generation_prompt = true }
--
-- Values: Lua strings, numbers, booleans, functions; jinja.none; lists are tables marked by jinja.list (or with [1]);
-- other tables are mappings. Undefined is nil.

local parse = require "qeng.jinja_parse"

local jinja = {}

local none = parse.none
jinja.none = none
local max_steps, max_output = 2e6, parse.most_bytes
local bytes_of_step = 1000  -- of text that an operation handles: another step
local most_held = 500e6 / 1024  -- KiB of values at a time, beside what was there: thirty strings of the longest
local steps_to_look = 50  -- asking for the size of the heap at each step made rendering 40 % slower

local list_mark = {}
function jinja.list(t) return setmetatable(t, list_mark) end

local function is_list(v)
  return type(v) == "table" and v ~= none and (getmetatable(v) == list_mark or v[1] ~= nil or (next(v) == nil and getmetatable(v) == nil))
end
local function is_mapping(v) return type(v) == "table" and v ~= none and not is_list(v) end

local function fail(message) error({ code = "template", message = "chat template: " .. message }, 0) end

local function truth(v)
  if v == nil or v == none or v == false or v == 0 or v == "" then return false end
  return not (type(v) == "table" and v ~= none and next(v) == nil)
end

-- The characters of a text, a list of code points as texts.
local function characters(s)
  local out = jinja.list {}
  for c in s:gmatch("[%z\1-\127\194-\244][\128-\191]*") do out[#out + 1] = c end
  return out
end

local function is_ascii(s) return not s:find("[\128-\255]") end

-- The shortest digits that read back as v, as Python prints it.
local function digits_of(v)
  for precision = 15, 16 do
    local text = ("%%.%dg"):format(precision):format(v)
    if tonumber(text) == v then return text end
  end
  return ("%.17g"):format(v)
end

local function text_of(v)
  if v == nil then return "" end
  if v == none then return "None" end
  if v == true then return "True" elseif v == false then return "False" end
  if type(v) == "number" then return v == math.floor(v) and math.abs(v) < 2 ^ 53 and ("%d"):format(v) or digits_of(v) end
  if type(v) == "string" then return v end
  if type(v) == "table" then return jinja.repr(v) end
  fail("a function cannot be printed")
end

local function equal(a, b)
  if type(a) ~= "table" or type(b) ~= "table" or a == none or b == none then return a == b end
  for k, v in pairs(a) do if not equal(v, b[k]) then return false end end
  for k in pairs(b) do if a[k] == nil then return false end end
  return true
end

-- ---------------------------------------------------------------- JSON, as Python's json.dumps writes it (", " and ": ")

local function spaces(count)
  parse.room_for_string(count)
  return (" "):rep(count)
end

local escapes = { ['"'] = '\\"', ["\\"] = "\\\\", ["\n"] = "\\n", ["\r"] = "\\r", ["\t"] = "\\t", ["\b"] = "\\b", ["\f"] = "\\f" }

-- put takes the pieces of a value's JSON in order: a small value that holds another many times over is long.
local function write_json(put, v, indent, depth)
  if depth > 64 then fail("tojson: nested too deeply") end
  if v == nil or v == none then return put "null" end
  if type(v) == "boolean" then return put(tostring(v)) end
  if type(v) == "number" then return put(text_of(v)) end
  if type(v) == "string" then
    return put('"' .. v:gsub('[%c"\\]', function(c) return escapes[c] or ("\\u%04x"):format(c:byte()) end) .. '"')
  end
  if type(v) ~= "table" then fail("tojson: a function has no JSON") end
  local list = is_list(v)
  local items = list and v or jinja.keys(v)
  local function newline(levels) if indent then put("\n" .. spaces(indent * levels)) end end
  put(list and "[" or "{")
  for i, item in ipairs(items) do
    if i > 1 then put(indent and "," or ", ") end
    newline(depth + 1)
    if not list then
      put(jinja.tojson(tostring(item)) .. ": ")
      item = v[item]
    end
    write_json(put, item, indent, depth + 1)
  end
  if items[1] ~= nil then newline(depth) end
  put(list and "]" or "}")
end

-- The text of the pieces that write(put) puts.
local function collected(write)
  local parts, size = {}, 0
  write(function(text)
    size = size + #text + 16  -- a piece is held too
    parse.room_for_string(size)
    parts[#parts + 1] = text
  end)
  return table.concat(parts)
end

function jinja.tojson(v, indent) return collected(function(put) write_json(put, v, indent, 0) end) end

local named_escapes = { ["\n"] = "\\n", ["\r"] = "\\r", ["\t"] = "\\t", ["\\"] = "\\\\" }

-- A text as Python's repr writes it: in single quotes unless only they occur in it.
local function quoted(s)
  local mark = s:find("'", 1, true) and not s:find('"', 1, true) and '"' or "'"
  s = s:gsub("[%c\\" .. mark .. "]", function(c)
    return c == mark and "\\" .. c or named_escapes[c] or ("\\x%02x"):format(c:byte())
  end)
  return mark .. s .. mark
end

local function write_repr(put, v, depth)
  if depth > 64 then fail("a value to be printed is nested too deeply") end
  if v == nil then return put "Undefined" end
  if type(v) == "string" then return put(quoted(v)) end
  if type(v) ~= "table" or v == none then return put(text_of(v)) end
  local list = is_list(v)
  local items = list and v or jinja.keys(v)
  put(list and "[" or "{")
  for i = 1, #items do
    if i > 1 then put ", " end
    if list then
      write_repr(put, items[i], depth + 1)
    else
      write_repr(put, items[i], depth + 1)
      put ": "
      write_repr(put, v[items[i]], depth + 1)
    end
  end
  put(list and "]" or "}")
end

-- A list or mapping as Python prints it.
function jinja.repr(v) return collected(function(put) write_repr(put, v, 0) end) end

-- Keys in the order of __keys (decoded JSON keeps it there), sorted otherwise.
function jinja.keys(v)
  local meta = getmetatable(v)
  if meta and meta.__keys then return meta.__keys end
  local keys = {}
  for key in pairs(v) do keys[#keys + 1] = key end
  table.sort(keys, function(a, b) return tostring(a) < tostring(b) end)
  return keys
end

-- ---------------------------------------------------------------- strings, filters, tests, methods

local function plain(s) return (s:gsub("%p", "%%%0")) end

local function trim(s, chars, left, right)
  local set = chars and "[" .. plain(chars) .. "]" or "%s"
  if left then s = s:gsub("^" .. set .. "+", "") end
  return right and parse.without_end(s, set) or s
end

local function replace(s, from, to, count)
  if from == "" then fail("replace: nothing to replace") end
  if #s * #to > parse.most_bytes then  -- it may grow too long
    local _, found = s:gsub(plain(from), "", count)
    parse.room_for_string(#s + found * (#to - #from))
  end
  return (s:gsub(plain(from), (to:gsub("%%", "%%%%")), count))
end
jinja.replace = replace

local function split(s, separator, limit)
  local parts = jinja.list {}
  if separator == nil or separator == none then
    for word in s:gmatch("%S+") do parts[#parts + 1] = word end
    return parts
  end
  if separator == "" then fail("split: empty separator") end
  local from = 1
  while not limit or limit < 0 or #parts < limit do
    local a, b = s:find(separator, from, true)
    if not a then break end
    parts[#parts + 1] = s:sub(from, a - 1)
    from = b + 1
  end
  parts[#parts + 1] = s:sub(from)
  return parts
end

local function length_of(v)
  if type(v) == "string" then return select(2, v:gsub("[^\128-\191]", "")) end
  if is_list(v) then return #v end
  if is_mapping(v) then return #jinja.keys(v) end
  fail("length of a " .. type(v))
end

local function want_string(v, what)
  if type(v) ~= "string" then fail(what .. " needs a string, got " .. (v == nil and "undefined" or text_of(v))) end
  return v
end

local filters = {
  trim = function(v, chars) return trim(text_of(v), chars, true, true) end,
  length = length_of, count = length_of,
  lower = function(v) return text_of(v):lower() end,
  upper = function(v) return text_of(v):upper() end,
  capitalize = function(v) v = text_of(v); return v:sub(1, 1):upper() .. v:sub(2):lower() end,
  title = function(v) return (text_of(v):lower():gsub("(%a)(%w*)", function(a, b) return a:upper() .. b end)) end,
  string = text_of,
  safe = function(v) return v end,
  int = function(v, default) local n = tonumber(v); return n and (n < 0 and math.ceil(n) or math.floor(n)) or default or 0 end,
  float = function(v, default) return tonumber(v) or default or 0 end,
  abs = function(v) return math.abs(v) end,
  first = function(v) if type(v) == "string" then v = characters(v) end return v[1] end,
  last = function(v) if type(v) == "string" then v = characters(v) end return v[#v] end,
  list = function(v)
    local copy = jinja.list {}
    if type(v) == "string" then return characters(v) end
    if is_list(v) then for i, item in ipairs(v) do copy[i] = item end
    else for i, key in ipairs(jinja.keys(v)) do copy[i] = key end end
    return copy
  end,
  join = function(v, separator, attribute)
    local parts, size = {}, 0
    separator = text_of(separator)
    for i, item in ipairs(v) do
      parts[i] = text_of(attribute and item[attribute] or item)
      size = size + #parts[i] + #separator
      parse.room_for_string(size)
    end
    return table.concat(parts, separator)
  end,
  replace = function(v, from, to, count) return replace(text_of(v), from, to, count) end,
  default = function(v, other, falsy) if v == nil or (falsy and not truth(v)) then return other == nil and "" or other end return v end,
  tojson = function(v, indent) return jinja.tojson(v, indent) end,
  items = function(v)
    local pairs_of = jinja.list {}
    for i, key in ipairs(v == nil and {} or jinja.keys(v)) do pairs_of[i] = jinja.list { key, v[key] } end
    return pairs_of
  end,
  reverse = function(v)
    if type(v) == "string" then return table.concat(jinja.filters.reverse(characters(v))) end
    local back = jinja.list {}
    for i = #v, 1, -1 do back[#back + 1] = v[i] end
    return back
  end,
  unique = function(v)
    local seen, out = {}, jinja.list {}
    for _, item in ipairs(v) do if not seen[item] then seen[item] = true; out[#out + 1] = item end end
    return out
  end,
  sort = function(v)
    local copy = jinja.list {}
    for i, item in ipairs(v) do copy[i] = item end
    table.sort(copy)
    return copy
  end,
  indent = function(v, width, first)
    local pad, text = spaces(width or 4), text_of(v)
    local _, lines = text:gsub("\n[^\n]", "")
    parse.room_for_string(#text + #pad * (lines + 1))
    return (first and pad or "") .. (text:gsub("\n([^\n])", "\n" .. pad .. "%1"))
  end,
  map = function(v, how, rest)
    local out = jinja.list {}
    for i, item in ipairs(v) do
      if type(how) == "table" then out[i] = item[how.attribute] else out[i] = jinja.filters[how](item, rest) end
    end
    return out
  end,
}
filters.d, filters.e, filters.escape = filters.default, nil, nil
jinja.filters = filters

local tests = {
  defined = function(v) return v ~= nil end,
  undefined = function(v) return v == nil end,
  none = function(v) return v == none end,
  string = function(v) return type(v) == "string" end,
  number = function(v) return type(v) == "number" end,
  integer = function(v) return type(v) == "number" and v == math.floor(v) end,
  float = function(v) return type(v) == "number" and v ~= math.floor(v) end,
  boolean = function(v) return type(v) == "boolean" end,
  mapping = is_mapping,
  sequence = function(v) return is_list(v) or type(v) == "string" end,
  iterable = function(v) return type(v) == "string" or (type(v) == "table" and v ~= none) end,
  callable = function(v) return type(v) == "function" end,
  ["true"] = function(v) return v == true end,
  ["false"] = function(v) return v == false end,
  odd = function(v) return v % 2 == 1 end,
  even = function(v) return v % 2 == 0 end,
  equalto = equal, eq = equal, sameas = equal,
  ["in"] = function(v, where) return jinja.contains(where, v) end,
  divisibleby = function(v, n) return v % n == 0 end,
}
tests["=="] = equal
jinja.tests = tests

function jinja.contains(where, v)
  if where == nil then return false end  -- undefined: as an empty list
  if type(where) == "string" then return type(v) == "string" and where:find(v, 1, true) ~= nil end
  if is_list(where) then
    for _, item in ipairs(where) do if equal(item, v) then return true end end
    return false
  end
  if is_mapping(where) then return where[v] ~= nil end
  fail("'in' needs a string, list or mapping")
end

local methods = {
  string = {
    strip = function(s, c) return trim(s, c, true, true) end,
    lstrip = function(s, c) return trim(s, c, true, false) end,
    rstrip = function(s, c) return trim(s, c, false, true) end,
    split = split,
    startswith = function(s, p) return s:sub(1, #p) == p end,
    endswith = function(s, p) return p == "" or s:sub(-#p) == p end,
    lower = function(s) return s:lower() end,
    upper = function(s) return s:upper() end,
    capitalize = filters.capitalize, title = filters.title,
    replace = replace,
    find = function(s, p) local at = s:find(p, 1, true); return at and length_of(s:sub(1, at - 1)) or -1 end,
    count = function(s, p) return select(2, s:gsub(plain(p), "")) end,
    join = function(s, items) return filters.join(items, s) end,
  },
  list = {
    append = function(l, v) parse.room_for_list(#l + 1); l[#l + 1] = v; return none end,
    pop = function(l, at) return table.remove(l, at and at + 1 or #l) end,
    index = function(l, v) for i, item in ipairs(l) do if equal(item, v) then return i - 1 end end fail("index: not in the list") end,
  },
  mapping = {
    items = filters.items,
    keys = function(m) return jinja.list { unpack(jinja.keys(m)) } end,
    values = function(m) local out = jinja.list {}; for i, k in ipairs(jinja.keys(m)) do out[i] = m[k] end return out end,
    get = function(m, key, default) local v = m[key]; if v == nil then return default == nil and none or default end return v end,
    update = function(m, other) for k, v in pairs(other) do m[k] = v end return none end,
  },
}

-- The attribute or method of a value; nil where there is none (undefined). dotted: written v.name, where a method comes before a
-- key of its name (t.items() of a schema with a key "items"); v["name"] is the key first.
function jinja.attribute(v, name, dotted)
  if v == nil or v == none then fail(("'%s' of an undefined value"):format(tostring(name))) end
  local kind = type(v) == "string" and "string" or is_list(v) and "list" or "mapping"
  if type(v) == "table" then
    if type(name) == "number" and kind == "list" then return v[name < 0 and #v + 1 + name or name + 1] end
    local method = dotted and not (getmetatable(v) or {}).namespace and methods[kind][name]
    if method then return function(...) return method(v, ...) end end
    local own = v[name]
    if own ~= nil then return own end
  end
  if type(v) == "string" and type(name) == "number" then
    if not is_ascii(v) then
      local all = characters(v)
      return all[name < 0 and #all + 1 + name or name + 1]
    end
    local at = name < 0 and name or name + 1
    local c = v:sub(at, at)
    return c ~= "" and c or nil
  end
  local method = methods[kind] and methods[kind][name]
  return method and function(...) return method(v, ...) end or nil
end

-- v[from:to:step], Python's rules.
function jinja.slice(v, from, to, step)
  step = step or 1
  if step == 0 then fail("a slice needs a step other than 0") end
  local text = type(v) == "string"
  if text and not is_ascii(v) then return table.concat(jinja.slice(characters(v), from, to, step)) end
  local n = #v
  local function place(i, default)
    if i == nil then return default end
    if i < 0 then i = i + n end
    return math.max(step < 0 and -1 or 0, math.min(i, step < 0 and n - 1 or n))
  end
  local first, last = place(from, step < 0 and n - 1 or 0), place(to, step < 0 and -1 or n)
  local out = jinja.list {}
  for i = first, last + (step > 0 and -1 or 1), step do out[#out + 1] = text and v:sub(i + 1, i + 1) or v[i + 1] end
  return text and table.concat(out) or out
end

jinja.truth, jinja.text, jinja.equal, jinja.fail, jinja.is_list, jinja.is_mapping = truth, text_of, equal, fail, is_list, is_mapping
jinja.want_string, jinja.without_end, jinja.order = want_string, parse.without_end, parse.order

-- ---------------------------------------------------------------- running

local globals = {
  range = function(a, b, step)
    if b == nil then a, b = 0, a end
    local out = jinja.list {}
    for i = a, b - (step and step < 0 and -1 or 1), step or 1 do
      out[#out + 1] = i
      if #out > 1e5 then fail("range: too long") end
    end
    return out
  end,
  raise_exception = function(message) fail(text_of(message)) end,
  strftime_now = function(format) return os.date(format) end,
  dict = function(named) return named or {} end,
}

-- fn's result; what a template does to values of the wrong kind is an error of the template.
local function guarded(fn, ...)
  local ok, result = pcall(fn, ...)
  if ok then return result end
  if type(result) == "table" then error(result, 0) end
  fail((tostring(result):gsub("^%S-:%d+: ", "")))
end

-- A function of the variables that returns the text. Error code "template" for what the subset does not have.
-- words: what the template's operations do, this module by default.
function jinja.compile(source, words)
  local body = guarded(parse.template, source, words or jinja)
  local function render(variables)
    local scope = setmetatable({}, { __index = function(_, key) local v = variables[key]; if v == nil then v = globals[key] end return v end })
    local run = { out = {}, size = 0, steps = 0 }
    local most, next_look = collectgarbage "count" + most_held, 0
    function run.step(bytes)
      local steps = run.steps + 1 + (bytes or 0) / bytes_of_step
      run.steps = steps
      if steps < next_look then return end
      next_look = steps + steps_to_look
      if steps > max_steps then fail("more than " .. max_steps .. " steps") end
      if collectgarbage "count" <= most then return end
      collectgarbage()
      if collectgarbage "count" > most then fail(("its values take more than %d MB"):format(most_held * 1024 / 1e6)) end
    end
    function run.emit(text)
      run.size = run.size + #text
      if run.size > max_output then fail("output of more than " .. max_output .. " bytes") end
      run.out[#run.out + 1] = text
    end
    body(scope, run)
    return table.concat(run.out)
  end
  return function(variables) return guarded(render, variables) end
end

return jinja
