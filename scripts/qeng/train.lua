-- q.train: the ordinary fine-tuning loop. Copy it into a recipe to change it; it is made of the pieces that q offers.
--
--   q.train { model =, data = PacketFile, out =, steps = | epochs =, row_tokens =, rows =, accumulate =, lr =, schedule =,
--             warmup =, decay =, clip =, seed =, eval_share =, eval_every =, save_every =, keep =, resume =, eager =,
--             checkpoints = false: none is written (benchmarks) }
--
-- One optimizer step is `accumulate` packed micro-batches of rows * row_tokens slots; the loss is the sum of nll over its
-- trained tokens divided by their number. The forward and backward pass is captured once and replayed. Everything is
-- drawn from `seed`; a run stopped at any moment and resumed gives the same bits.

local q = require "qeng.core"
local checkpoint = require "qeng.checkpoint"
local metrics = require "qeng.metrics"
local models = require "qeng.model"
local progress = require "qeng.progress"
local report = require "qeng.report"
local schedule = require "qeng.schedule"

local function tensors_of(parameters)
  local list = {}
  for i, parameter in ipairs(parameters) do list[i] = parameter.tensor end
  return list
end

-- Floating-point work of one token: 6 per weight that is trained, 4 per frozen one that the gradient passes through.
local function flops_per_token(model)
  local per_weight = model.mode == "full" and 6 or 4
  local weights = model.head:elements()
  for _, layer in ipairs(model.linears) do weights = weights + layer.weight:elements() end
  return per_weight * weights
end

-- The held-out loss: mean nll over the trained tokens of the whole eval split.
local function evaluate(model, file, opt, slot)
  local batches = file:batches { row_tokens = opt.row_tokens, rows = opt.rows, seed = opt.seed, split = "eval", eval_share = opt.eval_share, once = true, pad = opt.pad }
  local sum, count = 0, 0
  while true do
    local batch = batches:next()
    if not batch then break end
    local trained = batch:info().trained_tokens
    if trained > 0 then
      slot = slot or models.slot(batch:info().tokens, batch:info().max_documents)
      batch:load(slot)
      slot.scale:fill(1)
      sum = sum + q.no_grad(q.scope, function() return (model:loss(slot, opt.row_tokens)):item() end)
      count = count + trained
    end
    if q.interrupted() then return nil end
  end
  return count > 0 and sum / count or nil
end

local defaults = {
  row_tokens = 512, rows = 1, accumulate = 1, lr = 2e-4, schedule = "cosine", warmup = 0, decay = 0, clip = 1.0, seed = 0,
  eval_share = 0, eval_every = 0, save_every = 0, keep = 2, nan_limit = 5, pad = 0,
}

return function(given)
  local opt = setmetatable({}, { __index = function(_, key) local v = given[key]; if v == nil then v = defaults[key] end; return v end })
  local model, file, out = opt.model, opt.data, opt.out
  local speak = progress.new()
  q.fs.mkdir(out)
  model:check_length(opt.row_tokens)
  q.seed(opt.seed)
  local parameters = model:trainable()
  local adamw = q.adamw_state(tensors_of(parameters), { decay = opt.decay, beta1 = opt.beta1, beta2 = opt.beta2, eps = opt.eps })
  local batches = file:batches { row_tokens = opt.row_tokens, rows = opt.rows, seed = opt.seed, split = "train", eval_share = opt.eval_share, pad = opt.pad }

  local plan = batches:plan()
  if plan.batches == 0 then q.error("value", "train: no training document is left; the data are empty or all held out") end
  local steps = opt.steps
  if not steps or steps == 0 then steps = math.max(1, math.ceil(plan.batches * (opt.epochs or 1) / opt.accumulate)) end
  local rate = schedule.make(opt.schedule, opt.lr, steps, { warmup = opt.warmup, floor = opt.lr_floor })
  if plan.split > 0 or plan.dropped > 0 then
    speak:say(("note: %d documents are longer than a row of %d tokens and are split, %d dropped"):format(plan.split, opt.row_tokens, plan.dropped))
  end

  local state = { step = 0, tokens = 0 }
  if opt.resume then
    local found = checkpoint.load(out, model, adamw)
    if found then
      if found.seed ~= opt.seed or found.row_tokens ~= opt.row_tokens or found.rows ~= opt.rows or found.accumulate ~= opt.accumulate then
        q.error("value", ("resume: the run in %s has seed %d, row_tokens %d, rows %d, accumulate %d; give the same"):format(out, found.seed, found.row_tokens, found.rows, found.accumulate))
      end
      state = found
      batches:restore(found.batches)
      speak:say(("resuming at step %d of %d"):format(state.step, steps))
    else
      speak:say("resume: no checkpoint in " .. out .. ", starting at step 0")
    end
  end
  local log = metrics.open(out .. "/metrics.jsonl", state.step)

  local slot, program, loss
  local flops = flops_per_token(model)
  local peak = q.limits()[model.dtype == "bf16" and "flops_bf16" or "flops_f32"]
  local bad, interrupted = 0, false

  local upcoming, position  -- the batch made ahead of its step, and where the batches stood before it
  local function save()
    if opt.checkpoints == false then return end
    state.batches, state.seed, state.row_tokens, state.rows, state.accumulate = position or batches:state(), opt.seed, opt.row_tokens, opt.rows, opt.accumulate
    checkpoint.save(out, model, adamw, state, opt.keep)
  end

  -- Forward and backward of the micro-batch in the slot; gradients add up. Its share of the step's loss goes to `share`.
  -- Nothing is read from the device, so that a GPU has its next work before it is done with this.
  local function pass(share)
    if opt.eager then
      return q.scope(function()
        local value = model:loss(slot, opt.row_tokens)
        value:backward()
        share:copy(value)
      end)
    end
    if not program then
      program, loss = q.capture(function()
        local value = model:loss(slot, opt.row_tokens)
        value:backward()
        return value
      end)
    end
    program:run()
    share:copy(loss)
  end
  local losses, shares = q.zeros({ opt.accumulate }, "f32", "batch"), {}
  for i = 1, opt.accumulate do shares[i] = losses:rows(i - 1, 1) end

  q.defer_interrupt(true)
  if opt.eval_share > 0 and state.step == 0 then
    state.eval_before = evaluate(model, file, opt)
    if state.eval_before then speak:say(("held-out loss before training: %.4f"):format(state.eval_before)) end
  end
  local first, started = state.step, q.time()
  while state.step < steps do
    local begin = q.time()
    local micro, trained, real, wait = {}, 0, 0, 0
    for i = 1, opt.accumulate do
      micro[i], upcoming = upcoming or batches:next(), nil
      local info = micro[i]:info()
      trained, real, wait = trained + info.trained_tokens, real + info.real_tokens, wait + info.wait_ms
      slot = slot or models.slot(info.tokens, info.max_documents)
    end
    position = batches:state()
    slot.scale:fill(1 / math.max(trained, 1))
    for i = 1, opt.accumulate do
      micro[i]:load(slot)
      q.rng_step(state.step * opt.accumulate + i - 1)
      pass(shares[i])
      if i < opt.accumulate then
        micro[i + 1]:send()
      elseif state.step + 1 < steps then
        upcoming = batches:next()
        upcoming:send()
      end
    end
    local lr = rate(state.step)
    local update = adamw:step { lr = lr, clip = opt.clip }
    local total = 0
    for _, share in ipairs(losses:table()) do total = total + share end
    state.step, state.tokens = state.step + 1, state.tokens + trained
    if update.skipped or total ~= total then
      bad = bad + 1
      speak:say(("step %d: loss or gradient is not finite; the update was skipped (%d in a row)"):format(state.step, bad))
      if bad >= opt.nan_limit then
        log:close()
        q.error("value", ("train: %d steps in a row were not finite; lower the learning rate (now %g) or look at the data"):format(bad, lr))
      end
    else
      bad = 0
    end

    local seconds = q.time() - begin
    local slots = opt.accumulate * opt.rows * opt.row_tokens
    local row = {
      step = state.step, epoch = micro[#micro]:info().epoch, loss = total, lr = lr, grad_norm = update.grad_norm, tokens = slots,
      real_tokens = real, trained_tokens = trained, tok_s = slots / seconds, step_ms = seconds * 1000, data_ms = wait,
      sol = slots * flops / seconds / peak, mem_bytes = q.peak_rss(),
    }
    interrupted = q.interrupted()
    local last = state.step == steps
    if opt.eval_share > 0 and not interrupted and (last or (opt.eval_every > 0 and state.step % opt.eval_every == 0)) then
      row.eval_loss = evaluate(model, file, opt, slot)
      state.last_eval = row.eval_loss or state.last_eval
      if row.eval_loss and row.eval_loss < (state.best or math.huge) then
        state.best = row.eval_loss
        if opt.save_best then opt.save_best(state) end
      end
    end
    log:add(row)
    local rest = (q.time() - started) / (state.step - first) * (steps - state.step)
    speak:line(("step %d/%d  loss %.4f%s  %.0f tok/s  sol %.0f %%  ETA %s"):format(state.step, steps, total,
      row.eval_loss and ("  held-out %.4f"):format(row.eval_loss) or "", row.tok_s, row.sol * 100, progress.duration(rest)))
    if opt.on_step then opt.on_step(row, model) end
    interrupted = interrupted or q.interrupted()
    if interrupted or last or (opt.save_every > 0 and state.step % opt.save_every == 0) then save() end
    if interrupted then break end
  end
  speak:finish()
  q.defer_interrupt(false)
  log:close()
  if opt.profile and program then print(tostring(program:profile()) .. "\n\n" .. tostring(q.memory())) end
  if program then program:free() end
  report.write(out, { title = opt.title or "qeng training", settings = opt.settings or {}, file = file })
  if interrupted then
    q.error("interrupted", ("stopped after step %d; the checkpoint is in %s; go on with --resume"):format(state.step, out))
  end
  return { steps = state.step, eval_before = state.eval_before, eval_loss = state.last_eval, metrics = metrics.read(out .. "/metrics.jsonl") }
end
