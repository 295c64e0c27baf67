-- Files between peers (scripts/qeng/peers/shelf.lua, pull.lua, tree.lua, accept.lua): what arrives, through cuts and
-- from sources that lie. All peers are in this process, over the real transport.
local accepts = require "qeng.peers.accept"
local deliveries = require "qeng.peers.deliveries"
local files = require "qeng.peers.files"
local pulls = require "qeng.peers.pull"
local q = require "qeng"
local scratch = require "scratch"
local shelves = require "qeng.peers.shelf"
local trees = require "qeng.peers.tree"

local dir = scratch.folder
local keys = dir .. "/keys"
local ok, client = pcall(q.peers.open, { keys = keys })
if not ok then
  assert(client.code == "unsupported", client.message)
  return print("SKIPPED: " .. client.message)
end

local block = 2 ^ 20

-- So many bytes, each block another.
local function write(path, size)
  local pieces, x = {}, size
  for i = 1, math.ceil(size / 65536) do
    local numbers = {}
    for j = 1, 16 do
      x = (x * 16807 + i) % 2147483647
      numbers[j] = ("%08x"):format(x)
    end
    pieces[i] = table.concat(numbers):rep(512)
  end
  local text = table.concat(pieces):sub(1, size)
  q.fs.write(path, text)
  return text
end

-- A peer with a shelf, at a port that stays.
local Server = {}
Server.__index = Server
local function serve(port)
  local self = setmetatable({}, Server)
  local began = q.time()
  repeat  -- a port is free a while after it was closed
    self.peers = q.try(q.peers.open, { keys = keys, listen = "127.0.0.1:" .. (port or 0) })
  until self.peers or q.time() - began > 10
  self.port, self.shelf = self.peers:port(), shelves.new { peers = self.peers, cache = dir .. "/manifests" }
  return self
end
function Server:step()
  local event = self.peers:wait(0)
  while event do
    if not self.shelf:take(event) and self.accept then self.accept:take(event) end
    event = self.peers:wait(0)
  end
  self.shelf:tick()
  if self.accept then self.accept:tick() end
end

-- Steps servers and what receives until that is done, or until stop() says so.
local function run(receiver, servers, stop)
  local began = q.time()
  while not receiver:done() and not (stop and stop()) do
    assert(q.time() - began < 60, "it takes too long")
    for _, server in ipairs(servers) do server:step() end
    receiver:tick()
    local event = client:wait(0.001)
    if event then receiver:take(event) end
  end
end

local function dial(server)
  local peer = client:dial("127.0.0.1:" .. server.port)
  local event
  repeat
    server:step()
    event = client:wait(0.01)
  until event and event.kind == "here" and event.peer == peer
  return peer
end

local function receive(opt)
  opt.peers, opt.folder, opt.say = client, opt.folder or dir .. "/in", opt.say or function() end
  return pulls.new(opt)
end

local function fails(code, words, fn, ...)
  local fine, err = pcall(fn, ...)
  assert(not fine, "expected an error: " .. words)
  assert(err.code == code and err.message:find(words, 1, true), tostring(err.code) .. ": " .. tostring(err.message))
end

local big = write(dir .. "/big", 64e6 + 1)
local server = serve()
local item = server.shelf:add(dir .. "/big")
local peer = dial(server)

-- A file of 64 MB arrives to the bit through cuts: the source goes and comes back, or the receiver begins anew.
do
  local blocks, sent, pull = math.ceil(#big / block), 0, nil
  for cut = 1, 6 do
    pull = pull or receive { sources = { peer }, hash = item.hash }
    local from = pull.partial and pull.partial:here() or 0
    run(pull, { server }, function() return pull.partial and pull.partial:here() >= from + 9 end)
    assert(not pull:done(), "cut before it was whole")
    sent = sent + server.shelf.sent
    if cut % 2 == 0 then
      pull:close()
      pull = nil
    end
    server.peers:close()
    server = serve(server.port)
    server.shelf:add(dir .. "/big")
  end
  pull = receive { sources = { peer }, hash = item.hash }
  run(pull, { server })
  sent = sent + server.shelf.sent
  pull.partial:finish(dir .. "/arrived")
  assert(q.fs.read(dir .. "/arrived") == big)
  assert(#q.fs.list(dir .. "/in") == 0)
  assert(sent <= (blocks + 6 * 8) * block, "what came before a cut was sent again")  -- but for 8 in flight at each
end

-- A worker's files: beside steps a block at a time, and as many as for any other pull where all wait for them.
do
  local about = { hash = item.hash, files = { { path = "big", hash = item.hash, spans = { 0, 12 * block - 1 } } } }
  for _, beside in ipairs { true, false } do
    local flying, most, transport = 0, 0, {}
    function transport:send(to, frame)  -- luacheck: ignore self
      if frame.type == "blocks" then flying = flying + 1 end
      most = math.max(most, flying)
      return client:send(to, frame)
    end
    local worker = files.of_worker({}, dir .. "/worker_" .. tostring(beside), transport)
    local path = worker:path(about, peer, function(seconds)
      server:step()
      local event = client:wait(math.min(seconds, 0.001))
      if event and event.kind == "frame" and event.type == "block" then flying = flying - 1 end
      if event then worker:take(event) end
    end, beside)
    assert(most == (beside and 1 or 8), most)
    local file = io.open(path, "rb")
    assert(file:read(12 * block) == big:sub(1, 12 * block))
    file:close()
  end
end

-- Where a worker's files are, answering from these servers meanwhile.
local function path_of(worker, about, from, servers, each)
  local began = q.time()
  return worker:path(about, from, function(seconds)
    assert(q.time() - began < 20, "it takes too long")
    for _, one in ipairs(servers) do one:step() end
    local event = client:wait(math.min(seconds, 0.001))
    if event then worker:take(event) end
    if each then each() end
  end)
end

-- What lies on a worker's disk is looked at again before it is used, all parts of a split file; else it is sent.
do
  local name, own = "m-00001-of-00002.gguf", dir .. "/own"
  for _, folder in ipairs { own, dir .. "/given" } do
    q.fs.mkdir(folder)
    write(folder .. "/" .. name, 3000)
    write(folder .. "/m-00002-of-00002.gguf", 5000)
  end
  local model = files.of_worker({}, nil, client)
  local told = model:add(dir .. "/given/" .. name)
  for _, file in ipairs(told.files) do server.shelf:offer(dir .. "/given/" .. file.path) end
  local worker = files.of_worker({ own .. "/" .. name }, dir .. "/cache", client)
  assert(#told.files == 2 and path_of(worker, told, peer, { server }) == own .. "/" .. name)
  for _, change in ipairs { "replaced", "deleted" } do
    if change == "replaced" then write(own .. "/m-00002-of-00002.gguf", 5001) else q.fs.remove(own .. "/" .. name) end
    local path = path_of(worker, told, peer, { server })
    assert(path:find(dir .. "/cache/", 1, true) and path:match "[^/]+$" == name, path)
    assert(q.fs.read((path:gsub("00001", "00002", 1))) == q.fs.read(dir .. "/given/m-00002-of-00002.gguf"))
  end
  model:check(dir .. "/given/" .. name, told.hash)
  write(dir .. "/given/m-00002-of-00002.gguf", 4000)
  fails("io", "has changed since it was loaded", model.check, model, dir .. "/given/" .. name, told.hash)
end

-- A file that another process receives into the same cache is waited for.
do
  local cache, said = dir .. "/shared_cache", {}
  local about = { hash = item.hash, files = { { path = "big", hash = item.hash, spans = { 0, 1 } } } }
  q.fs.mkdir(cache)
  local other = q.blocks.partial(cache, q.blocks.manifest(dir .. "/big"))
  local worker = files.of_worker({}, cache, client, function(text) said[#said + 1] = text end)
  path_of(worker, about, peer, { server }, function() if #said > 0 then other:close() end end)
  assert(#said == 1 and said[1]:find "another process is receiving it", said[1])
end

-- Two coordinators of one model both send its file, though the first says no more.
do
  local second = serve()
  second.shelf:add(dir .. "/big")
  local from, begun, servers = dial(second), false, { server }
  local about = { hash = item.hash, files = { { path = "big", hash = item.hash, spans = { 0, 19 * block } } } }
  local worker = files.of_worker({}, dir .. "/both", client)
  path_of(worker, about, peer, servers, function()
    if begun or not worker.pulls[item.hash].pull.partial then return end
    begun, servers[1] = true, nil
    path_of(worker, about, from, { second }, function() if second.shelf.sent > 0 then server:step() end end)
  end)
  assert(begun and second.shelf.sent > 0)
  second.peers:close()
end

-- Blocks of a range alone are asked for, in the order of the ranges, and more later.
do
  local before = server.shelf.sent
  local pull = receive { sources = { peer }, hash = item.hash, ranges = { { 5 * block + 7, 6 * block }, { 0, 0 } } }
  run(pull, { server })
  assert(server.shelf.sent == before + 3 * block)
  assert(pull.partial:has(0) and pull.partial:has(5) and pull.partial:has(6) and not pull.partial:complete())
  local file = io.open(pull:path(), "rb")
  file:seek("set", 5 * block)
  assert(file:read(2 * block) == big:sub(5 * block + 1, 7 * block))
  file:close()
  pull:need { { 6 * block, 8 * block } }
  assert(not pull:done())
  run(pull, { server })
  assert(pull.partial:has(8) and pull.partial:here() == 5)
  pull:close()
  q.fs.remove(dir .. "/in")
end

-- Several sources share a file. One that lies, lacks it or is silent is left, and nothing wrong is taken.
do
  local second, liar = serve(), serve()
  second.shelf:add(dir .. "/big")
  liar.shelf:add(dir .. "/big")
  local lies = 0
  local send = liar.peers.send
  liar.shelf.peers = setmetatable({
    send = function(_, to, frame)
      if frame.type == "block" then frame.data, lies = frame.data:data():gsub("%x", "g", 1), lies + 1 end
      return send(liar.peers, to, frame)
    end,
    room = function(_, to) return liar.peers:room(to) end,
  }, nil)
  local empty = serve()
  local said = {}
  local sources = { dial(liar), dial(empty), peer, dial(second) }
  local before = server.shelf.sent
  local pull = receive {
    sources = sources, hash = item.hash, say = function(text) said[#said + 1] = text end,
  }
  run(pull, { server, second, liar, empty })
  pull.partial:finish(dir .. "/shared")
  assert(q.fs.read(dir .. "/shared") == big)
  assert(lies > 0 and second.shelf.sent > 0 and server.shelf.sent > before)
  local all = table.concat(said, "\n")
  assert(all:find("peer " .. sources[1] .. " is left: .*block %d+ is not what the manifest says"), all)
  assert(all:find("peer " .. sources[2] .. " is left: it does not have", 1, true), all)
  -- From the liar alone nothing comes.
  local alone = receive { sources = { sources[1] }, hash = item.hash }
  fails("peer", "no source is left", run, alone, { liar })
  assert(alone.partial:here() == 0)
  alone:close()
  -- A manifest of another file is no manifest of this one.
  write(dir .. "/other", 3000)
  liar.shelf.by_hash[item.hash] = { text = q.blocks.manifest(dir .. "/other"):text() }
  fails("peer", "lies", run, receive { sources = { sources[1] }, hash = item.hash }, { liar })
  local nobody = { client:dial "127.0.0.1:9" }
  fails("peer", "no source of", run, receive { sources = nobody, hash = item.hash, patience = 0.2 }, {})
  for _, each in ipairs { second, liar, empty } do each.peers:close() end
end

-- A shelf gives what is on it, and no more at once than its bounds.
do
  local function ask(frame)
    client:send(peer, frame)
    local event
    repeat
      server:step()
      event = client:wait(0.01)
    until event and event.kind == "frame"
    return event
  end
  for _, frame in ipairs {
    { type = "have", text = ("0"):rep(64) }, { type = "have", text = dir .. "/big" }, { type = "have", text = "" },
    { type = "blocks", text = item.hash, position = math.ceil(#big / block) },
    { type = "blocks", text = item.hash, position = 2 ^ 52 }, { type = "blocks", text = "x" },
  } do
    assert(ask(frame).type == "lacking")
  end
  local list = q.json.decode(ask({ type = "list" }).text)
  assert(#list == 1 and list[1].name == "big" and list[1].size == #big and list[1].hash == item.hash)
  -- A list of over 1 MiB is data.
  for i = 2, 12000 do server.shelf.named[i] = { name = ("%d"):format(i), hash = item.hash, size = i, kind = "file" } end
  local long = ask { type = "list" }
  assert(long.text == "" and #q.json.decode(long.frame:data()) == 12000)
  local told = { send = function() end, wait = function() return long end }
  assert(deliveries.find(told, { true }, "big") == item.hash)
  -- Who takes no frame as long as the answer gets none.
  local small = q.peers.open { keys = keys, limit = 1 }
  local to = small:dial("127.0.0.1:" .. server.port)
  local since, sent = q.time(), false
  while q.time() - since < 0.5 or not sent do
    server:step()
    local event = small:wait(0.01)
    if event then small:send(to, { type = "have", text = item.hash }) sent, since = true, q.time() end
  end
  small:close()
  server.shelf.rate = require("qeng.peers.rate").new(1)  -- nothing more goes out
  for _ = 1, 70 do client:send(peer, { type = "blocks", text = item.hash, position = 0 }) end
  local refused, began = 0, q.time()
  while refused < 5 and q.time() - began < 20 do
    server:step()
    local event = client:wait(0.01)
    if event and event.type == "lacking" then refused = refused + 1 end
  end
  assert(refused >= 5, refused)
  server.peers:close()
end

-- What a rate holds up for longer than a source may say nothing is told of. So may a link be slow.
do
  local core, ahead, waits = require "qeng.core", 0, 0
  local time = core.time
  function core.time() return time() + ahead end
  server = serve()
  server.shelf:add(dir .. "/big")
  peer = dial(server)
  server.shelf.rate = require("qeng.peers.rate").new(block / 45)
  local pull = receive { sources = { peer }, hash = item.hash, folder = dir .. "/slow", ranges = { { 0, block } } }
  while not pull:done() do
    assert(ahead < 600, "it takes too long")
    if pull.partial then ahead = ahead + 5 end
    server:step()
    pull:tick()
    local event = client:wait(0.05)
    if event and event.type == "wait" then waits = waits + 1 end
    if event then pull:take(event) end
  end
  assert(waits >= 3, waits)
  pull:close()
  server.peers:close()
  local received = 0
  local slow = { send = function() end, stats = function() return { bytes_received = received } end }
  pull = pulls.new { peers = slow, sources = { 1 }, hash = item.hash, folder = dir .. "/slow" }
  pull:tick()
  ahead, received = ahead + 31, 2e5
  pull:tick()
  ahead, received = ahead + 31, received + 1e4  -- signs of life
  fails("peer", "has said nothing for 30 s", pull.tick, pull)
  core.time = time
end

-- A shelf calls a link by its own name, and refuses names that no peer can ask for.
do
  local shelf, names = shelves.new { cache = dir .. "/manifests" }, dir .. "/names"
  q.fs.mkdir(names)
  assert(shelf:add(names .. "/").name == "names" and shelf:add(names .. "/.").name == "names")
  q.fs.link(dir .. "/other", names .. "/link")
  assert(shelf:add(names .. "/link").name == "link")
  for _, name in ipairs { "bad\255", "a\nb", "a\\b" } do
    q.fs.write(names .. "/" .. name, "x")
    fails("value", "rename it", shelf.add, shelf, names .. "/" .. name)
  end
end

-- A folder arrives whole or not at all; what was cut goes on; links may not lead out.
do
  server = serve()
  peer = dial(server)
  local from, to = dir .. "/folder", dir .. "/copy"
  q.fs.mkdir(from .. "/sub/deep")
  write(from .. "/sub/deep/a", 5 * block)
  write(from .. "/sub/b", 9)
  write(from .. "/empty", 0)
  q.fs.write(from .. "/.hidden", "stays")
  local folder = server.shelf:add(from)
  server.shelf:add(dir .. "/big")
  local function tree() return trees.new { peers = client, sources = { peer }, hash = folder.hash, to = to } end
  local first = tree()
  run(first, { server }, function() return q.fs.kind(first.coming .. "/files/sub/b") ~= nil end)
  assert(not first:done() and not q.fs.kind(to))
  first.current:close()
  local before = server.shelf.sent
  local second = tree()
  run(second, { server })
  assert(server.shelf.sent - before <= 5 * block, "a file that was whole was sent again")
  for _, name in ipairs { "sub/deep/a", "sub/b", "empty" } do
    assert(q.fs.read(to .. "/" .. name) == q.fs.read(from .. "/" .. name))
  end
  assert(not q.fs.kind(to .. "/.hidden") and not q.fs.kind(second.coming))
  fails("value", "is there already", tree)
  -- What has the name by the time that it is whole is not replaced.
  for _, each in ipairs { { folder.hash, "is there already" }, { item.hash, "is there by now" } } do
    local late = { peers = client, sources = { peer }, hash = each[1], to = dir .. "/late" }
    local third = trees.new(late)
    run(third, { server }, function() return third.current.partial end)
    q.fs.write(late.to, "precious")
    fails("value", each[2], run, third, { server })
    third:close()
    assert(q.fs.read(late.to) == "precious")
    q.fs.remove(late.to)
    run(trees.new(late), { server })
    assert(q.fs.kind(late.to) == (each[1] == folder.hash and "dir" or "file"))
    q.fs.remove(late.to)
  end
  os.execute(("ln -s /etc/hostname %s/sub/out"):format(from))
  fails("value", "leads out of the folder", server.shelf.add, server.shelf, from)
  os.execute(("rm %s/sub/out; ln -s ../empty %s/sub/inside"):format(from, from))
  assert(server.shelf:add(from).size == folder.size)
end

-- What is pushed is taken under a good name, once.
do
  server.accept = accepts.new { peers = server.peers, folder = dir .. "/taken", say = function() end }
  local mine = shelves.new { peers = client, cache = dir .. "/manifests" }
  local pushed = mine:add(dir .. "/big", "taken.bin")
  local function push(item_)
    client:send(peer, { type = "push", request = 5, text = q.json.encode(item_) })
    local began = q.time()
    local event
    repeat
      assert(q.time() - began < 60)
      server:step()
      event = client:wait(0.001)
      if event and mine:take(event) then event = nil end
      mine:tick()
    until event and (event.type == "done" or event.type == "lacking")
    return event.type == "done" or q.json.decode(event.text).message
  end
  assert(push(pushed) == true and q.fs.read(dir .. "/taken/taken.bin") == big)
  assert(push(pushed) == true)
  local other = mine:add(dir .. "/other", "taken.bin")
  assert(push(other):find("holds something else", 1, true))
  for _, name in ipairs { "../up", "/etc/x", ".profile", "a/b", "", "a\nb" } do
    assert(type(push { name = name, hash = pushed.hash }) == "string", name)
  end
  for _, said in ipairs { {}, { name = "x" }, { name = "x", hash = "y" }, { name = "x", hash = 7 }, "x" } do
    assert(type(push(said)) == "string")
  end
  local gone = push { name = "absent", hash = ("0"):rep(64) }
  assert(gone:find("no source is left", 1, true), gone)
  assert(#q.fs.list(dir .. "/taken") == 1)

  -- Who is cut off, and comes back when it was given up, is taken: nobody holds the file.
  server.accept = accepts.new { peers = server.peers, folder = dir .. "/taken", patience = 0.1, say = function() end }
  local again = mine:add(dir .. "/big", "again.bin")
  local function until_(done)
    local began = q.time()
    repeat
      assert(q.time() - began < 60)
      server:step()
      local event = client:wait(0.001)
      if event then mine:take(event) end
    until done(event)
  end
  local function coming() return server.accept.coming["again.bin"] end
  client:send(peer, { type = "push", request = 6, text = q.json.encode(again) })
  until_(function() return coming() and coming().tree.current.partial end)
  client:hang_up(peer)
  until_(function() return not coming() end)
  peer = client:dial("127.0.0.1:" .. server.port)
  until_(function(event) return event and event.kind == "here" end)
  assert(push(again) == true and q.fs.read(dir .. "/taken/again.bin") == big)
end

print "files between peers: ok"
