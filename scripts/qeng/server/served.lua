-- The models that a server answers with: each has an engine, adapters that a request chooses by their names, and
-- slots. These are llama.cpp's: places 0 .. max_batch - 1, each of which keeps what its last request read and wrote, so
-- that this can be named: saved, restored and erased.

local engines = require "qeng.infer.engine"
local problem = require "qeng.server.problem"
local q = require "qeng.core"

local served = {}
local measured_each = 256  -- steps

local Served = {}
Served.__index = Served

-- name: what requests call it; opt: of the engine (infer/engine.lua). model.dir or path: where it came from.
function served.new(name, model, opt)
  return setmetatable({
    name = name, path = model.dir, model = model, engine = engines.new(model, opt), adapters = {}, turns = {},
    slots = {}, placed = 0, batched = 0, seconds = 0, created = os.time(),
    fingerprint = "qeng_" .. q.host.hash(name):sub(1, 10),
  }, Served)
end

-- Makes an adapter known under a name of its own. path: a PEFT folder or a GGUF file.
function Served:add_adapter(name, path)
  local read = self.model:read_adapter(path)
  self.adapters[name] = { path = path, read = read, adapter = read, scale = 1, created = os.time() }
end

-- Forgets an adapter. What a slot keeps of it goes too.
function Served:remove_adapter(name)
  local adapter = self.adapters[name].adapter
  self.adapters[name] = nil
  for id, slot in pairs(self.slots) do
    if slot.adapter == adapter and not slot:busy() then self.slots[id] = nil end
  end
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
    own.scale, own.columns = lora.scale * factor, nil  -- the latter are of the scale that it had (infer/paged.lua)
    scaled.layers[layer] = own
  end
  scaled.factor = factor  -- of layers that peers have
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

local Slot = {}
Slot.__index = Slot
function Slot:busy() return self.request ~= nil and self.request.state ~= "done" end

-- Puts a request, or tokens that were restored, into a slot: the one of a number, else the one unused longest that is
-- free; into none where all are busy. what: {request =, tokens =, adapter =}
function Served:place(what, number)
  local chosen = number
  for id = 0, chosen and -1 or self.engine.max_batch - 1 do
    local slot = self.slots[id]
    local free = not slot or not slot:busy()
    if free and (not chosen or (slot and slot.at or 0) < (self.slots[chosen] and self.slots[chosen].at or 0)) then
      chosen = id
    end
  end
  if not chosen then return end
  self.placed = self.placed + 1
  what.at = self.placed
  self.slots[chosen] = setmetatable(what, Slot)
end

-- The slot of a number, which has to have something and to be at rest.
function Served:slot(id)
  local slot = self.slots[id]
  if not slot then problem.raise(400, ("Slot %d of %s is empty."):format(id, self.name), "id") end
  if slot:busy() then problem.raise(400, ("A request runs in slot %d of %s."):format(id, self.name), "id") end
  return slot
end

-- A step of its engine. limits: of q.limits; then one of many steps is measured: {flops, bytes} a second, and the share
-- of the device's limit.
function Served:step(limits)
  local engine, began, profile = self.engine, q.time(), nil
  local steps, running = engine.steps, #engine.running
  if limits and engine.steps % measured_each == measured_each - 1 then
    profile = q.profile(engine.step, engine)
  else
    engine:step()
  end
  local seconds, flops, bytes = q.time() - began, 0, 0
  self.seconds = self.seconds + seconds
  if engine.steps > steps then self.batched = self.batched + running end  -- else it is under way over peers
  if not profile then return end
  for _, row in ipairs(profile.ops) do flops, bytes = flops + row.flops, bytes + row.bytes end
  self.rate = {
    flops = flops / seconds, bytes = bytes / seconds, share = (profile.share or 0) * profile.total_ms / 1e3 / seconds,
  }
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
