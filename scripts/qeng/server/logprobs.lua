-- Log probabilities in the two forms that OpenAI's API has for them.

local q = require "qeng.core"

local logprobs = {}

-- The bytes that a token stands for; of padding beyond the tokenizer none.
local function bytes_of(tokenizer, id) return id < tokenizer:vocab_size() and tokenizer:bytes(id) or "" end
logprobs.bytes = bytes_of

local function entry(tokenizer, id, logprob)
  local text = bytes_of(tokenizer, id)
  return { token = text, logprob = logprob, bytes = q.json.array { text:byte(1, #text) } }
end

-- chat/completions: entries `first` and later of a request's output, as "content".
function logprobs.chat(r, first)
  local tokenizer, list = r.model.tokenizer, {}
  for k = first, #r.logprobs do
    local from = r.logprobs[k]
    local found = entry(tokenizer, from.id, from.logprob)
    found.top_logprobs = q.json.array {}
    for i, likely in ipairs(from.top) do found.top_logprobs[i] = entry(tokenizer, likely.id, likely.logprob) end
    list[#list + 1] = found
  end
  return { content = q.json.array(list), refusal = q.json.null }
end

-- How lists and keys have a token. One that is no text, as a part of a character, stays another than others:
-- "bytes:\xe2\x80". The second result are its bytes.
local function spelled(tokenizer, id)
  local text = bytes_of(tokenizer, id)
  if q.try(q.json.encode, text) then return text, text end
  return "bytes:" .. text:gsub("[\128-\255]", function(c) return ("\\x%02x"):format(c:byte()) end), text
end

-- completions: lists beside each other. measured: {id, logprob, top}... or false where nothing comes before; offset: of
-- the first in the text. Also returns where the next one's text begins.
function logprobs.completion(tokenizer, measured, offset)
  local found = { tokens = {}, token_logprobs = {}, top_logprobs = {}, text_offset = {} }
  for i, each in ipairs(measured) do
    local token, text = spelled(tokenizer, each.id)
    found.tokens[i], found.text_offset[i] = token, offset
    found.token_logprobs[i], found.top_logprobs[i] = q.json.null, q.json.null
    if each.logprob then
      local top = {}
      for _, likely in ipairs(each.top) do
        local key = spelled(tokenizer, likely.id)
        top[key] = top[key] or likely.logprob  -- of tokens with the same text the likeliest
      end
      found.token_logprobs[i], found.top_logprobs[i] = each.logprob, top
    end
    offset = offset + #text:gsub("[\128-\191]", "")  -- characters
  end
  for name, list in pairs(found) do found[name] = q.json.array(list) end
  return found, offset
end

return logprobs
