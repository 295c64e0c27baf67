-- Conversations rendered by a model's own Jinja template, with the spans of what the assistant says. The template is rendered
-- up to each assistant turn and through it, and the whole tells where the turn stands; a template that rewrites earlier turns
-- (Qwen3 takes their reasoning out) is followed as long as each turn ends with the end-of-turn token.

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
  local specials = {}
  for id = 0, tokenizer:vocab_size() - 1 do
    local text = tokenizer:is_special(id) and tokenizer:bytes(id) or ""
    if #text > 1 then specials[#specials + 1] = { text, text:sub(1, 1) .. guard .. text:sub(2) } end
  end
  return function(text)
    for _, special in ipairs(specials) do text = jinja.replace(text, special[1], special[2]) end
    return text
  end
end

-- ---------------------------------------------------------------- templates

local Model = {}
Model.__index = Model

-- tokenizer: one whose info() has a chat_template.
function chat_model.new(tokenizer)
  local info = tokenizer:info()
  local function text(id) return id and tokenizer:bytes(id) or "" end
  return setmetatable({
    render_text = jinja.compile(info.chat_template), guard = guard_for(tokenizer), bos = text(info.bos), eos = text(info.eos),
    ends = { text(info.eos), tokenizer:id("<|im_end|>") and "<|im_end|>" or "" },
    developer = info.chat_template:find("developer", 1, true) ~= nil,  -- the template knows this role
  }, Model)
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
  local list, variables = jinja.list {}, { add_generation_prompt = prompt, bos_token = self.bos, eos_token = self.eos }
  for i = 1, count do list[i] = messages[i] end
  for key, value in pairs(given) do variables[key] = value end
  variables.messages, variables.add_generation_prompt = list, prompt
  return self.render_text(variables)
end

local function starts(text, prefix) return text:sub(1, #prefix) == prefix end

-- Where what turn i says begins in `whole`: after the generation prompt, or where that says more than the turn's own header
-- (an empty thinking block), after what both begin with.
function Model:begin_of(whole, messages, i, given)
  local prompt = self:render(messages, i - 1, given, true)
  if starts(whole, prompt) then return #prompt + 1 end
  local before = self:render(messages, i - 1, given, false)
  if not starts(whole, before) or not starts(prompt, before) then return nil end
  local same = #before
  while same < #prompt and prompt:byte(same + 1) == whole:byte(same + 1) do same = same + 1 end
  while same > #before and not prompt:sub(same, same):find "[\n>%]]" do same = same - 1 end
  return same > #before and same + 1 or nil
end

-- Where it ends.
function Model:end_of(whole, messages, i, given, from)
  local through = self:render(messages, i, given, false)
  if starts(whole, through) then return #through end
  through = jinja.without_end(through, "%s")
  if #through >= from and starts(whole, through) then return #through end
  local stop
  for _, text in ipairs(self.ends) do
    local _, b = whole:find(text, from, true)
    if text ~= "" and b and (not stop or b < stop) then stop = b end
  end
  return stop
end

-- Appends text to the pieces; what was guarded is taken apart again.
local function append(pieces, text, target)
  for part in (text .. guard):gmatch("(.-)" .. guard) do
    if part ~= "" then pieces[#pieces + 1] = { text = part, target = target, special = true } end
  end
end

-- The pieces of a normalised record's conversation: {text=, target=, special = true}. turns: "all" or "last".
function Model:pieces(messages, record, turns)
  local given
  messages, given = self:values(messages, record)
  local whole = self:render(messages, #messages, given, false)
  local pieces, at, last = {}, 1, 0
  for i, message in ipairs(messages) do if message.role == "assistant" then last = i end end
  for i, message in ipairs(messages) do
    if message.role == "assistant" and message.train ~= false and (turns ~= "last" or i == last) then
      local from = self:begin_of(whole, messages, i, given)
      local to = from and from >= at and self:end_of(whole, messages, i, given, from)
      if not to or to < from then
        q.error("template", ("messages[%d]: the chat template rewrites earlier turns, so what the assistant says cannot be told apart; use --template chatml"):format(i))
      end
      if whole:sub(to, to) == "\n" then to = to - 1 end  -- after the end-of-turn token; not trained
      append(pieces, whole:sub(at, from - 1), false)
      append(pieces, whole:sub(from, to), true)
      at = to + 1
    end
  end
  append(pieces, whole:sub(at), false)
  return pieces
end

-- The pieces of a prompt that the assistant is to answer.
function Model:prompt(messages, record)
  local pieces, given = {}
  messages, given = self:values(messages, record)
  append(pieces, self:render(messages, #messages, given, true), false)
  return pieces
end

return chat_model
