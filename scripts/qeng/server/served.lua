-- The models that a server answers with: each has an engine, and adapters that a request chooses by their names.

local engines = require "qeng.infer.engine"
local q = require "qeng.core"

local served = {}
local Served = {}
Served.__index = Served

-- name: what requests call it; opt: of the engine (infer/engine.lua). model.dir or path: where it came from.
function served.new(name, model, opt)
  return setmetatable({
    name = name, path = model.dir, model = model, engine = engines.new(model, opt), adapters = {}, turns = {},
    created = os.time(),
    fingerprint = "qeng_" .. q.host.hash(name):sub(1, 10),
  }, Served)
end

-- Makes an adapter known under a name of its own. path: a PEFT folder or a GGUF file.
function Served:add_adapter(name, path)
  local read = self.model:read_adapter(path)
  self.adapters[name] = { path = path, read = read, adapter = read, scale = 1, created = os.time() }
end

-- Multiplies an adapter's scale as it was read by a factor. Requests that run keep the one that they have.
function Served:scale_adapter(name, factor)
  local entry = self.adapters[name]
  local scaled = setmetatable({ layers = {} }, getmetatable(entry.read))
  for field, value in pairs(entry.read) do
    if field ~= "layers" then scaled[field] = value end
  end
  for layer, lora in pairs(entry.read.layers) do
    local own = {}
    for field, value in pairs(lora) do own[field] = value end
    own.scale = lora.scale * factor
    scaled.layers[layer] = own
  end
  entry.adapter, entry.scale = scaled, factor
end

-- The place in the queue of a client's request: clients take turns, whatever many requests each has there. priority: of
-- a smaller one all come first.
function Served:rank(client, priority)
  local first = self.engine.waiting[1]
  if not first then self.turns = {} end
  local turn = math.max(first and first.rank % 1e9 - 1 or 0, self.turns[client] or 0) + 1
  self.turns[client] = turn
  return (priority or 0) * 1e9 + turn
end

-- Whether it has work.
function Served:busy() return #self.engine.running + #self.engine.waiting > 0 end

-- Frees the cache and lets the model go.
function Served:close()
  self.engine:close()
  self.model, self.engine = nil, nil
  collectgarbage()
  collectgarbage()
end

-- How many tokens a prompt and its answer may have together.
function Served:context()
  local stats = self.engine:stats()
  return math.min(self.engine.context, stats.pages * self.engine.runner.page_tokens)
end

-- The entry of GET /v1/models.
function Served:entry(name, adapter)
  return {
    id = name, object = "model", created = (adapter or self).created, owned_by = "qeng",
    parent = adapter and self.name or q.json.null, max_model_len = self:context(),
  }
end

-- Whether the model's own template writes the beginning of its reasoning.
function Served:thinks()
  return self.model.tokenizer ~= nil and self.model.tokenizer:id "<think>" ~= nil
    and self.model.tokenizer:id "</think>" ~= nil
end

return served
