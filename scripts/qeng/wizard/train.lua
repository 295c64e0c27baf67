-- The step train: q.finetune with what was chosen. Stopped, it goes on from its checkpoint.

local estimates = require "qeng.train.estimates"
local evaluate = require "qeng.wizard.evaluate"
local finetune = require "qeng.train.finetune"
local progress = require "qeng.console.progress"
local q = require "qeng.core"
local settings = require "qeng.wizard.settings"

-- A file with the first held-out question, which is answered at each evaluation; "" without any.
local function watched(run)
  local first = evaluate.questions(run)[1]
  if not first then return "" end
  q.fs.write(run:at "data/watched.jsonl", first.line .. "\n")
  return run:at "data/watched.jsonl"
end

-- Says how far the estimate was off.
local function compare(run, metrics, seconds)
  local guess, fixed, growing = run.found.estimate, estimates.memory()
  if #metrics < 5 then return end
  run:say(("estimated %s, took %s; estimated %.0f slots/s, were %.0f; estimated %s of memory, took %s"):format(
    progress.duration(guess.seconds), progress.duration(seconds), guess.tok_s, estimates.speed(metrics),
    progress.bytes(guess.bytes), progress.bytes(fixed + growing)))
end

return function(run)
  local opt, chosen, estimate = run.opt, run.found.settings, run.found.estimate
  local resume = q.fs.kind(run:at "train") == "dir"
  if not resume and not run.questions:agree("Begin to train", "no ends here, and the same command goes on") then
    q.error("interrupted", "not begun; the same command goes on here, and --redo settings chooses anew")
  end
  settings.let_go()
  local began = q.time()
  local fine, model, _, result = pcall(finetune, {
    model = run.found.model.path, data = run:at "packets/train.qubgpu", eval_data = run:at "packets/held_out.qubgpu",
    out = run:at "train", seed = run.answer.seed, dtype = run.answer.dtype, mode = chosen.mode, rank = chosen.rank,
    row_tokens = chosen.row_tokens, rows = estimate.rows, accumulate = estimate.accumulate, epochs = chosen.epochs,
    lr = chosen.lr, warmup = chosen.warmup, eval_every = chosen.eval_every, save_every = chosen.eval_every, best = true,
    template = run.answer.template, template_args = run.answer.template_args,
    samples = watched(run), sample_tokens = 48,
    device = opt.device, threads = opt.threads, device_budget = opt.device_budget, resume = resume,
  }, { title = ("Fine-tuning %s"):format(run.answer.model) })
  if not fine then
    local why = model
    if type(why) == "table" and why.code == "interrupted" then
      q.error("interrupted", (why.message:gsub("go on with %-%-resume", "the same command goes on")))
    end
    error(why, 0)
  end
  run:leave "train"
  if not resume then compare(run, result.metrics, q.time() - began) end
  run:say(("%s: %s, report.html, metrics.jsonl"):format(run:at "train", chosen.mode == "full" and "model" or "adapter"))
  return { steps = result.steps, eval_before = result.eval_before, best = result.best, best_step = result.best_step }
end
