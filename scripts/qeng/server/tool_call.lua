-- A call written as a JSON object, {"name": ..., "arguments": {...}}, that comes in pieces. Llama says "parameters".
-- Keys may come in any order, others are passed over, and arguments may be JSON inside a string.
--
--   local call = tool_call.new(known, begin, give)      -- known: functions by their names
--   local call = tool_call.new(known, begin, give, name) -- of this function, its arguments alone
--   local after, state = call:feed(text, at)            -- as those of json_pieces
--
-- begin(name) is called once name and arguments have begun, then give(piece) with pieces of the arguments' JSON text.
-- "bad" before begin was called: it is no call of a known function.

local json_pieces = require "qeng.server.json_pieces"
local q = require "qeng.core"

local tool_call = {}
local Call = {}
Call.__index = Call

function tool_call.new(known, begin, give, name)
  return setmetatable({ known = known, begin = begin, give = give, name = name, alone = name ~= nil,
    key = "arguments", mode = name and "begin" or "open" }, Call)
end

local function decoded(text) return q.try(q.json.decode, text, { ordered = true, exact = true }) end

local function start(self)
  self.begun = true
  self.begin(self.name)
end

-- The arguments of a value that is whole; nil if they are none.
local function arguments_of(text)
  if text:find "^{" then return text end
  if text == "null" then return "{}" end
  local inner = text:find '^"' and decoded(text)
  return inner and inner:find "^%s*{" and decoded(inner) and inner or nil
end

local function is_arguments(self) return self.key == "arguments" or self.key == "parameters" end

-- A key or a value is whole. False: this is no call.
local function took(self)
  local text = table.concat(self.part)
  if self.mode == "in_key" then
    self.key, self.mode = decoded(text), "colon"
    return self.key ~= nil
  end
  self.mode = "after"
  if self.begun then return true end
  if self.key == "name" then
    local name = decoded(text)
    if type(name) ~= "string" or not self.known[name] then return false end
    self.name = name
  elseif is_arguments(self) then
    self.arguments = arguments_of(text)
    if not self.arguments then return false end
  end
  if self.name and self.arguments then
    start(self)
    self.give(self.arguments)
  end
  return true
end

local function enter(self, mode)
  self.mode, self.scan, self.part, self.streams = mode, json_pieces.new(), {}, false
end

-- What the byte c between keys and values does: how far to go, and "done" or "bad" if that is all.
local function sign(self, c)
  local mode = self.mode
  if mode == "open" and c == "{" then
    self.mode = "first"
  elseif (mode == "first" or mode == "next") and c == '"' then
    enter(self, "in_key")
    return 0
  elseif mode == "colon" and c == ":" then
    self.mode = "begin"
  elseif mode == "begin" then
    enter(self, "in_value")
    if c == "{" and self.name and not self.begun and is_arguments(self) then
      start(self)
      self.streams = true
    end
    return 0
  elseif mode == "after" and c == "," then
    self.mode = "next"
  elseif (mode == "after" or mode == "first") and c == "}" then
    if not self.begun then
      if not self.name then return 0, "bad" end
      start(self)
      self.give "{}"
    end
    return 1, "done"
  else
    return 0, "bad"
  end
  return 1
end

function Call:feed(text, at)
  while at <= #text do
    if self.mode == "in_key" or self.mode == "in_value" then
      local after, state = self.scan:feed(text, at)
      local piece = text:sub(at, after - 1)
      if self.streams and piece ~= "" then self.give(piece) end
      if not self.streams then self.part[#self.part + 1] = piece end
      at = after
      if state == "bad" or state == "done" and not took(self) then return at, "bad" end
      if state == "done" and self.alone then return at, "done" end
    else
      local found = text:find("[^ \t\r\n]", at)
      if not found then return #text + 1, "more" end
      local taken, state = sign(self, text:sub(found, found))
      at = found + taken
      if state then return at, state end
    end
  end
  return at, "more"
end

return tool_call
