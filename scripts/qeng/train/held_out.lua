-- Documents that are held out of training: their loss, and what it means for the run.

local models = require "qeng.model"
local q = require "qeng.core"
local ranks = require "qeng.train.ranks"
local route = require "qeng.train.route"

local held_out = {}

-- The value, or nil if it is not finite.
function held_out.finite(value) return value and math.abs(value) < math.huge and value or nil end

-- The figures by source of several batches. parts: those of each batch (batch:by_source(nll)), empty where it is
-- another rank's. sources: {[source] = anything}, all that there are.
function held_out.source_sums(parts, sources, team)
  local order, numbers, sums = {}, {}, {}
  for source in pairs(sources) do order[#order + 1] = source end
  table.sort(order)
  for _, part in ipairs(parts) do
    for _, source in ipairs(order) do
      local own = part[source] or { nll = 0, trained_tokens = 0 }
      numbers[#numbers + 1], numbers[#numbers + 2] = own.nll, own.trained_tokens
    end
  end
  numbers = team:sum(numbers)
  for at = 1, #numbers, 2 do
    local source = order[(at - 1) / 2 % #order + 1]
    local sum = sums[source] or { nll = 0, trained_tokens = 0 }
    sum.nll, sum.trained_tokens = sum.nll + numbers[at], sum.trained_tokens + numbers[at + 1]
    sums[source] = sum
  end
  return sums
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
-- each. team: the ranks that share the work (train/ranks.lua); nil: this process computes all. Nil where one of them
-- was interrupted. Where weights are shared out, all ranks pass at once.
function held_out.loss(model, file, opt, several, micro_batch, team)
  team = team or ranks.alone
  local shards = model.shards and model.shards.gathers and model.shards.units
  local batches = held_out.batches(file, opt)
  local losses, parts, count, interrupted = {}, {}, 0, false
  while not interrupted do
    local batch = batches:next()
    if not batch then break end
    local trained, i = batch:info().trained_tokens, #losses + 1
    if trained > 0 then
      losses[i], parts[i] = 0, {}
      count = count + trained
    end
    if trained > 0 and team:has(i) then
      micro_batch = micro_batch or models.micro_batch(batch:info().tokens, batch:info().max_documents)
      batch:load(micro_batch)
      micro_batch.scale:fill(1)
      losses[i] = q.no_grad(q.scope, function()
        local loss, nll = model:loss(micro_batch, opt.row_tokens)
        if several then parts[i] = batch:by_source(nll) end
        return loss:item()
      end)
    end
    if not shards then
      interrupted = q.host.interrupted()
    elseif trained > 0 and i % team.size == 0 then
      interrupted = team:any(q.host.interrupted())
    end
  end
  if shards then
    local rest = #losses % team.size
    if rest > 0 and team.rank >= rest then shards:follow() end
    shards:rest()
  end
  if team:any(interrupted) then return nil end
  local sum = 0
  for _, loss in ipairs(team:sum(losses)) do sum = sum + loss end
  return count > 0 and sum / count or nil,
    several and held_out.by_source(held_out.source_sums(parts, batches:plan().sources, team)) or nil
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
  local loss = held_out.loss(run.model, run.opt.data, run.opt, run.several, nil, run.ranks)
  if loss then run.speak:say(("held-out loss before training: %.4f"):format(loss)) end
  run.state.eval_before = held_out.finite(loss)
end

-- Evaluates after a step. row: the metrics of the step. opt.save_best(state) is called when the loss is the lowest.
function held_out.evaluate(run, row)
  local opt, state = run.opt, run.state
  row.eval_loss, row.eval_by_source = held_out.loss(run.model, opt.data, opt, run.several, run.feed.micro_batch,
    run.ranks)
  local loss = held_out.finite(row.eval_loss)
  if row.eval_loss or not run.ranks:any(q.host.interrupted()) then state.row, state.last_eval = nil, loss end
  if held_out.judge(state, loss, opt.patience) and opt.save_best then
    local shards = run.model.shards
    local function save() opt.save_best(state) end
    if shards then shards:whole(save) elseif run.ranks.first then save() end
  end
  if state.stopped and state.step < run.total then
    run.speak:say(("step %d: no lower held-out loss in %d evaluations; training ends"):format(state.step, opt.patience))
  end
end

return held_out
