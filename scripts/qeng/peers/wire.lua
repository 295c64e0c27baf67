-- How rows of hidden states travel: as the model has them, which loses nothing, or rounded to bf16 or to 8 bits
-- (blocks of q8_0), which takes less of a slow link. recipes/WORKERS.md says what that costs.

local q = require "qeng.core"
local stages = require "qeng.peers.stage"

local wires = {}
local Wire = {}
Wire.__index = Wire

wires.protocol = 2  -- of all that coordinators and workers say to each other
wires.names = { "exact", "bf16", "q8" }

-- name: one of wires.names, exact by default. model: whose rows they are.
function wires.new(name, model)
  local own = stages.dtype(model)
  local dtype = ({ exact = own, bf16 = "bf16", q8 = "q8_0" })[name or "exact"]
  if not dtype then
    q.error("value", ("wire is %s, expected %s"):format(tostring(name), table.concat(wires.names, ", ")))
  end
  if dtype == "q8_0" and model.config.hidden % 32 ~= 0 then
    q.error("unsupported", ("wire q8 has blocks of 32 elements, and the model's rows %d"):format(model.config.hidden))
  end
  return setmetatable({ dtype = dtype, own = own }, Wire)
end

-- Bytes of a row of so many elements.
function Wire:bytes(columns)
  return ({ f32 = 4, bf16 = 2, q8_0 = 34 / 32 })[self.dtype] * columns
end

-- What is sent of rows y: a tensor.
function Wire:written(y)
  return q.no_grad(function()
    if self.dtype == "q8_0" then return q.quantize(y:to "f32", "q8_0") end
    return y:to(self.dtype)
  end)
end

-- Writes what came in a frame into rows x of the model's dtype.
function Wire:read(frame, x)
  q.no_grad(q.scope, function()
    local rows = frame:tensor(x:shape(), self.dtype)
    if self.dtype ~= self.own then rows = rows:to(self.own) end
    x:copy(rows)
  end)
end

return wires
