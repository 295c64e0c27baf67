-- What the analyzer estimated, and what training then took: lines of JSON in the user's cache folder. Training adds a
-- line only if there is an estimate for the same model, device and row. A missing or damaged file does no harm.

local q = require "qeng.core"
local user = require "qeng.console.user"

local estimates = {}
local kept = 200  -- lines

local function path() return user.cache_dir() .. "/estimates.jsonl" end

function estimates.read()
  local text = q.try(function() return q.fs.read(path()) end) or ""
  local list = {}
  for line in text:gmatch "[^\n]+" do
    local ok, entry = pcall(q.json.decode, line)
    if ok and type(entry) == "table" and type(entry.key) == "string" then list[#list + 1] = entry end
  end
  return list
end

local function add(entry)
  local list = estimates.read()
  list[#list + 1] = entry
  local lines = {}
  for i = math.max(1, #list - kept + 1), #list do lines[#lines + 1] = q.json.encode(list[i]) end
  q.fs.mkdir(user.cache_dir())
  q.fs.write(path(), table.concat(lines, "\n") .. "\n")
end

-- A key of what decides speed and memory of a row, except the number of rows. about: device, mode, rank, row_tokens,
-- recompute.
function estimates.key(model, about)
  local weights = model.head:elements()
  for _, layer in ipairs(model.linears) do weights = weights + layer.weight:elements() end
  return ("%s, %s, %d weights in %s, %s%s, rows of %d%s"):format(about.device, model.arch.hf, weights,
    model.fp8 and "fp8" or model.dtype, about.mode,
    about.mode == "lora" and " " .. about.rank or "", about.row_tokens, about.recompute and ", recomputing" or "")
end

-- The peak bytes of training in this process by q.memory, in two parts: what keeps its size, and what grows with the
-- rows of a batch. A cache of keys and values (kv) is of answers that were asked for beside the training.
function estimates.memory()
  local fixed, growing = 0, 0
  for name, account in pairs(q.memory()) do
    if name == "activations" or name == "workspace" or name == "scratch" or name == "batch" then
      growing = growing + account.peak
    elseif name ~= "kv" then
      fixed = fixed + account.peak
    end
  end
  return fixed, growing
end

-- The median of a list of numbers.
function estimates.median(list)
  local sorted = {}
  for i, x in ipairs(list) do sorted[i] = x end
  table.sort(sorted)
  return sorted[math.ceil(#sorted / 2)]
end

-- Slots a second of a run's steps, without the first two.
function estimates.speed(metrics)
  local rates = {}
  for i, row in ipairs(metrics) do
    if i > math.min(2, #metrics - 1) then rates[#rates + 1] = row.tok_s end
  end
  return estimates.median(rates)
end

-- given: tok_s, fixed_bytes, row_bytes
function estimates.foretell(key, given)
  q.try(add, { kind = "estimate", key = key, tok_s = given.tok_s, fixed_bytes = given.fixed_bytes,
    row_bytes = given.row_bytes })
end

-- Called at the end of a training run.
function estimates.came_true(model, about, metrics)
  q.try(function()
    local key, last = estimates.key(model, about), nil
    for _, entry in ipairs(estimates.read()) do
      if entry.key == key and entry.kind == "estimate" then last = entry end
    end
    if not last or #metrics < 5 then return end
    local fixed, growing = estimates.memory()
    add {
      kind = "actual", key = key, tok_s = estimates.speed(metrics), bytes = fixed + growing,
      estimated_tok_s = last.tok_s,
      estimated_bytes = last.fixed_bytes + last.row_bytes * about.rows,
    }
  end)
end

-- How wrong the last ten estimates were, as text; nil where none was tested.
function estimates.errors()
  local time, memory = {}, {}
  local list = estimates.read()
  for i = #list, 1, -1 do
    local entry = list[i]
    if entry.kind == "actual" and #time < 10 and (entry.tok_s or 0) > 0 and (entry.estimated_tok_s or 0) > 0 and
        (entry.bytes or 0) > 0 and entry.estimated_bytes then
      time[#time + 1] = math.abs(entry.tok_s / entry.estimated_tok_s - 1)
      memory[#memory + 1] = math.abs(entry.estimated_bytes / entry.bytes - 1)
    end
  end
  if #time == 0 then return nil end
  local worst = math.max(unpack(time))
  return ("%d earlier estimates were put to the test: time was off by %.0f %% (median; %.0f %% at worst), memory " ..
    "by %.0f %% (median)")
    :format(#time, 100 * estimates.median(time), 100 * worst, 100 * estimates.median(memory)), #time
end

return estimates
