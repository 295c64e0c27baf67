-- Multiscreen relevance is that of plain loops in doubles, widths go to the keys that have the most of it, the causal
-- form knows nothing of what comes later, and every position's bit is counted.
local codecs = require "qeng.turboquant.codecs"
local methods = require "qeng.turboquant.methods"
local multiscreen = require "qeng.turboquant.multiscreen"
local q = require "qeng"

q.device { device = os.getenv "QENG_TEST_DEVICE" or "cpu", threads = 1 }
local tokens, heads, dim = 20, 2, 8
local queries, keys = q.randn({ tokens, heads, dim }, { seed = 1 }), q.randn({ tokens, dim }, { seed = 2 })

do  -- a key on its query has 1, on a neighbour's cos(1)^2, at right angles or opposite 0
  local function vector(at, sign)
    local list = {}
    for d = 1, 4 do list[d] = d == at and sign or 0 end
    return list
  end
  local query = q.tensor { { vector(1, 2) }, { vector(2, 3) }, { vector(2, 1) } }
  local key = q.tensor { vector(1, 5), vector(1, 7), vector(2, -1) }
  local reads = multiscreen.relevance(query, key, "reads"):table()
  local causal = multiscreen.relevance(query, key, "causal"):table()
  for s, want in ipairs { 1, 0, 0 } do assert(math.abs(reads[s] - want) < 1e-6, reads[s]) end
  for s, want in ipairs { 1, math.cos(1) ^ 2, 0 } do assert(math.abs(causal[s] - want) < 1e-6, causal[s]) end
end

do  -- relevance, against loops
  local function cosine(a, b)
    local ab, aa, bb = 0, 0, 0
    for d = 1, dim do ab, aa, bb = ab + a[d] * b[d], aa + a[d] ^ 2, bb + b[d] ^ 2 end
    return ab / math.sqrt(aa * bb)
  end
  local query, key = queries:table(), keys:table()
  for _, when in ipairs { "reads", "causal" } do
    local got = multiscreen.relevance(queries, keys, when):table()
    for s = 1, tokens do
      local most = 0
      for t = when == "causal" and 1 or s, when == "causal" and s or tokens do
        for h = 1, heads do
          local m = math.abs(t - s) == 1 and math.cos(1) or 1
          most = math.max(most, math.max(0, cosine(query[t][h], key[s]) * m) ^ 2)
        end
      end
      assert(math.abs(got[s] - most) < 1e-5, ("%s, key %d: %g, expected %g"):format(when, s, got[s], most))
    end
  end
end

do  -- the largest of all heads; so far: a key that fewer than its share of the earlier ones reach
  local relevance = q.tensor { { 5, 0.5 }, { 1, 0.4 }, { 2, 9 }, { 3, 0.1 } }
  local chosen = multiscreen.largest(relevance, 3):table()
  for t, row in ipairs { { 1, 0 }, { 0, 0 }, { 0, 1 }, { 1, 0 } } do
    assert(chosen[t][1] == row[1] and chosen[t][2] == row[2])
  end
  local so_far = multiscreen.largest_so_far(relevance, 0.5):table()
  for t, row in ipairs { { 1, 1 }, { 0, 0 }, { 1, 1 }, { 1, 0 } } do
    assert(so_far[t][1] == row[1] and so_far[t][2] == row[2], ("position %d"):format(t))
  end
end

do  -- what comes later changes no width of the causal form
  local function widths(query, key)
    local relevance = multiscreen.relevance(query, key, "causal"):reshape { -1, 1 }
    return multiscreen.largest_so_far(relevance, 0.25):compute()
  end
  local before = widths(queries, keys)
  local late = q.arange(0, tokens):ge(12):to "f32"
  local after = widths((queries + late:reshape { -1, 1, 1 } * 3):compute(), (keys - late:reshape { -1, 1 }):compute())
  assert((before - after):slice(1, 0, 12):abs():max():item() == 0)
  assert((before - after):abs():max():item() == 1, "nothing was changed")
end

local kv_heads = 4
local function document(count)
  return q.randn({ count, kv_heads * 2, 32 }, { seed = 3 }), q.randn({ count, kv_heads, 32 }, { seed = 4 })
end

do  -- the seed's 64 positions are all there are of a prompt of 16 tokens in 4 heads: a uniform width under another name
  local method = methods.parse("identity/multiscreen4.2", 32, 0)
  local seen = method.look(0, document(16))
  assert(seen.wide:min():item() == 1)
  assert(math.abs(seen.bits - (4 + 16 / 32 + 1 / 64)) < 1e-6, seen.bits)
end

do  -- codes are those of each width, and bits are what was used
  local query, key = document(48)
  local high, low = codecs.sphere(32, { bits = 4 }), codecs.sphere(32, { bits = 2 })
  for name, share in pairs { ["multiscreen4.2"] = 64 / 192, ["multiscreen4.2.25"] = 0.25,
    ["multiscreen4.2.25.causal"] = false } do
    local method = methods.parse("identity/" .. name, 32, 0)
    local seen = method.look(0, query, key)
    share = share or seen.wide:mean():item()  -- more than asked for, as relevance grows with the queries met
    assert(math.abs(seen.bits - (2 + 2 * share + 16 / 32 + 1 / 64)) < 1e-6, name)
    assert(share > 0.2 and share < 0.6, ("%s: %g of the positions"):format(name, share))
    local x = key:slice(2, 3, 4):reshape { 48, 32 }
    local got, wide = method.reconstruct(x, 0, 3, "key", seen), seen.wide:slice(2, 3, 4)
    local want = high.reconstruct(x) * wide + low.reconstruct(x) * (1 - wide)
    assert((got - want):abs():max():item() < 1e-6, name)
  end
end

for _, name in ipairs { "multiscreen2.4", "multiscreen4.2.0", "multiscreen4.2.causal", "multiscreen4.2.25.later",
  "multiscreen9.2" } do
  local ok, why = pcall(methods.parse, "identity/" .. name, 32, 0)
  assert(not ok and tostring(why):find("expected multiscreen4.2", 1, true), tostring(why))
end
