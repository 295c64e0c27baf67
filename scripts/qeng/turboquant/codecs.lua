-- Codes of vectors in few bits, as functions from vectors to what their codes stand for.
--
-- A codec is {name =, bits = bits of a coordinate, with scales and masks counted, reconstruct = function(x)}, for
-- vectors of dim coordinates: x [n, dim] f32 -> [n, dim]. Vectors are turned before (rotations.lua). Scales are f16.
--
-- Zandieh, Daliri, Hadian, Mirrokni 2026, arXiv 2504.19874; corrections of the scale: Gao et al. 2024, arXiv
-- 2409.09913.

local codebook = require "qeng.turboquant.codebook"
local q = require "qeng.core"

local codecs = {}

-- The index of the level nearest to each y, by halving: f32 from 0.
local function nearest(y, thresholds, bits)
  local table_ = q.tensor(thresholds)
  local index = y * 0
  for bit = bits - 1, 0, -1 do
    local middle = table_:index_select(1, (index + (2 ^ bit - 1)):to("i32"):reshape { -1 }):reshape(y:shape())
    index = (index + y:gt(middle) * (2 ^ bit)):compute()
  end
  return index
end

local function levels_of(y, book, bits)
  local index = nearest(y, book.thresholds, bits)
  return q.tensor(book.levels):index_select(1, index:to("i32"):reshape { -1 }):reshape(y:shape())
end

local function as_f16(x) return x:to("f16"):to("f32") end

-- x as a length and a direction; 0 for no direction.
local function split(x)
  local norm = x:norm(-1, true)
  return norm, (x / q.where(norm:gt(0), norm, 1)):compute()
end

local corrections = {
  none = function() return 1 end,
  -- The length of what is decoded is that of x.
  norm = function(_, code) return code:norm(-1, true) end,
  -- The product of what is decoded with x is that of x with itself: no bias in the products with anything else.
  inner = function(unit, code) return (unit * code):sum(-1, true) end,
}

-- Levels, and the vector's length over its correction as the scale. Lengths of 0 give 0.
local function scaled(unit, norm, code, correction)
  local by = corrections[correction](unit, code)
  if by ~= 1 then norm = norm / q.where(norm:gt(0), by, 1) end
  return (code * as_f16(norm)):compute()
end

local function check_correction(name)
  if not corrections[name] then
    q.error("value", ("correction %s; expected none, norm or inner"):format(tostring(name)))
  end
  return name
end

-- Stage 1: the direction's coordinates by the sphere's codebook. opt: {bits =, correction = "norm"}
function codecs.sphere(dim, opt)
  local bits, correction = opt.bits, check_correction(opt.correction or "norm")
  local book = codebook.sphere(dim, bits)
  return {
    name = ("sphere%d %s"):format(bits, correction), bits = bits + 16 / dim,
    reconstruct = function(x)
      local norm, unit = split(x)
      return scaled(unit, norm, levels_of(unit, book, bits), correction)
    end,
  }
end

-- Widths that change from coordinate to coordinate: of each `period` the first `wide` have a bit more.
-- opt: {bits =, wide =, period =, correction = "norm"}
function codecs.alternating(dim, opt)
  local bits, wide, period, correction = opt.bits, opt.wide, opt.period, check_correction(opt.correction or "norm")
  if dim % period ~= 0 then q.error("value", ("widths of period %d over %d coordinates"):format(period, dim)) end
  local low, high = codebook.sphere(dim, bits), codebook.sphere(dim, bits + 1)
  return {
    name = ("sphere%g %s"):format(bits + wide / period, correction), bits = bits + wide / period + 16 / dim,
    reconstruct = function(x)
      local norm, unit = split(x)
      local parts = unit:reshape { -1, dim / period, period }
      local code = q.concat({
        levels_of(parts:slice(3, 0, wide), high, bits + 1), levels_of(parts:slice(3, wide), low, bits),
      }, 3):reshape(x:shape())
      return scaled(unit, norm, code, correction)
    end,
  }
end

-- The seed's mixed widths: of each vector the quarter of the coordinates that are largest has a bit more. Which they
-- are is stored, as the number of that choice. opt: {bits =, correction = "none"}
function codecs.mixed(dim, opt)
  local bits, correction = opt.bits, check_correction(opt.correction or "none")
  if dim % 4 ~= 0 then q.error("value", ("a quarter of %d coordinates"):format(dim)) end
  local low, high, chosen, mask = codebook.sphere(dim, bits), codebook.sphere(dim, bits + 1), dim / 4, 0
  for i = 1, chosen do mask = mask + math.log((dim - chosen + i) / i) / math.log(2) end
  return {
    name = ("mixed%g"):format(bits + 0.25), bits = bits + 0.25 + (16 + math.ceil(mask)) / dim,
    reconstruct = function(x)
      local norm, unit = split(x)
      local size = unit:abs()
      local least = size:topk(chosen, -1):slice(2, chosen - 1)
      local code = q.where(size:ge(least), levels_of(unit, high, bits + 1), levels_of(unit, low, bits))
      return scaled(unit, norm, code, correction)
    end,
  }
end

-- Stage 2: Stage 1 in a bit less, and the signs of `dim` random products of what is left, whose length is stored too.
-- Products with what is decoded have no bias. opt: {bits =, seed = 0}
function codecs.product(dim, opt)
  local bits = opt.bits
  local sketch = q.scope(function() return q.keep(q.randn({ dim, dim }, { seed = opt.seed or 0 })) end)
  local book = bits > 1 and codebook.sphere(dim, bits - 1)
  return {
    name = ("product%d"):format(bits), bits = bits + 32 / dim,
    reconstruct = function(x)
      local norm, unit = split(x)
      local code = book and levels_of(unit, book, bits - 1) or unit * 0
      local left = (unit - code):compute()
      local signs = q.where(left:matmul(sketch, { transpose_b = true }):ge(0), 1, -1)
      local back = signs:matmul(sketch) * (math.sqrt(math.pi / 2) / dim)
      return ((code + back * as_f16(left:norm(-1, true))) * as_f16(norm)):compute()
    end,
  }
end

return codecs
