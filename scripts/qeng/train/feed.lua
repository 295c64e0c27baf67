-- The micro-batches of a run's steps. Each is sent ahead: a GPU has the next one when it is done with the one before.

local models = require "qeng.model"
local q = require "qeng.core"

local feed = {}

local Feed = {}
Feed.__index = Feed

-- opt: of q.run. ranks: those of the job (train/ranks.lua), each of which loads its own micro-batches; nil: one.
function feed.new(opt, ranks)
  return setmetatable({ opt = opt, ranks = ranks or { rank = 0, size = 1 }, batches = opt.data:batches {
    row_tokens = opt.row_tokens, rows = opt.rows, seed = opt.seed, split = "train", eval_share = opt.eval_share,
    pad = opt.pad, sources = opt.sources, drop = opt.drop, weights = opt.weights, batches_per_step = opt.accumulate,
    route = true, long = opt.long,
  } }, Feed)
end

-- The documents of the first steps of a run: a list of micro-batches for each step, as Batch:documents tells them.
function feed.documents(opt, steps)
  local batches, list = feed.new(opt).batches, {}
  for step = 1, steps do
    list[step] = {}
    for i = 1, opt.accumulate do list[step][i] = batches:next():documents() end
  end
  return list
end

-- Where the batches stand after the last step that was taken.
function Feed:state() return self.position or self.batches:state() end

-- What the page gets of a step: its tensors if it is one micro-batch, otherwise an object with parts().
local function face(self)
  local function parts() return self:parts() end
  if self.opt.accumulate == 1 then
    self.micro_batch.parts = parts
    return self.micro_batch
  end
  return setmetatable({ parts = parts }, { __index = function()
    q.error("value", ("a step of this run is %d micro-batches: "
      .. "for part in batch:parts() do model:loss(part):backward() end"):format(self.opt.accumulate))
  end })
end

-- Takes the micro-batches of a step (from 0). more: another step follows. `sums` and `infos` then say what they hold.
function Feed:take(step, more)
  local sums = { trained = 0, real = 0, wait = 0, damaged = 0, dropped = 0 }
  self.first, self.more, self.taken, self.infos, self.sums = step * self.opt.accumulate, more, {}, {}, sums
  for i = 1, self.opt.accumulate do
    self.taken[i], self.upcoming = self.upcoming or self.batches:next(), nil
    local info = self.taken[i]:info()
    self.infos[i] = info
    sums.trained, sums.real = sums.trained + info.trained_tokens, sums.real + info.real_tokens
    sums.damaged, sums.dropped = sums.damaged + info.damaged, sums.dropped + info.crc_dropped
    sums.wait = sums.wait + info.wait_ms
    self.micro_batch = self.micro_batch or models.micro_batch(info.tokens, info.max_documents)
  end
  self.position = self.batches:state()
  self.micro_batch.scale:fill(1 / math.max(sums.trained, 1))
  self.face = self.face or face(self)
end

-- Loads the tensors with the i-th micro-batch. The random numbers of its pass depend on its number only, not on what
-- was drawn before.
function Feed:load(i)
  local number = self.first + i - 1
  self.taken[i]:load(self.micro_batch)
  if self.opt.on_batch then
    self.micro_batch.trained = nil  -- it may train other tokens
    self.opt.on_batch(self.micro_batch, number)
  end
  q.rng_step(number)
end

-- for micro_batch, info, i in feed:parts(): this rank's micro-batches of the step in turn, and which of the step each
-- is. The first is loaded already.
function Feed:parts()
  local first = self.ranks.rank + 1
  local i = first - self.ranks.size
  return function()
    i = i + self.ranks.size
    if not self.taken[i] then return self:ahead() end
    if i > first then
      self.taken[i]:send()
      self:load(i)
    end
    return self.micro_batch, self.infos[i], i
  end
end

-- Sends the next step's first micro-batch on its way.
function Feed:ahead()
  if self.upcoming or not self.more then return end
  self.upcoming = self.batches:next()
  if self.ranks.rank == 0 then self.upcoming:send() end
end

return feed
