-- Asks a model questions whose answers are known, greedily and many at a time.

local engine = require "qeng.infer.engine"
local progress = require "qeng.console.progress"
local request = require "qeng.infer.request"
local samples = require "qeng.train.samples"

local examine = {}

-- questions: {messages =, tools =, shown =}..., as samples.read gives them. opt: what ("100 held-out questions before
-- training", for the progress line), max_tokens (of an answer, or a function of a question), template, template_args,
-- max_batch (16). Returns the texts of the answers, without reasoning.
function examine.answers(model, questions, opt)
  local most, asked = 0, {}
  for i, question in ipairs(questions) do
    local tokens = type(opt.max_tokens) == "function" and opt.max_tokens(question) or opt.max_tokens
    asked[i] = samples.request(model, question, { template = opt.template, template_args = opt.template_args,
      max_tokens = tokens })
    asked[i].context, asked[i].reasoning = "stop", true
    most = math.max(most, #request.ids(model, asked[i]) + tokens)
  end
  local limit = model.config.max_position
  local made = engine.new(model, { max_batch = opt.max_batch or 16, context = math.min(limit, most + 16) })
  local fine, result = pcall(function()
    local speak, done, answers, requests = progress.new(), 0, {}, {}
    for i in ipairs(questions) do requests[i] = made:submit(asked[i]) end
    while made:step() do
      local stats = made:stats()
      if #questions - stats.running - stats.waiting > done then
        done = #questions - stats.running - stats.waiting
        speak:line(("asking %s: %d"):format(opt.what, done))
      end
    end
    speak:finish()
    for i, one in ipairs(requests) do
      if one.error then error(one.error, 0) end
      answers[i] = one.text
    end
    return answers
  end)
  made:close()
  if not fine then error(result, 0) end
  return result
end

-- The share of answers that are exactly those wanted, and the mean of the words in common (F1: twice the words that
-- both have, over the words of both).
function examine.score(answers, wanted)
  local exact, common = 0, 0
  local function words(text)
    local counts, total = {}, 0
    for word in text:lower():gmatch "[%w\128-\255]+" do
      counts[word], total = (counts[word] or 0) + 1, total + 1
    end
    return counts, total
  end
  for i, answer in ipairs(answers) do
    local a, b = answer:match "^%s*(.-)%s*$", wanted[i]:match "^%s*(.-)%s*$"
    if a == b then exact = exact + 1 end
    local mine, count = words(a)
    local theirs, other = words(b)
    local both = 0
    for word, n in pairs(mine) do both = both + math.min(n, theirs[word] or 0) end
    common = common + (count + other > 0 and 2 * both / (count + other) or a == b and 1 or 0)
  end
  return exact / #answers, common / #answers
end

return examine
