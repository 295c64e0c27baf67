-- What inference of a model over several machines takes: which layers go where, the memory and time of each, tokens a
-- second. Nothing is loaded, and no machine is asked.
--
--   print(simulate { model = "70b", stored = "q4_k", peers = "cluster.json", context = 8192, batch = 8 })
--
-- peers: a file of cluster.lua, or such a list. model, model_file, dtype, stored, context, batch, kv, kv_k, kv_v and
-- kv_tail are those of q.plan; policy, in_flight and chunk are below. The layers are assigned for the batch. What one
-- request and a prompt take is said of the same ranges. Times are as good as the bandwidths given: published ones make
-- them limits, measured ones what to expect.
--
-- Returns {cost = (costs.lua), peers =, assigned = what assign.plan returns, for the batch; one, prompt = what
-- assign.time returns}, which prints itself.

local assign = require "qeng.peers.assign"
local cluster = require "qeng.peers.cluster"
local costs = require "qeng.peers.costs"
local kv_option = require "qeng.infer.kv_option"
local options = require "qeng.console.options"
local progress = require "qeng.console.progress"
local q = require "qeng.core"
local source_of = require "qeng.plan.source"

options.set("cluster", {
  { "peers", nil, "inference over several machines, which this file describes (scripts/qeng/peers/cluster.lua)",
    kind = "input" },
  { "policy", "fastest", "with peers: how layers are assigned; proportional: by free memory",
    choices = { "fastest", "proportional" } },
  { "in_flight", 1, "with peers: groups of the batch whose steps are under way at once", min = 1, max = 64 },
  { "chunk", 256, "with peers: tokens of prompts in a step", min = 1, max = 8192 },
})

local taken = {}
for name in ([[
  peers policy in_flight chunk model model_file mode dtype stored context batch kv kv_k kv_v kv_tail
]]):gmatch "%S+" do taken[name] = true end

local text = { __name = "simulation" }

local duration = assign.duration

-- "0 to 11", or what there is in their place.
local function span(range)
  if range.count == 0 then return "none" end
  return range.count == 1 and ("%d"):format(range.first)
    or ("%d to %d"):format(range.first, range.first + range.count - 1)
end

local methods = {
  exact = "no other machines, order or split are faster",
  greedy = "greedy: the order of so many machines is chosen by memory and speed, and another may be faster",
  proportional = "by free memory, whatever it takes",
}

local function rate(what, time)
  local each = time.tokens_per_second
  return ("%s: " .. (each < 1000 and "%.3g" or "%.0f") .. " tokens/s, a step of %s"):format(what, each,
    duration(time.seconds))
end

local function links(ranges)
  local seconds = 0
  for _, range in ipairs(ranges) do seconds = seconds + range.link_seconds end
  return seconds
end

function text.__tostring(self)
  local cost, assigned = self.cost, self.assigned
  local memory, states = {}, 0
  for _, peer in ipairs(self.peers) do memory[peer.name] = peer.memory end
  for _, layer in ipairs(cost.layers) do states = states + layer.state_bytes end
  local lines = { ("%s: %.4g billion parameters, %d layers, %s; a cache of %d x %d tokens in %s takes %s"):format(
    self.name, cost.parameters / 1e9, #cost.layers, cost.dtype, cost.batch, cost.context, cost.kv,
    progress.bytes(states)) }
  local form = "%-16s %-10s %12s %12s %12s %12s"
  lines[2] = form:format("machine", "layers", "memory", "of", "a step", "two hops")
  for i, range in ipairs(assigned.ranges) do
    lines[#lines + 1] = form:format(range.peer, span(range), progress.bytes(range.bytes + assigned.slack),
      progress.bytes(memory[range.peer]), duration(range.seconds), i > 1 and duration(range.link_seconds) or "")
  end
  lines[#lines + 1] = ("the first is the coordinator, with embedding and head; memory: weights, cache, and %s of slack "
    .. "each"):format(progress.bytes(assigned.slack))
  for _, each in ipairs(assigned.left_out) do lines[#lines + 1] = ("left out: %s: %s"):format(each.peer, each.why) end
  lines[#lines + 1] = methods[assigned.method]
  lines[#lines + 1] = rate("one request", self.one) .. (", of which links %s"):format(duration(self.one_links))
  if cost.batch > 1 then
    local step, slowest = cost.steps.batch, assigned.slowest
    lines[#lines + 1] = rate(("%d requests"):format(cost.batch), assigned) .. (step.in_flight == 1
      and (", of which links %s"):format(duration(links(assigned.ranges)))
      or (" in %d groups of %d; one group alone %s, slowest %s of %s, %s"):format(step.in_flight, step.rows,
        duration(assigned.in_turn), slowest.what == "link" and "the link" or "the layers", slowest.peer,
        duration(slowest.seconds)))
  end
  lines[#lines + 1] = rate(("prompts in pieces of %d tokens"):format(cost.chunk), self.prompt)
  return table.concat(lines, "\n")
end

text.__index = {}

return function(opt)
  for name in pairs(opt.__given or opt) do
    if not taken[name] then
      q.error("usage", ("--%s says nothing of inference over machines (--peers)"):format((name:gsub("_", "-"))))
    end
  end
  if opt.mode and opt.mode ~= "all" and opt.mode ~= "inference" then
    q.error("usage", ("--peers is of inference, not of mode %s"):format(opt.mode))
  end
  local peers = type(opt.peers) == "table" and cluster.peers(opt.peers, "peers") or cluster.read(opt.peers)
  local make, name = source_of { model = opt.model, model_file = opt.model_file, mode = "inference", dtype = opt.dtype,
    stored = opt.stored }
  local cost = costs.of(make, { context = opt.context, batch = opt.batch, in_flight = opt.in_flight, chunk = opt.chunk,
    kv = kv_option(opt) })
  local found = { name = name, peers = peers, cost = cost }
  found.assigned = assign.plan(costs.given(cost, cost.steps.batch, peers, nil, { policy = opt.policy }))
  local hops
  found.one, hops = assign.time(costs.given(cost, cost.steps.one, peers), found.assigned.ranges)
  found.one_links = links(hops)
  found.prompt = assign.time(costs.given(cost, cost.steps.prompt, peers), found.assigned.ranges)
  return setmetatable(found, text)
end
