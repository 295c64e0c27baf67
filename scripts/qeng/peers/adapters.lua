-- Adapters of requests, where layers lie in stages (peers/fleet.lua): each stage has those of its layers, by numbers
-- that the fleet gives. An adapter that nobody here holds any more is forgotten there too.
--
--   fleet:read_adapter(path)      an adapter for requests, sent to all stages
--   fleet:send_adapter(adapter)   its number, and how many of its tensors stages found layers for

local q = require "qeng.core"

local adapters = {}

-- Has stages forget adapters that nobody has here any more.
local function forget_adapters(self)
  for number in pairs(self.sent) do
    if not self.held[number] then
      self.sent[number] = nil
      for _, stage in ipairs(self.stages) do
        if stage.here then
          stage.here.adapters[number] = nil
        elseif self.stands(stage) then
          self:tell(stage.worker, "close", { stage = stage.number, adapter = number })
        end
      end
    end
  end
end

-- Has all stages take an adapter, if they have not yet. Returns its number, and how many tensors they found in it.
function adapters.send(self, adapter)
  local known = self.adapters[adapter]
  if not known then
    known = { number = self:next_number(), taken = 0, sent = setmetatable({}, { __mode = "k" }) }
    self.adapters[adapter], self.held[known.number], self.sent[known.number] = known, adapter, true
    forget_adapters(self)
  end
  local asked, here = {}, false
  for _, stage in ipairs(self.stages) do here = here or not stage.worker and not known.sent[stage] end
  if here then self.files:check(adapter.dir, adapter.files.hash) end  -- before workers are asked
  for i, stage in ipairs(self.stages) do
    if not known.sent[stage] and stage.worker then
      asked[i] = self:post(stage.worker, "adapter", {
        stage = stage.number, number = known.number, files = adapter.files, scale = adapter.factor or 1,
      })
    elseif not known.sent[stage] then
      local own = stage.here.model:read_adapter(adapter.dir)
      stage.here:add_adapter(known.number, own, adapter.factor or 1)
      known.taken = known.taken + own.taken
    end
  end
  for _, each in pairs(asked) do
    local said = q.try(q.json.decode, self:await(each).text)
    known.taken = known.taken + (type(said) == "table" and tonumber(said.taken) or 0)
  end
  for _, stage in ipairs(self.stages) do known.sent[stage] = true end
  return known.number, known.taken
end

-- An adapter for requests: Model:read_adapter of a model whose layers lie here and there.
function adapters.read(self, path)
  local weights = q.fs.kind(path) == "dir" and path .. "/adapter_model.safetensors" or path
  local file = q.weights.open(weights)
  local adapter = { dir = path, layers = {}, files = self.files:add(path), tensors = #file:names() }
  file:close()
  local _, taken = self:send_adapter(adapter)
  if taken ~= adapter.tensors then
    q.error("format", ("%s: %d tensors, of which this model has %d"):format(path, adapter.tensors, taken))
  end
  return adapter
end

return adapters
