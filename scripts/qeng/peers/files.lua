-- The files of models and adapters, which workers need of a coordinator. They go by hashes of what is in them
-- (q.blocks): what a worker has on its disk is not sent. What is sent lies in its cache, as far as its layers need it
-- (sparse files), and is there the next time.
--
-- Of a coordinator, files.of_model(path, transport):
--   files:about(range)   what a worker is told: {hash, name, folder, split, files = {{path, hash, spans}...}}. spans:
--                        the bytes that a range of layers needs (first, last, first, last, ...; nil: all). split: a
--                        file in parts, which is opened by the first of them
--   files:hash()         of the whole model
--   files:add(path)      offers an adapter, and tells the same of it
--   files:check(path, hash)   raises where what was offered has changed since
-- Of a worker, files.of_worker(paths, cache, transport, say):
--   files:hashes()       of what is on its disk
--   files:path(about, peer, pump, beside)   where it lies, after pulling what is lacking from a peer. pump(seconds)
--                        waits for an event and does what it asks for. beside: steps go on meanwhile
-- Of both, files:take(event): whether an event was about files, which is then done; files:tick(), now and then.

local pulls = require "qeng.peers.pull"
local q = require "qeng.core"
local ranges = require "qeng.model.range"
local shelves = require "qeng.peers.shelf"
local user = require "qeng.console.user"

local files = {}
local Files = {}
Files.__index = Files

local most_files = 10000
local window_beside = 1  -- blocks asked for at once where steps go on: rows wait for those that were sent before them

local function new(transport, cache, say)
  return setmetatable({
    transport = transport, cache = cache or user.cache_dir() .. "/peers", shelf = shelves.new { peers = transport },
    say = say or function() end, own = {}, pulls = {},
  }, Files)
end

-- The files of a model or an adapter at `path`, by their names in its folder: of a folder its config and what holds
-- weights, of a split GGUF file its parts.
local function members(path)
  local list = {}
  if q.fs.kind(path) ~= "dir" then
    local folder, name = path:match "^(.*)/[^/]+$" or ".", path:match "([^/]+)$"
    list[1] = name
    local stem, parts = name:match "^(.*)%-00001%-of%-(%d%d%d%d%d)%.gguf$"
    for i = 2, tonumber(parts or 1) do
      local part = ("%s-%05d-of-%s.gguf"):format(stem, i, parts)
      if q.fs.kind(folder .. "/" .. part) ~= "file" then break end  -- who opens it says what is missing
      list[i] = part
    end
    return list, folder
  end
  for _, name in ipairs(q.fs.list(path)) do
    if name:find "%.safetensors$" or name:find "%.safetensors%.index%.json$" or name == "config.json"
      or name == "adapter_config.json" then
      list[#list + 1] = name
    end
  end
  return list, path
end

-- Offers what is at a path: what is told of it, and the folder that its files are in.
local function offer(self, path)
  local names, folder = members(path)
  local split, manifests = #names > 1 and q.fs.kind(path) == "file" or nil, {}
  local told = {
    name = path:match "([^/]+)/*$", folder = split or q.fs.kind(path) == "dir", split = split, files = q.json.array {},
  }
  for i, name in ipairs(names) do
    manifests[i] = self.shelf:offer(folder .. "/" .. name)
    told.files[i] = { path = name, hash = manifests[i]:hash() }
  end
  if #names == 0 then q.error("io", path .. ": no weights, and no config.json") end
  local _, hash = q.blocks.folder(names, manifests)
  told.hash = told.folder and hash or told.files[1].hash
  return told, folder
end

function Files:add(path)
  local told, folder = offer(self, path)
  for _, file in ipairs(told.files) do self.own[file.hash] = folder .. "/" .. file.path end
  self.own[told.hash] = path
  return told
end

-- Where the file or the folder of a hash lies on this disk; nil where another has taken its place since.
local function own_path(self, hash)
  local path = self.own[hash]
  local told = path and q.try(offer, self, path)
  if told and (told.hash == hash or told.files[1].hash == hash) then return path end  -- the second: of the first part
  if path then self.say(path .. " has changed since it was looked at: its files are asked for") end
  self.own[hash] = nil
end

function Files:check(path, hash)
  local told = q.try(offer, self, path)
  if not told or told.hash ~= hash then
    q.error("io", path .. " has changed since it was loaded, and layers have to be read from it again: start again")
  end
end

function files.of_model(path, transport)
  local self = new(transport)
  self.model_path, self.told = path, self:add(path)
  return self
end

function Files:hash() return self.told.hash end

function Files:about(range)
  self:check(self.model_path, self.told.hash)
  local weights, spans = q.weights.open(self.model_path), {}
  for _, each in ipairs(weights:spans(ranges.names(weights:names(), range))) do
    spans[each.path:match "([^/]+)$"] = q.json.array(each.spans)
  end
  weights:close()
  local told = { files = q.json.array {} }
  for _, name in ipairs { "hash", "name", "folder", "split" } do told[name] = self.told[name] end
  for i, file in ipairs(self.told.files) do
    told.files[i] = { path = file.path, hash = file.hash, spans = spans[file.path] }
  end
  return told
end

function files.of_worker(paths, cache, transport, say)
  local self = new(transport, cache, say)
  for _, path in ipairs(paths) do self:add(path) end
  return self
end

function Files:hashes()
  local list = {}
  for hash in pairs(self.own) do list[#list + 1] = hash end
  table.sort(list)
  return list
end

local function is_hash(text) return type(text) == "string" and #text == 64 and not text:find "[^%x]" end

-- The name, the hash and the spans of a file that a coordinator told of.
local function checked(file)
  if type(file) ~= "table" or not is_hash(file.hash) or type(file.path) ~= "string" or file.path:find "/" then
    q.error("format", "a file of the model has a name or a hash that cannot be")
  end
  q.blocks.check_path(file.path)
  if file.spans == nil then return file.path, file.hash, nil end
  local spans = {}
  for i = 1, type(file.spans) == "table" and #file.spans or 0, 2 do
    local first, last = file.spans[i], file.spans[i + 1]
    if type(first) ~= "number" or type(last) ~= "number" or first < 0 or last < first then
      q.error("format", file.path .. ": its spans are no pairs of bytes")
    end
    spans[#spans + 1] = { first, last }
  end
  return file.path, file.hash, spans
end

-- Where a file lies, after pulling what is lacking. Several may want parts of one file at the same time.
local function fetch(self, file, peer, pump, beside)
  local name, hash, spans = checked(file)
  local own = own_path(self, hash)
  if own then return own end
  q.fs.mkdir(self.cache)
  local shared = self.pulls[hash]
  if not shared then
    shared = {
      users = 0, pull = pulls.new {
        peers = self.transport, sources = { peer }, hash = hash, folder = self.cache, ranges = {}, say = self.say,
        window = window_beside, wait_busy = true,
      },
    }
    self.pulls[hash] = shared
  end
  shared.pull:add(peer)
  if not beside then shared.pull.window = pulls.window end  -- all wait for it
  shared.users = shared.users + 1
  local pull, path = shared.pull, nil
  local function wait(ready)
    while not ready() do
      local seconds = pull:tick()
      for _, other in pairs(self.pulls) do seconds = math.min(seconds, other.pull:tick()) end
      pump(seconds)
    end
  end
  local ok, err = pcall(function()
    wait(function() return pull.partial or pull.files end)
    if not pull.partial then q.error("format", name .. ": its hash is of a folder") end
    pull:need(spans or { { 0, math.max(0, pull.manifest:size() - 1) } })
    wait(function() return pull:done() end)
    path = pull.partial:path()
  end)
  shared.users = shared.users - 1
  if shared.users == 0 then
    self.pulls[hash] = nil
    if pull.partial then pull.partial:close() end
  end
  if not ok then error(err, 0) end
  return path
end

function Files:path(about, peer, pump, beside)
  if not is_hash(about.hash) or type(about.files) ~= "table" or #about.files < 1 or #about.files > most_files then
    q.error("format", "what is told of a model has no hash, or no list of files")
  end
  local own = own_path(self, about.hash)
  if own then return own end
  if not about.folder then return fetch(self, about.files[1], peer, pump, beside) end
  -- A folder is made of links to what came, which is of these layers alone.
  local folder = ("%s/%s"):format(self.cache, q.host.hash(q.json.encode(about.files)))
  q.fs.mkdir(folder)
  for _, file in ipairs(about.files) do
    q.fs.link(fetch(self, file, peer, pump, beside), folder .. "/" .. checked(file))
  end
  return about.split and folder .. "/" .. checked(about.files[1]) or folder
end

function Files:take(event)
  for _, shared in pairs(self.pulls) do
    if shared.pull:take(event) then return true end
  end
  return self.shelf:take(event)
end

-- Bytes of files that others have got.
function Files:sent() return self.shelf.sent end

function Files:tick() return self.shelf:tick() end

return files
