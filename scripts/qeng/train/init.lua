-- q.train: the ordinary fine-tuning loop. To change it, copy it into a recipe: it is made of pieces that q offers.
--
--   q.train { model =, data = PacketFile, out =, steps = | epochs =, row_tokens =, rows =, accumulate =, lr =,
--             schedule =, warmup =, decay =, clip =, seed =, eval_share =, eval_every =, save_every =, keep =,
--             resume =, eager =, profile =, ... }
--
--   sources       { SRC... }: train on these only
--   drop          CRC-Drop: the share of records treated as damaged
--   weights       { [SRC] = weight } or function(step, source) -> weight
--   bits          q.inertia or q.phases of a one-bit model
--   scale_rate    its row scales' share of lr (0.3)
--   optim         the name of an optimizer of q.optim ("adamw")
--   zero          what each rank of a job keeps of its part of the parameters alone: 0 nothing, 1 the optimizer's
--                 state, 2 gradients too, 3 weights too (2 and 3: of models that are trained in full, train/shards.lua)
--   ranks         of train/ranks.lua, instead of those of the job
--   moment_bits   of AdamW's moments: 32, or 8 (q.adamw_state)
--   on_batch      function(micro_batch, number): may change the loaded tensors of a micro-batch, and may say in its
--                 field `trained` how many targets are not -1
--   long          "auto", "split", "truncate" or "drop": documents longer than a row (PacketFile:batches)
--   eval_data     PacketFile: held out instead of a share of data
--   patience      evaluations without a lower loss that end the run (0: none)
--   on_eval       function(step, tell)
--   tensorboard   true: event files beside metrics.jsonl
--   allow_unused  a parameter that no gradient reaches is no error (q.adamw_state)
--   timeline      a file that gets the times of a step's operations (train/timeline.lua)
--   curves        {name of the training loss, of the held-out loss} in the report
--   on_begin      function(state): before the first step, when nothing can be refused any more
--   checkpoints   false: none is written (benchmarks)
--   overwrite     true: a run that is in `out` is deleted (train/run_folder.lua)
--
-- An optimizer step is `accumulate` packed micro-batches of rows * row_tokens slots. Its loss is the sum of nll over
-- its trained tokens, divided by their number. The forward and backward pass is captured once and replayed. Everything
-- is drawn from `seed`. A run that is stopped at any moment and resumed gives the same bits; train/resume.lua says what
-- has to be the same then.
--
-- A step without a trained token changes nothing: parameters, moments and the optimizer's count of steps stay, and it
-- has no loss. The first such step is told, and at the end how many there were. Data without any trained token are
-- refused.
--
-- Addressed packets (DST) move only the parameters that train/route.lua says. Each micro-batch holds one destination
-- and has a program of its own. A step updates (and decays) what an addressed token of it reached. The loss is divided
-- by the trained tokens of the whole step, whatever their destination, so every token weighs the same.

local optimizers = require "qeng.train.optimizers"
local pass = require "qeng.train.pass"
local q = require "qeng.core"
local route = require "qeng.train.route"
local runs = require "qeng.train.run"
local shards = require "qeng.train.shards"
local timeline = require "qeng.train.timeline"

-- In addition to those of q.run.
local defaults = { lr = 2e-4, schedule = "cosine", warmup = 0, decay = 0, clip = 1.0, scale_rate = 0.3,
  optim = "adamw", moment_bits = 32, zero = 0 }

return function(given)
  local run = runs.new(given, defaults)
  local opt = run.opt
  shards.prepare(run)
  local shared = run.model.shards
  local routing = route.plan(run.model, run.plan.destinations)
  run.optimizer, run.owners = optimizers.new(run, routing)
  local passes = pass.new(run, routing)
  local times = timeline.new(opt.timeline, run, passes)
  function run.at_end()
    run.pass_stats = passes:stats()
    local profile = opt.profile and (shared and "no profile: a pass needs all ranks (--zero 2, 3)" or passes:profile())
    if profile then print(profile .. "\n\n" .. tostring(q.memory())) end
    passes:forget()
  end
  for _, batch in run:steps() do
    times:step(function()
      passes:compute(batch)
      run:observe()
      run.optimizer:step { clip = opt.clip, groups = passes:groups() }
      if shared then shared.units:share() elseif run.owners then run.ranks:share(run.parameters, run.owners) end
    end)
    local figures = passes:exchanged()
    times:write()
    figures.loss, figures.by_source = passes:loss(), passes:by_source()
    figures.router_aux_loss, figures.mtp_loss = passes:balance(), passes:drafted()
    run:log(figures)
  end
  local result = run:finish()
  run.optimizer = nil  -- rank 0 takes the weights of others where it was
  if shared then shared:finish() end
  run.ranks:part()
  return result
end
