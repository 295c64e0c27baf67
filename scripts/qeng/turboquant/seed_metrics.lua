-- The figures of kv_evaluate.lua by the names, the definitions and in the layout of the seed (zapabob/Turboquant-CUDA),
-- so that its tables can be laid beside ours. They are worse measures than ours (evaluate.lua):
--   logit_*         of logits that are not scaled by the model's factor, all heads and queries of a layer as one vector
--   next_logit_kl   KL of the softmax of those, summed over heads and queries; nothing of it is about next tokens
--   logit_spearman  the cosine of ranks from 0 less no mean: 0.75 where nothing agrees; ours is logit_spearman_centred
--   logit_top5_match  share of queries with at least one key at the same place of both five largest
--   hidden_*, attention_output_relative_error  of the outputs, all heads and queries as one vector
--   memory_bits     of the keys and values of a layer
-- Unlike the seed's, keys that a query does not see are left out, queries are the model's own, masks and scales count
-- as memory, and times are not there.

local q = require "qeng.core"

local seed_metrics = {}

seed_metrics.names = { "logit_cosine_similarity", "logit_mae", "logit_mse", "next_logit_kl", "logit_spearman",
  "logit_spearman_centred", "logit_top1_match", "logit_top5_match", "logit_top5_overlap", "hidden_cosine_similarity",
  "hidden_mae", "hidden_mse", "attention_output_relative_error", "memory_bits", "memory_ratio_vs_exact" }

-- Adds a head to sums (an empty table at first). logits, coded [queries, tokens]: scaled by `scale`; sees: 1 where a
-- query sees a key; out, coded_out [queries, dim]; ranks: {{seen keys, Spearman's correlation}...}
function seed_metrics.add(sums, head, scale)
  local function add(name, x) sums[name] = (sums[name] or 0) + (type(x) == "number" and x or x:sum():item()) end
  local function compare(name, a, b)
    add(name .. "_product", a * b)
    add(name .. "_right", a:square())
    add(name .. "_coded", b:square())
    add(name .. "_absolute", (b - a):abs())
    add(name .. "_square", (b - a):square())
  end
  local a, b = head.logits * head.sees * (1 / scale), head.coded * head.sees * (1 / scale)
  compare("logit", a:compute(), b:compute())
  compare("hidden", head.out, head.coded_out)
  add("logits", head.sees)
  add("outputs", head.out:elements())
  local function logs(x) return q.where(head.sees:gt(0), x, -1e30):log_softmax():compute() end
  local right = logs(a)
  add("kl", q.where(head.sees:gt(0), right:exp() * (right - logs(b)), 0))
  local five = math.min(5, head.sees:shape()[2])
  local function best(x) return select(2, q.where(head.sees:gt(0), x, -1e30):topk(five)) end
  add("queries", head.out:shape()[1])
  add("same_place", best(a):eq(best(b)):any(2):to "f32")
  for _, one in ipairs(head.ranks) do
    -- Of ranks 0 to n - 1 the sum of squares is known, and that of products from the correlation.
    local n, mean = one[1], (one[1] - 1) / 2
    local squares = n * (n - 1) * (2 * n - 1) / 6
    add("ranks_product", one[2] * (squares - n * mean ^ 2) + n * mean ^ 2)
    add("ranks_square", squares)
  end
end

-- The figures of a layer. ours: its figures by evaluate.lua; coordinates: of its keys and values.
function seed_metrics.figures(sums, ours, coordinates)
  local function cosine(name)
    return sums[name .. "_product"] / math.sqrt(sums[name .. "_right"] * sums[name .. "_coded"])
  end
  return {
    logit_cosine_similarity = cosine "logit", logit_mae = sums.logit_absolute / sums.logits,
    logit_mse = sums.logit_square / sums.logits, next_logit_kl = sums.kl,
    logit_spearman = sums.ranks_product / sums.ranks_square, logit_spearman_centred = ours.spearman,
    logit_top1_match = ours.top1, logit_top5_match = sums.same_place / sums.queries, logit_top5_overlap = ours.top5,
    hidden_cosine_similarity = cosine "hidden", hidden_mae = sums.hidden_absolute / sums.outputs,
    hidden_mse = sums.hidden_square / sums.outputs,
    attention_output_relative_error = math.sqrt(sums.hidden_square / sums.hidden_right),
    memory_bits = ours.bits * coordinates, memory_ratio_vs_exact = ours.bits / 16,
  }
end

-- The seed's names of methods that are its modes; the number is the bits of a label.
local modes = {
  { "^identity/exact()$", "exact" },
  { "^random_haar/product(%d)%+identity/exact$", "key_only_random" },
  { "^block_so8_static/product(%d)%+identity/exact$", "key_only_block_so8_static" },
  { "^so8_vector/product(%d)%+identity/exact$", "key_only_block_so8_triality_vector" },
  { "^so8_plus/product(%d)%+identity/exact$", "key_only_block_so8_triality_plus" },
  { "^so8_minus/product(%d)%+identity/exact$", "key_only_block_so8_triality_minus" },
  { "^random_haar/product(%d)%+random_haar/sphere%1%.none$", "full_kv" },
}

-- Mode and bit_setting of a method; of one that is no mode of the seed its own name and its bits.
function seed_metrics.mode(method, bits)
  for _, mode in ipairs(modes) do
    local label = method:match(mode[1])
    if label then return mode[2], mode[2] == "exact" and "exact" or label end
  end
  return method, ("%.3f"):format(bits)
end

-- The quantile of Student's t within which 95 % lie, by its expansion around the normal's (Abramowitz, Stegun 26.7.5).
local function student(degrees)
  local z, n = 1.959963984540054, degrees
  return z + (z ^ 3 + z) / (4 * n) + (5 * z ^ 5 + 16 * z ^ 3 + 3 * z) / (96 * n ^ 2)
    + (3 * z ^ 7 + 19 * z ^ 5 + 17 * z ^ 3 - 15 * z) / (384 * n ^ 3)
end

-- The text of two files: a line for each document, layer and method; means over those of a method, as if they were
-- independent. documents: figures by evaluate.lua, from the `from`th on.
function seed_metrics.tables(names, documents, layers, from)
  local metrics = table.concat(seed_metrics.names, ",")
  local trials = { "dataset,trial,layer,mode,bit_setting,bits," .. metrics .. ",capture_id" }
  local summary = { "dataset,mode,bit_setting,bits,metric,n,mean,std,sem,ci95_low,ci95_high" }
  for _, name in ipairs(names) do
    local columns, bits, n = {}, 0, #documents * #layers
    for _, figures in ipairs(documents) do bits = bits + figures[name].bits / #documents end
    local mode, setting = seed_metrics.mode(name, bits)
    for _, metric in ipairs(seed_metrics.names) do columns[metric] = {} end
    for d, figures in ipairs(documents) do
      for _, layer in ipairs(layers) do
        local one = figures[name].layers[tostring(layer)]
        local cells = { "captured", 0, layer, mode, setting, ("%.6g"):format(one.bits) }
        for _, metric in ipairs(seed_metrics.names) do
          table.insert(columns[metric], one.seed[metric])
          cells[#cells + 1] = ("%.9g"):format(one.seed[metric])
        end
        cells[#cells + 1] = ("document_%04d"):format(d + from - 1)
        trials[#trials + 1] = table.concat(cells, ",")
      end
    end
    for _, metric in ipairs(seed_metrics.names) do
      local sum, squares = 0, 0
      for _, x in ipairs(columns[metric]) do sum = sum + x end
      for _, x in ipairs(columns[metric]) do squares = squares + (x - sum / n) ^ 2 end
      local deviation = n > 1 and math.sqrt(squares / (n - 1)) or 0
      local error_ = deviation / math.sqrt(n)
      local reach = n > 1 and student(n - 1) * error_ or 0
      summary[#summary + 1] = ("captured,%s,%s,%.6g,%s,%d,%.9g,%.9g,%.9g,%.9g,%.9g"):format(
        mode, setting, bits, metric, n, sum / n, deviation, error_, sum / n - reach, sum / n + reach)
    end
  end
  return table.concat(trials, "\n") .. "\n", table.concat(summary, "\n") .. "\n"
end

return seed_metrics
