-- Compares one-bit rules at equal tokens. On the first seed each rule is run at several learning rates of the floats;
-- on the other seeds it is run at the best of these. Finished runs are kept in out/runs.jsonl. The run under way is
-- kept in out/unfinished, so a stopped comparison goes on.

local q = require "qeng.core"
local char_text = require "qeng.onebit.compare_text"
local charts = require "qeng.report.charts"
local onebit = require "qeng.onebit"
local grid = require "qeng.report.grid"
local page = require "qeng.report.page"
local progress = require "qeng.console.progress"
local run = require "qeng.onebit.compare_run"
local run_folder = require "qeng.train.run_folder"
local simulator = require "qeng.onebit.compare_simulator"

local compare = {}

local function counter(levels, how)
  how.rule, how.levels = "counter", levels
  return how
end

local function quarter(keep)  -- a quarter of the weights at a time
  return counter(7, { q = 0.3, friction = 0, phases = { parts = 4, steps = 100, keep = keep } })
end

-- Name, bits of training state a weight, what it is, and its case (onebit/compare_run.lua). sweep_on: if the highest
-- rate of a sweep is the best, higher ones are tried.
local methods = {
  { "frozen", "0", "frozen random bits", { rule = "frozen" }, sweep_on = true },
  { "latent", "12 B", "straight-through, f32 latent weights", { rule = "latent" } },
  { "255", "8 bits", "counter of 256 levels, k 10", counter(255, { k = 10 }) },
  { "15", "4 bits", "counter of 16 levels, q 0.6", counter(15, { q = 0.6 }) },
  { "7", "3 bits", "counter of 8 levels, q 0.15, friction 0.2", counter(7, { q = 0.15, friction = 0.2 }) },
  { "7free", "3 bits", "counter of 8 levels, q 0.15, no friction", counter(7, { q = 0.15, friction = 0 }) },
  { "7hot", "3 bits", "counter of 8 levels, q 0.3, no friction", counter(7, { q = 0.3, friction = 0 }) },
  { "7cool", "3 bits", "counter of 8 levels, q 0.05, no friction", counter(7, { q = 0.05, friction = 0 }) },
  { "7target", "3 bits", "counter of 8 levels, steered to 2 flips per thousand, no friction",
    counter(7, { friction = 0, target = 2 }) },
  { "3", "2 bits", "counter of 4 levels, q 0.05", counter(3, { q = 0.05 }) },
  { "1", "1 bit", "two-step machine (strict), q 0.02", counter(1, { q = 0.02 }) },
  { "bop", "8 bits", "Bop, int8 momentum", { rule = "bop" } },
  { "grid1", "8 B", "ternary without latent copy, AdamW", { rule = "grid", grid_levels = 1 } },
  { "grid127", "8 B", "int8 without latent copy, AdamW", { rule = "grid", grid_levels = 127 } },
  { "phased", "3 bits", "phases: a quarter at a time, 8 levels, q 0.3, no friction", quarter(true), sweep_on = true },
  { "refilled", "3 bits on 1/4", "phases: a quarter at a time, counters refilled, 8 levels, q 0.3, no friction",
    quarter(), sweep_on = true },
  { "dense", "12 B", "f32 weights, AdamW", { rule = "dense", latent_lr = 3e-3 } },
  { "dense16", "14 B", "bf16 weights of f32 masters, AdamW", { rule = "dense", latent_lr = 3e-3, dtype = "bf16" } },
}
compare.methods, compare.order = {}, {}
for i, one in ipairs(methods) do
  compare.order[i] = one[1]
  compare.methods[one[1]] = { state = one[2], text = one[3], case = one[4], sweep_on = one.sweep_on }
end

-- By what the rate grows in a sweep that goes on, and the highest rate it tries.
local further, highest = 2, 0.4

local function of_bits(method)
  local rule = compare.methods[method].case.rule
  return rule ~= "grid" and rule ~= "dense"
end

-- What is wrong with a decoded line of runs.jsonl; nil for a finished run.
local function fault(one)
  if type(one) ~= "table" then return "no JSON object" end
  for _, name in ipairs { "curve", "flips", "warnings" } do
    if type(one[name]) ~= "table" then return "no " .. name end
  end
  for _, name in ipairs(one.diverged and { "lr", "seed", "diverged" } or { "lr", "seed", "loss", "train" }) do
    if type(one[name]) ~= "number" then return "no " .. name end
  end
  return type(one.key) ~= "string" and "no key" or nil
end

-- The finished runs of `path` by their keys. All must have the same settings.
local function read_runs(path, settings)
  local runs, number = {}, 0
  if q.fs.kind(path) ~= "file" then return runs end
  for line in q.fs.read(path):gmatch "([^\n]*)\n?" do
    number = number + 1
    if line ~= "" then
      local one, err = q.try(q.json.decode, line)
      local wrong = err and err.message or fault(one)
      if wrong then
        q.error("format", ("%s, line %d: %s: the file is damaged; delete the line, and its run is done again"):format(
          path, number, wrong))
      elseif one.settings ~= settings then
        q.error("value", ("%s holds runs of other settings (%s; these are %s): give another --out"):format(
          path, tostring(one.settings), settings))
      end
      runs[one.key] = one
    end
  end
  return runs
end

-- Writes the whole file anew. A kill leaves either the old runs or the new ones.
local function add(path, runs, one)
  runs[one.key] = one
  local keys, lines = {}, {}
  for key in pairs(runs) do keys[#keys + 1] = key end
  table.sort(keys)
  for i, key in ipairs(keys) do lines[i] = q.json.encode(runs[key]) .. "\n" end
  q.fs.write(path, table.concat(lines))
end

local function copy(from, more)
  local to = {}
  for key, value in pairs(from) do to[key] = value end
  for key, value in pairs(more) do to[key] = value end
  return to
end

-- Flips a weight; "-" where the weights are no bits.
local function flips_text(flips) return flips and ("%.2f"):format(flips) or "-" end

local by_adamw = { latent = true, grid = true, dense = true }

-- {text, case} of a method. AdamW trains the weights of some; latent_lr replaces the rate of these.
local function case_of(method, latent_lr)
  local known = compare.methods[method]
  if not latent_lr or not by_adamw[known.case.rule] then return known end
  return { text = ("%s, its rate %g"):format(known.text, latent_lr),
    case = copy(known.case, { latent_lr = latent_lr }) }
end

local function key_of(method, lr, seed) return ("%s lr %g seed %d"):format(method, lr, seed) end

-- A method's run at the rate that is best on a seed, and that rate's place among lrs. Nil where all of them diverged.
local function best_of(runs, method, seed, lrs)
  local best, place
  for i, lr in ipairs(lrs) do
    local one = runs[key_of(method, lr, seed)]
    if one and one.loss and (not best or one.loss < best.loss) then best, place = one, i end
  end
  return best, place
end

-- Refuses what cannot be run, before anything is run. Sorts the rates.
local function check(opt)
  for _, name in ipairs { "methods", "lrs", "seeds" } do
    if #opt[name] == 0 then q.error("value", ("--%s: at least one expected"):format(name)) end
  end
  for _, method in ipairs(opt.methods) do
    if not compare.methods[method] then
      q.error("value", ("method %s: one of %s"):format(method, table.concat(compare.order, ", ")))
    end
  end
  for _, lr in ipairs(opt.lrs) do
    if not (lr > 0 and lr < math.huge) then
      q.error("value", ("--lrs: %g is no learning rate: expected more than 0"):format(lr))
    end
  end
  for _, seed in ipairs(opt.seeds) do
    if seed < 0 or seed ~= math.floor(seed) then
      q.error("value", ("--seeds: %g: expected whole numbers from 0"):format(seed))
    end
  end
  onebit.check_sizes(opt)
  table.sort(opt.lrs)
end

-- opt: text (path), out, methods, lrs, seeds, steps, rows, tokens, hidden, layers, heads, ffn, points, point_windows,
-- save_every, held_out, latent_lr (of weights that AdamW trains; otherwise the rule has its own).
function compare.run(opt)
  check(opt)
  run_folder.hold(opt.out)
  local path, speak = opt.out .. "/runs.jsonl", progress.new()
  local text = char_text.open(opt.text, opt.held_out)
  local settings = ("%d symbols, %d characters (%s), %d held out, %d steps of %d x %d, %d x %d wide, %d heads, ffn %d")
    :format(#text.symbols, text.train.length,
      text.digest, text.held.length, opt.steps, opt.rows, opt.tokens, opt.layers, opt.hidden, opt.heads, opt.ffn)
  local runs = read_runs(path, settings)
  if math.min(text.train.length, text.held.length) < opt.tokens + 2 then
    q.error("value",
      ("%s: its held-out part has %d characters, fewer than a window of %d and one: give a longer text or " ..
        "shorter windows"):format(opt.text, text.held.length, opt.tokens))
  end
  local set = { text = text, rows = opt.rows, tokens = opt.tokens, steps = opt.steps, points = opt.points or 10,
      point_windows = opt.point_windows or 100, values = {
    architectures = { "QengAbsoluteForCausalLM" }, model_type = "qeng_absolute", vocab_size = #text.symbols,
    hidden_size = opt.hidden, num_hidden_layers = opt.layers,
    num_attention_heads = opt.heads, num_key_value_heads = opt.heads, intermediate_size = opt.ffn,
    max_position_embeddings = opt.tokens, rms_norm_eps = 1e-6,
    hidden_act = "silu", tie_word_embeddings = false } }

  local function one(method, lr, seed)
    local known = case_of(method, opt.latent_lr)
    local key = key_of(method, lr, seed)
    local folder = ("%s/unfinished/%s"):format(opt.out, (key:gsub(" ", "-")))
    if runs[key] then
      if runs[key].rule ~= known.text then  -- a method of that name in an earlier version
        q.error("value", ("%s holds %s by another rule than %s: give another --out"):format(path, key, known.text))
      end
      q.fs.remove(folder)
      return runs[key]
    end
    q.fs.mkdir(folder)
    local case = copy(known.case, { name = key, lr = lr, seed = seed })
    local result = run(case, copy(set, { folder = folder, save_every = opt.save_every,
        settings = settings .. ", " .. known.text }), function(step, loss)
      if step % 10 == 0 or step == set.steps then
        speak:line(("%s: step %d/%d  loss %.4f"):format(key, step, set.steps, loss))
      end
    end)
    add(path, runs,
      copy(result, { key = key, method = method, rule = known.text, lr = lr, seed = seed, settings = settings }))
    q.fs.remove(folder)
    speak:say(result.diverged and ("%-28s diverged at step %d"):format(key, result.diverged) or
      ("%-28s held out %.4f  train %.4f  flips a weight %s  %d s"):format(key, result.loss, result.train,
        flips_text(result.flips_per_weight), result.seconds))
    return runs[key]
  end

  q.host.defer_interrupt(true)
  local tried = {}  -- rates of each method
  for _, method in ipairs(opt.methods) do
    tried[method] = copy(opt.lrs, {})
    for _, lr in ipairs(opt.lrs) do one(method, lr, opt.seeds[1]) end
    local list = tried[method]
    local best, place = best_of(runs, method, opt.seeds[1], list)
    if not best then
      q.error("value", ("%s diverged at each of the rates %s: give lower --lrs"):format(
        method, table.concat(list, ", ")))
    end
    while compare.methods[method].sweep_on and place == #list and list[#list] * further <= highest do
      list[#list + 1] = list[#list] * further
      one(method, list[#list], opt.seeds[1])
      best, place = best_of(runs, method, opt.seeds[1], list)
    end
    for i = 2, #opt.seeds do one(method, best.lr, opt.seeds[i]) end
    compare.write(opt, set, runs, tried)
  end
  q.fs.remove(opt.out .. "/unfinished")
  speak:finish()
  q.host.defer_interrupt(false)
  return compare.rows(opt, runs, tried)
end

-- A row for each method that was run:
--   method, text, state
--   lr      the best rate; edge: it is the least or the highest of those tried
--   losses  of the seeds at that rate
--   share   of the gap between frozen and latent, on the first seed
--   flips   a weight; nil where the weights are no bits
--   best    the run
function compare.rows(opt, runs, tried)
  local rows = {}
  local function anchor(method)
    if tried[method] then return best_of(runs, method, opt.seeds[1], tried[method]) end
  end
  local frozen, latent = anchor "frozen", anchor "latent"
  for _, method in ipairs(compare.order) do
    local best, place = anchor(method)
    if best then
      local losses = {}
      for i, seed in ipairs(opt.seeds) do
        local there = runs[key_of(method, best.lr, seed)]
        losses[i] = there and (there.loss and ("%.3f"):format(there.loss) or "diverged") or "-"
      end
      local share = frozen and latent and frozen.loss > latent.loss and
        (frozen.loss - best.loss) / (frozen.loss - latent.loss)
      rows[#rows + 1] = { method = method, text = case_of(method, opt.latent_lr).text,
        state = compare.methods[method].state, lr = best.lr,
        edge = place == 1 or place == #tried[method], losses = losses, share = share,
          flips = of_bits(method) and best.flips_per_weight or nil, best = best }
    end
  end
  return rows
end

local function histogram(rows)
  local list = {}
  for _, row in ipairs(rows) do
    local total, cells = 0, {}
    for _, count in pairs(row.best.levels or {}) do total = total + count end
    for level, count in ipairs(row.best.levels or {}) do
      cells[level] = ("%d: %.1f %%"):format(level - 1, 100 * count / total)
    end
    if #cells > 0 then list[#list + 1] = { row.method, table.concat(cells, "   ") } end
  end
  return list
end

-- Writes out/report.html and out/table.md of the runs so far.
function compare.write(opt, set, runs, tried)
  local rows = compare.rows(opt, runs, tried)
  local columns = { "method", "state a weight", "lr", "held-out loss, seeds " .. table.concat(opt.seeds, " / "),
    "share of the gap", "flips a weight" }
  local cells, sweep, warnings, curves, flips, edge = {}, {}, {}, {}, {}, ""
  for i, row in ipairs(rows) do
    if row.edge then
      edge = "(edge): the best of the rates tried is the lowest or the highest of them; beyond it the method may " ..
        "do better."
    end
    cells[i] = { row.text, row.state, ("%g%s"):format(row.lr, row.edge and " (edge)" or ""),
      table.concat(row.losses, " / "), row.share and ("%.0f %%"):format(100 * row.share) or "-", flips_text(row.flips) }
    for _, warning in ipairs(row.best.warnings) do warnings[#warnings + 1] = { row.method, warning } end
    local tries = {}
    for _, lr in ipairs(tried[row.method]) do
      local one = runs[key_of(row.method, lr, opt.seeds[1])]
      tries[#tries + 1] = one and (one.loss and ("%g: %.3f"):format(lr, one.loss) or ("%g: diverged"):format(lr))
    end
    sweep[i] = { row.method, table.concat(tries, "   ") }
    curves[i] = { row.method, page.colour(i), row.best.curve, dots = true }
    local tenths = {}
    for tenth, rate in ipairs(row.best.flips) do tenths[tenth] = { tenth, rate } end
    if (row.flips or 0) > 0 then flips[#flips + 1] = { row.method, page.colour(i), tenths, dots = true } end
  end
  q.fs.write(opt.out .. "/table.md", grid.markdown(columns, cells) .. (edge ~= "" and "\n\n" .. edge or "") .. "\n")
  page.write(opt.out .. "/report.html",
      ("One-bit rules at %.2f million tokens"):format(set.steps * set.rows * set.tokens / 1e6), {
    { charts = {
      charts.draw("Held-out loss", "nats a character, over steps", curves, { log = true }),
      charts.draw("Flips per thousand weights and step", "mean of each tenth of the run", flips),
    } },
    { "Table", parts = { { columns, cells }, edge } },
    { "Learning rates of the floats, first seed", parts = { { { "method", "rate: loss" }, sweep } } },
    { "Counters at the end, by level (256 levels in 16 bins)",
      parts = { { { "method", "share of the counters" }, histogram(rows) } } },
    #warnings > 0 and { "Flips out of range", parts = { { { "method", "" }, warnings } } } or "",
    simulator.html(),
  })
end

return compare
