-- Which layers go where, for a fleet: by what layers cost (costs.lua), what machines say of themselves, and what steps
-- through them take once they are loaded.
--
--   local planner = planners.new(path, opt, fleet)
--   local model = fleet:load(path, opt, function(workers) return planner:ranges(workers) end)
--   planner:calibrate(model)
--
-- A machine's bandwidth and FLOP rate, as it measured them, are limits: its kernels reach a share, which a few steps
-- tell. So the first plan is by the limits, and the one that stays by the shares; what it says a step takes is what was
-- measured here, over sequences of the planned length, but of at most 4,096 tokens.

local assign = require "qeng.peers.assign"
local computing = require "qeng.console.devices"
local costs = require "qeng.peers.costs"
local kv_option = require "qeng.infer.kv_option"
local models = require "qeng.model"
local paged = require "qeng.infer.paged"
local q = require "qeng.core"

local planners = {}
local Planner = {}
Planner.__index = Planner

local timed = 8             -- tokens of each sequence in a round of those that are timed
local rounds, least, most = 4, 1.5, 100  -- at least so many of them, and seconds; at most so many
local at_end = 64          -- tokens of a sequence that are computed
local longest = 4096       -- tokens of the sequences that steps are timed over
local worth = 0.95         -- of the seconds that a step took, that another plan has to take at most

-- opt: of q.load over peers (peers/init.lua).
function planners.new(path, opt, fleet)
  return setmetatable({
    path = path, opt = opt, fleet = fleet, costs = {}, share = {}, hop = {}, rest = {}, own_memory = opt.peer_memory,
  }, Planner)
end

-- The costs of steps over sequences of so many tokens, in so many groups of equal size.
local function cost_of(self, context, groups)
  local opt, key = self.opt, context .. "/" .. groups
  local batch = groups * math.ceil((opt.max_batch or 1) / groups)
  self.costs[key] = self.costs[key] or costs.of(function()
    return models.load(self.path, { dtype = opt.dtype, weights = "map" })
  end, { context = context, batch = batch, in_flight = groups, kv = kv_option(opt) })
  return self.costs[key]
end

-- The mean of what is known, for a machine that has not been measured.
local function mean_of(known)
  local sum, count = 0, 0
  for _, value in pairs(known) do sum, count = sum + math.log(value), count + 1 end
  return count > 0 and math.exp(sum / count) or nil
end

-- Seconds until a worker has the weights of each layer that it lacks.
local function sending(self, worker, cost, link)
  local list = {}
  for i, layer in ipairs(cost.layers) do
    if not self.fleet:has(worker, i - 1) then list[i] = layer.bytes / link.bandwidth end
  end
  return list
end

-- What assign.lua is given of this process and of workers. kind: of step, "one" or "batch". soon: layers shall be where
-- steps can go on soon.
local function machines(self, workers, kind, cost, soon)
  local own = q.limits()
  self.own_memory = self.own_memory or computing.in_use().free  -- before any layer is here
  local share, hop = self.share[kind] or {}, self.hop[kind]
  local list = { { name = "here", coordinator = true, memory = self.own_memory, bandwidth = own.bandwidth,
    flops = own.flops_f32 } }
  for _, worker in ipairs(workers) do
    local about, link = worker.about, self.fleet:link(worker)
    list[#list + 1] = {
      name = worker.name, memory = about.free, bandwidth = about.limits.bandwidth, flops = about.limits.flops_f32,
      link = { latency = hop or link.latency, bandwidth = link.bandwidth },
      sending = soon and sending(self, worker, cost, link) or nil,
    }
  end
  for _, machine in ipairs(list) do
    local reached = share[machine.name] or mean_of(share) or 1
    machine.bandwidth, machine.flops = machine.bandwidth * reached, machine.flops * reached
  end
  return list
end

local function given(self, workers, kind, cost, soon)
  local what = costs.given(cost, cost.steps[kind], machines(self, workers, kind, cost, soon))
  if self.ends then what.ends.seconds = { here = self.ends[kind] } end
  if self.fleet.wire then what.activation_bytes = self.fleet.wire:bytes(self.fleet.model.config.hidden) end
  return what
end

-- Tokens of the sequences that are planned for.
function Planner:context()
  local context = self.opt.context
  return context and context > 0 and context or 4096
end

-- Several requests are under way in one group for each stage: how many groups (infer/steps.lua: of equal size but for
-- the last).
local function groups_of(self, stages)
  local batch = self.opt.max_batch or 1
  return math.ceil(batch / math.ceil(batch / math.max(1, stages)))
end

-- The stages of the fleet in the form of assign.time.
local function as_ranges(self)
  local list, own = {}, { peer = "here", first = 0, count = 0 }
  for _, stage in ipairs(self.fleet.stages) do
    if stage.worker then
      list[#list + 1] = { peer = stage.worker.name, first = stage.first, count = stage.count }
    else
      own.count = own.count + stage.count
    end
  end
  table.insert(list, 1, own)
  return list
end

-- Whether layers had better stay: those that have them are among `workers`, and steps of so many seconds would hardly
-- be faster.
local function better_stays(self, workers, seconds)
  local stages, usable = self.fleet.stages, {}
  for _, worker in ipairs(workers) do usable[worker] = true end
  for _, stage in ipairs(stages) do
    if not self.fleet.stands(stage) or stage.worker and not usable[stage.worker] then return false end
  end
  if #stages == 0 then return false end
  local what = given(self, workers, "batch", cost_of(self, self:context(), groups_of(self, #stages)))
  return seconds > worth * assign.time(what, as_ranges(self)).seconds
end

-- The ranges of layers for these workers and this process (Fleet:place), as layers are best for the batch; `planned` of
-- them is what assign.plan found, and `stay` is set where they are hardly better than those there are. soon: as they
-- are best where weights that a worker lacks have to be sent first.
function Planner:ranges(workers, soon)
  local found, groups
  local planned_for = groups_of(self, #self.fleet.stages)
  repeat
    groups = planned_for
    found = assign.plan(given(self, workers, "batch", cost_of(self, self:context(), groups), soon))
    local used = 0
    for _, range in ipairs(found.ranges) do used = used + (range.count > 0 and 1 or 0) end
    planned_for = groups_of(self, used)
  until planned_for <= groups
  local ranges, named = {}, {}
  for _, worker in ipairs(workers) do named[worker.name] = worker end
  for _, range in ipairs(found.ranges) do
    if range.count > 0 then
      ranges[#ranges + 1] = { worker = named[range.peer], first = range.first, count = range.count }
    end
  end
  ranges.planned, ranges.stay = found, better_stays(self, workers, found.seconds)
  return ranges
end

-- What a step of this kind, over sequences of so many tokens, takes as layers lie now: {seconds = in which each
-- sequence gets a token, tokens_per_second =}. nil where a worker that has layers is lost.
local function time_of(self, kind, context)
  for _, stage in ipairs(self.fleet.stages) do
    if not self.fleet.stands(stage) then return nil end
  end
  local cost = cost_of(self, context, groups_of(self, #self.fleet.stages))
  local time = assign.time(given(self, self.fleet:ready(), kind, cost), as_ranges(self))
  local seconds = time.seconds * (self.rest[kind] or 1)
  return { seconds = seconds, tokens_per_second = (kind == "one" and 1 or self.opt.max_batch or 1) / seconds }
end

-- The same of the sequences that are planned for. nil where steps could not be measured, too.
function Planner:predict(kind) return self.measured and time_of(self, kind, self:context()) or nil end

-- Of the sequences that steps are timed over: their tokens, how many of these come before those that are computed, and
-- the tokens of a page. Those before are whole pages, as they are what sequences take over.
local function lengths(self, model)
  local context = math.min(self:context(), longest, model.config.max_position)
  local page = paged.page_tokens(model, context)
  local before = math.max(0, math.floor((context - at_end) / page)) * page
  return before + at_end, before, page
end

-- Has an engine remember beginnings as if they had been computed. What their pages hold changes no times. None of them
-- is closed before all are there: exact rows of one that is would be taken for the others.
local function pretend(engine, beginnings)
  local pool, page, open = engine.runner.pool, engine.runner.page_tokens, {}
  for i, ids in ipairs(beginnings) do
    open[i] = pool:open(0)
    for first = 1, #ids, page do
      local there = engine.runner:extend(open[i], ids, first, math.min(first + page - 1, #ids))
      if not there then q.error("memory", ("%d tokens have too few pages"):format(#ids)) end
      pool:commit(open[i])
    end
  end
  for _, id in ipairs(open) do pool:close(id) end
end

-- Times steps of so many sequences, as long as `lengths` says: {stages = seconds of a step in each, ends = of this
-- process beside layers, hop = on the way to a worker and back (of one sequence), round = until each sequence has got a
-- token}. nil where layers moved meanwhile, since a worker was lost.
local function timed_steps(self, model, rows)
  local fleet, lying = self.fleet, self.fleet.stages
  local all, taken_over, page = lengths(self, model)
  local engine = model:engine {
    max_batch = rows, context = all, kv = kv_option(self.opt), blank = true, page_tokens = page,
    pages = rows * math.ceil(all / page),
  }
  local list, left = {}, 0
  local function tokens()
    local count = 0
    for _, r in ipairs(list) do count = count + #r.output end
    return count
  end
  local function begin()  -- sequences, of which each has its first token
    engine:finish()
    engine.runner.pool:forget()
    local beginnings = {}
    for i = 1, rows do
      local ids = { (i - 1) % model.config.vocab }
      for k = 2, taken_over do ids[k] = 0 end
      beginnings[i] = ids
    end
    if taken_over > 0 then pretend(engine, beginnings) end
    for i, ids in ipairs(beginnings) do
      ids[taken_over + 1] = 0
      list[i] = engine:submit { ids = ids, max_tokens = at_end - 2, temperature = 0, stop_ids = {}, lookup = 0 }
    end
    repeat engine:step() until tokens() >= rows
    left = math.floor((at_end - 4) / timed)
  end
  local all_rounds, number, until_then = {}, -1, 0
  repeat  -- the first round warms up
    if left == 0 then begin() end
    number, left = number + 1, left - 1
    if number == 1 then until_then = q.time() + least end
    for _, stage in ipairs(fleet.stages) do stage.steps, stage.computed = 0, 0 end
    local waited, began, before = fleet.waited, q.time(), tokens()
    repeat engine:step() until tokens() >= before + timed * rows
    if fleet.stages ~= lying then break end
    local round = {
      elapsed = q.time() - began, waited = fleet.waited - waited, computed = {}, steps = fleet.stages[1].steps,
      turns = (tokens() - before) / rows,
    }
    for k, stage in ipairs(fleet.stages) do round.computed[k] = stage.computed / math.max(1, stage.steps) end
    if number > 0 then all_rounds[number] = round end
  until number >= rounds and q.time() >= until_then or number == most
  engine:close()
  if fleet.stages ~= lying then return nil end
  table.sort(all_rounds, function(a, b) return a.elapsed / a.turns < b.elapsed / b.turns end)
  local middle = all_rounds[math.ceil(#all_rounds / 2)]
  local own, remote, workers, count = 0, 0, 0, math.max(1, middle.steps)
  for i, stage in ipairs(fleet.stages) do
    if stage.worker then
      remote, workers = remote + middle.computed[i], workers + 1
    else
      own = own + middle.computed[i]
    end
  end
  return {
    stages = middle.computed, ends = math.max(0, (middle.elapsed - middle.waited) / count - own),
    hop = workers > 0 and rows == 1 and math.max(0, middle.waited / count - remote) / workers or nil,
    round = middle.elapsed / middle.turns,
  }
end

-- Measures steps through the layers as they lie, of one sequence and of the batch. Returns whether they stayed there.
function Planner:measure(model)
  local fleet, ranges, tokens = self.fleet, as_ranges(self), lengths(self, model)
  self.share, self.ends, self.hop, self.rest, self.measured = {}, nil, {}, {}, false
  local ends, round, alone = {}, {}, (self.opt.max_batch or 1) == 1
  for _, kind in ipairs(alone and { "one" } or { "one", "batch" }) do
    local cost = cost_of(self, tokens, groups_of(self, #fleet.stages))
    local _, times = assign.time(given(self, fleet:ready(), kind, cost), ranges)
    local found = timed_steps(self, model, kind == "one" and 1 or self.opt.max_batch)
    if not found then
      self.share, self.hop = {}, {}
      return false
    end
    local share = {}
    for i, range in ipairs(ranges) do
      local computed, predicted = 0, times[i].seconds - (range.peer == "here" and times.ends or 0)
      for k, stage in ipairs(fleet.stages) do
        if (stage.worker and stage.worker.name or "here") == range.peer then computed = computed + found.stages[k] end
      end
      if computed > 0 and predicted > 0 then share[range.peer] = predicted / computed end
    end
    self.share[kind], ends[kind], round[kind] = share, found.ends, found.round
    self.hop[kind] = found.hop and found.hop / 2 or self.hop.one
  end
  if alone then
    self.share.batch, self.hop.batch, ends.batch, round.batch = self.share.one, self.hop.one, ends.one, round.one
  end
  self.ends = ends
  -- What stages, ends and hops do not explain: machines that share cores, or wait for each other.
  for kind, seconds in pairs(round) do
    local time = time_of(self, kind, tokens)
    self.rest[kind] = time and seconds / time.seconds
  end
  self.measured = true
  return true
end

-- Measures, and has the layers lie better if what was measured says so.
local function calibrate(self, model)
  local fleet = self.fleet
  if not self:measure(model) then return end  -- a worker was lost: the engine that comes plans anew
  local before, ranges = self:predict "batch", self:ranges(fleet:ready())
  if fleet:lies_so(ranges) then
    fleet.planned = ranges.planned
  elseif before and ranges.planned.seconds <= worth * before.seconds then
    fleet:place(ranges)
    self:measure(model)
  end
end

-- The same; a worker that is lost meanwhile takes no layers, and nothing is expected then.
function Planner:calibrate(model)
  local ok, err = pcall(calibrate, self, model)
  if ok then return end
  if type(err) ~= "table" or err.code ~= "peer" then error(err, 0) end
  self.fleet:recover()
  self.measured = false
end

return planners
