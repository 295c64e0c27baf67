-- q.train: the ordinary fine-tuning loop. Copy it into a recipe to change it; it is made of the pieces that q offers.
--
--   q.train { model =, data = PacketFile, out =, steps = | epochs =, row_tokens =, rows =, accumulate =, lr =, schedule =,
--             warmup =, decay =, clip =, seed =, eval_share =, eval_every =, save_every =, keep =, resume =, eager =,
--             sources = { SRC... }, drop = CRC-Drop, weights = { [SRC] = weight } or function(step, source) -> weight,
--             bits = q.inertia or q.phases of a one-bit model, scale_rate = its row scales' share of lr (0.3),
--             on_batch = function(slot, number): may change the loaded tensors of a micro-batch,
--             curves = {name of the training loss, of the held-out loss} in the report,
--             on_begin = function(): before the first step, when nothing can be refused any more,
--             checkpoints = false: none is written (benchmarks), overwrite = true: a run that is in `out` is deleted (run_folder.lua) }
--
-- One optimizer step is `accumulate` packed micro-batches of rows * row_tokens slots; the loss is the sum of nll over its
-- trained tokens divided by their number. The forward and backward pass is captured once and replayed. Everything is
-- drawn from `seed`; a run stopped at any moment and resumed gives the same bits. Data, seed and shapes have to be the same then; another
-- course of the learning rate is told and followed.
--
-- Packets that are addressed (DST) move the parameters of route.lua only: each micro-batch holds one destination, whose
-- pass is a program of its own, and a step updates (and decays) what an addressed token of it reached. The loss is divided
-- by the trained tokens of the whole step, whomever they address, so that a token weighs the same wherever it goes.

local q = require "qeng.core"
local banner = require "qeng.banner"
local checkpoint = require "qeng.checkpoint"
local metrics = require "qeng.metrics"
local models = require "qeng.model"
local onebit = require "qeng.onebit"
local progress = require "qeng.progress"
local report = require "qeng.report"
local route = require "qeng.route"
local run_folder = require "qeng.run_folder"
local schedule = require "qeng.schedule"
local stream = require "qeng.stream"

local function tensors_of(parameters)
  local list = {}
  for i, parameter in ipairs(parameters) do list[i] = parameter.tensor end
  return list
end

-- Floating-point work of one token: 6 per weight that is trained, 4 per frozen one that the gradient passes through. bits: q.inertia
-- or what stands for it, of a one-bit model, whose head is trained as well; or nil.
local function flops_per_token(model, bits)
  local per_weight = model.mode == "full" and 6 or 4
  local weights = model.head:elements()
  for _, layer in ipairs(model.linears) do weights = weights + layer.weight:elements() end
  return per_weight * weights + 2 * (bits and (bits.inertia or bits).weights + model.head:elements() or 0)
end

-- Adds what a batch holds of each source, by batch:by_source(nll), to `sums`.
local function add_sources(sums, batch, nll)
  for source, part in pairs(batch:by_source(nll)) do
    local sum = sums[source] or { nll = 0, trained_tokens = 0 }
    sum.nll, sum.trained_tokens = sum.nll + part.nll, sum.trained_tokens + part.trained_tokens
    sums[source] = sum
  end
end

-- {name = {loss=, trained_tokens=}} for the metrics.
local function source_losses(sums)
  local losses = {}
  for source, sum in pairs(sums) do
    if sum.trained_tokens > 0 then
      losses[route.source_name(source)] = { loss = sum.nll / sum.trained_tokens, trained_tokens = sum.trained_tokens }
    end
  end
  return losses
end

-- The held-out loss: mean nll over the trained tokens of the whole eval split. With several sources, also that of each.
local function evaluate(model, file, opt, several, slot)
  local batches = file:batches { row_tokens = opt.row_tokens, rows = opt.rows, seed = opt.seed, split = "eval", eval_share = opt.eval_share, once = true, pad = opt.pad, sources = opt.sources }
  local sum, count, sums = 0, 0, {}
  while true do
    local batch = batches:next()
    if not batch then break end
    local trained = batch:info().trained_tokens
    if trained > 0 then
      slot = slot or models.slot(batch:info().tokens, batch:info().max_documents)
      batch:load(slot)
      slot.scale:fill(1)
      sum = sum + q.no_grad(q.scope, function()
        local loss, nll = model:loss(slot, opt.row_tokens)
        if several then add_sources(sums, batch, nll) end
        return loss:item()
      end)
      count = count + trained
    end
    if q.interrupted() then return nil end
  end
  return count > 0 and sum / count or nil, several and source_losses(sums) or nil
end

local function finite(value) return value and math.abs(value) < math.huge and value or nil end

-- What a checkpoint can hold of a row of metrics: JSON has no NaN.
local function storable(row)
  local copy = {}
  for key, value in pairs(row) do
    if type(value) == "table" then copy[key] = storable(value) elseif type(value) ~= "number" or finite(value) then copy[key] = value end
  end
  return copy
end

-- What tells datasets apart: the number of records, and a digest of the lengths of some and of the tokens of a few.
local function identity(file)
  local records, digest = file:records(), 0
  local function add(number) digest = (digest * 31 + number) % 2 ^ 32 end
  local function visit(most, look)
    local count = math.min(most, records)
    for i = 0, count - 1 do look(math.floor(i * records / count)) end
  end
  visit(4096, function(record)
    local info = file:info(record)
    add(info.tokens)
    add(info.loss_tokens)
  end)
  visit(64, function(record)
    local info = file:info(record)
    local tokens = info.type == "token_ids" and info.tokens <= 65536 and file:read(record)  -- longer ones would take seconds
    for _, token in ipairs(tokens or {}) do add(token) end
  end)
  return ("%d records, digest %08x"):format(records, digest)
end

-- Says in a line which settings a resumed run changes. before: of a checkpoint, which may lack them.
local function tell_changes(speak, before, now)
  local changes = {}
  for name, value in pairs(now) do
    local was = type(before) == "table" and before[name]
    if was and was ~= value then changes[#changes + 1] = ("%s was %s and is %s now"):format(name, tostring(was), tostring(value)) end
  end
  table.sort(changes)
  if #changes > 0 then speak:say("resume: " .. table.concat(changes, ", ")) end
end

local defaults = {
  row_tokens = 512, rows = 1, accumulate = 1, lr = 2e-4, schedule = "cosine", warmup = 0, decay = 0, clip = 1.0, seed = 0,
  eval_share = 0, eval_every = 0, save_every = 0, keep = 2, nan_limit = 5, pad = 0, drop = 0, scale_rate = 0.3,
}

return function(given)
  local opt = setmetatable({}, { __index = function(_, key) local v = given[key]; if v == nil then v = defaults[key] end; return v end })
  local model, file, out = opt.model, opt.data, opt.out
  local speak = progress.new()
  local place = opt.checkpoints ~= false and run_folder.open(out, { resume = opt.resume, overwrite = opt.overwrite, own = true })
  if place then checkpoint.clean(out) else q.fs.mkdir(out) end
  model:check_length(opt.row_tokens)
  q.seed(opt.seed)
  local parameters = model:trainable()
  local batches = file:batches {
    row_tokens = opt.row_tokens, rows = opt.rows, seed = opt.seed, split = "train", eval_share = opt.eval_share, pad = opt.pad,
    sources = opt.sources, drop = opt.drop, weights = opt.weights, batches_per_step = opt.accumulate, route = true,
  }
  local plan = batches:plan()
  if plan.batches == 0 then q.error("value", "train: no training document is left: the data are empty, left out by --sources, or all held out (--eval-share)") end
  local several = next(plan.sources, (next(plan.sources))) ~= nil
  local routing = route.plan(model, plan.destinations)
  local groups, rates = routing and routing.groups, nil
  if model.mode == "onebit" then
    if routing then q.error("unsupported", "train: addressed packets (DST) and one-bit weights: leave the destinations out") end
    groups, rates = onebit.rate_groups(parameters, opt.scale_rate)
  end
  local adamw = q.adamw_state(tensors_of(parameters), {
    decay = opt.decay, beta1 = opt.beta1, beta2 = opt.beta2, eps = opt.eps, groups = groups, rates = rates,
  })

  local steps = opt.steps
  if not steps or steps == 0 then steps = math.max(1, math.ceil(plan.batches * (opt.epochs or 1) / opt.accumulate)) end
  local rate = schedule.make(opt.schedule, opt.lr, steps, { warmup = opt.warmup, floor = opt.lr_floor })
  if plan.split > 0 or plan.dropped > 0 then
    speak:say(("note: %d documents are longer than a row of %d tokens and are split, %d dropped (--row-tokens; for plain text, recipes/convert.lua --documents)"):format(plan.split, opt.row_tokens, plan.dropped))
  end

  -- What has to stay the same for a resumed run to be the run that was stopped.
  local fixed = {
    seed = opt.seed, row_tokens = opt.row_tokens, rows = opt.rows, accumulate = opt.accumulate, drop = opt.drop,
    sources = table.concat(opt.sources or {}, ","), eval_share = opt.eval_share, data = opt.checkpoints ~= false and identity(file) or nil,
  }
  local course = {
    lr = opt.lr, lr_floor = opt.lr_floor or 0, schedule = opt.schedule, warmup = opt.warmup, steps = steps, decay = opt.decay, clip = opt.clip, scale_rate = opt.scale_rate,
  }
  local state = { step = 0, tokens = 0 }
  if opt.resume then
    local found = checkpoint.load(out, parameters, adamw, opt.bits)
    if found then
      for _, name in ipairs { "eval_share", "data" } do  -- a checkpoint may not say them
        if found[name] == nil then found[name] = fixed[name] end
      end
      checkpoint.compare(out, found, fixed)
      if type(found.tokens) ~= "number" or type(found.batches) ~= "table" then q.error("format", out .. ": its checkpoint was not saved by such a run") end
      if found.step > steps then
        q.error("value", ("resume: the run in %s stands at step %d, beyond the %d steps asked for: give %d or more, or another --out"):format(out, found.step, steps, found.step))
      end
      tell_changes(speak, found.course, course)
      state = found
      batches:restore(found.batches)
      speak:say(("resuming at step %d of %d"):format(state.step, steps))
    else
      speak:say("resume: no checkpoint in " .. out .. ", starting at step 0")
    end
  end
  if place then place:clear() end
  if opt.on_begin then opt.on_begin() end
  local about = { opt = opt, plan = plan, steps = steps }
  local show = { title = opt.title or "qeng training", settings = opt.settings or {}, curves = opt.curves }  -- of the report
  if opt.checkpoints ~= false and not progress.silent then
    show.facts, show.used = banner.facts(model, file, about), banner.used(model, file, about, defaults)
    banner.start(speak, show.facts)
    banner.warn(speak, opt, steps, rate)
  end
  local live = report.live(out, show)
  local log = metrics.open(out .. "/metrics.jsonl", state.row and state.step - 1 or state.step)

  local slot
  local limits = q.limits { if_room = true }  -- nil: measuring would break the budget, and steps have no share of the limit
  local peak = limits and limits[model.dtype == "bf16" and "flops_bf16" or "flops_f32"]
  local bad, skipped, interrupted, warned = 0, 0, false, nil  -- bad: updates skipped in a row; warned: of flips, the latest that was not told

  local upcoming, position  -- the batch made ahead of its step, and where the batches stood before it
  local function save(again)  -- again: a step that is saved already
    if opt.checkpoints == false then return end
    state.batches, state.finished, state.course = position or batches:state(), state.step == steps and not state.row, course
    for name, value in pairs(fixed) do state[name] = value end
    if again then checkpoint.note(out, state) else checkpoint.save(out, parameters, adamw, state, opt.keep, opt.bits) end
  end

  -- Forward and backward of the micro-batch in the slot, whose packets are addressed to `dst`; gradients add up. Its share
  -- of the step's loss goes to `share`, the loss of each token to `nll`. Nothing is read from the device, so that a GPU has
  -- its next work before it is done with this.
  local function compute()
    local value, each = model:loss(slot, opt.row_tokens)
    value:backward()
    if several then return value, each end
    return value
  end
  local programs = {}
  local function pass(dst, share, nll)
    dst = routing and dst or 0  -- one program where all destinations move the same
    local frozen = routing and routing.frozen[dst] or {}
    if opt.eager then
      return q.scope(function()
        local value, each = q.freeze(frozen, compute)
        share:copy(value)
        if several then nll:copy(each) end
      end)
    end
    local p = programs[dst]
    if not p then
      p = {}
      p.program, p.loss, p.nll = q.capture(q.freeze, frozen, compute)
      programs[dst] = p
    end
    p.program:run()
    share:copy(p.loss)
    if several then nll:copy(p.nll) end
  end
  local losses, shares, nlls = q.zeros({ opt.accumulate }, "f32", "batch"), {}, {}
  for i = 1, opt.accumulate do
    shares[i] = losses:rows(i - 1, 1)
    nlls[i] = several and q.zeros({ opt.rows * opt.row_tokens }, "f32", "batch")
  end

  -- The optimizer's groups that the trained tokens of these micro-batches are addressed to; nil: all.
  local function addressed(infos)
    if not routing then return nil end
    local seen, groups = {}, {}
    for _, info in ipairs(infos) do
      for _, group in ipairs(info.trained_tokens > 0 and routing.active[info.dst] or {}) do
        if not seen[group] then seen[group], groups[#groups + 1] = true, group end
      end
    end
    return groups
  end

  q.defer_interrupt(true)
  if opt.eval_share > 0 and state.step == 0 then
    local loss = evaluate(model, file, opt, several)
    if loss then speak:say(("held-out loss before training: %.4f"):format(loss)) end
    state.eval_before = finite(loss)
  end
  local first, started = state.step, q.time()

  -- What follows the update of a step: the evaluation, where one is due, metrics and checkpoint. state.row is the row of a step whose
  -- evaluation is not done; before the last one all is saved, so that nothing of the training is lost with it.
  local function conclude(row)
    local last = state.step == steps
    local due = opt.eval_share > 0 and (last or (opt.eval_every > 0 and state.step % opt.eval_every == 0))
    state.row = due and storable(row) or nil
    if due and last then save() end
    if due and not q.interrupted() then
      row.eval_loss, row.eval_by_source = evaluate(model, file, opt, several, slot)
      if row.eval_loss or not q.interrupted() then state.row, state.last_eval = nil, finite(row.eval_loss) end
      if finite(row.eval_loss) and row.eval_loss < (state.best or math.huge) then
        state.best = row.eval_loss
        if opt.save_best then opt.save_best(state) end
      end
    end
    log:add(row)
    local rest = (q.time() - started) / math.max(1, state.step - first) * (steps - state.step)
    speak:line(banner.line(row, steps, state.last_eval, rest))
    about.loss, show.eval_before = finite(row.loss), state.eval_before
    if opt.checkpoints ~= false then live:step(state.step, steps, rest, speak) end
    if opt.on_step then opt.on_step(row, model) end
    interrupted = q.interrupted()
    if interrupted or last or (opt.save_every > 0 and state.step % opt.save_every == 0) then save(due and last) end
  end
  if state.row then conclude(state.row) end
  while state.step < steps and not interrupted do
    local begin, streamed = q.time(), model.stream and model.stream:figures()
    if opt.bits and opt.bits:begin(state.step / steps, state.step) then  -- other weights learn now: other operations
      for dst, p in pairs(programs) do
        p.program:free()
        p.loss:free()  -- which holds on to the program's memory
        if p.nll then p.nll:free() end
        programs[dst] = nil
      end
    end
    local micro, infos, trained, real, wait, damaged, dropped = {}, {}, 0, 0, 0, 0, 0
    for i = 1, opt.accumulate do
      micro[i], upcoming = upcoming or batches:next(), nil
      local info = micro[i]:info()
      infos[i] = info
      trained, real, wait = trained + info.trained_tokens, real + info.real_tokens, wait + info.wait_ms
      damaged, dropped = damaged + info.damaged, dropped + info.crc_dropped
      slot = slot or models.slot(info.tokens, info.max_documents)
    end
    position = batches:state()
    slot.scale:fill(1 / math.max(trained, 1))
    for i = 1, opt.accumulate do
      micro[i]:load(slot)
      if opt.on_batch then opt.on_batch(slot, state.step * opt.accumulate + i - 1) end
      q.rng_step(state.step * opt.accumulate + i - 1)
      pass(infos[i].dst, shares[i], nlls[i])
      if i < opt.accumulate then
        micro[i + 1]:send()
      elseif state.step + 1 < steps then
        upcoming = batches:next()
        upcoming:send()
      end
    end
    local lr = rate(state.step)
    if opt.bits and opt.bits.observe then opt.bits:observe() end
    local update = adamw:step { lr = lr, clip = opt.clip, groups = addressed(infos) }
    local total = 0
    for _, share in ipairs(losses:table()) do total = total + share end
    state.step, state.tokens = state.step + 1, state.tokens + trained
    if update.skipped or total ~= total then
      bad, skipped = bad + 1, skipped + 1
      speak:say(("step %d: loss or gradient is not finite; the update was skipped (%d in a row)"):format(state.step, bad))
      if bad >= opt.nan_limit then
        log:close()
        live:finish(("Given up at step %d: %d steps in a row were not finite."):format(state.step, bad))
        q.error("value", ("train: %d steps in a row were not finite; lower the learning rate (--lr, now %g) or look at the data"):format(bad, opt.lr))
      end
    else
      bad = 0
    end

    local fed = opt.bits and opt.bits:finish(opt.accumulate)
    if fed and fed.warning then warned = { step = state.step, text = fed.warning } end
    if warned and (state.step % 100 == 0 or state.step == steps) then
      speak:say(("step %d: %s"):format(warned.step, warned.text))
      warned = nil
    end
    local seconds = q.time() - begin
    local slots = opt.accumulate * opt.rows * opt.row_tokens
    local row = {
      step = state.step, epoch = infos[#infos].epoch, loss = total, lr = lr, grad_norm = update.grad_norm, tokens = slots,
      real_tokens = real, trained_tokens = trained, tok_s = slots / seconds, step_ms = seconds * 1000, data_ms = wait,
      limit_share = peak and slots * flops_per_token(model, opt.bits) / seconds / peak or nil, mem_bytes = q.peak_rss(),
      flip_rate = fed and fed.flip_rate or nil, pulse_rate = fed and fed.pulse_rate or nil,
      damaged = damaged > 0 and damaged or nil, crc_dropped = opt.drop > 0 and dropped or nil,
    }
    if streamed then
      for name, value in pairs(stream.since(model.stream:figures(), streamed)) do row[name] = value end
    end
    if several then
      local sums = {}
      for i = 1, opt.accumulate do add_sources(sums, micro[i], nlls[i]) end
      row.by_source = source_losses(sums)
    end
    conclude(row)
  end
  speak:finish()
  q.defer_interrupt(false)
  log:close()
  local profiled = opt.profile and programs[next(programs)]
  if profiled then print(tostring(profiled.program:profile()) .. "\n\n" .. tostring(q.memory())) end
  for _, p in pairs(programs) do p.program:free() end
  about.done, about.skipped, about.seconds, about.slots, about.state = state.step - first, skipped, q.time() - started, opt.accumulate * opt.rows * opt.row_tokens, state
  show.eval_before = state.eval_before
  live:finish((interrupted and "Stopped after step %d of %d; --resume goes on." or "Finished: step %d of %d."):format(state.step, steps))
  if opt.checkpoints ~= false then speak:say(banner.outcome(about)) end
  if skipped > 0 and about.done - skipped <= 1 and first == 0 and not interrupted then
    q.error("value", ("train: %d of %d updates were skipped because loss or gradient were not finite, so nothing was learned; lower the learning rate (--lr, now %g) or look at the data")
      :format(skipped, about.done, opt.lr))
  end
  if interrupted then
    q.error("interrupted", ("stopped after step %d; the checkpoint is in %s; go on with --resume"):format(state.step, out))
  end
  return { steps = state.step, eval_before = state.eval_before, eval_loss = state.last_eval, metrics = metrics.read(out .. "/metrics.jsonl"), report = show }
end
