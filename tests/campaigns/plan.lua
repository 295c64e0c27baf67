-- Compares q.plan with the peaks of real training, each case in a process of its own:
--   qeng tests/campaigns/plan.lua [small | large]        QENG names the executable, "qeng" by default
-- The exit status is 1 where a plan is more than 5 % away from the sum of the peaks of the accounts, without kernels'
-- scratch, which no plan has. Beside it stands what the process took of the system, which is more: libraries' own
-- memory, the heap, pages of files.

local char_text = require "qeng.onebit.compare_text"
local onebit = require "qeng.onebit"
local onebit_run = require "qeng.onebit.compare_run"
local q = require "qeng"

local size = arg[1] or "small"
local sizes = {
  small = { hidden = 256, layers = 2, heads = 4, ffn = 256, vocab = 512, row_tokens = 64 },
  large = { hidden = 768, layers = 8, heads = 12, ffn = 2048, vocab = 16000, row_tokens = 512 },
}
local s = sizes[size]
if not s then q.error("usage", size .. ": expected small or large") end

local cases = {
  { name = "lora f32", mode = "lora", dtype = "f32" },
  { name = "lora bf16, recompute, 2 rows", mode = "lora", dtype = "bf16", recompute = true, rows = 2 },
  { name = "lora on q4_k", mode = "lora", stored = "q4_k" },
  { name = "full f32", mode = "full", dtype = "f32" },
  { name = "full bf16, 2 micro-batches", mode = "full", dtype = "bf16", accumulate = 2 },
  { name = "one-bit, 7 levels", mode = "onebit", dtype = "f32", levels = 7 },
  { name = "one-bit, 255 levels, by phases of half, bf16", mode = "onebit", dtype = "bf16", levels = 255, phases = 2 },
}

local values = {
  architectures = q.json.array { "Qwen2ForCausalLM" }, model_type = "qwen2", hidden_size = s.hidden,
  num_hidden_layers = s.layers,
  num_attention_heads = s.heads, num_key_value_heads = s.heads / 2, intermediate_size = s.ffn, vocab_size = s.vocab,
  hidden_act = "silu",
  max_position_embeddings = 4096, rms_norm_eps = 1e-6, rope_theta = 10000, tie_word_embeddings = true,
}

local function linear_weights() return s.layers * (3 * s.hidden ^ 2 + 3 * s.hidden * s.ffn) end

local function settings(case, model)
  return {
    model = model, mode = case.mode, dtype = case.dtype, rank = 8, row_tokens = s.row_tokens, rows = case.rows,
    accumulate = case.accumulate,
    recompute = case.recompute, levels = case.levels, active = case.phases and linear_weights() / case.phases,
    eval = not case.phases,
  }
end

local function train(case, file, path, folder)
  local model = case.stored and q.load(path, { weights = "copy" }) or
    q.random_model(values, { dtype = case.dtype, seed = 1 })
  model.recompute = case.recompute or false
  if case.mode == "full" then model:full() else model:lora { rank = 8 } end
  q.train {
    model = model, data = file, out = folder .. "/out", steps = 3, row_tokens = s.row_tokens, rows = case.rows,
    accumulate = case.accumulate, eval_share = 0.3, checkpoints = false,
  }
end

-- One-bit training as the comparison of its rules runs it, on letters drawn at random.
local function train_bits(case, folder)
  local letters = {}
  for i = 1, 40 * s.row_tokens do letters[i] = string.char(97 + (i * 7919 + i * i) % 26) end
  q.fs.write(folder .. "/text", table.concat(letters))
  onebit_run({ name = case.name, rule = "counter", levels = case.levels, seed = 1, lr = 1e-3 }, {
    values = values, text = char_text.open(folder .. "/text"), rows = 1, tokens = s.row_tokens, steps = 3, points = 1,
    point_windows = 1,
  })
end

-- Four steps by phases of two.
local function train_phases(case, file)
  local model = q.onebit.random(values, { rule = "counter", dtype = case.dtype, seed = 1 })
  local floats = {}
  for i, parameter in ipairs(onebit.float_parameters(model)) do floats[i] = parameter.tensor end
  local adamw = q.adamw_state(floats)
  local bits = q.phases(model, { count = case.phases, steps = 2, inertia = { levels = case.levels } })
  local batches = file:batches { row_tokens = s.row_tokens, rows = 1, seed = 0 }
  local micro_batch, program
  for step = 0, 3 do
    local batch = batches:next()
    micro_batch = micro_batch or q.micro_batch(batch:info().tokens, batch:info().max_documents)
    batch:load(micro_batch)
    micro_batch.scale:fill(1 / s.row_tokens)
    if bits:begin(step / 4, step) and program then
      program:free()
      program = nil
    end
    program = program or q.capture(function() model:loss(micro_batch):backward() end)
    program:run()
    adamw:step { lr = 1e-3, clip = 1 }
    bits:finish()
  end
end

-- Runs in a process of its own: trains, and prints what the plan said and what the training took.
local function run(case, folder)
  q.device { device = "cpu", threads = size == "small" and 1 or 0 }
  local path = folder .. "/model.gguf"
  local plan = q.plan(settings(case, case.stored and path or values))
  local before = q.memory()
  local writer = q.ndp.create(folder .. "/data.qubgpu")
  for i = 1, 16 do
    local ids = {}
    for k = 1, s.row_tokens do ids[k] = (i * 7919 + k * k) % s.vocab end
    writer:add(ids)
  end
  writer:finish()
  local file = q.ndp.open(folder .. "/data.qubgpu")
  if case.phases then
    train_phases(case, file)
  elseif case.mode == "onebit" then
    train_bits(case, folder)
  else
    train(case, file, path, folder)
  end
  local result = { planned = {}, measured = {}, rss = q.host.peak_rss(), seconds = plan.step.seconds }
  for name, account in pairs(q.memory()) do
    result.measured[name] = account.peak - (before[name] and before[name].bytes or 0)
  end
  for name, bytes in pairs(plan.accounts) do result.planned[name] = bytes end
  print("RESULT " .. q.json.encode(result))
end

if arg[2] then return run(cases[tonumber(arg[2])], arg[3]) end

local qeng = os.getenv "QENG" or "qeng"
local base = os.tmpname()
q.fs.remove(base)
local bad = 0
print "| training | planned | measured | off by | worst account | kernels' scratch | resident set |"
print "|---|---|---|---|---|---|---|"
for i, case in ipairs(cases) do
  local folder = base .. ".plan"
  q.fs.mkdir(folder)
  if case.stored then
    os.execute(("%s -e 'local q = require \"qeng\"; q.random_model(q.json.decode([[%s]]), {seed = " ..
        "1}):save_gguf(\"%s/model.gguf\", {type = \"%s\"})' >&2")
      :format(qeng, q.json.encode(values), folder, case.stored))
  end
  local pipe = io.popen(("%s %s %s %d %s 2>%s/err"):format(qeng, arg[0], size, i, folder, folder))
  local out = pipe:read "*a"
  pipe:close()
  local text = out:match "RESULT ([^\n]+)"
  if not text then error(out .. q.fs.read(folder .. "/err")) end
  local result, planned, measured, worst, worst_name = q.json.decode(text), 0, 0, 0, "none"
  local scratch = result.measured.scratch or 0  -- which a plan leaves out: it is said beside
  result.measured.scratch = nil
  for _, bytes in pairs(result.planned) do planned = planned + bytes end
  for name, bytes in pairs(result.measured) do
    measured = measured + bytes
    local off = math.abs((result.planned[name] or 0) - bytes)
    if off > worst then
      worst, worst_name = off, ("%s %+d kB"):format(name, ((result.planned[name] or 0) - bytes) / 1000)
    end
  end
  local off = 100 * (planned / measured - 1)
  if math.abs(off) > 5 then bad = bad + 1 end
  print(("| %s | %.2f MB | %.2f MB | %+.2f %% | %s | %.2f MB | %.0f MB |"):format(
    case.name, planned / 1e6, measured / 1e6, off, worst_name, scratch / 1e6, result.rss / 1e6))
  q.fs.remove(folder)
end
if bad > 0 then q.error("value", bad .. " plans are over 5 % away from what was measured") end
print(("all %d within 5 %%"):format(#cases))
