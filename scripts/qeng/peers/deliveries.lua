-- Files and folders between machines, as recipes/packets.lua has them: serve, pull and push. Who may connect is said by
-- keys (q.keys). What arrives is verified block by block, and appears whole or not at all; the same command again goes
-- on from where it was cut.

local accepts = require "qeng.peers.accept"
local options = require "qeng.console.options"
local progress = require "qeng.console.progress"
local q = require "qeng.core"
local shelves = require "qeng.peers.shelf"
local tell_strangers = require "qeng.peers.strangers"
local trees = require "qeng.peers.tree"

local deliveries = {}

local patience = 10  -- seconds for a peer to answer
local gone_for = 60  -- seconds that a transfer waits for the last peer to come back

options.set("delivery", {
  { "rate", nil, "the most bytes a second, as 100M", kind = "bytes" },
  { "keys", nil, "folder of keys, by default ~/.config/qeng/keys" },
})
options.set("delivery_serve", {
  { "listen", "0.0.0.0:28767", "where to listen: HOST:PORT, port 0 for any that is free" },
  { "accept", nil, "folder for what known peers push; without it nothing is taken" },
  "delivery",
})
options.set("delivery_pull", {
  { "what", nil, "its name as a peer offers it, or its hash", required = true },
  { "from", {}, "who is asked, together: HOST:PORT,..." },
  { "to", nil, "where it shall be, by default here under its name" },
  "delivery",
})
options.set("delivery_push", {
  { "to", nil, "who is asked to take it: HOST:PORT", required = true },
  "delivery",
})

local function say(text) io.stderr:write(text, "\n") end

-- Bytes a second and what is left, as a line.
local function liner()
  local speak, began, first = progress.new(), q.time(), nil
  return function(done, total)
    first = first or done
    if done == first then return end
    if q.time() < began + 0.5 and done < total then return end  -- too early to tell how fast it is
    local speed = (done - first) / math.max(q.time() - began, 1e-3)
    local text = ("%s of %s, %s/s"):format(progress.bytes(math.min(done, total)), progress.bytes(total),
      progress.bytes(math.floor(speed)))
    if speed > 0 and done < total then text = text .. ", " .. progress.duration((total - done) / speed) .. " left" end
    speak:line(text)
  end, speak
end

local function offers(opt, peers)
  local shelf = shelves.new { peers = peers, rate = opt.rate }
  for _, path in ipairs(opt.paths) do
    local item = shelf:add(path)
    say(("%s  %s  %s"):format(item.hash, progress.bytes(item.size), item.name))
  end
  return shelf
end

-- ---------------------------------------------------------------- serve

-- opt: paths, listen, accept, rate, keys. Serves until it is told to end.
function deliveries.serve(opt)
  local peers = q.peers.open { keys = opt.keys, listen = opt.listen }
  local shelf = offers(opt, peers)
  local accept = opt.accept and accepts.new { peers = peers, folder = opt.accept, rate = opt.rate, say = say }
  if not accept and #opt.paths == 0 then
    q.error("usage", "serve: give files or folders to offer, or --accept with a folder for what is pushed")
  end
  say(("listening at %s:%d"):format(opt.listen:match "^(.*):%d+$", peers:port()))
  local names = {}
  q.host.defer_interrupt(true)
  while not q.host.interrupted() do
    local event = peers:wait(math.min(1, shelf:tick(), accept and accept:tick() or math.huge))
    tell_strangers(peers, say)
    if event then
      if event.kind == "here" then names[event.peer] = event.name end
      if event.kind ~= "frame" then
        say(("%s is %s%s"):format(names[event.peer] or "a peer", event.kind, event.why and ": " .. event.why or ""))
      end
      local taken = shelf:take(event)
      if accept then taken = accept:take(event) or taken end
      if event.kind == "frame" and not taken then
        pcall(peers.send, peers, event.peer, { type = "lacking", request = event.request, text = q.json.encode {
          code = "value", message = event.type == "push" and "it takes nothing" or "it answers no " .. event.type } })
      end
    end
  end
  q.host.defer_interrupt(false)
  peers:close()
end

-- ---------------------------------------------------------------- pull

-- Dials addresses, and waits until all are here, or some for a while. Returns their numbers.
function deliveries.meet(peers, addresses)
  local numbers, here, began = {}, {}, q.time()
  for i, address in ipairs(addresses) do numbers[i] = peers:dial(address) end
  local function count()
    local sum = 0
    for _ in pairs(here) do sum = sum + 1 end
    return sum
  end
  while count() < #numbers and q.time() - began < (count() > 0 and patience / 5 or patience) do
    local event = peers:wait(0.1)
    if event and event.kind ~= "frame" then here[event.peer] = event.kind == "here" or nil end
  end
  for i, address in ipairs(addresses) do
    if not here[numbers[i]] then say(address .. " does not answer; it takes part when it does") end
  end
  if count() == 0 then
    q.error("peer", "nobody answers: see that recipes/packets.lua serve runs there, that its port is open, and that "
      .. "each side knows the other's key (q.keys)")
  end
  return numbers, here
end

-- The hash and name of what is offered as `what`, by its name or hash.
function deliveries.find(peers, here, what)
  local asked, found, names, until_ = 0, {}, {}, q.time() + patience
  for peer in pairs(here) do
    peers:send(peer, { type = "list", request = 1 })
    asked = asked + 1
  end
  while asked > 0 and q.time() < until_ do
    local event = peers:wait(0.1)
    if event and event.kind == "gone" and here[event.peer] then asked = asked - 1 end
    if event and event.type == "files" then
      asked = asked - 1
      local list = q.try(q.json.decode, event.text ~= "" and event.text or event.frame:data())
      for _, item in ipairs(type(list) == "table" and list or {}) do
        if type(item) == "table" and type(item.name) == "string" and type(item.hash) == "string"
          and q.try(function() q.blocks.check_path(item.name) return true end) then
          names[#names + 1] = item.name
          if item.name == what or item.hash == what then found[item.hash] = item.name end
        end
      end
    end
  end
  local hash, name = next(found)
  if not hash and what:find("^" .. ("[%da-f]"):rep(64) .. "$") then return what end  -- perhaps a file of a folder
  if not hash then
    local some = table.concat(names, ", ", 1, math.min(20, #names))
    q.error("value", ("nobody offers %s; there are: %s"):format(what, some))
  end
  if next(found, hash) then
    q.error("value", ("%s is not the same for all who offer it (%s, %s): ask for a hash"):format(what, hash,
      (next(found, hash))))
  end
  return hash, name
end

-- opt: what, from, to, rate, keys.
function deliveries.pull(opt)
  if #opt.from == 0 then q.error("usage", "pull: --from says who is asked: HOST:PORT,...") end
  local peers = q.peers.open { keys = opt.keys }
  local numbers, here = deliveries.meet(peers, opt.from)
  local hash, name = deliveries.find(peers, here, opt.what)
  local to = opt.to or name or q.error("usage", "pull: --to says where a file that has a hash alone shall be")
  local line, speak = liner()
  local tree = trees.new {
    peers = peers, sources = numbers, hash = hash, to = to, rate = opt.rate, patience = gone_for, progress = line,
    say = function(text) speak:say(text) end,
  }
  while not tree:done() do
    local event = peers:wait(tree:tick())
    for i, peer in ipairs(numbers) do
      if event and event.peer == peer and event.kind ~= "frame" then
        speak:say(("%s is %s%s"):format(opt.from[i], event.kind, event.why and ": " .. event.why or ""))
      end
    end
    if event then tree:take(event) end
  end
  speak:finish()
  say(("%s is here, whole and verified: %s"):format(to, hash))
  peers:close()
end

-- ---------------------------------------------------------------- push

-- opt: paths, to, rate, keys.
function deliveries.push(opt)
  local peers = q.peers.open { keys = opt.keys }
  local shelf = offers(opt, peers)
  local items, left, total, since = shelf.named, #shelf.named, 0, q.time()
  for _, item in ipairs(items) do total = total + item.size end
  local peer, here, line, speak = peers:dial(opt.to), false, liner()
  while left > 0 do
    local event = peers:wait(shelf:tick())
    if not here and q.time() - since > gone_for then
      q.error("peer", opt.to .. " does not answer; what it has is kept, and the same command goes on from there")
    end
    if event and event.kind == "here" then
      here = true
      for i, item in ipairs(items) do
        if not item.done then peers:send(peer, { type = "push", request = i, text = q.json.encode(item) }) end
      end
    elseif event and event.kind == "gone" then
      here, since = false, q.time()
      speak:say(("%s is gone: %s"):format(opt.to, event.why))
    elseif event and event.type == "done" and items[event.request] and not items[event.request].done then
      items[event.request].done, left = true, left - 1
    elseif event and (event.type == "lacking" or event.type == "error") and items[event.request] then
      local said = q.try(q.json.decode, event.text)
      q.error("peer", ("%s does not take %s: %s"):format(opt.to, items[event.request].name,
        type(said) == "table" and type(said.message) == "string" and said.message:gsub("%c", "?") or "it says not why"))
    end
    if event then shelf:take(event) end
    if here then line(shelf.sent, total) end
  end
  speak:finish()
  say(("%s has it, whole and verified"):format(opt.to))
  peers:close()
end

return deliveries
