-- The models of a server by name: those that it began with, and those of a folder, which are loaded when a request
-- names them. Of the latter so many stay; who was asked least recently leaves once it has nothing to do.

local models = require "qeng.model"
local problem = require "qeng.server.problem"
local q = require "qeng.core"
local served = require "qeng.server.served"

local Shelf = {}
Shelf.__index = Shelf

-- engine: options of each model's engine; dir: a folder of model folders and .gguf files, or nil; keep: how many of
-- them stay; load: options of q.load.
function Shelf.new(engine, dir, keep, load)
  return setmetatable({ list = {}, engine = engine, dir = dir, keep = keep or 1, load = load or {} }, Shelf)
end

-- Adds a model that stays.
function Shelf:add(name, model)
  local made = served.new(name, model, self.engine)
  self.list[#self.list + 1] = made
  return made
end

-- Names and paths of what the folder holds: {{name, path}, ...}.
function Shelf:stored()
  local found = {}
  for _, name in ipairs(self.dir and q.fs.list(self.dir) or {}) do
    local path = self.dir .. "/" .. name
    local kind = q.fs.kind(path)
    local is_model = kind == "dir" and q.fs.kind(path .. "/config.json") == "file"
    if is_model or kind == "file" and name:find "%.gguf$" then
      found[#found + 1] = { (name:gsub("%.gguf$", "")), path }
    end
  end
  return found
end

-- Makes room for one more of the folder's models.
local function make_room(self)
  local count, oldest = 0, nil
  for i, each in ipairs(self.list) do
    if each.stored then
      count = count + 1
      if not each:busy() and (not oldest or each.used < self.list[oldest].used) then oldest = i end
    end
  end
  if count < self.keep then return end
  if not oldest then
    error({ code = "http", status = 503, message = "all models that may be loaded are busy: try again later",
      headers = { ["retry-after"] = "5" } }, 0)
  end
  table.remove(self.list, oldest):close()
end

local function find(self, name)
  for _, each in ipairs(self.list) do
    if each.name == name then return each end
    if each.adapters[name] then return each, each.adapters[name].adapter end
  end
end

-- The served model, and the adapter if it is one, that a request names; without a name, the first.
function Shelf:find(name)
  local found, adapter
  if name then found, adapter = find(self, name) else found = self.list[1] end
  if not found and name then
    for _, pair in ipairs(self:stored()) do
      if pair[1] == name then
        make_room(self)
        found = self:add(name, models.load(pair[2], self.load))
        found.stored = true
      end
    end
  end
  if not found then
    problem.raise(404, ("The model '%s' does not exist; GET /v1/models lists those that do."):format(name or ""),
      "model", "model_not_found")
  end
  found.used = q.time()
  return found, adapter
end

-- Whether there is a model or an adapter of a name.
function Shelf:has(name)
  for _, pair in ipairs(self:stored()) do
    if pair[1] == name then return true end
  end
  return find(self, name) ~= nil
end

return Shelf
