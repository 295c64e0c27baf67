-- Codes of vectors in few bits, as functions from vectors to what their codes stand for.
--
-- A codec is {name =, bits = bits of a coordinate, with scales and masks counted, reconstruct = function(x)}, for
-- vectors of dim coordinates: x [n, dim] f32 -> [n, dim]. Vectors are turned before (rotations.lua). Scales are f16.
-- Where keys take other bits than values: sides = {key =, value =}, and bits is the mean.
--
-- Zandieh, Daliri, Hadian, Mirrokni 2026, arXiv 2504.19874; corrections of the scale: Gao et al. 2024, arXiv
-- 2409.09913.

local codebook = require "qeng.codes.codebook"
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

-- The seed's mixed widths: of each direction the quarter of the coordinates that are largest has a bit more. Returns
-- directions to levels, and the bits of the number of the choice, by which it is stored.
local function mixed_levels(dim, bits)
  if dim % 4 ~= 0 then q.error("value", ("a quarter of %d coordinates"):format(dim)) end
  local low, high, chosen, mask = codebook.sphere(dim, bits), codebook.sphere(dim, bits + 1), dim / 4, 0
  for i = 1, chosen do mask = mask + math.log((dim - chosen + i) / i) / math.log(2) end
  return function(unit)
    local size = unit:abs()
    local least = size:topk(chosen, -1):slice(2, chosen - 1)
    return q.where(size:ge(least), levels_of(unit, high, bits + 1), levels_of(unit, low, bits))
  end, math.ceil(mask)
end

-- opt: {bits =, correction = "none"}
function codecs.mixed(dim, opt)
  local bits, correction = opt.bits, check_correction(opt.correction or "none")
  local code_of, mask = mixed_levels(dim, bits)
  return {
    name = ("mixed%g"):format(bits + 0.25), bits = bits + 0.25 + (16 + mask) / dim,
    reconstruct = function(x)
      local norm, unit = split(x)
      return scaled(unit, norm, code_of(unit), correction)
    end,
  }
end

-- Stage 2: Stage 1 in a bit less, and the signs of `dim` random products of what is left, whose length is stored too.
-- Products with what is decoded have no bias. opt: {bits =, whole, or a quarter more for mixed widths; seed = 0}
function codecs.product(dim, opt)
  local bits, mask = opt.bits, 0
  local code_of
  local sketch = q.scope(function() return q.keep(q.randn({ dim, dim }, { seed = opt.seed or 0 })) end)
  if bits % 1 ~= 0 then
    code_of, mask = mixed_levels(dim, math.floor(bits) - 1)
  elseif bits > 1 then
    local book = codebook.sphere(dim, bits - 1)
    code_of = function(unit) return levels_of(unit, book, bits - 1) end
  else
    code_of = function(unit) return unit * 0 end
  end
  return {
    name = ("product%g"):format(bits), bits = bits + (32 + mask) / dim,
    reconstruct = function(x)
      local norm, unit = split(x)
      local code = code_of(unit)
      local left = (unit - code):compute()
      local signs = q.where(left:matmul(sketch, { transpose_b = true }):ge(0), 1, -1)
      local back = signs:matmul(sketch) * (math.sqrt(math.pi / 2) / dim)
      return ((code + back * as_f16(left:norm(-1, true))) * as_f16(norm)):compute()
    end,
  }
end

-- ---------------------------------------------------------------- without the sphere's codebook

local magic = 1.5 * 2 ^ 23  -- added and taken off, it rounds a float32 below 2^22 to a whole number
local function rounded(x) return ((x + magic):compute() - magic):compute() end

-- Blocks of 32 with one scale, as llama.cpp's q4_0: the element that is largest in size is a whole negative number of
-- steps. opt: {bits =}: 2 to 8
function codecs.block(dim, opt)
  local bits, half = opt.bits, 2 ^ (opt.bits - 1)
  if dim % 32 ~= 0 then q.error("unsupported", ("blocks of 32 in heads of %d"):format(dim)) end
  return {
    name = ("block%d"):format(bits), bits = bits + 0.5,
    reconstruct = function(x)
      local parts = x:reshape { -1, 32 }
      local high, low = parts:max(2, true), parts:min(2, true)
      local scale = (q.where((high + low):gt(0), high, low) * (-1 / half)):compute()
      local codes = rounded(parts / q.where(scale:ne(0), scale, 1)):clamp(-half, half - 1)
      return (codes * as_f16(scale)):reshape(x:shape()):compute()
    end,
  }
end

-- Floats of 4 bits of exponent and 3 of mantissa (E4M3: up to 448, down to 2^-9), without a scale.
function codecs.fp8(_)
  local levels, thresholds = {}, {}
  for exponent = -7, 8 do
    for mantissa = 0, 7 do
      local normal = exponent > -7
      levels[#levels + 1] = (normal and 1 + mantissa / 8 or mantissa / 8) * 2 ^ (normal and exponent or -6)
    end
  end
  for i = 1, #levels - 1 do thresholds[i] = (levels[i] + levels[i + 1]) / 2 end
  levels[#levels], thresholds[#thresholds] = 448, 1e30  -- the last code is no number
  return {
    name = "fp8", bits = 8,
    reconstruct = function(x)
      return (levels_of(x:abs():compute(), { levels = levels, thresholds = thresholds }, 7) * x:sign()):compute()
    end,
  }
end

-- Tiles of 128 tokens, in the manner of KVarN (Huawei 2026, arXiv 2606.03458): each token, then each channel, by its
-- standard deviation, and then along the channels of a tile (side "key") or the coordinates of a token (side "value")
-- steps between the least and the largest. Deviations, leasts and steps are f16 and counted. opt: {bits =}
function codecs.tile(dim, opt)
  local bits, most, tokens = opt.bits, 2 ^ opt.bits - 1, 128
  local function deviation(x, d) return as_f16((x:square():mean(d, true) + 1e-12):sqrt()) end
  return {
    name = ("tile%d"):format(bits), bits = bits + 32 / dim + 32 / tokens,  -- the mean of both sides
    sides = { key = bits + 16 / dim + 48 / tokens, value = bits + 48 / dim + 16 / tokens },
    reconstruct = function(x, side)
      local count, parts = x:shape()[1], {}
      for first = 0, count - 1, tokens do
        local tile = x:slice(1, first, math.min(count, first + tokens)):compute()
        local of_token = deviation(tile, 2)
        local even = (tile / of_token):compute()
        local of_channel = deviation(even, 1)
        even = (even / of_channel):compute()
        local along = side == "value" and 2 or 1
        local low = as_f16(even:min(along, true))
        local step = as_f16((even:max(along, true) - low) * (1 / most))
        local codes = rounded((even - low) / q.where(step:gt(0), step, 1)):clamp(0, most)
        parts[#parts + 1] = ((codes * step + low) * of_channel * of_token):compute()
      end
      return q.concat(parts, 1)
    end,
  }
end

return codecs
