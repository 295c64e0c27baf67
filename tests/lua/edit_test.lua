-- q.edit: what the algebra promises, undo to the bit, scores of answers that are known, and what is refused.
local q = require "qeng"
local cholesky = require "qeng.edit.cholesky"
local facts = require "qeng.edit.facts"
local scores = require "qeng.edit.scores"
local scratch = require "scratch"
local sites = require "qeng.edit.sites"

q.device { device = "cpu", threads = 2 }
require("qeng.console.progress").silent = true
local refused = scratch.refused
local model = q.load("recipes/tiny", { dtype = "f32" })
local tokenizer = model.tokenizer
local function near(a, b, most) return (a - b):abs():max():item() <= most end

do  -- A x = b for a matrix that is B B^T + 1, in float64
  local n, b, rows, x, right = 7, {}, {}, {}, {}
  for i = 1, n do
    b[i] = {}
    for j = 1, n do b[i][j] = math.sin(3 * i + j * j) end
    x[i] = i - 3.5
  end
  for i = 1, n do
    rows[i], right[i] = {}, 0
    for j = 1, n do
      rows[i][j] = 0
      for k = 1, n do rows[i][j] = rows[i][j] + b[i][k] * b[j][k] end
    end
    for j = 1, n do right[i] = right[i] + (rows[i][j] + (i == j and 1 or 0)) * x[j] end
  end
  local solved = cholesky.factor(n, function(i) return rows[i] end, 1):solve(right)
  for i = 1, n do assert(math.abs(solved[i] - x[i]) < 1e-12, solved[i]) end
  rows[3][3] = -5
  refused("not positive definite (row 3 leaves ", cholesky.factor, n, function(i) return rows[i] end, 1)
end

local text = ("Where is the hat of Petra? It is in Oslo. How many dogs are there? There are three. "):rep(20)
local fact = { subject = "the hat", prompt = "Where is {}? It is in", target_new = "Petra", target_true = "Kiel",
  paraphrases = { "Say, where is {}?" }, neighborhood = { "Where is the kettle?", "Where is the dog?" } }
local other = { subject = "the kettle", prompt = "Is {} here? It is in", target_new = "Oslo", target_true = "Kiel" }

do  -- the subject's last token is where the subject ends, whatever stands in front
  for _, context in ipairs { {}, tokenizer:encode "How many dogs" } do
    local document = facts.about(tokenizer, fact.prompt, fact.subject, fact.target_new, context)
    local head = tokenizer:decode { unpack(document.tokens, 1, document.subject + 1) }
    assert(head:find "the hat$" and (#context > 0) == (head:find "^How many dogs%. " ~= nil), head)
    local answer = {}
    for i, trained in ipairs(document.mask) do
      if trained == 1 then answer[#answer + 1] = document.tokens[i] end
    end
    assert(tokenizer:decode(answer) == " Petra" and document.mask[document.prompt] == 0
      and document.mask[document.prompt + 1] == 1)
  end
end

local known = q.edit.statistics(model, { layers = { 0, 1 }, text = text, tokens = 600 })
do  -- C is the sum over the keys of the text
  local ids = { unpack(tokenizer:encode(text), 1, 600) }
  local sum, count = known:sum(1)
  assert(count == #ids and count > 256, count)
  local expected, site = 0, sites.of(model, 1)
  for first = 1, #ids, 256 do
    sites.pass(model, { site }, "layers.1", { unpack(ids, first, math.min(first + 255, #ids)) }, function(_, k)
      expected = expected + (k * k):sum():item()
    end, function() end)
  end
  local trace = 0
  for i = 0, sum:shape()[1] - 1 do trace = trace + sum:at(i, i) end
  assert(math.abs(trace / expected - 1) < 1e-5, trace .. " and " .. expected)
  -- and solve() is its inverse with the ridge, in float64
  local n, rows = sum:shape()[1], sum:reshape({ sum:elements() }):table()
  local key = q.randn({ n }, { seed = 3 }):table()
  local x = known:solve(1, { key })[1]
  for r = 1, n do
    local back = 0.01 * trace / count / n * x[r]
    for c = 1, n do back = back + rows[(r - 1) * n + c] / count * x[c] end
    assert(math.abs(back - key[r]) < 1e-6, back - key[r])
  end
end

local function hashes()
  local list = {}
  for i, parameter in ipairs(model.parameters) do list[i] = parameter.tensor:hash() end
  return list
end
local function changed(before)
  local names = {}
  for i, hash in ipairs(hashes()) do
    if hash ~= before[i] then names[#names + 1] = model.parameters[i].name end
  end
  return table.concat(names, " ")
end
local before, plain = hashes(), model:logits("Where is the hat?"):hash()
local first = "model.layers.0.mlp.down_proj.weight"
local second = "model.layers.1.mlp.down_proj.weight"

do  -- ROME: one matrix changes by one rank, so that W' k = v; undone it has its bits
  local old = sites.of(model, 1).layer.weight
  local edit = q.edit.rome(model, fact, { layer = 1, statistics = known, steps = 8, lr = 1 })
  assert(changed(before) == second and model:logits("Where is the hat?"):hash() ~= plain)
  local new = sites.of(model, 1).layer.weight
  assert(near(new:matmul(edit.key), edit.value, 1e-3 * edit.value:abs():max():item()))
  assert(not near(old:matmul(edit.key), edit.value, 0.1 * edit.value:abs():max():item()))
  local change, pivot = new - old, (new - old):abs():max(1):argmax():item()
  local column = change:slice(2, pivot, pivot + 1)
  local row = change:rows(column:abs():reshape({ -1 }):argmax():item(), 1)
  local rank_one = column * row / row:at(0, pivot)
  assert(near(rank_one, change, 1e-3 * change:abs():max():item()), "the change has more than one rank")
  assert(edit.found[1].steps == 7 and edit.found[1].nll < 8)
  local scored = q.edit.scores(model, { fact }, 0)
  assert(scored:figures().efficacy == 1)
  edit:undo()
  assert(changed(before) == "" and model:logits("Where is the hat?"):hash() == plain and #edit.weights == 0)
  edit:undo()  -- there is nothing left to undo
end

do  -- the same edit has the same bits; an engine that remembers forgets what the weights were
  local engine = model:engine { pages = 32, page_tokens = 8 }
  local function said()
    local request = engine:submit { prompt = "Where is the hat? It is in", max_tokens = 6, temperature = 0 }
    engine:finish()
    return request.text
  end
  local answer = said()
  local edit = q.edit.rome(model, fact, { layer = 1, statistics = known, lr = 1, clamp = 4 })
  local hash, now = sites.of(model, 1).layer.weight:hash(), said()
  assert(now ~= answer and now:find "^ Petra", now)
  edit:undo()
  assert(said() == answer)
  edit = q.edit.rome(model, fact, { layer = 1, statistics = known, lr = 1, clamp = 4 })
  assert(sites.of(model, 1).layer.weight:hash() == hash)
  edit:undo()
end

do  -- MEMIT: both layers change, both facts hold; edits are undone in the opposite order
  local edit = q.edit.memit(model, { fact, other }, { layers = { 0, 1 }, statistics = known, lambda = 1, lr = 1 })
  assert(changed(before) == first .. " " .. second)
  local scored = q.edit.scores(model, { fact, other }, 0)
  assert(scored:figures().efficacy == 1, scored:figures().efficacy)
  local later = q.edit.rome(model, other, { layer = 0, statistics = known, steps = 3 })
  refused(first .. " has been changed since: undo what came later first", edit.undo, edit)
  assert(changed(before) == first .. " " .. second)
  later:undo()
  edit:undo()
  assert(changed(before) == "")
end

do  -- one fact in one layer: MEMIT's change is ROME's at lambda = 0, at the same place of the residual stream
  local where = { layers = { 1 }, statistics = known, steps = 1, lambda = 0 }
  local edit = q.edit.memit(model, { fact }, where)
  assert(changed(before) == "", "without a step there is nothing to add")
  edit:undo()
end

do  -- a weight in blocks is decoded for the edit, and is itself again afterwards
  local path = scratch.at "tiny.gguf"
  model:save_gguf(path, { type = "q8_0" })
  local packed = q.load(path, { dtype = "f32" })
  local weight = sites.of(packed, 1).layer.weight
  local said, edit = scratch.said(q.edit.rome, packed, fact, { layer = 1, statistics = known, steps = 3 })
  assert(said == second .. ": q8_0 is decoded to f32 for the edit\n", said)
  assert(weight:dtype() == "q8_0" and sites.of(packed, 1).layer.weight:dtype() == "f32")
  edit:undo()
  assert(sites.of(packed, 1).layer.weight == weight)
end

do  -- scores: of log probabilities and greedy answers that model:logits gives too
  local scored = q.edit.scores(model, { fact }, 0)
  local answer = scored.facts[1].prompts[1]
  local prompt = tokenizer:encode "Where is the hat? It is in"
  for _, pair in ipairs { { answer.new, " Petra" }, { answer.old, " Kiel" } } do
    local ids, target, sum, exact = { unpack(prompt) }, tokenizer:encode(pair[2]), 0, true
    for _, id in ipairs(target) do ids[#ids + 1] = id end
    local logits = model:logits(ids)
    for i, id in ipairs(target) do
      local row = logits:rows(#prompt + i - 2, 1):log_softmax()
      sum, exact = sum + row:at(0, id), exact and row:argmax():item() == id
    end
    assert(math.abs(sum / #target - pair[1].logprob) < 1e-4 and exact == pair[1].exact)
    assert(pair[1].greedy == logits:top(1, #prompt - 1)[1].id)
  end
  assert(#scored.facts[1].neighborhood == 2 and #scored.facts[1].paraphrases == 1)
  local both = q.edit.scores(model, {}, 0)
  both:add(scored)
  both:add(q.edit.scores(model, { other }, 8))
  local found = both:figures()
  assert(#both.facts == 2 and #both.texts == 1 and found.kept == 1 and found.locality ~= nil)
  assert(q.edit.scores(model, { other }, 0):figures().locality == nil)
  -- a b a b a: pairs ab ba ab ba, triples aba bab aba
  local triples = -(2 / 3 * math.log(2 / 3) + 1 / 3 * math.log(1 / 3)) / math.log(2)
  assert(math.abs(scores.entropy "a b a b a" - (2 / 3 * 1 + 4 / 3 * triples) / 2) < 1e-12)
  assert(scores.entropy "the the the the" == 0 and scores.entropy "two words" == nil)
  assert(scores.entropy "No, it is." == scores.entropy "No , it is .")
end

-- ---------------------------------------------------------------- what is refused

local function with(changes)
  local copy = {}
  for key, value in pairs(fact) do copy[key] = value end
  for key, value in pairs(changes) do copy[key] = value end
  return copy
end
local rome = { layer = 1, statistics = known }
refused("edit.rome: a fact is a table, not a string", q.edit.rome, model, "Paris", rome)
refused("edit.rome: subject is no text", q.edit.rome, model, with { subject = " " }, rome)
refused('the prompt "Where?" has {} 0 times', q.edit.rome, model, with { prompt = "Where?" }, rome)
refused("target_new is target_true: Kiel", q.edit.rome, model, with { target_new = "Kiel" }, rome)
refused("paraphrases is no list", q.edit.rome, model, with { paraphrases = "Where?" }, rome)
refused("edit.memit: fact 2: target_true is no text", q.edit.memit, model, { fact, with { target_true = 7 } }, {})
refused("edit.memit: a list of facts is expected", q.edit.memit, model, {}, {})
refused("edit.rome: there is no option rank", q.edit.rome, model, fact, { rank = 1 })
refused("there is no layer 3; the model has layers 0 to 2", q.edit.rome, model, fact, { layer = 3, statistics = known })
refused("there are no statistics of layer 2", q.edit.rome, model, fact, { layer = 2, statistics = known })
refused("statistics take a list", q.edit.statistics, model, { text = text })
refused("layers are listed in their order", q.edit.statistics, model, { layers = { 1, 0 }, text = text })
refused("the text has no tokens", q.edit.statistics, model, { layers = { 1 }, text = "" })
refused("is not positive definite", function()
  q.edit.rome(model, fact, { layer = 1, steps = 1,
    statistics = q.edit.statistics(model, { layers = { 1 }, text = "Where?", ridge = 0 }) })
end)
q.fs.write(scratch.at "facts.jsonl", q.json.encode(fact) .. "\n" .. q.json.encode(with { prompt = 5 }) .. "\n")
refused("facts.jsonl: record 2: prompt is no text", q.edit.facts, scratch.at "facts.jsonl")
model:lora { rank = 2, targets = { "q_proj" } }
refused("the model is being trained", q.edit.rome, model, fact, rome)
local adapted = q.load("recipes/tiny", { dtype = "f32" }):lora { rank = 2, targets = { "layers.1.mlp.down_proj" } }
refused("down_proj.weight has an adapter: merge it first", q.edit.rome, adapted, fact, rome)
local gemma = q.random_model({
  architectures = { "Gemma3ForCausalLM" }, model_type = "gemma3_text", vocab_size = 96, hidden_size = 32,
  num_hidden_layers = 2, num_attention_heads = 2, num_key_value_heads = 1, intermediate_size = 48, head_dim = 16,
  max_position_embeddings = 128, rms_norm_eps = 1e-6, hidden_activation = "gelu_pytorch_tanh", sliding_window = 64,
  query_pre_attn_scalar = 16, tie_word_embeddings = true, rope_theta = 10000, rope_local_base_freq = 10000,
}, { seed = 5, std = 0.3 })
refused("layer 1 does not simply add its MLP's output", q.edit.memit, gemma, { fact },
  { layers = { 1 }, statistics = known })
print "edit: ok"
