-- Which machine computes which layers (scripts/qeng/peers/assign.lua): no split that an enumeration finds is faster,
-- memory is kept to, and what is left out or lacking is said with its figures.
local q = require "qeng"
local assign = require "qeng.peers.assign"

local function fails(code, part, fn, ...)
  local ok, err = pcall(fn, ...)
  assert(not ok and type(err) == "table" and err.code == code and err.message:find(part, 1, true),
    tostring(type(err) == "table" and err.message or err))
end

-- The search counts in ticks of 1e-12 s, and times are milliseconds here.
local function close(a, b) return a == b or math.abs(a - b) < 1e-6 * math.max(a, b) end

-- ---------------------------------------------------------------- the enumeration

-- Seconds of a step of layers first + 1 .. first + count on a peer, from the contract.
local function range_seconds(given, peer, first, count)
  local seconds = 0
  for i = first + 1, first + count do
    local layer = given.layers[i]
    seconds = seconds + (layer.seconds and layer.seconds[peer.name]
      or math.max((layer.moved or layer.bytes) / peer.bandwidth, (layer.flops or 0) / (peer.flops or 1)))
  end
  return seconds
end

local function range_bytes(given, first, count)
  local bytes = 0
  for i = first + 1, first + count do bytes = bytes + given.layers[i].bytes + (given.layers[i].state_bytes or 0) end
  return bytes
end

-- Calls see(value, workers) for every split that fits: any of the workers in any order, each at least one layer.
local function every_split(given, see)
  local own, workers = given.peers[1], {}
  for i = 2, #given.peers do workers[i - 1] = given.peers[i] end
  local groups, used = given.in_flight or 1, {}
  local function go_on(at, total, longest, count)
    if at == #given.layers then see(math.max(total, groups * longest), used, count) end
    for _, peer in ipairs(workers) do
      local carried = (given.rows or 1) * given.activation_bytes / peer.link.bandwidth
      for more = 1, used[peer.name] and 0 or #given.layers - at do
        if range_bytes(given, at, more) + given.slack <= peer.memory then
          local seconds = range_seconds(given, peer, at, more)
          used[peer.name] = true
          go_on(at + more, total + seconds + 2 * (peer.link.latency + carried),
            math.max(longest, seconds, carried), count + 1)
          used[peer.name] = nil
        end
      end
    end
  end
  for own_layers = 0, #given.layers do
    if given.ends.bytes + range_bytes(given, 0, own_layers) + given.slack <= own.memory then
      local seconds = given.ends.bytes / own.bandwidth + range_seconds(given, own, 0, own_layers)
      go_on(own_layers, seconds, seconds, 0)
    end
  end
end

-- The least value, the fewest workers of it, and the least value with each worker.
local function enumerate(given)
  local least, fewest, with = math.huge, math.huge, {}
  every_split(given, function(value, used, count)
    if value < least and not close(value, least) then least, fewest = value, count end
    if close(value, least) then fewest = math.min(fewest, count) end
    for name in pairs(used) do with[name] = math.min(with[name] or math.huge, value) end
  end)
  return least, fewest, with
end

-- ---------------------------------------------------------------- random cases

-- Numbers of a sequence of its own, in low .. high.
local function numbers(seed)
  local state = seed * 2654435761 % 2 ^ 31
  return function(low, high)
    state = (state * 16807 + 12345) % (2 ^ 31 - 1)
    return low + state % (high - low + 1)
  end
end

local function drawn(seed)
  local draw = numbers(seed)
  local given = {
    layers = {}, ends = { bytes = draw(0, 3) * 1e8 }, peers = {}, slack = draw(0, 1) * 1e7, rows = draw(1, 3),
    activation_bytes = draw(1, 4) * 1e4, in_flight = ({ 1, 2, 4, 7 })[draw(1, 4)],
  }
  local even = draw(1, 2) == 1
  for i = 1, draw(1, 6) do
    given.layers[i] = {
      bytes = (even and 4 or draw(2, 9)) * 1e8, state_bytes = draw(0, even and 0 or 2) * 1e8,
      flops = draw(0, 1) * draw(1, 9) * 1e9,
    }
    if draw(1, 4) == 1 then given.layers[i].moved = draw(1, 9) * 1e8 end
    if draw(1, 5) == 1 then given.layers[i].seconds = { b = draw(1, 9) * 1e-3 } end
  end
  for i = 1, draw(1, 5) do
    given.peers[i] = {
      name = ("abcde"):sub(i, i), memory = draw(1, 24) * 1e8, bandwidth = draw(1, 3) * draw(1, 4) * 1e10,
      flops = draw(1, 9) * 1e12, coordinator = i == 1 or nil,
      link = i > 1 and { latency = draw(0, 4) * 1e-3, bandwidth = draw(1, 9) * 1e7 } or nil,
    }
  end
  return given
end

local placed, refused, left = 0, 0, 0
for seed = 1, 1200 do
  local given = drawn(seed)
  local least, fewest, with = enumerate(given)
  local what = "case " .. seed
  if least == math.huge then
    fails("memory", "are lacking", assign.plan, given)
    refused = refused + 1
  else
    local found = assign.plan(given)
    placed = placed + 1
    assert(found.method == "exact" and close(found.seconds, least),
      ("%s: %.9g s, enumerated %.9g s"):format(what, found.seconds, least))
    assert(#found.ranges - 1 == fewest, what .. ": more machines than needed")
    assert(close(found.tokens_per_second, given.in_flight * given.rows / least), what)
    assert(close(found.seconds, math.max(found.in_turn, given.in_flight * found.slowest.seconds)), what)
    local at, total, used = 0, 0, {}
    for i, range in ipairs(found.ranges) do
      local peer = given.peers[("abcde"):find(range.peer, 1, true)]
      assert(range.first == at and (i == 1) == (range.peer == "a") and (i == 1 or range.count > 0), what)
      local ends = i == 1 and given.ends.bytes or 0
      assert(range.bytes == range_bytes(given, at, range.count) + ends, what)
      assert(range.bytes + given.slack <= peer.memory and not used[range.peer], what .. ": memory is not kept to")
      assert(close(range.seconds, range_seconds(given, peer, at, range.count) + ends / peer.bandwidth), what)
      at, total, used[range.peer] = at + range.count, total + range.seconds + range.link_seconds, true
    end
    assert(at == #given.layers and close(total, found.in_turn), what)
    for _, each in ipairs(found.left_out) do
      assert(not used[each.peer] and #each.why > 0, what)
      assert((each.seconds ~= nil) == (with[each.peer] ~= nil), what .. ": " .. each.why)
      if each.seconds then
        assert(close(each.seconds, with[each.peer]) and each.seconds > least * (1 - 1e-6), what .. ": " .. each.why)
        left = left + 1
      end
    end
    assert(#found.left_out + #found.ranges == #given.peers, what)
    -- The order that many workers get, and the plain fallback, keep to memory and are never faster.
    given.policy = "proportional"
    local fine, plain = pcall(assign.plan, given)
    if fine then
      assert(plain.method == "proportional" and plain.seconds > least * (1 - 1e-6), what)
      for _, range in ipairs(plain.ranges) do
        assert(range.bytes + given.slack <= given.peers[("abcde"):find(range.peer, 1, true)].memory, what)
      end
    else
      assert(plain.code == "memory", plain.message)
    end
  end
end
assert(placed > 400 and refused > 100 and left > 400, placed .. " " .. refused .. " " .. left)

-- ---------------------------------------------------------------- what holds of single cases

local function equal(count, workers, change)
  local given = {
    layers = {}, ends = { bytes = 1e8 }, activation_bytes = 8192, slack = 0,
    peers = { { name = "here", coordinator = true, memory = 1e9, bandwidth = 1e11 } },
  }
  for i = 1, count do given.layers[i] = { bytes = 1e8 } end
  for i = 1, workers do
    given.peers[i + 1] = {
      name = "w" .. i, memory = 1e9, bandwidth = 1e11, link = { latency = 1e-4, bandwidth = 1e9 },
    }
  end
  for name, value in pairs(change or {}) do given[name] = value end
  return given
end

local function shown(found)
  local list = {}
  for i, range in ipairs(found.ranges) do list[i] = ("%s:%d+%d"):format(range.peer, range.first, range.count) end
  return table.concat(list, " ")
end

-- Equal machines are used in the order given, and no more of them than there have to be.
assert(shown(assign.plan(equal(9, 3))) == "here:0+9")
assert(shown(assign.plan(equal(19, 4))) == "here:0+9 w1:9+10")
assert(shown(assign.plan(equal(20, 4))) == "here:0+9 w1:9+10 w2:19+1")
-- With groups in flight each machine has its share, even one over a link.
local four = assign.plan(equal(20, 4, { in_flight = 5 }))
assert(shown(four) == "here:0+4 w1:4+5 w2:9+5 w3:14+5 w4:19+1" and close(four.slowest.seconds, 5e-3), shown(four))
assert(close(four.seconds, 5 * 5e-3) and four.in_turn < four.seconds)
assert(four.tokens_per_second > 4 * 0.8 * assign.plan(equal(20, 4)).tokens_per_second)
-- A slow machine is left out where the others hold the model, and used where they do not.
local slow = equal(9, 1)
slow.peers[2].bandwidth = 1e9
local alone = assign.plan(slow)
assert(shown(alone) == "here:0+9" and alone.left_out[1].peer == "w1")
assert(alone.left_out[1].why:find "^a step would take 109 ms with it, and takes 10 ms without$",
  alone.left_out[1].why)
slow.peers[1].memory = 0.9e9
assert(shown(assign.plan(slow)) == "here:0+8 w1:8+1")
slow.peers[2].memory = 0.5e8
fails("memory", "of 9 layers, which take 900.0 MB with their cache, the machines hold 8 (a layer takes up to 100.0 MB",
  assign.plan, slow)
fails("memory", "100.0 MB are lacking", assign.plan, slow)
slow.peers[1].memory = 0.5e8
fails("memory", "here, the coordinator, has 50.0 MB free, and embedding, head and 0 B of slack take 100.0 MB",
  assign.plan, slow)
-- One that holds no layer says what it has.
local small = equal(9, 1)
small.peers[2].memory = 0.5e8
assert(assign.plan(small).left_out[1].why
  == "50.0 MB free hold no layer: the smallest takes 100.0 MB, beside 0 B of slack")
-- The cache counts, and slack of each machine.
local cached = equal(9, 1)
for _, layer in ipairs(cached.layers) do layer.state_bytes = 1e8 end
assert(shown(assign.plan(cached)) == "here:0+4 w1:4+5")
cached.slack = 1e8
fails("memory", "the machines hold 8", assign.plan, cached)
cached.peers[2].memory = 1.1e9
assert(shown(assign.plan(cached)) == "here:0+4 w1:4+5" and assign.plan(cached).slack == 1e8)
-- Weights that have to be sent count when ranges are chosen, not in a step's time.
local sent = equal(9, 1, { in_flight = 2 })
local before = assign.plan(sent)
sent.peers[2].sending = {}
for i = 1, 6 do sent.peers[2].sending[i] = 0.5 end
assert(shown(before) == "here:0+4 w1:4+5" and shown(assign.plan(sent)) == "here:0+6 w1:6+3", shown(assign.plan(sent)))
assert(assign.plan(sent).seconds < 0.1)
-- By memory alone each machine is as full as the others.
local plain = equal(20, 1, { policy = "proportional" })
plain.peers[2].memory = 3e9
assert(shown(assign.plan(plain)) == "here:0+4 w1:4+16", shown(assign.plan(plain)))

-- Of more than eight workers the order is chosen; the split has to be as good as the exact one where machines and
-- layers are equal, and no worse than by memory alone.
local many = equal(60, 12, { in_flight = 3 })
local eight = equal(60, 8, { in_flight = 3 })
local found, exact = assign.plan(many), assign.plan(eight)
assert(found.method == "greedy" and exact.method == "exact" and close(found.seconds, exact.seconds),
  found.seconds .. " " .. exact.seconds)
for i, peer in ipairs(many.peers) do peer.memory, peer.bandwidth = 6e8 + i * 1e8, 1e11 / (1 + i % 3) end
local chosen = assign.plan(many)
many.policy = "proportional"
assert(chosen.seconds <= assign.plan(many).seconds)

-- A model of 80 layers on nine machines takes a fraction of a second; every order of them tried alone would take hours.
local large = equal(80, 8, { in_flight = 4 })
for i, layer in ipairs(large.layers) do layer.bytes = 1e8 + i * 1e5 end
for i, peer in ipairs(large.peers) do peer.memory, peer.bandwidth = 1.5e9 + i * 1e8, 1e11 / (1 + i % 5) end
local began = q.time()
assert(assign.plan(large).method == "exact" and q.time() - began < 20, q.time() - began)

-- The same ranges in another step: a prompt's rows on the same machines.
local given = equal(19, 1)
local ranges = assign.plan(given).ranges
given.rows = 100
assert(close(assign.time(given, ranges).seconds, 20e-3 + 2 * (1e-4 + 100 * 8192 / 1e9)))
assert(close(assign.time(given, ranges).tokens_per_second, 100 / assign.time(given, ranges).seconds))

-- What makes no sense is refused.
local function with(change)
  local wrong = equal(2, 1)
  change(wrong)
  return wrong
end
fails("value", "no peer is the coordinator", assign.plan, with(function(g) g.peers[1].coordinator = nil
  g.peers[1].link = { latency = 0, bandwidth = 1 } end))
fails("value", "here and w1 are both the coordinator", assign.plan, with(function(g) g.peers[2].coordinator = true end))
fails("value", "peer 2 (here): expected a name that no other has", assign.plan,
  with(function(g) g.peers[2].name = "here" end))
fails("value", "memory is nan", assign.plan, with(function(g) g.peers[2].memory = 0 / 0 end))
fails("value", "bandwidth is 0", assign.plan, with(function(g) g.peers[2].bandwidth = 0 end))
fails("value", "sending of layer 1 is -1", assign.plan, with(function(g) g.peers[2].sending = { [2] = -1 } end))
fails("value", "expected link =", assign.plan, with(function(g) g.peers[2].link = nil end))
fails("value", "w1 has no flops", assign.plan, with(function(g)
  g.layers[1].flops, g.peers[1].flops = 1, 1
end))
fails("value", "policy is best", assign.plan, with(function(g) g.policy = "best" end))
fails("value", "in_flight is 1.5", assign.plan, with(function(g) g.in_flight = 1.5 end))
print "peers_assign: passed"
