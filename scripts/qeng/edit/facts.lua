-- Facts, and the token ids of what is asked and said of them. A fact:
--   subject, prompt              "Paris", "{} lies in the country of": {} is where the subject stands
--   target_new, target_true      what is to follow the prompt, and what follows it in truth
--   paraphrases, neighborhood    lists of other ways to ask it ({} as in the prompt), and of prompts about others of
--                                whom target_true is true

local look = require "qeng.model.look"
local q = require "qeng.core"

local facts = {}

local function fail(name, text, ...) q.error("format", ("%s: " .. text):format(name, ...)) end

-- Refuses what is no fact, under this name.
function facts.check(fact, name)
  if type(fact) ~= "table" then fail(name, "a fact is a table, not a %s", type(fact)) end
  for _, field in ipairs { "subject", "prompt", "target_new", "target_true" } do
    if type(fact[field]) ~= "string" or not fact[field]:find "%S" then fail(name, "%s is no text", field) end
  end
  local _, places = fact.prompt:gsub("{}", "")
  if places ~= 1 then fail(name, "the prompt %q has {} %d times, expected it once", fact.prompt, places) end
  if fact.target_new == fact.target_true then fail(name, "target_new is target_true: %s", fact.target_new) end
  for _, field in ipairs { "paraphrases", "neighborhood" } do
    if fact[field] ~= nil and type(fact[field]) ~= "table" then fail(name, "%s is no list", field) end
    for _, text in ipairs(fact[field] or {}) do
      if type(text) ~= "string" then fail(name, "%s has what is no text", field) end
    end
  end
  return fact
end

-- Those of a file, JSONL or a JSON array.
function facts.read(path)
  local list = q.records(path)
  for i, fact in ipairs(list) do facts.check(fact, ("%s: record %d"):format(path, i)) end
  return list
end

-- How many tokens two lists begin with alike.
local function alike(a, b)
  local n = 0
  while n < #a and a[n + 1] == b[n + 1] do n = n + 1 end
  return n
end

-- The ids of a text behind those of a context, which is a sentence of its own.
local function ids_of(tokenizer, context, text)
  if #context == 0 then return look.text_ids(tokenizer, text) end
  local info = tokenizer:info()
  local ids = info.add_bos and info.bos and { info.bos } or {}
  for _, part in ipairs { context, tokenizer:encode(". " .. text) } do
    for _, id in ipairs(part) do ids[#ids + 1] = id end
  end
  return ids
end

-- The text of a template about a subject.
function facts.text(template, subject) return (template:gsub("{}", function() return subject end)) end

-- A document as q.pack takes it: a text, and what follows it ("": nothing), whose tokens are the ones of the mask.
-- prompt: how many tokens come before. context: ids in front.
function facts.document(tokenizer, text, target, context)
  context = context or {}
  local prompt = ids_of(tokenizer, context, text)
  local tokens = target == "" and prompt or ids_of(tokenizer, context, text .. " " .. target)
  local count, mask = alike(prompt, tokens), {}
  for i = 1, #tokens do mask[i] = i > count and 1 or 0 end
  return { tokens = tokens, mask = mask, prompt = count }
end

-- The same of a template with a subject. subject: the position, from 0, of the subject's last token.
function facts.about(tokenizer, template, subject, target, context)
  local before = template:match "^(.-){}"
  local document = facts.document(tokenizer, facts.text(template, subject), target, context)
  local head = ids_of(tokenizer, context or {}, before .. subject)
  local count = alike(head, document.tokens)
  -- Where a token has the subject's end and more, it is the first that differs.
  document.subject = math.min(count == #head and count - 1 or count, #document.tokens - 1)
  return document
end

return facts
