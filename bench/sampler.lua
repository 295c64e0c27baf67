-- Milliseconds to draw one token from 152,000 logits (the best of several), by settings:  qeng bench/sampler.lua
local q = require "qeng"
-- As a model's: most tokens far below a few hundred; and flat, the worst case for the filters.
local flat = q.randn({ 152064 }, { std = 2.5, seed = 1 })
local values = flat:table()
for i = 1, 300 do values[i * 500] = values[i * 500] + 18 - 0.04 * i end
local peaked = q.tensor(values)
local settings = {
  { "greedy", { temperature = 0 } },
  { "temperature 0.7", { temperature = 0.7 } },
  { "top-k 40", { top_k = 40 } },
  { "temperature 0.7, top-k 20, top-p 0.8", { temperature = 0.7, top_k = 20, top_p = 0.8 } },
  { "top-p 0.9", { top_p = 0.9 } },
  { "temperature 0.7, top-p 0.95, min-p 0.05", { temperature = 0.7, top_p = 0.95, min_p = 0.05 } },
  { "min-p 0.05", { min_p = 0.05 } },
  { "typical-p 0.9", { typical_p = 0.9 } },
  { "penalties, top-k 40, top-p 0.9", { repetition_penalty = 1.1, frequency_penalty = 0.5, top_k = 40, top_p = 0.9 } },
}
for _, setting in ipairs(settings) do
  local line = ("%-42s"):format(setting[1])
  for name, logits in pairs { peaked = peaked, flat = flat } do
    local sampler, best = q.sampler(setting[2]), math.huge
    for i = 1, 300 do sampler:accept(i % 100) end
    for _ = 1, 100 do
      local begin = q.time()
      sampler:next(logits)
      best = math.min(best, q.time() - begin)
    end
    line = ("%s  %s %6.3f ms"):format(line, name, best * 1e3)
  end
  print(line)
end
