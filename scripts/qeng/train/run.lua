-- q.run: a training run around a loop of one's own. It owns the folder, the order of the data, checkpoints, metrics, progress line,
-- report, evaluation and Ctrl-C; the page computes.
--
--   local run = q.run { model = model, data = data, optimizer = adamw, out = "out", row_tokens = 512, rows = 2, seed = 1, resume = true }
--   for step, batch in run:steps(200) do                     -- step: how many are done, from 0 or where the run was stopped
--     local loss = model:loss(batch)
--     loss:backward()
--     adamw:step { clip = 1.0 }
--     run:log { loss = loss }                                 -- ends the step
--   end
--
-- Fields: those of q.train (train/init.lua) but for lr, schedule, warmup, decay, clip, scale_rate, eager and profile, which are the
-- page's; optimizer: q.adamw, whose state the checkpoints keep; bits: an object that learns in the backward pass beside it, as
-- q.inertia. What decides the result and is the page's own belongs into `settings`, so that a run of others is not gone on with.
--
-- With accumulate > 1: for part in batch:parts() do model:loss(part):backward() end. A step without a trained token does not reach the
-- page. After the last step, or when Ctrl-C was pressed, the loop ends by itself, with its last words; a page that leaves it before
-- calls run:finish(). An interrupted run then raises "interrupted".

local checkpoint = require "qeng.train.checkpoint"
local feed = require "qeng.train.feed"
local held_out = require "qeng.train.held_out"
local journal = require "qeng.train.journal"
local metrics = require "qeng.report.metrics"
local progress = require "qeng.console.progress"
local q = require "qeng.core"
local run_folder = require "qeng.train.run_folder"
local standing = require "qeng.train.standing"
local step_end = require "qeng.train.step_end"
local trained_data = require "qeng.train.trained_data"

local M = {}

local Run = {}
Run.__index = Run

local defaults = {
  row_tokens = 512, rows = 1, accumulate = 1, seed = 0, eval_share = 0, eval_every = 0, patience = 0, save_every = 0, keep = 2,
  nan_limit = 5, pad = 0, drop = 0, long = "auto",
}

-- more: further defaults, of a loop that takes more (train/init.lua).
function M.new(given, more)
  local known = {}
  for _, values in ipairs { defaults, more or {} } do
    for name, value in pairs(values) do known[name] = value end
  end
  local opt = setmetatable({}, { __index = function(_, name)
    if given[name] == nil then return known[name] end
    return given[name]
  end })
  local self = setmetatable({ given = given, defaults = known, opt = opt, model = opt.model, out = opt.out, optimizer = opt.optimizer,
    bits = opt.bits, speak = progress.new(), turn = 0, bad = 0, skipped = 0, interrupted = false }, Run)
  self.place = opt.checkpoints ~= false and run_folder.open(opt.out, { resume = opt.resume, overwrite = opt.overwrite, own = true })
  if self.place then checkpoint.clean(opt.out) else q.fs.mkdir(opt.out) end
  self.model:check_length(opt.row_tokens)
  q.seed(opt.seed)
  self.parameters = self.model:trainable()
  self.feed = feed.new(opt)
  self.plan = self.feed.batches:plan()
  self.evaluates = trained_data.check(self.plan, held_out.any(opt) and held_out.batches(opt.data, opt):plan() or nil, opt, self.speak)
  self.several = next(self.plan.sources, (next(self.plan.sources))) ~= nil
  self.total = opt.steps and opt.steps > 0 and opt.steps
    or math.max(1, math.ceil(self.plan.batches * (opt.epochs or 1) / opt.accumulate))
  return self
end

local function start(self)
  local opt = self.opt
  standing.load(self)
  if self.place then self.place:clear() end
  if opt.on_begin then opt.on_begin() end
  self.journal = journal.open(self)
  q.defer_interrupt(true)
  local state = self.state
  if self.evaluates and state.step == 0 then held_out.before(self) end
  self.first, self.started = state.step, q.time()
  if state.row then step_end.conclude(self, state.row) end
end

-- Before the optimizer's step: what learns in the backward pass looks at gradients, which that clears.
function Run:observe()
  if self.bits and self.bits.observe then self.bits:observe() end
end

-- for step, batch in run:steps(n): up to n steps in all, or as many as steps or epochs say. batch: what model:loss takes.
function Run:steps(steps)
  if not self.optimizer then q.error("value", "run: which optimizer? q.run { optimizer = q.adamw(model:trainable(), ...) }") end
  self.total = steps or self.total
  start(self)
  local state, expected = self.state, self.state.step
  return function()
    if state.step ~= expected then q.error("value", "run: a step of the loop did not end with run:log { loss = loss }") end
    while state.step < self.total and not self.interrupted and not state.stopped do
      self.journal:begin()
      self.optimizer.at = state.step
      if self.bits and self.bits:begin(state.step / self.total, state.step) then self.turn = self.turn + 1 end
      self.feed:take(state.step, state.step + 1 < self.total)
      if self.feed.sums.trained > 0 then
        self.feed:load(1)
        expected = state.step + 1
        return state.step, self.feed.face
      end
      self:observe()
      self:log {}
    end
    self:finish()
  end
end

-- Ends a step (train/step_end.lua).
function Run:log(figures) step_end.log(self, figures) end

-- The end of the run: its last words. Returns what q.train returns.
function Run:finish()
  if self.result then return self.result end
  local state, total = self.state, self.total
  self.speak:finish()
  if state.untrained then
    self.speak:say(("%d of %d steps had no trained token and changed nothing"):format(state.untrained, state.step))
  end
  q.defer_interrupt(false)
  if self.at_end then self.at_end() end
  self.journal:close((self.interrupted and "Stopped after step %d of %d; --resume goes on." or "Finished: step %d of %d.")
    :format(state.step, total))
  self.journal:outcome()
  if self.skipped > 0 and state.step - self.first - self.skipped <= 1 and self.first == 0 and not self.interrupted then
    q.error("value", ("train: %d of %d updates were skipped because loss or gradient were not finite, so nothing was learned; "
      .. "lower the learning rate (--lr, now %g) or look at the data"):format(self.skipped, state.step, self.opt.lr or self.optimizer.lr))
  end
  if self.interrupted then
    q.error("interrupted", ("stopped after step %d; the checkpoint is in %s; go on with --resume"):format(state.step, self.out))
  end
  self.result = { steps = state.step, eval_before = state.eval_before, eval_loss = state.last_eval, best = state.best,
    best_step = state.best_step, metrics = metrics.read(self.out .. "/metrics.jsonl"), report = self.journal.show }
  return self.result
end

M.Run = Run
return M
