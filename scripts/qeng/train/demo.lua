-- The built-in demo. A small model (recipes/tiny, pretrained by recipes/pretrain_tiny.lua) learns a task that its
-- pretraining never showed, from examples made here. It answers the same held-out questions before and after.

local q = require "qeng.core"
local examine = require "qeng.train.examine"
local progress = require "qeng.console.progress"
local report = require "qeng.report"
local finetune = require "qeng.train.finetune"
local tinydata = require "qeng.train.tinydata"

local demo = {}

-- The options of the demo that the command line may replace. Muon learns the task in a quarter of the tokens that AdamW
-- takes.
local settings = {
  rank = 32, optim = "muon", lr = 3e-3, steps = 500, row_tokens = 512, rows = 1, warmup = 10, eval_share = 0.02,
  eval_every = 100, save_every = 200, dtype = "f32",
}
local of_others = { rank = 16, steps = 1200, rows = 2, eval_every = 200, save_every = 400 }  -- by --optim
local examples, questions, shown = 6000, 100, 3

-- Asks held-out questions. Returns the share of exact answers, and the answers.
local function examined(model, set, when)
  local asked, right = {}, 0
  for i, example in ipairs(set) do asked[i] = { messages = { example.messages[1] } } end
  local answers = examine.answers(model, asked, {
    what = ("%d held-out questions %s training"):format(#set, when), max_tokens = 96,
  })
  for i, example in ipairs(set) do
    if answers[i] == example.messages[2].content then right = right + 1 end
  end
  return right / #set, answers
end

-- Examples of the demo's task as JSONL.
function demo.write_examples(path, seed, count)
  local lines = {}
  for i, example in ipairs(tinydata.task(seed, count)) do lines[i] = q.json.encode(example) end
  q.fs.write(path, table.concat(lines, "\n") .. "\n")
end

-- The folder of the demo's model.
function demo.model()
  local dir = q.fs.find("recipes/tiny")
  if not dir then
    q.error("io", "the demo model recipes/tiny was not found beside the recipes; give --model and --data")
  end
  return dir
end

-- Sets opt.model, and opt.data to examples that it writes to opt.out.
function demo.inputs(opt)
  opt.model, opt.data = demo.model(), opt.out .. "/examples.jsonl"
  q.fs.mkdir(opt.out)
  demo.write_examples(opt.data, opt.seed, examples)
end

-- opt: the parsed options of recipes/lora_qwen.lua. Returns the trained model.
function demo.run(opt)
  print("This is the built-in demo (a model of 0.8 million parameters learns to write records); for your own: "
    .. "--model DIR --data FILE.jsonl")
  local dir = demo.model()
  local others = opt.__given.optim and opt.optim ~= settings.optim and of_others or {}
  for key, value in pairs(settings) do
    if not opt.__given[key] then opt[key] = others[key] or value end
  end
  opt.model = dir
  local set = tinydata.task(opt.seed, questions, "held_out")
  local before, first_answers
  local started
  local model, _, result = finetune(opt, {
    title = "qeng demo: LoRA on a small Qwen2 model",
    make_data = function()
      local path = opt.out .. "/examples.jsonl"
      demo.write_examples(path, opt.seed, examples)
      return path
    end,
    prepare = function(m)
      before, first_answers = examined(m, set, "before")
      started = q.time()
    end,
  })
  local seconds = q.time() - started
  local after, answers = examined(model, set, "after")
  local lines = {}
  for i = 1, shown do
    lines[#lines + 1] = "question: " .. set[i].messages[1].content
    lines[#lines + 1] = "  before: " .. first_answers[i]:gsub("\n", " "):sub(1, 110)
    lines[#lines + 1] = "  after:  " .. answers[i]
    lines[#lines + 1] = "  wanted: " .. set[i].messages[2].content
  end
  lines[#lines + 1] = ("held-out questions answered exactly: %.0f %% before, %.0f %% after (%d questions, training %s)")
    :format(before * 100, after * 100, #set, progress.duration(seconds))
  if result.eval_before and result.eval_loss then
    lines[#lines + 1] = ("held-out loss: %.4f before, %.4f after"):format(result.eval_before, result.eval_loss)
  end
  print(table.concat(lines, "\n"))
  result.report.sections = { { "Held-out questions", table.concat(lines, "\n") } }
  report.write(opt.out, result.report)
  return model
end

return demo
