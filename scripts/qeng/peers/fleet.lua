-- The peers of a coordinator, and the layers of its model that they have. The coordinator has the embedding, the last
-- norm and the head, the pages' pool, samplers and requests; layers are in stages (peers/stage.lua), on workers or in
-- this process. A step goes from here through each stage and back, a star. So one process sees every failure, and
-- workers need no keys of each other; a line of workers would save one hop each, some 0.1 ms on a local network.
--
--   local fleet = fleets.new { peers = q.peers.open { keys = keys }, files = files, say = print }
--   fleet:dial { "10.0.0.2:28766" }
--   local model = fleet:load(path, { dtype = "bf16" }, planner)     -- then model:engine() as of any model
--
-- A worker that is gone, does not answer in time, or answers with an error, is an error of code "peer". Fleet:recover
-- (peers/moves.lua) then gives its layers to others, and the engine computes its sequences anew from their tokens
-- (infer/steps.lua).
-- One that failed is asked again after some time, or when it has gone and come back.

local adapters = require "qeng.peers.adapters"
local caches = require "qeng.peers.cache"
local models = require "qeng.model"
local moves = require "qeng.peers.moves"
local progress = require "qeng.console.progress"
local q = require "qeng.core"
local stages = require "qeng.peers.stage"
local wires = require "qeng.peers.wire"

local fleets = {}
local Fleet = {}
Fleet.__index = Fleet

local probe = 2 ^ 20  -- bytes, to measure a link
local slow = 0.5      -- seconds that these take, of a link that one of them tells enough about
local retry = 30      -- seconds until a worker that failed is asked again
local tells = 5       -- seconds, after which it is told that layers are being loaded
local most_called = 64  -- workers: who copies a beacon can send it from any address

-- opt: peers (q.peers.open), files (peers/files.lua), wire (peers/wire.lua), say(text), patience (seconds in which a
-- worker that lives has to answer a step, 5), grace (seconds in which one that was lost may come back, before its
-- layers are refused, 3), settle (seconds that one has to be there before layers move to it while requests run, 10).
function fleets.new(opt)
  return setmetatable({
    peers = opt.peers, files = opt.files, wire_name = opt.wire, say = opt.say or function() end,
    patience = opt.patience or 5, grace = opt.grace or 3, settle = opt.settle or 10,
    workers = {}, stages = {}, caches = {}, pending = {}, requests = 0, numbers = 1,
    adapters = setmetatable({}, { __mode = "k" }), held = setmetatable({}, { __mode = "v" }), sent = {},
    moved = 0, lost = 0, dropped = 0, waited = 0, looked = 0, called = 0,
  }, Fleet)
end

-- ---------------------------------------------------------------- asking

local function gone(worker, why)
  return { code = "peer", message = ("peer %s is gone: %s"):format(worker.name, why), worker = worker }
end

-- Names a worker as its key or its device is named, with its number where another has that name. "here" is this
-- process.
local function name(self, worker, wish)
  local taken = { here = true }
  for _, other in pairs(self.workers) do taken[other.name] = other ~= worker or nil end
  worker.name, worker.named = wish, true
  if taken[worker.name] then worker.name = ("%s (%d)"):format(worker.name, worker.peer) end
end

-- What a worker says of itself (worker.lua), as far as it can be: else nothing.
local function about_of(text)
  local about = q.try(q.json.decode, text)
  local limits = type(about) == "table" and type(about.limits) == "table" and about.limits or {}
  local function positive(value) return type(value) == "number" and value > 0 and value < math.huge end
  if type(about) == "table" and type(about.free) == "number" and about.free >= 0 and positive(limits.bandwidth)
    and positive(limits.flops_f32) then
    return about
  end
end

-- Counts a worker that is lost with layers of the model.
local function lose(self, worker)
  for _, stage in ipairs(self.stages) do
    if stage.worker == worker and self.stands(stage) then
      self.lost = self.lost + 1
      return
    end
  end
end

-- Does what one event asks for. Returns whether there was one within so many seconds.
function Fleet:pump(seconds)
  local began = q.time()
  local event = self.peers:wait(math.min(seconds, self.files:tick()))
  self.waited = self.waited + q.time() - began
  if not event then return false end
  local worker = self.workers[event.peer]
  if event.kind == "here" then
    worker = worker or { peer = event.peer }
    self.workers[event.peer] = worker
    if not worker.named then name(self, worker, event.name) end
    worker.here, worker.about, worker.hung, worker.failed = true, nil, nil, nil
    worker.layers = nil  -- its disk may be empty by now; to fetch what is there takes no time
    worker.visits = (worker.visits or 0) + 1  -- what it had loaded before it has no more
    worker.came = q.time()
    moves.soon(self)
    self:post(worker, "hello", {}, function(answer)
      worker.about = about_of(answer.text)
      if worker.about then return end
      self.say(("peer %s says of itself what cannot be: it is left out"):format(worker.name))
    end)
  elseif event.kind == "gone" and worker then
    self.files:take(event)
    if worker.here then self.say(("peer %s is gone: %s"):format(worker.name, event.why)) end
    lose(self, worker)
    worker.here, worker.why = false, event.why
    for request, asked in pairs(self.pending) do
      if asked.worker == worker then
        asked.failed = gone(worker, event.why)
        if asked.use then self.pending[request] = nil end
      end
    end
  elseif event.kind == "frame" and worker and not self.files:take(event) then
    local asked = self.pending[event.request]
    if not asked or asked.worker ~= worker then
      self.dropped = self.dropped + 1  -- late, of what nobody waits for any more
      if event.frame then event.frame:free() end
    else
      asked.answer = event
      if asked.use then
        self.pending[event.request] = nil
        if event.type ~= "error" then asked.use(event) end
      end
    end
  end
  return true
end

-- Sends a frame to a worker. said: its text, a table or a string. use(answer): called with the answer; without it,
-- Fleet:await takes it. more: epoch, position, data.
function Fleet:post(worker, type, said, use, more)
  if not worker.here then error(gone(worker, worker.why or "it was not there yet"), 0) end
  self.requests = self.requests + 1
  local asked = { worker = worker, request = self.requests, use = use, type = type, at = q.time() }
  self.pending[asked.request] = asked
  local frame = more or {}
  frame.type, frame.request = type, asked.request
  frame.text = _G.type(said) == "string" and said or q.json.encode(said)
  self.peers:send(worker.peer, frame)
  return asked
end

-- The same for what has no answer, to a worker that may be gone.
function Fleet:tell(worker, type, said)
  if worker.here then pcall(self.peers.send, self.peers, worker.peer, { type = type, text = q.json.encode(said) }) end
end

-- Seconds that are left of those in which an answer has to come, at most 1.
function Fleet:left(asked, seconds) return seconds and math.min(1, asked.at + seconds - q.time()) or 1 end

-- A number that this fleet did not use before.
function Fleet:next_number()
  self.numbers = self.numbers + 1
  return self.numbers
end

-- The answer to what was posted. seconds: after which the worker counts as hung; nil: as long as it lives.
function Fleet:await(asked, seconds)
  while not asked.answer and not asked.failed do
    local left = self:left(asked, seconds)
    -- What has come counts, however late it is: this process may have been the one that stood still.
    if not self:pump(math.max(left, 0)) and left <= 0 then
      asked.failed = gone(asked.worker, ("no answer to %s within %.1f s"):format(asked.type, seconds))
      lose(self, asked.worker)
      asked.worker.hung = true
    end
  end
  self.pending[asked.request] = nil
  if asked.failed then error(asked.failed, 0) end
  local answer = asked.answer
  if answer.type == "error" then
    local ok, said = pcall(q.json.decode, answer.text)
    said = ok and type(said) == "table" and said or {}
    local text = ("peer %s: %s: %s"):format(asked.worker.name, asked.type, tostring(said.message))
    if asked.type == "adapter" then error({ code = "format", message = text }, 0) end  -- it is what is wrong
    lose(self, asked.worker)
    asked.worker.failed, asked.worker.why = q.time() + retry, text
    moves.soon(self)
    self.say(text)
    error({ code = "peer", message = text, worker = asked.worker }, 0)
  end
  return answer
end

-- ---------------------------------------------------------------- who is there

-- Calls workers at these addresses: {"host:port" or {address =, key = of the worker, where it is not known by
-- name}...}.
function Fleet:dial(addresses)
  for _, each in ipairs(addresses) do
    local address, key = each, nil
    if type(each) == "table" then address, key = each.address, each.key end
    local peer = self.peers:dial(address, key)
    self.called = self.called + 1
    local worker = { peer = peer, address = address, name = address, here = false, why = "not reached yet" }
    self.workers[peer] = worker
    if type(each) == "table" and each.name then name(self, worker, each.name) end
  end
end

-- Waits until all that were called have said what they are, at most so many seconds. Returns those that have.
function Fleet:gather(seconds)
  local till = q.time() + seconds
  local function missing()
    for _, worker in pairs(self.workers) do
      if not worker.about then return true end
    end
  end
  while missing() and q.time() < till do self:pump(0.1) end
  return self:ready()
end

-- Calls workers that were heard on the network since, if somebody listens (peers/init.lua): those who came later, or
-- have another address now.
local function call_who_is_heard(self)
  for _, each in ipairs(self.heard and self.heard() or {}) do
    local known = false
    for _, worker in pairs(self.workers) do known = known or worker.address == each.address end
    if not known and self.called < most_called then self:dial { each } end
  end
end

-- Takes what has happened, without waiting.
function Fleet:catch_up()
  self.looked = q.time()
  call_who_is_heard(self)
  while self:pump(0) do end
end

-- Workers that can be planned with, in the order they were called. One that is reached by two ways is one.
function Fleet:ready()
  self:catch_up()
  local list, unique, seen = {}, {}, {}
  for _, worker in pairs(self.workers) do
    local about = worker.about
    if worker.failed and worker.failed < q.time() then worker.failed = nil end
    if worker.cut and worker.cut < q.time() then worker.cut = nil end
    if worker.here and about and not worker.hung and not worker.failed and not worker.cut then
      if about.protocol ~= wires.protocol or about.version ~= q.version then
        if not worker.unlike then
          self.say(("peer %s is of qeng %s, this is %s: it is left out"):format(worker.name, tostring(about.version),
            q.version))
        end
        worker.unlike = true
      else
        list[#list + 1] = worker
      end
    end
  end
  table.sort(list, function(a, b) return a.peer < b.peer end)
  for _, worker in ipairs(list) do
    local id = worker.about.id or worker
    if not seen[id] then unique[#unique + 1] = worker end
    seen[id] = true
  end
  return unique
end

-- The link to a worker, measured once: {latency = seconds of a hop, bandwidth = bytes a second}. One that is lost over
-- this is left alone for a while: its network carries small frames alone, perhaps.
function Fleet:link(worker)
  if worker.link then return worker.link end
  local function seconds(bytes)
    local began = q.time()
    self:await(self:post(worker, "hello", {}, nil, { data = bytes > 0 and ("\0"):rep(bytes) or nil }))
    return q.time() - began
  end
  local round, sent, times = math.huge, math.huge, 0
  local ok, err = pcall(function()
    for _ = 1, 5 do round = math.min(round, seconds(0)) end
    repeat
      sent, times = math.min(sent, seconds(probe)), times + 1
    until times == 3 or sent > slow
  end)
  if not ok then
    if type(err) == "table" and err.code == "peer" then
      worker.cut = q.time() + retry
      moves.soon(self)
      self.say(("peer %s was lost while its link was measured: it is left out for %d s"):format(worker.name, retry))
    end
    error(err, 0)
  end
  worker.link = { latency = round / 2, bandwidth = probe / math.max(sent - round, 1e-6) }
  return worker.link
end

-- ---------------------------------------------------------------- layers

-- Whether a stage is loaded, as far as is known here.
function Fleet.stands(stage)
  local worker = stage.worker
  return stage.here or stage.ready and worker.here and not worker.hung and not worker.failed
    and stage.visit == worker.visits
end

-- Sends a stage's worker what it lacks, and has it load its layers.
local function begin_load(self, stage)
  local range = moves.range_of(self, stage)
  stage.number, stage.visit = self:next_number(), stage.worker.visits
  stage.asked = self:post(stage.worker, "load", {
    stage = stage.number, model = self.files:about(range), dtype = self.model.dtype, range = range,
  })
end

local function load_here(self, stage)
  self.files:check(self.path, self.files:hash())
  stage.here = stages.new(models.load(self.path, {
    dtype = self.model.dtype, weights = self.load_options.weights, runtime = self.load_options.runtime,
    range = moves.range_of(self, stage),
  }))
end

local function drop(self, stage)
  if stage.here then
    stage.here:free()
  elseif stage.number and stage.visit == stage.worker.visits then  -- also one that is still being loaded
    self:tell(stage.worker, "unload", { stage = stage.number })
  end
end

-- The answer of a worker that loads layers; says now and then what it is waiting for.
local function loaded(self, asked)
  local began, told = self.files:sent(), q.time()
  while not asked.answer and not asked.failed do
    self:pump(0.5)
    if q.time() >= told + tells then
      told = q.time()
      local sent = progress.bytes(self.files:sent() - began)
      self.say(("peer %s loads its layers, %s sent"):format(asked.worker.name, sent))
    end
  end
  return self:await(asked)
end

-- Has the layers lie as `ranges` says: {{worker = nil: in this process, first =, count =}...} in the order of layers.
-- Stages that stay keep their weights.
function Fleet:place(ranges)
  local before, list, layers = { unpack(self.stages) }, {}, 0
  for _, range in ipairs(ranges) do
    if range.first == layers then layers = layers + range.count end
  end
  if layers ~= self.model.config.layers then
    q.error("value", ("ranges of %d layers one after another, and the model has %d"):format(layers,
      self.model.config.layers))
  end
  for i, range in ipairs(ranges) do
    list[i] = { worker = range.worker, first = range.first, count = range.count, steps = 0, opened = {} }
    for k, stage in ipairs(before) do
      if moves.same(stage, range) and Fleet.stands(stage) then
        list[i] = table.remove(before, k)
        break
      end
    end
  end
  for _, stage in ipairs(before) do drop(self, stage) end
  self.stages, self.planned = list, ranges.planned or self.planned
  for _, stage in ipairs(list) do
    if stage.worker and not stage.ready then begin_load(self, stage) end
  end
  for _, stage in ipairs(list) do
    if not stage.worker and not stage.here then load_here(self, stage) end
  end
  for _, stage in ipairs(list) do
    if stage.worker and not stage.ready then
      local said = q.try(q.json.decode, loaded(self, stage.asked).text)
      stage.ready, stage.bytes = true, type(said) == "table" and said.bytes or nil
      moves.holds(stage.worker, stage)
    end
  end
end

-- The model at `path`. opt: of q.load. planner(workers): the ranges (Fleet:place) of its layers among this process and
-- those workers; an error of code "memory" where they cannot hold it. ranges.planned, if it is there, is kept in
-- `planned`; where ranges.stay is set, layers do not move for them. planner(workers, true): those that can go on soon.
function Fleet:load(path, opt, planner)
  self.planner = planner
  local ranges, layers = moves.persist(self, function() return planner(self:ready()) end), 0
  for _, range in ipairs(ranges) do layers = layers + range.count end
  local own = { range = { first = 0, count = 0, ends = true, layers = layers } }
  for key, value in pairs(opt) do own[key] = value end
  self.path, self.load_options = path, opt
  self.model = models.load(path, own)
  self.model.peers = self
  self.wire = wires.new(self.wire_name, self.model)
  moves.persist(self, function()
    local first = ranges
    ranges = nil
    self:place(first or planner(self:ready()))
  end)
  self.fresh = nil
  return self.model
end

-- ---------------------------------------------------------------- sequence states

-- The states of all layers' sequences (peers/cache.lua), in pages that `pool` deals out. shape: as for sequences.new.
function Fleet:open(shape, pool)
  local cache = caches.new(self, shape, pool)
  self.caches[cache] = true
  local ok, err = pcall(cache.open, cache)
  if not ok and type(err) == "table" and err.code == "peer" then ok, err = pcall(self.recover, self) end
  if ok then return cache end
  cache:close()
  error(err, 0)
end

Fleet.has, Fleet.lies_so, Fleet.wants_move, Fleet.recover = moves.has, moves.lies_so, moves.wants_move, moves.recover
Fleet.send_adapter, Fleet.read_adapter = adapters.send, adapters.read
Fleet.state = require "qeng.peers.state"

return fleets
