-- The pipeline experiment's figures with their confidence, and what they mean: as text and as a page.

local ab = require "qeng.train.ab"
local charts = require "qeng.report.charts"
local grid = require "qeng.report.grid"
local page = require "qeng.report.page"
local q = require "qeng.core"

local ab_report = {}

-- Student's t, two-sided 95 %, by degrees of freedom. Between entries the next lower one is taken, which is a little
-- too wide.
local student = { 12.706, 4.303, 3.182, 2.776, 2.571, 2.447, 2.365, 2.306, 2.262, 2.228, 2.201, 2.179, 2.160, 2.145,
  2.131, 2.120, 2.110, 2.101, 2.093, 2.086 }

-- Mean of a list, and half the width of its 95 % confidence interval.
function ab_report.interval(list)
  local n, sum = #list, 0
  for _, x in ipairs(list) do sum = sum + x end
  local mean, squares = sum / n, 0
  for _, x in ipairs(list) do squares = squares + (x - mean) ^ 2 end
  if n < 2 then return mean, math.huge end
  return mean, student[math.min(n - 1, #student)] * math.sqrt(squares / (n - 1) / n)
end

local function column(runs, way, key)
  local list = {}
  for i, run in ipairs(runs[way]) do list[i] = run[key] end
  return list
end

-- combine(a, b) seed by seed, of two ways: its mean and half-width.
local function paired(runs, a, b, key, combine)
  local list = {}
  for i in ipairs(runs[a]) do list[i] = combine(runs[a][i][key], runs[b][i][key]) end
  return ab_report.interval(list)
end
local function difference(x, y) return y - x end
local function ratio(x, y) return y / x end

local function thousands(n) return n >= 1e6 and ("%.2f M"):format(n / 1e6) or ("%.1f k"):format(n / 1e3) end

local function speeds_table(found)
  local rows = {}
  for i, way in ipairs(ab.ways) do
    local speed, around = ab_report.interval(column(found.runs, way, "tok_s"))
    local wait, wait_around = ab_report.interval(column(found.runs, way, "wait"))
    rows[i] = { way, thousands(found.load[way].cold), thousands(found.load[way].warm),
      ("%s +- %.1f %%"):format(thousands(speed), 100 * around / speed),
      ("%.2f +- %.2f %%"):format(100 * wait, 100 * wait_around) }
  end
  return { { "tok/s", "loader, cold", "loader, warm", "training", "waits for data" }, rows }
end

local function losses_table(found)
  local rows = {}
  for i, way in ipairs(ab.ways) do
    local loss, around = ab_report.interval(column(found.runs, way, "loss"))
    local less, less_around = paired(found.runs, way, "jsonl", "loss", difference)
    local faster, faster_around = paired(found.runs, "jsonl", way, "tok_s", ratio)
    rows[i] = { way, ("%.4f +- %.4f"):format(loss, around), ("%.4f +- %.4f"):format(less, less_around),
      ("%.3f +- %.3f"):format(faster, faster_around) }
  end
  return { { "", "held-out loss", "less than jsonl's", "speed over jsonl" }, rows }
end

local function same_losses(runs)
  for i, run in ipairs(runs.jsonl) do
    for step, loss in ipairs(run.losses) do
      if runs.packets[i].losses[step] ~= loss then return false end
    end
  end
  return true
end

-- What the figures say of packets, in sentences.
local function meaning(found)
  local runs, lines = found.runs, {}
  local function say(...) lines[#lines + 1] = "- " .. (...):format(select(2, ...)) end
  local faster, around = paired(runs, "jsonl", "packets", "tok_s", ratio)
  local wait = ab_report.interval(column(runs, "jsonl", "wait"))
  local real = ab_report.interval(column(runs, "packets", "tok_s")) / ab_report.interval(column(runs,
    "packets", "slot_s"))
  lines[#lines + 1] = "What packets change:"
  say("Loading alone is %.1f times as fast (warm): the tokens are there, nothing is parsed.",
    found.load.packets.warm / found.load.jsonl.warm)
  if faster - around > 1 then
    say("Training is %.3f +- %.3f times as fast. JSONL makes a step wait for data for %.1f %% of its time, so " ..
      "%.3f is all that any loader could bring.", faster, around, 100 * wait, 1 / (1 - wait))
  elseif faster + around < 1 then
    say("Training is not faster but slower here, %.3f +- %.3f times: the thread that makes batches takes a " ..
      "core from those that compute.", faster, around)
  else
    say("Training is not faster that this experiment could tell: %.3f +- %.3f times. A step waits for JSONL " ..
      "for %.1f %% of its time; no loader brings more than %.3f.", faster, around, 100 * wait, 1 / (1 - wait))
  end
  lines[#lines + 1] = "What packets do not change:"
  say(same_losses(runs) and
      "The loss: every training loss of every seed is the same to the last bit, from JSONL and from packets. " ..
      "Rows, masks and order are the same."
    or "Which rows are trained on: they are the same to the bit (checked). THE LOSSES DIFFER all the same, " ..
      "which is a fault of this machine or of qeng.")
  local less, less_around = paired(runs, "packets+drop", "packets", "loss", difference)
  local dropped = 100 * found.drop
  if less - less_around > 0 then
    say("Leaving out %g %% of the records (CRC-Drop) lowers the held-out loss here, by %.4f +- %.4f. It sees " ..
      "%g %% fewer records for it.", dropped, less, less_around, dropped)
  elseif less + less_around < 0 then
    say("Leaving out %g %% of the records (CRC-Drop) does not help: the held-out loss is higher by %.4f +- %.4f.",
      dropped, -less, less_around)
  else
    say("Leaving out %g %% of the records (CRC-Drop) changes the held-out loss by %.4f +- %.4f: no effect that " ..
      "can be told from chance.", dropped, -less, less_around)
  end
  lines[#lines + 1] =
    "How \"5.55 times faster, half the loss\" came about, in a comparison that has been published of the " ..
    "same two pipelines:"
  say("It divides 2518 tokens/s by 454. The first counts every slot of rows padded to 512 (512.1 a sample), " ..
    "the second only real tokens (104.6 a sample). By samples it is 1.13 times.")
  say("Counted like that, this experiment would claim %.2f times: %.3f times the samples, and %.2f slots of a " ..
    "padded row of 512 for each real token of JSONL.",
    faster * 512 / found.mean_tokens, faster, 512 / found.mean_tokens)
  say("Its \"13.5 times faster loading\" is 3.0 times by samples, and its steps waited for data for 0.6 %% of " ..
    "their time: no loader could bring more than 1.006 there.")
  say("Its losses (1.24 and 0.66) average over different sets of tokens, of one run each, without a held-out " ..
    "set. Here they are of the same held-out records, over %d seeds.", #runs.jsonl)
  lines[#lines + 1] =
    ("Not measured here: a tokenizer on threads of its own beside training, which would hide JSONL's waiting " ..
      "where cores are idle. Rows are %.1f %% full in all three."):format(100 * real)
  return table.concat(lines, "\n")
end

local function sections(found)
  return {
    { "Speed", parts = { speeds_table(found) } },
    { "Loss", parts = { losses_table(found),
      ("+-: 95 %% confidence (Student's t, %d seeds); tok/s: real tokens, no padding; the last two columns " ..
        "are compared within a seed"):format(#found.runs.jsonl) } },
    { "What it means", parts = { meaning(found) } },
    { "How it was done", parts = { found.how } },
  }
end

-- {{title, text}...} for the terminal.
function ab_report.sections(found) return grid.sections(sections(found)) end

local colours = { jsonl = 1, packets = 3, ["packets+drop"] = 2 }

function ab_report.write(path, found)
  local curves, outcome, speed = {}, {}, {}
  for i, way in ipairs(ab.ways) do
    local curve, losses, rates = {}, {}, {}
    for step = 1, #found.runs[way][1].losses do
      local sum = 0
      for _, run in ipairs(found.runs[way]) do sum = sum + run.losses[step] end
      curve[step] = { step, sum / #found.runs[way] }
    end
    for seed, run in ipairs(found.runs[way]) do losses[seed], rates[seed] = { seed, run.loss }, { seed, run.tok_s } end
    curves[i], outcome[i], speed[i] = { way, colours[way], curve }, { way, colours[way], losses, dots = "alone" },
      { way, colours[way], rates, dots = "alone" }
  end
  page.write(path, "JSONL, packets, packets with CRC-Drop", {
    { charts = {
      charts.draw("Training loss", "mean of the seeds, over steps", curves, { log = true, smooth = true }),
      charts.draw("Held-out loss", "by seed", outcome),
      charts.draw("Training speed", "real tokens a second, by seed", speed),
    } },
    unpack(sections(found)),
  })
end

-- The figures as JSON, to compute other things from.
function ab_report.save(path, found)
  q.fs.write(path,
    q.json.encode({ load = found.load, runs = found.runs, drop = found.drop, mean_tokens = found.mean_tokens }) .. "\n")
end

return ab_report
