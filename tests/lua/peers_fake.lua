-- A network of workers in one process, for tests of peers: what q.peers gives, without sockets. Workers compute when
-- the coordinator waits. fake.faults[peer] = function(frame) may end a worker ("gone"), let it hang ("silent") or
-- change what it is asked.
local q = require "qeng"
local workers = require "qeng.peers.worker"

local fake = {}
local types = q.fs.read "engine/peers/frame.h"  -- what q.peers would send

-- What came in a frame: of a tensor or of another such frame.
local function received(data)
  if type(data) == "table" then return data end
  if type(data) == "string" then return { bytes = function() return #data end, free = function() end } end
  local bytes = data and q.keep(q.pages.bytes(data:reshape { data:shape()[1], 1, -1 }):clone())
  return {
    bytes = function() return bytes:elements() end,
    free = function() end,
    tensor = function(_, shape, dtype)
      local x = q.empty(shape, dtype)
      local to = q.pages.bytes(x:reshape { shape[1], 1, -1 })
      assert(to:elements() == bytes:elements(), "a frame of another size")
      to:copy(bytes)
      return x
    end,
  }
end

-- names: of workers. files: what peers/files.lua is to them and to the coordinator.
function fake.new(names, files)
  local net = { events = {}, workers = {}, faults = {}, frames = {} }

  local function connect(peer)
    local transport = {
      send = function(_, _, frame)
        if net.workers[peer] then
          net.events[#net.events + 1] = {
            kind = "frame", peer = peer, type = frame.type, request = frame.request or 0, epoch = frame.epoch or 0,
            position = frame.position or 0, text = frame.text or "", frame = received(frame.data),
          }
        end
      end,
    }
    net.workers[peer] = workers.new {
      peers = transport, files = files, name = names[peer], memory = 1e12,
      limits = { bandwidth = 1e10, flops_f32 = 1e11 },
    }
    net.workers[peer]:take { kind = "here", peer = 1, name = "coordinator" }
    net.events[#net.events + 1] = { kind = "here", peer = peer, name = names[peer] }
  end
  net.connect = connect

  function net.lose(peer)
    if net.workers[peer] then net.workers[peer]:take { kind = "gone", peer = 1, why = "lost" } end
    net.workers[peer] = nil
    net.events[#net.events + 1] = { kind = "gone", peer = peer, why = "no sign of life" }
  end

  function net.add(name) names[#names + 1] = name end

  local coordinator = {}
  function coordinator.dial(_, address)
    for peer, name in ipairs(names) do
      if name == address then
        connect(peer)
        return peer
      end
    end
  end
  function coordinator.send(_, peer, frame)
    if not net.workers[peer] then q.error("peer", "it is gone") end
    assert(types:find(('"%s"'):format(frame.type), 1, true), frame.type .. " is no type of frame")
    local fault = net.faults[peer]
    local what = fault and fault(frame)
    if what == "gone" then net.lose(peer) return end
    net.frames[#net.frames + 1] = frame.type
    if what == "silent" then return end
    net.workers[peer]:take {
      kind = "frame", peer = 1, type = frame.type, request = frame.request or 0, epoch = frame.epoch or 0,
      position = frame.position or 0, text = frame.text or "", frame = received(frame.data),
    }
  end
  function coordinator.wait() return table.remove(net.events, 1) end
  net.peers = coordinator
  return net
end

-- Files that are all here: one model at a path. lacking: the workers do not say so.
function fake.files(path, lacking)
  return {
    about = function() return { hash = "m", name = "model" } end, path = function(_, about) return about.at or path end,
    hashes = function() return lacking and {} or { "m" } end, hash = function() return "m" end,
    take = function() return false end, tick = function() return 1 end,
    add = function(_, adapter) return { at = adapter } end, check = function() end, sent = function() return 0 end,
  }
end

return fake
