-- What the engine says by itself, for checks of the server: qeng tests/peers/server.lua REQUESTS ANSWERS, where
-- REQUESTS is a JSON list of options of requests (infer/request.lua) and ANSWERS gets their texts and log
-- probabilities; where a request asks for those of its prompt, also these, each beside that of the likeliest token.
local q = require "qeng"

q.device { device = "cpu" }
local model = q.load "recipes/tiny"
local engine, list, answers = model:engine { max_batch = 1 }, q.json.decode(q.fs.read(arg[1])), {}
for i, opt in ipairs(list) do
  local r = engine:submit(opt)
  engine:finish()
  local logprobs = {}
  for k, entry in ipairs(r.logprobs or {}) do logprobs[k] = entry.logprob end
  local prompt = {}
  for k = 2, #(r.prompt_logprobs_list or {}) do
    local entry = r.prompt_logprobs_list[k]
    prompt[k - 1] = { entry.logprob, entry.top[1].logprob }
  end
  answers[i] = { text = r.text, logprobs = q.json.array(logprobs), tokens = #r.output, prompt = q.json.array(prompt),
    prompt_tokens = r.prompt_tokens }
end
q.fs.write(arg[2], q.json.encode(answers))
