-- What a plain loop needs to repeat recipes/preference.lua:
--   qeng tests/peers/preference.lua MODEL DATA STEPS PAIRS RANK OUT
local q = require "qeng"

q.device { device = "cpu" }
local dir, data, steps, pairs_of_step, rank, out = unpack(arg)
local model = q.load(dir, { dtype = "f32" }):lora { rank = tonumber(rank), seed = 0 }
local set = data ~= "-" and q.preferences(data, model.tokenizer, { seed = 0 })
local batches = {}
for step = 1, tonumber(steps) do
  local function dumped(packed)
    return { tokens = packed.tokens:table(), targets = packed.targets:table(), cu = packed.cu_q:table() }
  end
  local answers, mixed = set:take(step - 1, tonumber(pairs_of_step))
  batches[step] = { answers = dumped(answers), mixed = dumped(mixed) }
end
q.fs.mkdir(out)
q.fs.write(out .. "/batches.json", q.json.encode(batches))
model:save_adapter(out .. "/adapter0")
