-- q.train: the ordinary fine-tuning loop. Copy it into a recipe to change it; it is made of the pieces that q offers.
--
--   q.train { model =, data = PacketFile, out =, steps = | epochs =, row_tokens =, rows =, accumulate =, lr =, schedule =,
--             warmup =, decay =, clip =, seed =, eval_share =, eval_every =, save_every =, keep =, resume =, eager =,
--             sources = { SRC... }, drop = CRC-Drop, weights = { [SRC] = weight } or function(step, source) -> weight,
--             bits = q.inertia or q.phases of a one-bit model, scale_rate = its row scales' share of lr (0.3),
--             on_batch = function(slot, number): may change the loaded tensors of a micro-batch,
--             long = "auto" | "split" | "truncate" | "drop": of documents longer than a row, as PacketFile:batches has it,
--             eval_data = PacketFile: held out instead of a share of data; patience: evaluations without a lower loss that end the run (0: none),
--             on_eval = function(step, tell), tensorboard = true: event files beside metrics.jsonl,
--             allow_unused: a parameter that no gradient reaches is no error (q.adamw_state),
--             curves = {name of the training loss, of the held-out loss} in the report,
--             on_begin = function(): before the first step, when nothing can be refused any more,
--             checkpoints = false: none is written (benchmarks), overwrite = true: a run that is in `out` is deleted (train/run_folder.lua) }
--
-- One optimizer step is `accumulate` packed micro-batches of rows * row_tokens slots; the loss is the sum of nll over its
-- trained tokens divided by their number. The forward and backward pass is captured once and replayed. Everything is
-- drawn from `seed`; a run stopped at any moment and resumed gives the same bits. What has to be the same then, and what may change and is
-- told, says train/resume.lua.
--
-- A step of which no token is trained computes and changes nothing: parameters, moments and the optimizer's count of steps stay, and it
-- has no loss. The first is told, and at the end how many there were. Data without any trained token is refused.
--
-- Packets that are addressed (DST) move the parameters of train/route.lua only: each micro-batch holds one destination, whose
-- pass is a program of its own, and a step updates (and decays) what an addressed token of it reached. The loss is divided
-- by the trained tokens of the whole step, whomever they address, so that a token weighs the same wherever it goes.

local q = require "qeng.core"
local banner = require "qeng.train.banner"
local checkpoint = require "qeng.train.checkpoint"
local held_out = require "qeng.train.held_out"
local metrics = require "qeng.report.metrics"
local models = require "qeng.model"
local onebit = require "qeng.onebit"
local progress = require "qeng.console.progress"
local report = require "qeng.report"
local resume = require "qeng.train.resume"
local route = require "qeng.train.route"
local run_folder = require "qeng.train.run_folder"
local schedule = require "qeng.train.schedule"
local stream = require "qeng.model.stream"
local tensorboard = require "qeng.train.tensorboard"
local trained_data = require "qeng.train.trained_data"

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

local function finite(value) return value and math.abs(value) < math.huge and value or nil end

-- What a checkpoint can hold of a row of metrics: JSON has no NaN.
local function storable(row)
  local copy = {}
  for key, value in pairs(row) do
    if type(value) == "table" then copy[key] = storable(value) elseif type(value) ~= "number" or finite(value) then copy[key] = value end
  end
  return copy
end

local defaults = {
  row_tokens = 512, rows = 1, accumulate = 1, lr = 2e-4, schedule = "cosine", warmup = 0, decay = 0, clip = 1.0, seed = 0,
  eval_share = 0, eval_every = 0, patience = 0, save_every = 0, keep = 2, nan_limit = 5, pad = 0, drop = 0, scale_rate = 0.3, long = "auto",
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
    sources = opt.sources, drop = opt.drop, weights = opt.weights, batches_per_step = opt.accumulate, route = true, long = opt.long,
  }
  local plan = batches:plan()
  local evaluates = trained_data.check(plan, held_out.any(opt) and held_out.batches(file, opt):plan() or nil, opt, speak)
  local several = next(plan.sources, (next(plan.sources))) ~= nil
  local routing = route.plan(model, plan.destinations)
  local groups, rates = routing and routing.groups, nil
  if model.mode == "onebit" then
    if routing then q.error("unsupported", "train: addressed packets (DST) and one-bit weights: leave the destinations out") end
    groups, rates = onebit.rate_groups(parameters, opt.scale_rate)
  end
  local adamw = q.adamw_state(tensors_of(parameters), {
    decay = opt.decay, beta1 = opt.beta1, beta2 = opt.beta2, eps = opt.eps, groups = groups, rates = rates,
    allow_unused = opt.allow_unused or opt.bits and opt.bits.waits,
  })

  local steps = opt.steps
  if not steps or steps == 0 then steps = math.max(1, math.ceil(plan.batches * (opt.epochs or 1) / opt.accumulate)) end
  local rate = schedule.make(opt.schedule, opt.lr, steps, { warmup = opt.warmup, floor = opt.lr_floor })

  local fixed, course
  if opt.resume or opt.checkpoints ~= false then fixed, course = resume.settings(given, defaults, steps) end
  local function check(found)
    if type(found.tokens) ~= "number" or type(found.batches) ~= "table" then q.error("format", out .. ": its checkpoint was not saved by such a run") end
    if type(found.fixed) ~= "table" or type(found.course) ~= "table" then
      q.error("value", ("resume: the checkpoint in %s does not say all that decides the result, as those of earlier versions: finish the run with that version, or start anew with another --out"):format(out))
    end
    checkpoint.compare(out, found.fixed, fixed)
    if found.step > steps then
      q.error("value", ("resume: the run in %s stands at step %d, beyond the %d steps asked for: give %d or more, or another --out"):format(out, found.step, steps, found.step))
    end
  end
  local state = { step = 0, tokens = 0 }
  if opt.resume then
    local found = checkpoint.load(out, parameters, adamw, opt.bits, check)
    if found then
      resume.tell_changes(speak, found.course, course)
      state = found
      held_out.judge(state, nil, opt.patience)  -- which may be another now
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
  local board = opt.tensorboard and tensorboard.open(out .. "/tensorboard", metrics.read(out .. "/metrics.jsonl"))

  local slot
  local limits = q.limits { if_room = true }  -- nil: measuring would break the budget, and steps have no share of the limit
  local peak = limits and limits[model.dtype == "bf16" and "flops_bf16" or "flops_f32"]
  local bad, skipped, interrupted, warned = 0, 0, false, nil  -- bad: updates skipped in a row; warned: of flips, the latest that was not told

  local upcoming, position  -- the batch made ahead of its step, and where the batches stood before it
  local function save(again)  -- again: a step that is saved already
    if opt.checkpoints == false then return end
    state.batches, state.finished, state.fixed, state.course = position or batches:state(), (state.step == steps or state.stopped or false) and not state.row, fixed, course
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
  if evaluates and state.step == 0 then
    local loss = held_out.loss(model, file, opt, several)
    if loss then speak:say(("held-out loss before training: %.4f"):format(loss)) end
    state.eval_before = finite(loss)
  end
  local first, started = state.step, q.time()

  -- What follows the update of a step: the evaluation, where one is due, metrics and checkpoint. state.row is the row of a step whose
  -- evaluation is not done; before the last one all is saved, so that nothing of the training is lost with it.
  local function conclude(row)
    local last = state.step == steps
    local due = evaluates and (last or (opt.eval_every > 0 and state.step % opt.eval_every == 0))
    state.row = due and storable(row) or nil
    if due and last then save() end
    if due and not q.interrupted() then
      row.eval_loss, row.eval_by_source = held_out.loss(model, file, opt, several, slot)
      if row.eval_loss or not q.interrupted() then state.row, state.last_eval = nil, finite(row.eval_loss) end
      if held_out.judge(state, finite(row.eval_loss), opt.patience) and opt.save_best then opt.save_best(state) end
      if state.stopped and not last then
        speak:say(("step %d: no lower held-out loss in %d evaluations; training ends"):format(state.step, opt.patience))
      end
    end
    local ended = last or state.stopped
    if opt.on_eval and not q.interrupted() and (ended or opt.eval_every > 0 and state.step % opt.eval_every == 0) then
      opt.on_eval(state.step, function(text) speak:say(text) end)
    end
    log:add(row)
    if board then board(row) end
    local rest = (q.time() - started) / math.max(1, state.step - first) * (steps - state.step)
    speak:line(banner.line(row, steps, state.last_eval, rest))
    about.loss, show.eval_before = finite(row.loss), state.eval_before
    if opt.checkpoints ~= false then live:step(state.step, steps, rest, speak) end
    if opt.on_step then opt.on_step(row, model) end
    interrupted = q.interrupted()
    if interrupted or ended or (opt.save_every > 0 and state.step % opt.save_every == 0) then save(due and last) end
  end
  if state.row then conclude(state.row) end
  while state.step < steps and not interrupted and not state.stopped do
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
      if trained > 0 then
        micro[i]:load(slot)
        if opt.on_batch then opt.on_batch(slot, state.step * opt.accumulate + i - 1) end
        q.rng_step(state.step * opt.accumulate + i - 1)
        pass(infos[i].dst, shares[i], nlls[i])
      end
      if i < opt.accumulate then
        micro[i + 1]:send()
      elseif state.step + 1 < steps then
        upcoming = batches:next()
        upcoming:send()
      end
    end
    local lr = rate(state.step)
    if opt.bits and opt.bits.observe then opt.bits:observe() end
    local update = trained > 0 and adamw:step { lr = lr, clip = opt.clip, groups = addressed(infos) } or { skipped = false }
    local total = 0
    for _, share in ipairs(trained > 0 and losses:table() or {}) do total = total + share end
    state.step, state.tokens = state.step + 1, state.tokens + trained
    if trained == 0 then
      state.untrained = (state.untrained or 0) + 1
      if state.untrained == 1 then speak:say(("step %d: none of its %d tokens is trained; it changes nothing, and further such steps are counted"):format(state.step, real)) end
    end
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

    local fed = opt.bits and trained > 0 and opt.bits:finish(opt.accumulate)
    if fed and fed.warning then warned = { step = state.step, text = fed.warning } end
    if warned and (state.step % 100 == 0 or state.step == steps) then
      speak:say(("step %d: %s"):format(warned.step, warned.text))
      warned = nil
    end
    local seconds = q.time() - begin
    local slots = opt.accumulate * opt.rows * opt.row_tokens
    local row = {
      step = state.step, epoch = infos[#infos].epoch, loss = trained > 0 and total or nil, lr = lr, grad_norm = update.grad_norm, tokens = slots,
      real_tokens = real, trained_tokens = trained, tok_s = slots / seconds, step_ms = seconds * 1000, data_ms = wait,
      limit_share = peak and slots * flops_per_token(model, opt.bits) / seconds / peak or nil, mem_bytes = q.peak_rss(),
      flip_rate = fed and fed.flip_rate or nil, pulse_rate = fed and fed.pulse_rate or nil,
      damaged = damaged > 0 and damaged or nil, crc_dropped = opt.drop > 0 and dropped or nil,
    }
    if streamed then
      for name, value in pairs(stream.since(model.stream:figures(), streamed)) do row[name] = value end
    end
    if several and trained > 0 then
      local sums = {}
      for i = 1, opt.accumulate do held_out.add_sources(sums, micro[i], nlls[i]) end
      row.by_source = held_out.by_source(sums)
    end
    conclude(row)
  end
  speak:finish()
  if state.untrained then speak:say(("%d of %d steps had no trained token and changed nothing"):format(state.untrained, state.step)) end
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
  return { steps = state.step, eval_before = state.eval_before, eval_loss = state.last_eval, best = state.best, best_step = state.best_step, metrics = metrics.read(out .. "/metrics.jsonl"), report = show }
end
