-- What a training run says of itself. Before the first step: what it is, and what is odd about its settings. At the
-- end: what came of it.

local q = require "qeng.core"
local fp8 = require "qeng.model.fp8"
local progress = require "qeng.console.progress"
local stream = require "qeng.model.stream"

local banner = {}

-- 1234567 -> "1.23 M"
function banner.count(n)
  for _, unit in ipairs { { 1e12, "T" }, { 1e9, "B" }, { 1e6, "M" }, { 1e4, "k", 1e3 } } do
    if n >= unit[1] then return ("%.3g %s"):format(n / (unit[3] or unit[1]), unit[2]) end
  end
  return ("%d"):format(n)
end

-- Elements of the parameters whose names are not among those of `others` (name = true).
local function elements(parameters, others)
  local sum, names = 0, {}
  for _, parameter in ipairs(parameters) do
    if not (others and others[parameter.name]) then sum = sum + parameter.tensor:elements() end
    names[parameter.name] = true
  end
  return sum, names
end

-- The device in use, as text. short: its name alone.
function banner.device(short)
  for _, one in ipairs(q.devices()) do
    if one.in_use then
      if short then return one.name end
      return one.name == "cpu" and one.description or ("%s, %s"):format(one.name, one.description)
    end
  end
  return "not chosen yet"
end

-- The one-bit weights that learn now. bits: q.inertia, or what stands for it.
function banner.learning(bits) return (bits.inertia or bits).weights end

-- The parameters of a model, with what was added to it, and how many of them are trained. bits: what learns one-bit
-- weights, or nil.
function banner.parameters(model, bits)
  local all, names = elements(model.parameters)
  local trained = elements(model:trainable())
  return all + elements(model:trainable(), names), trained + (bits and banner.learning(bits) or 0)
end

-- What is trained of a model, and its share.
function banner.trained(model, bits)
  local all, trained = banner.parameters(model, bits)
  local adapter, plain = model.mode == "lora" and model.adapter, 0
  for _, layer in ipairs(model.linears) do plain = plain + (layer.lora and 0 or 1) end
  local what = adapter and ("%s of rank %d%s, alpha %g, on %s"):format(
    adapter.dora and "DoRA" or "LoRA", adapter.rank, #(adapter.ranks or {}) > 0 and " and others" or "", adapter.alpha,
    plain == 0 and "all linear layers" or table.concat(adapter.targets, " "))
    or bits and "one-bit weights, and the floats beside them" or "every parameter"
  return ("%s: %s (%.3g %% of %s)"):format(what, banner.count(trained), 100 * trained / math.max(all, 1),
    banner.count(all))
end

-- The devices of the ranks of a job, or nil. devices: the name of each rank's.
function banner.ranks(devices)
  if #devices == 1 then return nil end
  return { "ranks", ("%d, on %s"):format(#devices, table.concat(devices, ", ")) }
end

-- { {name, text}... } of a run before its first step. about: opt (of q.train), plan (of the batches), steps, devices
-- (as for banner.ranks).
function banner.facts(model, file, about)
  local opt, plan, slots = about.opt, about.plan, about.opt.rows * about.opt.row_tokens
  local per_step = opt.accumulate / math.max(plan.batches, 1)
  local meta = file:meta()
  return {
    { "model", ("%s, %d layers, hidden %d, %s"):format(model.arch.model_type, model.config.layers, model.config.hidden,
      model.fp8 and fp8.text(model) or model.dtype) },
    { "trained", banner.trained(model, opt.bits) },
    { "data", ("%s documents, %s tokens, %s of them trained%s; template %s"):format(banner.count(plan.documents),
      banner.count(plan.real_tokens),
      banner.count(plan.trained_tokens), opt.eval_share > 0 and ("; %g %% held out"):format(100 * opt.eval_share) or "",
        tostring(meta.template or "none")) },
    { "batch", ("%d rows of %d a step: about %.3g documents, %s trained tokens; rows %.1f %% full"):format(
      opt.rows * opt.accumulate, opt.row_tokens, plan.documents * per_step,
      banner.count(plan.trained_tokens * per_step), 100 * plan.real_tokens / math.max(1, plan.batches * slots)) },
    { "steps", ("%d, %.3g epochs"):format(about.steps, about.steps * per_step) ..
      (opt.lr and ("; learning rate %g, %s%s"):format(opt.lr,
        opt.schedule, opt.warmup > 0 and (", %d steps of warm-up"):format(opt.warmup) or "") or "") },
    { "device", banner.device() },
    banner.ranks(about.devices),
  }
end

-- The settings as they came out: 0, auto and defaults are resolved.
function banner.used(model, file, about, defaults)
  local opt, adapter, used = about.opt, model.adapter, {}
  for name in pairs(defaults) do used[name] = opt[name] end
  used.steps, used.epochs = about.steps, ("%.4g"):format(about.steps * opt.accumulate / math.max(1, about.plan.batches))
  used.device, used.dtype, used.mode = banner.device(), model.fp8 and "fp8" or model.dtype, model.mode
  used.template = file:meta().template
  used.sources = opt.sources and table.concat(opt.sources, ", ") or "all"
  if adapter then
    used.rank, used.alpha, used.rslora, used.dropout, used.targets = adapter.rank, adapter.alpha, adapter.rslora,
      adapter.dropout, table.concat(adapter.targets, ", ")
  end
  if model.stream and not model.shards then used.weights = "stream" end
  return used
end

function banner.start(speak, facts)
  for _, fact in ipairs(facts) do speak:say(("%-8s %s"):format(fact[1], fact[2])) end
end

-- Warns of settings that are allowed and most likely not meant.
function banner.warn(speak, opt, steps, rate)
  if opt.lr == 0 then
    speak:say "warning: the learning rate is 0, so nothing is learned: give --lr"
  elseif opt.lr and opt.warmup > steps then
    local highest = 0
    for step = 0, steps - 1 do highest = math.max(highest, rate(step)) end
    speak:say(("warning: the warm-up of %d steps is not over when the run ends after %d: the learning rate gets to " ..
        "%.3g at most, not to %g; give a shorter --warmup, or more --steps")
      :format(opt.warmup, steps, highest, opt.lr))
  end
end

-- The line of a step, as fields for Progress:line. A narrow terminal leaves out those of the highest ranks. row: of the
-- metrics. held_out: the last held-out loss, or nil. rest: seconds left.
function banner.line(row, steps, held_out, rest)
  local rate = row.lr and ("%.1e"):format(row.lr):gsub("e([+-])0", "e%1")
  return {
    { ("step %d/%d"):format(row.step, steps), 0 }, { ("loss %.4f"):format(row.loss or 0 / 0), 0 },
    held_out and { ("held-out %.4f"):format(held_out), 3 }, rate and { "lr " .. rate, 4 },
    row.grad_norm and { ("norm %.2g"):format(row.grad_norm), 5 }, { ("%.0f tok/s"):format(row.tok_s), 2 },
    row.limit_share and { ("%.0f %% of GEMM limit"):format(100 * row.limit_share), 7 },
    row.stream_bytes and { stream.text(row), 6 },
    { "ETA " .. progress.duration(rest), 1 },
  }
end

-- What came of the run, in a sentence. about: done (steps in this process), skipped (updates that were not finite),
-- seconds, slots (of a step), loss (of the last step), state (of the run).
function banner.outcome(about)
  local state, parts = about.state, {}
  parts[1] = ("%d step%s in %s"):format(about.done, about.done == 1 and "" or "s",
    about.seconds < 10 and ("%.1f s"):format(about.seconds) or progress.duration(about.seconds))
  if about.done > 0 then
    parts[1] = parts[1] .. (", %.0f tok/s"):format(about.done * about.slots / math.max(about.seconds, 1e-9))
  end
  if about.loss then parts[#parts + 1] = ("last training loss %.4f"):format(about.loss) end
  if state.last_eval then
    parts[#parts + 1] = (state.eval_before and ("held-out loss %.4f before, "):format(state.eval_before) or
      "held-out loss ") .. ("%.4f after"):format(state.last_eval)
  end
  if state.best and state.last_eval and state.best < state.last_eval then
    parts[#parts + 1] = ("%.4f at best"):format(state.best)
  end
  if about.skipped > 0 then
    parts[#parts + 1] = ("%d updates were skipped because loss or gradient were not finite: lower the learning rate")
      :format(about.skipped)
  end
  return table.concat(parts, "; ")
end

return banner
