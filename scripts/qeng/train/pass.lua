-- The forward and backward pass of micro-batches: captured once and replayed, or eager. Packets of each destination
-- (train/route.lua) have a program of their own, which gives no gradient to what they do not move.

local held_out = require "qeng.train.held_out"
local q = require "qeng.core"

local pass = {}

local Program = {}
Program.__index = Program

local function forward_backward(model, micro_batch, row_tokens)
  local loss, nll, balance, drafts = model:loss(micro_batch, row_tokens)
  loss:backward(balance, unpack(drafts or {}))
  return loss, nll, balance, drafts
end

-- The captured pass of what lies in `micro_batch`: run() replays it, and `loss` is its loss. `balance` is that of the
-- experts, if the model has its weight, and `drafts` are those of the head that drafts tokens (Model:loss). opt:
-- row_tokens; frozen (tensors that get no gradient); nll (whether the nll of each token is kept too).
function pass.capture(model, micro_batch, opt)
  local self = setmetatable({}, Program)
  self.program, self.loss, self.balance, self.nll = q.capture(q.freeze, opt.frozen or {}, function()
    local loss, nll, balance, drafts = forward_backward(model, micro_batch, opt.row_tokens)
    self.drafts = drafts
    return loss, balance, opt.nll and nll or nil, unpack(drafts or {})
  end)
  return self
end

-- trained: how many targets of what lies there are trained, at most; nil: any number.
function Program:run(trained) self.program:run { trained = trained } end

function Program:free()
  self.program:free()
  self.loss:free()  -- which holds on to the program's memory
  if self.balance then self.balance:free() end
  if self.nll then self.nll:free() end
  for _, loss in ipairs(self.drafts or {}) do loss:free() end
end

local Pass = {}
Pass.__index = Pass

-- The passes of a run. routing: of route.plan, or nil.
function pass.new(run, routing)
  local opt = run.opt
  local function numbers() return q.zeros({ opt.accumulate }, "f32", "batch") end
  local head = run.model.mtp
  local self = setmetatable({ run = run, routing = routing, programs = {}, shares = {}, nlls = {}, balance_shares = {},
    losses = numbers(), balances = (run.model.router_aux_loss or 0) ~= 0 and numbers() or nil,
    drafts = head and (head.weight > 0 or head.depth > 1) and numbers() or nil }, Pass)
  for i = 1, opt.accumulate do
    self.shares[i] = self.losses:rows(i - 1, 1)
    self.balance_shares[i] = self.balances and self.balances:rows(i - 1, 1)
    self.nlls[i] = run.several and q.zeros({ opt.rows * opt.row_tokens }, "f32", "batch")
  end
  if run.model.shards then
    self.gradients = run.model.shards.units
  elseif run.ranks.job then
    local tensors = {}
    for k, parameter in ipairs(run.parameters) do tensors[k] = parameter.tensor end
    self.gradients = run.ranks.job:gradients(tensors)
  end
  return self
end

-- The pass of the i-th micro-batch, addressed to `dst`. It reads nothing from the device, so a GPU gets its next work
-- early.
local function add(self, i, micro_batch, dst)
  local run, opt = self.run, self.run.opt
  dst = self.routing and dst or 0  -- one program where all destinations move the same
  local frozen = self.routing and self.routing.frozen[dst] or {}
  local function take(loss, nll, balance, drafts)
    self.shares[i]:copy(loss)
    if drafts and drafts[1] then
      local total = drafts[1]
      for k = 2, #drafts do total = total + drafts[k] end
      self.drafts:rows(i - 1, 1):copy(total)
    end
    if balance then self.balance_shares[i]:copy(balance) end
    if run.several then self.nlls[i]:copy(nll) end
  end
  if opt.eager then
    return q.scope(function() take(q.freeze(frozen, forward_backward, run.model, micro_batch, opt.row_tokens)) end)
  end
  local program = self.programs[dst]
  if not program then
    program = pass.capture(run.model, micro_batch, { row_tokens = opt.row_tokens, frozen = frozen, nll = run.several })
    self.programs[dst] = program
    if self.gradients and not run.model.shards then self.gradients:watch(program.program) end
  end
  program:run(micro_batch.trained)
  take(program.loss, program.nll, program.balance, program.drafts)
end

-- What one micro-batch takes (Program:stats); nil where nothing was captured.
function Pass:stats()
  local _, first = next(self.programs)
  return first and first.program:stats()
end

-- Runs the passes of a step; gradients add up.
function Pass:compute(batch)
  local turn, hook_turn = self.run.turn, self.run.model.hook_turn
  if self.turn ~= turn or self.hook_turn ~= hook_turn then self:forget() end  -- other weights learn, or other hooks
  self.turn, self.hook_turn = turn, hook_turn
  local round = 0
  self:exchanged()  -- what an evaluation did
  for micro_batch, info, i in batch:parts() do
    round = round + 1
    self:round(round, add, self, i, micro_batch, info.dst)
  end
  if round < self:rounds() then self:round(round + 1, function() end) end
end

-- In each round of a step every rank computes a micro-batch; in the last some may have none.
function Pass:rounds() return math.ceil(self.run.opt.accumulate / self.run.ranks.size) end

-- compute(...), whose gradients are added to those of the other ranks in the order of micro-batches.
function Pass:round(round, compute, ...)
  if not self.gradients then return compute(...) end
  local size = self.run.ranks.size
  local present = math.min(size, self.run.opt.accumulate - (round - 1) * size)
  self.gradients:begin(present, round == 1, round == self:rounds())
  compute(...)
  self.gradients:finish()
end

-- Whether exchanged() leaves in `jobs` and `waits` when that was.
function Pass:trace(on)
  if self.gradients then self.gradients:trace(on) end
end

-- What this rank has exchanged with others since the last call, for the metrics: milliseconds, those of them in which
-- nothing was computed, bytes that it sent; nothing without ranks.
function Pass:exchanged()
  if not self.gradients then return {} end
  local figures = self.gradients:figures()
  self.jobs, self.waits = figures.jobs, figures.waits
  return { exchange_ms = figures.exchanging * 1000, exchange_wait_ms = figures.waiting * 1000,
    exchange_bytes = self.run.ranks.job:sent() }
end

-- The optimizer's groups that the step's trained tokens are addressed to; nil means all.
function Pass:groups()
  if not self.routing then return nil end
  local seen, groups = {}, {}
  for _, info in ipairs(self.run.feed.infos) do
    for _, group in ipairs(info.trained_tokens > 0 and self.routing.active[info.dst] or {}) do
      if not seen[group] then seen[group], groups[#groups + 1] = true, group end
    end
  end
  return groups
end

-- numbers: one of each micro-batch, 0 of those that are other ranks'.
function Pass:total(numbers)
  local total = 0
  for _, share in ipairs(self.run.ranks:sum(numbers:table())) do total = total + share end
  return total
end

-- The loss of the step, and with several sources that of each. balance: that of the experts (Model:loss), or nil.
function Pass:loss() return self:total(self.losses) end
function Pass:balance() return self.balances and self:total(self.balances) end
-- That of the head that drafts tokens, beside the first, or nil.
function Pass:drafted() return self.drafts and self:total(self.drafts) end
function Pass:by_source()
  local run = self.run
  if not run.several then return nil end
  local parts = {}
  for i, batch in ipairs(run.feed.taken) do parts[i] = run.ranks:has(i) and batch:by_source(self.nlls[i]) or {} end
  return held_out.by_source(held_out.source_sums(parts, run.plan.sources, run.ranks))
end

function Pass:forget()
  for _, program in pairs(self.programs) do program:free() end
  self.programs = {}
end

-- A table of where a captured pass spends its time, or nil.
function Pass:profile()
  local _, program = next(self.programs)
  return program and tostring(program.program:profile { trained = self.run.feed.micro_batch.trained })
end

return pass
