-- Every golden model: logits, losses, gradients and 30-step curves are those of transformers and PEFT; a packed row
-- gives the loss and gradients of its documents alone; captured, recomputed and eager passes give the same bits.
-- Arguments: names of models (all). QENG_TEST_DEVICE: the device (auto). QENG_PARITY=short: without curves and bits,
-- for an emulated device.

package.path = (arg[0]:match("^(.*/)") or "./") .. "?.lua;" .. package.path
local golden = require "golden"
local q = require "qeng"

local function check(condition, ...)
  if not condition then error(string.format(...), 2) end
end

local function open(g, opt) return q.load(g.dir, opt) end

local function test_logits(g)
  local model = open(g, { dtype = "f32" })
  local worst = 0
  for i, document in ipairs(g.values.batches[1]) do
    local largest = golden.differences(golden.flat(model:logits(document.tokens)),
      golden.flat(g.file:tensor("logits." .. (i - 1))))
    worst = math.max(worst, largest)
  end
  check(worst <= 1e-4, "%s: logits differ by %g", g.values.name, worst)
  return worst
end

local function gradients(model, prefix, g)
  local worst = 0
  for _, parameter in ipairs(model:trainable()) do
    local _, relative = golden.differences(golden.flat(parameter.tensor:grad()),
      golden.flat(g.file:tensor(prefix .. parameter.name)))
    check(relative <= 1e-4, "%s: gradient of %s differs by %g", g.values.name, parameter.name, relative)
    worst = math.max(worst, relative)
  end
  return worst
end

local function test_gradients(g)
  local micro_batch, _, longest = golden.micro_batch(g.values.batches[1])
  local full = open(g, { dtype = "f32", writable = true }):full()
  local loss = full:loss(micro_batch, longest)
  loss:backward()
  local wanted = g.values.full.loss
  check(math.abs(loss:item() - wanted) <= 1e-5 * wanted, "%s: loss %g, expected %g", g.values.name, loss:item(), wanted)
  local a = gradients(full, "grad.", g)
  local lora = open(g, { dtype = "f32" })
  golden.set_adapter(lora, g)
  loss = lora:loss(micro_batch, longest)
  loss:backward()
  wanted = g.values.lora.loss
  check(math.abs(loss:item() - wanted) <= 1e-5 * wanted, "%s: LoRA loss %g, expected %g", g.values.name,
    loss:item(), wanted)
  return math.max(a, gradients(lora, "lora_grad.base_model.model.", g))
end

local function tensors(model)
  local list = {}
  for i, parameter in ipairs(model:trainable()) do list[i] = parameter.tensor end
  return list
end

-- Trains 30 steps as the goldens did; the largest relative difference of a loss.
local function curve(g, mode, dtype)
  local model = open(g, { dtype = dtype, writable = mode == "full" })
  if mode == "full" then model:full() else golden.set_adapter(model, g, true) end
  local setup = g.values.optimizer
  local adamw = q.adamw_state(tensors(model), { decay = setup[mode].weight_decay })
  local micro_batches = {}
  for i, batch in ipairs(g.values.batches) do
    local micro_batch, _, longest = golden.micro_batch(batch)
    micro_batches[i] = { micro_batch, longest }
  end
  local wanted, worst = g.values.curves[mode .. "_" .. dtype].loss, 0
  for step = 1, #wanted do
    local micro_batch = micro_batches[(step - 1) % #micro_batches + 1]
    local value = q.scope(function()
      local loss = model:loss(micro_batch[1], micro_batch[2])
      loss:backward()
      return loss:item()
    end)
    adamw:step { lr = setup[mode].lr, clip = setup.clip }
    worst = math.max(worst, math.abs(value - wanted[step]) / wanted[step])
  end
  return worst
end

local function test_curves(g)
  local worst = {}
  for _, case in ipairs { { "lora", "f32", 1e-4 }, { "full", "f32", 1e-4 }, { "lora", "bf16", 5e-3 },
      { "full", "bf16", 5e-3 } } do
    local relative = curve(g, case[1], case[2])
    check(relative <= case[3], "%s: %s %s loss curve differs by %g", g.values.name, case[1], case[2], relative)
    worst[#worst + 1] = ("%s %s %.1e"):format(case[1], case[2], relative)
  end
  return table.concat(worst, ", ")
end

-- The loss and gradients of each document inside the packed row, without the others' targets, against the document
-- alone.
local function test_packing(g)
  if g.values.name == "llama_dynamic" then return 0 end  -- documents of different lengths are rotated differently there
  local documents = g.values.batches[1]
  local model = open(g, { dtype = "f32" })
  golden.set_adapter(model, g)
  local function pass(micro_batch)
    micro_batch.scale:fill(1)
    local loss = model:loss(micro_batch)
    loss:backward()
    local grads = {}
    for i, parameter in ipairs(model:trainable()) do
      grads[i] = golden.flat(parameter.tensor:grad())
      parameter.tensor:grad():fill(0)
    end
    return loss:item(), grads
  end
  local worst = 0
  for number, document in ipairs(documents) do
    local alone, count = golden.micro_batch { document }
    if count > 0 then
      local others = {}
      for i, other in ipairs(documents) do others[i] = i == number and other or { tokens = other.tokens, mask = {} } end
      local packed_loss, packed = pass((golden.micro_batch(others)))
      local loss, grads = pass(alone)
      check(math.abs(packed_loss - loss) <= 1e-5 * math.max(1, loss), "%s: document %d: packed loss %g, alone %g",
        g.values.name, number, packed_loss, loss)
      -- A query that sees one key has no gradient. So a document of two tokens leaves q and k only rounding errors,
      -- which differ on some machines in the packed row. They have to be nothing there too, next to all gradients.
      local nothing = 1e-6 * golden.norm(unpack(grads))
      for i, parameter in ipairs(model:trainable()) do
        if golden.norm(grads[i]) <= nothing then
          local size = golden.norm(packed[i])
          check(size <= nothing, "%s: document %d: gradient of %s is %g, alone it is 0", g.values.name, number,
            parameter.name, size)
        else
          local _, relative = golden.differences(packed[i], grads[i])
          check(relative <= 1e-5, "%s: document %d: gradient of %s differs by %g", g.values.name, number,
            parameter.name, relative)
          worst = math.max(worst, relative)
        end
      end
    end
  end
  return worst
end

-- All gradients as one exact string: eager, recomputed, captured (replayed twice, so that replay leaves nothing
-- behind).
local function test_bits(g)
  local micro_batch, _, longest = golden.micro_batch(g.values.batches[1])
  local function bits(opt)
    local model = open(g, { dtype = opt.dtype })
    model:lora { rank = 4, dropout = 0.1, seed = 3 }
    for i, parameter in ipairs(model:trainable()) do
      if i % 2 == 0 then
        parameter.tensor:copy(q.randn(parameter.tensor:shape(), { std = 0.1, seed = 1, subsequence = i }))
      end
    end
    model.recompute = opt.recompute
    q.seed(5)
    q.rng_step(7)
    local function pass()
      local loss = model:loss(micro_batch, longest)
      loss:backward()
      return loss
    end
    local loss
    if opt.capture then
      local program
      program, loss = q.capture(pass)
      program:run()
      for _, parameter in ipairs(model:trainable()) do parameter.tensor:grad():fill(0) end
      program:run()
    else
      loss = pass()
    end
    local parts = { ("%.17g"):format(loss:item()) }
    for _, parameter in ipairs(model:trainable()) do
      for _, v in ipairs(golden.flat(parameter.tensor:grad())) do parts[#parts + 1] = ("%.17g"):format(v) end
    end
    return table.concat(parts, " ")
  end
  for _, dtype in ipairs { "f32", "bf16" } do
    local eager = bits { dtype = dtype }
    check(eager == bits { dtype = dtype }, "%s %s: two runs differ", g.values.name, dtype)
    check(eager == bits { dtype = dtype, recompute = true }, "%s %s: recompute differs", g.values.name, dtype)
    check(eager == bits { dtype = dtype, capture = true }, "%s %s: captured differs", g.values.name, dtype)
    check(eager == bits { dtype = dtype, capture = true, recompute = true }, "%s %s: captured recompute differs",
      g.values.name, dtype)
  end
end

check(#golden.names >= 6, "only %d golden models", #golden.names)
for _, name in ipairs(#arg > 0 and arg or golden.names) do
  local g = golden.open(name)
  q.scope(function()
    local logits, grads, packing = test_logits(g), test_gradients(g), test_packing(g)
    local curves = "not run"
    if os.getenv "QENG_PARITY" ~= "short" then
      test_bits(g)
      curves = test_curves(g)
    end
    print(("%-14s logits %.1e, gradients %.1e, packing %.1e, curves: %s"):format(name, logits, grads, packing, curves))
  end)
end
