-- More bits for the keys that are relevant to queries: zapabob/Turboquant-CUDA's multiscreen relevance, and a form of
-- it that a cache can use. A key's width is for all its coordinates, and its value has the same.
--
-- The relevance of the key at s to the query at t, of a head, is max(0, cos(q_t, k_s) m(t - s))^2: the seed's, with
-- the parameters that it ships. m is 1, but cos(1) for neighbours. A key's relevance is the most over its queries:
--   reads   those from s on, which read the key. They come after it: a bound, not for a cache. (The seed takes random
--           keys, with noise added, as queries.)
--   causal  those up to s, which are known when the key is stored
-- reads takes the largest of all heads of a layer; causal takes a key that is among the largest so far of its head. The
-- first key always is, and later ones are more often than they should: they were met by more queries. Counted is what
-- was taken.
--
-- A bit of each position and head says which width it has: counted, once for key and value.

local codecs = require "qeng.turboquant.codecs"
local q = require "qeng.core"

local multiscreen = {}

local positions = 64  -- of a layer, over all heads: the seed's number

-- The relevance [tokens] of keys [tokens, dim] to queries [tokens, heads, dim] of their group. when: "reads", "causal"
function multiscreen.relevance(queries, keys, when)
  local tokens, heads, dim = unpack(queries:shape())
  local function directions(x) return (x / x:norm(-1, true):clamp(1e-30)):compute() end
  local at, k, most = q.arange(0, tokens), directions(keys), nil
  local apart = at:reshape { -1, 1 } - at:reshape { 1, -1 }  -- t - s
  local near = q.where(apart:abs():eq(1), math.cos(1), 1)
  local counts = when == "causal" and apart:le(0) or apart:ge(0)
  local weights = (near * counts):compute()
  for h = 0, heads - 1 do
    local of_head = directions(queries:slice(2, h, h + 1):reshape { tokens, dim })
    local found = (of_head:matmul(k, { transpose_b = true }) * weights):clamp(0):max(1)
    most = (most and most:maximum(found) or found):compute()
  end
  return most:square():compute()
end

-- 1 for the `count` most relevant positions of all heads, 0 for the rest. relevance, result: [tokens, heads]
function multiscreen.largest(relevance, count)
  local n = relevance:elements()
  local _, places = relevance:reshape({ n }):topk(math.min(count, n))
  return q.zeros({ n }):scatter_add(1, places, places * 0 + 1):reshape(relevance:shape())
end

-- 1 for each position that is among the largest `share` of those up to its own.
function multiscreen.largest_so_far(relevance, share)
  local tokens, heads, columns = relevance:shape()[1], relevance:shape()[2], {}
  local at = q.arange(0, tokens)
  local before = at:reshape({ 1, -1 }):lt(at:reshape { -1, 1 }):compute()
  for h = 0, heads - 1 do
    local one = relevance:slice(2, h, h + 1):compute()
    local above = (one:reshape({ 1, -1 }):ge(one) * before):sum(2)
    columns[h + 1] = above:lt((at + 1) * share):to("f32"):reshape { -1, 1 }
  end
  return q.concat(columns, 2)
end

-- opt: {high =, low = bits, share = of the positions (the seed's 64 of a layer), causal = false}
function multiscreen.codec(dim, opt)
  local high, low = codecs.sphere(dim, { bits = opt.high }), codecs.sphere(dim, { bits = opt.low })
  local when = opt.causal and "causal" or "reads"
  local function widths(query, key)
    local tokens, heads = key:shape()[1], key:shape()[2]
    local group, columns = query:shape()[2] / heads, {}
    for h = 0, heads - 1 do
      local queries, keys = query:slice(2, h * group, (h + 1) * group), key:slice(2, h, h + 1):reshape { tokens, dim }
      columns[h + 1] = multiscreen.relevance(queries:compute(), keys, when):reshape { -1, 1 }
    end
    local relevance = q.concat(columns, 2)
    if opt.causal then return multiscreen.largest_so_far(relevance, opt.share):compute() end
    return multiscreen.largest(relevance, opt.share and math.ceil(opt.share * tokens * heads) or positions):compute()
  end
  return {
    look = function(query, key)
      local wide = q.scope(widths, query, key)
      local codes = low.bits + wide:mean():item() * (opt.high - opt.low)
      return { wide = wide, bits = codes + 1 / (2 * dim), sides = { key = codes + 1 / dim, value = codes } }
    end,
    reconstruct = function(x, _, seen, head)
      local wide = seen.wide:slice(2, head, head + 1)
      return q.where(wide:gt(0), high.reconstruct(x), low.reconstruct(x)):compute()
    end,
  }
end

return multiscreen
