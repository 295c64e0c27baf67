-- q.adamw: AdamW over parameters as model:trainable() lists them. lr is a number or a function of the step (q.cosine).
--
--   local adamw = q.adamw(model:trainable(), { lr = q.cosine(2e-4, steps), decay = 0.1 })
--   loss:backward()
--   adamw:step { clip = 1.0 }          -- or adamw:step { lr = 1e-4 }
--
-- It is q.adamw_state with a rate, and takes the same options. A parameter may name a rate: {name =, tensor =, rate =
-- "scales"}. rates = { scales = 0.3 } says what lr is multiplied by for those.

local q = require "qeng.core"

local adamw = {}

local Optimizer = {}
Optimizer.__index = Optimizer

-- The group of each parameter, by the rate that it names, and the factor of each group.
local function by_rate(parameters, rates)
  local groups, factors, group_of = {}, { 1 }, {}
  for i, parameter in ipairs(parameters) do
    local name = type(parameter) == "table" and parameter.rate
    if name and not group_of[name] then
      group_of[name], factors[#factors + 1] = #factors, rates[name] or 1
    end
    groups[i] = group_of[name] or 0
  end
  return groups, factors
end

-- parameters: each is {name =, tensor =} or a tensor.
function adamw.new(parameters, opt)
  local given, tensors = {}, {}
  for name, value in pairs(opt or {}) do given[name] = value end
  for i, each in ipairs(parameters) do tensors[i] = type(each) == "table" and each.tensor or each end
  given.lr, given.rates = nil, nil
  if not given.groups then given.groups, given.rates = by_rate(parameters, opt and opt.rates or {}) end
  return setmetatable({ schedule = opt and opt.lr, at = 0, tensors = tensors,
    adamw = q.adamw_state(tensors, given) }, Optimizer)
end

-- The rate of the step that is due. `at` counts calls of step(); a run sets it to its own step.
function Optimizer:rate()
  if type(self.schedule) == "function" then return self.schedule(self.at) end
  return self.schedule
end

-- One update, as AdamW:step. `lr` is the rate; `last` keeps what the update gave.
function Optimizer:step(opt)
  opt = opt or {}
  self.lr = opt.lr or self:rate()
  self.last, self.at = self.adamw:step { lr = self.lr, clip = opt.clip, groups = opt.groups }, self.at + 1
  return self.last
end

-- For checkpoints, as AdamW has them.
function Optimizer:state(names) return self.adamw:state(names) end
function Optimizer:restore(file, names, steps) return self.adamw:restore(file, names, steps) end

require("qeng.optim").adamw = adamw.new

adamw.Optimizer = Optimizer
return adamw
