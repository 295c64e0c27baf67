-- How layers get to other workers while requests run: away from those that are lost, and to those who have come. Of a
-- fleet (peers/fleet.lua), whose methods these are.
--
-- When a worker is lost, steps wait: its layers go where they can be soonest, what has to be sent counted. When one has
-- come, nobody waits: it fetches the weights first, and layers move, for a pause, once they are there.

local q = require "qeng.core"

local moves = {}

local longest = 300   -- seconds in which one worker after the other may fail to take the layers
local look = 0.25     -- seconds, after which an engine asks again who has come
local unable = 300    -- seconds until a worker that could not fetch is planned with again

function moves.same(a, b) return a.worker == b.worker and a.first == b.first and a.count == b.count end

-- The layers of a stage, as files and model.load have them.
function moves.range_of(self, stage)
  return { first = stage.first, count = stage.count, layers = self.model.config.layers }
end

-- Notes that a worker has the weights of these layers on its disk.
function moves.holds(worker, range)
  worker.layers = worker.layers or {}
  for layer = range.first, range.first + range.count - 1 do worker.layers[layer] = true end
end

-- Fleet:has: whether a worker has the weights of a layer, from 0, on its disk, as far as is known here.
function moves.has(self, worker, layer)
  for _, hash in ipairs(type(worker.about.files) == "table" and worker.about.files or {}) do
    if hash == self.files:hash() then return true end
  end
  return worker.layers ~= nil and worker.layers[layer] == true
end

-- Fleet:lies_so: whether layers lie as these ranges say.
function moves.lies_so(self, ranges)
  for i, range in ipairs(ranges) do
    if not self.stages[i] or not moves.same(range, self.stages[i]) then return false end
  end
  return #ranges == #self.stages
end

-- ---------------------------------------------------------------- when one has come

local function has_layers(self, worker)
  for _, stage in ipairs(self.stages) do
    if stage.worker == worker then return true end
  end
  return false
end

-- Has it planned anew once a worker that has come now has been there for a while.
function moves.soon(self) self.fresh = math.min(self.fresh or math.huge, q.time() + self.settle) end

-- Whether a worker may get layers while requests run: one that comes and goes would only cause pauses.
local function settled(self, worker) return worker.came + self.settle <= q.time() or has_layers(self, worker) end

-- When to plan anew: once one that is left alone for a while may be asked again, or one has settled.
local function next_plan(self)
  local at, now = nil, q.time()
  for _, worker in pairs(self.workers) do
    local came = worker.here and not has_layers(self, worker) and worker.came or 0
    for _, from in ipairs { worker.failed or 0, worker.cut or 0, came } do
      if from + self.settle > now then at = math.min(at or math.huge, from + self.settle) end
    end
  end
  return at
end

-- Has workers fetch the weights of these ranges that they lack: what they were asked.
local function fetch(self, ranges)
  local list = {}
  for _, range in ipairs(ranges) do
    local lacks = false
    for layer = range.first, range.first + range.count - 1 do
      lacks = lacks or range.worker and not self:has(range.worker, layer)
    end
    if lacks then
      self.say(("peer %s fetches what it lacks of layers %d to %d"):format(range.worker.name, range.first,
        range.first + range.count - 1))
      local said = { model = self.files:about(moves.range_of(self, range)) }
      list[#list + 1] = { range = range, asked = self:post(range.worker, "fetch", said) }
    end
  end
  return list
end

-- Whether workers still fetch weights. When they do no more, it is planned anew: without those that cannot, or later,
-- if these have layers, which they keep.
local function fetching(self)
  if not self.coming then return false end
  for _, each in ipairs(self.coming) do
    if not each.asked.answer and not each.asked.failed then return true end
  end
  local again = 0
  for _, each in ipairs(self.coming) do
    local asked, worker = each.asked, each.range.worker
    self.pending[asked.request] = nil
    if asked.answer and asked.answer.type ~= "error" then
      moves.holds(worker, each.range)
    elseif asked.answer then
      local said = q.try(q.json.decode, asked.answer.text)
      self.say(("peer %s cannot fetch them: %s"):format(worker.name, type(said) == "table" and tostring(said.message)
        or "it says not why"))
      if has_layers(self, worker) then again = q.time() + unable else worker.failed = q.time() + unable end
    end
  end
  self.coming, self.fresh = nil, again
  return false
end

-- Fleet:wants_move: whether layers had better lie elsewhere, since workers have come, who have the weights by now. For
-- an engine that is idle, or after a while for one that is not, as moving costs it a pause.
function moves.wants_move(self, idle)
  if q.time() >= self.looked + look then self:catch_up() end
  if fetching(self) or not self.fresh or q.time() < self.fresh - (idle and self.settle or 0) then return false end
  self.fresh = next_plan(self)
  local workers = {}
  for _, worker in ipairs(self:ready()) do
    if idle or settled(self, worker) then workers[#workers + 1] = worker end
  end
  local ok, err = pcall(function()
    local ranges = self.planner(workers)
    if ranges.stay or self:lies_so(ranges) then return end
    local list = fetch(self, ranges)
    if #list == 0 then self.files:check(self.path, self.files:hash()) end  -- before stages that stand are left
    if #list > 0 then self.coming = list else self.chosen = ranges end
  end)
  local code = not ok and (type(err) == "table" and err.code or "internal")
  if code == "io" then self.say(err.message) end  -- the model's file; steps go on where layers are
  if code and code ~= "peer" and code ~= "memory" and code ~= "io" then error(err, 0) end
  return self.chosen ~= nil
end

-- ---------------------------------------------------------------- when one is lost

-- f(), again and again while workers are lost meanwhile. Raises why it cannot be, after waiting a little for a worker
-- that comes back where the others have too little memory.
function moves.persist(self, f)
  local till = q.time() + self.grace
  while true do
    local ok, result = pcall(f)
    if ok then return result end
    local code = type(result) == "table" and result.code
    if code ~= "peer" and (code ~= "memory" or q.time() > till) or q.time() > till + longest then
      error(result, 0)
    elseif code == "memory" then
      self:pump(0.1)
    end
  end
end

-- Fleet:recover: gives the layers of workers that are lost to those who can hold them, or has them lie as wants_move
-- found. All sequences' states are empty afterwards. Raises why that cannot be, after waiting a little for a worker
-- that comes back.
function moves.recover(self)
  self.predicted = nil  -- it was of other machines
  local before
  for cache in pairs(self.caches) do cache.torn = true end  -- until it is opened anew
  local ok, err = pcall(moves.persist, self, function()
    local chosen = self.chosen
    before, self.chosen = self.stages, nil
    if not chosen then moves.soon(self) end  -- what is soonest need not be best
    self:place(chosen or self.planner(self:ready(), true))
    for cache in pairs(self.caches) do cache:open() end
  end)
  if not ok then
    if type(err) ~= "table" or err.code ~= "memory" then error(err, 0) end
    local away = {}
    for _, worker in pairs(self.workers) do
      if not worker.here then away[#away + 1] = worker.name end
    end
    table.sort(away)
    local lost = #away == 0 and "" or (" (gone: %s)"):format(table.concat(away, ", "))
    error({ code = "peer", message = ("nobody can hold the layers%s: %s"):format(lost, err.message) }, 0)
  end
  for _, stage in ipairs(self.stages) do
    local stays = false
    for _, old in ipairs(before) do stays = stays or old == stage end
    if not stays then
      self.moved = self.moved + stage.count
      self.say(("layers %d to %d are now %s"):format(stage.first, stage.first + stage.count - 1,
        stage.worker and "on peer " .. stage.worker.name or "here"))
    end
  end
end

return moves
