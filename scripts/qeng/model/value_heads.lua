-- The order of value heads that share key heads, as in a gated delta net. Checkpoints have those of a key head side by
-- side (grouped): head k * repeats + j. GGUF files have the first of each key head, then the second of each (tiled):
-- head j * groups + k. A model keeps the order of its file, so that reading moves nothing. What comes from elsewhere or
-- goes elsewhere is moved: adapters, saved weights, importance. c.value_heads says which of a layer's tensors it is:
--   groups, repeats   key heads, and value heads of each
--   rows              {[part of a layer] = {first, width}}: rows from `first` on are those of value heads, `width` each
--   columns           {[part of a layer] = width}: the columns of the weight, which its input has too
--   tiled             {rows =, columns =}: whether the model's are tiled; else they are grouped

local q = require "qeng.core"

local value_heads = {}

-- The rows of x from one order to the other, of `heads` as above. tiled: into which.
function value_heads.rows(x, heads, width, tiled)
  local shape = x:shape()
  local from, other = heads.repeats, heads.groups
  if tiled then from, other = other, from end
  return x:reshape({ from, other, width * x:elements() / shape[1] }):permute({ 2, 1, 3 }):reshape(shape)
end

-- The same of columns: x [rows, columns].
function value_heads.columns(x, heads, width, tiled)
  local shape = x:shape()
  local from, other = heads.repeats, heads.groups
  if tiled then from, other = other, from end
  return x:reshape({ shape[1], from, other, width }):permute({ 1, 3, 2, 4 }):reshape(shape)
end

local function part_of(name) return name:match "%.layers%.%d+%.(.*)$" end

-- x, of which a side ("rows", "columns") belongs to the layer or parameter of this name, in the other order.
local function other_order(heads, side, name, x, tiled)
  local part = part_of(name)
  local place = part and (heads[side][part] or heads[side][part:gsub("%.weight$", "")])
  if not place then return x end
  return q.no_grad(function()
    if side == "columns" then return value_heads.columns(x, heads, place, tiled) end
    local first, width = unpack(place)
    if first == 0 then return value_heads.rows(x, heads, width, tiled) end
    local before, own = x:split({ first, x:shape()[1] - first })
    return q.concat { before, value_heads.rows(own, heads, width, tiled) }
  end)
end

-- x from the model's order to the one that is asked for, and back. c: the model's settings. tiled: as GGUF has them.
function value_heads.to(c, side, name, x, tiled)
  local heads = c.value_heads
  return heads and heads.tiled[side] ~= tiled and other_order(heads, side, name, x, tiled) or x
end

function value_heads.from(c, side, name, x, tiled)
  local heads = c.value_heads
  return heads and heads.tiled[side] ~= tiled and other_order(heads, side, name, x, not tiled) or x
end

-- A part of an adapter by its name, LAYER.lora_A.weight: from the model's order to that of checkpoints, and back.
local function of_adapter(move, c, name, x)
  local layer, part = name:match "^(.*)%.(lora_%a+)"
  return not layer and x or move(c, part == "lora_A" and "columns" or "rows", layer, x, false)
end
function value_heads.adapter_to(c, name, x) return of_adapter(value_heads.to, c, name, x) end
function value_heads.adapter_from(c, name, x) return of_adapter(value_heads.from, c, name, x) end

-- A whole parameter, likewise.
function value_heads.weight_to(c, name, x, tiled)
  return value_heads.to(c, "columns", name, value_heads.to(c, "rows", name, x, tiled), tiled)
end
function value_heads.weight_from(c, name, x, tiled)
  return value_heads.from(c, "columns", name, value_heads.from(c, "rows", name, x, tiled), tiled)
end

-- Whether that changes anything.
function value_heads.moves(c, name, tiled)
  local heads = c.value_heads
  local part = heads and part_of(name)
  part = part and part:gsub("%.weight$", "")
  return part and (heads.rows[part] and heads.tiled.rows ~= tiled
    or heads.columns[part] and heads.tiled.columns ~= tiled) or false
end

return value_heads
