-- Values in more bits where attention is sensitive to them: in some channels, in some layers, as the seed's
-- (zapabob/Turboquant-CUDA) protected and sensitive codecs. What is sensitive is found on the documents that
-- kv_rotations.lua fits to, and judged on others.
--
-- The score of channel d of a head of values, where a are the weights and o the outputs of its query heads:
--   output     the mean over queries of sum_s (a_qs v_sd)^2
--   gradient   the mean over positions s of (sum_q a_qs o_qd)^2: of the loss |o|^2 / 2 the gradient by v_sd, squared
-- Groups are 8 channels next to each other; scores of groups, heads and layers are means of their channels'.

local capture = require "qeng.turboquant.capture"
local codecs = require "qeng.turboquant.codecs"
local q = require "qeng.core"
local rotations = require "qeng.codes.rotations"
local symmetric = require "qeng.codes.symmetric"

local values = {}

values.sources = { "output", "gradient" }
local group_size = 8
local cached = 4096      -- tokens of a cache, over which what is stored once for a head is counted
local sensitive = 0.25   -- of the layers

-- Of a layer, over the first documents of a capture: {["values.output"], ["values.gradient"] = scores [kv_heads, dim],
-- ["values.sample"] = values [kv_heads, documents * rows, dim]}. rows: queries of a head, and values, of a document.
function values.fit(folder, manifest, documents, layer, rows)
  local s = manifest.settings
  local index, count, sums, samples = {}, math.min(rows, s.tokens), {}, {}
  for i = 1, count do index[i] = math.floor((i - 0.5) * s.tokens / count) end
  local picked = q.tensor(index, "i32")
  local hidden = q.where(q.arange(0, s.tokens):reshape({ 1, -1 }):gt(picked:reshape { -1, 1 }), -1e30, 0):compute()
  local share = s.kv_heads / s.heads / documents
  for d = 1, documents do
    local tensors = capture.document(folder, manifest, d)
    local function part(name) return tensors[("layers.%d.%s"):format(layer, name)]:to "f32" end
    local function head(x, h) return x:slice(2, h, h + 1):reshape({ s.tokens, s.head_dim }):compute() end
    local query, key, value = part "query", part "key", part "value"
    for h = 0, s.heads - 1 do
      local kv = math.floor(h * s.kv_heads / s.heads)
      local k, v = head(key, kv), head(value, kv)
      local logits = (head(query, h):index_select(1, picked) * s.scale):matmul(k, { transpose_b = true })
      local a = (logits + hidden):softmax():compute()
      local back = a:matmul(a:matmul(v), { transpose_a = true })
      local here = q.stack({ a:square():matmul(v:square()):mean(1), back:square():mean(1) }, 1) * share
      sums[kv + 1] = (sums[kv + 1] and sums[kv + 1] + here or here):compute()
    end
    samples[d] = value:index_select(1, picked):transpose(1, 2)
  end
  local scores = q.stack(sums, 2)
  return { ["values.output"] = scores[0], ["values.gradient"] = scores[1], ["values.sample"] = q.concat(samples, 2) }
end

local function scores_of(fitted, layer, source)
  local scores = fitted(layer)["values." .. source]
  if not scores then q.error("value", "values were not fitted: kv_rotations.lua --names values") end
  return scores:table()
end

local function mean_of(list, first, last)
  local sum = 0
  for i = first or 1, last or #list do sum = sum + list[i] end
  return sum / ((last or #list) - (first or 1) + 1)
end

local function layer_score(fitted, layer, source)
  local of_heads = {}
  for h, scores in ipairs(scores_of(fitted, layer, source)) do of_heads[h] = mean_of(scores) end
  return mean_of(of_heads), of_heads
end

-- The lines of a CSV: scores of layers, heads, groups and channels, by both sources. Places count from 0.
function values.sensitivity(fitted, layers)
  local lines = { "level,layer,kv_head,group,channel,score_source,score" }
  for _, layer in ipairs(layers) do
    for _, source in ipairs(values.sources) do
      local function add(level, place, score)
        lines[#lines + 1] = ("%s,%d,%s,%s,%.9g"):format(level, layer, place, source, score)
      end
      local whole, of_heads = layer_score(fitted, layer, source)
      add("layer", ",,", whole)
      for h, scores in ipairs(scores_of(fitted, layer, source)) do
        add("head", h - 1 .. ",,", of_heads[h])
        for g = 1, #scores / group_size do
          add("group", ("%d,%d,"):format(h - 1, g - 1), mean_of(scores, (g - 1) * group_size + 1, g * group_size))
        end
        for c, score in ipairs(scores) do
          add("channel", ("%d,%d,%d"):format(h - 1, math.floor((c - 1) / group_size), c - 1), score)
        end
      end
    end
  end
  return lines
end

-- The channels of a head, from 0: those of the groups with the largest scores first.
local function ranked(scores)
  local groups, of_group, channels = {}, {}, {}
  for g = 1, #scores / group_size do
    groups[g], of_group[g] = g, mean_of(scores, (g - 1) * group_size + 1, g * group_size)
  end
  table.sort(groups, function(a, b)
    if of_group[a] ~= of_group[b] then return of_group[a] > of_group[b] end
    return a < b
  end)
  for _, g in ipairs(groups) do
    for c = 0, group_size - 1 do channels[#channels + 1] = (g - 1) * group_size + c end
  end
  return channels
end

-- The `rank` directions that hold most of the squares of x [n, dim], as rows.
local function directions(x, rank)
  local size, v = symmetric.eigen(x:matmul(x, { transpose_a = true }):table())
  local order, rows = {}, {}
  for i = 1, #size do order[i] = i end
  table.sort(order, function(a, b) return size[a] > size[b] end)
  for r = 1, rank do
    rows[r] = {}
    for c = 1, #v do rows[r][c] = v[c][order[r]] end
  end
  return q.tensor(rows)
end

-- Of the groups of a head the first `exact` by score stay f16, the next `secondary` have `high` bits, the rest `base`.
-- Channels are chosen as they are, before any rotation, and each kind is turned and coded by itself: the seed turns
-- the whole vector and applies the choice to what comes out, where a channel is no longer in one place.
-- With a rank, what is left has that many f16 coefficients in the directions that hold most of it on the sample.
-- opt: {base =, high = bits, exact =, secondary = shares of the groups, rank =, source =, rotation = name, seed =}
function values.protected(dim, opt, fitted)
  if dim % group_size ~= 0 then q.error("unsupported", ("groups of 8 channels in heads of %d"):format(dim)) end
  local groups, parts, bits = dim / group_size, {}, 0
  local exact = math.ceil(opt.exact * groups)
  local secondary = math.min(groups - exact, math.ceil(opt.secondary * groups))
  for i, part in ipairs { { exact, 16 }, { secondary, opt.high }, { groups - exact - secondary, opt.base } } do
    local count = part[1] * group_size
    if count > 0 then
      local codec = i > 1 and codecs.sphere(count, { bits = part[2] })
      local rotation = i > 1 and rotations.make(opt.rotation, count, opt.seed)
      parts[#parts + 1] = { count = count, decode = function(x)
        if not codec then return x:to("f16"):to "f32" end
        return rotations.undo(rotation, codec.reconstruct(rotations.apply(rotation, x):compute()))
      end }
      bits = bits + count * (codec and codec.bits or 16)
    end
  end
  local once = 2 * groups + 16 * opt.rank * dim  -- which group is what, and the directions
  local function decode(x, plan)
    local list, first, y = {}, 0, x:index_select(2, plan.channels)
    for i, part in ipairs(parts) do
      list[i] = part.decode(y:slice(2, first, first + part.count):compute())
      first = first + part.count
    end
    return q.concat(list, 2):index_select(2, plan.places):compute()
  end
  local function plan_of(layer, head)
    local channels, places = ranked(scores_of(fitted, layer, opt.source)[head + 1]), {}
    for i, c in ipairs(channels) do places[c + 1] = i - 1 end
    local plan = { channels = q.keep(q.tensor(channels, "i32")), places = q.keep(q.tensor(places, "i32")) }
    if opt.rank > 0 then
      local sample = fitted(layer)["values.sample"][head]
      plan.basis = q.keep(directions((sample - decode(sample, plan)):compute(), opt.rank))
    end
    return plan
  end
  local plans = {}
  return {
    bits = (bits + 16 * opt.rank + once / cached) / dim,
    reconstruct = function(x, _, _, head, layer)
      local name = layer .. "/" .. head
      plans[name] = plans[name] or plan_of(layer, head)
      local decoded, basis = decode(x, plans[name]), plans[name].basis
      if not basis then return decoded end
      local left = (x - decoded):matmul(basis, { transpose_b = true }):to("f16"):to "f32"
      return (decoded + left:matmul(basis)):compute()
    end,
  }
end

-- Whether a layer is in the quarter of the layers with the largest scores (by gradient).
function values.is_sensitive(layer, layers, fitted)
  local mine, larger = layer_score(fitted, layer, "gradient"), 0
  for _, other in ipairs(layers) do
    local score = layer_score(fitted, other, "gradient")
    if score > mine or score == mine and other < layer then larger = larger + 1 end
  end
  return larger < math.ceil(sensitive * #layers)
end

return values
