-- What this process offers to its peers: files and folders, by the hashes of engine/blocks. What a peer may ask:
--   list {}                                   files     text: [{hash, name, size, kind}], what is offered by name
--   have    text: a hash                      manifest  data: the manifest of a file, or the list of a folder's files
--   blocks  text: a hash, position: index     block     position: index, data: its bytes
-- What cannot be given is answered by lacking {code, message}. Nothing is read that is not on the shelf.
--
--   local shelf = shelves.new { peers = peers, rate = 100e6 }
--   shelf:add("out/adapter")
--   while true do
--     local event = peers:wait(shelf:tick())
--     if event then shelf:take(event) end
--   end

local q = require "qeng.core"
local rates = require "qeng.peers.rate"
local user = require "qeng.console.user"

local shelves = {}
local Shelf = {}
Shelf.__index = Shelf

local most_waiting = 64  -- blocks that a peer may have asked for and not got
local full = 0.005       -- seconds until one that does not take what it gets is tried again
local idle = 0.25

-- opt: peers (q.peers.open); rate: bytes a second to all together; watch(path, done, total): while files are read;
-- cache: a folder for manifests of large files.
function shelves.new(opt)
  return setmetatable({
    peers = opt.peers, rate = rates.new(opt.rate), watch = opt.watch,
    cache = opt.cache or user.cache_dir() .. "/manifests", by_hash = {}, named = {},
    waiting = {}, turn = {}, sent = 0,
  }, Shelf)
end

-- ---------------------------------------------------------------- what is on it

local function manifest_of(self, path)
  return q.blocks.manifest(path, {
    cache = self.cache,
    watch = self.watch and function(done, total) self.watch(path, done, total) end,
  })
end

-- The files of a folder, without hidden ones. Links may point inside `root` alone.
local function walk(root, folder, prefix, found)
  for _, name in ipairs(q.fs.list(folder)) do
    local path = folder .. "/" .. name
    local real = name:sub(1, 1) ~= "." and (q.fs.real(path)
      or q.error("io", path .. " is a link to nothing: delete it, or offer a copy without it"))
    if real and real:sub(1, #root + 1) ~= root .. "/" then
      q.error("value", path .. " is a link that leads out of the folder, which is offered without it: offer a copy")
    end
    if real and q.fs.kind(real) == "dir" then
      if #prefix > 1000 then q.error("value", path .. " is nested too deeply: does a link lead to its own folder?") end
      walk(root, path, prefix .. name .. "/", found)
    elseif real then
      found[#found + 1] = { path = real, name = prefix .. name }
    end
  end
  return found
end

-- A folder as Hugging Face's tools keep it holds links to ../../blobs.
local function root_of(folder)
  local real = q.fs.real(folder)
  return real:match "^(.*)/snapshots/[^/]+$" or real
end

-- Offers a file by its hash alone: returns its manifest.
function Shelf:offer(path)
  local manifest = manifest_of(self, path)
  self.by_hash[manifest:hash()] = { path = path, manifest = manifest }
  return manifest
end

-- Offers a file or folder, by its own name or another: returns {hash, name, size, kind}.
function Shelf:add(path, name)
  local kind = q.fs.kind(path) or q.error("io", path .. ": no such file or folder")
  local item = { name = name or q.fs.real(path):match "[^/]*$", kind = kind == "dir" and "folder" or "file" }
  if kind == "file" then
    local manifest = manifest_of(self, path)
    item.hash, item.size = manifest:hash(), manifest:size()
    self.by_hash[item.hash] = { path = path, manifest = manifest }
  else
    local names, manifests = {}, {}
    item.size = 0
    for i, file in ipairs(walk(root_of(path), q.fs.real(path), "", {})) do
      names[i], manifests[i] = file.name, manifest_of(self, file.path)
      item.size = item.size + manifests[i]:size()
      self.by_hash[manifests[i]:hash()] = { path = file.path, manifest = manifests[i] }
    end
    local text, hash = q.blocks.folder(names, manifests)
    item.hash, self.by_hash[hash] = hash, { text = text }
  end
  self.named[#self.named + 1] = item
  return item
end

-- ---------------------------------------------------------------- what is asked

local function send(self, peer, frame)
  local fine, err = pcall(self.peers.send, self.peers, peer, frame)
  if not fine and (type(err) ~= "table" or err.code ~= "peer" and err.code ~= "full") then error(err, 0) end
end

local function lacking(self, event, code, message)
  send(self, event.peer, {
    type = "lacking", request = event.request, text = q.json.encode { code = code, message = message },
  })
end

local answers = {}

function answers.list(self, event)
  send(self, event.peer, {
    type = "files", request = event.request, text = q.json.encode(q.json.array(self.named)),
  })
end

function answers.have(self, event)
  local entry = self.by_hash[event.text]
  if not entry then return lacking(self, event, "value", "it does not have this file") end
  send(self, event.peer, {
    type = "manifest", request = event.request, data = entry.text or entry.manifest:text(),
  })
end

function answers.blocks(self, event)
  local entry, waiting = self.by_hash[event.text], self.waiting[event.peer]
  if not entry or not entry.manifest or event.position >= entry.manifest:count() then
    return lacking(self, event, "value", "it does not have this block")
  end
  if not waiting then
    waiting = { first = 1, last = 0 }
    self.waiting[event.peer], self.turn[#self.turn + 1] = waiting, event.peer
  end
  if waiting.last - waiting.first + 1 >= most_waiting then
    return lacking(self, event, "busy", ("over %d blocks are asked for at once"):format(most_waiting))
  end
  waiting.last = waiting.last + 1
  waiting[waiting.last] = { entry = entry, request = event.request, index = event.position }
  self:tick()
end

-- Does what an event asks of the shelf; returns whether it did.
function Shelf:take(event)
  if event.kind ~= "frame" then self.waiting[event.peer] = nil return false end
  local answer = answers[event.type]
  if not answer then return false end
  answer(self, event)
  return true
end

-- Sends blocks, one to each peer in turn, as far as the rate and the peers allow. Returns after how many seconds it
-- wants to be called again.
function Shelf:tick()
  local blocked = 0
  while #self.turn > blocked do
    local wait = self.rate:wait()
    if wait > 0 then return wait end
    local peer = table.remove(self.turn, 1)
    local waiting = self.waiting[peer]
    local asked = waiting and waiting[waiting.first]
    if not asked then
      self.waiting[peer] = nil
    elseif self.peers:room(peer) < 2 ^ 21 then
      self.turn[#self.turn + 1], blocked = peer, blocked + 1
    else
      self.turn[#self.turn + 1], blocked = peer, 0
      waiting[waiting.first], waiting.first = nil, waiting.first + 1
      local bytes = q.try(q.blocks.block, asked.entry.path, asked.index)
      if bytes then
        send(self, peer, { type = "block", request = asked.request, position = asked.index, data = bytes })
        self.rate:take(bytes:bytes())
        self.sent = self.sent + bytes:bytes()
        bytes:free()
      else
        lacking(self, { peer = peer, request = asked.request }, "io", "it cannot be read any more")
      end
    end
  end
  return blocked > 0 and full or idle
end

return shelves
