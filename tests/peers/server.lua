-- What the engine says by itself, for server_check.py: qeng tests/peers/server.lua REQUESTS ANSWERS, where REQUESTS is
-- a JSON list of options of requests (infer/request.lua) and ANSWERS gets their texts and log probabilities.
local q = require "qeng"

q.device { device = "cpu" }
local model = q.load "recipes/tiny"
local engine, list, answers = model:engine { max_batch = 1 }, q.json.decode(q.fs.read(arg[1])), {}
for i, opt in ipairs(list) do
  local r = engine:submit(opt)
  engine:finish()
  local logprobs = {}
  for k, entry in ipairs(r.logprobs or {}) do logprobs[k] = entry.logprob end
  answers[i] = { text = r.text, logprobs = q.json.array(logprobs), tokens = #r.output }
end
q.fs.write(arg[2], q.json.encode(answers))
