-- What q.rehearsal.run and q.plan promise beyond their figures. tests/transcripts/plan_test.sh compares the figures
-- with training.
local q = require "qeng"
q.device { device = "cpu", threads = 1 }

local function fails(code, part, fn, ...)
  local ok, err = pcall(fn, ...)
  assert(not ok and type(err) == "table" and err.code == code and err.message:find(part, 1, true),
    tostring(type(err) == "table" and err.message or err))
end

-- A rehearsal has accounts and a tape of its own. It takes no memory, whatever it is asked for.
local before, real = q.memory(), q.zeros({ 4 }, "f32", "weights")
local inside, kept
local sum, none = q.rehearsal.run(function()
  assert(not q.memory().weights, "the accounts begin empty")
  inside = q.zeros({ 2 ^ 20, 2 ^ 14 }, "f32", "weights")
  kept = q.keep(q.zeros({ 8 }))
  local drawn = q.uniform({ 2 ^ 20, 2 ^ 10 }, { label = "adapters" })
  assert(q.memory().weights.peak == 2 ^ 36 and q.memory().adapters.peak == 2 ^ 32 and drawn:elements() == 2 ^ 30)
  return 1 + 2, nil
end)
assert(sum == 3 and none == nil and real:table()[1] == 0)
assert((q.memory().adapters or { bytes = 0 }).bytes == (before.adapters or { bytes = 0 }).bytes)
fails("closed", "closed", inside.shape, inside)
assert(kept:elements() == 8)
kept, inside = nil, nil  -- luacheck: ignore 311
collectgarbage()

-- The cost of a product: 2 m n k at the rate given, index lists counted by their values.
local work = q.rehearsal.run(function()
  q.no_grad(q.linear, q.empty({ 64, 128 }), q.empty({ 256, 128 }))
  return q.rehearsal.cost()
end, { bandwidth = 1e30, flops_f32 = 2 * 64 * 128 * 256, flops_bf16 = 1 })
assert(work.flops_f32 == 2 * 64 * 128 * 256 and work.flops_bf16 == 0 and math.abs(work.seconds - 1) < 1e-9)
local function attention_flops(bounds)
  return q.rehearsal.run(function()
    local x, cu = q.empty { 64, 2, 16 }, q.tensor(bounds, "i32")
    q.no_grad(q.attention, x, x, x, { cu_q = cu })
    return q.rehearsal.cost().flops_f32
  end)
end
assert(attention_flops { 0, 64 } == 4 * 64 * 65 / 2 * 32 and attention_flops { 0, 32, 64 } == 2 * 4 * 32 * 33 / 2 * 32)

fails("value", "nothing is being rehearsed", q.rehearsal.cost)
fails("value", "going on already", q.rehearsal.run, function() q.rehearsal.run(function() end) end)
fails("value", "stop here", q.rehearsal.run, function() q.error("value", "stop here") end)
assert(q.zeros({ 2 }):table()[2] == 0, "after an error the device is the real one again")

-- The least budget works; a byte less does not. At the least, three buffers of the largest unit are held.
local rates = { bandwidth = 1e11, flops = 1e13 }
local function plan(opt)
  for name, value in pairs(rates) do opt[name] = value end
  opt.row_tokens, opt.model = 64, opt.model or "1b"
  return q.plan(opt)
end
do  -- a GPU's head has at most 2048 rows of logits at a time: from there on more tokens take no more of them
  local function activations(tokens) return plan { mode = "lora", rows = tokens / 64 }.accounts.activations end
  local to_2048, to_4096 = activations(2048) - activations(1024), activations(4096) - activations(2048)
  local logits = 2048 * 4 * 128256
  assert(math.abs(2 * to_2048 - to_4096 - logits) < 0.01 * logits, "logits of another chunk than a GPU's")
end
local whole = plan { mode = "lora" }
assert(whole.fits and whole.placed.streamed == 0 and whole.total == whole.placed.device and whole.least < whole.total)
local least = plan { mode = "lora", device_budget = whole.least, link = 1e10 }
assert(least.fits and least.placed.device <= whole.least and least.placed.keep == 0 and least.placed.file == 0)
assert(least.placed.streamed == least.placed.host and least.step.moved == 2 * least.placed.streamed)
local pinned = plan { mode = "lora", device_budget = whole.least, host_budget = least.placed.host }
assert(pinned.fits and pinned.placed.host == least.placed.host and pinned.placed.file == 0)
local filed = plan { mode = "lora", device_budget = whole.least, host_budget = least.placed.host - 1 }
assert(filed.fits and filed.placed.host == least.placed.host - 1 and filed.placed.file == least.least_host + 1,
  "the host's budget is not kept")
assert(least.least_host < least.placed.host and plan { mode = "lora", device_budget = whole.least,
  host_budget = least.least_host }.fits)
assert(not plan { mode = "lora", device_budget = whole.least, host_budget = least.least_host - 1 }.fits,
  "there is no buffer for what is read from the file")
local between = plan { mode = "lora", device_budget = (whole.least + whole.total) / 2 }
assert(between.placed.keep > 0 and between.placed.device <= (whole.least + whole.total) / 2 and
  between.placed.keep + between.placed.streamed == least.placed.streamed,
  "what stays and what is streamed are not all that may be")
assert(math.abs(least.step.transfer - least.step.moved / 1e10) < 1e-9)
assert(not plan { mode = "lora", device_budget = whole.least - 1 }.fits)
local function config_of(tied)
  return { architectures = { "Qwen3ForCausalLM" }, model_type = "qwen3", vocab_size = 32000, hidden_size = 256,
    num_hidden_layers = 8, num_attention_heads = 4,
    num_key_value_heads = 2, head_dim = 64, intermediate_size = 512, max_position_embeddings = 128, rms_norm_eps = 1e-6,
    rope_theta = 10000, hidden_act = "silu",
    tie_word_embeddings = tied }
end
-- Without rates of its own the plan is for the CPU. There the host budget is for the whole process, and two buffers are
-- enough.
local there = plan { mode = "lora", model = config_of(false) }
local host_budget = there.least + q.plan({ model = config_of(false), row_tokens = 64, mode = "lora" }).process
local here = q.plan { model = config_of(false), row_tokens = 64, mode = "lora", device_budget = 1e12,
  host_budget = host_budget + 10e6 }
assert(here.fits and here.placed.device + here.process <= host_budget + 10e6 and here.placed.host == 0 and
  here.placed.file == here.placed.streamed)
assert(here.least < there.least and here.process > 64e6)
assert(not q.plan { model = config_of(false), row_tokens = 64, mode = "lora", host_budget = here.least + 60e6 }.fits,
  "the process itself needs nothing")
-- A head that is the embedding stays on a GPU. A GPU streams whole units.
local tied = plan { mode = "lora", model = config_of(true) }
assert(tied.least > tied.units[1].bytes + 3 * tied.units[2].bytes and tied.units[1].shared,
  "a tied embedding counts as streamed")
assert(not plan { mode = "lora", model = config_of(false) }.units[1].shared)
-- By phases memory has to hold the largest turn, wherever it comes: here gate and up, after the matrices of the
-- attention.
local attention, mlp = 3 * 256 * 256, 256 * 512
local all = plan { mode = "onebit", model = config_of(false) }
local floats = all.trained - 8 * (attention + 3 * mlp)
assert(plan { mode = "onebit", model = config_of(false), active = 2 * mlp }.trained - floats == 2 * mlp,
  "the turn that is planned is not the largest")
local parted = plan { mode = "onebit", model = config_of(false), active = 2 * mlp, keep = true }
local dropped = plan { mode = "onebit", model = config_of(false), active = 2 * mlp }
-- Bits that learn are streamed too. They wait in pinned memory of the host, and each backward pass copies them back
-- there.
local learners = plan { mode = "onebit", model = config_of(false), active = 2 * mlp, accumulate = 2,
  device_budget = dropped.least }
local bits = 8 * (attention + 3 * mlp) / 8
assert(learners.fits and learners.placed.host == bits and learners.placed.streamed == bits and
  learners.least_host == bits)
assert(learners.step.moved == 4 * bits + 2 * (2 * mlp / 8))
local counters = 3 / 8 * (8 * (attention + 3 * mlp) - 2 * mlp)  -- of 3 bits
assert(math.abs((parted.accounts.optimizer - dropped.accounts.optimizer) / counters - 1) < 0.01,
  "not the counters of all weights")

-- A head that drafts tokens is planned as it is run: its weights, a cache of its own, and what training it takes.
do
  local function with(mode, mtp)
    return plan { mode = mode, mtp = mtp, model = config_of(false), context = 128, batch = 4 }
  end
  local head = 2 * (2 * 256 * 256 + 3 * 256 * 512 + 2 * 256 * 256 + 2 * 256 * 128 + 5 * 256 + 2 * 64)  -- bf16
  local drafts, without = with("inference", true), with("inference", false)
  assert(drafts.accounts.weights - without.accounts.weights == head)
  assert(drafts.accounts.kv - without.accounts.kv >= 4 * 128 * 2 * 2 * 64 * 2, "the head's pages are not counted")
  fails("unsupported", "no head that drafts tokens", with, "onebit", true)
  assert(with("lora", true).trained - with("lora", false).trained == head / 2)
end

-- A decoding step of eight sequences is one of all eight, whatever order their prompts are read in.
do
  local function cost(batch)
    local step = plan({ mode = "inference", model = config_of(false), context = 128, batch = batch }).step
    return step.tokens, step.flops_f32 + step.flops_bf16
  end
  local one, eight = select(2, cost(1)), select(2, cost(8))
  assert((cost(8)) == 8 and math.abs(eight / one - 8) < 0.01, ("eight sequences cost %.2f of one"):format(eight / one))
end

-- Twice the rows, twice the work of a step; recomputing holds less and computes more.
local twice, again = plan { mode = "lora", rows = 2 }, plan { mode = "lora", recompute = true }
assert(twice.step.flops_bf16 > 1.99 * whole.step.flops_bf16 and twice.step.flops_bf16 < 2.01 * whole.step.flops_bf16)
assert(again.accounts.activations < whole.accounts.activations and again.step.flops_bf16 > whole.step.flops_bf16)
fails("value", "mode is some: one of full", q.plan, { model = "7b", mode = "some" })
-- What makes no sense is refused before anything is built.
for name, wrong in pairs { device_budget = 0 / 0, host_budget = -5, accumulate = 0, row_tokens = 1e12, rank = 1.5,
  link = math.huge, recompute = 1, levels = 5,
  dtype = "q4_k", kv = "i32", bandwidth = "fast", batch = 1e6 } do
  fails("value", ("plan: %s is %s: "):format(name, tostring(wrong)), q.plan, { model = "1b", [name] = wrong })
end
fails("value", "no option row_token; did you mean row_tokens", q.plan, { model = "1b", row_token = 64 })
fails("value", "model is 5, expected", q.plan, { model = 5 })
fails("value", "bandwidth and flops go together", q.plan, { model = "1b", flops = 1e12 })
fails("value", "rows x row_tokens is 33554432", q.plan, { model = "1b", rows = 2, row_tokens = 2 ^ 24 })
for _, mode in ipairs { "full", "onebit" } do
  fails("value", "stored = q4_k is of frozen weights", q.plan, { model = "1b", mode = mode, stored = "q4_k" })
end
fails("value", "batch x context is 33554432", q.plan,
  { model = "1b", mode = "inference", batch = 4096, context = 8192, bandwidth = 1e10, flops = 1e11 })

-- On the CPU, where weights have to be streamed, the device budget is for the whole process.
local function on_cpu(opt)
  opt.model, opt.row_tokens = config_of(false), 64
  return q.plan(opt)
end
local free = on_cpu {}
assert(on_cpu { device_budget = free.total }.fits and on_cpu { device_budget = free.total }.counted == 0,
  "resident weights are held to no more than tensors")
local short = on_cpu { device_budget = free.total - 1 }
assert(not short.fits and short.counted > 64e6 and short.least_budget == free.total,
  "what streams would take the process's memory for tensors")
-- The least amount is enough as it is printed, given back. The process is that of a model with its tokenizer. (What the
-- system says of the process changes by itself, so it stands still here.)
do
  local stream = require "qeng.model.stream"
  local made, read, process = setmetatable({}, { __mode = "k" }), q.tokenizer, stream.process
  function stream.process() return 123456789 end
  local shown = tostring(on_cpu { host_budget = 1e6 }):match "least host budget that works is ([%d.]+) MB"
  assert(on_cpu { host_budget = (tonumber(shown) + 1) * 1e6 }.fits)
  function q.tokenizer(folder)
    local tokenizer = read(folder)
    made[tokenizer] = true
    return tokenizer
  end
  function stream.process()
    assert(next(made), "the process is measured without the tokenizer that it will hold")
    return process()
  end
  assert(q.plan { model = q.fs.find "recipes/tiny", row_tokens = 64 }.process > 64e6)
  q.tokenizer, stream.process = read, process
end
assert(tostring(free):find "and the process itself, [%d.]+ MB" and not tostring(whole):find "the process itself,")
local window = q.plan { model = config_of(false), mode = "inference", context = 4096 }
assert(tostring(window):find("context: 128 tokens, the model's max_position_embeddings, not 4096", 1, true))

-- All ways at once: a way that the shape does not allow says why. Where no way is possible, that is the error.
local compare = require("qeng.plan.text").compare
local function ways(change)
  return function(mode, active)
    local values = config_of(false)
    for key, value in pairs(change) do values[key] = value end
    return plan { mode = mode, active = active, model = values }
  end
end
local rows = compare(ways { hidden_size = 264, intermediate_size = 500 }, 0)
assert(rows:find "\nlora +[%d.]+ MB" and rows:find "\nonebit +rows of one_bit %[256, 264%] are not whole blocks of 32")
fails("unsupported", "unknown keys num_experts_per_tok", compare,
  ways { num_experts_per_tok = 2, num_local_experts = 8 }, 0)

-- A machine that is not here: its published figures in place of this one's, and its memory; with one memory, what does
-- not fit is read from the file. A dataset's tokens, over the step's, are its time.
local planned = q.plan { model = "qwen3.5-0.8b", mode = "lora", machine = "GB10", row_tokens = 64, examples = 1000,
  example_tokens = 640, epochs = 3 }
assert(#planned.devices == 1 and planned.devices[1].name == "GB10" and planned.devices[1].memory == 128e9)
assert(not planned.link, "one memory has no link")
assert(planned.parameters > 0.75e9 and planned.parameters < 0.76e9, planned.parameters)  -- 752 million, as published
local text = tostring(planned)
assert(text:find "Fits on GB10 %(DGX Spark, GB10%): [%d.]+ GB of 128.0 GB")
assert(text:find "1000 examples of 640 tokens, 3 epochs: 1.92 million tokens; at the limits ")
local bound = math.max(planned.step.bytes / 273e9, planned.step.flops_bf16 / 125e12 + planned.step.flops_f32 / 31e12)
assert(planned.step.seconds >= bound * 0.999, "a step is no faster than memory and arithmetic are")
local large = q.plan { model = "90b", mode = "inference", machine = "gb10", context = 64 }
assert(large.devices[1].placed.host == 0 and large.devices[1].placed.file > 0, "weights of one memory are in no other")
assert(q.plan({ model = "90b", mode = "inference", machine = "h100", context = 64 }).devices[1].placed.host > 0)
local is_here = require "qeng.plan.machines".here
local devices = { { name = "cuda:0", description = "NVIDIA GeForce RTX 4090, compute capability 8.9" },
  { name = "cuda:1", description = "NVIDIA GH200 480GB, compute capability 9.0" },
  { name = "cpu", description = "L4 x" } }
assert(is_here("rtx4090", devices) == "cuda:0" and is_here("GH200", devices) == "cuda:1")
assert(is_here("l4", devices) == "cpu" and not is_here("gb10", devices))
assert(not is_here("h200", devices) and not is_here("l40s", devices), "a name is a whole word")
fails("value", "there is no machine gb11; there are a100, gb10,", q.plan, { model = "1b", machine = "gb11" })
fails("value", "give the machine or these", q.plan, { model = "1b", machine = "gb10", bandwidth = 1e9, flops = 1e12 })
fails("value", "examples are of training", q.plan, { model = "1b", mode = "inference", examples = 10 })
fails("value", "example_tokens and epochs are of examples", q.plan, { model = "1b", epochs = 3 })
local shapes = require "qeng.plan.shapes"
assert(table.concat(shapes.family "Qwen3.5", " ") == "qwen3.5-0.8b qwen3.5-2b qwen3.5-4b qwen3.5-9b qwen3.5-27b "
  .. "qwen3.5-35b-a3b" and #shapes.family "7b" == 0)
local small = require("qeng.plan.text").family(function(name, mode)
  return q.plan { model = config_of(name == "tied"), mode = mode, row_tokens = 64, machine = "h100", examples = 1e6 }
end, { "tied", "untied" }, { "full", "lora" })
assert(small:find "^model +total +at least +step +tokens/s +the data +fits\n" and
  small:find "\ntied full +[%d.]+ MB +[%d.]+ MB +[%d.]+ us +%d+ +%d+ min %d+ s +h100: yes\n" and
  small:find "\nuntied lora " and small:find "\n1000000 examples of 1000 tokens, 1 epoch: 1000 million tokens\n", small)

-- A name on a hub: only the configuration and the tokenizer of the model are fetched, not its weights.
local cache, fetched = os.tmpname(), {}
q.fs.remove(cache)
q.fs.mkdir(cache)
local listing = { commit = "c0ffee", folder = cache,
  files = { { path = "config.json", size = 9 }, { path = "model.safetensors", size = 2 ^ 40 } } }
local folders = {
  settings = function()
    return { offline = false, cache = cache, endpoint = "nowhere" }
  end, list = function() return listing end,
  room = function() return 2 ^ 50 end, pin = function() fetched.pinned = true end,
  fetch = function(_, _, _, _, file)
    fetched[#fetched + 1] = file.path
    q.fs.write(cache .. "/" .. file.path, q.json.encode(config_of(false)))
    return cache .. "/" .. file.path, true
  end,
}
local open = q.hub.open
q.hub.open = function() return folders end
for _ = 1, 2 do
  assert(plan { model = "org/name", mode = "lora" }.total == plan { model = config_of(false), mode = "lora" }.total)
end
q.hub.open = open
q.fs.remove(cache)
assert(table.concat(fetched, " ") == "config.json" and not fetched.pinned, table.concat(fetched, " "))

-- Ranks: each computes its share of the micro-batches, and with zero keeps its share of the optimizer's state, of the
-- gradients, of the weights.
local function shared(ranks, zero, more)
  local given = { model = config_of(false), mode = "full", accumulate = 4, ranks = ranks, zero = zero }
  for name, value in pairs(more or {}) do given[name] = value end
  return plan(given)
end
local function near(a, b, most) return math.abs(a / b - 1) < most end
local one, four, zero = shared(1), shared(4, 0), shared(4, 1)
assert(near(four.total - (four.accounts.exchange or 0), one.total, 1e-4) and four.step.tokens == one.step.tokens)
assert(four.step.flops_bf16 < 0.3 * one.step.flops_bf16)
assert(not one.step.exchanged and near(four.step.exchanged, 4 * four.trained * 0.75 * 2, 1e-3), four.step.exchanged)
local sent = zero.step.exchanged - four.step.exchanged  -- in bf16: what rank 0 owns, to three others
assert(sent > 2 * zero.trained * 0.75 * 0.99 and sent < 2 * zero.trained * 3 * 0.45, sent)
local held = zero.accounts.optimizer / one.accounts.optimizer
assert(held >= 0.25 and held < 0.45, held)  -- a matrix is one rank's whole
assert(zero.accounts.gradients == one.accounts.gradients)
local two, three = shared(4, 2), shared(4, 3)
assert(two.accounts.gradients < 0.85 * one.accounts.gradients and two.accounts.weights == one.accounts.weights)
assert(three.accounts.gradients == two.accounts.gradients and three.accounts.optimizer == two.accounts.optimizer)
assert(three.accounts.weights < 0.85 * one.accounts.weights and three.gathered == one.accounts.weights)
assert(two.step.exchanged < zero.step.exchanged, "sums go to their owner alone")
local timed = shared(4, 3, { network = three.step.exchanged / 2 })
assert(timed.step.exchange == 2 and tostring(timed):find "sends [%d.]+ MB a step: 2 s at", tostring(timed))
local shards = require "qeng.train.shards"
fails("unsupported", "--samples are answered by one rank, which with --zero 3 has a part of the weights: --zero 2",
  shards.check, { zero = 3, mtp = 0, samples = "a prompt" })
fails("unsupported", "--zero 2: a model with a head that drafts tokens (MTP) is trained with --zero 1 or 0",
  shards.check, { zero = 2, mtp = 0.3, samples = "" })
shards.check { zero = 2, mtp = 0, samples = "a prompt" }
fails("value", "network is what ranks send to each other, and there is one", plan, { model = config_of(false),
  network = 1e9 })
fails("value", "4 ranks share the micro-batches of a step, which are 2", plan, { model = config_of(false),
  accumulate = 2, ranks = 4 })
fails("unsupported", "2 ranks train in mode lora or full, not inference", plan, { model = config_of(false),
  accumulate = 2, ranks = 2, mode = "inference" })

fails("format", "hidden_size is missing", plan, { model = { architectures = { "Qwen2ForCausalLM" } } })
print "plan: passed"
