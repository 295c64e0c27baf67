-- Learning-rate schedules: functions from a step (from 0) to a rate. warmup: steps of linear rise. shape(progress)
-- falls from 1 at progress 0 to 0 at the end. floor: the share of the peak that is kept.

local q = require "qeng.core"

local schedule = {}

local shapes = {
  constant = function() return 1 end,
  linear = function(progress) return 1 - progress end,
  cosine = function(progress) return 0.5 * (1 + math.cos(math.pi * progress)) end,
  -- warm-up, stable, decay: flat for the first 80 %, then 1 - sqrt (Hägele et al. 2024, arXiv 2405.18392)
  wsd = function(progress) return progress < 0.8 and 1 or 1 - math.sqrt((progress - 0.8) / 0.2) end,
}

schedule.names = { "constant", "linear", "cosine", "wsd" }

function schedule.make(name, peak, steps, opt)
  opt = opt or {}
  local shape = shapes[name]
  if not shape then
    q.error("value", ("schedule %s: one of %s"):format(tostring(name), table.concat(schedule.names, ", ")))
  end
  if not steps then q.error("value", ("schedule %s: over how many steps?"):format(name)) end
  local warmup, floor = opt.warmup or 0, opt.floor or 0
  return function(step)
    if step < warmup then return peak * (step + 1) / warmup end
    local progress = (step - warmup) / math.max(steps - warmup, 1)
    return peak * (floor + (1 - floor) * shape(math.min(progress, 1)))
  end
end

-- schedule.cosine(peak, steps, { warmup =, floor = }), and the same for each name. A constant rate needs no steps.
for _, name in ipairs(schedule.names) do
  schedule[name] = function(peak, steps, opt)
    return schedule.make(name, peak, steps or name == "constant" and 1 or nil, opt)
  end
end

return schedule
