-- q.grammar, q.json_schema and what generation makes of them.
local q = require "qeng"
local model = q.load "recipes/tiny"
local tokenizer = model.tokenizer

local matcher = q.grammar('root ::= "yes" | "no" [0-9]{2}'):matcher(tokenizer)
for _, id in ipairs(tokenizer:encode "no4") do
  assert(matcher:mask():allows(id) and matcher:allows(id))
  matcher:accept(id)
end
assert(not matcher:complete() and not matcher:finished())
local copy = matcher:clone()
matcher:accept(tokenizer:encode("2")[1])
assert(matcher:complete() and matcher:finished() and not copy:complete())
assert(matcher:mask():count() == 1 and matcher:mask():ids()[1] == tokenizer:info().eos and
  #matcher:mask() == tokenizer:vocab_size())
local _, err = q.try(copy.accept, copy, tokenizer:encode("x")[1])
assert(err.message:find "is not allowed here" and copy:allows(tokenizer:encode("7")[1]))
copy:reset()
assert(copy:allows(tokenizer:encode("yes")[1]))
_, err = q.try(q.grammar, "root ::= oops")
assert(err.code == "format" and err.message:find "rule oops is used and not defined")
_, err = q.try(q.json_schema, { ["if"] = {} })
assert(err.code == "unsupported" and err.message:find "keyword if")
_, err = q.try(function() q.grammar('root ::= "a"'):matcher(tokenizer, { ends = { 1e6 } }) end)
assert(err.message:find "outside the vocabulary")

-- Rules that a grammar only uses may be schemas; a special token is text only where it is spoken.
local mixed = q.grammar('root ::= "<|im_start|>" count | item', { schemas = {
  count = '{"type": "integer", "minimum": 3, "maximum": 5}',
  item = '{"$ref": "#/$defs/leaf", "$defs": {"leaf": {"enum": ["p", [1]]}}}' } })
local function takes(text, ids, opt)
  local one = mixed:matcher(tokenizer, opt)
  for _, id in ipairs(ids or tokenizer:encode(text)) do
    assert(one:mask():allows(id) == one:allows(id))
    if not one:allows(id) then return false end
    one:accept(id)
  end
  return one:complete()
end
assert(takes '"p"' and takes "[1]" and takes "<|im_start|>4" and not takes "<|im_start|>6" and not takes '"q"')
local start = tokenizer:id "<|im_start|>"
local spelled = { start, tokenizer:encode("4")[1] }
assert(takes(nil, spelled, { spoken = { start } }) and not takes(nil, spelled))
_, err = q.try(q.grammar, "root ::= a", { schemas = { b = "{}" } })
assert(err.message:find "rule a is used and not defined")
_, err = q.try(q.grammar, "root ::= a", { schemas = { a = '{"if": {}}' } })
assert(err.code == "unsupported" and err.message:find "keyword if")

-- The sampler keeps to the mask, and an answer to the schema, whatever the model prefers.
local schema = q.json_schema {
  type = "object", properties = { name = { type = "string", maxLength = 8 },
    count = { type = "integer", minimum = 0, maximum = 20 } }, required = { "name", "count" },
}
for seed = 1, 5 do
  local text = model:answer { prompt = "Record: ", grammar = schema, max_tokens = 200, temperature = 1.5, seed = seed }
  local value = q.json.decode(text)
  assert(#value.name <= 32 and value.count >= 0 and value.count <= 20, text)
end
assert(model:answer { prompt = "Hello", grammar = q.grammar 'root ::= "left" | "right"', temperature = 0,
  lookup = 4 }:match "^[lr]")

-- Requests side by side, each with a grammar of its own or none: each gives what it gives alone, with guesses or
-- without.
local grammars = { schema, q.grammar 'root ::= [a-f]{12}', false,
  q.json_schema { type = "array", items = { type = "boolean" }, minItems = 2, maxItems = 4 } }
local function together(setup, lookup)
  local engine, list = model:engine(setup), {}
  for i = 1, 12 do
    list[i] = engine:submit { prompt = "ababab " .. i, grammar = grammars[i % 4 + 1] or nil, max_tokens = 60,
      temperature = i % 3, seed = i, lookup = lookup }
  end
  engine:finish()
  assert(engine:stats().used == 0)
  engine:close()
  return list
end
local alone = together { max_batch = 1, pages = 60 }
for _, other in ipairs { together { max_batch = 5, pages = 60, chunk = 3 },
    together({ max_batch = 12, pages = 100 }, 4) } do
  for i, request in ipairs(other) do
    assert(table.concat(request.output, " ") == table.concat(alone[i].output, " "),
      "request " .. i .. " differs with its company")
    local text = tokenizer:decode(request.output)
    if i % 4 + 1 == 2 then assert(text:match "^[a-f]+$" and #text == 12, text) end
    if i % 4 + 1 == 4 then assert(#q.json.decode(text) >= 2, text) end
  end
end

-- Log-probabilities of a prompt.
local ids = tokenizer:encode "The cat sat on the mat."
local logits, targets = model:logits(ids), {}
for i = 2, #ids do targets[i - 1] = ids[i] end
targets[#ids] = -1
local rows = q.logits.logprobs(logits, targets, { top = 2 })
assert(#rows == #ids and rows[1].id == ids[2] and rows[1].logprob < 0 and rows[#ids].logprob == nil)
assert(rows[3].top[1].logprob >= rows[3].top[2].logprob and rows[3].top[1].logprob >= rows[3].logprob)
local divergence, same = q.logits.compare(logits, logits)
assert(#divergence == #ids and math.abs(divergence[1]) < 1e-12 and same == #ids)
