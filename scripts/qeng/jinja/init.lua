-- Chat templates: Jinja2 as transformers sets it up (trim_blocks, lstrip_blocks, loop controls, no changes of values).
-- A template is untrusted. It is parsed to closures over values of our own and never loaded as code. Every step counts
-- against a limit; output and memory are bounded. Only the filters, tests and methods under jinja/ exist. Source: the
-- Jinja2 template designer documentation.
--
--   local template = jinja.compile(text);   template { messages = ..., add_generation_prompt = true }

local access = require "qeng.jinja.access"
local calls = require "qeng.jinja.calls"
local formatting = require "qeng.jinja.formatting"
local limits = require "qeng.jinja.limits"
local numbers = require "qeng.jinja.numbers"
local parse = require "qeng.jinja.statements"
local strings = require "qeng.jinja.strings"
local text = require "qeng.jinja.text"
local values = require "qeng.jinja.values"

local jinja = {}

local fail = limits.fail
local max_steps = 2e6
local bytes_of_step = 1000  -- an operation on more text than this counts as another step
local most_held = 500e6 / 1024  -- KiB that values may take at a time: thirty strings of the longest
local steps_to_look = 50  -- asking for the size of the heap at each step made rendering 40 % slower

-- ---------------------------------------------------------------- operators

local function joined(a, b, make)
  limits.room_for_list(#a + #b)
  local out, count = values.copied(a), #a
  limits.look(#b / 10)
  for i = 1, #b do out[count + i] = b[i] end
  return make(out)
end

local function repeated(v, count)
  local times = numbers.value(count)
  if not times or numbers.is_float(count) then fail("a %s is repeated by a %s", values.kind(v), values.kind(count)) end
  if type(v) == "string" then return strings.times(v, times) end
  limits.room_for_list(#v * math.max(times, 0))
  limits.look(#v * math.max(times, 0))
  local out = {}
  for _ = 1, times do for _, item in ipairs(v) do out[#out + 1] = item end end
  return values.kind(v) == "tuple" and values.tuple(out) or values.list(out)
end

-- The operations of expressions. chat/form.lua puts others in their place.
local words = {
  truth = values.truth, text = text.str, equal = values.equal, order = values.order,
  contains = values.contains, iterate = values.iterate,
  attribute = access.attribute, item = access.item, slice = access.slice,
  filters = require "qeng.jinja.filters", tests = require "qeng.jinja.tests",
}
jinja.words = words

-- Whether v times an int is v repeated.
local function can_repeat(v) return type(v) == "string" or values.kind(v) == "list" or values.kind(v) == "tuple" end

local entities = { ["&"] = "&amp;", ["<"] = "&lt;", [">"] = "&gt;", ["'"] = "&#39;", ['"'] = "&#34;" }

-- The text of a markup; any other value as text that is escaped.
local function escaped(v)
  if values.is_markup(v) then return v[1] end
  return (text.str(v):gsub("[&<>'\"]", entities))
end

function words.binary(op, a, b)
  if op == "~" then
    a, b = words.text(a), words.text(b)
    limits.room_for_string(#a + #b)
    return a .. b
  end
  if type(a) == "string" and type(b) == "string" and op == "+" then
    limits.room_for_string(#a + #b)
    return a .. b
  end
  if op == "+" and (values.is_markup(a) or values.is_markup(b)) then return values.markup(escaped(a) .. escaped(b)) end
  a, b = values.plain(a), values.plain(b)
  if op == "%" and type(a) == "string" then return formatting.percent(a, b) end
  if numbers.value(a) and numbers.value(b) then return numbers.arithmetic(op, a, b) end
  local kind, other = values.kind(a), values.kind(b)
  if op == "+" and kind == other and (kind == "list" or kind == "tuple") then return joined(a, b, values[kind]) end
  if op == "*" and can_repeat(a) then return repeated(a, b) end
  if op == "*" and can_repeat(b) then return repeated(b, a) end
  local function named(v, k)
    return k == "undefined" and v.name and ("'%s', which is undefined,"):format(tostring(v.name)) or "a " .. k
  end
  fail("%s %s %s", named(a, kind), op, named(b, other))
end

function words.negative(v)
  if not numbers.value(v) then fail("the negative of a %s", values.kind(v)) end
  return numbers.negative(v)
end

-- ---------------------------------------------------------------- functions of every template

local globals = {}
local function define(name, parameters, fn)
  globals[name] = values.callable(name, calls.native(name, parameters, fn))
end

local function whole(v)
  if v == nil then return nil end
  if not numbers.value(v) or numbers.is_float(v) then fail("range of a %s", values.kind(v)) end
  return numbers.value(v)
end
define("range", "start / stop step", function(start, stop, step)
  local a, b, by = whole(start), whole(stop), whole(step) or 1
  if b == nil then a, b = 0, a end
  if by == 0 then fail "range: a step of 0" end
  if math.max(0, math.ceil((b - a) / by)) > limits.most_items then fail "range: too long" end
  limits.look(math.max(0, math.ceil((b - a) / by)))
  local out = {}
  for i = a, b - (by > 0 and 1 or -1), by do out[#out + 1] = i end
  return values.range(out, by == 1 and ("range(%d, %d)"):format(a, b) or ("range(%d, %d, %d)"):format(a, b, by))
end)
define("raise_exception", "message", function(message) fail("%s", message == nil and "" or text.str(message)) end)
define("strftime_now", "format /", function(format) return os.date(text.str(format)) end)

-- A dict of the pairs or the dict that come first, and of the named arguments.
local function dict_of(arguments, named)
  local pairs_of = {}
  if #arguments > 1 then fail "dict takes one argument at most, beside those by name" end
  if arguments[1] ~= nil and values.is_dict(arguments[1]) then pairs_of = values.items_of(arguments[1])
  elseif arguments[1] ~= nil then
    for i, pair in ipairs(values.iterate(arguments[1])) do pairs_of[i] = values.iterate(pair) end
  end
  local names = {}
  for name in pairs(named) do names[#names + 1] = name end
  table.sort(names)
  for _, name in ipairs(names) do pairs_of[#pairs_of + 1] = { name, named[name] } end
  return values.dict_of(pairs_of)
end
globals.dict = values.callable("dict", dict_of)
globals.namespace = values.callable("namespace", function(arguments, named)
  local dict = dict_of(arguments, named)
  for _, key in ipairs(dict.keys) do
    if type(key) == "string" and key:find "^_" then fail("'%s' begins with an underscore", key) end
  end
  return values.object("namespace", dict.map)
end)

-- ---------------------------------------------------------------- running

-- fn's results. What fails inside because a value is of the wrong kind is an error of the template.
local function guarded(fn, ...)
  local ok, result, more = limits.counted(fn, ...)
  if ok then return result, more end
  if type(result) == "table" then error(result, 0) end
  fail("%s", (tostring(result):gsub("^%S-:%d+: ", "")))
end

-- A function from the variables (Lua's, or template values) to the text, and to what {% generation %} marks in it:
-- {first, last} bytes, or false for a mark whose place is not known. Errors have the code "template". own_words: the
-- operations, jinja.words by default.
function jinja.compile(source, own_words)
  local body = guarded(parse, source, own_words or words)
  local function render(variables)
    local root = setmetatable({}, { __index = function(scope, key)
      local v = variables[key]
      if v == nil then return globals[key] end
      v = values.from_lua(v)
      rawset(scope, key, v)
      return v
    end })
    local run = { out = {}, size = 0, place = 0, steps = 0, said = {} }
    local most, next_look = collectgarbage "count" + most_held, 0
    function run.step(bytes)
      local steps = run.steps + 1 + (bytes or 0) / bytes_of_step
      run.steps = steps
      if steps < next_look then return end
      next_look = steps + steps_to_look
      if steps > max_steps then fail("more than %d steps", max_steps) end
      if collectgarbage "count" <= most then return end
      collectgarbage()
      if collectgarbage "count" > most then fail("its values take more than %d MB", most_held * 1024 / 1e6) end
    end
    function run.emit(piece)
      run.size = run.size + #piece
      if run.size > limits.most_bytes then fail("output of more than %d bytes", limits.most_bytes) end
      if not run.captured then run.place = run.place + #piece end
      run.out[#run.out + 1] = piece
    end
    body(root, run)
    return table.concat(run.out), run.said
  end
  return function(variables) return guarded(render, variables) end
end

return jinja
