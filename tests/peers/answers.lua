-- Answers a request of qeng.py:  qeng tests/peers/answers.lua REQUEST.json FOLDER
-- Request: model (or only tokenizer), adapter (none), texts, chats, ids, and prompt (ids) with count.
-- FOLDER/answers.json gets:
--   tokens   the ids of each text; names of special tokens in it are these, unless special is false
--   prompts  the ids of each chat, with what opens the answer
--   greedy   the likeliest `count` tokens after prompt
-- FOLDER/logits.safetensors gets logits [#ids, vocab] f32, as generation computes them.
local q = require "qeng"
local request = require "qeng.infer.request"
local scoring = require "qeng.infer.scoring"

local asked, folder = q.json.decode(q.fs.read(arg[1])), arg[2]
q.device { device = "cpu" }
local model = asked.model and q.load(asked.model, { dtype = "f32" }) or { tokenizer = q.tokenizer(asked.tokenizer) }
if asked.adapter then model:load_adapter(asked.adapter) end
local answers = { tokens = q.json.array {}, prompts = q.json.array {} }

for i, text in ipairs(asked.texts or {}) do
  answers.tokens[i] = q.json.array(model.tokenizer:encode(text, { special = asked.special ~= false }))
end
for i, messages in ipairs(asked.chats or {}) do
  answers.prompts[i] = q.json.array(request.ids(model, { messages = messages }))
end

if asked.ids then
  local logits, wanted = q.zeros({ #asked.ids, model.config.vocab }, "f32"), {}
  for i = 1, #asked.ids do wanted[i] = i - 1 end
  local scorer = scoring.new(model, { tokens = #asked.ids, kv = "f32" })
  scorer:run(asked.ids, wanted, function(rows, first) logits:rows(first - 1, rows:shape()[1]):copy(rows) end)
  q.safetensors.save(folder .. "/logits.safetensors", { { "logits", logits } })
end

if asked.count then
  local pieces, said = model:generate { ids = asked.prompt, max_tokens = asked.count, temperature = 0, stop_ids = {},
    kv = "f32" }
  while pieces() do end
  answers.greedy = q.json.array(said.output)
end

q.fs.write(folder .. "/answers.json", q.json.encode(answers))
