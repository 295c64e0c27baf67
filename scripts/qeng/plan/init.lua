-- q.plan: what training or inference will need and take, before anything is loaded.
--
-- There are no formulas. The model is built, and q.train (or an engine) runs, on a device that computes nothing
-- (q.rehearsal.run). So parameters, gradients, the optimizer's state, the planned arena and the cost of each operation
-- are those of the code that will run. What remains is where the weights lie (place) and whether that fits
-- (plan/text.lua).
--
--   q.plan { model = "7b", mode = "lora", row_tokens = 2048 }
--
-- model: a folder (config.json is enough), a GGUF file, a config.json, a name on a hub (its weights are not fetched), a
-- name of plan/shapes.lua, or a table of config.json's keys. The other options are the set "plan", below. Without
-- machine, or bandwidth and flops, the plan is for this device, at its measured limits.

local experts = require "qeng.model.experts"
local inertia = require "qeng.onebit.inertia"
local kv_option = require "qeng.infer.kv_option"
local kv_types = require "qeng.model.kv_types"
local machines = require "qeng.plan.machines"
local names = require "qeng.gguf.names"
local models = require "qeng.model"
local onebit = require "qeng.onebit"
local options = require "qeng.console.options"
local phases = require "qeng.onebit.phases"
local plan_text = require "qeng.plan.text"
local progress = require "qeng.console.progress"
local paged = require "qeng.infer.paged"
local part_names = require "qeng.model.names"
local place = require "qeng.plan.place"
local q = require "qeng.core"
local ranks = require "qeng.train.ranks"
local shards = require "qeng.train.shards"
local source_of = require "qeng.plan.source"
local stream = require "qeng.model.stream"
local train = require "qeng.train"

-- ---------------------------------------------------------------- the units

-- The bytes of the weights by unit: embed, each layer, head. A streamed unit moves as a whole. Weights that are trained
-- as floats stay on the device. Of a unit:
--   shared   it is embedding and head at once; a GPU keeps it
--   learned  bytes of the bits in `learning`, a set
--   held     bytes that a llama GGUF file has in another order; they are in the host's memory where the unit is read
--            from there
local function units_of(model, learning, opt)
  local units, by_name = {}, {}
  for _, parameter in ipairs(model.parameters) do
    local name = part_names.plain(model.arch, parameter.name)
    local layer = name:match "layers%.(%d+)%."
    local unit = layer and "layers." .. layer or name:find "embed_tokens" and "embed" or
      name:find "^lm_head" and "head"
    if unit and not parameter.tensor:requires_grad() then
      if not by_name[unit] then
        by_name[unit] = { name = unit, bytes = 0, held = 0, learned = 0,
          shared = unit == "embed" and model.config.tied }
        units[#units + 1] = by_name[unit]
      end
      by_name[unit].bytes = by_name[unit].bytes + parameter.tensor:bytes()
      if learning[parameter.tensor] then by_name[unit].learned = by_name[unit].learned + parameter.tensor:bytes() end
      if (model.gguf or opt.stored) and names.heads(model.arch, parameter.name, model.config) then
        by_name[unit].held = by_name[unit].held + parameter.tensor:bytes()
      end
    end
  end
  return units
end

-- ---------------------------------------------------------------- rehearsals

-- Stands for a PacketFile in q.train: every row is full of one document, and every token is trained.
local function full_rows()
  local file = {}
  function file:batches(how)
    local tokens, most = how.rows * how.row_tokens, how.rows * math.max(2, math.floor(how.row_tokens / 4))
    local left = how.once and 1 or math.huge
    local batch, batches = {}, {}
    function batch:info()
      return { tokens = tokens, max_documents = most, trained_tokens = tokens, real_tokens = tokens, wait_ms = 0,
        damaged = 0, crc_dropped = 0, dst = 0, epoch = 0 }
    end
    function batch:send() end
    function batch:load(micro_batch)
      local bounds = {}
      for i = 0, most do bounds[i + 1] = math.min(i, how.rows) * how.row_tokens end
      micro_batch.cu_q:copy(q.tensor(bounds, "i32"))
    end
    function batches:plan()
      return { batches = 1, trained_tokens = tokens, documents = how.rows, sources = { [0] = 1 },
        destinations = { [0] = 1 }, split = 0, truncated = 0, dropped = 0 }
    end
    function batches:state() return {} end
    function batches:next()
      left = left - 1
      return left >= 0 and batch or nil
    end
    return batches
  end
  return file
end

local function difference(after, before)
  local d = {}
  for name, value in pairs(after) do d[name] = type(value) == "number" and value - before[name] or nil end
  return d
end

-- Three steps of q.train. The second shows what a step costs.
local function train_steps(model, opt)
  local name = os.tmpname()
  q.fs.remove(name)
  local marks, weights = {}, nil
  local ok, err = pcall(train, {
    model = model, data = full_rows(), out = name .. ".plan", steps = 3, row_tokens = opt.row_tokens, rows = opt.rows,
    accumulate = opt.accumulate, moment_bits = opt.moment_bits, zero = opt.zero, ranks = opt.team,
    eval_share = opt.eval and 0.5 or 0, checkpoints = false,
    on_step = function(row)
      marks[#marks + 1] = q.rehearsal.cost()
      marks[#marks].exchanged = row.exchange_bytes
      -- Where they are shared out, all of them are there before and after only.
      weights = model.shards and q.memory().weights.bytes or nil
    end,
  })
  q.fs.remove(name .. ".plan")
  if not ok then error(err, 0) end
  local step = difference(marks[2], marks[1])
  step.exchanged = opt.ranks > 1 and marks[2].exchanged or nil
  return step, nil, weights
end

-- Two steps of one-bit training: the bits by counters, all else by AdamW. Returns also the bits that learn.
local function onebit_steps(model, opt)
  local floats = {}
  for i, parameter in ipairs(onebit.float_parameters(model)) do floats[i] = parameter.tensor end
  local adamw, learner = q.adamw_state(floats), { levels = opt.levels }
  local bits = opt.active and phases.new(model,
    { active = opt.active, steps = 2, keep = opt.keep, inertia = learner }) or inertia.new(model, learner)
  local turn, most = 1, 0  -- of the phases, that in which most weights learn
  for number, parts in ipairs(bits.turns or {}) do
    local held = 0
    for _, part in ipairs(parts) do held = held + part.layer.weight:elements() end
    if held > most then turn, most = number, held end
  end
  -- each turn gets its counters
  for number = 1, opt.keep and bits.turns and #bits.turns or 0 do bits:begin(0, 2 * (number - 1)) end
  local batches, marks, learning, program = full_rows():batches(opt), {}, {}, nil
  local batch = batches:next()
  local micro_batch = models.micro_batch(batch:info().tokens, batch:info().max_documents)
  for step = 0, 1 do
    bits:begin(step / 2, 2 * (turn - 1) + step)
    batch:load(micro_batch)
    program = program or q.capture(function() model:loss(micro_batch, opt.row_tokens):backward() end)
    for _ = 1, opt.accumulate do program:run() end
    adamw:step { lr = 1e-3, clip = 1 }
    bits:finish(opt.accumulate)
    marks[#marks + 1] = q.rehearsal.cost()
  end
  if opt.eval then q.no_grad(q.scope, function() model:loss(micro_batch, opt.row_tokens) end) end
  for _, part in ipairs((bits.inertia or bits).parts) do learning[part.layer.weight] = true end
  return difference(marks[2], marks[1]), learning
end

local most_read = 2 ^ 22  -- tokens of prompts: a rehearsal reads them in steps of a few hundred, so many in minutes

local piece = 256         -- tokens of prompts in a step, as the engine has it

-- The cost of a step in which each of opt.batch sequences decodes the last token of its context. Their prompts are not
-- read, which a rehearsal need not do.
local function last_step(model, opt, kv, pages)
  local runner, ids, parts, wanted = paged.new(model, {
    kv = kv, pages = pages, rows = math.max(piece, opt.batch), sequences = opt.batch, context = opt.context,
    remember = false,
  }), {}, {}, {}
  for i = 1, opt.context do ids[i] = 0 end
  for i = 1, opt.batch do
    local id = runner.pool:open(0)
    for first = 1, opt.context, piece do  -- as steps would have it: exact rows (model/kv_types.lua) come and go
      if not runner:extend(id, ids, first, math.min(first + piece - 1, opt.context)) then
        q.error("memory", ("plan: %d pages do not hold %d sequences"):format(pages, opt.batch))
      end
      runner.pool:commit(id)
    end
    parts[i], wanted[i] = { id = id, count = 1 }, i - 1
  end
  local before = q.rehearsal.cost()
  runner:run(parts, wanted, function() end)
  local step = difference(q.rehearsal.cost(), before)
  runner:free()
  return step
end

-- Reads opt.batch prompts of all but a few tokens of opt.context and begins to decode, for the memory that takes. The
-- step is the last one of one sequence, or that of all.
local function decode_steps(model, opt)
  opt.asked_context, opt.context = opt.context, math.min(opt.context, model.config.max_position)
  if opt.batch * opt.context > most_read then
    q.error("value",
      ("plan: batch x context is %.0f tokens, expected %d at most: plan fewer sequences, whose cache is as " ..
        "much each"):format(opt.batch * opt.context, most_read))
  end
  local pages = opt.batch * paged.pages(model, opt.context)
  local kv = kv_types.unmeasured(kv_option(opt))
  local engine, ids, marks = model:engine { kv = kv, max_batch = opt.batch, context = opt.context, pages = pages,
    remember = false, draft = opt.mtp and "mtp" or nil, draft_always = true }, {}, {}
  for i = 1, opt.context - 6 do ids[i] = 0 end
  for _ = 1, opt.batch do engine:submit { ids = ids, max_tokens = 6, temperature = 0, stop_ids = {} } end
  repeat marks[#marks + 1] = q.rehearsal.cost() until not engine:step()
  engine:close()
  if opt.batch > 1 then return last_step(model, opt, kv, pages) end
  return difference(marks[#marks - 1], marks[#marks - 2])
end

local prepare = {
  full = function(model, opt)
    if shards.wanted(opt.mode, opt.zero, opt.team) then shards.attach(model, opt.team, opt.zero) end
    model:full { gradients = opt.gradients }
  end,
  lora = function(model, opt)
    model:lora { rank = opt.rank, targets = opt.targets[1] and opt.targets, dropout = opt.dropout }
  end,
  onebit = function() end,
  inference = function() end,
}
local steps = { full = train_steps, lora = train_steps, onebit = onebit_steps, inference = decode_steps }

local function rehearse(make, opt, limits)
  local silent = progress.silent
  progress.silent = true
  local ok, result = pcall(q.rehearsal.run, function()
    local model = make()
    model.recompute = opt.recompute
    prepare[opt.mode](model, opt)
    if opt.mtp then model:attach_mtp { writable = opt.mode ~= "inference" } end
    if opt.mtp and opt.mode ~= "inference" then model:train_mtp {} end
    local step, learning, weights = steps[opt.mode](model, opt)
    local found = {
      device = q.rehearsal.cost().device, tokenizer = model.tokenizer, accounts = {}, step = step,
      units = opt.mode == "full" and {} or units_of(model, learning or {}, opt),
      parameters = 0, trained = 0, layers = model.config.layers,
      dtype = model.fp8 and "fp8" or model.dtype,
    }
    for name, account in pairs(q.memory()) do found.accounts[name] = account.peak end
    found.accounts.weights = weights or found.accounts.weights
    local whole = 0  -- bytes
    for _, parameter in ipairs(model.parameters) do
      found.parameters = found.parameters + parameter.tensor:elements()
      whole = whole + parameter.tensor:bytes()
    end
    found.gathered = weights and opt.zero == 3 and whole or nil
    for _, parameter in ipairs(opt.mode == "onebit" and onebit.float_parameters(model) or model:trainable()) do
      found.trained = found.trained + parameter.tensor:elements()
    end
    found.active = experts.active(model)
    found.learns = next(learning or {}) ~= nil
    for weight in pairs(learning or {}) do found.trained = found.trained + weight:elements() end
    return found
  end, limits)
  progress.silent = silent
  if not ok then error(result, 0) end
  return result
end

-- ---------------------------------------------------------------- q.plan

local most_tokens = 2 ^ 24       -- beyond any published context; a rehearsal's lists are of that length
local most_accumulated = 4096    -- each micro-batch is rehearsed

options.set("plan", {
  { "mode", "lora", "what to plan", choices = { "full", "lora", "onebit", "inference" } },
  { "dtype", nil, "f32, bf16 or fp8 (training: bf16 with products in E4M3); by default what the config says (float16 "
    .. "is kept, and computed in f32)", choices = { "f32", "bf16", "fp8" } },
  { "stored", nil, "dtype of the frozen linear layers where no file says it, such as q4_k" },
  { "rank", 16, "LoRA rank", min = 1, max = 4096 },
  { "targets", {}, "layers with adapters (all linear layers; where there are experts, those of attention)" },
  { "dropout", 0, "dropout on the adapters' input", min = 0, max = 0.9, number = true },
  { "row_tokens", 512, "tokens of a packed row", min = 2, max = most_tokens },
  { "rows", 1, "rows of a micro-batch", min = 1, max = most_tokens },
  { "accumulate", 1, "micro-batches of a step", min = 1, max = most_accumulated },
  { "ranks", 1, "training: processes (mpirun) that share the micro-batches; what is planned is the first of them",
    min = 1, max = most_accumulated },
  { "zero", 0, "with ranks, what each keeps of its part of the parameters alone: 1 the optimizer's state; in mode full "
    .. "2 gradients too, 3 weights too", choices = { 0, 1, 2, 3 } },
  { "network", nil, "with ranks: bytes a second that one sends to others, such as 1.25G for 10 Gbit/s; of a run it is "
    .. "exchange_bytes over exchange_ms in metrics.jsonl", kind = "bytes" },
  { "moment_bits", 32, "bits of AdamW's moments", choices = { 32, 8 } },
  { "gradients", "f32", "full: what weights of linear layers gather", choices = { "f32", "bf16" } },
  { "levels", 7, "one-bit training: levels of a counter", choices = { 1, 3, 7, 15, 255 } },
  { "active", nil, "one-bit training by phases: weights that learn at once", min = 1, number = true },
  { "keep", false, "one-bit training by phases: counters of weights that rest are kept" },
  { "recompute", false, "keep one activation a layer, recompute the others" },
  { "mtp", false, "with a head that drafts tokens: trained beside, or its guesses in inference" },
  { "eval", false, "a held-out loss is measured too" },
  { "context", 4096, "inference: tokens of a sequence, as far as the model's positions go", min = 16,
    max = most_tokens },
  { "batch", 1, "inference: sequences at once", min = 1, max = 4096 },
  "kv",
  { "machine", nil, "a machine that is not here: " .. table.concat(machines.names(), ", ") },
  { "bandwidth", nil, "bytes a second of a GPU that is not here; with flops", kind = "bytes" },
  { "flops", nil, "of a GPU that is not here, in its dtype; with bandwidth", min = 1, number = true },
  { "link", nil, "bytes a second from host to device, for streamed weights", kind = "bytes" },
  { "device_budget", nil, "memory that tensors may take on the device, as 8G", kind = "bytes" },
  { "host_budget", nil, "most host memory, such as 16G: beside a GPU that of streamed weights, which is pinned (the "
    .. "rest is read from the file); on the CPU that of the whole process, as --device-budget is where " ..
      "weights have to be "
    .. "streamed", kind = "bytes" },
  { "examples", nil, "training: examples of a dataset, for the time that they take", min = 1, number = true },
  { "example_tokens", nil, "tokens of an example, by default 1000", min = 1, number = true },
  { "epochs", nil, "how often each example is met, by default once", min = 0, number = true },
})

-- The options as given, with their defaults, checked.
local function checked(given)
  local opt = options.complete("plan", "plan", given, { "model", "model_file" })
  if type(opt.model) ~= "string" and type(opt.model) ~= "table" then
    q.error("value", ("plan: model is %s, expected a path, a name, or the keys of a config.json"):format(
      tostring(opt.model)))
  end
  if opt.rows * opt.row_tokens > most_tokens then
    q.error("value", ("plan: rows x row_tokens is %.0f tokens, expected %d at most"):format(opt.rows * opt.row_tokens,
      most_tokens))
  end
  if opt.ranks > 1 and (opt.mode == "inference" or opt.mode == "onebit") then
    q.error("unsupported", ("plan: %d ranks train in mode lora or full, not %s"):format(opt.ranks, opt.mode))
  end
  if opt.ranks > opt.accumulate then
    q.error("value", ("plan: %d ranks share the micro-batches of a step, which are %d: accumulate = %d, or a multiple")
      :format(opt.ranks, opt.accumulate, opt.ranks))
  end
  if opt.network and opt.ranks == 1 then
    q.error("value", "plan: network is what ranks send to each other, and there is one: ranks = 2, or more")
  end
  opt.team = opt.ranks > 1 and ranks.imagined(opt.ranks) or ranks.alone
  if (opt.bandwidth ~= nil) ~= (opt.flops ~= nil) then
    q.error("value", "plan: bandwidth and flops go together: they stand in for a device that is not here")
  end
  if opt.machine and (opt.bandwidth or opt.link) then
    q.error("value", ("plan: %s has a bandwidth, flops and a link: give the machine or these"):format(opt.machine))
  end
  if opt.examples and opt.mode == "inference" then
    q.error("value", "plan: examples are of training, and mode inference has none")
  end
  if not opt.examples and (opt.example_tokens or opt.epochs) then
    q.error("value", "plan: example_tokens and epochs are of examples: say how many")
  end
  opt.example_tokens, opt.epochs = opt.example_tokens or 1000, opt.epochs or 1
  if opt.mtp and opt.mode == "onebit" then
    q.error("unsupported", "plan: one-bit training has no head that drafts tokens (mtp)")
  end
  if opt.dtype == "fp8" and (opt.mode == "inference" or opt.mode == "onebit") then
    q.error("unsupported", ("plan: dtype fp8 is for training, and mode %s has no such products: take bf16"):format(
      opt.mode))
  end
  if opt.stored and (opt.mode == "full" or opt.mode == "onebit") then
    q.error("value", ("plan: stored = %s is of frozen weights, and mode %s trains them; take mode lora or inference")
      :format(opt.stored, opt.mode))
  end
  return opt
end

-- The bytes that a stream counts for the process itself, which has rehearsed what it will run.
local function process_bytes(plan, folder)
  plan.tokenizer = plan.tokenizer or folder and q.try(q.tokenizer, folder) or nil
  collectgarbage()
  local bytes = stream.process()
  plan.tokenizer = nil
  return bytes
end

-- What tensors may take of the budgets (nil: there is none), and how much of them the process takes. On the CPU a
-- stream holds the whole process to the smaller budget. Without a stream only device_budget counts, and only for
-- tensors.
local function room(plan, opt)
  local whole = math.min(opt.device_budget or math.huge, opt.host_budget or math.huge)
  if not plan.on_host or whole == math.huge then return opt.device_budget, 0 end
  if not opt.host_budget and plan.total <= whole then return whole, 0 end
  return whole - plan.process, plan.process
end

-- Where the plan may fit: a machine of the table, or the devices that are here, first the one of `name`, whose times
-- the plan has. And that one; nothing is known of it where only its bandwidth is given.
local function devices_of(opt, machine, name)
  local list = machine and { { name = opt.machine, description = machine.description, memory = machine.memory,
    one_memory = machine.one_memory } } or q.devices()
  for i, device in ipairs(list) do
    if device.name == name and not opt.bandwidth then table.insert(list, 1, table.remove(list, i)) end
  end
  return list, opt.bandwidth and not machine and {} or list[1]
end

return function(given)
  if type(given) ~= "table" then q.error("value", "plan: expected a table of options, as q.plan { model = \"7b\" }") end
  local opt = checked(given)
  local make, name, folder = source_of(opt)
  local machine = opt.machine and machines.find(opt.machine)
  local limits = machine and { bandwidth = machine.bandwidth, flops_f32 = machine.flops_f32,
    flops_bf16 = machine.flops_bf16, gpu = true }
    or opt.bandwidth and { bandwidth = opt.bandwidth, flops_f32 = opt.flops, flops_bf16 = opt.flops, gpu = true }
    or q.limits()
  local plan = rehearse(make, opt, limits)
  plan.name, plan.mode, plan.given = name, opt.mode, opt
  plan.on_host = plan.device == "cpu" and not opt.bandwidth and not machine  -- with these it is a GPU that is not here
  plan.process = plan.on_host and process_bytes(plan, folder) or 0
  if not plan.on_host then  -- gradients on their way lie in the host's memory
    plan.exchange_bytes, plan.accounts.exchange = plan.accounts.exchange, nil
  end
  local devices, device = devices_of(opt, machine, plan.device)
  plan.one_memory = device.one_memory
  local all = place(plan, nil, nil, device)
  plan.total, plan.least = all.total, all.least
  local budget, failed
  budget, plan.counted = room(plan, opt)
  plan.placed, failed = place(plan, budget, opt.host_budget, device)
  plan.fits = plan.placed ~= nil
  plan.least_host = (plan.placed or failed).least_host
  plan.placed = plan.placed or all
  plan.least_budget = plan.least + plan.counted
  if not opt.host_budget then plan.least_budget = math.min(plan.least_budget, plan.total) end
  plan.devices = {}
  for i, each in ipairs(devices) do
    plan.devices[i] = { name = each.name, description = each.description, memory = each.memory,
      placed = (place(plan, each.memory - (each.one_memory and plan.process or 0), nil, each)) }
  end
  local computed = math.ceil(opt.accumulate / opt.ranks)  -- micro-batches of a rank
  local passes = opt.mode == "inference" and 1 or 2 * computed  -- backward wants each layer once more
  plan.step.moved = plan.placed.streamed * passes + plan.placed.written * computed
  plan.step.exchange = plan.step.exchanged and opt.network and plan.step.exchanged / opt.network or nil
  plan.link = opt.link or machine and machine.link
  plan.step.transfer = plan.link and plan.step.moved / plan.link or nil
  plan.step.tokens = opt.mode == "inference" and opt.batch or opt.rows * opt.row_tokens * opt.accumulate
  return setmetatable(plan, plan_text)
end
