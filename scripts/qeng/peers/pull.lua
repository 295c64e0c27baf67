-- One file, or the list of a folder's files, by its hash from peers that have it on a shelf (peers/shelf.lua). Each
-- block is verified before it is written, and sources share the blocks as they are able: one that lies, lacks the file
-- or says nothing is left, one that is gone is asked again when it comes back. What came before is not asked for again.
--
--   local pull = pulls.new { peers = peers, sources = { peer }, hash = hash, folder = "cache" }
--   while not pull:done() do
--     local event = peers:wait(pull:tick())
--     if event then pull:take(event) end
--   end
--   if pull.files then ... else pull.partial:finish("model.safetensors") end

local progress = require "qeng.console.progress"
local q = require "qeng.core"
local rates = require "qeng.peers.rate"

local pulls = {}
local Pull = {}
Pull.__index = Pull

local silence = 30   -- seconds without any answer to what was asked, after which a source is left
local trickle = 2 ^ 16  -- bytes in that time that are more than signs of life: a block comes over a slow link
local doubled = 2    -- seconds a block is late, after which one who has nothing else to send is asked for it too
local idle = 0.25    -- seconds between calls of tick
local busy = 0.5     -- seconds until a file that another process receives is tried again
local block_bytes = 2 ^ 20

pulls.window = 8  -- blocks that one source is asked for at once

local last_request = 2 ^ 40  -- beyond those of others in this process, whose answers have other types too

-- opt:
--   peers     of q.peers.open
--   sources   numbers of peers
--   hash      of the file or the folder
--   folder    where it is received: HASH.part, HASH.noted
--   ranges    {{first, last}...} of bytes, in the order that they are wanted in; nil: all; {}: none before Pull:need
--   window    instead of pulls.window
--   rate      bytes a second, or what rates.new made, which several may share
--   patience  seconds to wait while no source is here, 30
--   progress  function(done, total), bytes
--   say       function(text): of sources that are left
--   verify    reads and verifies what came before
--   wait_busy   waits where another process receives the file, which is an error of code "busy" else
function pulls.new(opt)
  local self = setmetatable({
    peers = opt.peers, hash = opt.hash, folder = opt.folder, ranges = opt.ranges, window = opt.window or pulls.window,
    rate = type(opt.rate) == "table" and opt.rate or rates.new(opt.rate), patience = opt.patience or 30,
    progress = opt.progress or function() end, say = opt.say or function() end, verify = opt.verify,
    sources = {}, asked = {}, late = {}, wanted = {}, first = 1, last = 0, needed = {}, left = 0, total = 0,
    alone = q.time(), wait_busy = opt.wait_busy,
  }, Pull)
  for _, peer in ipairs(opt.sources) do self:add(peer) end
  return self
end

local function source_of(self, peer)
  for _, source in ipairs(self.sources) do
    if source.peer == peer then return source end
  end
end

-- One more source, if it is none yet.
function Pull:add(peer)
  if source_of(self, peer) then return end
  self.sources[#self.sources + 1] = { peer = peer, flying = 0, here = true, heard = q.time() }
end

-- ---------------------------------------------------------------- what is wanted

local function want(self, index)
  if self.needed[index] or self.partial:has(index) then return end
  self.needed[index], self.left, self.total = true, self.left + 1, self.total + 1
  self.last = self.last + 1
  self.wanted[self.last] = index
end

-- Also wants the blocks of these ranges of bytes; once the manifest is here.
function Pull:need(ranges)
  for _, range in ipairs(ranges) do
    for _, index in ipairs(self.partial:missing(range[1], range[2])) do want(self, index) end
  end
end

-- Wants these blocks, of those that are wanted, before others and in their order.
function Pull:hurry(indices)
  for i = #indices, 1, -1 do
    if self.needed[indices[i]] then
      self.first = self.first - 1
      self.wanted[self.first] = indices[i]
    end
  end
end

-- The next block to ask for. What is here, or came back to the list and was asked for again, is passed over.
local function next_wanted(self)
  while self.wanted[self.first] do
    local index = self.wanted[self.first]
    if self.needed[index] and not self.asked[index] then return index end
    self.wanted[self.first], self.first = nil, self.first + 1
  end
end

-- What was asked of a source is to be asked of others. Its answers may come all the same.
local function give_back(self, source)
  local lost = {}
  for what, request in pairs(self.asked) do
    if request.source == source then lost[#lost + 1] = what end
  end
  table.sort(lost, function(a, b) return tostring(a) > tostring(b) end)
  for _, what in ipairs(lost) do
    self.late[self.asked[what].id], self.asked[what] = source, nil
    if what ~= "manifest" then
      self.first = self.first - 1
      self.wanted[self.first] = what
    end
  end
  source.flying = 0
end

-- ---------------------------------------------------------------- sources

local function leave(self, source, why)
  give_back(self, source)
  source.left, source.here = why, false
  self.say(("peer %d is left: %s"):format(source.peer, why))
  local reasons = {}
  for _, each in ipairs(self.sources) do
    if not each.left then return end
    reasons[#reasons + 1] = ("peer %d: %s"):format(each.peer, each.left)
  end
  q.error("peer", ("no source is left of %s; %s"):format(self.hash, table.concat(reasons, "; ")))
end

-- Asks a source; false where it takes nothing now.
local function ask(self, source, what, frame)
  last_request = last_request + 1
  frame.request, frame.text = last_request, self.hash
  local fine, err = pcall(self.peers.send, self.peers, source.peer, frame)
  if not fine then
    if type(err) ~= "table" or err.code ~= "peer" and err.code ~= "full" then error(err, 0) end
    source.here = source.here and err.code ~= "peer"
    return false
  end
  local now = q.time()
  if source.flying == 0 then source.heard = now end
  source.flying = source.flying + 1
  self.asked[what] = { id = last_request, source = source, at = now, twice = self.asked[what] ~= nil }
  return true
end

-- Opens the file that blocks go into, or notes when to try again.
local function open_part(self)
  local fine, partial = pcall(q.blocks.partial, self.folder, self.manifest, { verify = self.verify })
  if not fine then
    if not self.wait_busy or type(partial) ~= "table" or partial.code ~= "busy" then error(partial, 0) end
    if not self.again then self.say(partial.message) end
    self.again = q.time() + busy
    return
  end
  self.partial = partial
  self:need(self.ranges or { { 0, math.max(0, self.manifest:size() - 1) } })
  local room = q.blocks.room(self.folder)
  if self.left * block_bytes > room then
    q.error("io", ("%s: %s are to come, and %s are free: make room, or give a folder on another disk"):format(
      self.folder, progress.bytes(self.left * block_bytes), progress.bytes(room)))
  end
end

local function begin(self, data)
  if data:sub(1, 12) == "qeng folder " then
    self.files = q.blocks.read_folder(data, self.hash)
    return
  end
  self.manifest = q.blocks.read_manifest(data, self.hash)
  open_part(self)
end

local takers = {}

function takers.manifest(self, source, event)
  if self.manifest or self.files then return end
  local fine, err = pcall(begin, self, event.frame:data())
  if not fine and type(err) == "table" and err.code == "format" then
    leave(self, source, err.message)
  elseif not fine then
    error(err, 0)
  end
end

function takers.block(self, source, event)
  local index = event.position
  local fine, err = pcall(self.partial.put, self.partial, index, event.frame)
  event.frame:free()
  if not fine and type(err) == "table" and err.code == "format" then return leave(self, source, err.message) end
  if not fine then error(err, 0) end
  if self.needed[index] then self.needed[index], self.left = nil, self.left - 1 end
end

function takers.lacking(self, source, event)
  local said = q.try(q.json.decode, event.text)
  local message = type(said) == "table" and said.message
  leave(self, source, type(message) == "string" and message:sub(1, 200):gsub("%c", "?") or "it lacks the file")
end

function takers.wait() end

-- Takes an answer to what was asked; returns whether the event was one. Others may want to see who is here and gone.
function Pull:take(event)
  local source = source_of(self, event.peer)
  if not source then return false end
  if event.kind ~= "frame" then
    give_back(self, source)
    source.here = event.kind == "here" and not source.left
    return false
  end
  local taker = takers[event.type]
  if not taker then return false end
  for what, request in pairs(self.asked) do
    if request.id == event.request and request.source == source then
      if event.type == "block" and what ~= event.position or event.type == "manifest" and what ~= "manifest" then
        leave(self, source, "it answers what was not asked")
        return true
      end
      source.heard, source.trickles = q.time(), 0
      taker(self, source, event)
      if not source.left and event.type ~= "wait" then self.asked[what], source.flying = nil, source.flying - 1 end
      return true
    end
  end
  local late = self.late[event.request]  -- asked of another since
  if late ~= source or event.type == "wait" then return false end
  self.late[event.request] = nil
  source.flying = math.max(0, source.flying - 1)
  if event.type == "block" and self.partial and not source.left then taker(self, source, event) end
  return true
end

-- ---------------------------------------------------------------- the clock

-- Does nothing come of it, for so long? Bytes of a block that is long under way count, as far as they can be that.
local function is_silent(self, source, now)
  if source.flying == 0 or now - source.heard <= silence then return false end
  local before, received = source.received or 0, self.peers:stats(source.peer).bytes_received
  source.trickles = (source.trickles or 0) + 1
  if received - before < trickle or source.trickles > 20 then return true end
  source.received, source.heard = received, now
end

-- A block that is late, for a source that has nothing else to send.
local function late_block(self, source, now)
  for index, request in pairs(self.asked) do
    if self.needed[index] and request.source ~= source and not request.twice and now - request.at > doubled then
      return index, request
    end
  end
end

-- Asks for what is wanted. Returns after how many seconds it wants to be called again.
function Pull:tick()
  if self:done() then return idle end
  local now, here, wait = q.time(), false, idle
  for _, source in ipairs(self.sources) do
    if source.here and is_silent(self, source, now) then
      leave(self, source, ("it has said nothing for %d s"):format(silence))
    end
    here = here or source.here
  end
  if here then self.alone = now end
  if now - self.alone > self.patience then
    q.error("peer", ("no source of %s has been here for %d s; what has come is kept, and the same command goes on from "
      .. "there"):format(self.hash, self.patience))
  end
  if self.again and not self.partial and now >= self.again then open_part(self) end
  repeat
    local sent = false
    for _, source in ipairs(self.sources) do
      if source.here and not self.partial then
        if not self.manifest and not self.asked.manifest then
          sent = ask(self, source, "manifest", { type = "have" }) or sent
        end
      elseif source.here and source.flying < self.window then
        local pause = self.rate:wait()
        local index, late = nil, nil
        if pause > 0 then wait = math.min(wait, pause) else index = next_wanted(self) end
        if not index and pause == 0 and source.flying == 0 then index, late = late_block(self, source, now) end
        if index and ask(self, source, index, { type = "blocks", position = index }) then
          if late then self.late[late.id] = late.source end
          self.rate:take(block_bytes)
          sent = true
        end
      end
    end
  until not sent
  if self.partial then
    local size = self.manifest:size()
    self.progress(math.min(size, (self.total - self.left) * block_bytes), math.min(size, self.total * block_bytes))
  end
  return wait
end

-- Where the file is: as long as the whole from the start, with what has come.
function Pull:path() return self.partial and self.partial:path() end

-- Lets go of the file, for others to go on with.
function Pull:close()
  if self.partial then self.partial:close() end
end

-- All that is wanted is here: of a folder, its list as Pull.files.
function Pull:done() return self.files ~= nil or self.partial ~= nil and self.left == 0 end

return pulls
