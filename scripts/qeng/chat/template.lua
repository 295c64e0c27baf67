-- Conversations rendered by a model's own Jinja template. chat/spans.lua finds in them what the assistant says,
-- chat/told.lua what is left out of them.
-- chat/form.lua works out once for each shape of conversation what a template makes of plain ones.

local chat_form = require "qeng.chat.form"
local chat_spans = require "qeng.chat.spans"
local jinja = require "qeng.jinja"
local q = require "qeng.core"
local told = require "qeng.chat.told"
local values = require "qeng.jinja.values"

local chat_model = {}

-- Is put into special tokens that a user or a dataset wrote, so that they stay text. No valid UTF-8 holds this byte.
local guard = "\255"

-- A function that looks for a tokenizer's special tokens in text. It calls each(text, at, length) where one begins.
local function specials_of(tokenizer)
  local specials, firsts, lengths = {}, {}, {}
  for id = 0, tokenizer:vocab_size() - 1 do
    local text = tokenizer:is_special(id) and tokenizer:bytes(id) or ""
    if #text > 1 then specials[text], firsts[text:sub(1, 1)], lengths[#text] = true, true, true end
  end
  local set = {}
  for first in pairs(firsts) do set[#set + 1] = first:gsub("%W", "%%%0") end
  local class = #set > 0 and "[" .. table.concat(set) .. "]" or "^%z$"
  return function(text, each)
    local at = text:find(class)
    while at do
      for length in pairs(lengths) do
        if specials[text:sub(at, at + length - 1)] then each(at, length) end
      end
      at = text:find(class, at + 1)
    end
  end
end

-- A function that guards special tokens in text, except those in `plain` (a set of texts).
local function guard_for(specials, plain)
  return function(text)
    local parts, done = {}, 1
    specials(text, function(at, length)
      if at < done or plain[text:sub(at, at + length - 1)] then return end
      parts[#parts + 1] = text:sub(done, at)
      parts[#parts + 1] = guard
      done = at + 1
    end)
    return #parts == 0 and text or table.concat(parts) .. text:sub(done)
  end
end

local function without_guards(text) return (text:gsub(guard, "")) end

local kEndsOfTurn = {
  "<|im_end|>", "<|eot_id|>", "<|eom_id|>", "<end_of_turn>", "<turn|>", "<|end|>", "<|return|>",
  "<|END_OF_TURN_TOKEN|>",
}

-- ---------------------------------------------------------------- templates

local Model = {}
Model.__index = Model

-- tokenizer: its info() has a chat_template.
function chat_model.new(tokenizer)
  local info = tokenizer:info()
  local function text(id) return id and tokenizer:bytes(id) or "" end
  local specials = specials_of(tokenizer)
  local self = setmetatable({
    render_text = jinja.compile(info.chat_template), specials = specials, guard = guard_for(specials, {}),
    bos = text(info.bos), eos = text(info.eos),
    ends = { text(info.eos) },
    developer = info.chat_template:find("developer", 1, true) ~= nil,  -- the template knows this role
  }, Model)
  for _, name in ipairs(kEndsOfTurn) do
    if tokenizer:id(name) then self.ends[#self.ends + 1] = name end
  end
  self.forms = chat_form.new(self, info.chat_template)
  return self
end

-- Messages as the template's values, and what else a record gives the template. Fields of a message that are null are
-- left out. Its reasoning has both of its names, as in transformers. change(text, i, key) is called for each text: i is
-- the message it is in, if any; key says that the text is a key.
function Model:values(messages, record, change)
  change = change or self.guard
  local list = {}
  for i, message in ipairs(messages) do
    local value = values.from_lua(message, function(text, key) return change(text, i, key) end)
    local keys = {}
    for _, key in ipairs(value.keys) do
      if value.map[key] == values.none or key == "train" then value.map[key] = nil else keys[#keys + 1] = key end
    end
    local reasoning = value.map.reasoning_content
    if reasoning ~= nil and value.map.thinking == nil then table.insert(keys, 1, "thinking") end
    if reasoning ~= nil then value.map.thinking = reasoning end
    if value.map.role == "developer" and not self.developer then value.map.role = "system" end
    list[i] = values.dict(keys, value.map)
  end
  local given = {}
  local function changed(value) return values.from_lua(value, function(text) return change(text) end) end
  for key, value in pairs(record.template_options or {}) do given[key] = changed(value) end
  given.tools = record.tools and changed(record.tools) or values.none
  return list, given
end

-- The text of the first `count` messages, and what {% generation %} marks in it.
function Model:render(messages, count, given, prompt)
  local list, variables = {}, { bos_token = self.bos, eos_token = self.eos }
  for i = 1, count do list[i] = messages[i] end
  for key, value in pairs(given) do variables[key] = value end
  variables.messages, variables.add_generation_prompt = values.list(list), prompt
  return self.render_text(variables)
end

-- This model, or one that does not guard the special tokens that the template itself looks for in texts (</think>).
-- With guards in those the template would say something else.
function Model:seeing(messages, record, prompt)
  local spelled, any = {}, false
  local plain_messages, plain_given = self:values(messages, record, function(text)
    self.specials(text, function(at, length) spelled[text:sub(at, at + length - 1)] = true; any = true end)
    return text
  end)
  if not any then return self end
  local expected = self:render(plain_messages, #messages, plain_given, prompt)
  local function says_the_same(guarded)
    local list, given = self:values(messages, record, guarded)
    local text = q.try(self.render, self, list, #messages, given, prompt)
    return text ~= nil and without_guards(text) == expected
  end
  if says_the_same(self.guard) then return self end
  local plain = {}
  for token in pairs(spelled) do
    local others = {}
    for other in pairs(spelled) do others[other] = other ~= token or nil end
    if not says_the_same(guard_for(self.specials, others)) then plain[token] = true end
  end
  return setmetatable({ guard = guard_for(self.specials, plain) }, { __index = self })
end

-- A conversation as stretches of text, {text, target}..., guarded and in order.
function Model:stretches(messages, record, turns)
  local list, given = self:values(messages, record)
  local whole, said = self:render(list, #messages, given, false)
  told(self, messages, record, whole)
  local talk = { messages = messages, list = list, given = given, record = record, whole = whole, said = said }
  return chat_spans.stretches(self, talk, turns)
end

-- Appends text to the pieces. What was guarded is taken apart again.
local function append(pieces, text, target)
  if not text:find(guard, 1, true) then
    if text ~= "" then pieces[#pieces + 1] = { text = text, target = target, special = true } end
    return
  end
  for part in (text .. guard):gmatch("(.-)" .. guard) do
    if part ~= "" then pieces[#pieces + 1] = { text = part, target = target, special = true } end
  end
end

-- The result of make(messages). For the template a message of calls has no content where the record has none, as in
-- transformers. A template that fails on it, or leaves its calls out, is given an empty content.
local function with_content(messages, make)
  local made, why = q.try(make, messages)
  if made then return made end
  local filled, any = {}, false
  for i, message in ipairs(messages) do
    filled[i] = message
    if message.content == nil then
      any, filled[i] = true, setmetatable({}, getmetatable(message))
      for key, value in pairs(message) do filled[i][key] = value end
      filled[i].content = ""
    end
  end
  if not any then error(why, 0) end
  made, why = q.try(make, filled)
  return made or error(why, 0)
end

-- The pieces of a normalised record's conversation: {text=, target=, special = true}. turns: "all" or "last".
function Model:pieces(messages, record, turns)
  local stretches = self.forms:stretches(messages, record, turns)
  stretches = stretches or with_content(messages, function(given)
    return self:seeing(given, record, false):stretches(given, record, turns)
  end)
  local pieces = {}
  for _, stretch in ipairs(stretches) do append(pieces, stretch[1], stretch[2]) end
  return pieces
end

-- The pieces of a prompt that the assistant is to answer.
function Model:prompt(messages, record)
  local pieces = {}
  append(pieces, with_content(messages, function(filled)
    local list, given = self:seeing(filled, record, true):values(filled, record)
    return (self:render(list, #filled, given, true))
  end), false)
  return pieces
end

return chat_model
