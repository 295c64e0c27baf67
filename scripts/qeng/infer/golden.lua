-- A golden set: a model's answers to ten prompts when it takes the likeliest token. They are kept in a file, and
-- compared later with another run, backend or file of the same weights. Kept are the ids of prompt and answer, and the
-- likeliest tokens of each step with their log-probabilities.
--
-- A first difference is a tie if the token that came was less likely than the kept one by less than epsilon: rounding
-- decides between them. After a difference the later steps of an answer say nothing. The divergence of each step (KL of
-- the kept likeliest tokens, and the rest as one) does: it is measured with the kept answer as context.

local generate = require "qeng.infer.generate"
local q = require "qeng.core"
local request = require "qeng.infer.request"
local scoring = require "qeng.infer.scoring"

local golden = {}

golden.prompts = {
  "The capital of France is",
  "def fibonacci(n):\n    ",
  "Once upon a time there was a girl who",
  "Water boils at a temperature of",
  "#include <stdio.h>\n\nint main(void) {\n",
  "The three primary colours are",
  "SELECT name, count(*) FROM orders WHERE",
  "Dear Ms. Fischer,\n\nthank you for",
  "1, 1, 2, 3, 5, 8, 13,",
  "{\"name\": \"Ada\", \"year\": 1815, \"",
}
local top = 10  -- likeliest tokens kept for each step

-- The answers of a model: {tokenizer =, steps =, answers = {{prompt, ids, output, top = {{{id, logprob}...}...}}...}}.
function golden.record(model, steps)
  local answers = {}
  for i, prompt in ipairs(golden.prompts) do
    local ids = request.ids(model, { prompt = prompt })
    local next_id, made = generate.tokens(model, ids, {
      max_tokens = steps, temperature = 0, stop_ids = {}, logprobs = top,
    })
    local output, kept = {}, {}
    for id in next_id do output[#output + 1] = id end
    for k, step in ipairs(made.logprobs) do
      kept[k] = {}
      for j, likely in ipairs(step.top) do kept[k][j] = { likely.id, likely.logprob } end
    end
    answers[i] = { prompt = prompt, ids = ids, output = output, top = kept }
  end
  return { tokenizer = model.tokenizer:hash(), steps = steps, answers = answers }
end

-- The set that a file keeps.
function golden.read(path)
  local set = q.try(q.json.decode, q.fs.read(path))
  if type(set) ~= "table" or type(set.answers) ~= "table" then
    q.error("format", path .. ": is no golden set; --write makes one")
  end
  return set
end

-- KL(kept || model) of each step of a kept answer, with the kept answer as context.
local function divergences(model, answer)
  local ids, wanted = {}, {}
  for _, id in ipairs(answer.ids) do ids[#ids + 1] = id end
  for k = 1, #answer.output do
    wanted[k] = #answer.ids + k - 2
    if k < #answer.output then ids[#ids + 1] = answer.output[k] end
  end
  local list = {}
  local scorer = scoring.new(model, { tokens = #ids })
  scorer:run(ids, wanted, function(logits, first)
    local rows = logits:shape()[1]
    for k = 1, rows do list[first + k - 1] = { rest_p = 1, rest_q = 1, sum = 0 } end
    for j = 1, #answer.top[1] do
      local these = {}
      for k = 1, rows do these[k] = answer.top[first + k - 1][j][1] end
      for k, row in ipairs(q.logits.logprobs(logits, these)) do
        local step, log_p = list[first + k - 1], answer.top[first + k - 1][j][2]
        step.sum = step.sum + math.exp(log_p) * (log_p - row.logprob)
        step.rest_p, step.rest_q = step.rest_p - math.exp(log_p), step.rest_q - math.exp(row.logprob)
      end
    end
  end)
  scorer:free()
  for k, step in ipairs(list) do
    local p, r = step.rest_p, step.rest_q
    list[k] = step.sum + (p > 1e-9 and r > 1e-12 and p * math.log(p / r) or 0)
  end
  return list
end

-- How much likelier the first of `likely` was than another token; math.huge if that is not among them.
local function gap(likely, other)
  for _, entry in ipairs(likely) do
    if entry[1] == other then return likely[1][2] - entry[2] end
  end
  return math.huge
end

-- Compares a model with a kept set. Returns for each answer {prompt, result = "same" | "tie" | "different", step, gap,
-- kept, got, kl, kl_most}, and the number of different ones. step: the first difference. gap: how much likelier the
-- kept token was than the one that came.
function golden.compare(model, set, epsilon)
  if set.tokenizer ~= model.tokenizer:hash() then
    q.error("value", "golden: the set was made with another tokenizer; write it anew")
  end
  local results, different = {}, 0
  for i, answer in ipairs(set.answers) do
    local result = { prompt = answer.prompt, result = "same" }
    local output, step = {}, 0
    local opt = { max_tokens = #answer.output, temperature = 0, stop_ids = {} }
    for id in (generate.tokens(model, answer.ids, opt)) do output[#output + 1] = id end
    for k, id in ipairs(answer.output) do
      if output[k] ~= id then step = k break end
    end
    if step > 0 then
      result.step, result.gap = step, gap(answer.top[step], output[step])
      result.kept = model.tokenizer:decode { answer.output[step] }
      result.got = output[step] and model.tokenizer:decode { output[step] } or ""
      result.result = result.gap < epsilon and "tie" or "different"
      if result.result == "different" then different = different + 1 end
    end
    result.kl, result.kl_most = 0, 0
    for _, kl in ipairs(divergences(model, answer)) do
      result.kl, result.kl_most = result.kl + kl / #answer.output, math.max(result.kl_most, kl)
    end
    results[i] = result
  end
  return results, different
end

return golden
