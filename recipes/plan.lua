-- What a model will need and take, before anything is loaded: memory by account on device and host, time of a step at the
-- device's measured limits, and whether it fits.
--
--   qeng recipes/plan.lua --model 7b                          # all ways of training it, and inference
--   qeng recipes/plan.lua --model DIR --mode lora --row-tokens 2048 --recompute
--   qeng recipes/plan.lua --model 13b --mode lora --stored q4_k --device-budget 6G --host-budget 16G --link 25
--
-- --model is a config.json or its folder, a Hugging Face folder, a GGUF file, a name on a hub, or a shape: 1b 3b 7b 8b 13b 70b 90b.

local q = require "qeng"
local plan_text = require "qeng.plan.text"

local opt = q.options(q.device_options {
  "Says what training or inference of a model needs, before anything is loaded.",
  model = { nil, "config.json, folder, GGUF file, name on a hub, or a shape such as 7b", required = true, order = 1 },
  mode = { "all", "what to plan", choices = { "all", "full", "lora", "onebit", "inference" }, order = 2 },
  dtype = { "", "f32 or bf16; by default what the config says (float16 is kept, and computed in f32)", choices = { "", "f32", "bf16" }, order = 3 },
  stored = { "", "dtype of the frozen linear layers where no file says it, such as q4_k", order = 4 },
  rank = { 16, "LoRA rank", min = 1, integer = true, order = 5 },
  row_tokens = { 512, "tokens of a packed row", min = 2, integer = true, order = 6 },
  rows = { 1, "rows of a micro-batch", min = 1, integer = true, order = 7 },
  accumulate = { 1, "micro-batches of a step", min = 1, integer = true, order = 8 },
  levels = { 7, "one-bit training: levels of a counter: 1, 3, 7, 15 or 255", order = 8 },
  active = { 1.5e9, "one-bit training by phases: weights that learn at once; 0: all", min = 0, order = 8 },
  keep = { false, "one-bit training by phases: counters of weights that rest are kept", order = 8 },
  recompute = { false, "keep one activation a layer, recompute the others", order = 9 },
  eval = { true, "a held-out loss is measured too, as training does by itself; --eval=false: it is not", order = 10 },
  context = { 4096, "inference: tokens of a sequence, as far as the model's positions go", min = 16, integer = true, order = 11 },
  batch = { 1, "inference: sequences at once", min = 1, integer = true, order = 12 },
  kv = { "", "inference: dtype of the cache (f32, bf16, f16, q8_0); the model's by default", order = 13 },
  host_budget = { nil, "most host memory, such as 16G: beside a GPU that of streamed weights, which is pinned (the rest is read from the file); on the CPU that of the whole process, as --device-budget is where weights have to be streamed", kind = "bytes", order = 94 },
  bandwidth = { 0, "GB/s of a GPU that is not here; with --flops", min = 0, integer = false, order = 16 },
  flops = { 0, "TFLOP/s of a GPU that is not here; with --bandwidth", min = 0, integer = false, order = 17 },
  link = { 0, "GB/s from host to device, for streamed weights", min = 0, integer = false, order = 18 },
})
if (opt.bandwidth > 0) ~= (opt.flops > 0) then q.error("usage", "--bandwidth and --flops go together: they stand in for a device that is not here") end
q.use_device(opt)

local function text(value) return value ~= "" and value or nil end
local function rate(value, unit) return value > 0 and value * unit or nil end
local function plan(mode, active)
  local frozen = opt.mode ~= "all" or mode == "lora" or mode == "inference"  -- which of all ways --stored is of
  return q.plan {
    model = opt.model, mode = mode, dtype = text(opt.dtype), stored = frozen and text(opt.stored) or nil, rank = opt.rank,
    levels = opt.levels, active = active and active > 0 and active or nil, keep = opt.keep, row_tokens = opt.row_tokens, rows = opt.rows, accumulate = opt.accumulate, recompute = opt.recompute, eval = opt.eval, context = opt.context,
    batch = opt.batch, kv = text(opt.kv), device_budget = opt.device_budget, host_budget = opt.host_budget,
    bandwidth = rate(opt.bandwidth, 1e9), flops = rate(opt.flops, 1e12), link = rate(opt.link, 1e9),
  }
end
if opt.mode ~= "all" then return print(plan(opt.mode, opt.active)) end
print(plan_text.compare(plan, opt.active))
