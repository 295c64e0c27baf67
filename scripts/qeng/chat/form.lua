-- What a chat template makes of conversations of one shape (who speaks in which order), worked out once. Rendering each
-- conversation costs four times as much as tokenizing it. So the template runs on marks in place of what was said. An
-- operation that only moves text treats a mark as any text. One that looks into it either adds a condition to the form,
-- or ends the attempt. The form holds for every conversation of the shape whose texts meet the conditions. The template
-- itself renders all others.

local jinja = require "qeng.jinja"
local q = require "qeng.core"
local strings = require "qeng.jinja.strings"
local values = require "qeng.jinja.values"

local chat_form = {}

local most_forms, most_messages = 500, 100  -- a hostile dataset must not fill the memory

-- A mark holds a byte that no valid UTF-8 has, and is as long for every message.
local mark = "\254"
local pattern = mark .. "(%d+)" .. mark
local function mark_of(i) return ("%s%06d%s"):format(mark, i, mark) end

local function unknown() error({ code = "template", message = "chat template: looks into what is said" }, 0) end

local function marked(v) return type(v) == "string" and v:find(mark, 1, true) ~= nil end
local function is_mark(v) return type(v) == "string" and v:find("^" .. pattern .. "$") ~= nil and #v == #mark_of(0) end

-- Whether there is a mark anywhere in a value.
local function holds(v, budget)
  if type(v) ~= "table" then return marked(v) end
  budget = budget or { 10000 }
  for key, item in pairs(v) do
    budget[1] = budget[1] - 1
    if budget[1] < 0 or marked(key) or holds(item, budget) then return true end
  end
  return false
end
local function check_keys(v)
  if not values.is_dict(v) then return end
  for _, key in ipairs(v.keys) do if marked(key) then unknown() end end
end
local function any_holds(...)
  for i = 1, select("#", ...) do if holds((select(i, ...))) then return true end end
  return false
end

-- ---------------------------------------------------------------- conditions of a text

-- Conditions of a form; every text also has at least one byte. lacks: strings that a text does not hold. edges:
-- characters at neither of its ends ("": white space). begins: strings that it is longer than and does not begin with.
local function add(list, value)
  for _, there in ipairs(list) do if there == value then return end end
  list[#list + 1] = value
end

local function meets(conditions, text)
  if text == "" then return false end
  for _, needle in ipairs(conditions.lacks) do if text:find(needle, 1, true) then return false end end
  for _, chars in ipairs(conditions.edges) do
    if strings.strip(text, chars ~= "" and chars or nil, true, true) ~= text then return false end
  end
  for _, prefix in ipairs(conditions.begins) do
    if #text <= #prefix or text:sub(1, #prefix) == prefix then return false end
  end
  return true
end

local function set_of(names)
  local set = {}
  for name in names:gmatch "%a+" do set[name] = true end
  return set
end

-- ---------------------------------------------------------------- the template's operations on marks

-- conditions(): the conditions of the form in hand.
local function words_for(conditions)
  local own = jinja.words
  local words = setmetatable({}, { __index = own })

  local function lacks(v, needle)
    if not is_mark(v) or type(needle) ~= "string" or marked(needle) then unknown() end
    if needle ~= "" then add(conditions().lacks, needle) end
  end
  local function stripped(v, chars)
    if chars == values.none then chars = nil end
    if not is_mark(v) or (chars ~= nil and (type(chars) ~= "string" or chars == "" or marked(chars))) then unknown() end
    add(conditions().edges, chars or "")
    return v
  end

  function words.truth(v) return marked(v) or own.truth(v) end
  function words.text(v)
    if type(v) == "table" and holds(v) then unknown() end
    return own.text(v)
  end
  function words.equal(a, b)
    if not any_holds(a, b) then return own.equal(a, b) end
    if marked(a) and marked(b) or type(a) == "table" and type(b) == "table" then unknown() end
    if type(a) ~= type(b) then return false end
    if marked(a) then lacks(a, b) else lacks(b, a) end
    return false
  end
  function words.contains(where, v)
    if is_mark(where) then
      lacks(where, v)
      return v == ""
    end
    check_keys(where)
    if marked(v) or marked(where) or (not values.is_dict(where) and holds(where)) then unknown() end
    return own.contains(where, v)
  end
  function words.iterate(v)
      -- The order of a message's keys is no part of the shape.
      if marked(v) or values.is_dict(v) and holds(v) then unknown() end
    return own.iterate(v)
  end
  function words.slice(v, ...)
    if marked(v) then unknown() end
    return own.slice(v, ...)
  end
  function words.binary(op, a, b)
    local moves = op == "~" or op == "+" or op == "*"
    if any_holds(a, b) and (not moves or op == "~" and (type(a) == "table" or type(b) == "table")) then unknown() end
    return own.binary(op, a, b)
  end

  local of_mark = {
    strip = stripped, lstrip = stripped, rstrip = stripped,
    startswith = function(v, prefix) lacks(v, prefix); return prefix == "" end,
    endswith = function(v, suffix) lacks(v, suffix); return suffix == "" end,
    split = function(v, separator, more)
      if separator == nil or separator == "" or separator == values.none or more ~= nil then unknown() end
      lacks(v, separator)
      return values.list { v }
    end,
  }
  for _, name in ipairs { "attribute", "item" } do
    words[name] = function(v, key)
      if marked(key) then unknown() end
      check_keys(v)
      if marked(v) then
        local method = is_mark(v) and of_mark[key] or unknown()
        return values.callable(key, function(arguments, named)
          if next(named) then unknown() end
          return method(v, unpack(arguments))
        end)
      end
      local found = own[name](v, key)
      if values.kind(found) ~= "function" then return found end
      return values.callable(key, function(arguments, named, run)
        if any_holds(arguments, named) or key ~= "get" and holds(v) then unknown() end
        return found.call(arguments, named, run)
      end)
    end
  end

  -- Filters that move items, or ask words about them.
  local of_list = set_of "length count list first last reverse select reject selectattr rejectattr"
  words.filters = setmetatable({}, { __index = function(_, name)
    local filter = own.filters[name]
    if not filter then return nil end
    return function(v, arguments, named)
      if not any_holds(v, arguments, named) then return filter(v, arguments, named, words) end
      if any_holds(arguments, named) then unknown() end
      if name == "trim" then return stripped(v, arguments[1]) end
      if marked(v) and (name == "string" or name == "safe") or name == "default" or name == "d" then return v end
      if type(v) == "table" and (of_list[name] or name == "map" and #arguments == 0) then
        return filter(v, arguments, named, words)
      end
      unknown()
    end
  end })

  -- Tests that a mark passes as any text does.
  local of_kind = set_of("defined undefined none string number integer float boolean mapping sequence iterable callable"
    .. " true false")
  local equal_to = { eq = true, equalto = true, ["=="] = true }
  words.tests = setmetatable({}, { __index = function(_, name)
    local test = own.tests[name]
    if not test or of_kind[name] then return test end
    return function(v, arguments, named)
      if equal_to[name] and #arguments == 1 then return words.equal(v, arguments[1]) end
      if name == "in" and #arguments == 1 then return words.contains(arguments[1], v) end
      if any_holds(v, arguments, named) then unknown() end
      return test(v, arguments, named)
    end
  end })
  words.order = {}
  for name, compare in pairs(own.order) do
    words.order[name] = function(a, b)
      if any_holds(a, b) then unknown() end
      return compare(a, b)
    end
  end
  return words
end

-- ---------------------------------------------------------------- a model that renders marks

-- Where two renderings of marks first differ. If one has a text there, the form gets a condition: the text does not
-- begin as the other rendering goes on.
local function difference(self, a, b, most)
  local same, edge = 0, false
  while same < #a and a:byte(same + 1) == b:byte(same + 1) do
    same = same + 1
    if a:byte(same) == mark:byte() then edge = not edge end
  end
  if edge then unknown() end  -- inside of marks of two messages
  local x, y = a:sub(same + 1, same + 1), b:sub(same + 1, same + 1)
  if x == mark or y == mark then
    local other = x == mark and b or a
    local text = other:sub(same + 1, same + most):match("^[^" .. mark .. "]+")
    if text then add(self.conditions.begins, text) end
  end
  return same
end

local Marks = {}

function Marks:begins(text, prefix) return difference(self, text, prefix, 16) == #prefix end
function Marks:alike(a, b) return difference(self, a, b, 1) end
Marks.unknown = unknown  -- what chat_spans does beyond rendering a part
function Marks:attempt(method, ...) return method(self, ...) end
function Marks:values(...)
  local messages, given = self.model.values(self, ...)
  given.strftime_now = unknown  -- a form outlives the day
  return messages, given
end
local function marks_in(text) return select(2, text:gsub(mark, "")) end
function Marks:render(messages, count, given, prompt)
  local text, said = self.model.render(self, messages, count, given, prompt)
  if text:sub(-1) == mark then add(self.conditions.edges, "") end  -- white space tells where a turn ends
  -- This generation prompt repeats what was said. Its last characters then tell where a turn begins.
  if prompt and marks_in(text) ~= marks_in(self:render(messages, count, given, false)) then unknown() end
  return text, said
end
function Marks:before_first_end()
  for _, text in ipairs(self.ends) do
    if text ~= "" and self.guard(text) == text then add(self.conditions.lacks, text) end
  end
end

-- ---------------------------------------------------------------- forms

local Forms = {}
Forms.__index = Forms

-- model: a chat_model, source: its template.
function chat_form.new(model, source)
  local self = setmetatable({ model = model, by_shape = {}, count = 0 }, Forms)
  if source:find(mark, 1, true) then
    self.count = most_forms  -- a template that writes marks itself has no forms
    return self
  end
  local marks = setmetatable({ model = model }, { __index = function(_, key) return Marks[key] or model[key] end })
  marks.render_text = jinja.compile(source, words_for(function() return marks.conditions end))
  self.marks = marks
  return self
end

-- The shape of a conversation as a string. nil if there is more in it than who speaks and what is said.
local function shape_of(messages, record, turns)
  if record.tools or #messages > most_messages then return nil end
  local options = record.template_options and q.try(q.json.encode, record.template_options) or ""
  if record.template_options and options == "" then return nil end  -- a function among them
  local shape = { turns .. options }
  for i, message in ipairs(messages) do
    if type(message.content) ~= "string" then return nil end
    for key in pairs(message) do if key ~= "role" and key ~= "content" and key ~= "train" then return nil end end
    shape[i + 1] = (message.train == false and "-" or "+") .. message.role
  end
  return table.concat(shape, "\0")
end

-- The form of a shape: {stretches = {{parts, target}...}, conditions}. false if the template looks into what is said.
-- A part is a string, or the number of a message.
function Forms:make(messages, record, turns)
  local marks, asked = self.marks, {}
  marks.conditions = { lacks = {}, edges = {}, begins = {} }
  for i, message in ipairs(messages) do
    asked[i] = { role = message.role, content = mark_of(i), train = message.train }
  end
  local ok, stretches = pcall(marks.stretches, marks, asked, record, turns)
  if not ok then return false end
  for _, stretch in ipairs(stretches) do
    local parts, at = {}, 1
    for from, number, to in stretch[1]:gmatch("()" .. pattern .. "()") do
      parts[#parts + 1] = stretch[1]:sub(at, from - 1)
      parts[#parts + 1] = tonumber(number)
      at = to
    end
    parts[#parts + 1] = stretch[1]:sub(at)
    stretch[1] = parts
  end
  return { stretches = stretches, conditions = marks.conditions }
end

-- What the template makes of a conversation (chat_model's stretches). nil if the conversation has to be rendered.
function Forms:stretches(messages, record, turns)
  local shape = shape_of(messages, record, turns)
  if not shape then return nil end
  local form = self.by_shape[shape]
  if form == nil then
    if self.count >= most_forms then return nil end
    form = self:make(messages, record, turns)
    self.by_shape[shape], self.count = form, self.count + 1
  end
  if not form then return nil end
  local texts, list = {}, {}
  for i, message in ipairs(messages) do
    texts[i] = message.content
    if self.model.guard(texts[i]) ~= texts[i] or not meets(form.conditions, texts[i]) then return nil end
  end
  for i, stretch in ipairs(form.stretches) do
    local parts = {}
    for k, part in ipairs(stretch[1]) do parts[k] = type(part) == "number" and texts[part] or part end
    list[i] = { table.concat(parts), stretch[2] }
  end
  return list
end

return chat_form
