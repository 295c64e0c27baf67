-- Files and folders that peers push. What a peer may say:
--   push {name, hash, size, kind}      done {} once it is here, or lacking {code, message}
-- It is pulled from that peer into a folder under its name. Nothing that is there is replaced; what is there already
-- with the same hash is done at once.

local q = require "qeng.core"
local shelves = require "qeng.peers.shelf"
local trees = require "qeng.peers.tree"

local accepts = {}
local Accept = {}
Accept.__index = Accept

local most = 8           -- on their way at once
local most_sources = 64  -- of one: whoever is killed and asks again is another

-- opt: peers (q.peers.open), folder, rate (bytes a second, of each), say(text), patience (seconds that one waits for
-- who pushes it to come back: 60, as long as that one tries, deliveries.lua).
function accepts.new(opt)
  q.fs.mkdir(opt.folder)
  return setmetatable({
    peers = opt.peers, folder = opt.folder, rate = opt.rate, say = opt.say, patience = opt.patience or 60, coming = {},
  }, Accept)
end

-- Answers all who push it.
local function answer(self, offer, type, said)
  for _, asked in ipairs(offer.asked) do
    pcall(self.peers.send, self.peers, asked.peer, {
      type = type, request = asked.request, text = q.json.encode(said),
    })
  end
end

local function refuse(self, offer, err)
  local code, message = "internal", tostring(err)
  if type(err) == "table" then code, message = err.code, err.message end
  if code == "interrupted" then error(err, 0) end
  self.say(("%s is not taken: %s"):format(offer.name, message))
  answer(self, offer, "lacking", { code = code, message = message })
end

local function checked(event)
  local said = q.json.decode(event.text)
  local name, hash = type(said) == "table" and said.name, type(said) == "table" and said.hash
  if type(name) ~= "string" or type(hash) ~= "string" or not hash:find("^" .. ("[%da-f]"):rep(64) .. "$") then
    q.error("format", "what is pushed has a name and a hash of 64 hex digits")
  end
  q.blocks.check_path(name)
  if name:find "^%." or name:find "/" then
    q.error("value", name .. " is pushed under a name that is hidden or in another folder")
  end
  return name, hash
end

local function begin(self, offer)
  local path, before = self.folder .. "/" .. offer.name, self.coming[offer.name]
  if before and before.hash == offer.hash and #before.asked < most_sources then
    before.asked[#before.asked + 1] = offer.asked[1]
    before.tree:add(offer.asked[1].peer)
    return
  elseif before then
    q.error("busy", offer.name .. " is coming from another peer: try again later")
  elseif q.fs.kind(path) then
    local here = shelves.new {}:add(path)
    if here.hash ~= offer.hash then
      q.error("value", offer.name .. " is there already and holds something else: push under another name")
    end
    return answer(self, offer, "done", {})
  end
  local count = 0
  for _ in pairs(self.coming) do count = count + 1 end
  if count >= most then q.error("busy", ("%d files are coming already: try again later"):format(count)) end
  offer.tree = trees.new {
    peers = self.peers, sources = { offer.asked[1].peer }, hash = offer.hash, to = path, rate = self.rate,
    patience = self.patience, say = self.say,
  }
  self.coming[offer.name] = offer
  self.say(offer.name .. " is coming")
end

-- Runs fn for an offer; if that fails, the offer is refused.
local function attempt(self, offer, fn, ...)
  local fine, result = pcall(fn, ...)
  if fine then return result end
  self.coming[offer.name] = nil
  offer.tree:close()
  refuse(self, offer, result)
end

-- Takes an event that is about what is pushed; returns whether it was.
function Accept:take(event)
  if event.kind == "frame" and event.type == "push" then
    local offer = {
      name = "what peer " .. event.peer .. " pushes", asked = { { peer = event.peer, request = event.request } },
    }
    local fine, err = pcall(function()
      offer.name, offer.hash = checked(event)
      begin(self, offer)
    end)
    if not fine then refuse(self, offer, err) end
    return true
  end
  local taken = false
  for _, offer in pairs(self.coming) do
    taken = attempt(self, offer, offer.tree.take, offer.tree, event) or taken
  end
  return taken
end

-- Returns after how many seconds it wants to be called again.
function Accept:tick()
  local wait = math.huge
  for name, offer in pairs(self.coming) do
    wait = math.min(wait, attempt(self, offer, offer.tree.tick, offer.tree) or wait)
    if offer.tree:done() then
      self.coming[name] = nil
      self.say(name .. " is here, whole and verified")
      answer(self, offer, "done", {})
    end
  end
  return wait
end

return accepts
