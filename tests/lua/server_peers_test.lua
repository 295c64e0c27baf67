-- What a server tells of peers that have layers of its model, over a network in this process (peers_fake.lua): the
-- page's JSON and the figures of /metrics are what the fleet, its stages and the network know; a lost worker and layers
-- that moved are counted; what a worker says of itself may be anything.
package.path = (arg[0]:match "^(.*/)" or "./") .. "?.lua;" .. package.path
local q = require "qeng"

local cases = require "engine_cases"
local fake = require "peers_fake"
local fleets = require "qeng.peers.fleet"
local listeners = require "server_fake"
local scratch = require "scratch"

local function equal(a, b, what)
  if a ~= b then error(("%s: %s, expected %s"):format(what, tostring(a), tostring(b)), 2) end
end

local path = scratch.at "model"
cases.model("qwen2", { layers = 5 }):save(path)

-- A model of five layers: two on the first worker that is there, one here, two on the last one; all here where nobody
-- is. The third is left out, as a plan says it.
local net = fake.new({ "a", "b", "c" }, fake.files(path))
local sent = { 0, 0, 0 }
function net.peers.stats(_, peer)
  return {
    here = net.workers[peer] ~= nil, round_trip_ms = peer / 4, bytes_sent = sent[peer], bytes_received = 10 * peer,
    times_here = 1,
  }
end
local fleet = fleets.new { peers = net.peers, files = fake.files(path), patience = 0.5, grace = 0.2 }
fleet:dial { "a", "b", "c" }
fleet:gather(1)
local function planner(ready)
  fleet.planned = {
    ranges = { { peer = "here", first = 2, count = 1, seconds = 0.25 },
      { peer = "a", first = 0, count = 2, seconds = 0.5 }, { peer = "b", first = 3, count = 1, seconds = 9 } },
    left_out = { { peer = "c", why = "it makes a step slower" } },
  }
  fleet.predicted = {
    one = { seconds = 0.5, tokens_per_second = 2 }, batch = { seconds = 0.75, tokens_per_second = 4 / 0.75 },
  }
  local first, last = ready[1], ready[math.min(2, #ready)]
  return { { worker = first, first = 0, count = 2 }, { first = 2, count = 1 }, { worker = last, first = 3, count = 2 } }
end
local model = fleet:load(path, { dtype = "f32" }, planner)

local listener = listeners.new()
local server = require("qeng.server").new {
  models = { { "far", model }, { "near", q.load("recipes/tiny", { dtype = "f32" }) } }, http = listener,
  engine = { pages = 60 },
}
local function ask(method, where) return listener:ask(server, method, where) end
local function generate(tokens)
  local r = server.models[1].engine:submit { ids = { 1, 2, 3 }, max_tokens = tokens, temperature = 0, stop_ids = {} }
  for _ = 1, 200 do
    if r.state ~= "done" then server:turn(0) end
  end
  equal(#r.output, tokens, "tokens")
end

-- {name = {labels = value}} of /metrics.
local function figures()
  local found, text = {}, ask("GET", "/metrics")
  for name, labels, value in text:gmatch "\n(qeng_[%w_]+){?([^}%s]*)}? (%S+)" do
    found[name] = found[name] or {}
    found[name][labels] = tonumber(value)
  end
  return found, text
end
local function of(name, peer) return (figures()[name] or {})[('model="far",peer="%s"'):format(peer)] end

-- ---------------------------------------------------------------- as the model was laid

do
  local said = ask("GET", "/api/peers")
  equal(#said.models, 1, "models on peers")
  local far = said.models[1]
  equal(far.model, "far", "its name")
  equal(far.layers, 5, "its layers")
  equal(far.wire, "exact", "how rows travel")
  equal(far.lost + far.moved + far.dropped, 0, "nothing was lost")
  equal(far.step_seconds, nil, "seconds before a step")
  equal(far.predicted.one.requests .. " " .. far.predicted.one.seconds, "1 0.5", "predicted of one")
  equal(far.predicted.batch.requests .. " " .. far.predicted.batch.seconds, "4 0.75", "predicted of the batch")
  local names, layers = {}, {}
  for i, peer in ipairs(far.peers) do
    names[i], layers[i] = peer.name, peer.count
    equal(peer.here, true, peer.name .. " is here")
    equal(peer.why, nil, peer.name .. ": why it is not")
  end
  equal(table.concat(names, " "), "here a b c", "this process first, then workers as they were called")
  equal(table.concat(layers, " "), "1 2 2 0", "layers")
  local here, a, c = far.peers[1], far.peers[2], far.peers[4]
  equal(a.layers[1].first .. " " .. a.layers[1].count .. " " .. tostring(a.layers[1].stands), "0 2 true", "a's layers")
  equal(#c.layers, 0, "c's layers")
  equal(c.left_out, "it makes a step slower", "why c has none")
  equal(a.memory, 1e12, "a's memory")
  equal(a.address, fleet.workers[1].address, "a's address")
  equal(a.planned_seconds, 0.5, "planned seconds")
  equal(here.planned_seconds, nil, "planned seconds of this process, with what it does beside layers")
  equal(far.peers[3].planned_seconds, nil, "planned seconds of layers that the plan has elsewhere")
  equal(a.link.round_trip, 0.25e-3, "a's round trip")
  -- All weights of the model are somewhere, once.
  local whole, bytes = 0, here.ends
  for _, parameter in ipairs(q.load(path, { dtype = "f32" }).parameters) do whole = whole + parameter.tensor:bytes() end
  for _, peer in ipairs(far.peers) do bytes = bytes + peer.bytes end
  equal(bytes, whole, "weights")
end

-- ---------------------------------------------------------------- after steps

generate(8)
sent = { 1000, 2000, 3000 }
do
  local far = ask("GET", "/api/peers").models[1]
  local by_name, found = {}, figures()
  for _, peer in ipairs(far.peers) do by_name[peer.name] = peer end
  for _, stage in ipairs(fleet.stages) do
    if stage.worker then
      local peer = by_name[stage.worker.name]
      equal(peer.steps, stage.steps, "steps")
      assert(peer.steps >= 8, "steps of eight tokens")
      equal(peer.computed, stage.computed, "seconds")
      assert(math.abs(peer.step_seconds - stage.computed / stage.steps) < 1e-9, "seconds a step")
    end
  end
  local sum = 0
  for _, peer in ipairs(far.peers) do sum = sum + (peer.step_seconds or 0) end
  assert(math.abs(far.step_seconds - sum) < 1e-12, "a step in layers")
  equal(far.steps.count, server.models[1].engine.steps, "steps of the engine")
  equal(far.steps.requests, far.steps.count, "one request at once")
  assert(far.steps.seconds > sum, "their time")

  local function same(name, read)
    for _, peer in ipairs(far.peers) do
      equal(found[name][('model="far",peer="%s"'):format(peer.name)], read(peer), name .. " of " .. peer.name)
    end
  end
  same("qeng_peer_here", function() return 1 end)
  same("qeng_peer_layers", function(peer) return peer.count end)
  same("qeng_peer_layer_bytes", function(peer) return peer.bytes end)
  same("qeng_peer_steps_total", function(peer) return peer.steps end)
  same("qeng_peer_computed_seconds_total", function(peer) return peer.computed end)
  same("qeng_peer_link_seconds", function(peer) return peer.link and peer.link.round_trip end)
  same("qeng_peer_sent_bytes_total", function(peer) return peer.link and peer.link.sent end)
  same("qeng_peer_received_bytes_total", function(peer) return peer.link and peer.link.received end)
  equal(of("qeng_peer_sent_bytes_total", "b"), 2000, "bytes to b")
  assert(of("qeng_peer_step_seconds", "a") > 0 and of("qeng_peer_free_bytes", "a") > 0)
  for name, values in pairs(found) do
    if name:find "^qeng_peer" then
      for labels in pairs(values) do assert(labels:find "far", name .. " of a model that is all here") end
    end
  end
end

-- The share of time: notes of some seconds ago, and what was computed since.
do
  local stage = fleet.stages[1]
  fleet.notes = { { at = q.time() - 4, of = { [stage] = { steps = stage.steps, computed = stage.computed } } } }
  stage.steps, stage.computed = stage.steps + 10, stage.computed + 2
  local a = fleet:state().peers[2]
  assert(math.abs(a.busy - 0.5) < 0.01, "half of the time: " .. a.busy)
  assert(math.abs(a.step_seconds - 0.2) < 1e-9, "a step of late")
end

-- ---------------------------------------------------------------- a worker is lost

net.lose(2)
do
  local b = fleet:state().peers[3]
  equal(b.here, false, "b is here")
  equal(b.why, "no sign of life", "why")
  equal(b.layers[1].stands, false, "its layers stand")
  equal(b.free, nil, "memory of who is gone")
  equal(of("qeng_peer_here", "b"), 0, "b is here")
end
generate(4)
do
  local far, found = ask("GET", "/api/peers").models[1], figures()
  equal(far.lost, 1, "lost")
  equal(far.moved, fleet.moved, "moved")
  assert(far.moved >= 2, "layers of b moved")
  equal(found.qeng_peers_lost_total['model="far"'], 1, "lost")
  equal(found.qeng_layers_moved_total['model="far"'], fleet.moved, "moved")
  equal(found.qeng_late_frames_total['model="far"'], fleet.dropped, "late frames")
  equal(of("qeng_peer_layers", "b"), 0, "layers of b")
  equal(of("qeng_peer_layers", "c"), 2, "layers of c")
end

-- ---------------------------------------------------------------- what workers say

do
  local a = fleet.workers[1]
  a.about = { device = ("é"):rep(10000), memory = "a lot", free = -1, protocol = 1, version = q.version }
  a.now = nil
  local said = ask("GET", "/api/peers").models[1].peers[2]
  assert(#said.device < 1000, "a device's name")
  equal(said.memory, nil, "memory that is no number")
  equal(said.free, nil, "free memory that cannot be")
  a.about.device = { "a table" }
  equal(fleet:state().peers[2].device, nil, "a device that is no text")
  a.hung = true
  assert(fleet:state().peers[2].why:find "did not answer", "why it is not asked")
  a.hung, a.failed = nil, q.time() + 20
  assert(fleet:state().peers[2].why:find "again in [12]%d s", "when it is asked again")
  a.failed = nil
  for _, seconds in ipairs { 0 / 0, 1 / 0, -5 } do
    fleet.stages[1].computed = seconds
    equal(ask("GET", "/api/peers").models[1].peers[2].computed, 0, "seconds that cannot be")
  end
end

-- A worker is asked for its memory once in a while, however often the state is asked for.
do
  local a = fleet.workers[1]
  a.asked = nil
  local asked = #net.frames
  for _ = 1, 10 do fleet:state() end
  local hellos = 0
  for i = asked + 1, #net.frames do hellos = hellos + (net.frames[i] == "hello" and 1 or 0) end
  equal(hellos, 1, "questions for memory")
  assert(a.now.free > 0, "the answer")
end

-- ---------------------------------------------------------------- described, bounded

local document = ask("GET", "/openapi.json")
assert(document.paths["/api/peers"].get.summary:find "peers", "openapi.json")
do
  local state = fleet.state
  local many = {}
  for i = 1, 500 do many[i] = { name = "p" .. i, here = true, count = 0, bytes = 0, layers = {} } end
  function fleet.state() return { lost = 0, moved = 0, dropped = 0, peers = many } end
  local count = 0
  for _ in pairs(figures().qeng_peer_here) do count = count + 1 end
  equal(count, 100, "peers with figures of their own")
  fleet.state = state
end

-- Where no model lies on peers, that is said.
server.shelf.list[1].model.peers = nil
equal(#ask("GET", "/api/peers").models, 0, "models on peers")
equal(figures().qeng_peer_here, nil, "figures of peers")
-- Machines that are gone are the server's trouble of now: another try may find them.
do
  local err = { code = "peer", message = "nobody can hold the layers (gone: a)" }
  local status, body, logged = require("qeng.server.problem").of(err)
  assert(status == 503 and body.error.message == err.message and logged == err.message)
end

print "server peers: passed"
