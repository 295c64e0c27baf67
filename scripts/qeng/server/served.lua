-- The models that a server answers with: each has an engine, and adapters that a request chooses by their names.

local engines = require "qeng.infer.engine"
local problem = require "qeng.server.problem"
local q = require "qeng.core"

local served = {}
local Served = {}
Served.__index = Served

-- name: what requests call it; opt: of the engine (infer/engine.lua). model.dir or path: where it came from.
function served.new(name, model, opt)
  return setmetatable({
    name = name, model = model, engine = engines.new(model, opt), adapters = {}, created = os.time(),
    fingerprint = "qeng_" .. q.host.hash(name):sub(1, 10),
  }, Served)
end

-- Makes an adapter known under a name of its own. path: a PEFT folder or a GGUF file.
function Served:add_adapter(name, path)
  self.adapters[name] = { path = path, adapter = self.model:read_adapter(path), created = os.time() }
end

-- Whether it has work.
function Served:busy() return #self.engine.running + #self.engine.waiting > 0 end

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

-- The served model, and the adapter if it is one, that a request names; without a name, the first model.
function served.find(list, name)
  if name == nil then return list[1] end
  for _, each in ipairs(list) do
    if each.name == name then return each end
    if each.adapters[name] then return each, each.adapters[name].adapter end
  end
  problem.raise(404, ("The model '%s' does not exist; GET /v1/models lists those that do."):format(name), "model",
    "model_not_found")
end

-- Whether the model's own template writes the beginning of its reasoning.
function Served:thinks()
  return self.model.tokenizer ~= nil and self.model.tokenizer:id "<think>" ~= nil
    and self.model.tokenizer:id "</think>" ~= nil
end

return served
