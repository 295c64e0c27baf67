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

-- Trains a few steps and forgets them. Returns slots a second, the bytes that are fixed, and the bytes that a row adds.
local function measure(model, file, opt, row_tokens, steps)
  local folder = opt.out .. "/measured"
  local result = q.train {
    model = model, data = file, out = folder, steps = steps, row_tokens = row_tokens, rows = 1,
    schedule = "constant", lr = 1e-6,
    seed = 0, checkpoints = false, pad = model.tokenizer and model.tokenizer:id "<|endoftext|>" or 0,
  }
  q.fs.remove(folder)
  local fixed, growing = estimates.memory()
  return { tok_s = estimates.speed(result.metrics), fixed_bytes = fixed, row_bytes = growing }
end

-- found: of analyze.dataset. opt: model (folder), mode ("auto", "lora", "full"), rank (0: advised), steps (measured),
-- device, dtype, out. Returns mode, rank, row_tokens, rows, accumulate, why, and what training takes.
function advise.training(file, found, opt)
  local probe = models.load(opt.model, { dtype = opt.dtype })
  local rank = advise.rank(probe, found.trained)
  local mode, why = opt.mode, nil
  local weights = probe.head:elements()
  for _, layer in ipairs(probe.linears) do weights = weights + layer.weight:elements() end
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
  local chosen = { mode = mode, rank = opt.rank > 0 and opt.rank or rank or 256, why = why or "as asked for",
    row_tokens = found.row.row_tokens, room = room, whose = whose }
  local model = mode == "full" and models.load(opt.model, { dtype = opt.dtype, writable = true }) or probe
  if mode == "full" then model:full() else model:lora { rank = chosen.rank } end
  local step_tokens = advise.step_tokens(found.tokens, chosen.row_tokens, mode)
  chosen.rows, chosen.accumulate = 1, math.max(1, math.floor(step_tokens / chosen.row_tokens + 0.5))
  if opt.steps > 0 then
    local took = measure(model, file, opt, chosen.row_tokens, opt.steps)
    for key, value in pairs(took) do chosen[key] = value end
    local most = room and math.floor((0.8 * room - took.fixed_bytes) / math.max(took.row_bytes, 1)) or 1
    chosen.rows = math.max(1, math.min(chosen.accumulate, most, math.ceil(8192 / chosen.row_tokens)))
    chosen.accumulate = math.max(1, math.floor(step_tokens / chosen.row_tokens / chosen.rows + 0.5))
    chosen.bytes = took.fixed_bytes + chosen.rows * took.row_bytes
    chosen.seconds = found.row.rows * chosen.row_tokens / took.tok_s
    estimates.foretell(estimates.key(model, { device = advise.device(opt.device).description, mode = mode,
      rank = chosen.rank, row_tokens = chosen.row_tokens }), took)
  end
  chosen.steps = math.max(1, math.ceil(found.row.rows / chosen.rows / chosen.accumulate))
  return chosen
end

return advise
