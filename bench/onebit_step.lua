-- Steps of phased training of a one-bit model in the shape of a real one, its bits streamed within a budget. On two
-- cores, minutes:
--   qeng bench/onebit_step.lua --shape 1b --host-budget 1300M
-- On a GPU:
--   qeng bench/onebit_step.lua --shape 90b --dtype bf16 --device cuda --device-budget 8G --host-budget 64G
-- It prints a line a step: loss, flips, seconds, what was moved and how much of that was hidden; at the end the peak
-- memory.

local q = require "qeng"
local shapes = require "qeng.plan.shapes"

local opt = q.options {
  "Times phased training of one-bit weights that are streamed.",
  { "shape", "1b", "whose shape: 1b 3b 7b 8b 13b 70b 90b, or tiny" },
  { "tokens", 2048, "tokens of a step, one row", min = 2 },
  { "phase_steps", 1, "steps of a phase: the third and later ones repeat a recorded program", min = 1 },
  { "phases", 2, "phases", min = 1 },
  { "active", 0, "weights that learn at once; 0: a quarter", min = 0 },
  { "levels", 7, "levels of a counter" },
  { "vocab", 1024, "symbols", min = 64 },
  { "dtype", "f32", "of floats and activations", choices = { "f32", "bf16" } },
  { "weights", "stream", "or in the device's memory", choices = { "copy", "stream" } },
  { "depth", 2, "on a GPU: units copied ahead", min = 1 },
  { "keep", -1, "on a GPU: bytes of bits that stay there; -1: half of what the budget leaves" },
  { "host_budget", nil, "memory of the whole process, or on a GPU of what is pinned", kind = "bytes" },
  "device",
}
q.use_device(opt)

local tiny = {
  architectures = { "LlamaForCausalLM" }, model_type = "llama", hidden_size = 64, num_hidden_layers = 5,
  num_attention_heads = 4, num_key_value_heads = 2,
  intermediate_size = 96, rms_norm_eps = 1e-5, rope_theta = 10000, hidden_act = "silu",
}
local shape, values = opt.shape == "tiny" and tiny or shapes.find(opt.shape), {}
if not shape then q.error("value", ("--shape %s: one of 1b 3b 7b 8b 13b 70b 90b tiny"):format(opt.shape)) end
for key, value in pairs(shape) do values[key] = value end
values.vocab_size, values.tie_word_embeddings, values.max_position_embeddings = opt.vocab, false,
  math.max(4096, opt.tokens)

local begun = q.time()
local model = q.onebit.random(values, { rule = "counter", seed = 1, dtype = opt.dtype, weights = opt.weights,
  host_budget = opt.host_budget, stream_keep = opt.keep >= 0 and opt.keep or nil,
  stream_depth = opt.depth })
model.recompute = true
local total = q.onebit.weights(model)
local floats = {}
for i, parameter in ipairs(model:trainable()) do floats[i] = parameter.tensor end
local adam = q.adamw_state(floats)
local bits = q.phases(model, { active = opt.active > 0 and opt.active or math.ceil(total / 4), steps = opt.phase_steps,
  inertia = { levels = opt.levels } })
local micro_batch = q.micro_batch(opt.tokens, 1)
local ids, targets, positions = {}, {}, {}
for i = 1, opt.tokens do ids[i], targets[i], positions[i] = i * 37 % opt.vocab, (i + 1) * 37 % opt.vocab, i - 1 end
micro_batch.tokens:set(ids)
micro_batch.targets:set(targets)
micro_batch.positions:set(positions)
micro_batch.cu_q:set { 0, opt.tokens }
micro_batch.scale:fill(1 / opt.tokens)
print(("%.2f billion one-bit weights, drawn in %.1f s; %d tokens a step"):format(total / 1e9, q.time() - begun,
  opt.tokens))

local program, value
local function release()
  if not program then return end
  program:free()
  value:free()  -- which holds on to the program's memory
  program = nil
end
local steps = opt.phases * opt.phase_steps
for step = 0, steps - 1 do
  local before
  begun, before = q.time(), model.stream and model.stream:figures()
  if bits:begin(step / steps, step) then release() end
  q.rng_step(step)
  if not program then
    program, value = q.capture(function()
      local loss = model:loss(micro_batch)
      loss:backward()
      return loss
    end)
  end
  program:run()
  local loss = value:item()
  adam:step { lr = 1e-3 }
  local report, moved = bits:finish(), ""
  local seconds = q.time() - begun
  if before then
    local now = model.stream:figures()
    local fetch, stall = now.fetch_ms - before.fetch_ms, now.stall_ms - before.stall_ms
    moved = ("; moved %.1f MB of %.1f, fetching %.1f ms, stalled %.1f ms: %.1f %% hidden"):format(
      (now.bytes - before.bytes) / 1e6, now.total / 1e6, fetch, stall,
      100 * (1 - stall / math.max(fetch, 1e-9)))
  end
  print(("step %d: loss %.6f, %d flips of %.2f million weights that learn, %.2f s%s"):format(
    step + 1, loss, report.flips, bits.inertia.weights / 1e6, seconds, moved))
end
release()
print(tostring(q.memory()))
print(("the process had at most %.3f GB"):format(q.host.peak_rss() / 1e9))
