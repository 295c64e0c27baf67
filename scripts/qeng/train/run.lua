-- q.run: a training run around a loop of your own. The run has the folder, the order of the data, checkpoints, metrics,
-- progress line, report, evaluation and Ctrl-C. The page computes.
--
--   local run = q.run { model = model, data = data, optimizer = adamw, out = "out", row_tokens = 512, resume = true }
--   for step, batch in run:steps(200) do  -- step: how many are done, from 0 or from where the run was stopped
--     local loss = model:loss(batch)
--     loss:backward()
--     adamw:step { clip = 1.0 }
--     run:log { loss = loss }             -- ends the step
--   end
--
-- Fields are those of q.train (train/init.lua), except what the page decides: lr, lr_floor, schedule, warmup, decay,
-- clip, scale_rate, beta1, beta2, eps, eager and profile. And these:
--   optimizer  q.adamw; checkpoints keep its state
--   settings   what the page decides and a resumed run has to have too
--   leaves     names of what the page writes into the folder ({ "adapter" }): an earlier run's are moved away, too
--   bits       an object that learns in the backward pass, as q.inertia. begin(progress, step) tells whether other
--              weights learn now; observe() looks at gradients before the optimizer clears them; finish() tells what
--              was done. Checkpoints call its state, tensors and settings.
--
-- With accumulate > 1: for part in batch:parts() do model:loss(part):backward() end. A step without a trained token
-- does not reach the page. After the last step or Ctrl-C the loop ends, and the run with it; an interrupted run then
-- raises "interrupted". A page that leaves the loop early calls run:finish().
--
-- At the prompt Ctrl-C gives the prompt back in the middle of the loop, after a checkpoint. run:continue() goes on with
-- the next step, with the bits of a run that was not interrupted; run:finish() ends the run.

local checkpoint = require "qeng.train.checkpoint"
local ending = require "qeng.train.ending"
local feed = require "qeng.train.feed"
local held_out = require "qeng.train.held_out"
local journal = require "qeng.train.journal"
local progress = require "qeng.console.progress"
local prompt = require "qeng.console.prompt"
local q = require "qeng.core"
local ranks = require "qeng.train.ranks"
local run_folder = require "qeng.train.run_folder"
local standing = require "qeng.train.standing"
local trained_data = require "qeng.train.trained_data"

local M = {}

local Run = {}
Run.__index = Run

local defaults = {
  row_tokens = 512, rows = 1, accumulate = 1, seed = 0, eval_share = 0, eval_every = 0, patience = 0, save_every = 0,
  keep = 2, nan_limit = 5, pad = 0, drop = 0, long = "auto",
}

-- Whether Open MPI's mpirun leaves its ranks no time for a checkpoint after a Ctrl-C.
local function kills_soon()
  return os.getenv "OMPI_COMM_WORLD_SIZE" and not os.getenv "OMPI_MCA_odls_base_sigkill_timeout"
    and not os.getenv "PRTE_MCA_odls_base_sigkill_timeout"
end

-- Refuses a job that this run is not for. own_loop: a page computes, which has no sums of other ranks.
local function check_ranks(self, own_loop)
  local opt, size = self.opt, self.ranks.size
  if size == 1 then return end
  if own_loop then
    q.error("unsupported", ("%d ranks: loops of a page's own train on one; q.train knows ranks"):format(size))
  end
  if self.bits then
    q.error("unsupported", ("%d ranks: one-bit weights learn in the backward pass, on one rank"):format(size))
  end
  self.ranks:check(opt.accumulate)
  if opt.accumulate % size > 0 then
    self.speak:say(("note: %d micro-batches in a step do not divide by %d ranks: %d of them wait in the last round")
      :format(opt.accumulate, size, size - opt.accumulate % size))
  end
  if kills_soon() then
    self.speak:say "note: mpirun kills its ranks two seconds after Ctrl-C: stop it by kill -USR2 PID of mpirun"
  end
end

-- more: further defaults, of a loop that takes more options (train/init.lua).
function M.new(given, more)
  local known = {}
  for _, values in ipairs { defaults, more or {} } do
    for name, value in pairs(values) do known[name] = value end
  end
  local opt = setmetatable({}, { __index = function(_, name)
    if given[name] == nil then return known[name] end
    return given[name]
  end })
  local self = setmetatable({ given = given, defaults = known, opt = opt, model = opt.model, out = opt.out,
    optimizer = opt.optimizer, bits = opt.bits, speak = progress.new(), turn = 0, bad = 0, skipped = 0,
    ranks = opt.ranks or ranks.join() }, Run)
  check_ranks(self, more == nil)
  self.place = opt.checkpoints ~= false
    and run_folder.open(opt.out, { resume = opt.resume, overwrite = opt.overwrite, own = true,
      leaves = opt.leaves })
  if not self.place then q.fs.mkdir(opt.out) elseif self.ranks.first then checkpoint.clean(opt.out) end
  self.ranks:meet()
  self.model:check_length(opt.row_tokens)
  q.seed(opt.seed)
  self.parameters = self.model:trainable()
  self.feed = feed.new(opt, self.ranks)
  self.plan = self.feed.batches:plan()
  local held = held_out.any(opt) and held_out.batches(opt.data, opt):plan() or nil
  self.evaluates = trained_data.check(self.plan, held, opt, self.speak)
  self.several = next(self.plan.sources, (next(self.plan.sources))) ~= nil
  self.total = opt.steps and opt.steps > 0 and opt.steps
    or math.max(1, math.ceil(self.plan.batches * (opt.epochs or 1) / opt.accumulate))
  return self
end

local function start(self)
  local opt = self.opt
  standing.load(self)
  if self.place then self.place:clear() end
  if opt.on_begin then opt.on_begin(self.state) end
  self.journal = journal.open(self)
  q.host.defer_interrupt(true)
  local state = self.state
  if self.evaluates and state.step == 0 then held_out.before(self) end
  self.first, self.started = state.step, q.time()
  if state.row then ending.conclude(self, state.row) end
end

-- Gives the prompt back, until continue().
local function pause(self)
  local state, stopped = self.state, q.time()
  self.speak:finish()
  self.journal:tell(("Interrupted after step %d of %d."):format(state.step, self.total))
  prompt.hold(self, ("interrupted after step %d of %d"):format(state.step, self.total),
    function(text) self.speak:say(text) end)
  q.host.defer_interrupt(true)
  q.seed(self.opt.seed)
  self.interrupted, self.started = nil, self.started + (q.time() - stopped)
  if state.row then  -- its evaluation was interrupted
    self.journal:back_to(state.step - 1)
    ending.conclude(self, state.row)
  end
end

-- Goes on with a run that Ctrl-C interrupted at the prompt.
function Run:continue() prompt.go_on(self) end

-- What learns in the backward pass looks at gradients here. Call it before the optimizer, which clears them.
function Run:observe()
  if self.bits and self.bits.observe then self.bits:observe() end
end

-- for step, batch in run:steps(n): up to n steps in all; without n, as many as steps or epochs say. model:loss takes
-- the batch.
function Run:steps(steps)
  if not self.optimizer then
    q.error("value", "run: which optimizer? q.run { optimizer = q.adamw(model:trainable(), ...) }")
  end
  self.total = steps or self.total
  start(self)
  local state, expected = self.state, self.state.step
  return function()
    if state.step ~= expected then q.error("value", "run: a step did not end with run:log { loss = loss }") end
    while self.interrupted and prompt.can_pause() and select(2, q.host.interrupted()) == "Ctrl-C" do pause(self) end
    while state.step < self.total and not self.interrupted and not state.stopped do
      self.journal:begin()
      self.optimizer.at, self.optimizer.last = state.step, nil
      if self.bits and self.bits:begin(state.step / self.total, state.step) then self.turn = self.turn + 1 end
      self.feed:take(state.step, state.step + 1 < self.total)
      if self.feed.sums.trained > 0 then
        self.feed:load(self.ranks.rank + 1)
        expected = state.step + 1
        return state.step, self.feed.face
      end
      self:observe()
      self:log {}
    end
    self:finish()
  end
end

-- Ends a step.
function Run:log(figures) ending.log(self, figures) end

-- Ends the run; steps() does it by itself. Returns what q.train returns.
function Run:finish()
  self.paused = nil
  self.result = self.result or ending.finish(self)
  return self.result
end

M.Run = Run
return M
