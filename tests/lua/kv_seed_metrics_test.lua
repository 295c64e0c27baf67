-- The seed's figures, by its definitions in plain loops, and its layout.
local q = require "qeng"
local seed_metrics = require "qeng.turboquant.seed_metrics"
local statistics = require "qeng.report.statistics"

q.device { device = "cpu", threads = 1 }
local function near(got, want, what)
  assert(math.abs(got - want) <= 2e-5 * (1 + math.abs(want)), ("%s: %.8g, expected %.8g"):format(what, got, want))
end

-- Two heads with 3 queries that see 6, 7 and 8 of 8 keys; outputs of 4 channels; logits scaled by 0.5.
local scale, seen, sums, want = 0.5, { 6, 7, 8 }, {}, {
  logit = { 0, 0, 0, 0, 0, 0 }, hidden = { 0, 0, 0, 0, 0, 0 }, ranks = { 0, 0 }, kl = 0, same = 0, centred = 0,
}
local function compare(list, a, b)
  for i, x in ipairs { a * b, a * a, b * b, math.abs(b - a), (b - a) ^ 2, 1 } do list[i] = list[i] + x end
end
for h = 1, 2 do
  local logits, noise = q.randn({ 3, 8 }, { seed = h }), q.randn({ 3, 8 }, { seed = 10 + h, std = 1.5 })
  local out, moved = q.randn({ 3, 4 }, { seed = 20 + h }), q.randn({ 3, 4 }, { seed = 30 + h, std = 0.3 })
  local coded, coded_out = (logits + noise):compute(), (out + moved):compute()
  local a, b, ranks = logits:table(), coded:table(), {}
  for t, n in ipairs(seen) do
    local right, other, exps, other_exps = {}, {}, 0, 0
    for s = 1, n do
      right[s], other[s] = a[t][s] / scale, b[t][s] / scale
      compare(want.logit, right[s], other[s])
      exps, other_exps = exps + math.exp(right[s]), other_exps + math.exp(other[s])
    end
    for s = 1, n do
      local p, other_p = math.exp(right[s]) / exps, math.exp(other[s]) / other_exps
      want.kl = want.kl + p * math.log(p / other_p)
    end
    local x, y = statistics.ranks(right), statistics.ranks(other)
    local same = false
    for s = 1, n do
      want.ranks[1] = want.ranks[1] + (x[s] - 1) * (y[s] - 1)
      want.ranks[2] = want.ranks[2] + (x[s] - 1) ^ 2
      if x[s] == y[s] and x[s] > n - 5 then same = true end
    end
    want.same = want.same + (same and 1 or 0) / 6
    ranks[t] = { n, statistics.spearman(right, other) }
  end
  local o, p = out:table(), coded_out:table()
  for t = 1, 3 do for d = 1, 4 do compare(want.hidden, o[t][d], p[t][d]) end end
  local sees = q.arange(0, 8):reshape({ 1, 8 }):lt(q.tensor(seen):reshape { 3, 1 }):to "f32"
  local head = { logits = logits, coded = coded, sees = sees, out = out, coded_out = coded_out, ranks = ranks }
  seed_metrics.add(sums, head, scale)
end
local got = seed_metrics.figures(sums, { spearman = 0.5, top1 = 0.25, top5 = 0.75, bits = 4 }, 1000)
for _, name in ipairs { "logit", "hidden" } do
  local w = want[name]
  near(got[name .. "_cosine_similarity"], w[1] / math.sqrt(w[2] * w[3]), name .. "'s cosine")
  near(got[name .. "_mae"], w[4] / w[6], name .. "_mae")
  near(got[name .. "_mse"], w[5] / w[6], name .. "_mse")
end
near(got.attention_output_relative_error, math.sqrt(want.hidden[5] / want.hidden[2]), "relative error")
near(got.next_logit_kl, want.kl, "next_logit_kl")
near(got.logit_spearman, want.ranks[1] / want.ranks[2], "logit_spearman")
near(got.logit_top5_match, want.same, "logit_top5_match")
assert(got.logit_spearman_centred == 0.5 and got.logit_top1_match == 0.25 and got.logit_top5_overlap == 0.75)
assert(got.memory_bits == 4000 and got.memory_ratio_vs_exact == 0.25)

for method, mode in pairs { ["identity/exact"] = "exact,exact", ["random_haar/product3+identity/exact"] =
  "key_only_random,3", ["so8_plus/product2+identity/exact"] = "key_only_block_so8_triality_plus,2",
  ["random_haar/product4+random_haar/sphere4.none"] = "full_kv,4",
  ["random_haar/product4+random_haar/sphere3.none"] = "random_haar/product4+random_haar/sphere3.none,3.313" } do
  local name, label = seed_metrics.mode(method, 3.3125)
  assert(name .. "," .. label == mode, name .. "," .. label)
end

-- Two layers of two documents: mean 2.5, deviation of 1, 2, 3, 4, and its t of 3 degrees, 3.182.
local documents = {}
for d = 1, 2 do
  documents[d] = { m = { bits = 5, layers = {} } }
  for i, layer in ipairs { 0, 7 } do
    local seed = {}
    for _, metric in ipairs(seed_metrics.names) do seed[metric] = 2 * d + i - 2 end
    documents[d].m.layers[tostring(layer)] = { bits = 5, seed = seed }
  end
end
local trials, summary = seed_metrics.tables({ "m" }, documents, { 0, 7 }, 4)
assert(select(2, trials:gsub("\n", "\n")) == 5 and trials:find("captured,0,7,m,5.000,5,2,", 1, true))
assert(trials:find ",document_0005\n$")
local line = summary:match "captured,m,5.000,5,logit_mae,([^\n]+)"
local n, mean, std, sem, low, high = line:match "^(%d+),([^,]+),([^,]+),([^,]+),([^,]+),(%S+)$"
assert(n == "4")
near(tonumber(mean), 2.5, "mean")
near(tonumber(std), math.sqrt(5 / 3), "std")
near(tonumber(sem), math.sqrt(5 / 12), "sem")
assert(math.abs((high - low) / 2 / sem - 3.1824) < 0.03, "t of 3 degrees")
