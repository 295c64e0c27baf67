-- The steps before and after: the loss of the held-out records, and answers to their questions. All answers are in
-- answers-before.jsonl and answers-after.jsonl.

local examine = require "qeng.train.examine"
local held_out = require "qeng.train.held_out"
local q = require "qeng.core"
local samples = require "qeng.train.samples"
local settings = require "qeng.wizard.settings"

local evaluate = {}

local most_asked, most_tokens = 32, 256

-- Held-out questions with their answers, as samples.of_line gives them, with the record's line. Records without any are
-- passed over.
function evaluate.questions(run)
  local list, path = {}, run:at "data/held_out.jsonl"
  for line in q.fs.read(path):gmatch "[^\n]+" do
    local one = #list < most_asked and q.try(samples.of_line, line, path)
    if one and one.wanted and one.wanted:find "%S" then list[#list + 1], one.line = one, line end
  end
  return list
end

local function loss_of(run, model)
  local chosen = run.found.settings
  return (held_out.loss(model, nil, {
    eval_data = settings.packets(run, "held_out"), row_tokens = chosen.row_tokens, rows = 1, seed = run.answer.seed,
    pad = model.tokenizer:id "<|endoftext|>" or 0, long = "auto",
  }))
end

-- Evaluates `model` and writes its answers.
local function measure(run, model, when)
  local asked, wanted, lines = evaluate.questions(run), {}, {}
  local name = ("answers-%s.jsonl"):format(when)
  local result = { loss = held_out.finite(loss_of(run, model)), asked = #asked }
  if #asked > 0 then
    local answers = q.no_grad(examine.answers, model, asked, {
      what = ("%d held-out questions %s training"):format(#asked, when), template = run.answer.template,
      template_args = run.answer.template_args, max_batch = 8,
      max_tokens = function(one) return math.min(most_tokens, 16 + 2 * #model.tokenizer:encode(one.wanted)) end,
    })
    for i, one in ipairs(asked) do
      wanted[i] = one.wanted
      -- replace: a token may be a part of a character
      lines[i] = q.json.encode({ question = one.shown, wanted = one.wanted, answer = answers[i] }, { replace = true })
    end
    result.exact, result.common = examine.score(answers, wanted)
    q.fs.write(run:at(name), table.concat(lines, "\n") .. "\n")
    run:leave(name)
  end
  return result
end

local function sentence(result)
  local loss = result.loss and ("held-out loss %.4f"):format(result.loss) or "no held-out loss"
  return result.exact and ("%s; %d questions: %.0f %% answered exactly, %.0f %% of the words in common"):format(loss,
    result.asked, 100 * result.exact, 100 * result.common) or loss .. "; the held-out records ask nothing"
end

function evaluate.before(run)
  local result = measure(run, settings.load(run), "before")
  run:say(sentence(result))
  return result
end

-- The trained model, from its files.
function evaluate.trained(run)
  if run.found.settings.mode == "full" then return settings.load(run, false, run:at "train/model") end
  local model = settings.load(run)
  model:load_adapter(run:at "train/adapter")
  return model
end

function evaluate.after(run)
  local result, before = measure(run, evaluate.trained(run), "after"), run.found.before
  run:say("before: " .. sentence(before))
  run:say("after:  " .. sentence(result))
  if result.loss and before.loss and result.loss >= before.loss then
    run:say("the held-out loss did not fall: see train/report.html, and try --redo settings with another --lr")
  end
  return result
end

return evaluate
