-- How a cache keeps keys and values, by a text that a user gives:
--   f32 f16 bf16 q8_0            rows of a dtype
--   tq2 to tq4, tq2.5, tq3.25    codes of so many bits for each dimension, and a scale in 16 (kernels/math/kv_codes.h)
--   q8_0/tq3                     keys as the first, values as the second
--   tq4,tail=128,sinks=4         codes, but the last 128 tokens before each query, and the first 4 of each sequence, in
--                                f16. These are the defaults where there are codes; 0: none
--   tq3,edges=2                  the first two and the last two layers in q8_0
--   tq3,wide=0+17                the keys of layers 0 and 17 in q8_0
--   tq3,bases=DIR                keys are turned as kv_rotations.lua fitted it, instead of at random
--   tq3,mean=auto                the mean of keys comes off before they are coded. kv_auto.lua measures it in a model,
--                                and puts its hash in the place of auto
--   auto,tail=64                 tq4,mean=auto, and `wide` by the norms of keys (kv_auto.lua)
-- Options follow each other in any order.

local q = require "qeng.core"

local kv_types = {}

-- Dtypes of plain rows, and their bytes an element.
kv_types.dtypes = { "f32", "f16", "bf16", "q8_0" }
local element = { f32 = 4, f16 = 2, bf16 = 2, q8_0 = 34 / 32 }
local lanes, run = 16, 32  -- slots of a tile, dimensions that are coded together
local exact_bytes = 2      -- of an element in f16

kv_types.automatic = "tq4"

local defaults = { tail = 128, sinks = 4, edges = 0 }

local function side(name)
  if element[name] then return { name = name, dtype = name } end
  local width = tonumber(name:match "^tq(%d%.?%d*)$")
  if not width or width < 2 or width > 4 or (4 * width) % 1 ~= 0 then return nil, ("'%s' is no type"):format(name) end
  return { name = name, width = width, bits = math.floor(width) }
end

-- Sets the options behind the first comma. Returns what is wrong with them, nil if nothing is.
local function set_options(spec, text)
  local coded = spec.key.bits or spec.value.bits
  for name, default in pairs(defaults) do spec[name] = coded and default or 0 end
  for part in text:gmatch ",([^,]*)" do
    local name, given = part:match "^(%w+)=(.+)$"
    if name == "bases" then
      spec.bases = given
    elseif name == "mean" and given:match "^%w+$" then
      spec.mean = given
    elseif name == "wide" and not spec.auto and (given .. "+"):gsub("%d%d?%d?%d?%+", "") == "" then
      spec.wide = {}
      for layer in given:gmatch "%d+" do spec.wide[tonumber(layer)] = true end
    elseif name and defaults[name] and given:match "^%d+$" and #given < 8 then
      spec[name] = tonumber(given)
    else
      return ("'%s' is no option"):format(part)
    end
    if not coded then return name .. " is an option of codes" end
  end
  if spec.mean and spec.bases then return "bases have a mean of their own" end
  if spec.mean and not spec.key.bits then return ("a mean comes off keys in codes, not %s"):format(spec.key.name) end
end

local expected = "expected auto, f32, f16, bf16, q8_0 or tq2 to tq4, for keys and values as q8_0/tq3, and behind a " ..
  "comma tail=128, sinks=4, edges=2, wide=0+17, mean=auto or bases=DIR"

-- What a text says, or nil and what is wrong with it.
local function read(text)
  if type(text) ~= "string" then return nil, ("a %s; %s"):format(type(text), expected) end
  local names = text:match "^[^,]*"
  local auto = names == "auto" or nil
  local first, second = names:match "^(.-)/(.*)$"
  local key, wrong_key = side(auto and kv_types.automatic or first or names)
  local value, wrong_value = side(auto and kv_types.automatic or second or names)
  local spec = { text = text, key = key, value = value, auto = auto }
  local why = wrong_key or wrong_value or set_options(spec, text:sub(#names + 1))
  if why then return nil, ("%s; %s"):format(why, expected) end
  return spec
end

local known = {}

-- {text =, key =, value = sides: {name =, dtype = of plain rows, or bits = and width = of codes}, tail =, sinks =,
-- edges =, bases =, wide = set of layers, mean =, auto = whether wide is to be found}
function kv_types.parse(text)
  if known[text] then return known[text] end
  local spec, why = read(text)
  if not spec then q.error("value", ("kv is %s: %s"):format(tostring(text), why)) end
  known[text] = spec
  return spec
end

-- What is wrong with a text, nil if nothing is.
function kv_types.fault(text)
  local _, why = read(text)
  return why
end

-- The type without what is measured in a model: it takes the same memory, unless auto finds that keys need more.
function kv_types.unmeasured(text)
  return text and (text:gsub("^auto", kv_types.automatic):gsub(",mean=%w+", ""))
end

-- Whether some tokens are kept exactly beside their codes.
function kv_types.has_exact(spec) return spec.tail > 0 or spec.sinks > 0 end

-- The sides of a layer: `place` is its number among `layers` with keys and values, from 1, `number` that in the model.
function kv_types.sides(spec, place, layers, number)
  local function wider(one) return one.bits and { name = "q8_0", dtype = "q8_0" } or one end
  if spec.edges >= place or spec.edges > layers - place then return wider(spec.key), wider(spec.value) end
  return spec.wide and spec.wide[number] and wider(spec.key) or spec.key, spec.value
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
