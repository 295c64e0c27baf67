-- Tests of whether methods differ that were tried on the same documents, and intervals of means. Ranks of equal
-- values are their mean rank. Values are finite numbers; a probability is two-sided.

local q = require "qeng.core"

local statistics = {}

-- ln Gamma(twice / 2), by the recursion from 1/2 or 1.
local function log_gamma_half(twice)
  local sum = twice % 2 == 1 and math.log(math.pi) / 2 or 0
  for a = twice % 2 == 1 and 0.5 or 1, twice / 2 - 1 do sum = sum + math.log(a) end
  return sum
end

-- The probability that a chi-squared variable of so many degrees of freedom is at least x: the upper incomplete gamma
-- function, by its series below the mean and by Lentz's continued fraction above.
function statistics.chi_squared_tail(x, degrees)
  if x <= 0 then return 1 end
  local a, half = degrees / 2, x / 2
  local scale = math.exp(a * math.log(half) - half - log_gamma_half(degrees))
  if half < a + 1 then
    local term, sum = 1 / a, 1 / a
    for n = 1, 10000 do
      term = term * half / (a + n)
      sum = sum + term
      if term < sum * 1e-17 then break end
    end
    return 1 - scale * sum
  end
  local b, tiny = half + 1 - a, 1e-300
  local c, d = 1 / tiny, 1 / b
  local fraction = d
  for n = 1, 10000 do
    local factor = -n * (n - a)
    b = b + 2
    d, c = 1 / (factor * d + b), b + factor / c
    fraction = fraction * d * c
    if math.abs(d * c - 1) < 1e-16 then break end
  end
  return scale * fraction
end

-- The probability of a standard normal variable at least as far from 0 as z.
local function normal_tails(z) return statistics.chi_squared_tail(z * z, 1) end

-- Ranks from 1 on, and the sum of t^3 - t over groups of t equal values.
local function ranks_of(values)
  local order, ranks, ties = {}, {}, 0
  for i = 1, #values do order[i] = i end
  table.sort(order, function(a, b)
    if values[a] ~= values[b] then return values[a] < values[b] end
    return a < b
  end)
  local first = 1
  while first <= #order do
    local last = first
    while last < #order and values[order[last + 1]] == values[order[first]] do last = last + 1 end
    for i = first, last do ranks[order[i]] = (first + last) / 2 end
    local t = last - first + 1
    ties, first = ties + t ^ 3 - t, last + 1
  end
  return ranks, ties
end
statistics.ranks = ranks_of

-- The correlation of ranks (Spearman), of two lists of one length; nil where one of them is constant.
function statistics.spearman(a, b)
  local x, y, middle = ranks_of(a), ranks_of(b), (#a + 1) / 2
  local product, xs, ys = 0, 0, 0
  for i = 1, #a do
    local u, v = x[i] - middle, y[i] - middle
    product, xs, ys = product + u * v, xs + u * u, ys + v * v
  end
  return xs > 0 and ys > 0 and product / math.sqrt(xs * ys) or nil
end

-- Wilcoxon's signed ranks: whether differences of pairs lie evenly around 0. Those of 0 are left out. Up to 50
-- differences without equal sizes the probability is exact, else the normal distribution's. {statistic = the smaller
-- sum of ranks, probability =, count =}
function statistics.wilcoxon(differences)
  local sizes, positive = {}, {}
  for _, d in ipairs(differences) do
    if d ~= 0 then sizes[#sizes + 1], positive[#positive + 1] = math.abs(d), d > 0 end
  end
  local n, ranks, ties = #sizes, ranks_of(sizes)
  if n == 0 then return { statistic = 0, probability = 1, count = 0 } end
  local above = 0
  for i = 1, n do if positive[i] then above = above + ranks[i] end end
  local whole = n * (n + 1) / 2
  local statistic = math.min(above, whole - above)
  local probability
  if n <= 50 and ties == 0 and n == #differences then
    -- ways[s]: subsets of the ranks with the sum s, over 2^n.
    local ways = { [0] = 1 }
    for s = 1, whole do ways[s] = 0 end
    for rank = 1, n do
      for s = whole, 0, -1 do ways[s] = (ways[s] + (s >= rank and ways[s - rank] or 0)) / 2 end
    end
    probability = 0
    for s = 0, statistic do probability = probability + ways[s] end
    probability = math.min(1, 2 * probability)
  else
    probability = normal_tails((above - whole / 2) / math.sqrt(n * (n + 1) * (2 * n + 1) / 24 - ties / 48))
  end
  return { statistic = statistic, probability = probability, count = n }
end

-- Friedman's test of whether treatments differ: rows[block][treatment], at least 3 treatments and 2 blocks, which
-- have to be independent. {statistic =, probability =, ranks = each treatment's mean rank}
function statistics.friedman(rows)
  local blocks, count = #rows, #rows[1]
  if blocks < 2 or count < 3 then
    q.error("value", ("Friedman's test of %d treatments in %d blocks; it needs at least 3 and 2"):format(count, blocks))
  end
  local sums, ties = {}, 0
  for t = 1, count do sums[t] = 0 end
  for _, row in ipairs(rows) do
    local ranks, tied = ranks_of(row)
    ties = ties + tied
    for t = 1, count do sums[t] = sums[t] + ranks[t] end
  end
  local squares, means = 0, {}
  for t = 1, count do squares, means[t] = squares + sums[t] ^ 2, sums[t] / blocks end
  local correction = 1 - ties / (blocks * count * (count ^ 2 - 1))
  -- All values of each block are equal:
  if correction == 0 then return { statistic = 0, probability = 1, ranks = means } end
  local statistic = (12 / (blocks * count * (count + 1)) * squares - 3 * blocks * (count + 1)) / correction
  return { statistic = statistic, probability = statistics.chi_squared_tail(statistic, count - 1), ranks = means }
end

-- Probabilities of several tests, adjusted so that below 0.05 the chance of any false claim is below 0.05 (Holm 1979).
function statistics.holm(probabilities)
  local order, adjusted, most = {}, {}, 0
  for i = 1, #probabilities do order[i] = i end
  table.sort(order, function(a, b)
    if probabilities[a] ~= probabilities[b] then return probabilities[a] < probabilities[b] end
    return a < b
  end)
  for place, i in ipairs(order) do
    most = math.max(most, math.min(1, (#order - place + 1) * probabilities[i]))
    adjusted[i] = most
  end
  return adjusted
end

-- The mean of independent values and its 95 % interval: of the means of 10,000 samples with replacement, by
-- percentile. Of pairs give the differences. The same values give the same interval.
function statistics.interval(values)
  local rounds, n, total = 10000, #values, 0
  for _, v in ipairs(values) do total = total + v end
  if n < 2 then return total / n, total / n, total / n end
  return q.scope(function()
    local list = q.tensor(values)
    local drawn = (q.uniform({ rounds * n }, { seed = n }) * n):clamp(0, n - 1):to "i32"
    local means = list:index_select(1, drawn):reshape({ rounds, n }):mean(2):sort(1)
    return total / n, means:at(rounds * 0.025), means:at(rounds * 0.975 - 1)
  end)
end

return statistics
