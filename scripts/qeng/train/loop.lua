-- q.loop: the steps of a recipe that makes its batches itself. The loop has the folder, checkpoints, metrics, the
-- progress line and Ctrl-C; a run over packed data has more (train/run.lua).
--
--   local run = q.loop { out = opt.out, steps = 100, optimizer = adamw, parameters = model:trainable(), model = model,
--     settings = opt, seed = opt.seed, save_every = opt.save_every, resume = opt.resume, overwrite = opt.overwrite }
--   for step in run:steps() do  -- how many are done, from 0 or from where the run was stopped
--     ...
--     run:log({ loss = loss }, "loss 0.1234")  -- ends the step; the text is for the progress line
--   end
--
-- `parameters` are what checkpoints keep: all that the optimizer trains, and what else steps change, such as a moving
-- average of weights. What a step computes may depend on its number, on them and on the optimizer only: then a resumed
-- run goes on to the same bits. Settings other than those of train/resume.lua have to be the same then, and so have the
-- weights that the model does not train, and what the file settings.data holds. Ctrl-C ends the loop after a checkpoint
-- and raises "interrupted"; at the prompt it gives the prompt back, and run:continue() goes on.

local checkpoint = require "qeng.train.checkpoint"
local metrics = require "qeng.report.metrics"
local progress = require "qeng.console.progress"
local prompt = require "qeng.console.prompt"
local q = require "qeng.core"
local ranks = require "qeng.train.ranks"
local resume = require "qeng.train.resume"
local run_folder = require "qeng.train.run_folder"
local standing = require "qeng.train.standing"

local Loop = {}
Loop.__index = Loop

-- Refuses parameters that lack one that the optimizer trains: it would not be in checkpoints.
local function check_kept(parameters, optimizer)
  local wanted = optimizer.tensors and #optimizer.tensors
  local found = #checkpoint.trained(parameters, optimizer)
  if wanted and found ~= wanted then
    q.error("value", ("loop: the optimizer trains %d tensors, of which %d are among `parameters`, once each: list all "
      .. "that checkpoints are to keep"):format(wanted, found))
  end
end

local nan_limit = 5  -- steps in a row whose update was skipped
local function finite(x) return x == x and math.abs(x) < math.huge end

-- opt: as above; keep (checkpoints, 2); leaves: names of what the recipe writes into the folder ({ "adapter" }), which
-- are moved away with the rest of an earlier run.
local function new(opt)
  local self = setmetatable({ out = opt.out, total = opt.steps, optimizer = opt.optimizer, parameters = opt.parameters,
    seed = opt.seed or 0, save_every = opt.save_every or 100, keep = opt.keep or 2, done = 0, bad = 0,
    speak = progress.new() }, Loop)
  if ranks.join().size > 1 then
    q.error("unsupported", ("%d ranks: q.loop trains on one; q.train knows ranks"):format(ranks.join().size))
  end
  check_kept(opt.parameters, opt.optimizer)
  local place = run_folder.open(opt.out, { resume = opt.resume, overwrite = opt.overwrite, own = true,
    leaves = opt.leaves })
  checkpoint.clean(opt.out)
  self.fixed, self.course = resume.of_recipe(opt.settings or {}, opt.model)
  local found = opt.resume and standing.restore(self)
  self.done = found and found.step or 0
  place:clear()
  self.log_file = metrics.open(opt.out .. "/metrics.jsonl", self.done)
  q.seed(self.seed)
  return self
end

local function save(self)
  checkpoint.save(self.out, self.parameters, self.optimizer, { step = self.done, fixed = self.fixed,
    course = self.course, finished = self.done == self.total }, self.keep)
end

local function ended(self)
  self:finish()
  if self.interrupted then
    q.error("interrupted", ("stopped after step %d; the checkpoint is in %s; go on with --resume"):format(self.done,
      self.out))
  end
end

function Loop:steps()
  q.host.defer_interrupt(true)
  local expected = self.done
  return function()
    if self.done ~= expected then q.error("value", "loop: a step did not end with run:log { loss = loss }") end
    while self.interrupted and prompt.can_pause() and select(2, q.host.interrupted()) == "Ctrl-C" do
      self.speak:finish()
      prompt.hold(self, ("interrupted after step %d of %d"):format(self.done, self.total),
        function(text) self.speak:say(text) end)
      q.host.defer_interrupt(true)
      q.seed(self.seed)
      self.interrupted = nil
    end
    if self.done == self.total or self.interrupted then return ended(self) end
    self.optimizer.at, self.optimizer.last = self.done, nil
    q.rng_step(self.done)
    expected = self.done + 1
    return self.done
  end
end

-- Goes on with a loop that Ctrl-C interrupted at the prompt.
function Loop:continue() prompt.go_on(self) end

-- Counts steps that changed nothing, as loss or gradient were not finite; too many in a row end the loop.
local function watch(self, row)
  self.bad = (row.skipped or not finite(row.loss or 0)) and self.bad + 1 or 0
  if self.bad == 0 then return end
  self.speak:say(("step %d: loss or gradient is not finite; the update was skipped (%d in a row)"):format(self.done,
    self.bad))
  if self.bad >= nan_limit then
    self:finish()
    q.error("value", ("%d steps in a row were not finite; lower the learning rate (now %g) or look at the data")
      :format(self.bad, self.optimizer.lr))
  end
end

-- Ends a step. figures: for metrics.jsonl, numbers or tensors of one; lr, grad_norm and skipped are the optimizer's.
function Loop:log(figures, text)
  self.done = self.done + 1
  local update = self.optimizer.last or {}
  local row = { step = self.done, lr = self.optimizer.lr, grad_norm = update.grad_norm, skipped = update.skipped }
  for name, value in pairs(figures) do row[name] = type(value) == "userdata" and value:item() or value end
  watch(self, row)
  self.log_file:add(row)
  self.speak:line(("step %d of %d: %s"):format(self.done, self.total,
    text or row.loss and ("loss %.4f"):format(row.loss) or ""))
  self.interrupted = q.host.interrupted()
  if self.interrupted or self.done == self.total or self.save_every > 0 and self.done % self.save_every == 0 then
    save(self)
  end
end

-- Ends the loop; steps() does it by itself.
function Loop:finish()
  self.speak:finish()
  self.log_file:close()
  self.paused = nil
  q.host.defer_interrupt(false)
end

return { new = new, Loop = Loop }
