-- Codecs and rotations by the names that a user gives: ROTATION/CODEC, as "hadamard2/sphere3.inner".
--   identity random_haar block_so8_static hadamard hadamard2
--   transport so8_vector so8_plus so8_minus   what kv_rotations.lua has fitted; transport turns values by hadamard2,
--                                        without their mean
--   sphere1 to sphere8, sphere2.25 ...   codes of directions, scaled to the vector's length; sphere3.none: by what the
--                                        length was, sphere3.inner: so that products are right
--   mixed2.25 ...                        a bit more for the largest quarter of each vector
--   multiscreen4.2                       4 bits for the 64 keys of a layer that are most relevant to queries, 2 for the
--                                        rest; multiscreen4.2.25: for a quarter of the keys; multiscreen4.2.25.causal:
--                                        by the queries so far
--   product2 to product8                 a bit of each for signs of what is left; product2.25 ...: of mixed widths
--   tile2 to tile8                       tiles of 128 tokens in the manner of KVarN
--   block2 to block8                     blocks of 32 with a scale, as q4_0 is one of 4 bits
--   q8_0 q5_1 q5_0 q4_1 q4_0 fp8         formats of the engine's tensors, and E4M3
--   exact                                nothing
-- sphere3.first4, and so of any codec: the first 4 tokens of a document, to which many heads look, are exact.
-- Keys by one, values by another: identity/q8_0+hadamard2/sphere4. Of values alone:
--   protected3                           by channels, after kv_rotations.lua: a tenth of the groups of 8 exact, a tenth
--                                        in 8 bits, the rest in 3; protected3.a20.b0.h4.r4.gradient: 20 % exact, none
--                                        in 4 bits, 4 coefficients of what is left, and scores by the gradient
--   sensitive3                           exact in the quarter of the layers that are most sensitive, sphere3 in others

local codecs = require "qeng.turboquant.codecs"
local fit = require "qeng.turboquant.fit"
local multiscreen = require "qeng.turboquant.multiscreen"
local q = require "qeng.core"
local rotations = require "qeng.codes.rotations"
local values = require "qeng.turboquant.values"

local methods = {}

local blocks = { q8_0 = 8.5, q5_1 = 6, q5_0 = 5.5, q4_1 = 5, q4_0 = 4.5 }  -- bits of an element

local function block_codec(dtype, dim)
  if dim % 32 ~= 0 then q.error("unsupported", ("%s packs 32 elements; heads have %d"):format(dtype, dim)) end
  return {
    name = dtype, bits = blocks[dtype],
    reconstruct = function(x) return q.quantize(x:compute(), dtype):to "f32" end,
  }
end

local function sphere(dim, width, correction)
  local whole = math.floor(width)
  if whole == width then return codecs.sphere(dim, { bits = width, correction = correction }) end
  return codecs.alternating(dim, { bits = whole, wide = (width - whole) * 4, period = 4, correction = correction })
end

local function multiscreen_codec(text, dim)
  local high, low, share, causal = text:match "^multiscreen(%d)%.(%d)%.?(%d*)%.?(%a*)$"
  high, low, share = tonumber(high), tonumber(low), tonumber(share)
  if not low or high <= low or low < 1 or high > 8 or share and (share < 1 or share > 99)
    or causal ~= "" and (causal ~= "causal" or not share) then
    q.error("value", ("codec %s; expected multiscreen4.2, multiscreen4.2.25 or multiscreen4.2.25.causal"):format(text))
  end
  share = share and share / 100
  return multiscreen.codec(dim, { high = high, low = low, share = share, causal = causal == "causal" })
end

local function codec_of(text, dim, seed)
  if text == "exact" then return { name = text, bits = 16, reconstruct = function(x) return x end } end
  if text == "fp8" then return codecs.fp8(dim) end
  if blocks[text] then return block_codec(text, dim) end
  if text:find "^multiscreen" then return multiscreen_codec(text, dim) end
  local kind, width, correction = text:match "^(%a+)(%d%.?%d*)%.?(%a*)$"
  width = tonumber(width)
  if width and (width * 4) % 1 == 0 and width >= 1 and width <= 8 then
    if correction == "" then correction = nil end
    if kind == "sphere" then return sphere(dim, width, correction) end
    if kind == "mixed" and width % 1 == 0.25 then
      return codecs.mixed(dim, { bits = math.floor(width), correction = correction })
    end
    if (kind == "tile" or kind == "block") and width % 1 == 0 and width >= 2 and not correction then
      return codecs[kind](dim, { bits = width })
    end
    if kind == "product" and (width % 1 == 0 or width % 1 == 0.25 and width > 2) and not correction then
      return codecs.product(dim, { bits = width, seed = seed + 1 })
    end
  end
  q.error("value", ("codec %s; expected sphere3, sphere2.5.inner, mixed2.25, product3, q8_0, q4_0 or exact"):format(
    text))
end

-- A rotation that is the same for all layers, as {to = function(x), back = function(y)}.
local function turned(rotation)
  return {
    to = function(x) return rotations.apply(rotation, x) end,
    back = function(y) return rotations.undo(rotation, y) end,
  }
end

-- What a name stands for, as a function of layer, head and side ("key" or "value").
local function basis_of(name, dim, seed, fitted)
  if not fit.known[name] or name == "values" then
    local basis = turned(rotations.make(name, dim, seed))
    return function() return basis end
  end
  if not fitted then
    q.error("value", ("method %s needs what kv_rotations.lua has fitted: --rotations"):format(name))
  end
  local random = rotations.make("hadamard2", dim, seed)
  return function(layer, head, side)
    local tensors = fitted(layer)
    if name ~= "transport" then return turned { matrix = tensors[name] } end
    if side == "value" then
      local mean = tensors["transport.value_mean"][head]
      return {
        to = function(x) return rotations.apply(random, x - mean) end,
        back = function(y) return rotations.undo(random, y) + mean end,
      }
    end
    local mean = tensors["transport.mean"][head]
    local map, inverse = tensors["transport.map"][head], tensors["transport.inverse"][head]
    return {
      to = function(x) return rotations.apply(random, (x - mean):matmul(inverse)) end,
      back = function(y) return rotations.undo(random, y):matmul(map) + mean end,
    }
  end
end

local function protected(text, dim, rotation, seed, fitted)
  local base, words = text:match "^protected(%d)([%w.]*)$"
  local opt = { base = tonumber(base), high = 8, exact = 0.1, secondary = 0.1, rank = 0, source = "output",
    rotation = rotation, seed = seed }
  local wrong = not opt.base or opt.base < 1 or opt.base > 8
  for word in (words or ""):gmatch "[^.]+" do
    local letter, number = word:match "^([abhr])(%d+)$"
    number = tonumber(number)
    if letter == "a" then opt.exact = number / 100
    elseif letter == "b" then opt.secondary = number / 100
    elseif letter == "h" and number >= 1 and number <= 8 then opt.high = number
    elseif letter == "r" and number <= dim then opt.rank = number
    elseif word == "gradient" or word == "output" then opt.source = word
    else wrong = true end
  end
  if wrong or opt.exact > 1 or opt.secondary > 1 then
    q.error("value", ("codec %s; expected protected3, or as protected3.a20.b10.h8.r4.gradient"):format(text))
  end
  return values.protected(dim, opt, fitted)
end

-- The method with the first tokens of a document exact, f16.
local function with_exact(method, count)
  local look, reconstruct = method.look, method.reconstruct
  function method.look(layer, query, key)
    local within, share = look(layer, query, key), math.min(1, count / key:shape()[1])
    local function bits(x) return x + share * (16 - x) end
    local sides = within.sides and { key = bits(within.sides.key), value = bits(within.sides.value) }
    return { within = within, bits = bits(within.bits), sides = sides }
  end
  function method.reconstruct(x, layer, head, side, seen)
    if x:shape()[1] <= count then return x end
    local rest = reconstruct(x, layer, head, side, seen.within):slice(1, count)
    return q.concat({ x:slice(1, 0, count), rest }, 1):compute()
  end
  return method
end

-- The method of one name. Where it codes values alone, it says so: values_only.
local function single(text, dim, seed, fitted, layers)
  local rotation, name = text:match "^([%w_]+)/([%w_.]+)$"
  if not rotation then
    q.error("value", ("method %s; expected ROTATION/CODEC, as hadamard2/sphere3"):format(text))
  end
  local coded, first = name:match "^(.+)%.first(%d+)$"
  name = coded or name
  local is_protected, base = name:find "^protected" ~= nil, name:match "^sensitive(%d)$"
  local values_only = is_protected or base ~= nil
  if values_only and not fitted then
    q.error("value", ("method %s needs what kv_rotations.lua has fitted: --rotations"):format(text))
  end
  -- Protected channels are chosen before a rotation, which is of each kind's own size.
  local basis = basis_of(is_protected and "identity" or rotation, dim, seed, fitted)
  local code = is_protected and protected(name, dim, rotation, seed, fitted)
    or codec_of(base and "sphere" .. base or name, dim, seed)
  local exact = {}
  if base then
    for _, layer in ipairs(layers) do exact[layer] = values.is_sensitive(layer, layers, fitted) end
  end
  local turned_at_random = rotation == "transport" or not fit.known[rotation] and rotation ~= "identity"
  local method = {
    name = text, values_only = values_only, seeded = turned_at_random or name:find "^product" ~= nil,
    look = function(layer, query, key)
      if exact[layer] then return { bits = 16 } end
      return code.look and code.look(query, key) or { bits = code.bits, sides = code.sides }
    end,
    reconstruct = function(x, layer, head, side, seen)
      if exact[layer] then return x end
      local turn = basis(layer, head, side)
      return q.scope(function()
        return q.keep(turn.back(code.reconstruct(turn.to(x):compute(), side, seen, head, layer)):compute())
      end)
    end,
  }
  return first and with_exact(method, tonumber(first)) or method
end

-- A method: {name =, seeded = whether its seed matters,
--   look = function(layer, query [tokens, heads, dim], key [tokens, kv_heads, dim]): what it sees of a document's layer
--     before it codes that, {bits = of a coordinate there, sides = {key =, value =} where they differ},
--   reconstruct = function(x [n, dim], layer, head, side, seen): what its code stands for, turned back}
-- fitted: function(layer) that gives the tensors of fit.lua, or nil; layers: the numbers of those there are.
function methods.parse(text, dim, seed, fitted, layers)
  local first, second = text:match "^([^+]+)%+([^+]+)$"
  local by = { key = single(first or text, dim, seed, fitted, layers) }
  by.value = second and single(second, dim, seed, fitted, layers) or by.key
  if by.key.values_only then
    q.error("value", ("method %s codes values alone; as KEYS+VALUES: identity/exact+%s"):format(text, by.key.name))
  end
  if not second then return by.key end
  return {
    name = text, seeded = by.key.seeded or by.value.seeded,
    look = function(...)
      local seen, bits = {}, 0
      for side, method in pairs(by) do
        seen[side] = method.look(...)
        local sides = seen[side].sides
        bits = bits + (sides and sides[side] or seen[side].bits)
      end
      seen.bits = bits / 2
      return seen
    end,
    reconstruct = function(x, layer, head, side, seen)
      return by[side].reconstruct(x, layer, head, side, seen[side])
    end,
  }
end

return methods
