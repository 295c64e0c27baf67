-- What tells weights apart without keeping them: digests of a model's and of an adapter's.

local q = require "qeng.core"

local digest = {}

local whole_bytes, some_rows = 2 ^ 20, 16  -- larger tensors are told by that many rows: some 40 MB of 7 billion weights

-- A digest of the weights that are not trained: name, dtype, shape and values of each. Of large ones it takes some
-- rows, however they are held in memory. bits: nor are the weights of linear layers, whose bits learn. A base model
-- that was trained further differs in nearly every row; a change of a few rows of a large tensor may go unseen.
-- all: also those that are trained.
function digest.of_weights(model, bits, all)
  local learned, count, sum = {}, 0, 0
  for _, layer in ipairs(bits and model.linears or {}) do learned[layer.weight] = true end
  local function add(text)
    for i = 1, #text do sum = (sum * 31 + text:byte(i)) % 2 ^ 48 end
  end
  local function add_tensor(name, tensor)
    if not all and tensor:requires_grad() or learned[tensor] then return end
    count = count + 1
    local shape = tensor:shape()
    add(("%s %s %s "):format(name, tensor:dtype(), table.concat(shape, "x")))
    if #shape == 3 then tensor = tensor:reshape { shape[1] * shape[2], shape[3] } end  -- of experts
    local rows = tensor:bytes() <= whole_bytes and tensor:shape()[1] or some_rows
    add(tensor:hash(rows))
  end
  for _, parameter in ipairs(model.parameters or {}) do
    add_tensor(parameter.name, parameter.tensor)
    local shape = parameter.tensor:shape()
    for _, rotation in pairs { model.rotations and #shape == 2 and model.rotations(parameter.name, shape[2]) or nil } do
      add(("rotated %d %s"):format(rotation.block, rotation.signs and rotation.signs:hash() or ""))
    end
  end
  for _, layer in ipairs(model.linears or {}) do
    if layer.row_scale then add_tensor(layer.name .. ".weight_scale", layer.row_scale) end
  end
  return ("%d tensors, digest %012x"):format(count, sum)
end

-- The same of an adapter that was read (model/peft.lua), with its scales.
function digest.of_adapter(adapter)
  local lines = {}
  for name, lora in pairs(adapter.layers) do
    local magnitude = lora.magnitude and lora.magnitude:hash() or ""
    lines[#lines + 1] = ("%s %s %s %s %.17g"):format(name, lora.a:hash(), lora.b:hash(), magnitude, lora.scale)
  end
  table.sort(lines)
  return ("%d layers, %s"):format(#lines, q.host.hash(table.concat(lines, "\n")))
end

return digest
