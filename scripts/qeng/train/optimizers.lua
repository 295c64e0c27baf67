-- The optimizer of a run, as the fields of q.train say it.

require "qeng.train.adamw"
local optim = require "qeng.optim"
local q = require "qeng.core"
local schedule = require "qeng.train.schedule"

local optimizers = {}

-- run: opt, parameters, ranks and total (steps). routing: of route.plan, or nil. Returns also the rank that updates
-- each parameter, nil where all update all.
function optimizers.new(run, routing)
  local opt = run.opt
  local make = optim[opt.optim]
  if type(make) ~= "function" or opt.optim == "define" then
    q.error("value", ("q.train: there is no optimizer %s in q.optim"):format(tostring(opt.optim)))
  end
  if routing and opt.optim ~= "adamw" then
    q.error("unsupported", "addressed packets update a part of the parameters in a step, which only adamw does")
  end
  local shards = run.model.shards
  local shares = (opt.zero or 0) > 0 and run.ranks.job
  local owners = shards and shards.owners or shares and run.ranks:owners(run.parameters) or nil
  if owners and opt.optim ~= "adamw" then
    q.error("unsupported", ("--zero %d shares the state of adamw, not of %s (--optim adamw)")
      :format(opt.zero, opt.optim))
  end
  if opt.optim ~= "adamw" then
    if opt.moment_bits ~= 32 then
      q.error("unsupported", ("moment_bits = %s is of adamw, not of %s (optim = \"adamw\")")
        :format(opt.moment_bits, opt.optim))
    end
    for _, parameter in ipairs(run.parameters) do
      if parameter.tensor:grad():dtype() ~= "f32" then
        q.error("unsupported", ("%s reads gradients in f32 alone; train with adamw, or leave those in %s out")
          :format(opt.optim, parameter.tensor:grad():dtype()))
      end
    end
  end
  local own = owners and {}
  for i, rank in ipairs(owners or {}) do own[i] = rank == run.ranks.rank end
  local optimizer = make(run.parameters, {
    lr = schedule.make(opt.schedule, opt.lr, run.total, { warmup = opt.warmup, floor = opt.lr_floor }),
    decay = opt.decay, beta1 = opt.beta1, beta2 = opt.beta2, eps = opt.eps, rates = { scales = opt.scale_rate },
    moment_bits = opt.optim == "adamw" and opt.moment_bits or nil,
    groups = routing and routing.groups, own = own, ranks = shards and run.ranks.job or nil,
    allow_unused = opt.allow_unused or opt.bits and opt.bits.waits,
  })
  return optimizer, owners
end

return optimizers
