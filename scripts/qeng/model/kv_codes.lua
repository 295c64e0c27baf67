-- What a layer's codes of keys or values need beside their pool: the levels, and the matrices that turn vectors before
-- they are coded, so that all dimensions of a vector look alike (q.pages.head_linear).
--
-- Keys become (k - mean) A, queries q A^-T: their products are those of k - mean, and a softmax does not see what the
-- mean adds to all of them. Values become (v - mean) A, and the output, a mean of values, goes back by A^-1 and the
-- mean. A is a Hadamard matrix with signs at random, twice; of keys behind the map that kv_rotations.lua has fitted.

local codebook = require "qeng.codes.codebook"
local q = require "qeng.core"
local rotations = require "qeng.codes.rotations"

local kv_codes = {}

local seed = 20251126  -- of the signs: any will do, but all caches of a model have to have the same

local function kept(make) return q.scope(function() return q.keep(make()) end) end

-- The levels of a side, ascending, of vectors of the length sqrt(dim): [2^bits], or with wide dimensions [3 2^bits].
function kv_codes.levels(side, dim)
  local levels = {}
  for bits = side.bits, side.bits + (side.width > side.bits and 1 or 0) do
    for _, level in ipairs(codebook.sphere(dim, bits).levels) do levels[#levels + 1] = level * math.sqrt(dim) end
  end
  return kept(function() return q.tensor(levels) end)
end

-- {to, to_bias, query or from, back_bias}: [bases, dim, dim] and [bases, dim]. Where no map was fitted also signs, of
-- `to` and `query`, and back_signs, of `from` (q.pages.head_linear), unless dim has none.
-- fitted: {mean [heads, dim], and of keys map, inverse [heads, dim, dim]}, or nil. centred: the mean comes off.
local function turns(dim, is_key, fitted, centred)
  return q.no_grad(q.scope, function()
    local random = rotations.make("hadamard2", dim, seed).matrix:transpose(1, 2):compute()  -- y = x random
    local found = { to = random:reshape { 1, dim, dim } }
    found.from = random:transpose(1, 2):compute():reshape { 1, dim, dim }
    if fitted and fitted.map then
      local heads = fitted.map:shape()[1]
      local function each(matrix, transposed)
        local list = {}
        for h = 1, heads do list[h] = matrix[h - 1]:matmul(random, { transpose_a = transposed or nil }):compute() end
        return q.stack(list, 1)
      end
      found.to, found.query = each(fitted.inverse), each(fitted.map, true)
    else
      found.signs = rotations.hadamard2_signs(dim, seed)
      found.back_signs = rotations.hadamard2_signs(dim, seed, true)
      if is_key then found.query = found.to end
    end
    if fitted and centred then
      local heads, list = fitted.mean:shape()[1], {}
      for h = 1, heads do
        local matrix = found.to[math.min(h, found.to:shape()[1]) - 1]
        list[h] = (fitted.mean:rows(h - 1, 1):matmul(matrix) * -1):reshape { dim }
      end
      found.to_bias = q.stack(list, 1):compute()
      if found.to:shape()[1] == 1 and heads > 1 then  -- one matrix, and a mean for each head
        for _, name in ipairs { "to", "from" } do
          local copies = {}
          for h = 1, heads do copies[h] = found[name][0] end
          found[name] = q.stack(copies, 1)
        end
      end
      if not is_key then found.back_bias = fitted.mean end
    end
    for name, tensor in pairs(found) do found[name] = q.keep(tensor:compute():clone()) end
    return found
  end)
end

-- A side of a layer that is kept as codes. fitted: its tensors in f32, or nil; centred: the mean may come off, as the
-- softmax has neither a cap nor sinks.
function kv_codes.open(side, dim, is_key, fitted, centred)
  local self = turns(dim, is_key, fitted, centred)
  self.levels = kv_codes.levels(side, dim)
  return self
end

function kv_codes.free(codes)
  for _, tensor in pairs(codes) do tensor:free() end
end

return kv_codes
