-- How a cache keeps keys and values, by a text that a user gives:
--   f32 f16 bf16 q8_0            rows of a dtype
--   tq2 to tq4, tq2.5, tq3.25    codes of so many bits for each dimension, and a scale in 16 (kernels/math/kv_codes.h)
--   q8_0/tq3                     keys as the first, values as the second
--   tq4,tail=128,sinks=4         codes, but the last 128 tokens before each query, and the first 4 of each sequence, in
--                                f16. These are the defaults where there are codes; 0: none
--   tq3,edges=2                  the first two and the last two layers in q8_0
--   tq3,bases=DIR                keys are turned as kv_rotations.lua fitted it, instead of at random
-- Options follow each other in any order.

local q = require "qeng.core"

local kv_types = {}

-- Dtypes of plain rows, and their bytes an element.
kv_types.dtypes = { "f32", "f16", "bf16", "q8_0" }
local element = { f32 = 4, f16 = 2, bf16 = 2, q8_0 = 34 / 32 }
local lanes, run = 16, 32  -- slots of a tile, dimensions that are coded together
local exact_bytes = 2      -- of an element in f16

local defaults = { tail = 128, sinks = 4, edges = 0 }

local function refuse(text, why)
  q.error("value", ("kv is %s: %s; expected f32, f16, bf16, q8_0 or tq2 to tq4, for keys and values as q8_0/tq3, " ..
    "and behind a comma tail=128, sinks=4, edges=2 or bases=DIR"):format(tostring(text), why))
end

local function side(name, text)
  if element[name] then return { name = name, dtype = name } end
  local width = tonumber(name:match "^tq(%d%.?%d*)$")
  if not width or width < 2 or width > 4 or (4 * width) % 1 ~= 0 then refuse(text, name .. " is no type") end
  return { name = name, width = width, bits = math.floor(width) }
end

local known = {}

-- {text =, key =, value = sides: {name =, dtype = of plain rows, or bits = and width = of codes}, tail =, sinks =,
-- edges =, bases =}
function kv_types.parse(text)
  if known[text] then return known[text] end
  if type(text) ~= "string" then refuse(text, "it is a " .. type(text)) end
  local spec, names = { text = text }, text:match "^[^,]*"
  local key, value = names:match "^(.-)/(.*)$"
  spec.key, spec.value = side(key or names, text), side(value or names, text)
  local coded = spec.key.bits or spec.value.bits
  for name, default in pairs(defaults) do spec[name] = coded and default or 0 end
  for name, given in text:sub(#names + 1):gmatch ",(%w+)=([^,]*)" do
    if name == "bases" then
      spec.bases = given
    elseif defaults[name] and given:match "^%d+$" and #given < 8 then
      spec[name] = tonumber(given)
    else
      refuse(text, ("%s=%s is no option"):format(name, given))
    end
    if not coded then refuse(text, name .. " is an option of codes") end
  end
  local rest = text:sub(#names + 1):gsub(",%w+=[^,]*", "")
  if rest ~= "" then refuse(text, ("'%s' is no option"):format(rest)) end
  known[text] = spec
  return spec
end

-- Whether some tokens are kept exactly beside their codes.
function kv_types.has_exact(spec) return spec.tail > 0 or spec.sinks > 0 end

-- The sides of a layer: `place` is its number among `layers` with keys and values, from 1.
function kv_types.sides(spec, place, layers)
  if spec.edges >= place or spec.edges > layers - place then
    local function wider(one) return one.bits and { name = "q8_0", dtype = "q8_0" } or one end
    return wider(spec.key), wider(spec.value)
  end
  return spec.key, spec.value
end

-- Dimensions of heads of `dim` that have a bit more than the others.
function kv_types.wide(one, dim) return (one.width - one.bits) * dim end

-- Bytes of a tile of 16 slots of a head.
function kv_types.tile_bytes(one, dim)
  return 4 * lanes * (one.bits * dim + kv_types.wide(one, dim)) / run + 2 * lanes
end

-- Bytes of a token's head of `dim` elements on a side.
function kv_types.bytes(one, dim)
  if one.dtype == "q8_0" and dim % 32 ~= 0 then
    q.error("unsupported", ("kv = q8_0 needs heads of a multiple of 32, this model's have %d; take f16"):format(dim))
  end
  if one.dtype then return dim * element[one.dtype] end
  if dim % run ~= 0 or kv_types.wide(one, dim) % run ~= 0 then
    q.error("unsupported", ("kv = %s needs heads of a multiple of %d, this model's have %d; take q8_0 or f16"):format(
      one.name, one.width % 1 == 0 and run or run / (one.width % 1 == 0.5 and 0.5 or 0.25), dim))
  end
  return kv_types.tile_bytes(one, dim) / lanes
end

-- Bytes of a token's head of `dim` elements that is kept exactly.
function kv_types.exact_bytes(one, dim) return one.bits and dim * exact_bytes or 0 end

-- Pages of exact rows that hold what steps of so many rows and sequences need at once. Each sequence has its first and
-- its latest tokens there, on pages that these may only touch, and one page before, to which it may go back.
function kv_types.exact_pages(spec, shape)
  if not kv_types.has_exact(spec) then return 0 end
  local size = shape.page_tokens
  local each = math.ceil(spec.sinks / size) + math.ceil(spec.tail / size) + 3
  return shape.sequences * each + math.ceil(shape.rows / size)
end

return kv_types
