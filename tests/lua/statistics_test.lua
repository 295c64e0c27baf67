-- The tests of report/statistics.lua are SciPy's (tests/golden/statistics_golden.py); intervals hold the mean as
-- often as they say.
local q = require "qeng"
local statistics = require "qeng.report.statistics"

q.device { device = "cpu" }

local golden = q.json.decode(q.fs.read "tests/golden/statistics.json")
local function near(got, want, what)
  assert(math.abs(got - want) <= 1e-10 * math.abs(want) + 1e-15, ("%s: %.15g, expected %.15g"):format(what, got, want))
end
for _, row in ipairs(golden.tails) do
  near(statistics.chi_squared_tail(row[1], row[2]), row[3], ("tail of %g, %d degrees"):format(row[1], row[2]))
end
for i, case in ipairs(golden.wilcoxon) do
  local found = statistics.wilcoxon(case.values)
  near(found.statistic, case.statistic, "Wilcoxon's statistic " .. i)
  near(found.probability, case.probability, "Wilcoxon's probability " .. i)
end
for i, case in ipairs(golden.friedman) do
  local found = statistics.friedman(case.rows)
  near(found.statistic, case.statistic, "Friedman's statistic " .. i)
  near(found.probability, case.probability, "Friedman's probability " .. i)
end
near(statistics.spearman(golden.spearman.a, golden.spearman.b), golden.spearman.value, "Spearman's correlation")
assert(statistics.spearman({ 1, 1, 1 }, { 1, 2, 3 }) == nil)

-- Holm: 0.01 x 4, 0.02 x 3 (below it: 0.06), 0.03 x 2 = 0.06, 0.9.
local adjusted = statistics.holm { 0.03, 0.01, 0.9, 0.02 }
for i, want in ipairs { 0.06, 0.04, 0.9, 0.06 } do near(adjusted[i], want, "Holm's probability " .. i) end

assert(statistics.wilcoxon({ 0, 0 }).probability == 1)
assert(statistics.friedman({ { 1, 1, 1 }, { 2, 2, 2 } }).probability == 1)
assert(not pcall(statistics.friedman, { { 1, 2 }, { 2, 1 } }))

do  -- of 200 samples of 30 values around 1 about 95 in 100 intervals hold 1
  local held = 0
  for seed = 1, 200 do
    local _, low, high = statistics.interval((q.randn({ 30 }, { seed = seed }) + 1):table())
    if low <= 1 and 1 <= high then held = held + 1 end
  end
  assert(held >= 180 and held <= 198, ("%d of 200 intervals hold the mean"):format(held))
  local mean, low, high = statistics.interval { 1, 2, 3, 4 }
  local again, low_again, high_again = statistics.interval { 1, 2, 3, 4 }
  assert(mean == 2.5 and low >= 1 and high <= 4 and low < 2 and high > 3)
  assert(mean == again and low == low_again and high == high_again, "an interval is not the same again")
  assert(select("#", statistics.interval { 5 }) == 3 and statistics.interval { 5 } == 5)
end
