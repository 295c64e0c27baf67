-- From an analysis to a way of training: LoRA or every weight, rank, batch. A few measured steps tell what training
-- will take on this machine.

local estimates = require "qeng.train.estimates"
local models = require "qeng.model"
local progress = require "qeng.console.progress"
local q = require "qeng.core"

local advise = {}

-- The rank of adapters that hold all the data: a power of two from 8 on, or nil if it would be over 256. Adapters hold
-- about two bits a weight, and a trained token of instruction data brings about one (Schulman 2025, "LoRA Without
-- Regret").
function advise.rank(model, trained)
  local per_rank = 0
  for _, layer in ipairs(model.linears) do
    local shape = layer.weight:shape()
    per_rank = per_rank + (layer.experts or 1) * (shape[#shape - 1] + shape[#shape])
  end
  local rank = 8
  while rank * per_rank * 2 < trained do rank = rank * 2 end
  return rank <= 256 and rank or nil
end

-- Slots of an optimizer step: a two-hundredth of an epoch, but at least a row, and at most what the mode takes well.
-- LoRA likes small batches.
function advise.step_tokens(tokens, row_tokens, mode)
  return math.max(row_tokens, math.min(tokens / 200, mode == "lora" and 32768 or 131072))
end

-- Bytes that may be taken: of the GPU, or those that the system says are available. The second result says whose they
-- are.
function advise.available(device)
  if device.name ~= "cpu" and device.memory then return device.memory, device.name end
  local text = q.try(q.fs.read, "/proc/meminfo") or ""
  local kilobytes = tonumber(text:match "MemAvailable:%s*(%d+)")
  return kilobytes and kilobytes * 1024, "this machine"
end

function advise.device(name)
  for _, one in ipairs(q.devices()) do
    if one.name == name or (name == "auto" and one.name ~= "cpu") then return one end
  end
  return q.devices()[1]
end

-- Computes the loss of a row as an evaluation does, beside what training holds.
local function evaluate(model, file, row_tokens, pad)
  local batches = file:batches { row_tokens = row_tokens, rows = 1, seed = 0, once = true, pad = pad, long = "split" }
  local batch = batches:next()
  local micro_batch = models.micro_batch(batch:info().tokens, batch:info().max_documents)
  batch:load(micro_batch)
  q.no_grad(q.scope, function() model:loss(micro_batch, row_tokens) end)
end

-- Trains a few steps, with an evaluation among them, and forgets them. Returns slots a second, the bytes that are
-- fixed, and the bytes that a row adds.
local function measure(model, file, opt, row_tokens, steps)
  local folder, pad = opt.out .. "/measured", model.tokenizer and model.tokenizer:id "<|endoftext|>" or 0
  local result = q.train {
    model = model, data = file, out = folder, steps = steps, row_tokens = row_tokens, rows = 1,
    schedule = "constant", lr = 1e-6,
    seed = 0, checkpoints = false, pad = pad,
    on_step = function(row) if row.step == 1 then evaluate(model, file, row_tokens, pad) end end,
  }
  q.fs.remove(folder)
  local fixed, growing = estimates.memory()
  return { tok_s = estimates.speed(result.metrics), fixed_bytes = fixed, row_bytes = growing }
end

-- What of a model to train: mode and rank, why, and the room there is. opt: mode ("auto", "lora", "full"), rank (0:
-- advised), device.
function advise.choice(model, found, opt)
  local rank = advise.rank(model, found.trained)
  local mode, why = opt.mode, nil
  local weights = model.head:elements()
  for _, layer in ipairs(model.linears) do weights = weights + layer.weight:elements() end
  local room, whose = advise.available(advise.device(opt.device))
  local full_bytes = 16 * weights  -- bf16 or f32 weights and gradients, f32 master and AdamW's two moments
  if mode == "auto" then
    local fits = room and full_bytes < 0.7 * room
    mode = (not rank and fits) and "full" or "lora"
    why = rank and
      ("LoRA of rank %d: its adapters can hold what %d trained tokens say (about 2 bits a weight, 1 a token)"):format(
        rank, found.trained)
      or fits and ("every weight: %d trained tokens say more than adapters of rank 256 hold"):format(found.trained)
      or ("LoRA of rank 256: the data say more than its adapters hold, and every weight would need about %s, " ..
          "of which %s has %s"):format(
        progress.bytes(full_bytes), whose, room and progress.bytes(room) or "an unknown part")
  end
  return { mode = mode, rank = opt.rank > 0 and opt.rank or rank or 256, why = why or "as asked for", room = room,
    whose = whose }
end

-- The rows of a step.
function advise.step_rows(tokens, row_tokens, mode)
  return math.max(1, math.floor(advise.step_tokens(tokens, row_tokens, mode) / row_tokens + 0.5))
end

-- Measures a few steps of what was chosen (mode, rank, row_tokens, step_rows, epoch_rows, room) and adds to it: tok_s,
-- bytes, seconds (of an epoch), and rows and accumulate, which make step_rows together. model: as it was loaded. opt:
-- steps (0: nothing is measured), device, out.
function advise.measure(model, file, chosen, opt)
  chosen.rows, chosen.accumulate = 1, chosen.step_rows
  if opt.steps > 0 then
    if chosen.mode == "full" then model:full() else model:lora { rank = chosen.rank } end
    local took, row_tokens = measure(model, file, opt, chosen.row_tokens, opt.steps), chosen.row_tokens
    for key, value in pairs(took) do chosen[key] = value end
    local most = chosen.room and math.floor((0.8 * chosen.room - took.fixed_bytes) / math.max(took.row_bytes, 1)) or 1
    chosen.rows = math.max(1, math.min(chosen.step_rows, most, math.ceil(8192 / row_tokens)))
    chosen.accumulate = math.max(1, math.floor(chosen.step_rows / chosen.rows + 0.5))
    chosen.bytes = took.fixed_bytes + chosen.rows * took.row_bytes
    chosen.seconds = chosen.epoch_rows * row_tokens / took.tok_s
    estimates.foretell(estimates.key(model, { device = advise.device(opt.device).description, mode = chosen.mode,
      rank = chosen.rank, row_tokens = row_tokens }), took)
  end
  chosen.steps = math.max(1, math.ceil(chosen.epoch_rows / chosen.rows / chosen.accumulate))
  return chosen
end

-- found: of analyze.dataset. opt: as for choice and measure, with model (folder) and dtype. Returns mode, rank,
-- row_tokens, rows, accumulate, why, and what training takes.
function advise.training(file, found, opt)
  local model = models.load(opt.model, { dtype = opt.dtype })
  local chosen = advise.choice(model, found, opt)
  chosen.row_tokens, chosen.epoch_rows = found.row.row_tokens, found.row.rows
  chosen.step_rows = advise.step_rows(found.tokens, chosen.row_tokens, chosen.mode)
  if chosen.mode == "full" then model = models.load(opt.model, { dtype = opt.dtype, writable = true }) end
  return advise.measure(model, file, chosen, opt)
end

return advise
