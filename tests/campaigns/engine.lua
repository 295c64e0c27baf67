-- Runs many random schedules of the continuous-batching engine and compares each request with itself alone:
--   qeng tests/campaigns/engine.lua [schedules 100] [first seed 1]
-- One in two has a cache of another dtype, one in three a bf16 model, one in four a draft model.

package.path = (arg[0]:match("^(.*/)") or "./") .. "../lua/?.lua;" .. package.path
local cases = require "engine_cases"
local q = require "qeng"
q.device { device = "cpu", threads = 1 }

local count, first = tonumber(arg[1] or 100), tonumber(arg[2] or 1)
local total = { steps = 0, preempted = 0, reused = 0, cancelled = 0, guessed = 0, accepted = 0 }
for seed = first, first + count - 1 do
  local opt = { kv = seed % 2 == 0 and ({ "f16", "bf16", "q8_0" })[seed % 3 + 1] or nil,
    dtype = seed % 3 == 0 and "bf16" or "f32" }
  if seed % 4 == 1 then opt.draft = cases.model("qwen3", { layers = 1, seed = seed }) end
  for name, value in pairs(cases.schedule(seed, opt)) do total[name] = total[name] + value end
end
print(("%d schedules of 64 requests: all as alone, no KV memory left; %d steps, %d preemptions, %d prompt tokens " ..
    "reused, %d cancelled, %d of %d guesses true")
  :format(count, total.steps, total.preempted, total.reused, total.cancelled, total.accepted, total.guessed))
