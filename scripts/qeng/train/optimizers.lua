-- The optimizer of a run, as the fields of q.train say it.

require "qeng.train.adamw"
local optim = require "qeng.optim"
local q = require "qeng.core"
local schedule = require "qeng.train.schedule"

local optimizers = {}

-- run: opt, parameters and total (steps). routing: of route.plan, or nil.
function optimizers.new(run, routing)
  local opt = run.opt
  local make = optim[opt.optim]
  if type(make) ~= "function" or opt.optim == "define" then
    q.error("value", ("q.train: there is no optimizer %s in q.optim"):format(tostring(opt.optim)))
  end
  if routing and opt.optim ~= "adamw" then
    q.error("unsupported", "addressed packets update a part of the parameters in a step, which only adamw does")
  end
  return make(run.parameters, {
    lr = schedule.make(opt.schedule, opt.lr, run.total, { warmup = opt.warmup, floor = opt.lr_floor }),
    decay = opt.decay, beta1 = opt.beta1, beta2 = opt.beta2, eps = opt.eps, rates = { scales = opt.scale_rate },
    groups = routing and routing.groups, allow_unused = opt.allow_unused or opt.bits and opt.bits.waits,
  })
end

return optimizers
