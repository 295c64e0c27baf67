-- Fleet:state(): what a fleet (peers/fleet.lua) knows of its peers now, as a plain table, for who watches it. It waits
-- for nobody: what has come is heeded, and workers are asked for their free memory now and then.
--
--   peers     this process first, then the workers in the order they were called:
--     name, address, device, here (whether it is connected), why (it is not, or is not asked any more)
--     coordinator (true of this process), ends (bytes of what it has beside layers: embedding, norm, head)
--     memory, free          bytes that tensors may take there, and those of them that are free
--     layers                {{first =, count =, bytes =, stands = whether they are loaded}...}
--     count, bytes          of all of these layers
--     steps, computed       steps through them since they are there, and the seconds that took
--     step_seconds, busy    seconds a step, and the share of time in which it computed: of the last seconds
--     planned_seconds       what the plan expects of a step of the full batch, of workers: this process does more in it
--                           than its layers; left_out: why the plan gives it none
--     link                  {round_trip (seconds, of signs of life), sent, received (bytes), times_here, and as the
--                           plan measured them latency (seconds of a hop), bandwidth (bytes a second)}
--   layers    how many the model has; wire: how rows travel
--   predicted {one, batch}, each {requests =, seconds = until each of them has a token}, as layers lay when the model
--             was loaded; nil where they lie by hand
--   step_seconds            the sum of those of all peers: without links, and what this process does beside layers
--   lost, moved, dropped    workers that were lost, layers that moved, frames that came too late
-- What is not known is absent.

local devices = require "qeng.console.devices"
local q = require "qeng.core"

local window = 10      -- seconds over which times are means
local apart = 1        -- seconds between two samples of them
local anew = 5         -- seconds between two questions for a worker's memory
local most_text = 500  -- bytes of what a worker says of itself

-- What a worker says is not to be trusted: a number that can be one, a text of some length.
local function number(value) return type(value) == "number" and value >= 0 and value < 2 ^ 53 and value or nil end
local function text(value)
  if type(value) ~= "string" then return nil end
  if #value <= most_text then return value end
  return (value:sub(1, most_text):gsub("[\192-\255][\128-\191]*$", "")) .. "…"
end

-- ---------------------------------------------------------------- what has come

-- Asks a worker for its free memory, unless it was asked lately or has not answered yet.
local function ask_anew(self, worker)
  local asked, about = worker.asked, worker.about
  if not worker.here or not about or worker.hung or worker.failed then return end
  local waits = asked and self.pending[asked.request] == asked and not asked.failed
  if waits or asked and q.time() - asked.at < anew then return end
  if asked then self.pending[asked.request] = nil end
  local visit = worker.visits
  worker.asked = self:post(worker, "hello", {}, function(answer)
    local said = q.try(q.json.decode, answer.text)
    worker.now = { visit = visit, free = type(said) == "table" and number(said.free) or nil }
  end)
end

local function heed(self)
  local ok, err = pcall(function()
    while self:pump(0) do end
    for _, worker in pairs(self.workers) do ask_anew(self, worker) end
  end)
  local gone = not ok and type(err) == "table" and err.code == "peer"  -- the next call says so
  if not ok and not gone then error(err, 0) end
end

-- ---------------------------------------------------------------- times

local none = { steps = 0, computed = 0 }
local function computed_of(stage) return number(stage.computed) or 0 end

-- Notes the steps of all stages, and returns the oldest note: some `window` seconds old, or of the first call.
local function notes(self)
  local now, list = q.time(), self.notes or {}
  self.notes = list
  if not list[1] or now - list[#list].at >= apart then
    local note = { at = now, of = setmetatable({}, { __mode = "k" }) }  -- stages that are gone are not held
    for _, stage in ipairs(self.stages) do note.of[stage] = { steps = stage.steps, computed = computed_of(stage) } end
    list[#list + 1] = note
  end
  while list[2] and list[2].at <= now - window do table.remove(list, 1) end
  return list[1], now
end


-- Adds a stage's steps to what is told of its peer.
local function add_times(peer, stage, note, now)
  local computed, before = computed_of(stage), note.of[stage] or none
  peer.steps, peer.computed = math.max(peer.steps, stage.steps), peer.computed + computed
  if stage.steps == 0 then return end
  local steps, seconds = stage.steps - before.steps, math.max(0, computed - before.computed)
  peer.step_seconds = (peer.step_seconds or 0) + (steps > 0 and seconds / steps or computed / stage.steps)
  if now > note.at then peer.busy = math.min(1, (peer.busy or 0) + seconds / (now - note.at)) end
end

-- ---------------------------------------------------------------- peers

local function bytes_of(model)
  local bytes = 0
  for _, parameter in ipairs(model.parameters) do bytes = bytes + parameter.tensor:bytes() end
  return bytes
end

local function told(peer)
  peer.layers, peer.count, peer.bytes, peer.steps, peer.computed = {}, 0, 0, 0, 0
  return peer
end

local function own(self)
  local device = devices.in_use()
  self.ends = self.ends or self.model and bytes_of(self.model)
  return told {
    name = "here", coordinator = true, here = true, device = device.description or device.name, memory = device.memory,
    free = device.free, ends = self.ends,
  }
end

local function of_worker(self, worker)
  local about, now, link = worker.about or {}, worker.now, worker.link or {}
  local stats = q.try(self.peers.stats, self.peers, worker.peer) or {}
  local why
  if not worker.here then
    why = worker.why or "not reached yet"
  elseif worker.hung then
    why = "it did not answer in time, and is asked again once it has gone and come back"
  elseif worker.failed then
    why = ("%s; it is asked again in %.0f s"):format(worker.why, math.max(0, worker.failed - q.time()))
  elseif not worker.about then
    why = "it has not said yet what it is"
  end
  return told {
    name = worker.name, address = worker.address, device = text(about.device), here = worker.here, why = text(why),
    memory = number(about.memory),
    free = worker.here and (now and now.visit == worker.visits and now.free or number(about.free)) or nil,
    link = {
      round_trip = worker.here and stats.round_trip_ms and stats.round_trip_ms / 1000 or nil, sent = stats.bytes_sent,
      received = stats.bytes_received, times_here = stats.times_here,
      latency = link.latency, bandwidth = link.bandwidth,
    },
  }
end

-- What the last plan says of each peer, as far as its layers lie as that has them.
local function plan(peers, planned)
  local by_name = {}
  for _, peer in ipairs(peers) do by_name[peer.name] = peer end
  for _, range in ipairs(planned.ranges) do
    local peer = by_name[range.peer]
    if peer and not peer.coordinator and peer.count == range.count then peer.planned_seconds = range.seconds end
  end
  for _, out in ipairs(planned.left_out) do
    local peer = by_name[out.peer]
    if peer and peer.here and peer.count == 0 then peer.planned_seconds, peer.left_out = nil, out.why end
  end
end

local function prediction(time)
  return { requests = math.floor(time.tokens_per_second * time.seconds + 0.5), seconds = time.seconds }
end

return function(self)
  heed(self)
  local list, of = { own(self) }, {}
  local state = {
    peers = list, layers = 0, wire = self.wire_name or "exact", lost = self.lost, moved = self.moved,
    dropped = self.dropped,
  }
  local workers = {}
  for _, worker in pairs(self.workers) do workers[#workers + 1] = worker end
  table.sort(workers, function(a, b) return a.peer < b.peer end)
  for i, worker in ipairs(workers) do
    of[worker] = of_worker(self, worker)
    list[i + 1] = of[worker]
  end
  local note, now = notes(self)
  for _, stage in ipairs(self.stages) do
    local peer = stage.worker and of[stage.worker] or list[1]
    if stage.here then stage.bytes = stage.bytes or bytes_of(stage.here.model) end
    local bytes = number(stage.bytes)
    table.insert(peer.layers, {
      first = stage.first, count = stage.count, bytes = bytes, stands = self.stands(stage) and true or false,
    })
    peer.count, peer.bytes = peer.count + stage.count, peer.bytes + (bytes or 0)
    state.layers = state.layers + stage.count
    add_times(peer, stage, note, now)
  end
  if self.planned then plan(list, self.planned) end
  local predicted = self.predicted
  if predicted then
    state.predicted = { one = prediction(predicted.one), batch = prediction(predicted.batch) }
  end
  for _, peer in ipairs(list) do
    if peer.step_seconds then state.step_seconds = (state.step_seconds or 0) + peer.step_seconds end
  end
  return state
end
