-- What codecs do to attention, on captured queries, keys and values (capture.lua). A document's figures are means over
-- its layers, heads and the queries that are looked at: every n-th position, so that there are `queries` of them, from
-- position 16 on. Each query sees the keys before it and its own, and logits are scaled as the model scales them.
--   cosine    of the logits with the right ones, over the keys that are seen, less their means
--   kl        KL(right || coded) of the softmax, in nats
--   top1      share of queries whose largest weight stays the same key's
--   top5      share of the five largest weights that stay among the five
--   spearman  of the logits
--   output    |o - o'| / |o| of a head's outputs, keys and values coded;   output_k, output_v: only one of them

local capture = require "qeng.turboquant.capture"
local fit = require "qeng.turboquant.fit"
local methods = require "qeng.turboquant.methods"
local q = require "qeng.core"
local seed_metrics = require "qeng.turboquant.seed_metrics"
local statistics = require "qeng.report.statistics"

local evaluate = {}

evaluate.metrics = { "cosine", "kl", "top1", "top5", "spearman", "output", "output_k", "output_v" }
local ranked = 4  -- queries of a head for which logits are ranked, the last ones: it takes the longest

-- Positions of the queries that are looked at, from 0.
local function positions_of(tokens, queries)
  local first = math.min(16, tokens - 1)
  local count, list = math.min(queries, tokens - first), {}
  for i = 1, count do list[i] = first + math.floor((i - 0.5) * (tokens - first) / count) end
  return list
end

-- {{keys that are seen, Spearman's correlation of their logits}...} of the last queries.
local function rank_correlations(logits, coded, positions)
  local list, count = {}, math.min(ranked, #positions)
  for i = #positions - count, #positions - 1 do
    local seen = positions[i + 1] + 1
    local a, b = logits[i]:slice(1, 0, seen):table(), coded[i]:slice(1, 0, seen):table()
    list[#list + 1] = { seen, statistics.spearman(a, b) or 1 }
  end
  return list
end

-- The figures of a head. right: {q [n, dim], k, v [tokens, dim], logits, weights, out, sees, five, counts}
-- for_seed: sums of seed_metrics.lua.
local function head_figures(right, keys, values, positions, for_seed, scale)
  local coded = right.q:matmul(keys, { transpose_b = true }):compute()
  local function centred(x)
    local mean = (x * right.sees):sum(2, true) / right.counts
    return ((x - mean) * right.sees):compute()
  end
  local a, b = centred(right.logits), centred(coded)
  local cosine = ((a * b):sum(2) / ((a * a):sum(2) * (b * b):sum(2)):sqrt()):mean():item()
  local hidden = q.where(right.sees:gt(0), coded, -1e30):compute()
  local logs = hidden:log_softmax()
  local weights = logs:exp():compute()
  local kl = (q.where(right.weights:gt(0), right.weights * (right.logs - logs), 0)):sum(2):mean():item()
  local top1 = hidden:argmax(2):eq(right.best):to("f32"):mean():item()
  local five = hidden:ge(hidden:topk(5, 2):slice(2, 4, 5))
  local top5 = (five * right.five):sum(2):clamp(0, 5):mean():item() / 5
  local whole = right.out:square():sum()
  local function off(out) return ((out - right.out):square():sum() / whole):sqrt():item() end
  local ranks, spearman = rank_correlations(right.logits, coded, positions), 0
  for _, one in ipairs(ranks) do spearman = spearman + one[2] / #ranks end
  local out = weights:matmul(values)
  seed_metrics.add(for_seed, { logits = right.logits, coded = coded, sees = right.sees, out = right.out,
    coded_out = out, ranks = ranks }, scale)
  return {
    cosine = cosine, kl = kl, top1 = top1, top5 = top5, spearman = spearman,
    output = off(out), output_k = off(weights:matmul(right.v)), output_v = off(right.weights:matmul(values)),
  }
end

local function right_of(query, key, value, scale, positions)
  local tokens = key:shape()[1]
  local right = { q = (query * scale):compute(), k = key, v = value }
  local at = q.tensor(positions):reshape { -1, 1 }
  right.sees = q.arange(0, tokens):reshape({ 1, tokens }):le(at):to("f32")
  right.counts = at + 1
  right.logits = right.q:matmul(key, { transpose_b = true })
  local hidden = q.where(right.sees:gt(0), right.logits, -1e30):compute()
  right.logs = hidden:log_softmax()
  right.weights = right.logs:exp():compute()
  right.best, right.out = hidden:argmax(2), right.weights:matmul(value)
  right.five = hidden:ge(hidden:topk(5, 2):slice(2, 4, 5)):to "f32"
  return right
end

-- Figures of one document: {[method] = {bits =, [metric] = mean, layers = {[layer] = {bits =, [metric] =,
-- seed = figures of seed_metrics.lua}}}}.
function evaluate.document(folder, manifest, d, list, queries)
  local s, found = manifest.settings, {}
  for _, method in ipairs(list) do found[method.name] = { layers = {} } end
  q.scope(function()
    local tensors = capture.document(folder, manifest, d)
    local positions, group = positions_of(s.tokens, queries), s.heads / s.kv_heads
    local index = q.tensor(positions, "i32")
    for _, layer in ipairs(s.layers) do
      local function part(name) return tensors[("layers.%d.%s"):format(layer, name)]:to "f32" end
      local query, key, value = part "query", part "key", part "value"
      for _, method in ipairs(list) do
        local sums = {}
        for _, metric in ipairs(evaluate.metrics) do sums[metric] = 0 end
        local seen, for_seed = method.look(layer, query, key), {}
        sums.bits = seen.bits
        for kv = 0, s.kv_heads - 1 do
          q.scope(function()
            local k = key:slice(2, kv, kv + 1):reshape({ s.tokens, -1 }):compute()
            local v = value:slice(2, kv, kv + 1):reshape({ s.tokens, -1 }):compute()
            local keys = method.reconstruct(k, layer, kv, "key", seen)
            local values = method.reconstruct(v, layer, kv, "value", seen)
            for h = kv * group, kv * group + group - 1 do
              local rows = query:slice(2, h, h + 1):reshape({ s.tokens, -1 }):index_select(1, index)
              local right = right_of(rows, k, v, s.scale, positions)
              local figures = head_figures(right, keys, values, positions, for_seed, s.scale)
              for metric, x in pairs(figures) do sums[metric] = sums[metric] + x / s.heads end
            end
          end)
        end
        sums.seed = seed_metrics.figures(for_seed, sums, 2 * key:elements())
        found[method.name].layers[tostring(layer)] = sums
      end
    end
  end)
  for _, method in ipairs(list) do
    local one = found[method.name]
    for _, metric in ipairs { "bits", unpack(evaluate.metrics) } do
      local sum = 0
      for _, layer in ipairs(s.layers) do sum = sum + one.layers[tostring(layer)][metric] end
      one[metric] = sum / #s.layers
    end
  end
  return found
end

-- Evaluates methods on documents of a capture from the `from`th on; those that are in `out` stay. Returns the methods,
-- the figures of each document, and the manifest. Behind the methods is the null: the first that depends on a seed,
-- with another one; its `null` is the name of that method.
-- opt: {methods = names, queries =, seed =, from =, rotations = folder of fit.lua or "", watch = function(d, count)}
function evaluate.run(folder, out, opt)
  local manifest, list = capture.manifest(folder), {}
  if opt.from > #manifest.documents then
    q.error("value", ("--from %d: has to be at most %d, the documents of the capture"):format(opt.from,
      #manifest.documents))
  end
  local fitted = opt.rotations ~= "" and fit.open(opt.rotations) or nil
  local s = manifest.settings
  for i, name in ipairs(opt.methods) do list[i] = methods.parse(name, s.head_dim, opt.seed, fitted, s.layers) end
  for i = 1, #list do
    if list[i].seeded then
      local null = methods.parse(list[i].name, s.head_dim, opt.seed + 1, fitted, s.layers)
      null.name, null.null = ("%s, seed %d"):format(list[i].name, opt.seed + 1), list[i].name
      list[#list + 1] = null
      break
    end
  end
  local settings = q.host.hash(q.json.encode({ manifest, evaluate.metrics, seed_metrics.names, opt.methods,
    opt.queries, opt.seed, fitted and fit.hash(opt.rotations, s.layers) or false }))
  local documents = {}
  for d = opt.from, #manifest.documents do
    local path = ("%s/document_%04d.json"):format(out, d)
    local before = q.fs.kind(path) and q.json.decode(q.fs.read(path))
    if before and before.settings ~= settings then
      q.error("value", ("%s: figures of another capture or other methods; give another folder"):format(path))
    end
    if not before then
      before = { settings = settings, figures = evaluate.document(folder, manifest, d, list, opt.queries) }
      q.fs.write(path, q.json.encode(before) .. "\n")
      before = q.json.decode(q.fs.read(path))
    end
    documents[#documents + 1] = before.figures
    if opt.watch then opt.watch(d, #manifest.documents) end
  end
  return list, documents, manifest
end

return evaluate
