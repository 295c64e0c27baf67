-- Facts hidden in a text: they are where they should be, and a type's figures are those of the model's logits.
local needle = require "qeng.turboquant.needle"
local q = require "qeng"
local quality = require "qeng.turboquant.quality"
local scratch = require "scratch"
q.device { device = "cpu", threads = 1 }

local model = q.load("recipes/tiny", { dtype = "f32" })
local ids, tokenizer = {}, model.tokenizer
for i = 1, 1000 do ids[i] = 40 + (i * i * 7 + 3 * i) % 200 end
local planted = needle.plant(tokenizer, ids)
assert(#planted.ids == #ids and #planted.answers == 11)
local text, last = tokenizer:decode(planted.ids), 0
for i, answer in ipairs(planted.answers) do
  local number = tokenizer:decode(answer.ids):match "%d+"
  local _, count = text:gsub("is " .. number .. "%.", "")
  assert(count == 2, ("fact %d is there %d times"):format(i, count))
  local at = text:find(number, 1, true)
  assert(at > last, "facts lie in the order of their depths")
  last = at
  for k, id in ipairs(answer.ids) do assert(planted.ids[answer.at + k + 1] == id) end
  for j = 1, i - 1 do assert(tokenizer:decode(planted.answers[j].ids) ~= tokenizer:decode(answer.ids)) end
end
assert(planted.ids[1] == ids[1] and planted.ids[2] ~= ids[2], "the first fact follows the first token")
scratch.refused("needles take 442 tokens", needle.plant, tokenizer, { unpack(ids, 1, 500) })

local types = { quality.parse(model, "f32"), quality.parse(model, "tq2") }
local figures = needle.document(model, ids, types)
local rows = model:logits(planted.ids):log_softmax():table()
for i, answer in ipairs(planted.answers) do
  local expected, found = 0, 1
  for k = 1, #answer.ids - 1 do
    local row, id = rows[answer.at + k], answer.ids[k]
    expected = expected + row[id + 1]
    for _, x in ipairs(row) do
      if x > row[id + 1] then found = 0 end
    end
  end
  assert(math.abs(figures.f32.logprob[i] - expected) < 1e-2, "the log probability of an answer")
  assert(figures.f32.found[i] == found)
end
local columns, lines = needle.rows(types, { figures, figures })
assert(#columns == 14 and lines[1][3] == "" and lines[2][3] ~= "" and lines[2][1] == "tq2")
