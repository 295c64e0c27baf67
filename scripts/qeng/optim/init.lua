-- Optimizers written in Lua: q.optim.sgd, lion, muon, adafactor, and own ones by q.optim.define. Each has the face of
-- q.adamw (train/adamw.lua), so that q.run, its checkpoints and clipping take it; q.optim.adamw is that fused one.
--
--   q.optim.define("signs", { decay = 0 }, function(p)      -- sign descent: a whole optimizer
--     p:move(p.g:sign())
--   end)
--
-- A rule sees one parameter p at a time: its gradient p.g (f32, clipped), its value p.w (f32), its name, the options
-- p.opt, the step p.t (a tensor, from 1) and tensors of its own, p:state(name, shape). p:move(d) is the step
-- w = w (1 - lr decay) - lr d; decay is of tensors of two dimensions and more. p.w:set does any other. The rules of
-- a step are captured once and replayed: they decide by shapes and names, not by values.

local fill = require "qeng.optim.fill"
local q = require "qeng.core"

local optim = {}  -- train/adamw.lua adds the fused one

local Parameter = {}
Parameter.__index = Parameter

-- A tensor that stays from step to step and is part of checkpoints: f32, zero at first.
function Parameter:state(name, shape)
  local found = self.states[name]
  if not found then
    if not self.making then q.error("value", "optim: a rule makes its states in its first step") end
    found = q.keep(q.zeros(shape or self.w:shape(), "f32", "optimizer"))
    self.states[name], self.order[#self.order + 1] = found, name
  end
  return found
end

function Parameter:move(d)
  local rank, decay = #self.w:shape(), self.opt.decay or 0
  local w = rank >= 2 and decay ~= 0 and self.w * (1 - self.lr * decay) or self.w
  self.w:set(w - self.lr * d)
end

local Optimizer = {}
Optimizer.__index = Optimizer

local function new(name, defaults, rule, parameters, given)
  local opt = {}
  for key, value in pairs(defaults) do opt[key] = value end
  for key, value in pairs(given or {}) do
    if defaults[key] == nil and key ~= "lr" and key ~= "decay" and key ~= "rates" and key ~= "allow_unused" then
      q.error("value", ("%s: there is no option %s"):format(name, tostring(key)))
    end
    opt[key] = value
  end
  if #parameters == 0 then q.error("value", name .. ": no parameter requires a gradient") end
  local self = setmetatable({ name = name, rule = rule, schedule = opt.lr, at = 0, steps = 0, opt = opt,
    parameters = {}, tensors = {}, hyper = q.keep(q.zeros({ 2 }, "f32", "optimizer")),
    outcome = q.keep(q.zeros({ 2 }, "f32", "optimizer")) }, Optimizer)
  for i, each in ipairs(parameters) do
    local tensor, named = each, ("parameter %d"):format(i)
    if type(each) == "table" then tensor, named = each.tensor, each.name end
    if not tensor:requires_grad() then q.error("value", ("%s: %s requires no gradient"):format(name, named)) end
    local half = tensor:dtype() ~= "f32"  -- then the value that is learned is kept here
    local p = setmetatable({ name = named, tensor = tensor, opt = opt, states = {}, order = {}, making = true,
      w = half and q.keep(q.no_grad(function() return tensor:to "f32" end)) or tensor,
      rate = type(each) == "table" and each.rate and (opt.rates or {})[each.rate] or 1 }, Parameter)
    if half then p.states.master, p.order[1] = p.w, "master" end
    self.parameters[i], self.tensors[i] = p, tensor
  end
  return self
end

-- A new optimizer q.optim[name](parameters, { lr =, decay =, ... }); defaults: its options beside lr.
function optim.define(name, defaults, rule)
  optim[name] = function(parameters, opt) return new(name, defaults, rule, parameters, opt) end
  return optim[name]
end

function Optimizer:rate()
  if type(self.schedule) == "function" then return self.schedule(self.at) end
  return self.schedule
end

local function check_reached(self)
  if self.opt.allow_unused then return end
  for _, p in ipairs(self.parameters) do
    if not p.tensor:_reached() then
      q.error("value", ("%s: no gradient reached %s: the loss does not depend on it. Leave it out of the list, or set "
        .. "allow_unused"):format(self.name, p.name))
    end
  end
end

-- The two parts of a step, each a program: the gradients' norm and what clipping leaves of it; the rules.
local function measure(self, clip)
  local total
  for _, p in ipairs(self.parameters) do
    local squares = p.tensor:grad():square():sum()
    total = total and total + squares or squares
  end
  local norm = total:sqrt()
  local factor = clip > 0 and (clip / (norm + 1e-6)):minimum(1) or norm * 0 + 1
  self.outcome:slice(1, 0, 1):set(norm)
  self.outcome:slice(1, 1, 2):set(factor)
end
local function update(self)
  local factor, lr, t = self.outcome:slice(1, 1, 2), self.hyper:slice(1, 0, 1), self.hyper:slice(1, 1, 2)
  for _, p in ipairs(self.parameters) do
    local gradient = p.tensor:grad()
    p.lr, p.t, p.g = p.rate == 1 and lr or lr * p.rate, t, gradient * factor
    self.rule(p)
    if p.w ~= p.tensor then p.tensor:set(p.w) end
    gradient:fill(0)
    p.lr, p.t, p.g, p.making = nil, nil, nil, nil
  end
end

-- States have to be there before a program is captured, which would own them: one step on copies makes them.
local function make_states(self)
  if self.made then return end
  for _, p in ipairs(self.parameters) do
    q.scope(function()
      local w, tensor = p.w, p.tensor
      p.w = w:clone()
      p.tensor, p.g, p.lr, p.t = p.w, q.zeros(w:shape()), q.zeros { 1 }, q.zeros({ 1 }):fill(1)
      self.rule(p)
      p.w, p.tensor, p.g, p.lr, p.t = w, tensor, nil, nil, nil
    end)
    for _, name in ipairs(p.order) do
      if name ~= "master" then p.states[name]:fill(0) end
    end
  end
  self.made = true
end

-- One update and zeroed gradients; opt: lr, clip (the most that the gradients' norm may be). Where the norm is not
-- finite nothing changes but the gradients. `last` keeps what it gave.
function Optimizer:step(opt)
  opt = opt or {}
  if opt.groups then
    q.error("unsupported", self.name .. ": addressed packets update a part of the parameters, which only q.adamw does")
  end
  check_reached(self)
  self.lr = opt.lr or self:rate()
  if not self.lr then q.error("value", self.name .. ": which lr? give it to the optimizer or to step") end
  local clip = opt.clip or 0
  q.no_grad(function()
    make_states(self)
    if clip ~= self.clip then
      if self.measures then self.measures:free() end
      self.measures, self.clip = q.capture(function() measure(self, clip) end), clip
    end
    self.updates = self.updates or q.capture(function() update(self) end)
    self.hyper:set { self.lr, self.steps + 1 }
    self.measures:run()
    local norm = self.outcome:table()[1]
    local skipped = not (norm < 1 / 0)
    if skipped then
      for _, p in ipairs(self.parameters) do p.tensor:grad():fill(0) end
    else
      self.updates:run()
      self.steps = self.steps + 1
    end
    self.last = { grad_norm = norm, skipped = skipped }
  end)
  self.at = self.at + 1
  return self.last
end

local function each_state(self, names, fn)
  if #names ~= #self.parameters then
    q.error("value", ("%s: %d names for %d parameters"):format(self.name, #names, #self.parameters))
  end
  q.no_grad(make_states, self)
  for i, p in ipairs(self.parameters) do
    for _, name in ipairs(p.order) do fn(("%s.%s.%s"):format(names[i], self.name, name), p.states[name]) end
  end
end

-- For checkpoints, as AdamW has them.
function Optimizer:state(names)
  local tensors = {}
  each_state(self, names, function(name, tensor) tensors[#tensors + 1] = { name, tensor } end)
  if #tensors == 0 then tensors[1] = { self.name, self.hyper } end  -- a file has to hold something
  return tensors, { self.steps }
end
function Optimizer:restore(file, names, steps)
  if type(steps) ~= "table" or #steps ~= 1 then
    q.error("value", self.name .. ": the checkpoint is of another optimizer: resume with that one")
  end
  each_state(self, names, function(name, tensor) fill(tensor, file, name) end)
  self.steps = steps[1]
end

optim.Optimizer = Optimizer
return optim
