-- What this process offers to its peers: files and folders, by the hashes of engine/blocks. What a peer may ask:
--   list {}                                   files     text: [{hash, name, size, kind}], what is offered by name;
--                                                       data instead of text, where that is over 1 MiB
--   have    text: a hash                      manifest  data: the manifest of a file, or the list of a folder's files
--   blocks  text: a hash, position: index     block     position: index, data: its bytes
-- What cannot be given is answered by lacking {code, message}; what is kept waiting by a rate, now and then by wait {}.
-- Nothing is read that is not on the shelf.
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
local sign = 10          -- seconds without a block, after which who waits for one is told to
local most_text = 2 ^ 20 -- bytes of a frame's

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

-- What a file or folder is called: a link by its own name. "." and ".." are none.
local function name_of(path)
  local name = path:match "([^/]+)/*$"
  if not name or name == "." or name == ".." then name = q.fs.real(path):match "[^/]*$" end
  local fine = pcall(q.blocks.check_path, name) and pcall(q.json.encode, name)
  if not fine then
    q.error("value", ("%q: its name is none that a peer can ask for: UTF-8 of at most 240 bytes, without control "
      .. "characters and backslashes; rename it"):format(path))
  end
  return name
end

-- Offers a file or folder, by its own name or another: returns {hash, name, size, kind}.
function Shelf:add(path, name)
  local kind = q.fs.kind(path) or q.error("io", path .. ": no such file or folder")
  local item = { name = name or name_of(path), kind = kind == "dir" and "folder" or "file" }
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

local passed_over = { peer = true, full = true, value = true }  -- it is gone, or takes no frame of this length

local function send(self, peer, frame)
  local fine, err = pcall(self.peers.send, self.peers, peer, frame)
  if not fine and not (type(err) == "table" and passed_over[err.code]) then error(err, 0) end
end

local function lacking(self, event, code, message)
  send(self, event.peer, {
    type = "lacking", request = event.request, text = q.json.encode { code = code, message = message },
  })
end

local answers = {}

function answers.list(self, event)
  local text = q.json.encode(q.json.array(self.named))
  local long = #text > most_text
  send(self, event.peer, {
    type = "files", request = event.request, text = long and "" or text, data = long and text or nil,
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
    waiting = { first = 1, last = 0, told = q.time() }
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

-- Tells those whose blocks a rate holds up that they come.
local function tell_waiting(self)
  local now = q.time()
  for peer, waiting in pairs(self.waiting) do
    local asked = waiting[waiting.first]
    if asked and now - waiting.told > sign then
      waiting.told = now
      send(self, peer, { type = "wait", request = asked.request })
    end
  end
end

-- Sends blocks, one to each peer in turn, as far as the rate and the peers allow. Returns after how many seconds it
-- wants to be called again.
function Shelf:tick()
  local blocked = 0
  while #self.turn > blocked do
    local wait = self.rate:wait()
    if wait > 0 then
      tell_waiting(self)
      return math.min(wait, sign)
    end
    local peer = table.remove(self.turn, 1)
    local waiting = self.waiting[peer]
    local asked = waiting and waiting[waiting.first]
    if not asked then
      self.waiting[peer] = nil
    elseif self.peers:room(peer) < 2 ^ 21 then
      self.turn[#self.turn + 1], blocked = peer, blocked + 1
    else
      self.turn[#self.turn + 1], blocked = peer, 0
      waiting[waiting.first], waiting.first, waiting.told = nil, waiting.first + 1, q.time()
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
