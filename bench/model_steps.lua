-- Steps of a model with random weights, for bench/model_steps_peer.py, which measures transformers in turns with it: it
-- writes "train" or "decode" to standard input, and reads the seconds of a step.
--   qeng bench/model_steps.lua --config config.json [--tokens 512] [--device cpu] [--threads 2] [--profile]

local decode_bench = require "qeng.infer.decode_bench"
local q = require "qeng"

local opt = q.options {
  "Measures steps of full training and of decoding.",
  { "config", nil, "a config.json", kind = "input", required = true },
  { "tokens", 512, "of a row that is trained on; of the context in decoding", min = 2, integer = true },
  { "rows", 1, "of a step", min = 1, integer = true },
  { "dtype", "f32", "of weights and activations", choices = { "f32", "bf16" } },
  { "device", "cpu", "where it runs" },
  { "threads", 2, "of the CPU", min = 1, integer = true },
  { "repeats", 3, "steps, of which the fastest counts", min = 1, integer = true },
  { "profile", false, "prints where a training step spends its time" },
}
q.device { device = opt.device, threads = opt.threads }

local model = q.random_model(q.json.decode(q.fs.read(opt.config)), { dtype = opt.dtype, seed = 1 })
local count = opt.rows * opt.tokens

local function ids(multiple)
  local list = {}
  for i = 1, count do list[i] = i * multiple % model.config.vocab end
  return list
end

-- The packed batch: each row a document.
local batch = {
  tokens = q.tensor(ids(104729), "i32"), targets = q.tensor(ids(7919), "i32"), scale = q.zeros({ 1 }):fill(1 / count),
}
local positions, starts = {}, { 0 }
for i = 1, count do positions[i] = (i - 1) % opt.tokens end
for i = 1, opt.rows do starts[i + 1] = i * opt.tokens end
batch.positions, batch.cu_q, batch.longest = q.tensor(positions, "i32"), q.tensor(starts, "i32"), opt.tokens

local step  -- made by the first training
local function trainer()
  model:full()
  local adamw = q.adamw(model:trainable(), { lr = 1e-4 })
  local pass, loss = q.capture(function()
    local found = model:loss(batch)
    found:backward()
    return found
  end)
  return function()
    pass:run()
    adamw:step { clip = 1 }
    return loss:item()
  end, pass
end

local function train()
  local pass
  if not step then
    step, pass = trainer()
    step()
  end
  local best = math.huge
  for _ = 1, opt.repeats do
    local begin = q.time()
    step()
    best = math.min(best, q.time() - begin)
  end
  if opt.profile and pass then print(pass:profile()) end
  return best
end

local function decode()
  return decode_bench.decode(model, 1, opt.tokens, 8 * opt.repeats, { kv = opt.dtype }).best
end

for line in io.lines() do
  io.write(("%.9g\n"):format(line == "train" and train() or decode()))
  io.flush()
end
