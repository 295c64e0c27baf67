-- Conversations rendered by a model's own Jinja template, with the spans of what the assistant says. The template is rendered
-- up to each assistant turn and through it, and the whole tells where the turn stands; a template that rewrites earlier turns
-- (Qwen3 takes their reasoning out) is followed as long as each turn ends with the end-of-turn token. What a template makes of
-- plain conversations is worked out once for each shape (chat_form.lua).

local chat_form = require "qeng.chat_form"
local jinja = require "qeng.jinja"
local q = require "qeng.core"

local chat_model = {}

-- Put into special tokens that a user or a dataset wrote, so that they stay text. No valid UTF-8 holds this byte.
local guard = "\255"

-- ---------------------------------------------------------------- values

-- Decoded JSON as the template's values: null is none, arrays are lists, objects keep their keys' order.
local function to_jinja(value, change)
  if value == q.json.null then return jinja.none end
  if type(value) == "string" then return change(value) end
  if type(value) ~= "table" then return value end
  local meta = getmetatable(value)
  local keys = meta and meta.__keys
  local copy = {}
  if not keys and (value[1] ~= nil or (meta and next(value) == nil)) then
    for i, item in ipairs(value) do copy[i] = to_jinja(item, change) end
    return jinja.list(copy)
  end
  for key, item in pairs(value) do copy[change(key)] = to_jinja(item, change) end
  if keys then
    local order, known = {}, {}
    for _, key in ipairs(keys) do
      if value[key] ~= nil then order[#order + 1] = change(key) end
      known[key] = true
    end
    for key in pairs(value) do if not known[key] then order[#order + 1] = change(key) end end
    setmetatable(copy, { __keys = order })
  end
  return copy
end

-- A function that guards the special tokens of a tokenizer in text.
local function guard_for(tokenizer)
  local specials, firsts, lengths = {}, {}, {}
  for id = 0, tokenizer:vocab_size() - 1 do
    local text = tokenizer:is_special(id) and tokenizer:bytes(id) or ""
    if #text > 1 then specials[text], firsts[text:sub(1, 1)], lengths[#text] = true, true, true end
  end
  local set = {}
  for first in pairs(firsts) do set[#set + 1] = first:gsub("%W", "%%%0") end
  if #set == 0 then return function(text) return text end end
  local class = "[" .. table.concat(set) .. "]"
  local function special_at(text, at)
    for length in pairs(lengths) do if specials[text:sub(at, at + length - 1)] then return true end end
  end
  return function(text)
    local at = text:find(class)
    if not at then return text end
    local parts, done = {}, 1
    while at do
      if special_at(text, at) then
        parts[#parts + 1] = text:sub(done, at)
        parts[#parts + 1] = guard
        done = at + 1
      end
      at = text:find(class, at + 1)
    end
    return table.concat(parts) .. text:sub(done)
  end
end

-- ---------------------------------------------------------------- templates

local Model = {}
Model.__index = Model

-- tokenizer: one whose info() has a chat_template.
function chat_model.new(tokenizer)
  local info = tokenizer:info()
  local function text(id) return id and tokenizer:bytes(id) or "" end
  local self = setmetatable({
    render_text = jinja.compile(info.chat_template), guard = guard_for(tokenizer), bos = text(info.bos), eos = text(info.eos),
    ends = { text(info.eos) },
    developer = info.chat_template:find("developer", 1, true) ~= nil,  -- the template knows this role
  }, Model)
  for _, name in ipairs { "<|im_end|>", "<|eot_id|>", "<end_of_turn>", "<|end|>" } do
    if tokenizer:id(name) then self.ends[#self.ends + 1] = name end
  end
  self.forms = chat_form.new(self, info.chat_template)
  return self
end

-- A record's messages, and what else it gives the template, as the template's values.
function Model:values(messages, record)
  local list = to_jinja(messages, self.guard)
  for _, message in ipairs(list) do
    if message.role == "developer" and not self.developer then message.role = "system" end
  end
  local given = {}
  for key, value in pairs(record.template_options or {}) do given[key] = to_jinja(value, self.guard) end
  given.tools = record.tools and to_jinja(record.tools, self.guard) or jinja.none
  return list, given
end

function Model:render(messages, count, given, prompt)
  local list, variables = jinja.list {}, { bos_token = self.bos, eos_token = self.eos }
  for i = 1, count do list[i] = messages[i] end
  for key, value in pairs(given) do variables[key] = value end
  variables.messages, variables.add_generation_prompt = list, prompt
  return self.render_text(variables)
end

-- How many bytes two renderings begin with alike; whether one is the beginning of the other. Of marks: chat_form.lua.
function Model:alike(a, b)
  local same = 0
  while same < #a and a:byte(same + 1) == b:byte(same + 1) do same = same + 1 end
  return same
end
function Model:begins(text, prefix) return text:sub(1, #prefix) == prefix end

-- Where what turn i says begins in `whole`: after the generation prompt, or where that says more than the turn's own header
-- (an empty thinking block), after what both begin with.
function Model:begin_of(whole, messages, i, given)
  local prompt = self:render(messages, i - 1, given, true)
  if self:begins(whole, prompt) then return #prompt + 1 end
  local before = self:render(messages, i - 1, given, false)
  if not self:begins(whole, before) or not self:begins(prompt, before) then return nil end
  local same = self:alike(prompt, whole)
  while same > #before and not prompt:sub(same, same):find "[\n>%]]" do same = same - 1 end
  return same > #before and same + 1 or nil
end

function Model:first_end(whole, from)
  local stop
  for _, text in ipairs(self.ends) do
    local _, b = whole:find(text, from, true)
    if text ~= "" and b and (not stop or b < stop) then stop = b end
  end
  return stop
end

-- Where it ends.
function Model:end_of(whole, messages, i, given, from)
  local through = self:render(messages, i, given, false)
  if self:begins(whole, through) then return #through end
  through = jinja.without_end(through, "%s")
  if #through >= from and self:begins(whole, through) then return #through end
  return self:first_end(whole, from)
end

-- Begin and end of turn i where the template renders earlier turns in another way once there are later ones: by the generation
-- prompt, where it stands before each of the assistant's turns and has a special token, so that no one can have written it.
function Model:by_header(whole, messages, i, given)
  local prompt = self:render(messages, #messages, given, true)
  local header = self:begins(prompt, whole) and prompt:sub(#whole + 1) or ""
  if self.guard(header) == header then return nil end
  local turns, turn, places = 0, nil, {}
  for k, message in ipairs(messages) do
    if message.role == "assistant" then turns = turns + 1 end
    if k == i then turn = turns end
  end
  local at, last = whole:find(header, 1, true)
  while at do
    places[#places + 1] = { at, last + 1 }
    at, last = whole:find(header, last + 1, true)
  end
  if #places ~= turns then return nil end
  local stop = self:first_end(whole, places[turn][2])
  if stop and (turn == turns or stop < places[turn + 1][1]) then return places[turn][2], stop end
end

-- A conversation as stretches of text, {text, target}...: guarded, and in order.
function Model:stretches(messages, record, turns)
  local given
  messages, given = self:values(messages, record)
  local whole = self:render(messages, #messages, given, false)
  local list, at, last = {}, 1, 0
  for i, message in ipairs(messages) do if message.role == "assistant" then last = i end end
  for i, message in ipairs(messages) do
    if message.role == "assistant" and message.train ~= false and (turns ~= "last" or i == last) then
      local from = self:begin_of(whole, messages, i, given)
      local to = from and self:end_of(whole, messages, i, given, from)
      if not to or to < from or from < at then from, to = self:by_header(whole, messages, i, given) end
      if not to or to < from or from < at then
        q.error("template", ("messages[%d]: the chat template rewrites earlier turns, so what the assistant says cannot be told apart; use --template chatml"):format(i))
      end
      if whole:sub(to, to) == "\n" then to = to - 1 end  -- after the end-of-turn token; not trained
      list[#list + 1] = { whole:sub(at, from - 1), false }
      list[#list + 1] = { whole:sub(from, to), true }
      at = to + 1
    end
  end
  list[#list + 1] = { whole:sub(at), false }
  return list
end

-- Appends text to the pieces; what was guarded is taken apart again.
local function append(pieces, text, target)
  if not text:find(guard, 1, true) then
    if text ~= "" then pieces[#pieces + 1] = { text = text, target = target, special = true } end
    return
  end
  for part in (text .. guard):gmatch("(.-)" .. guard) do
    if part ~= "" then pieces[#pieces + 1] = { text = part, target = target, special = true } end
  end
end

-- The pieces of a normalised record's conversation: {text=, target=, special = true}. turns: "all" or "last".
function Model:pieces(messages, record, turns)
  local pieces = {}
  for _, stretch in ipairs(self.forms:stretches(messages, record, turns) or self:stretches(messages, record, turns)) do
    append(pieces, stretch[1], stretch[2])
  end
  return pieces
end

-- The pieces of a prompt that the assistant is to answer.
function Model:prompt(messages, record)
  local pieces, given = {}, nil
  messages, given = self:values(messages, record)
  append(pieces, self:render(messages, #messages, given, true), false)
  return pieces
end

return chat_model
