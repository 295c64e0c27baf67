-- What a model says, as texts and calls, while it comes. Forms are those of server/tools.lua.
--
--   local parser = tool_parser.new(form, known, id_of)   -- known: functions by name; id_of(n): the name of call n
--   for _, event in ipairs(parser:push(text)) do ... end -- then those of parser:finish()
--
-- Events: {text =}, and of each call {call = its number from 0, id =, name =}, {call =, arguments = a piece of JSON
-- text}... and {call =, over = true}. Joined, they do not depend on where the text was cut. White space before a call
-- and after the last one is no text. What turns out to be no call is text, all of it; of a call that has begun and goes
-- wrong, or is cut off, what its arguments did not take.

local stop = require "qeng.infer.stop"
local tags = require "qeng.server.tags"
local tool_call = require "qeng.server.tool_call"
local tool_function = require "qeng.server.tool_function"

local tool_parser = {}
local Parser = {}
Parser.__index = Parser

local opens = { hermes = "<tool_call>", xml = "<tool_call>", mistral = "[TOOL_CALLS]", llama = "<|python_tag|>" }
local longest_head = 200  -- of "name[CALL_ID]id[ARGS]": names have 64 bytes, ids are shorter

function tool_parser.new(form, known, id_of)
  return setmetatable({
    form = form, tag = opens[form], known = known, id_of = id_of, held = "", space = {}, raw = {}, count = 0,
    step = "outside", events = {},
  }, Parser)
end

local function tell(self, event) self.events[#self.events + 1] = event end

-- Text outside of calls. White space at its end waits for what follows.
local function say(self, text)
  local blank = tags.blank_from(text)
  if blank > 1 then
    tell(self, { text = table.concat(self.space) .. text:sub(1, blank - 1) })
    self.space, self.spoke = {}, true
  end
  if blank <= #text then self.space[#self.space + 1] = text:sub(blank) end
end

-- Takes text[at, after) as what is text unless a call follows.
local function wait(self, text, at, after)
  self.space[#self.space + 1] = text:sub(at, after - 1)
  return after
end

-- Takes text[at, after) as part of a call that may turn out to be none.
local function keep(self, text, at, after)
  if not self.begun then self.raw[#self.raw + 1] = text:sub(at, after - 1) end
  return after
end

-- No call after all, or one that goes wrong.
local function fail(self)
  local text = table.concat(self.raw)
  self.raw, self.begun, self.list, self.step = {}, false, false, "outside"
  say(self, text)
end

-- Begins a call in one of the two ways of writing it. name: where only the arguments are to come.
local function enter(self, kind, name)
  self.step = "inside"
  self.call = kind.new(self.known, function(called)
    self.begun, self.raw, self.space = true, {}, {}
    tell(self, { call = self.count, id = self.id_of(self.count), name = called })
    self.count = self.count + 1
  end, function(piece) tell(self, { call = self.count - 1, arguments = piece }) end, name)
end

-- ---------------------------------------------------------------- steps

-- Each returns where to go on in the text, or nil to wait for more of it.
local steps = {}

function steps.outside(self, text, at)
  if self.form == "llama" and not self.spoke then
    local first = text:find("%S", at)
    if first and text:sub(first, first) == "{" then
      say(self, text:sub(at, first - 1))
      enter(self, tool_call)
      return first
    end
  end
  local from, to = text:find(self.tag, at, true)
  if from then
    say(self, text:sub(at, from - 1))
    self.step = "opened"
    return keep(self, text, from, to + 1)
  end
  local last = #text - stop.may_begin(text, { self.tag }, at)
  if last < at then return nil end
  say(self, text:sub(at, last))
  return last + 1
end

function steps.opened(self, text, at)
  local first = text:find("%S", at)
  if not first then return keep(self, text, at, #text + 1) end
  local c = text:sub(first, first)
  keep(self, text, at, first)
  if c == "{" then
    enter(self, tool_call)
  elseif c == "<" and self.tag == "<tool_call>" then
    enter(self, tool_function)
  elseif c == "[" and self.form == "mistral" then
    self.list = true
    enter(self, tool_call)
    return keep(self, text, first, first + 1)
  elseif self.form == "mistral" then
    self.step = "head"
  else
    fail(self)
  end
  return first
end

-- name[ARGS] or name[CALL_ID]id[ARGS], as Mistral writes since 2025.
function steps.head(self, text, at)
  local from, to = text:sub(at, at + longest_head - 1):find("[ARGS]", 1, true)
  if not from and #text - at + 1 < longest_head then return nil end
  local head = from and text:sub(at, at + from - 2) or ""
  local name = head:match "^[%w_%-]+$" or head:match "^([%w_%-]+)%[CALL_ID%][%w_%-]*$"
  if not name or not self.known[name] then
    fail(self)
    return at
  end
  enter(self, tool_call, name)
  return keep(self, text, at, at + to)
end

function steps.inside(self, text, at)
  local after, state = self.call:feed(text, at)
  keep(self, text, at, after)
  if state == "bad" then
    fail(self)
  elseif state == "done" then
    tell(self, { call = self.count - 1, over = true })
    self.begun = false
    self.step = self.tag == "<tool_call>" and "close" or (self.list or self.form == "llama") and "between" or "outside"
  elseif after == at then
    return nil
  end
  return after
end

-- After a call of Hermes' form. The tag may be missing.
function steps.close(self, text, at)
  local first = text:find("%S", at) or #text + 1
  if first > at then return wait(self, text, at, first) end
  if tags.may_begin(text, at, "</tool_call>", "") then return nil end
  self.step = "outside"
  if not tags.at(text, at, "</tool_call>") then return at end
  self.space = {}
  return at + #"</tool_call>"
end

-- After a call of a list, or of Llama's.
function steps.between(self, text, at)
  local first = text:find("%S", at) or #text + 1
  if first > at then return wait(self, text, at, first) end
  local c = text:sub(at, at)
  if c == (self.list and "," or ";") then
    self.step = "another"
    return wait(self, text, at, at + 1)
  end
  local ends = self.list and c == "]"
  self.step, self.spoke, self.list = "outside", true, false
  return ends and at + 1 or at
end

function steps.another(self, text, at)
  local first = text:find("%S", at) or #text + 1
  if first > at then return wait(self, text, at, first) end
  if tags.at(text, at, "{") then
    enter(self, tool_call)
  else
    self.step, self.spoke, self.list = "outside", true, false
  end
  return at
end

-- ---------------------------------------------------------------- in and out

local function told(self)
  local events = self.events
  self.events = {}
  return events
end

function Parser:push(piece)
  local text, at = self.held .. piece, 1
  while at and at <= #text do
    self.rest = at
    at = steps[self.step](self, text, at)
  end
  self.held = at and "" or text:sub(self.rest)
  return told(self)
end

function Parser:finish()
  local text = self.held
  self.held = ""
  if self.step == "close" then text = "" end  -- the tag, cut off
  if self.begun and self.call.rest then text = self.call:rest(text) end
  self.raw[#self.raw + 1] = text
  fail(self)
  local rest = table.concat(self.space)
  self.space = {}
  if rest ~= "" and (self.count == 0 or rest:find "%S") then tell(self, { text = rest }) end
  return told(self)
end

return tool_parser
