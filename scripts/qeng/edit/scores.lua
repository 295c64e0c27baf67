-- What a model says about facts, as CounterFact scores it (Meng et al. 2022, arXiv 2202.05262, appendix D). A target's
-- probability is the mean of the log probabilities of its tokens.

local facts = require "qeng.edit.facts"
local q = require "qeng.core"

local scores = {}

local Scores = {}
Scores.__index = Scores

-- For each text and target, {text, target}: logprob (mean over the target's tokens), exact (whether each of them is the
-- likeliest), greedy (the likeliest first token).
local function asked(model, pairs_)
  local documents, rows, targets, first, found = {}, {}, {}, 0, {}
  for d, pair in ipairs(pairs_) do
    local document = facts.document(model.tokenizer, pair[1], pair[2])
    documents[d] = document
    for i = document.prompt, #document.tokens - 1 do
      rows[#rows + 1], targets[#targets + 1] = first + i - 1, { document.tokens[i + 1] }
    end
    first = first + #document.tokens
  end
  local logprobs, best = q.no_grad(q.scope, function()
    local hidden = model:hidden(q.pack(documents)):index_select(1, rows)
    local all = q.linear(hidden, model.head, { out = "f32" }):log_softmax():compute()
    return all:gather(2, targets):squeeze(2):table(), all:argmax():table()
  end)
  local at = 0
  for d, document in ipairs(documents) do
    local count, sum, exact = #document.tokens - document.prompt, 0, true
    for i = 1, count do
      sum = sum + logprobs[at + i]
      exact = exact and best[at + i] == targets[at + i][1]
    end
    found[d] = { logprob = sum / count, exact = exact, greedy = best[at + 1] }
    at = at + count
  end
  return found
end

-- Bits of the n-grams of words and punctuation, that of pairs weighted 2/3 and that of triples 4/3, and their mean: a
-- text that repeats itself has few. nil where there are no three words.
function scores.entropy(text)
  local words, total = {}, 0
  for word in text:gsub("%p", " %0 "):gmatch "%S+" do words[#words + 1] = word end
  if #words < 3 then return nil end
  for n, weight in pairs { [2] = 2 / 3, [3] = 4 / 3 } do
    local counts, all = {}, #words - n + 1
    for i = 1, all do
      local gram = table.concat(words, " ", i, i + n - 1)
      counts[gram] = (counts[gram] or 0) + 1
    end
    local bits = 0
    for _, count in pairs(counts) do bits = bits - count / all * math.log(count / all) / math.log(2) end
    total = total + weight * bits / 2
  end
  return total
end

-- What follows each fact's prompt, drawn from the five likeliest tokens.
local function continued(model, list, tokens)
  if tokens == 0 then return {} end
  local engine, texts = model:engine { max_batch = #list }, {}
  for i, fact in ipairs(list) do
    texts[i] = engine:submit { prompt = facts.text(fact.prompt, fact.subject), max_tokens = tokens, temperature = 1,
      top_k = 5, seed = 0 }
  end
  engine:finish()
  engine:close()
  for i, request in ipairs(texts) do
    if request.error then error(request.error, 0) end
    texts[i] = request.text
  end
  return texts
end

-- One fact: prompts, paraphrases and neighborhood, each a list of {new =, old =} as `asked` has them.
local function of_fact(model, fact)
  local texts, queries = { { "prompts", fact.prompt } }, {}
  local kinds = { prompts = {}, paraphrases = {}, neighborhood = {} }
  for _, kind in ipairs { "paraphrases", "neighborhood" } do
    for _, text in ipairs(fact[kind] or {}) do texts[#texts + 1] = { kind, text } end
  end
  for _, text in ipairs(texts) do
    for _, target in ipairs { fact.target_new, fact.target_true } do
      queries[#queries + 1] = { facts.text(text[2], fact.subject), target }
    end
  end
  local found = asked(model, queries)
  for i, text in ipairs(texts) do table.insert(kinds[text[1]], { new = found[2 * i - 1], old = found[2 * i] }) end
  return kinds
end

-- The scores of a list of facts: what each one's answers are, in `facts`, and what follows the prompts, in `texts`.
-- tokens: how many follow them (64).
function scores.of(model, list, tokens)
  local result = setmetatable({ facts = {} }, Scores)
  for i, fact in ipairs(list) do result.facts[i] = of_fact(model, facts.check(fact, ("fact %d"):format(i))) end
  result.texts = #list > 0 and continued(model, list, tokens or 64) or {}
  return result
end

-- Appends those of other facts.
function Scores:add(other)
  for _, name in ipairs { "facts", "texts" } do
    for _, one in ipairs(other[name]) do table.insert(self[name], one) end
  end
end

-- The share of answers of a kind of which holds(answer, fact, number) is true, or nil where there are none.
local function share(self, kind, holds)
  local count, all = 0, 0
  for i, fact in ipairs(self.facts) do
    for k, answer in ipairs(fact[kind]) do
      all = all + 1
      if holds(answer, i, k) then count = count + 1 end
    end
  end
  return all > 0 and count / all or nil
end

local function prefers_new(answer) return answer.new.logprob > answer.old.logprob end

-- Shares, nil where nothing is asked:
--   efficacy    prompts after which target_new is likelier than target_true
--   exact       prompts that target_new follows greedily
--   paraphrase  as efficacy, of the paraphrases
--   locality    neighbours of whom target_true is likelier than target_new
--   kept        neighbours whose likeliest next token is that of `before`, scores of the same facts
-- and fluency: the mean of scores.entropy over the texts.
function Scores:figures(before)
  local figures = {
    efficacy = share(self, "prompts", prefers_new), paraphrase = share(self, "paraphrases", prefers_new),
    exact = share(self, "prompts", function(answer) return answer.new.exact end),
    locality = share(self, "neighborhood", function(answer) return answer.old.logprob > answer.new.logprob end),
    kept = share(self, "neighborhood", function(answer, i, k)
      return answer.new.greedy == (before or self).facts[i].neighborhood[k].new.greedy
    end),
  }
  local sum, count = 0, 0
  for _, text in ipairs(self.texts) do
    local bits = scores.entropy(text)
    if bits then sum, count = sum + bits, count + 1 end
  end
  figures.fluency = count > 0 and sum / count or nil
  return figures
end

scores.Scores = Scores
return scores
