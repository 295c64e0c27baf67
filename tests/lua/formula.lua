-- Weights that are a formula of their names, as tests/golden/config_golden.py and gguf_keys_golden.py have it.
local q = require "qeng"

local function formula(name, shape)
  local seed, count, values = 0, 1, {}
  for i = 1, #name do seed = seed + i * name:byte(i) end
  for _, size in ipairs(shape) do count = count * size end
  local spread, mean = #shape == 1 and 0.4 or 1, name:find "norm%.weight$" and 1 or 0
  for i = 0, count - 1 do values[i + 1] = mean + spread * (((i * 7919 + seed * 104729) % 1009) / 1009 - 0.5) end
  return q.tensor(values, "f32"):reshape(shape)
end

return formula
