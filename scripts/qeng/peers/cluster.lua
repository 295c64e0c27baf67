-- Machines as a file describes them, for a simulation: peers as assign.lua takes them. The file is a list, in JSON if
-- its name ends in .json (recipes/cluster.json), else in Lua:
--
--   return {
--     { name = "desk", coordinator = true, memory = "20G", bandwidth = "800G", flops = "60T" },
--     { name = "rack", machine = "rtx3090", memory = "22G", link = { latency = 0.2e-3, bandwidth = "1.1G" } },
--   }
--
-- memory: bytes that tensors may take; bandwidth: of that memory, bytes a second; flops: of matrix products, a second.
-- Sizes are numbers, or texts as 500M, 1.5G, 60T. machine: a name of plan/machines.lua, whose published figures stand
-- for those that are not given. link: from and to the coordinator; latency in seconds, one way.

local machines = require "qeng.plan.machines"
local options = require "qeng.console.options"
local q = require "qeng.core"

local cluster = {}

local fields = { "name", "coordinator", "machine", "memory", "bandwidth", "flops", "link" }
local link_fields = { "latency", "bandwidth" }

-- The value of a Lua or JSON text, which sees nothing of this process.
local function value_of(path, text)
  if path:find "%.json$" then
    local fine, value = pcall(q.json.decode, text)
    if not fine then q.error("format", ("%s: %s"):format(path, value.message)) end
    return value
  end
  local chunk, why = load(text, "=" .. path, "t", {})
  if not chunk then q.error("format", why) end
  local fine, value = pcall(chunk)
  if not fine then q.error("format", tostring(value)) end
  return value
end

-- A table with no other keys than these.
local function checked(who, value, names)
  if type(value) ~= "table" then q.error("format", ("%s is %s, expected a table"):format(who, tostring(value))) end
  local known = {}
  for _, name in ipairs(names) do known[name] = true end
  for key in pairs(value) do
    if not known[key] then
      local near = options.nearest(tostring(key), names)
      q.error("format", ("%s: unknown key %s; %s"):format(who, tostring(key), #near > 0
        and "did you mean " .. near[1] .. "?" or "there are " .. table.concat(names, ", ")))
    end
  end
  return value
end

local function size(who, name, value)
  if type(value) == "number" and value > 0 and value < math.huge then return value end
  local found = type(value) == "string" and q.try(options.convert, { name, nil, "", kind = "bytes" }, value)
  if found then return found end
  q.error("format", ("%s: %s is %s, expected a size, as 500M, 1.5G or a number"):format(who, name, tostring(value)))
end

local function peer_of(who, given)
  checked(who, given, fields)
  if type(given.name) ~= "string" then q.error("format", ("%s: expected a name"):format(who)) end
  who = ("%s (%s)"):format(who, given.name)
  local machine = given.machine and machines.find(tostring(given.machine)) or {}
  local peer = { name = given.name, coordinator = given.coordinator or nil }
  local published = { memory = machine.memory, bandwidth = machine.bandwidth, flops = machine.flops_bf16 }
  for _, name in ipairs { "memory", "bandwidth", "flops" } do
    local value = given[name] == nil and published[name] or given[name]
    if value == nil then
      q.error("format", ("%s: %s is missing; give it, or a machine, of which there are %s"):format(who, name,
        table.concat(machines.names(), ", ")))
    end
    peer[name] = size(who, name, value)
  end
  if given.coordinator then return peer end
  if given.link == nil then
    q.error("format", ("%s: link is missing: {latency = seconds, bandwidth = bytes a second} to the coordinator, "
      .. "which is the one with coordinator = true"):format(who))
  end
  local link = checked(who .. ": link", given.link, link_fields)
  if type(link.latency) ~= "number" or not (link.latency >= 0 and link.latency < math.huge) then
    q.error("format", ("%s: link.latency is %s, expected seconds, as 0.0002"):format(who, tostring(link.latency)))
  end
  peer.link = { latency = link.latency, bandwidth = size(who, "link.bandwidth", link.bandwidth) }
  return peer
end

-- The peers of a list, as a file has it. Errors begin with `from`.
function cluster.peers(list, from)
  local peers = {}
  if type(list) ~= "table" or #list == 0 then q.error("format", from .. ": expected a list of machines") end
  for key in pairs(list) do
    if type(key) ~= "number" or key < 1 or key > #list then
      q.error("format", ("%s: unknown key %s beside the list of machines"):format(from, tostring(key)))
    end
  end
  for i, given in ipairs(list) do peers[i] = peer_of(("%s: machine %d"):format(from, i), given) end
  return peers
end

function cluster.read(path) return cluster.peers(value_of(path, q.fs.read(path)), path) end

return cluster
