-- Documents that are held out of training: their loss, and what it means for the run.

local models = require "qeng.model"
local q = require "qeng.core"
local route = require "qeng.train.route"

local held_out = {}

-- The value, or nil if it is not finite.
function held_out.finite(value) return value and math.abs(value) < math.huge and value or nil end

-- Adds the figures of a batch by source (batch:by_source(nll)) to `sums`.
function held_out.add_sources(sums, batch, nll)
  for source, part in pairs(batch:by_source(nll)) do
    local sum = sums[source] or { nll = 0, trained_tokens = 0 }
    sum.nll, sum.trained_tokens = sum.nll + part.nll, sum.trained_tokens + part.trained_tokens
    sums[source] = sum
  end
end

-- {name = {loss=, trained_tokens=}} for the metrics.
function held_out.by_source(sums)
  local losses = {}
  for source, sum in pairs(sums) do
    if sum.trained_tokens > 0 then
      losses[route.source_name(source)] = { loss = sum.nll / sum.trained_tokens, trained_tokens = sum.trained_tokens }
    end
  end
  return losses
end

-- Whether there are held-out documents: opt.eval_data, or a share of the data.
function held_out.any(opt) return opt.eval_data ~= nil or opt.eval_share > 0 end

-- The batches of the held-out documents, once through.
function held_out.batches(file, opt)
  if opt.eval_data then
    return opt.eval_data:batches { row_tokens = opt.row_tokens, rows = opt.rows, seed = opt.seed, once = true,
      pad = opt.pad, long = opt.long }
  end
  return file:batches {
    row_tokens = opt.row_tokens, rows = opt.rows, seed = opt.seed, split = "eval", eval_share = opt.eval_share,
    once = true,
    pad = opt.pad, sources = opt.sources, long = opt.long,
  }
end

-- The held-out loss: mean nll over the trained tokens of all held-out documents. With several sources, also that of
-- each.
function held_out.loss(model, file, opt, several, micro_batch)
  local batches = held_out.batches(file, opt)
  local sum, count, sums = 0, 0, {}
  while true do
    local batch = batches:next()
    if not batch then break end
    local trained = batch:info().trained_tokens
    if trained > 0 then
      micro_batch = micro_batch or models.micro_batch(batch:info().tokens, batch:info().max_documents)
      batch:load(micro_batch)
      micro_batch.scale:fill(1)
      sum = sum + q.no_grad(q.scope, function()
        local loss, nll = model:loss(micro_batch, opt.row_tokens)
        if several then held_out.add_sources(sums, batch, nll) end
        return loss:item()
      end)
      count = count + trained
    end
    if q.host.interrupted() then return nil end
  end
  return count > 0 and sum / count or nil, several and held_out.by_source(sums) or nil
end

-- Notes a held-out loss (nil: the evaluation gave none) in the state of a run. Returns whether it is the lowest so far.
-- Sets state.stopped when `patience` evaluations (0: any number) have passed since the lowest.
function held_out.judge(state, loss, patience)
  local best = loss ~= nil and loss < (state.best or math.huge)
  if best then
    state.best, state.best_step, state.stale = loss, state.step, 0
  elseif loss then
    state.stale = (state.stale or 0) + 1
  end
  state.stopped = patience > 0 and (state.stale or 0) >= patience
  return best
end

-- Notes the loss before the first step of a run.
function held_out.before(run)
  local loss = held_out.loss(run.model, run.opt.data, run.opt, run.several)
  if loss then run.speak:say(("held-out loss before training: %.4f"):format(loss)) end
  run.state.eval_before = held_out.finite(loss)
end

-- Evaluates after a step. row: the metrics of the step. opt.save_best(state) is called when the loss is the lowest.
function held_out.evaluate(run, row)
  local opt, state = run.opt, run.state
  row.eval_loss, row.eval_by_source = held_out.loss(run.model, opt.data, opt, run.several, run.feed.micro_batch)
  local loss = held_out.finite(row.eval_loss)
  if row.eval_loss or not q.host.interrupted() then state.row, state.last_eval = nil, loss end
  if held_out.judge(state, loss, opt.patience) and opt.save_best then opt.save_best(state) end
  if state.stopped and state.step < run.total then
    run.speak:say(("step %d: no lower held-out loss in %d evaluations; training ends"):format(state.step, opt.patience))
  end
end

return held_out
