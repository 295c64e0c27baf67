-- One run of the campaign train_kills.sh: full training of a small model on packets of three sources and two destinations,
-- by a curriculum, with CRC-Drop.   qeng train_kills.lua MODEL DATA OUT
local q = require "qeng"
local from, data, out = assert(arg[1], "usage: train_kills.lua MODEL DATA OUT"), arg[2], arg[3]
local steps = tonumber(os.getenv "STEPS" or 120)
if q.fs.kind(data) == nil then
  local writer = q.ndp.create(data)
  for i = 1, 600 do
    local tokens = {}
    for t = 1, 4 + i % 23 do tokens[t] = (i * 31 + t * t * 7) % 300 end
    writer:add(tokens, nil, { src = 1 + i % 3, dst = i % 4 == 0 and 3 or i % 4 == 1 and 2 or 0 })
  end
  writer:finish()
end
q.device { device = "cpu", threads = 1 }
q.fs.mkdir(out)
q.fs.sweep(out)
local model = q.load(from, { writable = true }):full()
q.train {
  model = model, data = q.ndp.open(data), out = out, steps = steps, row_tokens = 48, rows = 2, accumulate = 2, lr = 1e-3, decay = 0.1,
  seed = 7, eval_share = 0.1, eval_every = 50, save_every = 3, resume = true, drop = 0.1,
  weights = function(step, source) return source == 1 and 1 or source == 2 and step / steps or 0.5 end,
}
model:save(out .. "/model")
