-- q.rehearse and q.plan: what they promise beyond the figures, which tests/transcripts/plan_test.sh sets against training.
local q = require "qeng"
q.device { device = "cpu", threads = 1 }

local function fails(code, part, fn, ...)
  local ok, err = pcall(fn, ...)
  assert(not ok and type(err) == "table" and err.code == code and err.message:find(part, 1, true), tostring(type(err) == "table" and err.message or err))
end

-- A rehearsal has accounts and a tape of its own, and takes no memory whatever it is asked for.
local before, real = q.memory(), q.zeros({ 4 }, "f32", "weights")
local inside, kept
local sum, none = q.rehearse(function()
  assert(not q.memory().weights, "the accounts begin empty")
  inside = q.zeros({ 2 ^ 20, 2 ^ 20 }, "f32", "weights")
  kept = q.keep(q.zeros({ 8 }))
  local drawn = q.uniform({ 2 ^ 20, 2 ^ 10 }, { label = "adapters" })
  assert(q.memory().weights.peak == 2 ^ 42 and q.memory().adapters.peak == 2 ^ 32 and drawn:elements() == 2 ^ 30)
  return 1 + 2, nil
end)
assert(sum == 3 and none == nil and real:table()[1] == 0)
assert((q.memory().adapters or { bytes = 0 }).bytes == (before.adapters or { bytes = 0 }).bytes)
fails("closed", "closed", inside.shape, inside)
assert(kept:elements() == 8)
kept, inside = nil, nil
collectgarbage()

-- The cost of a product: 2 m n k at the rate given, index lists counted by their values.
local work = q.rehearse(function()
  q.no_grad(q.linear, q.empty({ 64, 128 }), q.empty({ 256, 128 }))
  return q.rehearsed()
end, { bandwidth = 1e30, flops_f32 = 2 * 64 * 128 * 256, flops_bf16 = 1 })
assert(work.flops_f32 == 2 * 64 * 128 * 256 and work.flops_bf16 == 0 and math.abs(work.seconds - 1) < 1e-9)
local function attention_flops(bounds)
  return q.rehearse(function()
    local x, cu = q.empty { 64, 2, 16 }, q.tensor(bounds, "i32")
    q.no_grad(q.attention, x, x, x, { cu_q = cu })
    return q.rehearsed().flops_f32
  end)
end
assert(attention_flops { 0, 64 } == 4 * 64 * 65 / 2 * 32 and attention_flops { 0, 32, 64 } == 2 * 4 * 32 * 33 / 2 * 32)

fails("value", "nothing is being rehearsed", q.rehearsed)
fails("value", "going on already", q.rehearse, function() q.rehearse(function() end) end)
fails("value", "stop here", q.rehearse, function() q.error("value", "stop here") end)
assert(q.zeros({ 2 }):table()[2] == 0, "after an error the device is the real one again")

-- The least budget works, a byte less does not; at the least, three slots of the largest unit are held.
local rates = { bandwidth = 1e11, flops = 1e13 }
local function plan(opt)
  for name, value in pairs(rates) do opt[name] = value end
  opt.row_tokens, opt.model = 64, opt.model or "1b"
  return q.plan(opt)
end
local whole = plan { mode = "lora" }
assert(whole.fits and whole.placed.streamed == 0 and whole.total == whole.placed.device and whole.least < whole.total)
local least = plan { mode = "lora", device_budget = whole.least, link = 1e10 }
assert(least.fits and least.placed.device <= whole.least and least.placed.keep == 0 and least.placed.file == 0)
assert(least.placed.streamed == least.placed.host and least.step.moved == 2 * least.placed.streamed)
local pinned = plan { mode = "lora", device_budget = whole.least, host_budget = least.placed.host }
assert(pinned.fits and pinned.placed.host == least.placed.host and pinned.placed.file == 0)
local filed = plan { mode = "lora", device_budget = whole.least, host_budget = least.placed.host - 1 }
assert(filed.fits and filed.placed.host == least.placed.host - 1 and filed.placed.file == least.least_host + 1, "the host's budget is not kept")
assert(least.least_host < least.placed.host and plan { mode = "lora", device_budget = whole.least, host_budget = least.least_host }.fits)
assert(not plan { mode = "lora", device_budget = whole.least, host_budget = least.least_host - 1 }.fits, "there is no buffer for what is read from the file")
local between = plan { mode = "lora", device_budget = (whole.least + whole.total) / 2 }
assert(between.placed.keep > 0 and between.placed.device <= (whole.least + whole.total) / 2 and between.placed.keep + between.placed.streamed == least.placed.streamed,
  "what stays and what is streamed are not all that may be")
assert(math.abs(least.step.transfer - least.step.moved / 1e10) < 1e-9)
assert(not plan { mode = "lora", device_budget = whole.least - 1 }.fits)
local function config_of(tied)
  return { architectures = { "Qwen3ForCausalLM" }, model_type = "qwen3", vocab_size = 32000, hidden_size = 256, num_hidden_layers = 8, num_attention_heads = 4,
    num_key_value_heads = 2, head_dim = 64, intermediate_size = 512, max_position_embeddings = 128, rms_norm_eps = 1e-6, rope_theta = 10000, hidden_act = "silu",
    tie_word_embeddings = tied }
end
-- Without rates of its own it is the CPU that is planned for, whose host budget is for all of the process, and for which two slots do.
local there = plan { mode = "lora", model = config_of(false) }
local host_budget = there.least + require("qeng.stream").process()
local here = q.plan { model = config_of(false), row_tokens = 64, mode = "lora", device_budget = 1e12, host_budget = host_budget + 10e6 }
assert(here.fits and here.placed.device + here.process <= host_budget + 10e6 and here.placed.host == 0 and here.placed.file == here.placed.streamed)
assert(here.least < there.least and here.process > 64e6)
assert(not q.plan { model = config_of(false), row_tokens = 64, mode = "lora", host_budget = here.least + 60e6 }.fits, "the process itself needs nothing")
-- A head that is the embedding stays on a GPU, which streams what is of one unit.
local tied = plan { mode = "lora", model = config_of(true) }
assert(tied.least > tied.units[1].bytes + 3 * tied.units[2].bytes and tied.units[1].shared, "a tied embedding counts as streamed")
assert(not plan { mode = "lora", model = config_of(false) }.units[1].shared)
-- By phases the largest turn is what memory is needed for, wherever it comes: here gate and up, after what attention has in a block.
local attention, mlp = 3 * 256 * 256, 256 * 512
local all = plan { mode = "onebit", model = config_of(false) }
local floats = all.trained - 8 * (attention + 3 * mlp)
assert(plan { mode = "onebit", model = config_of(false), active = 2 * mlp }.trained - floats == 2 * mlp, "the turn that is planned is not the largest")
local kept = plan { mode = "onebit", model = config_of(false), active = 2 * mlp, keep = true }
local dropped = plan { mode = "onebit", model = config_of(false), active = 2 * mlp }
local counters = 3 / 8 * (8 * (attention + 3 * mlp) - 2 * mlp)  -- of 3 bits
assert(math.abs((kept.accounts.optimizer - dropped.accounts.optimizer) / counters - 1) < 0.01, "not the counters of all weights")

-- Twice the rows, twice the work of a step; recomputing holds less and computes more.
local twice, again = plan { mode = "lora", rows = 2 }, plan { mode = "lora", recompute = true }
assert(twice.step.flops_bf16 > 1.99 * whole.step.flops_bf16 and twice.step.flops_bf16 < 2.01 * whole.step.flops_bf16)
assert(again.accounts.activations < whole.accounts.activations and again.step.flops_bf16 > whole.step.flops_bf16)
fails("value", "mode some is none of", q.plan, { model = "7b", mode = "some" })
fails("format", "hidden_size is missing", plan, { model = { architectures = { "Qwen2ForCausalLM" } } })
print "plan: passed"
