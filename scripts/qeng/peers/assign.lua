-- Which machine computes which layers of a model. No network: figures in, ranges of layers out.
--
-- The machines are a star. The coordinator has the ends (embedding, last norm, head) and the first layers, or none.
-- Every other range is a worker's. What passes from range to range goes through the coordinator, so that a worker
-- costs two hops.
--
--   assign.plan {
--     layers = { {                 in order; they may differ
--       bytes = of the weights,
--       state_bytes = of the whole cache in it (0),
--       moved = bytes read and written in a step (bytes), flops = of a step (0),
--       seconds = {[peer's name] = of a step, measured}, in the place of what these two say
--     }, ... },
--     ends = { as a layer },
--     peers = { {
--       name =, memory = bytes that are free, bandwidth = bytes a second, flops = a second (where layers have flops),
--       sending = {seconds until it has the weights of each layer, where they have to be sent: counted as if a step
--                  took them, when ranges are chosen, and in no time that is returned},
--       coordinator = true, of one of them,
--       link = {latency = seconds of a hop, bandwidth = bytes a second}, of the others, to the coordinator
--     }, ... },
--     activation_bytes = of a row that passes, rows = of a step (1),
--     in_flight = groups of requests whose steps are under way at once, of so many rows each (1),
--     slack = bytes of a machine beside its layers and ends (64 MiB),
--     policy = "fastest", or "proportional": by free memory, whatever it takes
--   }
--
-- Time. A range takes the sum of its layers, each max(moved / bandwidth, flops / flops of the peer) unless measured; a
-- hop latency + rows * activation_bytes / bandwidth of the link. With one group in flight stages wait for each other: a
-- step takes L, the sum of all ranges, ends and hops. With more it takes max(L, in_flight * B), where B is the longest
-- that a step keeps one machine, or a link in one direction, busy.
--
-- Returns
--   ranges     {peer =, first = from 0, count =, bytes =, seconds =, link_seconds = of both hops} in the order that
--              rows pass; the first is the coordinator's, with the ends, and may have no layers
--   seconds    of a step, in which each group gets a token for each of its rows; tokens_per_second of all groups
--   in_turn    L; slowest: {peer =, what = "layers" or "link", seconds = B}
--   left_out   {peer =, why = as a sentence, seconds = of a step with it, where it could be used}
--   method     exact: no split of any machines in any order is faster (up to eight workers). greedy: of more the order
--              is chosen by memory and speed, and only the rest is the best. proportional
--   slack      as above
-- Of equal times the fewest machines win, then those named first. Where nothing fits, an error of code "memory" says
-- what is lacking.

local progress = require "qeng.console.progress"
local q = require "qeng.core"
local search = require "qeng.peers.search"

local assign = {}

local tick = 1e-12          -- seconds: of a layer that takes 1 us a millionth. Sums are exact up to 35 s
local most_exact = 8        -- workers: 256 sets
local default_slack = 64 * 2 ^ 20

local function refuse(...) q.error("value", "assign: " .. (...):format(select(2, ...))) end

-- ---------------------------------------------------------------- what is given

local function check_number(who, name, value, least)
  if type(value) ~= "number" or value - value ~= 0 or value < least then
    refuse("%s: %s is %s, expected a number of at least %g", who, name, tostring(value), least)
  end
end

local function check_positive(who, name, value)
  check_number(who, name, value, 0)
  if value == 0 then refuse("%s: %s is 0, expected more", who, name) end
end

local function check_part(who, part)
  for _, name in ipairs { "bytes", "state_bytes", "moved", "flops" } do
    if name == "bytes" or part[name] ~= nil then check_number(who, name, part[name], 0) end
  end
  for peer, seconds in pairs(part.seconds or {}) do check_number(who, "seconds of " .. tostring(peer), seconds, 0) end
end

local function check_peer(peer, number, known)
  local who = ("peer %d (%s)"):format(number, tostring(peer.name))
  if type(peer.name) ~= "string" or known[peer.name] then refuse("%s: expected a name that no other has", who) end
  known[peer.name] = true
  check_number(who, "memory", peer.memory, 0)
  check_positive(who, "bandwidth", peer.bandwidth)
  if peer.flops ~= nil then check_positive(who, "flops", peer.flops) end
  for i, seconds in pairs(peer.sending or {}) do check_number(who, "sending of layer " .. i - 1, seconds, 0) end
  if peer.coordinator then return end
  if type(peer.link) ~= "table" then refuse("%s: expected link = {latency =, bandwidth =}", who) end
  check_number(who, "link.latency", peer.link.latency, 0)
  check_positive(who, "link.bandwidth", peer.link.bandwidth)
end

-- The peers by what they are: the coordinator, and the workers in their order.
local function check(given)
  if #given.layers == 0 then refuse("there are no layers") end
  for i, layer in ipairs(given.layers) do check_part("layer " .. i - 1, layer) end
  check_part("ends", given.ends)
  check_number("a row", "activation_bytes", given.activation_bytes, 0)
  local own, workers, known = nil, {}, {}
  for i, peer in ipairs(given.peers) do
    check_peer(peer, i, known)
    if not peer.coordinator then
      workers[#workers + 1] = peer
    elseif own then
      refuse("%s and %s are both the coordinator", own.name, peer.name)
    else
      own = peer
    end
  end
  if not own then refuse("no peer is the coordinator: set coordinator = true of the one that has the ends") end
  for name, least in pairs { rows = 1, in_flight = 1, slack = 0 } do
    if given[name] ~= nil then check_number("a step", name, given[name], least) end
  end
  if (given.in_flight or 1) % 1 ~= 0 then refuse("in_flight is %g, expected whole groups", given.in_flight) end
  return own, workers
end

-- ---------------------------------------------------------------- time and memory

local function bytes_of(part) return part.bytes + (part.state_bytes or 0) end

-- Seconds of a step that a peer needs for a layer, or for the ends.
local function seconds_of(part, peer)
  local measured = part.seconds and part.seconds[peer.name]
  if measured then return measured end
  local flops = part.flops or 0
  if flops > 0 and not peer.flops then
    refuse("%s has no flops, and layers have: give its rate, or the seconds that were measured", peer.name)
  end
  return math.max((part.moved or part.bytes) / peer.bandwidth, flops > 0 and flops / peer.flops or 0)
end

-- Seconds of one hop, and how many of them the link is busy.
local function hop_of(given, peer)
  local busy = (given.rows or 1) * given.activation_bytes / peer.link.bandwidth
  return peer.link.latency + busy, busy
end

-- What a step takes whose layers lie as `ranges` say ({peer = name, count =} in order, the coordinator first): given as
-- for plan, of any rows. Returns in_turn, slowest, seconds and tokens_per_second, and a list of {seconds =,
-- link_seconds =}, one for each range; its field `ends` are the seconds of the ends.
function assign.time(given, ranges)
  local peers, at, total, slowest, list = {}, 0, 0, { seconds = 0 }, {}
  for _, peer in ipairs(given.peers) do peers[peer.name] = peer end
  local function busy(peer, what, seconds)
    if seconds > slowest.seconds then slowest = { peer = peer.name, what = what, seconds = seconds } end
  end
  for i, range in ipairs(ranges) do
    local peer, seconds, hops = peers[range.peer], 0, 0
    if peer.coordinator then
      seconds = seconds_of(given.ends, peer)
      list.ends = seconds
    end
    for _ = 1, range.count do
      at = at + 1
      seconds = seconds + seconds_of(given.layers[at], peer)
    end
    if not peer.coordinator then
      local hop, carried = hop_of(given, peer)
      hops = 2 * hop
      busy(peer, "link", carried)
    end
    busy(peer, "layers", seconds)
    total = total + seconds + hops
    list[i] = { seconds = seconds, link_seconds = hops }
  end
  local groups = given.in_flight or 1
  local step = math.max(total, groups * slowest.seconds)
  return {
    in_turn = total, slowest = slowest, seconds = step, tokens_per_second = groups * (given.rows or 1) / step,
  }, list
end

-- Sums of fn(layer, its number from 1) up to each layer.
local function sums(layers, fn)
  local list, total = { [0] = 0 }, 0
  for i, layer in ipairs(layers) do
    total = total + fn(layer, i)
    list[i] = total
  end
  return list
end

local function ticks(seconds) return math.floor(seconds / tick + 0.5) end

-- What search.lua takes.
local function problem_of(given, own, workers, slack)
  local layers = given.layers
  local function machine(peer, room)
    local sending = peer.sending or {}
    local function time_of(layer, i) return ticks(seconds_of(layer, peer) + (sending[i] or 0)) end
    return { room = room, time = sums(layers, time_of) }
  end
  local problem = { layers = #layers, bytes = sums(layers, bytes_of), groups = given.in_flight or 1, workers = {} }
  problem.own = machine(own, own.memory - slack - bytes_of(given.ends))
  problem.own.fixed = ticks(seconds_of(given.ends, own))
  for i, peer in ipairs(workers) do
    local worker, hop, busy = machine(peer, peer.memory - slack), hop_of(given, peer)
    worker.fixed, worker.link = 2 * ticks(hop), ticks(busy)
    problem.workers[i] = worker
  end
  return problem
end

-- ---------------------------------------------------------------- what is said

-- Rounds up what is shown: so much more has to do as it is printed.
local function at_least(n)
  local unit = 1
  while n / unit >= 1000 do unit = unit * 1000 end
  return progress.bytes(math.ceil(n / unit * 10) / 10 * unit)
end

local remedies = "keep a smaller cache (a shorter context, fewer requests, --kv q8_0), or take weights of fewer bits"

local function lacking(given, own, problem, slack)
  if problem.own.room < 0 then
    q.error("memory", ("assign: %s, the coordinator, has %s free, and embedding, head and %s of slack take %s: %s are "
      .. "lacking; make a machine with more memory the coordinator, or take weights of fewer bits"):format(own.name,
      progress.bytes(own.memory), progress.bytes(slack), at_least(bytes_of(given.ends) + slack),
      at_least(-problem.own.room)))
  end
  local held, n = search.held(problem), problem.layers
  local short = problem.bytes[n] - problem.bytes[held]
  if short == 0 then
    q.error("memory", ("assign: %d layers fit in these machines' memory, but not in the order that was tried: name "
      .. "those with much memory first, add a machine, or %s"):format(n, remedies))
  end
  local largest = 0
  for _, layer in ipairs(given.layers) do largest = math.max(largest, bytes_of(layer)) end
  q.error("memory", ("assign: of %d layers, which take %s with their cache, the machines hold %d (a layer takes up to "
    .. "%s, each machine %s of slack): %s are lacking; add a machine with that much free memory, %s"):format(n,
    at_least(problem.bytes[n]), held, at_least(largest), progress.bytes(slack), at_least(short), remedies))
end

function assign.duration(s)
  if s < 1e-3 then return ("%.3g us"):format(s * 1e6) end
  return s < 1 and ("%.3g ms"):format(s * 1e3) or ("%.3g s"):format(s)
end

local function why_left_out(with, without)
  if with == math.huge then return "no split that uses it was found" end
  local there, here = assign.duration(with), assign.duration(without)
  if there == here then return ("a step takes %s with it too, as without"):format(here) end
  return ("a step would take %s with it, and takes %s without"):format(there, here)
end

-- ---------------------------------------------------------------- assign.plan

-- The workers that have room for a layer; of the others, why they have not.
local function usable(given, workers, slack)
  local least, kept, left_out = math.huge, {}, {}
  for _, layer in ipairs(given.layers) do least = math.min(least, bytes_of(layer)) end
  for _, peer in ipairs(workers) do
    if peer.memory - slack >= least then
      kept[#kept + 1] = peer
    else
      left_out[#left_out + 1] = { peer = peer.name, why = ("%s free hold no layer: the smallest takes %s, beside %s of "
        .. "slack"):format(progress.bytes(peer.memory), at_least(least), progress.bytes(slack)) }
    end
  end
  return kept, left_out
end

function assign.plan(given)
  local own, all = check(given)
  local slack, policy = given.slack or default_slack, given.policy or "fastest"
  if policy ~= "fastest" and policy ~= "proportional" then
    refuse("policy is %s, expected fastest or proportional", tostring(policy))
  end
  local workers, left_out = usable(given, all, slack)
  local problem = problem_of(given, own, workers, slack)
  local method = policy == "proportional" and policy or #workers <= most_exact and "exact" or "greedy"
  if problem.own.room < 0 then lacking(given, own, problem, slack) end
  local split, value_with = search[method](problem)
  if not split then lacking(given, own, problem, slack) end

  local ranges, used, first = {}, {}, 0
  local function add(peer, count, bytes)
    bytes = bytes + problem.bytes[first + count] - problem.bytes[first]
    ranges[#ranges + 1] = { peer = peer.name, first = first, count = count, bytes = bytes }
    used[peer.name], first = true, first + count
  end
  add(own, split.own, bytes_of(given.ends))
  for _, part in ipairs(split) do add(workers[part[1]], part[2], 0) end
  local result, times = assign.time(given, ranges)
  for i, range in ipairs(ranges) do
    range.seconds, range.link_seconds = times[i].seconds, times[i].link_seconds
  end
  for i, peer in ipairs(workers) do
    if not used[peer.name] then
      local with = policy == "fastest" and value_with(i) * tick or nil
      left_out[#left_out + 1] = {
        peer = peer.name, seconds = with and with < math.huge and with or nil,
        why = with and why_left_out(with, result.seconds) or "its share of the memory holds no layer",
      }
    end
  end
  result.ranges, result.left_out, result.method, result.slack = ranges, left_out, method, slack
  return result
end

return assign
