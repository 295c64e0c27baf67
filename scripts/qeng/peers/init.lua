-- q.load(path, { peers = ... }): a model whose layers lie on workers (recipes/worker.lua) and in this process, as the
-- plan of assign.lua has them. model.peers is the fleet (peers/fleet.lua).
--
-- opt.peers, a list: "host:port"; "auto": workers that are found on the local network; devices of this machine
-- ("cuda:1", "cpu"), each of which gets a process (peers/devices.lua). Other options of q.load:
--   peer_keys    the folder of keys (q.keys)
--   peer_wire    how rows travel (peers/wire.lua)
--   peer_memory  bytes that layers may take in this process; by default what is free
--   peer_ranges  layers by hand: {"NAME=COUNT", ...}, all of them in their order, by names or addresses of workers, and
--                "here"
-- and context, max_batch and kv, as the engine has them: what is planned for.

local devices = require "qeng.peers.devices"
local files = require "qeng.peers.files"
local fleets = require "qeng.peers.fleet"
local hub = require "qeng.hub"
local models = require "qeng.model"
local planners = require "qeng.peers.planner"
local options = require "qeng.console.options"
local q = require "qeng.core"
local wires = require "qeng.peers.wire"

local peers = {}

local answer_within = 10  -- seconds, for workers that are called by their addresses
local found_within = 4    -- seconds, for those that were found
local search = 1.5        -- seconds to listen for them

options.set("peers", {
  { "peers", {}, "workers that compute layers of the model: HOST:PORT,..., auto (those found on the local network), "
    .. "devices of this machine, as cuda:1,cpu" },
  { "peer_keys", nil, "folder of keys, by default ~/.config/qeng/keys", kind = "input" },
  { "peer_wire", "exact", "how hidden states travel: exact, or in bf16 or q8, which is less and not the same",
    choices = wires.names },
  { "peer_memory", nil, "memory that layers may take in this process, as 8G; by default what is free", kind = "bytes" },
  { "peer_ranges", {}, "all layers by hand: NAME=COUNT,... by names or addresses; here is this process" },
})

-- Adds workers that are heard on the local network to a list of addresses. Who comes later is told by fleet.heard.
local function listen(opt, fleet, list)
  local ear, till = q.peers.listen { keys = opt.peer_keys }, q.time() + search
  local function heard(seconds)
    local found = ear:heard(seconds)
    for i, each in ipairs(found) do found[i] = { address = each.address, key = each.name } end
    return found
  end
  repeat
    for _, each in ipairs(heard(0.1)) do list[#list + 1] = each end
  until q.time() >= till
  if #list == 0 then
    q.error("peer", "no worker whose key is known was heard on the local network: start recipes/worker.lua there, make "
      .. "the keys known (q.keys), or give --peers HOST:PORT")
  end
  fleet.heard = function() return heard(0) end
end

-- Where the workers are: {"host:port" or {address =, key =, name =}...}, and seconds to wait for them. Devices become
-- workers, which fleet.devices holds.
local function addresses(opt, path, fleet)
  local list, names, auto = {}, {}, false
  for _, each in ipairs(opt.peers) do
    if each == "auto" then auto = true else table.insert(devices.is(each) and names or list, each) end
  end
  fleet.devices = #names > 0 and devices.start(names, opt, path, function(seconds) fleet:pump(seconds) end) or {}
  for _, each in ipairs(fleet.devices) do list[#list + 1] = { address = each.address, name = each.name } end
  local given = #list
  if auto then listen(opt, fleet, list) end
  return list, given > 0 and answer_within or found_within
end

-- The ranges that opt.peer_ranges says; nil where a worker of them that was here is not any more.
local function by_hand(opt, workers, loaded)
  local named, ranges, first = { here = false }, {}, 0
  for _, worker in ipairs(workers) do named[worker.name], named[worker.address or worker.name] = worker, worker end
  for i, text in ipairs(opt.peer_ranges) do
    local name, count = text:match "^(.*)=(%d+)$"
    if name and named[name] == nil and loaded then return nil end
    if not name or named[name] == nil then
      q.error("value", ("peer_ranges: %s is not NAME=COUNT of a worker that is here, or here=COUNT"):format(text))
    end
    ranges[i] = { worker = named[name] or nil, first = first, count = tonumber(count) }
    first = first + ranges[i].count
  end
  return ranges
end

local function say(text) io.stderr:write("peers: ", text, "\n") end

-- Says where layers lie, and what is to be expected.
local function tell(fleet, planner, planned)
  for _, stage in ipairs(fleet.stages) do
    say(("layers %d to %d: %s"):format(stage.first, stage.first + stage.count - 1,
      stage.worker and stage.worker.name or "here"))
  end
  if not planned then return end
  for _, out in ipairs(fleet.planned.left_out) do say(("%s is left out: %s"):format(out.peer, out.why)) end
  local one, batch = planner:predict "one", planner:predict "batch"
  if not one or not batch then return end  -- a worker was lost meanwhile
  fleet.predicted, fleet.hop = { one = one, batch = batch }, planner.hop.one
  say(("expected: %.1f tokens/s of one request, %.1f of %d, at a context of %d tokens"):format(one.tokens_per_second,
    batch.tokens_per_second, planner.opt.max_batch or 1, planner:context()))
end

function peers.load(path, opt)
  path = hub.resolve_model(path)
  local transport = q.peers.open { keys = opt.peer_keys }
  local fleet = fleets.new {
    peers = transport, files = files.of_model(path, transport), wire = opt.peer_wire, say = say,
  }
  local list, seconds = addresses(opt, path, fleet)
  fleet:dial(list)
  local ready = fleet:gather(seconds)
  for _, worker in pairs(fleet.workers) do
    if not worker.about then say(("%s does not answer: %s"):format(worker.name, worker.why or "silent")) end
  end
  if #ready == 0 then
    q.error("peer", "no worker answers: see that recipes/worker.lua runs there, that its port is open, and that each "
      .. "side knows the other's key (q.keys)")
  end
  local own = {}
  for name, value in pairs(opt) do own[name] = value end
  own.peers = nil
  local planner, hand = planners.new(path, opt, fleet), opt.peer_ranges and #opt.peer_ranges > 0
  local model = fleet:load(path, own, function(workers, soon)
    return hand and by_hand(opt, workers, #fleet.stages > 0) or planner:ranges(workers, soon)
  end)
  if not hand then planner:calibrate(model) end
  tell(fleet, planner, not hand)
  return model
end

models.over_peers = peers.load

return peers
