-- A call written with tags (Qwen3-Coder, Qwen3.5), which becomes JSON as it comes:
--
--   <function=NAME>
--   <parameter=KEY>
--   value
--   </parameter>
--   </function>
--
-- A value is a string where the parameter's schema says so or says nothing; it is passed on at once, without the line
-- ends beside its tags. Any other is passed on when it is whole: as it stands where it is JSON, else as a string.
-- Used as tool_call is.

local fields = require "qeng.server.fields"
local q = require "qeng.core"
local stop = require "qeng.infer.stop"
local tags = require "qeng.server.tags"

local tool_function = {}
local Function = {}
Function.__index = Function

local longest_key = 200  -- of a parameter; a longer one is no call
local close = "</parameter>"

function tool_function.new(known, begin, give)
  return setmetatable({ known = known, begin = begin, give = give, mode = "function", count = 0 }, Function)
end

local escapes = { ['"'] = '\\"', ["\\"] = "\\\\", ["\n"] = "\\n", ["\r"] = "\\r", ["\t"] = "\\t" }
local function escaped(text)
  return (text:gsub('[%z\1-\31"\\]', function(c) return escapes[c] or ("\\u%04x"):format(c:byte()) end))
end

local function list(value) return type(value) == "table" and value or {} end

-- The types that a schema names, as a set; nil: it names none, so that any value is one.
local function types_of(schema)
  if type(schema) ~= "table" then return nil end
  if type(schema.type) == "string" then return { [schema.type] = true } end
  local types = {}
  if type(schema.type) == "table" then
    for _, name in ipairs(schema.type) do types[name] = true end
  else
    for _, value in ipairs(list(schema.enum)) do types[fields.type_of(value)] = true end
    for _, one in ipairs(list(schema.anyOf or schema.oneOf)) do
      for name in pairs(types_of(one) or { any = true }) do types[name] = true end
    end
    if schema["$ref"] or schema.allOf or schema.const ~= nil then types.any = true end
  end
  return next(types) and types or nil
end

-- Whether a parameter's value is always a string.
function tool_function.is_text(parameters, key)
  local properties = type(parameters) == "table" and parameters.properties
  local types = types_of(type(properties) == "table" and properties[key] or nil)
  return types == nil or types.string == true and next(types, next(types)) == nil, types
end

local pythons = { True = "true", False = "false", None = "null" }

-- A whole value as JSON text.
local function json_of(text, types)
  local bare = text:sub(text:find "%S" or 1, tags.blank_from(text) - 1)
  bare = pythons[bare] or bare
  local made = q.try(q.json.decode, bare)
  local kind = made ~= nil and fields.type_of(made)
  local fits = types.any or types[kind] or kind == "number" and types.integer
  if not kind or types.string and not fits then return '"' .. escaped(text) .. '"' end
  return bare
end

local steps = {}

-- Each step returns where to go on, "wait" for more of the text, or "bad".
steps["function"] = function(self, text, at)
  local name, after = text:match("^<function=([%w_%-]+)>()", at)
  if not name then
    return #text - at < 80 and tags.may_begin(text, at, "<function=", "[%w_%-]*") and "wait" or "bad"
  end
  local fn = self.known[name]
  if not fn then return "bad" end
  self.begun, self.parameters, self.mode = true, fn.parameters, "between"
  self.begin(name)
  self.give "{"
  return after
end

function steps.between(self, text, at)
  local first = text:find("%S", at) or #text + 1
  if first > at then return first end
  if tags.at(text, at, "</function>") then
    self.give "}"
    self.mode = "over"
    return at + #"</function>"
  end
  local key, after = text:match("^<parameter=([^<>\n]+)>()", at)
  if not key then
    local maybe = tags.may_begin(text, at, "</function>", "")
      or #text - at < longest_key and tags.may_begin(text, at, "<parameter=", "[^<>\n]*")
    return maybe and "wait" or "bad"
  end
  self.count = self.count + 1
  self.give((self.count > 1 and ", " or "") .. '"' .. escaped(key) .. '": ')
  self.text, self.types = tool_function.is_text(self.parameters, key)
  if self.text then self.give '"' else self.part = {} end
  self.mode = "line"
  return after
end

function steps.line(self, text, at)  -- the line end before a value
  self.mode = "value"
  return text:sub(at, at) == "\n" and at + 1 or at
end

function steps.value(self, text, at)
  local from, to = text:find(close, at, true)
  local last = from and from - 1 or #text - stop.may_begin(text, { "\n" .. close, close }, at)
  if from and from > at and text:sub(last, last) == "\n" then last = last - 1 end
  local piece = text:sub(at, last)
  if self.text then
    if piece ~= "" then self.give(escaped(piece)) end
  else
    self.part[#self.part + 1] = piece
  end
  if not from then return last >= at and last + 1 or "wait" end
  self.give(self.text and '"' or json_of(table.concat(self.part), self.types))
  self.part, self.mode = nil, "between"
  return to + 1
end

function Function:feed(text, at)
  while self.mode ~= "over" do
    if at > #text then return at, "more" end
    local after = steps[self.mode](self, text, at)
    if after == "wait" then return at, "more" end
    if after == "bad" then return at, "bad" end
    at = after
  end
  return at, "done"
end

-- Once no more comes than `held`: what of it, and of a value that is not whole, is not in the arguments.
function Function:rest(held)
  if self.part then return table.concat(self.part) .. held end
  if not self.text or self.mode ~= "value" then return held end
  self.give(escaped(held))
  return ""
end

return tool_function
