-- Milliseconds to draw one token from 152,000 logits (the best of several), by settings:  qeng bench/sampler.lua
local q = require "qeng"
local logits = q.randn({ 152064 }, { std = 2.5, seed = 1 })
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
  local sampler, best = q.sampler(setting[2]), math.huge
  for i = 1, 300 do sampler:accept(i % 100) end
  for _ = 1, 60 do
    local begin = q.time()
    sampler:next(logits)
    best = math.min(best, q.time() - begin)
  end
  print(("%-42s %.3f ms"):format(setting[1], best * 1e3))
end
