-- Preferences: the file's shapes, documents side by side, and a model without its adapters.
local q = require "qeng"
local scratch = require "scratch"

q.device { device = "cpu", threads = 2 }
local model = q.load("recipes/tiny", { dtype = "f32" })

local function file(text)
  q.fs.write(scratch.at "pairs.jsonl", text)
  return scratch.at "pairs.jsonl"
end
local function pair_text(prompt, chosen, rejected)
  return q.json.encode { prompt = prompt, chosen = chosen, rejected = rejected } .. "\n"
end

do  -- texts, messages and whole conversations are the same documents
  local user, good, bad = { role = "user", content = "Where?" }, { role = "assistant", content = "In Oslo." },
    { role = "assistant", content = "No idea." }
  local function documents(text) return q.preferences(file(text), model.tokenizer)[1] end
  local first = documents(pair_text("Where?", "In Oslo.", "No idea."))
  for _, text in ipairs { pair_text({ user }, { good }, { bad }), pair_text({ user }, good, bad),
    "[" .. pair_text("-", { user, good }, { user, bad }) .. "]" } do
    local other = documents(text)
    for _, field in ipairs { "chosen", "rejected" } do
      assert(table.concat(other[field].tokens, " ") == table.concat(first[field].tokens, " "))
      assert(table.concat(other[field].mask, " ") == table.concat(first[field].mask, " "))
    end
  end
  assert(model.tokenizer:decode { unpack(first.chosen.tokens, first.chosen.first) }:find "In Oslo." )
  local function texts(record)  -- of chosen: all of it, and what is trained
    local document, trained = documents(q.json.encode(record)).chosen, {}
    for i, id in ipairs(document.tokens) do if document.mask[i] == 1 then trained[#trained + 1] = id end end
    return model.tokenizer:decode(document.tokens), model.tokenizer:decode(trained)
  end
  local whole, trained = texts { prompt = { user }, chosen = { good, user, bad }, rejected = { bad, user, good } }
  assert(whole:find "user\nWhere%?.*In Oslo.*Where%?.*No idea", whole)
  assert(trained == "In Oslo.<|im_end|>No idea.<|im_end|>", trained)
  trained = select(2, texts { prompt = { user, good, user }, chosen = { bad }, rejected = { good } })
  assert(trained == "No idea.<|im_end|>", trained)
  local asked = { role = "human", content = { { type = "text", text = "Where?" } } }
  whole = texts { system = "Be brief.", prompt = { asked }, chosen = { from = "gpt", value = "In Oslo." },
    rejected = "No idea." }
  assert(whole:find "system\nBe brief.*user\nWhere%?.*assistant\nIn Oslo", whole)
  scratch.refused("record 1: chosen: images is given", texts, { images = { "a.png" }, prompt = "a", chosen = "b",
    rejected = "c" })
  scratch.refused("record 1: chosen: tools[1]: the chat template leaves it out", texts, { tools = { { name = "see" } },
    prompt = "a", chosen = "b", rejected = "c" })
  scratch.refused("chosen begins neither with the prompt", texts, { prompt = { bad, user }, chosen = { user, good },
    rejected = { user, bad } })
  scratch.refused("record 1: prompt is no text", documents, pair_text(7, "a", "b"))
  scratch.refused("record 2: rejected is no text", documents,
    pair_text("a", "b", "c") .. '{"prompt":"a","chosen":"b"}\n')
  scratch.refused("record 1: no object", documents, "7\n")
  scratch.refused("pairs.jsonl: record 2: ", documents, pair_text("a", "b", "c") .. "{\"prompt\": \n")
  scratch.refused("pairs.jsonl: ", documents, "[{\"prompt\": ")
  scratch.refused("pairs.jsonl: no records", documents, "\n\n")
  scratch.refused("record 1: route is no text", q.records, file(pair_text("a", "b", "c")), { "prompt", "route" })
  scratch.refused("no pair of at most 3 tokens, of 1", q.preferences, file(pair_text("a", "b", "c")), model.tokenizer,
    { max_tokens = 3 })
end
do  -- a packed document has the log probabilities that it has alone
  local a, b = { tokens = { 5, 9, 12, 30 }, mask = { 0, 0, 1, 1 } }, { { 7, 8, 99 }, { 0, 1, 1 } }
  local both = q.pack { a, b }
  local function alone(document) return q.pack { document }:sums(model:logprobs(q.pack { document })):item() end
  local sums = both:sums(model:logprobs(both)):table()
  assert(math.abs(sums[1] - alone(a)) < 1e-4 and math.abs(sums[2] - alone(b)) < 1e-4 and both.trained == 4)
  local logits = q.tensor(model:logits({ 7, 8, 99 }):table()):log_softmax()
  assert(math.abs(logits:at(0, 8) + logits:at(1, 99) - sums[2]) < 1e-4)
  assert(math.abs(both:means(model:logprobs(both)):at(1) * 2 - sums[2]) < 1e-4)
  scratch.refused("document 2 has no tokens", q.pack, { a, { {}, {} } })
end
do  -- without adapters the model is the one that was loaded, also after an error
  local packed = q.pack { { tokens = { 5, 9, 12, 30 }, mask = { 0, 0, 1, 1 } } }
  local function score() return packed:sums(model:logprobs(packed)):item() end
  local before = score()
  model:lora { rank = 2, seed = 1 }
  for _, each in ipairs(model:trainable()) do
    if each.name:find "lora_B" then q.no_grad(function() each.tensor:set(0.1) end) end
  end
  local after = score()
  assert(after ~= before and model:without_adapter(score) == before and score() == after)
  scratch.refused("on purpose", model.without_adapter, model, function() q.error("value", "on purpose") end)
  assert(score() == after)

  -- A gradient passes it, also where backward recomputes with the adapters on.
  local added = q.zeros({ model.config.hidden }, model.dtype)
  added:requires_grad(true)
  model:hook("embed", function(x) return x + added end)
  local slopes = {}
  for i, recompute in ipairs { false, true } do
    model.recompute = recompute
    model:without_adapter(function() return packed:sums(model:logprobs(packed)) end):sum():backward()
    slopes[i] = added:grad():norm():item()
    added:grad():fill(0)
    for _, each in ipairs(model:trainable()) do assert(not each.tensor:_reached(), each.name) end
  end
  assert(slopes[1] > 0 and math.abs(slopes[2] / slopes[1] - 1) < 1e-4, slopes[2] .. ", expected " .. slopes[1])
end
print "ok"
