-- One-bit weights that are streamed, learning ones too: bits, flips and losses are those of a model in the device's
-- memory, through switches of phases and from a saved state.  qeng onebit_stream_test.lua [cuda]
package.path = (arg[0]:match "^(.*/)" or "./") .. "?.lua;" .. package.path
local q = require "qeng"
local streamed = require "streamed"
local on_gpu = (arg[1] or ""):find "^cuda" ~= nil
q.device { device = arg[1] or "cpu", threads = 1 }

local values = {
  architectures = { "QengAbsoluteForCausalLM" }, model_type = "qeng_absolute", vocab_size = 61,
  hidden_size = on_gpu and 32 or 1024, num_hidden_layers = 4,
  num_attention_heads = 4, num_key_value_heads = 4, intermediate_size = on_gpu and 64 or 4096,
  max_position_embeddings = 32, rms_norm_eps = 1e-6,
  hidden_act = "silu", tie_word_embeddings = false,
}

local micro_batch = q.micro_batch(8, 1)
local ids, targets, positions = {}, {}, {}
for i = 1, 8 do ids[i], targets[i], positions[i] = i * 7 % 61, (i + 1) * 7 % 61, i - 1 end
micro_batch.tokens:set(ids)
micro_batch.targets:set(targets)
micro_batch.positions:set(positions)
micro_batch.cu_q:set { 0, 8 }
micro_batch.scale:fill(1 / 8)

local name = os.tmpname()
local of_resident, of_streamed = name .. ".resident", name .. ".streamed"  -- what is saved of each
local steps = 6  -- in phases of three: a program runs, is recorded, and is replayed

-- Bytes of this process that are in memory.
local function in_memory()
  local file = io.open "/proc/self/statm"
  local pages = file:read "*a":match "^%d+ (%d+)"
  file:close()
  return 4096 * pages
end

-- Losses, flips and counts of the bits after training, which are saved to a file.
--   how        of q.onebit.random
--   by         of q.phases
--   recompute
--   stop       after so many steps the bits are saved, and a new model goes on with them; "save": they are saved at
--              each step
local function trained(how, by, recompute, saved, stop)
  return q.scope(function()
    local model = q.onebit.random(values, how)
    model.recompute = recompute
    local list = {}
    for i, parameter in ipairs(model:trainable()) do list[i] = parameter.tensor end
    local adam = q.adamw_state(list)
    local phases = { count = 2, steps = 3, by = by, keep = true, inertia = { levels = 1, q = 0.5 } }
    local bits = q.phases(model, phases)
    local result, program, loss = { losses = {}, flips = 0, bits = {} }, nil, nil
    for step = 0, steps - 1 do
      if step == stop then
        q.safetensors.save(saved, bits:tensors())
        for _, layer in ipairs(model.linears) do layer.weight:copy(q.empty(layer.weight:shape(), "one_bit")) end
        local file = q.safetensors.open(saved)
        bits:restore(bits:state(), file)
        file:close()
      end
      if bits:begin(step / steps, step) or step == stop then
        if program then
          program:free()
          loss:free()  -- which holds on to the program's memory
        end
        program, loss = q.capture(function()
          local value = model:loss(micro_batch)
          value:backward()
          return value
        end)
      end
      q.rng_step(step)
      program:run()
      result.losses[step + 1] = loss:item()
      adam:step { lr = 5e-3 }
      result.flips = result.flips + bits:finish().flips
      if stop == "save" then
        local before = in_memory()
        q.safetensors.save(saved, bits:tensors())
        result.touched = math.max(result.touched or 0, in_memory() - before)
      end
    end
    program:free()
    loss:free()
    result.losses[steps + 1] = q.no_grad(q.scope, function() return (model:loss(micro_batch)):item() end)
    for _, layer in ipairs(model.linears) do result.bits[#result.bits + 1] = q.onebit.count_bits(layer.weight) end
    q.safetensors.save(saved, bits:tensors())
    result.figures = model.stream and model.stream:figures()
    bits:free()
    if model.stream then model.stream:close() end
    return result
  end)
end

-- Reads a piece at a time. Large strings would stay in the process, and count as what it needs.
local function same_file(one, other)
  local a, b = assert(io.open(one, "rb")), assert(io.open(other, "rb"))
  local left, right
  repeat left, right = a:read(65536), b:read(65536) until left ~= right or not left
  a:close()
  b:close()
  return left == right
end

local streamed_options = { rule = "counter", seed = 4, weights = "stream", stream_keep = on_gpu and 0 or nil,
  stream_slack = not on_gpu and 4e6 or nil }
local function within(limit, by, recompute, stop)
  streamed.collect()
  streamed_options.host_budget = limit
  return trained(streamed_options, by, recompute, of_streamed, stop)
end

-- The run within a limit that makes it stream. On the CPU that is the smallest limit tried that the run fits in, beside
-- what the process has now. A run that is saved at each step has to fit in what the run needs without.
local function streamed_run(by, recompute, stop)
  if on_gpu then return within(nil, by, recompute, stop) end
  local probe = q.onebit.random(values, { rule = "frozen", seed = 4, weights = "stream", stream_slack = 4e6 })
  local needed = probe.stream:figures().process
  probe.stream:close()
  probe = nil  -- luacheck: ignore 311
  local result, limit = streamed.under_least_limit(needed, 2e6, function(limit)
    local out = within(limit, by, recompute, stop ~= "save" and stop or nil)
    return out.figures.bytes > 2 * out.figures.total and out or "loose"
  end)
  return stop == "save" and within(limit + 2e6, by, recompute, stop) or result
end

local cases = { { "rows", true }, { "rows", true, "save" }, { "layer", false, 4 } }
if on_gpu then table.insert(cases, { "layer", true }) end
for _, case in ipairs(cases) do
  local by, recompute, stop = case[1], case[2] or false, case[3]
  local what = ("by %s%s%s: "):format(by, recompute and ", recomputed" or "",
    stop == "save" and ", saved at each step" or stop and ", restored" or "")
  local inside = trained({ rule = "counter", seed = 4 }, by, recompute, of_resident)
  streamed.collect()
  local out = streamed_run(by, recompute, stop)
  streamed.collect()
  assert(out.figures.bytes > 2 * out.figures.total, what .. "the limit did not make it stream")
  assert(out.figures.fetch_ms > 0 and out.figures.stall_ms >= 0, what .. "no times")
  -- A matrix of half a megabyte at a time passes through memory.
  assert((out.touched or 0) <= 1e6, what .. "saving brought bits into memory")
  assert(inside.flips > 0 and inside.flips == out.flips,
    ("%sflips: %d in memory, %d streamed"):format(what, inside.flips, out.flips))
  for i, loss in ipairs(inside.losses) do
    assert(loss == out.losses[i], ("%sstep %d: loss %.9g in memory, %.9g streamed"):format(
      what, i, loss, out.losses[i]))
  end
  for i, count in ipairs(inside.bits) do assert(count == out.bits[i], ("%smatrix %d: other bits"):format(what, i)) end
  assert(same_file(of_resident, of_streamed), what .. "other bytes are saved")
  print(("one-bit weights, streamed %sthe bits of a model in memory; %.1f MB moved, %d flips"):format(
    what, out.figures.bytes / 1e6, out.flips))
end
local ok, err = pcall(q.onebit.random, values, { rule = "latent", weights = "stream" })
assert(not ok and tostring(err):find "keeps more than bits", tostring(err))
q.fs.remove(of_resident)
q.fs.remove(of_streamed)
os.remove(name)
