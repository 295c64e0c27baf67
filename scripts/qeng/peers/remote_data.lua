-- Training on a dataset that lies on another machine: --data peer:HOST:PORT/NAME, or several HOST:PORT with commas
-- between. A process of its own (remote_data.receive) pulls it into the cache, first what training says it reads next
-- (engine/blocks/arriving_file.h), and all of it in the end: the next epoch needs no network, and a later run takes it
-- where nobody answers. What is not here yet is waited for, which the metrics tell as data_ms.

local deliveries = require "qeng.peers.deliveries"
local hub = require "qeng.hub"
local progress = require "qeng.console.progress"
local pulls = require "qeng.peers.pull"
local q = require "qeng.core"
local user = require "qeng.console.user"

local remote_data = {}

local patience = 60      -- seconds for the first block
local sync_every = 0.05  -- seconds in which what somebody waits for may lie here without being noted
local ahead = 32         -- blocks that are asked for though nobody said that he reads them
local block_bytes = 2 ^ 20

local receivers = {}  -- processes, which end with this one

-- ---------------------------------------------------------------- the process that receives

-- The lines that were added to a file since the last call.
local function reader(path)
  local at = 0
  return function()
    local file = io.open(path, "rb")
    if not file then return "" end
    file:seek("set", at)
    local text = file:read "*a":match "^.*\n" or ""
    file:close()
    at = at + #text
    return text
  end
end

-- Pulls what training needs at once, then what it says that it reads, in that order, and the rest in between.
local function receive_all(pull, step, wanted)
  local partial, count, rest, waiting, noted = pull.partial, pull.manifest:count(), 0, false, q.time()
  local function need(index)
    if index < count then pull:need { { index * block_bytes, index * block_bytes } } end
  end
  while not partial:complete() do
    local now = {}
    for number, urgent in wanted():gmatch "(%d+)(!?)\n" do
      need(tonumber(number))
      if urgent == "!" then now[#now + 1] = tonumber(number) end
      waiting = true
    end
    pull:hurry(now)
    while pull.left < ahead and rest < count do
      need(rest)
      rest = rest + 1
    end
    step(sync_every)
    if waiting and q.time() - noted > sync_every then
      partial:sync()
      noted = q.time()
    end
  end
  pull:close()
end

-- What these addresses offered under this name is HASH.part: a note of it once it is whole.
local function note_of(from, what, folder)
  return ("%s/%s.whole"):format(folder, q.host.hash(table.concat(from, ",") .. "/" .. what))
end

-- Where all of it lies from a former run, which its hash tells; nil where it does not.
local function path_before(from, what, folder)
  local note = note_of(from, what, folder)
  if not q.fs.kind(note) then return nil end
  local hash = q.fs.read(note)
  local path = ("%s/%s.part"):format(folder, hash)
  local manifest = q.try(q.blocks.manifest, path)
  return manifest and manifest:hash() == hash and path or nil
end

-- from: addresses; what: a name or a hash; folder: of the cache; told: a file that gets the path, or why there is none.
function remote_data.receive(from, what, folder, told)
  local fine, err = pcall(function()
    local peers = q.peers.open {}
    local met, numbers, here = pcall(deliveries.meet, peers, from)
    if not met then
      local path = type(numbers) == "table" and numbers.code == "peer" and path_before(from, what, folder)
      if not path then error(numbers, 0) end
      local say = "nobody answers: what came before is taken, " .. path
      return q.fs.write(told, q.json.encode { path = path, say = say })
    end
    local hash = deliveries.find(peers, here, what)
    local stem = folder .. "/" .. hash
    local pull = pulls.new {
      peers = peers, sources = numbers, hash = hash, folder = folder, ranges = { { 0, 0 } }, patience = patience,
      say = function(text) io.stderr:write(text, "\n") end,
    }
    local function step(seconds)
      local event = peers:wait(math.min(pull:tick(), seconds))
      if event then pull:take(event) end
    end
    q.fs.write(stem .. ".wanted", "")
    while not pull:done() do step(1) end
    if not pull.partial then q.error("value", what .. " is a folder, where a dataset is one file") end
    pull.partial:sync()
    q.fs.write(told, q.json.encode { path = stem .. ".part" })
    receive_all(pull, step, reader(stem .. ".wanted"))
    q.fs.write(note_of(from, what, folder), hash)
  end)
  if fine then return end
  local busy = type(err) == "table" and err.code == "busy"  -- another run on this machine receives it: all may read it
  local path = busy and err.message:match "^(.-%.part): "
  local message = type(err) == "table" and err.message or tostring(err)
  q.fs.write(told, q.json.encode(path and { path = path } or { error = message }))
  if not busy then error(err, 0) end
end

-- ---------------------------------------------------------------- the one that trains

-- peer:HOST:PORT,.../NAME: the path of the dataset, which may still be coming.
function remote_data.path(text)
  local hosts, what = text:match "^peer:([^/]+)/(.+)$"
  if not hosts then q.error("usage", text .. ": expected peer:HOST:PORT/NAME, as packets.lua serve offers it") end
  local from = {}
  for each in hosts:gmatch "[^,]+" do from[#from + 1] = ("%q"):format(each) end
  local folder, told = user.cache_dir() .. "/remote", os.tmpname()
  q.fs.mkdir(folder)
  local log = folder .. "/receiver.log"
  local receiver = q.host.process({ "-e", ("require('qeng.peers.remote_data').receive({ %s }, %q, %q, %q)"):format(
    table.concat(from, ", "), what, folder, told) }, { output = log })
  receivers[#receivers + 1] = receiver
  local speak, began, said = progress.new(), q.time(), ""
  while said == "" do
    local ended = receiver:wait(0.05)
    said = q.fs.read(told)
    if ended and said == "" then
      q.error("peer", ("%s: its receiver has ended: %s"):format(text, q.fs.read(log):sub(-500)))
    end
    if q.time() - began > 1 then
      speak:line(("%s: waiting for its first block, %s"):format(text, progress.duration(q.time() - began)))
    end
  end
  q.fs.remove(told)
  said = q.json.decode(said)
  if said.say then speak:say(said.say) end
  speak:finish()
  if said.error then q.error("peer", ("%s: %s"):format(text, said.error)) end
  return said.path
end

hub.over_peers = remote_data.path

return remote_data
