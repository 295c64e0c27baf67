-- q.preferences: a file of {prompt, chosen, rejected}, JSONL or a JSON array, as documents. prompt: a text or a list of
-- messages; chosen and rejected: a text, the assistant's message, or a conversation that begins with the prompt.

local chat = require "qeng.chat"
local pack = require("qeng.model.documents").pack
local q = require "qeng.core"
local records = require "qeng.data.records"

local function fail(path, i, text) q.error("format", ("%s: record %d: %s"):format(path, i, text)) end

-- The messages of a prompt with one of its answers.
local function conversation(path, i, prompt, answer, field)
  local messages = {}
  if type(answer) == "table" and answer[1] and #answer > 1 then return answer end
  if type(prompt) == "string" then
    messages[1] = { role = "user", content = prompt }
  elseif type(prompt) == "table" then
    for k, message in ipairs(prompt) do messages[k] = message end
  else
    fail(path, i, "prompt is no text and no list of messages")
  end
  if type(answer) == "table" then answer = answer[1] or answer end
  if type(answer) == "string" then answer = { role = "assistant", content = answer } end
  if type(answer) ~= "table" or type(answer.content) ~= "string" then
    fail(path, i, field .. " is no text and no list of messages")
  end
  messages[#messages + 1] = answer
  return messages
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
  local template = chat.template(tokenizer, opt.template, opt.system, "last")
  local list, long = {}, 0
  for i, record in ipairs(records(path)) do
    local pair, longest = {}, 0
    for _, field in ipairs { "chosen", "rejected" } do
      local tokens, mask = template:encode { messages = conversation(path, i, record.prompt, record[field], field) }
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
