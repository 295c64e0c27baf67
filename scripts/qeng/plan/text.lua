-- How a plan (plan/init.lua) prints: accounts, where they lie, what a step takes, and whether it fits.

local progress = require "qeng.console.progress"
local q = require "qeng.core"

local text = { __name = "q.plan" }

local order = { "weights", "adapters", "gradients", "optimizer", "activations", "workspace", "batch", "kv" }

local function bytes(n) return progress.bytes(n) end

-- Rounds up what is shown: a least amount has to do as it is printed.
local function at_least(n)
  local unit = 1
  while n / unit >= 1000 do unit = unit * 1000 end
  return bytes(unit > 1 and math.ceil(n / unit * 10) / 10 * unit or n)
end

local function seconds(s)
  if s < 1e-3 then return ("%.0f us"):format(s * 1e6) end
  if s < 1 then return ("%.3g ms"):format(s * 1e3) end
  return s < 60 and ("%.3g s"):format(s) or progress.duration(s)
end

-- Accounts in a fixed order; others come last.
local function accounts_of(plan)
  local names, known = {}, {}
  for _, name in ipairs(order) do
    known[name] = true
    if plan.accounts[name] then names[#names + 1] = name end
  end
  local rest = {}
  for name in pairs(plan.accounts) do if not known[name] then rest[#rest + 1] = name end end
  table.sort(rest)
  for _, name in ipairs(rest) do names[#names + 1] = name end
  return names
end

-- What would bring the plan under the memory there is, the largest account first.
local function advice(plan)
  local opt, a = plan.given, plan.accounts
  local ways = {}
  local function way(condition, what) if condition then ways[#ways + 1] = what end end
  local running, state = (a.activations or 0) + (a.workspace or 0), (a.gradients or 0) + (a.optimizer or 0)
  way(opt.mode == "full", "train adapters (--mode lora)")
  way(opt.mode == "full" and opt.ranks > 1 and opt.zero < 3, "let ranks share more out (--zero 3)")
  way(opt.mode == "full" and opt.moment_bits ~= 8, "keep moments in 8 bits (--moment-bits 8)")
  way(opt.mode == "full" and opt.gradients ~= "bf16" and plan.dtype ~= "f32",
    "gather gradients in bf16 (--gradients bf16)")
  way(opt.mode ~= "inference" and running > 0.2 * plan.total and not opt.recompute,
    "recompute activations (--recompute)")
  way(opt.mode ~= "inference" and running > 0.2 * plan.total, "take fewer or shorter rows")
  way(opt.mode == "onebit" and not opt.active, "train by phases (--active 1.5e9)")
  way(opt.mode == "onebit" and state > 0.2 * plan.total,
    "take a smaller vocabulary: embedding and head are trained as floats")
  way(opt.mode == "lora" and state > 0.2 * plan.total, "lower the rank")
  way((a.kv or 0) > 0.2 * plan.total, "shorten the context or store it smaller (--kv q8_0)")
  way((a.weights or 0) > 0.2 * plan.total and opt.mode ~= "full" and opt.mode ~= "onebit" and not opt.stored,
    "store the weights in fewer bits (--stored q4_k)")
  return #ways > 0 and table.concat(ways, ", or ") or "take a smaller model"
end

-- Whether the plan fits the budgets or the devices present, and what to change.
function text.sentence(plan)
  local opt = plan.given
  local streams = plan.least < plan.total
  local budget, which = opt.device_budget, "device"
  if plan.on_host and opt.host_budget and opt.host_budget < (budget or math.huge) then
    budget, which = opt.host_budget, "host"
  end
  if budget then
    if not plan.fits and plan.least_host > 0 then
      return ("Does not fit: %s of weights have to be streamed from pinned memory of the host, whose budget is %s; " ..
          "give it that, or the device more than %s."):format(
        at_least(plan.least_host), bytes(opt.host_budget), bytes(budget))
    end
    local process = plan.counted > 0 and (", of which the process itself %s"):format(bytes(plan.counted)) or ""
    if not plan.fits then
      local resident = not streams or not opt.host_budget and plan.least_budget == plan.total
      return ("Does not fit in %s: the least %s budget that works is %s%s%s; %s."):format(
        bytes(budget), which, at_least(plan.least_budget),
        resident and "" or " (weights streamed)", resident and not opt.host_budget and "" or process, advice(plan))
    end
    if plan.placed.streamed == 0 then
      return ("Fits in %s with everything resident%s."):format(bytes(budget), process)
    end
    local keep = plan.one_memory and "" or (" --stream-keep %.0fM"):format(math.ceil(plan.placed.keep / 1e6))
    local from = plan.placed.host > 0 and plan.placed.file > 0 and (", %s of that from the file each time"):format(
      bytes(plan.placed.file)) or ""
    return ("Fits in %s%s with --weights stream%s: %d of %d units resident, %s streamed%s."):format(
      bytes(budget), process, keep, plan.placed.resident,
      #plan.units, bytes(plan.placed.streamed), from)
  end
  local best
  for _, device in ipairs(plan.devices) do
    if device.placed and device.placed.streamed == 0 then
      return ("Fits on %s (%s): %s of %s."):format(device.name, device.description, bytes(plan.total),
        bytes(device.memory))
    end
    best = best or device.placed and device
  end
  if best then
    return ("Fits on %s (%s, %s) with --weights stream only: %d of %d units resident, %s streamed."):format(
      best.name, best.description,
      bytes(best.memory), best.placed.resident, #plan.units, bytes(best.placed.streamed))
  end
  local device = plan.devices[1]
  return ("Does not fit on %s (%s): it has %s, and the least that works is %s%s; %s."):format(
    device.name, device.description,
    bytes(device.memory), bytes(plan.least), streams and " (weights streamed)" or "", advice(plan))
end

-- Seconds of a step at the limits, with all that is moved beside the computation: a lower bound.
local function seconds_of(step) return math.max(step.seconds, step.transfer or 0, step.exchange or 0) end

-- The step at the device's limits: a lower bound, which real steps approach and never beat.
local function step_line(plan)
  local step = plan.step
  local flops = step.flops_f32 + step.flops_bf16
  local unit = plan.mode == "inference" and "decoding step" or "step"
  local line = ("%s of %d tokens: %.3g TFLOP, %s moved in memory"):format(unit, step.tokens, flops / 1e12,
    bytes(step.bytes))
  if step.seconds > 0 then
    local at_best = seconds_of(step)
    line = line .. ("; at the limits %s, %.4g tokens/s"):format(seconds(at_best), step.tokens / at_best)
  end
  if step.exchanged then
    line = line .. ("\nso much on each of %d ranks, side by side; rank 0 sends %s a step"):format(plan.given.ranks,
      bytes(step.exchanged))
    if not step.exchange then
      line = line .. ", whose time is not counted: give the network's rate (--network 1.25G)"
    else
      line = line .. (": %s at %s/s"):format(seconds(step.exchange), bytes(plan.given.network))
      if step.seconds > 0 then
        line = line .. ("; where none of it is beside the computation a step takes %s"):format(
          seconds(step.seconds + step.exchange))
      end
    end
    if plan.exchange_bytes then
      line = line .. ("\n%s of the host's memory for what is sent"):format(bytes(plan.exchange_bytes))
    end
    if plan.gathered then
      line = line .. ("\nrank 0 has all weights, %s, while it writes best/ and at the end model/"):format(
        bytes(plan.gathered))
    end
  end
  if step.moved > 0 then
    line = line .. ("\n%s streamed a step"):format(bytes(step.moved))
    line = line .. (step.transfer and (": %s at %s/s, %.0f %% of it hidden at best"):format(
      seconds(step.transfer), bytes(plan.link),
      100 * math.min(1, step.seconds / step.transfer)) or "; give the link's rate (--link, GB/s) for its time")
  end
  return line
end

-- Seconds of training on the examples that were asked about, at the limits; nil: none were.
local function seconds_of_data(plan)
  local opt, step = plan.given, plan.step
  if not opt.examples or plan.mode == "inference" or step.seconds == 0 then return nil end
  return opt.examples * opt.example_tokens * opt.epochs / step.tokens * seconds_of(step)
end
local function data_line(opt)
  return ("%d examples of %g tokens, %g %s: %.4g million tokens"):format(opt.examples, opt.example_tokens, opt.epochs,
    opt.epochs == 1 and "epoch" or "epochs", opt.examples * opt.example_tokens * opt.epochs / 1e6)
end

-- What the figures leave out, and where the plan differs from what was asked for.
local function notes(plan, lines)
  lines[#lines + 1] = "tensors only: what kernels take for themselves comes on top (scratch in q.memory() of a run)"
  if plan.process > 0 then
    lines[#lines] = lines[#lines] .. (", and the process itself, %s as --weights stream counts it"):format(
      bytes(plan.process))
  end
  local opt = plan.given
  if (opt.kv or ""):find "^auto" then
    lines[#lines + 1] = "kv auto: counted as tq4; layers whose keys' norms ask for it take twice that for keys"
  end
  if opt.asked_context and opt.asked_context > opt.context then
    lines[#lines + 1] = ("context: %d tokens, the model's max_position_embeddings, not %d"):format(
      opt.context, opt.asked_context)
  end
end

function text.__tostring(plan)
  local active = plan.active and (" (a token meets %.4g)"):format(plan.active / 1e9) or ""
  local lines = { ("%s: %.4g billion parameters%s, %d layers, %s, %s%s"):format(plan.name, plan.parameters / 1e9,
    active, plan.layers, plan.dtype, plan.mode,
    plan.trained > 0 and (", %.4g million trained"):format(plan.trained / 1e6) or "") }
  lines[#lines + 1] = ("%-14s %12s %12s %12s"):format("account", "device", "host", "file")
  local placed = plan.placed
  for _, name in ipairs(accounts_of(plan)) do
    local n, host, file = plan.accounts[name], 0, 0
    if name == "weights" then n, host, file = n - plan.total + placed.device, placed.host, placed.file end
    lines[#lines + 1] = ("%-14s %12s %12s %12s"):format(name, bytes(n), host > 0 and bytes(host) or "",
      file > 0 and bytes(file) or "")
  end
  lines[#lines + 1] = ("%-14s %12s %12s %12s"):format("total", bytes(placed.device), bytes(placed.host),
    bytes(placed.file))
  notes(plan, lines)
  lines[#lines + 1] = step_line(plan)
  local whole = seconds_of_data(plan)
  if whole then lines[#lines + 1] = data_line(plan.given) .. "; at the limits " .. seconds(whole) end
  lines[#lines + 1] = text.sentence(plan)
  return table.concat(lines, "\n")
end

text.__index = { sentence = text.sentence }

-- ---------------------------------------------------------------- several ways at once

-- The bytes that the announcement of one-bit training (Qsbits) counts for so many weights: bf16 weights and gradients
-- with f32 moments; weights of 1 bit with 2 bits each of gradients and state; and by phases, where only `active`
-- weights have gradients and state.
local function announced(weights, active)
  local function decimal(n) return n >= 1e12 and ("%.2f TB"):format(n / 1e12) or ("%.2f GB"):format(n / 1e9) end
  return ("as one-bit training was announced, for %.3g billion weights: %s dense with AdamW, %s with one bit and " ..
    "ternary gradients and state;\nby phases of %.2g billion %s on the device and %s on the host")
    :format(weights / 1e9, decimal(12 * weights), decimal(weights * 5 / 8), active / 1e9, decimal(active * 5 / 8),
      decimal(weights / 8))
end

-- Codes of errors that are about the model, or about one way of training it.
local of_the_model = { unsupported = true, shape = true, dtype = true, value = true, format = true }

-- A line for each of `ways`: {name, function that returns its plan}; then what the figures leave out. One that cannot
-- be planned says why; if none can, that is the error. Returns also the last plan.
local function rows(title, ways)
  local shown, below, last, failed, data = {}, {}, nil, nil, nil
  for _, way in ipairs(ways) do
    local one, why = q.try(way[2])
    if not one then
      if not of_the_model[why.code] then error(why, 0) end
      failed = failed or why
      shown[#shown + 1] = { way[1], why = why.message }
    else
      local where = {}
      for _, device in ipairs(one.devices) do
        where[#where + 1] = device.name .. ": " ..
          (not device.placed and "no" or device.placed.streamed > 0 and "streamed" or "yes")
      end
      last, below = one, {}
      notes(one, below)
      local step, whole = one.step, seconds_of_data(one)
      data = data or whole and data_line(one.given)
      local at_best = seconds_of(step)
      shown[#shown + 1] = { way[1], bytes(one.total), bytes(one.least), at_best > 0 and seconds(at_best) or "",
        at_best > 0 and ("%.0f"):format(step.tokens / at_best) or "", whole and seconds(whole) or "",
        table.concat(where, ", ") }
    end
  end
  if not last then error(failed, 0) end
  local form = "%-24s %12s %12s %12s %12s" .. (data and " %12s" or "%.0s") .. "   %s"
  local lines = { form:format(title, "total", "at least", "step", "tokens/s", "the data", "fits") }
  for _, row in ipairs(shown) do
    lines[#lines + 1] = row.why and ("%-24s %s"):format(row[1], row.why) or form:format(unpack(row))
  end
  if data then lines[#lines + 1] = data end
  for _, line in ipairs(below) do lines[#lines + 1] = line end
  return lines, last
end

-- The ways of plan(mode, active) for one model, and where each would fit. active: weights that learn at once by phases;
-- 0: no phases.
function text.compare(plan, active)
  local ways = {}
  for _, mode in ipairs { "full", "lora", "onebit" } do ways[#ways + 1] = { mode, function() return plan(mode) end } end
  if active > 0 then ways[#ways + 1] = { "by phases", function() return plan("onebit", active) end } end
  ways[#ways + 1] = { "inference", function() return plan "inference" end }
  local lines, last = rows("mode", ways)
  local weights = last.parameters
  lines[#lines + 1] = "\n" .. announced(weights, math.min(active > 0 and active or weights, weights))
  return table.concat(lines, "\n")
end

-- Each model of a family in each of the modes, by plan(name, mode).
function text.family(plan, models, modes)
  local ways = {}
  for _, model in ipairs(models) do
    for _, mode in ipairs(modes) do
      ways[#ways + 1] = { model .. " " .. mode, function() return plan(model, mode) end }
    end
  end
  return table.concat((rows("model", ways)), "\n")
end

return text
