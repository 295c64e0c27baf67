-- q.peers and q.keys as Lua sees them, between two processes: frames with tensors in them, what is refused, and a peer
-- that is stopped, goes on and is killed. What the transport does with a bad network is in tests/unit/peers_test.cpp.
local ffi = require "ffi"
local q = require "qeng"
local scratch = require "scratch"
jit.off()  -- compiled code calls no hooks
ffi.cdef "int kill(int pid, int signal); int raise(int signal);"
local sigint, sigcont, sigstop = 2, 18, 19
local patience = 20  -- seconds: other processes may have the machine

local folder = scratch.folder
local anna, ben = folder .. "/anna", folder .. "/ben"
local ok, own = pcall(q.keys, { folder = anna, name = "anna" })
if not ok and own.code == "unsupported" then
  print("SKIPPED peers: " .. own.message)
  return
end

local function refused(code, words, fn, ...)
  local done, err = pcall(fn, ...)
  assert(not done and err.code == code and tostring(err.message):find(words, 1, true),
    ("expected %s: %s, got %s"):format(code, words, tostring(not done and err.message)))
end

-- Keys.
assert(own.name == "anna" and #own.public == 40 and own.folder == anna and #own.known == 0)
local other = q.keys { folder = ben, name = "ben" }
q.keys { folder = anna, know = { name = "ben", public = other.public } }
q.keys { folder = ben, know = { name = "anna", public = own.public } }
own = q.keys { folder = anna }
assert(#own.known == 1 and own.known[1].name == "ben" and own.known[1].public == other.public)
assert(tostring(own):find("anna  " .. own.public, 1, true) and tostring(own):find("\nben  " .. other.public, 1, true))
refused("value", "is no name of a peer", q.keys, { folder = anna, know = { name = "../x", public = other.public } })
refused("value", "know is {name", q.keys, { folder = anna, know = { name = "x" } })
refused("value", "no key of x is known", q.keys, { folder = anna, forget = "x" })

-- The other process sends back what it gets, and computes for so many seconds where it is told to.
local script, log = folder .. "/echo.lua", folder .. "/log"
q.fs.write(script, ([[
  local q = require "qeng"
  local peers = q.peers.open { keys = %q, listen = "127.0.0.1:0" }
  q.fs.write(%q, tostring(peers:port()))
  while true do
    local event = peers:wait(60)
    if event and event.kind == "frame" then
      if event.type == "stop" then peers:close(5) return end
      local till = q.time() + event.position
      while q.time() < till do end
      peers:send(event.peer, {
        type = event.type, request = event.request, epoch = event.epoch, text = event.text, data = event.frame,
      })
    end
  end
]]):format(ben, folder .. "/port"))
local process = q.host.process({ script }, { output = log })
local till = q.time() + patience
while not pcall(q.fs.read, folder .. "/port") or q.fs.read(folder .. "/port") == "" do
  assert(q.time() < till and not process:status(), "the other process does not begin")
end

local peers = q.peers.open { keys = anna }
assert(peers:port() == 0)
local peer = peers:dial("127.0.0.1:" .. q.fs.read(folder .. "/port"))
local function event(kind)
  local found = peers:wait(patience)
  assert(found and found.kind == kind and found.peer == peer,
    ("expected %s, got %s"):format(kind, found and found.kind .. ": " .. tostring(found.why) or "nothing"))
  return found
end
refused("peer", "is not here", peers.send, peers, peer, { type = "step" })
local here = event "here"
assert(here.name == "ben" and here.key == other.public)

local function round(frame)
  peers:send(peer, frame)
  return event "frame"
end

-- Frames.
local answer = round { type = "step", request = 2 ^ 53, epoch = 2 ^ 32 - 1, text = "{}\0", data = "\0\1\2" }
assert(answer.type == "step" and answer.request == 2 ^ 53 and answer.epoch == 2 ^ 32 - 1 and answer.text == "{}\0")
assert(answer.frame:bytes() == 3 and answer.frame:data() == "\0\1\2")
answer = round { type = "hello" }
assert(answer.text == "" and answer.request == 0 and answer.position == 0 and answer.frame:bytes() == 0)
assert(answer.frame:data() == "" and answer.frame:tensor({ 0 }, "f32"):elements() == 0)

local x = q.randn({ 5, 64 }, { seed = 1 })
for _, dtype in ipairs { "f32", "bf16", "q8_0" } do
  local sent = dtype == "q8_0" and q.quantize(x, dtype) or x:to(dtype)
  answer = round { type = "step", data = sent }
  local got = answer.frame:tensor({ 5, 64 }, dtype)
  assert(got:hash() == sent:hash(), dtype .. " comes changed")
  local into = q.empty({ 5, 64 }, dtype)
  assert(answer.frame:into(into):hash() == sent:hash())
  refused("shape", "bytes, and a tensor", answer.frame.tensor, answer.frame, { 6, 64 }, dtype)
  refused("shape", "bytes, and a tensor", answer.frame.into, answer.frame, q.empty({ 4, 64 }, dtype))
end
local again = round { type = "result", data = answer.frame }
assert(again.frame:data() == answer.frame:data())
answer.frame:free()
refused("closed", "was freed", answer.frame.data, answer.frame)
refused("closed", "was freed", peers.send, peers, peer, { type = "result", data = answer.frame })
refused("value", "is no type of frame", peers.send, peers, peer, { type = "stepp" })
refused("value", "is no type of frame", peers.send, peers, peer, { type = "ping" })
refused("value", "string, Tensor or Frame expected", peers.send, peers, peer, { type = "step", data = {} })
refused("value", "did you mean 'request'", peers.send, peers, peer, { type = "step", reqest = 1 })
refused("value", "is no address", peers.dial, peers, "nowhere")
refused("value", "neither the name nor the key", peers.dial, peers, "127.0.0.1:1", "carl")
assert(peers:room(peer) > 2 ^ 28)

-- Signs of life.
peers:send(peer, { type = "done", position = 3 })  -- it computes
assert(peers:wait(2) == nil, "a peer that computes counts as gone")
assert(event("frame").type == "done")
local stats = peers:stats(peer)
assert(stats.here and stats.times_here == 1 and stats.round_trip_ms > 0 and stats.unsent == 0)
assert(stats.frames_sent == stats.frames_received and stats.bytes_sent > 0)

local pid = process:pid()
ffi.C.kill(pid, sigstop)
local stopped = q.time()
local gone = event "gone"
local seconds = q.time() - stopped
assert(seconds < 2, ("a stopped peer is gone after %.2f s"):format(seconds))
assert(gone.why:find "no sign of life", gone.why)
refused("peer", "is not here", peers.send, peers, peer, { type = "step" })
ffi.C.kill(pid, sigcont)
assert(event("here").name == "ben")
assert(round({ type = "step", request = 5 }).request == 5)
assert(peers:stats(peer).times_here == 2)

-- Ctrl-C ends a wait.
q.host.defer_interrupt(true)
ffi.C.raise(sigint)
local began = q.time()
assert(peers:wait(patience) == nil and q.time() - began < 5)
assert(q.host.interrupted())
q.host.defer_interrupt(false)

process:stop(true)
local killed = q.time()
event "gone"
assert(q.time() - killed < 2)
peers:close()
refused("closed", "were closed", peers.send, peers, peer, { type = "step" })
refused("closed", "were closed", peers.wait, peers, 0)

-- Discovery, where this machine has an interface that broadcasts.
local listener = q.peers.open { keys = ben, listen = "127.0.0.1:0" }
local heard, ear = pcall(q.peers.listen, { keys = anna, port = 28798 })
local beacon = q.peers.beacon { peers = listener, port = 28798 }
if heard then
  assert(#beacon:refresh() > 0)
  local found = q.peers.find { keys = anna, port = 28798, seconds = 3 }
  assert(#found == #beacon:refresh() and found[1].name == "ben" and found[1].public == other.public)
  assert(found[1].address:match ":(%d+)$" == tostring(listener:port()))
  local addresses = {}
  for _, each in ipairs(ear:heard(1)) do
    assert(each.name == "ben" and not addresses[each.address], "each is told once")
    addresses[each.address] = true
  end
  assert(addresses[found[1].address] and #ear:heard(1) == 0)
  q.keys { folder = anna, forget = "ben" }
  assert(#q.peers.find { keys = anna, port = 28798, seconds = 1 } == 0)
  beacon:close()
else
  assert(ear.code == "io" and #beacon:refresh() == 0, ear.message)
end

-- A stranger hears nothing, and whom it dialed is told its key: once.
local carl = folder .. "/carl"
local third = q.keys { folder = carl, name = "carl" }
q.keys { folder = carl, know = { name = "ben", public = other.public } }
local stranger = q.peers.open { keys = carl }
local silent = stranger:dial("127.0.0.1:" .. listener:port(), "ben")
till = q.time() + patience
local strangers = {}
while #strangers == 0 do
  assert(q.time() < till, "nobody was told of a stranger")
  assert(listener:wait(0.1) == nil)
  strangers = listener:refused()
end
assert(#strangers == 1 and strangers[1].key == third.public and strangers[1].address == "127.0.0.1")
assert(stranger:wait(1) == nil and not stranger:stats(silent).here and #listener:refused() == 0)
stranger:close()
-- A process that exits with all of it open does so in order.
script = folder .. "/exit.lua"
q.fs.write(script, ([[
  local q = require "qeng"
  local peers = q.peers.open { keys = %q, listen = "127.0.0.1:0" }
  local told, beacon = pcall(q.peers.beacon, { peers = peers, port = 28798 })
  os.exit(3)
]]):format(ben))
process = q.host.process({ script }, { output = log })
till = q.time() + patience
while not process:status() do assert(q.time() < till, "a process with peers does not exit") end
assert(process:status() == 3, ("exits with %d: %s"):format(process:status(), q.fs.read(log)))
refused("value", "do not listen", q.peers.beacon, { peers = q.peers.open { keys = anna } })
print "peers: frames, signs of life and keys between two processes"
