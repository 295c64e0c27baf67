-- The steps settings and estimate: how the model is trained, each setting with its reason, and what that will take.

local advise = require "qeng.train.advise"
local analyze = require "qeng.plan.analyze"
local candidates = require "qeng.wizard.candidates"
local estimates = require "qeng.train.estimates"
local models = require "qeng.model"
local progress = require "qeng.console.progress"
local q = require "qeng.core"

local settings = {}

-- Frees what models of earlier steps hold: they are let go by the first call, and freed by the second.
function settings.let_go()
  collectgarbage()
  collectgarbage()
end

-- The model that was chosen, or that of another folder. Its memory is free again when nobody holds it.
function settings.load(run, writable, path)
  settings.let_go()
  return models.load(path or run.found.model.path, { dtype = run.answer.dtype, writable = writable })
end

function settings.packets(run, name) return q.ndp.open(run:at("packets/" .. name .. ".qubgpu")) end

-- A learning rate for a model of this width, and why.
local function rate(mode, hidden)
  local lr, why = 2e-4, "usual for adapters"
  if mode == "full" then lr, why = 2e-5, "a tenth of what is usual for adapters: every weight moves" end
  if hidden < 1024 then
    lr, why = lr * 1024 / hidden, why .. (", and more for a narrow model: times 1024 / %d"):format(hidden)
  end
  return tonumber(("%.2g"):format(lr)), why
end

-- Passes over the data, and why. steps: of one pass.
local function passes(records, steps)
  local epochs, why = 1, "10000 records or more: one pass says most"
  if records < 10000 then epochs, why = 2, "under 10000 records" end
  if records < 1000 then epochs, why = 3, "under 1000 records: few are seen often" end
  local more = math.min(10, math.ceil(50 / steps))
  if more > epochs then epochs, why = more, "fewer steps than 50 teach little, and more than ten passes as little" end
  return epochs, why
end

-- The row length to recommend, and why.
local function row_length(found)
  local row = found.row
  return row.row_tokens, ("the shortest that %s, and %.0f %% full"):format(row.split > 0
    and ("only %.1f %% of the records exceed"):format(100 * row.split) or "no record exceeds", 100 * row.efficiency)
end

function settings.choose(run)
  local opt, ask = run.opt, function(question) return run:ask(question) end
  local file, model = settings.packets(run, "train"), settings.load(run)
  local longest = model.config.max_position
  local found = analyze.dataset(file, { tokenizer = model.tokenizer, max_row = longest })
  local advised = advise.choice(model, found, { mode = "auto", rank = 0, device = opt.device })
  local chosen = {}
  chosen.mode = ask { name = "mode", text = "Train adapters (lora) or every weight (full)?", default = advised.mode,
    why = advised.why }
  if chosen.mode == "lora" then
    local rank = advised.mode == "lora" and advised.rank or 256
    chosen.rank = ask { name = "rank", text = "Which rank do the adapters have?", default = rank,
      why = rank == 8 and ("it holds far more than the %d trained tokens say"):format(found.trained)
        or ("it holds what the %d trained tokens say, at 2 bits a weight"):format(found.trained) }
  elseif opt.rank > 0 then
    q.error("usage", "--rank is of adapters, and every weight is trained: leave it out, or give --mode lora")
  end
  local row, why = row_length(found)
  chosen.row_tokens = ask { name = "row_tokens", text = "How many tokens has a packed row?", default = row, why = why,
    check = function(value)
      if value < 16 or value > longest then q.error("value", ("from 16 to the model's %d"):format(longest)) end
      if analyze.packing(file, value, "auto").rows == 0 then
        q.error("value", ("%d: every conversation is longer, and would be left out"):format(value))
      end
    end }
  chosen.epoch_rows = analyze.packing(file, chosen.row_tokens, "auto").rows
  local rows = math.min(chosen.epoch_rows, advise.step_rows(found.tokens, chosen.row_tokens, chosen.mode))
  chosen.batch = ask { name = "batch", text = "How many rows has an optimizer step?",
    default = rows, why = rows == 1 and "the least there can be: a pass is few rows" or "a two-hundredth of a pass"
      .. (chosen.mode == "lora" and ": adapters like small steps" or "") }
  local epochs, often = passes(run.found.data.records, math.ceil(chosen.epoch_rows / chosen.batch))
  chosen.epochs = ask { name = "epochs", text = "How many passes over the data?", default = epochs,
    why = often .. "; the weights with the lowest held-out loss are kept" }
  local lr, reason = rate(chosen.mode, model.config.hidden)
  chosen.lr = ask { name = "lr", text = "Which peak learning rate?", default = lr, why = reason }
  chosen.steps = math.max(1, math.ceil(chosen.epoch_rows * chosen.epochs / chosen.batch))
  chosen.eval_every = math.max(1, math.ceil(chosen.steps / 8))
  chosen.warmup = math.min(20, math.ceil(chosen.steps / 20))
  run:say(("%d steps of %d slots; the held-out loss every %d steps, the rate rises for %d"):format(chosen.steps,
    chosen.batch * chosen.row_tokens, chosen.eval_every, chosen.warmup))
  return chosen
end

function settings.estimate(run)
  local opt, chosen = run.opt, {}
  for name, value in pairs(run.found.settings) do chosen[name] = value end
  local room, whose = candidates.room(opt)
  chosen.room, chosen.step_rows, chosen.rank = room, chosen.batch, chosen.rank or 0
  local file, held = settings.packets(run, "train"), settings.packets(run, "held_out")
  q.fs.remove(run:at "estimate")
  advise.measure(settings.load(run, chosen.mode == "full"), file, chosen, { steps = 6, out = run:at "estimate",
    device = opt.device })
  q.fs.remove(run:at "estimate")
  local evaluations = math.floor(run.found.settings.steps / chosen.eval_every) + 2
  local held_rows = analyze.packing(held, chosen.row_tokens, "auto").rows
  -- A loss alone is a third of a step's work, whose backward pass is two.
  local seconds = chosen.seconds * chosen.epochs + evaluations * held_rows * chosen.row_tokens / chosen.tok_s / 3
  run:say(("measured: %.0f slots/s. Training takes about %s, and %s of memory%s"):format(chosen.tok_s,
    progress.duration(seconds), progress.bytes(chosen.bytes),
    room and (" (%s has %s)"):format(whose, progress.bytes(room)) or ""))
  run:say(estimates.errors() or "how far such estimates are off is not known here yet; this run will tell")
  if room and chosen.bytes > room then
    q.error("value", ("it does not fit: give --redo settings with shorter rows (--row-tokens), or --redo model with a "
      .. "smaller model"))
  end
  return { tok_s = chosen.tok_s, seconds = seconds, bytes = chosen.bytes, rows = chosen.rows,
    accumulate = chosen.accumulate, device = advise.device(opt.device).description }
end

return settings
