-- One training run of a small one-bit model on a text of characters: the same data, floats and schedule whatever the rule, so that
-- runs differ by the rule alone.
--
--   case: rule (onebit.lua), seed, lr (of the floats), scale_rate (row scales' share of lr: 0.3), latent_lr (of latent, grid and dense
--         weights: 1e-2), and for counters and momenta what q.inertia takes (levels, q, k, target, schedule, gamma, tau, rise);
--         phases = {parts =, steps =}: one of so many parts learns at a time
--   set:  values (a config.json's keys), text (char_text), rows, tokens, steps, points (of the curve), point_windows
--
-- Returns {loss (whole held-out text), train, curve = {{step, loss}...}, flips = {per thousand weights and step, by tenth}, flips_per_weight,
-- pulse_rate (first tenth), levels (histogram), tokens, seconds, warnings}.

local q = require "qeng.core"
local char_text = require "qeng.char_text"
local inertia = require "qeng.inertia"
local onebit = require "qeng.onebit"
local phases = require "qeng.phases"
local schedule = require "qeng.schedule"

local warmup = 50  -- steps

local function tensors(parameters)
  local list = {}
  for i, parameter in ipairs(parameters) do list[i] = parameter.tensor end
  return list
end

local function float_optimizer(parameters, scale_rate)
  local groups, rates = onebit.rate_groups(parameters, scale_rate)
  return q.adamw_state(tensors(parameters), { beta1 = 0.9, beta2 = 0.99, eps = 1e-10, groups = groups, rates = rates })
end

local function learns_by_pulses(case) return case.rule == "counter" or case.rule == "bop" end

local function options_of(case)
  return { levels = case.levels, q = case.q, k = case.k, target = case.target, schedule = case.schedule, bop = case.rule == "bop",
    gamma = case.gamma, tau = case.tau, rise = case.rise }
end

local function train(case, set, say)
  local model = onebit.random(set.values, { rule = case.rule, seed = case.seed, levels = case.grid_levels })
  q.seed(case.seed)
  local floats = float_optimizer(onebit.float_parameters(model), case.scale_rate or 0.3)
  local latents = #model.latents > 0 and q.adamw_state(tensors(model.latents), { beta1 = 0.9, beta2 = 0.99, eps = 1e-10 })
  local rate = schedule.make("cosine", case.lr, set.steps, { warmup = warmup, floor = 0.1 })
  local latent_rate = schedule.make("cosine", case.latent_lr or 1e-2, set.steps, { warmup = warmup, floor = case.rule == "dense" and 0.1 or 0 })
  local bits = learns_by_pulses(case) and (case.phases and phases.new(model, { count = case.phases.parts, steps = case.phases.steps, keep = true,
    inertia = options_of(case) }) or inertia.new(model, options_of(case)))
  local slot = char_text.slot(set.rows, set.tokens)
  local places = set.text:places(1000 + case.seed, set.rows, set.tokens)
  local result = { curve = {}, flips = {}, pulse_rate = 0, warnings = {}, tokens = set.steps * set.rows * set.tokens }
  local program, loss
  local weights, flips, started, recent, tenth = onebit.weights(model), 0, q.time(), {}, { flips = 0, steps = 0 }
  for step = 0, set.steps - 1 do
    set.text:fill(slot, set.text.train, places(step), set.tokens)
    if bits and bits:begin(step / set.steps, step) then  -- another part learns now
      if program then
        program:free()
        loss:free()  -- which holds on to the program's memory
      end
      program = nil
    end
    q.rng_step(step)
    if not program then
      program, loss = q.capture(function()
        local value = model:loss(slot)
        value:backward()
        return value
      end)
    end
    program:run()
    if bits and bits.observe then bits:observe() end
    floats:step { lr = rate(step) }
    if latents then
      latents:step { lr = latent_rate(step) }
      onebit.settle(model)
    end
    local report = bits and bits:finish()
    if report then
      flips, tenth.flips = flips + report.flips, tenth.flips + report.flips
      if step < set.steps / 10 then result.pulse_rate = result.pulse_rate + report.pulse_rate / math.ceil(set.steps / 10) end
      if report.warning and #result.warnings < 5 and step % 50 == 49 then table.insert(result.warnings, ("step %d: %s"):format(step + 1, report.warning)) end
    end
    tenth.steps = tenth.steps + 1
    if math.floor((step + 1) * 10 / set.steps) > math.floor(step * 10 / set.steps) then
      table.insert(result.flips, 1000 * tenth.flips / weights / tenth.steps)
      tenth = { flips = 0, steps = 0 }
    end
    recent[step % 100 + 1] = loss:item()
    if recent[step % 100 + 1] ~= recent[step % 100 + 1] then q.error("value", ("%s: the loss is not a number at step %d; lower lr"):format(case.name, step + 1)) end
    if math.floor((step + 1) * set.points / set.steps) > math.floor(step * set.points / set.steps) and step + 1 < set.steps then
      local held = set.text:held_out_loss(model, slot, set.rows, set.tokens, set.point_windows)
      table.insert(result.curve, { step + 1, held })
    end
    say(step + 1, recent[step % 100 + 1])
    if q.interrupted() then q.error("interrupted", "stopped; finished runs are kept, and a next call goes on after them") end
  end
  result.seconds = q.time() - started
  result.loss = set.text:held_out_loss(model, slot, set.rows, set.tokens)
  table.insert(result.curve, { set.steps, result.loss })
  local sum = 0
  for _, value in ipairs(recent) do sum = sum + value end
  result.train, result.flips_per_weight = sum / #recent, flips / weights
  result.levels = bits and bits:histogram() or nil
  program:free()
  loss:free()
  if bits then bits:free() end
  return result
end

return function(case, set, say)
  return q.scope(function() return train(case, set, say or function() end) end)
end
