-- Finds what the assistant says in a rendered conversation. Four ways are tried in turn: {% generation %} where the
-- template marks it; rendering up to each turn and through it; the generation prompt before each turn; marks in what a
-- turn says. A turn begins after the generation prompt and ends with the token that ends it.

local q = require "qeng.core"
local strings = require "qeng.jinja.strings"

local chat_spans = {}

local mark = "\254"  -- no valid UTF-8 holds it

-- The result of a method, or nil if the template fails. It may fail on part of a conversation.
local function attempt(model, method, ...)
  if model.attempt then return model:attempt(method, ...) end
  return (q.try(method, model, ...))
end

-- How many bytes two renderings have in common at their beginning, and whether one begins with the whole other. With
-- marks: chat/form.lua.
local function alike(model, a, b)
  if model.alike then return model:alike(a, b) end
  local same = 0
  while same < #a and a:byte(same + 1) == b:byte(same + 1) do same = same + 1 end
  return same
end
local function begins(model, text, prefix)
  if model.begins then return model:begins(text, prefix) end
  return text:sub(1, #prefix) == prefix
end

-- The end of the first token that ends a turn, from `from` on.
local function first_end(model, whole, from)
  if model.before_first_end then model:before_first_end() end
  local stop
  for _, text in ipairs(model.ends) do
    local _, b = whole:find(text, from, true)
    if text ~= "" and b and (not stop or b < stop) then stop = b end
  end
  return stop
end

-- ---------------------------------------------------------------- by rendering a part

-- Where what turn i says begins in the whole text: after the generation prompt. If the prompt says more than the turn's
-- own header (an empty thinking block), after what both begin with.
local function begin_of(model, talk, i)
  local whole = talk.whole
  local prompt = attempt(model, model.render, talk.list, i - 1, talk.given, true)
  if not prompt then return nil end
  if begins(model, whole, prompt) then return #prompt + 1 end
  local before = attempt(model, model.render, talk.list, i - 1, talk.given, false)
  if not before or not begins(model, whole, before) or not begins(model, prompt, before) then return nil end
  local same = alike(model, prompt, whole)
  while same > #before and not prompt:sub(same, same):find "[\n>%]]" do same = same - 1 end
  return same > #before and same + 1 or nil
end

local function end_of(model, talk, i, from)
  local through = attempt(model, model.render, talk.list, i, talk.given, false)
  if through then
    if begins(model, talk.whole, through) then return #through end
    through = strings.strip(through, nil, false, true)
    if #through >= from and begins(model, talk.whole, through) then return #through end
  end
  return first_end(model, talk.whole, from)
end

local function by_part(model, talk, i)
  local from = begin_of(model, talk, i)
  return from, from and end_of(model, talk, i, from)
end

-- ---------------------------------------------------------------- by the generation prompt

-- What the template writes for the assistant to go on from; "" if that cannot be told.
local function header_of(model, talk)
  local prompt = attempt(model, model.render, talk.list, #talk.messages, talk.given, true)
  return prompt and begins(model, prompt, talk.whole) and prompt:sub(#talk.whole + 1) or ""
end

-- By the generation prompt, if it stands before each of the assistant's turns and has a special token: then no message
-- can have spelled it.
local function by_header(model, talk, i)
  if model.unknown then model.unknown() end
  local header, whole = header_of(model, talk), talk.whole
  if model.guard(header) == header then return nil end
  local turns, turn, places = 0, nil, {}
  for k, message in ipairs(talk.messages) do
    if message.role == "assistant" then turns = turns + 1 end
    if k == i then turn = turns end
  end
  local at, last = whole:find(header, 1, true)
  while at do
    places[#places + 1] = { at, last + 1 }
    at, last = whole:find(header, last + 1, true)
  end
  if #places ~= turns then return nil end
  local stop = first_end(model, whole, places[turn][2])
  if stop and (turn == turns or stop < places[turn + 1][1]) then return places[turn][2], stop end
end

-- ---------------------------------------------------------------- by marks

-- The text with marks at its ends, inside the white space there.
local function marked(text)
  local core = strings.strip(text, nil, true, true)
  if core == "" then return text end
  local at = text:find(core, 1, true)
  return text:sub(1, at - 1) .. mark .. core .. mark .. text:sub(at + #core)
end

local kept = { role = true, type = true, id = true, tool_call_id = true }  -- a template may look into them

-- Gives kept keys of the dicts in `value` the values that they have in `plain`, which has the same shape.
local function restore(value, plain)
  if type(value) ~= "table" then return end
  for key, v in pairs(value.map or value) do
    local other = (plain.map or plain)[key]
    if value.map and kept[key] then value.map[key] = other elseif key ~= "keys" then restore(v, other) end
  end
end

-- The first and last byte of what message i says; nil unless the template only moves its texts.
local function said_by(model, talk, i)
  talk.places = talk.places or {}
  local place = talk.places[i]
  if place then return place[1], place[2] end
  talk.places[i] = {}
  local list = model:values(talk.messages, talk.record, function(text, k, key)
    text = model.guard(text)
    return k == i and not key and marked(text) or text
  end)
  restore(list[i], talk.list[i])
  local text = attempt(model, model.render, list, #talk.messages, talk.given, false)
  if not text or text:gsub(mark, "") ~= talk.whole then return nil end
  local first = text:find(mark, 1, true)
  if not first then return nil end
  local last = #text - text:reverse():find(mark, 1, true) + 1
  talk.places[i] = { first, last - select(2, text:sub(1, last):gsub(mark, "")) }
  return unpack(talk.places[i])
end

-- The longest beginning of the generation prompt that has a special token and ends before `from`, but not before
-- `bound`.
local function header_before(model, talk, from, bound)
  local header = header_of(model, talk)
  for length = #header, 1, -1 do
    local part = header:sub(1, length)
    if model.guard(part) == part then return nil end
    local stretch = talk.whole:sub(bound, from - 1)
    local at = stretch:reverse():find(part:reverse(), 1, true)
    if at and (length == #header or part:find "[\n>%]]$") then return from - at + 1 end
  end
end

-- If turn i, taken from `from` to `to`, would take in another message's text: where that text begins. Else nil.
local function crossed(model, talk, i, from, to)
  for k = i + 1, #talk.messages do
    local message = talk.messages[k]
    if message.role == "assistant" then return nil end
    local core = strings.strip(message.content or "", nil, true, true)
    if core ~= "" and talk.whole:sub(from, to):find(core, 1, true) then
      if model.unknown then model.unknown() end
      local first = said_by(model, talk, k)
      if first and first >= from and first <= to then return first end
    end
  end
end

-- The end of a turn that has no token of its own before another message's text, as when a tool answers within the turn.
-- It is where the conversation so far and the whole begin to differ, else the end of what the turn says.
local function end_without_token(model, talk, i, from, first)
  local through = attempt(model, model.render, talk.list, i, talk.given, false)
  local same = through and alike(model, through, talk.whole) or 0
  local _, last = said_by(model, talk, i)
  if same >= (last or from) and same < first then return same end
  return last
end

local function by_marks(model, talk, i)
  local first, last = said_by(model, talk, i)
  if not first then return nil end
  local bound = 1
  for k = i - 1, 1, -1 do
    local _, before = said_by(model, talk, k)
    if before and before < first then bound = before + 1; break end
  end
  return header_before(model, talk, first, bound) or first, first_end(model, talk.whole, last + 1) or last
end

-- ---------------------------------------------------------------- all turns

-- What {% generation %} marks, by message, if it marks each of the assistant's turns once.
local function generated(talk)
  local by_message, turn = {}, 0
  for i, message in ipairs(talk.messages) do
    if message.role == "assistant" then
      turn = turn + 1
      by_message[i] = talk.said[turn]
    end
  end
  return turn == #talk.said and by_message or {}
end

local function says_nothing(message)
  local content = strings.strip(message.content or "", nil, true, true)
  return content == "" and not message.tool_calls and (message.reasoning_content or "") == ""
end

-- A conversation as stretches of text, {text, target}..., in order. model: a chat_model. talk: messages, list (of
-- values), given, record, whole (the text), said (what the template marks). turns: "all" or "last" of the assistant's
-- messages are trained.
function chat_spans.stretches(model, talk, turns)
  local whole, stretches, at, last = talk.whole, {}, 1, 0
  for i, message in ipairs(talk.messages) do if message.role == "assistant" then last = i end end
  local by_template = generated(talk)
  for i, message in ipairs(talk.messages) do
    if message.role == "assistant" and message.train ~= false and (turns ~= "last" or i == last) then
      local from, to
      local function fits() return to and to >= from and from >= at end
      if by_template[i] then from, to = unpack(by_template[i]) end
      for _, find in ipairs { by_part, by_header, by_marks } do
        if fits() then break end
        from, to = find(model, talk, i)
        local other = fits() and crossed(model, talk, i, from, to)
        if other then
          to = end_without_token(model, talk, i, from, other)
          if to and to >= other then to = nil end  -- what it says stands around the other
        end
      end
      if not fits() and says_nothing(message) then goto next end
      if not fits() then
      q.error("template", ("messages[%d]: the chat template rewrites earlier turns, so what the assistant says "
        .. "cannot be told apart; use --template chatml"):format(i))
      end
      -- A line end after the end-of-turn token is not trained.
      if not by_template[i] and whole:sub(to, to) == "\n" then to = to - 1 end
      stretches[#stretches + 1] = { whole:sub(at, from - 1), false }
      stretches[#stretches + 1] = { whole:sub(from, to), true }
      at = to + 1
    end
    ::next::
  end
  stretches[#stretches + 1] = { whole:sub(at), false }
  return stretches
end

return chat_spans
