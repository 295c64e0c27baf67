-- A file or a folder from peers, by its hash, to where it shall be: there it appears whole or not at all. Until then it
-- lies beside, in a folder NAME.HASH.coming, from which whoever wants the same again goes on.
--
--   local tree = trees.new { peers = peers, sources = { peer }, hash = hash, to = "data.qubgpu" }
--   while not tree:done() do
--     local event = peers:wait(tree:tick())
--     if event then tree:take(event) end
--   end

local pulls = require "qeng.peers.pull"
local q = require "qeng.core"
local rates = require "qeng.peers.rate"

local trees = {}
local Tree = {}
Tree.__index = Tree

local function require_nothing(to)
  if q.fs.kind(to) then q.error("value", to .. " is there already: delete it, or give another name") end
end

-- opt: as for pulls.new without folder and ranges; and
--   to        where it shall be; nothing may be there
--   progress  function(done, total): bytes of all files; total is nil until the list of a folder is here
function trees.new(opt)
  local to = opt.to:gsub("/+$", "")
  require_nothing(to)
  local self = setmetatable({
    opt = opt, to = to, coming = ("%s.%s.coming"):format(to, opt.hash:sub(1, 8)), rate = rates.new(opt.rate),
    here = 0,
  }, Tree)
  self:pull(opt.hash)
  return self
end

function Tree:pull(hash)
  local opt = self.opt
  self.current = pulls.new {
    peers = opt.peers, sources = opt.sources, hash = hash, folder = self.coming, window = opt.window, rate = self.rate,
    patience = opt.patience, say = opt.say, verify = opt.verify, progress = opt.progress and function(done, total)
      opt.progress(self.here + done, self.total or total)
    end,
  }
end

-- One more source, or the same again.
function Tree:add(peer)
  for _, source in ipairs(self.opt.sources) do
    if source == peer then return end
  end
  table.insert(self.opt.sources, peer)
  self.current:add(peer)
end

function Tree:take(event) return not self:done() and self.current:take(event) end

local function size_of(path)
  local file = io.open(path, "rb")
  local size = file and file:seek "end"
  if file then file:close() end
  return size
end

-- Begins with the next file of a folder that is not here, and puts the folder in place after the last.
local function next_file(self)
  while true do
    self.file = table.remove(self.files)
    if not self.file then break end
    if size_of(self.folder .. self.file.path) ~= self.file.size then return self:pull(self.file.hash) end
    self.here = self.here + self.file.size
  end
  q.fs.mkdir(self.folder)
  require_nothing(self.to)
  q.fs.replace_dir(self.folder, self.to)
  q.fs.remove(self.coming)
  self.finished = true
end

-- What is current is here.
local function advance(self)
  local pull = self.current
  if pull.files and self.files then
    q.error("format", ("%s is the list of a folder, where a file was expected"):format(self.file.path))
  elseif pull.files then
    self.files, self.folder, self.total = pull.files, self.coming .. "/files/", 0
    for _, file in ipairs(self.files) do self.total = self.total + file.size end
    next_file(self)
  elseif self.files then
    local path = self.folder .. self.file.path
    if pull.manifest:size() ~= self.file.size then
      q.error("format", ("%s has %d bytes, the list of its folder says %d"):format(self.file.path, pull.manifest:size(),
        self.file.size))
    end
    q.fs.mkdir(path:match "^(.*)/")
    q.fs.remove(path)  -- of another length than the list says
    pull.partial:finish(path)
    self.here = self.here + self.file.size
    next_file(self)
  else
    pull.partial:finish(self.to)
    q.fs.remove(self.coming)
    self.finished = true
  end
end

-- Returns after how many seconds it wants to be called again.
function Tree:tick()
  local wait = self.current:tick()
  while not self.finished and self.current:done() do
    advance(self)
    wait = self.current:tick()
  end
  return wait
end

-- Ends without it: what came is kept, for whoever wants the same again.
function Tree:close() self.current:close() end

function Tree:done() return self.finished == true end

return trees
