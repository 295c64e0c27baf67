-- q.preferences: a file of {prompt, chosen, rejected}, JSONL or a JSON array, as documents. prompt: a text or a list of
-- messages; chosen and rejected: a text, the assistant's message, a list that begins with it, or a conversation that
-- begins with the prompt. What the assistant says after the prompt is trained, of such a conversation the last message.
-- Other fields (system, tools, ...) and roles mean what they mean in all records (chat/records.lua).

local chat = require "qeng.chat"
local pack = require("qeng.model.documents").pack
local q = require "qeng.core"
local records = require "qeng.data.records"
local roles = require("qeng.chat.records").roles

local function fail(path, i, text) q.error("format", ("%s: record %d: %s"):format(path, i, text)) end

-- Whether a message is the assistant's.
local function by_assistant(message)
  local speaker = type(message) == "table" and (message.role or message.from)
  local role = type(speaker) == "string" and roles[speaker:lower()]
  return role == "assistant" or role == "calls"
end

-- A message as text; fields that are null are none.
local function text_of(message)
  if type(message) ~= "table" then return q.json.encode(message) end
  local own = {}
  for key, value in pairs(message) do own[key] = value ~= q.json.null and value or nil end
  return q.json.encode(own)
end

-- A prompt and an answer as two texts or two lists of messages; or nil and what is wrong.
local function two(prompt, answer, field)
  if type(answer) == "table" and answer[1] == nil then answer = { answer } end
  if type(answer) == "table" and #answer > 1 and not by_assistant(answer[1]) then  -- the prompt is its beginning
    local before = { unpack(answer, 1, #answer - 1) }
    for k, message in ipairs(type(prompt) == "table" and prompt or {}) do
      if not before[k] or text_of(message) ~= text_of(before[k]) then
        return nil, field .. " begins neither with the prompt nor with the assistant's message"
      end
    end
    return before, { answer[#answer] }
  end
  if type(prompt) ~= "string" and type(prompt) ~= "table" then
    return nil, "prompt is no text and no list of messages"
  elseif type(answer) ~= "string" and type(answer) ~= "table" then
    return nil, field .. " is no text and no list of messages"
  elseif type(prompt) == type(answer) then
    return prompt, answer
  end
  if type(prompt) == "string" then return { { role = "user", content = prompt } }, answer end
  return prompt, { { role = "assistant", content = answer } }
end

-- Tokens and mask of a record with one of its answers.
local function encode(template, path, i, record, field)
  local prompt, completion = two(record.prompt, record[field], field)
  if not prompt then fail(path, i, completion) end
  local one = {}
  for key, value in pairs(record) do one[key] = value end
  for _, name in ipairs { "messages", "conversations", "chosen", "rejected", "label", "kto_tag" } do one[name] = nil end
  one.prompt, one.completion = prompt, completion
  local tokens, mask = q.try(function() return template:encode(chat.normalize(chat.copy(one))) end)
  if not tokens then q.error(mask.code, ("%s: record %d: %s: %s"):format(path, i, field, mask.message)) end
  return tokens, mask
end

local Pairs = {}
Pairs.__index = Pairs

-- `count` pairs of the given step (from 0), in an order drawn anew for each pass over them: a packed batch of the
-- chosen and the rejected answers in turns, and one of each prompt with the chosen answer to the next.
function Pairs:take(step, count)
  count = math.min(count, #self)
  local answers, mixed, taken = {}, {}, {}
  for i = 1, count do
    local at = step * count + i - 1
    local pass, place = math.floor(at / #self), at % #self
    if pass ~= self.pass then
      self.pass, self.order = pass, q.uniform({ #self }, { seed = self.seed, subsequence = pass }):argsort():table()
    end
    taken[i] = self[self.order[place + 1] + 1]
    answers[2 * i - 1], answers[2 * i] = taken[i].chosen, taken[i].rejected
  end
  for i, pair in ipairs(taken) do
    local prompt, answer, document = pair.chosen, taken[i % count + 1].chosen, { tokens = {}, mask = {} }
    for at = 1, prompt.first - 1 do document.tokens[at], document.mask[at] = prompt.tokens[at], 0 end
    for at = answer.first, #answer.tokens do
      document.tokens[#document.tokens + 1], document.mask[#document.mask + 1] = answer.tokens[at], answer.mask[at]
    end
    mixed[i] = document
  end
  return pack(answers), pack(mixed)
end

-- opt: template and system as for q.chat_template; max_tokens: longer pairs are left out (left_out says how many);
-- seed: of the order.
local function read(path, tokenizer, opt)
  opt = opt or {}
  local template = chat.template(tokenizer, opt.template, opt.system)
  local list, long = {}, 0
  for i, record in ipairs(records(path, nil, { ordered = true, exact = true })) do
    local pair, longest = {}, 0
    for _, field in ipairs { "chosen", "rejected" } do
      local tokens, mask = encode(template, path, i, record, field)
      local first = 1
      while mask[first] == 0 do first = first + 1 end
      if first > #tokens then fail(path, i, field .. " has no token of an answer") end
      pair[field], longest = { tokens = tokens, mask = mask, first = first }, math.max(longest, #tokens)
    end
    if opt.max_tokens and longest > opt.max_tokens then long = long + 1 else list[#list + 1] = pair end
  end
  if #list == 0 then
    q.error("value", ("%s: no pair of at most %s tokens, of %d"):format(path, opt.max_tokens or "any", long))
  end
  list.left_out, list.seed = long, opt.seed or 0
  return setmetatable(list, Pairs)
end

return { read = read, Pairs = Pairs }
