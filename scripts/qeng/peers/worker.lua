-- A worker: it has layers of models for coordinators that know its key and whose key it knows, and computes steps
-- through them (peers/stage.lua). What it is asked, frame by frame; text is JSON unless said, and each is answered:
--   hello   {}                                     hello  what the worker is (Worker:about)
--   fetch   {model = files:about}                  ready, once what it lacks of these files has come
--   load    {stage, model = files:about, range = {first, count, layers}, dtype}     ready {bytes, seconds}
--   adapter {stage, number, files = files:add, scale}     ready {taken}
--   open    {stage, cache, kv, pages, page_tokens, rows, sequences, context, wire, blank}   ready {bytes, seconds}
--   step    epoch: the cache, position: how many steps before it; text: PagePool:pack, data: the rows that come in
--                                                  result  text: seconds that it took, data: the rows that go out
--   close   {cache} or {stage, adapter}, unload {stage}     no answer
-- What cannot be done is answered by error {code, message}. Files that are not here are pulled from the coordinator
-- (peers/files.lua). When a coordinator is gone, all that it had here is freed.

local devices = require "qeng.console.devices"
local kv_types = require "qeng.model.kv_types"
local models = require "qeng.model"
local progress = require "qeng.console.progress"
local q = require "qeng.core"
local sequences = require "qeng.infer.sequences"
local stages = require "qeng.peers.stage"
local tell_strangers = require "qeng.peers.strangers"
local wires = require "qeng.peers.wire"

local workers = {}
local Worker = {}
Worker.__index = Worker

local networks_every = 5  -- seconds, after which beacons go out on networks that have come

-- opt: peers (of q.peers.open), files (peers/files.lua), name, memory (the most bytes that stages may take), limits (of
-- q.limits), weights (as for q.load), say(text).
function workers.new(opt)
  local device = devices.in_use()
  return setmetatable({
    peers = opt.peers, files = opt.files, name = opt.name, memory = opt.memory, weights = opt.weights,
    say = opt.say or function() end, device = device.description or device.name, limits = opt.limits, guests = {},
    id = q.host.hash(("%s %.9f %s"):format(opt.name, q.time(), tostring({}))),  -- whichever way it is reached
  }, Worker)
end

-- What a coordinator plans with. limits: as q.limits measured them.
function Worker:about()
  local held = 0
  for _, account in pairs(q.memory()) do held = held + account.bytes end
  return {
    protocol = wires.protocol, version = q.version, name = self.name, id = self.id, device = self.device,
    limits = self.limits,
    memory = self.memory, free = math.max(0, self.memory - held), files = q.json.array(self.files:hashes()),
  }
end

-- A field of what a coordinator said; kind: a Lua type, or "count": a whole number from 0.
local function field(said, name, kind)
  local value = said[name]
  local ok = type(value) == (kind == "count" and "number" or kind)
  if ok and kind == "count" then ok = value >= 0 and value < 2 ^ 31 and value % 1 == 0 end
  if not ok then q.error("format", ("%s is no %s"):format(name, kind)) end
  return value
end

local function stage_of(guest, number)
  return guest.stages[number] or q.error("value", ("no stage %d was loaded"):format(number))
end

-- Where files lie, after pulling what is lacking from the coordinator. Others are served meanwhile. beside: so are this
-- guest's own steps.
local function path_of(self, guest, about, beside)
  return self.files:path(about, guest.peer, function(seconds)
    local event = self.peers:wait(math.min(seconds, 0.25))
    if event then self:take(event) end
    if q.host.interrupted() then q.error("interrupted", "the worker is told to end") end
    if self.guests[guest.peer] ~= guest then q.error("peer", guest.name .. " left while files came") end
  end, beside)
end

local most_rows = 2 ^ 16  -- of a step, and sequences of one

-- Refuses a cache that could not be, or that this worker has no room for. What measures or reads files is not for
-- others to ask for.
local function check_cache(self, model, shape)
  local spec = kv_types.parse(shape.kv)
  if spec.mean or spec.bases or spec.auto then
    q.error("unsupported", ("kv = %s: a worker measures nothing, and reads no bases"):format(shape.kv))
  end
  for _, name in ipairs { "pages", "page_tokens", "rows", "sequences", "context" } do
    if shape[name] < 1 then q.error("value", name .. " is 0") end
  end
  if shape.rows > most_rows or shape.sequences > most_rows then
    q.error("value", ("steps of %d rows and %d sequences, at most %d"):format(shape.rows, shape.sequences, most_rows))
  end
  local bytes = shape.pages * sequences.bytes(model, shape.page_tokens, shape, true)
    + 4 * shape.rows * model.config.hidden + 8 * shape.sequences * math.min(shape.pages, 2 ^ 20)
  local free = self:about().free
  if bytes > free then  -- what earlier caches computed with may still wait for the collector
    collectgarbage()
    collectgarbage()
    free = self:about().free
  end
  if bytes > free then
    q.error("memory", ("a cache of %s, and %s are free"):format(progress.bytes(bytes), progress.bytes(free)))
  end
end

local answers = {}

function answers.hello(self) return "hello", self:about() end

function answers.fetch(self, guest, said)
  path_of(self, guest, field(said, "model", "table"), true)
  return "ready", {}
end

function answers.load(self, guest, said)
  local number, range = field(said, "stage", "count"), field(said, "range", "table")
  local model = field(said, "model", "table")
  if guest.stages[number] then q.error("value", ("stage %d is loaded already"):format(number)) end
  local path = path_of(self, guest, model)
  local began = q.time()
  local loaded = models.load(path, {
    range = {
      first = field(range, "first", "count"), count = field(range, "count", "count"),
      layers = field(range, "layers", "count"),
    },
    dtype = said.dtype ~= nil and field(said, "dtype", "string") or nil, weights = self.weights,
  })
  guest.stages[number] = stages.new(loaded)
  local bytes = 0
  for _, parameter in ipairs(loaded.parameters) do bytes = bytes + parameter.tensor:bytes() end
  self.say(("%s: layers %d to %d of %s, %s"):format(guest.name, range.first, range.first + range.count - 1,
    field(model, "name", "string"), progress.bytes(bytes)))
  return "ready", { bytes = bytes, seconds = q.time() - began }
end

function answers.adapter(self, guest, said)
  local stage = stage_of(guest, field(said, "stage", "count"))
  local adapter = stage.model:read_adapter(path_of(self, guest, field(said, "files", "table")))
  stage:add_adapter(field(said, "number", "count"), adapter, field(said, "scale", "number"))
  return "ready", { taken = adapter.taken }
end

function answers.open(self, guest, said)
  local stage, number, began = stage_of(guest, field(said, "stage", "count")), field(said, "cache", "count"), q.time()
  if guest.caches[number] then q.error("value", ("cache %d is open already"):format(number)) end
  local shape = { kv = field(said, "kv", "string"), blank = said.blank == true }
  for _, name in ipairs { "pages", "page_tokens", "rows", "sequences", "context" } do
    shape[name] = field(said, name, "count")
  end
  check_cache(self, stage.model, shape)
  local wire = wires.new(said.wire ~= nil and field(said, "wire", "string") or nil, stage.model)
  local bytes = stage:open(number, shape)
  guest.caches[number] = { stage = stage, wire = wire, steps = 0 }
  return "ready", { bytes = bytes, seconds = q.time() - began }
end

function answers.step(_, guest, _, event, reply)
  local number, began = event.epoch, q.time()
  local cache = guest.caches[number] or q.error("value", ("no cache %d is open"):format(number))
  if event.position ~= cache.steps then
    q.error("value", ("step %d of cache %d, expected %d"):format(event.position, number, cache.steps))
  end
  cache.steps = cache.steps + 1
  cache.stage:step(number, event.text, function(x)
    cache.wire:read(event.frame, x)
    event.frame:free()
  end, function(y)
    local data = cache.wire:written(y)
    reply("result", ("%.6f"):format(q.time() - began), data)
  end)
end

function answers.close(_, guest, said)
  if said.adapter ~= nil then
    stage_of(guest, field(said, "stage", "count")).adapters[field(said, "adapter", "count")] = nil
    return
  end
  local number = field(said, "cache", "count")
  local cache = guest.caches[number]
  guest.caches[number] = nil
  if cache then cache.stage:close(number) end
end

function answers.unload(_, guest, said)
  local number = field(said, "stage", "count")
  local stage = stage_of(guest, number)
  for cache, each in pairs(guest.caches) do
    if each.stage == stage then guest.caches[cache] = nil end
  end
  guest.stages[number] = nil
  stage:free()
end

-- All that a coordinator has here goes.
local function leave(self, peer)
  local guest = self.guests[peer]
  if not guest then return end
  self.guests[peer] = nil
  for _, stage in pairs(guest.stages) do stage:free() end
  self.say(guest.name .. " has left")
end

local function answer(self, event)
  local peer, answerer = event.peer, answers[event.type]
  local guest = self.guests[peer]
  local function reply(type, text, data)
    self.peers:send(peer, {
      type = type, request = event.request, epoch = event.epoch, position = event.position,
      text = data and text or q.json.encode(text), data = data,
    })
  end
  local ok, type, text = pcall(function()
    if not answerer then q.error("format", "a worker takes no frame of type " .. event.type) end
    local said = {}
    if event.type ~= "step" then said = q.json.decode(event.text) end
    if _G.type(said) ~= "table" then q.error("format", "its text is no object") end
    return answerer(self, guest, said, event, reply)
  end)
  if ok and type then
    reply(type, text)
  elseif not ok then
    local err = type
    if _G.type(err) == "table" and err.code == "interrupted" then error(err, 0) end
    local code, message = "internal", tostring(err)
    if _G.type(err) == "table" then code, message = err.code, err.message end
    self.say(("%s: %s: %s"):format(guest.name, event.type, message))
    reply("error", { code = code, message = message })
  end
end

-- Does what one event of q.peers asks for.
function Worker:take(event)
  if event.kind == "here" then
    leave(self, event.peer)
    self.guests[event.peer] = { peer = event.peer, name = event.name, stages = {}, caches = {} }
    self.say(event.name .. " is here")
  elseif event.kind == "gone" then
    self.files:take(event)
    leave(self, event.peer)
  elseif self.guests[event.peer] and not self.files:take(event) then
    local ok, err = pcall(answer, self, event)
    if not ok and (type(err) ~= "table" or err.code ~= "peer") then error(err, 0) end  -- gone meanwhile: it is told
  end
end

-- Sends beacons on the networks that there are now, and says which where they are others.
function Worker:look_for_networks()
  local there = table.concat(self.beacon:refresh(), ", ")
  if there == self.there then return end
  self.there = there
  self.say(there == "" and "no network to be found on: others need this machine's address" or "found as " .. there)
end

-- Serves until it is told to end.
function Worker:run()
  q.host.defer_interrupt(true)
  local looked = q.time()
  while not q.host.interrupted() do
    local event = self.peers:wait(math.min(0.25, self.files:tick()))
    local ok, err = true, nil
    if event then ok, err = pcall(self.take, self, event) end
    local told = not ok and type(err) == "table" and err.code == "interrupted" and q.host.interrupted()
    if not ok and not told then error(err, 0) end  -- told while files came: it ends all the same
    tell_strangers(self.peers, self.say)
    if self.beacon and q.time() > looked + networks_every then
      looked = q.time()
      self:look_for_networks()
    end
  end
  for peer in pairs(self.guests) do leave(self, peer) end
  q.host.defer_interrupt(false)
end

return workers
