-- The options of recipes/worker.lua, and the worker that they say.

local devices = require "qeng.console.devices"
local files = require "qeng.peers.files"
local options = require "qeng.console.options"
local q = require "qeng.core"
local workers = require "qeng.peers.worker"

options.set("worker", {
  { "listen", "0.0.0.0:28766", "where to listen: HOST:PORT, port 0 for any that is free" },
  { "model", {}, "models on this disk, which then need not be sent: folders or .gguf files, with commas between",
    kind = "input" },
  { "cache", nil, "folder for what is sent, by default ~/.cache/qeng/peers", kind = "folder" },
  { "keys", nil, "folder of keys, by default ~/.config/qeng/keys" },
  { "silent", false, "send no beacon: only who knows the address finds this worker" },
  "weights",
})

-- A worker from parsed options of the set "worker", and the address that it listens at.
return function(opt)
  local keys = q.keys { folder = opt.keys }
  -- On a runtime of their own: they take memory for a moment, which a small budget would not leave.
  local measuring = q.runtime { device = opt.device, threads = opt.threads > 0 and opt.threads or nil }
  local limits, device = measuring:use(q.limits), devices.in_use()
  measuring:free()
  local transport = q.peers.open { keys = opt.keys, listen = opt.listen }
  local worker = workers.new {
    peers = transport, files = files.of_worker(opt.model, opt.cache, transport, print), name = keys.name,
    memory = math.min(device.free, opt.device_budget or math.huge), limits = limits, weights = opt.weights,
    say = print,
  }
  local host = opt.listen:match "^(.*):%d+$" or opt.listen
  if not opt.silent then
    worker.beacon = q.peers.beacon { peers = transport }
    worker:look_for_networks()
  end
  return worker, ("%s:%d"):format(host, transport:port())
end
