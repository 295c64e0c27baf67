-- The end of a step, and of a run. run:log() takes the figures of a step, checks that they are finite, and does what is
-- due: evaluation, metrics, checkpoint.

local held_out = require "qeng.train.held_out"
local metrics = require "qeng.report.metrics"
local q = require "qeng.core"
local standing = require "qeng.train.standing"

local ending = {}

-- A row of metrics as a checkpoint can hold it: JSON has no NaN.
local function storable(row)
  local copy = {}
  for key, value in pairs(row) do
    if type(value) == "table" then copy[key] = storable(value)
    elseif type(value) ~= "number" or held_out.finite(value) then copy[key] = value end
  end
  return copy
end

-- Whether this process, or another rank of its job, is to stop.
local function interrupted(run) return run.ranks:any(q.host.interrupted()) end

-- What follows the update of a step. state.row is the row of a step whose evaluation is not done. Before the last
-- evaluation everything is saved, so that none of the training can be lost with it.
function ending.conclude(run, row)
  local opt, state = run.opt, run.state
  local last = state.step == run.total
  local looks = last or opt.eval_every > 0 and state.step % opt.eval_every == 0
  local due = run.evaluates and looks
  state.row = due and storable(row) or nil
  if due and last then standing.save(run) end
  if due and not interrupted(run) then held_out.evaluate(run, row) end
  local ended = last or state.stopped
  if opt.on_eval and (ended or looks) and not interrupted(run) and run.ranks.first then
    opt.on_eval(state.step, function(text) run.speak:say(text) end)
  end
  run.journal:add(row)
  if opt.on_step then opt.on_step(row, run.model) end
  run.interrupted = interrupted(run)
  if run.interrupted or ended or opt.save_every > 0 and state.step % opt.save_every == 0 then
    standing.save(run, due and last)
  end
end

-- Counts steps whose loss or gradient is not finite; too many in a row end the run.
local function watch(run, skipped)
  if not skipped then run.bad = 0 return end
  run.bad, run.skipped = run.bad + 1, run.skipped + 1
  run.speak:say(("step %d: loss or gradient is not finite; the update was skipped (%d in a row)")
    :format(run.state.step, run.bad))
  if run.bad < run.opt.nan_limit then return end
  run.journal:close(("Given up at step %d: %d steps in a row were not finite."):format(run.state.step, run.bad))
  q.error("value", ("train: %d steps in a row were not finite; lower the learning rate (--lr, now %g) or look at the "
    .. "data"):format(run.bad, run.opt.lr or run.optimizer.lr))
end

-- Takes the report of what learns in the backward pass. A warning is told every hundred steps.
local function learned(run, figures)
  local state, trained = run.state, run.feed.sums.trained > 0
  local fed = trained and run.bits and run.bits:finish(run.opt.accumulate) or {}
  figures.flip_rate, figures.pulse_rate = fed.flip_rate, fed.pulse_rate
  if fed.warning then run.warned = { step = state.step, text = fed.warning } end
  if run.warned and (state.step % 100 == 0 or state.step == run.total) then
    run.speak:say(("step %d: %s"):format(run.warned.step, run.warned.text))
    run.warned = nil
  end
end

-- figures: loss (a number, or a tensor of one), lr (without it the optimizer's), and whatever else metrics.jsonl should
-- say.
function ending.log(run, figures)
  local state, sums, optimizer = run.state, run.feed.sums, run.optimizer
  local trained = sums.trained > 0
  local update, row = optimizer.last or {}, {}
  run.feed:ahead()
  for name, value in pairs(figures) do row[name] = type(value) == "userdata" and value:item() or value end
  row.lr, row.grad_norm = row.lr or trained and optimizer.lr or optimizer:rate(), update.grad_norm
  state.step, state.tokens = state.step + 1, state.tokens + sums.trained
  if not trained then
    state.untrained = (state.untrained or 0) + 1
    if state.untrained == 1 then
      run.speak:say(("step %d: none of its %d tokens is trained; it changes nothing, and further such steps are "
        .. "counted"):format(state.step, sums.real))
    end
  end
  watch(run, update.skipped or row.loss ~= row.loss)
  learned(run, row)
  ending.conclude(run, run.journal:row(row))
end

-- Ends a run. Returns what q.train returns.
function ending.finish(run)
  local state = run.state
  run.speak:finish()
  if state.untrained then
    run.speak:say(("%d of %d steps had no trained token and changed nothing"):format(state.untrained, state.step))
  end
  if run.interrupted then q.host.interrupted() end  -- this rank's own signal, where another's was seen first
  q.host.defer_interrupt(false)
  if run.at_end then run.at_end() end
  run.ranks:meet()  -- else one that ends as interrupted would take along the one that writes
  local sentence = run.interrupted and "Stopped after step %d of %d; --resume goes on." or "Finished: step %d of %d."
  run.journal:close(sentence:format(state.step, run.total), true)
  if run.skipped > 0 and state.step - run.skipped <= 1 and run.first == 0 and not run.interrupted then
    q.error("value", ("train: %d of %d updates were skipped because loss or gradient were not finite, so nothing was "
      .. "learned; lower the learning rate (--lr, now %g) or look at the data")
      :format(run.skipped, state.step, run.opt.lr or run.optimizer.lr))
  end
  if run.interrupted then
    q.error("interrupted",
      ("stopped after step %d; the checkpoint is in %s; go on with --resume"):format(state.step, run.out))
  end
  return { steps = state.step, eval_before = state.eval_before, eval_loss = state.last_eval, best = state.best,
    best_step = state.best_step, metrics = metrics.read(run.out .. "/metrics.jsonl"), report = run.journal.show,
    pass = run.pass_stats }
end

return ending
