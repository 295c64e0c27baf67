-- Draws outputs by random walks over qeng's masks, for each schema (a line of FILE), and prints them as a line of JSON.
-- schemas.py uses it.
--   qeng tests/campaigns/schemas.lua FILE TOKENIZER WALKS SEED
local q = require "qeng"

local path, folder, walks, seed = arg[1], arg[2], tonumber(arg[3]), tonumber(arg[4])
local tokenizer = q.tokenizer(folder)
local eos = tokenizer:info().eos
local kLimit = 500

local state = seed * 7919 + 1
local function random(n) state = (state * 1103515245 + 12345) % 2147483648; return math.floor(state / 65536) % n end

-- How each token helps to end a text: 2 closes something, 1 is structure or a digit, 0 is anything else.
local rank = {}
for id = 0, tokenizer:vocab_size() - 1 do
  local bytes = tokenizer:bytes(id)
  rank[id] = (id == eos or bytes:match '^["%]}]$') and 2 or bytes:match '^[%s,:%d"%[{}%]truefalsn]+$' and 1 or 0
end

local function pick(ids, closing)
  local best = {}
  local wanted = closing and 2 or random(2) == 0 and 1 or random(8) == 0 and 2 or -1
  while wanted > 0 do
    for _, id in ipairs(ids) do
      if rank[id] == wanted then best[#best + 1] = id end
    end
    if #best > 0 then return best[random(#best) + 1] end
    wanted = wanted - 1
  end
  return ids[random(#ids) + 1]
end

for line in io.lines(path) do
  local grammar, err = q.try(q.json_schema, line)
  local answer = { refused = err and err.message, walks = q.json.array {} }
  for w = 1, grammar and walks or 0 do
    local matcher, ids = grammar:matcher(tokenizer), {}
    repeat
      local allowed = matcher:mask():ids()
      if #allowed == 0 then q.error("internal", "stuck after " .. tokenizer:decode(ids) .. " under " .. line) end
      local id = pick(allowed, #ids > 60)
      matcher:accept(id)
      if id ~= eos then ids[#ids + 1] = id end
    until id == eos or matcher:finished() or #ids == kLimit
    local done = matcher:complete()
    answer.walks[w] = { text = done and tokenizer:decode(ids) or "", done = done, tokens = #ids }
  end
  print(q.json.encode(answer))
end
