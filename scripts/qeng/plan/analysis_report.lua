-- Writes an analysis (plan/analyze.lua, train/advise.lua) as text for the terminal and as a page.

local analyze = require "qeng.plan.analyze"
local charts = require "qeng.report.charts"
local estimates = require "qeng.train.estimates"
local grid = require "qeng.report.grid"
local page = require "qeng.report.page"
local progress = require "qeng.console.progress"

local analyze_report = {}

local function percent(part, whole) return ("%.1f %%"):format(100 * part / math.max(whole, 1)) end

local function totals(file, found)
  local lines = {
    ("%d records, %d tokens, %d of them trained (%s); read in %.1f s"):format(found.records, found.tokens,
      found.trained, percent(found.trained, found.tokens), found.seconds),
  }
  local meta = file:meta()
  if meta.tokenizer then
    lines[#lines + 1] = ("tokenizer %s, template %s"):format(tostring(meta.tokenizer), tostring(meta.template))
  end
  if found.damaged > 0 then
    lines[#lines + 1] = ("DAMAGED: %d records cannot be read (recipes/inspect.lua --verify names them)"):format(
      found.damaged)
  end
  if found.untrained > 0 then
    lines[#lines + 1] = ("%d records (%s) have no token that is trained"):format(
      found.untrained, percent(found.untrained, found.records))
  end
  if found.judged then
    lines[#lines + 1] =
      ("%d answers: %d empty (%s); %d records (%s) end in the middle of an answer, without its end token"):format(
        found.answers, found.empty_answers,
        percent(found.empty_answers, found.answers), found.truncated, percent(found.truncated, found.records))
  else
    lines[#lines + 1] = ("%d answers; whether they are empty or cut short is told with --model"):format(found.answers)
  end
  lines[#lines + 1] = ("%d duplicates (%s of the records, %d tokens)%s"):format(
    found.duplicates, percent(found.duplicates, found.records), found.duplicate_tokens,
    found.groups[1] and (": the most frequent record, number %d, is there %d times"):format(
      found.groups[1].first, found.groups[1].records) or "")
  return table.concat(lines, "\n")
end

local function lengths_line(found)
  return ("tokens of a record: mean %.1f, shortest %d"):format(found.mean, found.shortest)
end

local function percentiles(found)
  local head, body = {}, {}
  for i, one in ipairs(found.percentiles) do
    head[i], body[i] = one.share == 1 and "longest" or ("%g %%"):format(one.share * 100), one.tokens
  end
  return { head, { body } }
end

local function length_bars(found, width)
  local bars, lines, most = {}, {}, 1
  for _, bin in ipairs(found.bins) do most = math.max(most, bin.records) end
  for i, bin in ipairs(found.bins) do
    local bar = math.floor(bin.records / most * (width - 32) + 0.5)
    bars[i] = { ("%d-%d"):format(bin.from, bin.to), bin.records, bin.records }
    lines[i] = ("%7d-%-7d %8d  %s"):format(bin.from, bin.to, bin.records,
      ("#"):rep(bin.records > 0 and math.max(1, bar) or 0))
  end
  return { bars = bars, in_text = table.concat(lines, "\n") }
end

local function sources(found)
  local rows = {}
  for src = 0, 255 do
    local one = found.sources[src]
    if one then
      rows[#rows + 1] = { analyze.source_name(src), one.records, one.tokens,
        ("%.1f"):format(one.tokens / math.max(one.records, 1)), percent(one.trained, one.tokens),
        one.empty_answers, one.truncated, one.duplicates, one.longest }
    end
  end
  return { { "source", "records", "tokens", "mean", "trained", "empty", "cut", "same", "longest" }, rows }
end

-- said: whether the last column says which is recommended (else its mark does).
local function row_lengths(found, said)
  local rows, note = {}, ""
  for i, one in ipairs(found.rows) do
    rows[i] = { one.row_tokens, one.rows, ("%.1f %%"):format(100 * one.efficiency), ("%.1f %%"):format(100 * one.split),
      said and one.chosen and "recommended" or one.mean_rule and "mean length rounded up to 128" or "",
      mark = one.chosen and "recommended" }
    if one.mean_rule and one.split > 0.01 then
      note = ("Rows of the mean length (%d) are well filled too, but %.0f %% of the documents are longer: texts " ..
        "are cut in two, and the second part is then learned without the first, conversations are left out.")
        :format(one.row_tokens, 100 * one.split)
    end
  end
  return { { "row", "rows", "filled", "documents longer", "" }, rows }, note
end

local function advice(found, chosen)
  local lines = {
    "row length " .. found.row.row_tokens .. (": the shortest that %.1f %% of the documents exceed, and %.1f %% full")
    :format(100 * found.row.split, 100 * found.row.efficiency),
  }
  if found.duplicates > 0.01 * found.records then
    lines[#lines + 1] = ("drop the %d duplicates: each counts as another epoch of the same text"):format(
      found.duplicates)
  end
  if not chosen then return table.concat(lines, "\n") end
  lines[#lines + 1] = chosen.why
  lines[#lines + 1] = ("%d rows, %d micro-batches a step: %d slots a step, %d steps an epoch"):format(
    chosen.rows, chosen.accumulate, chosen.rows * chosen.accumulate * chosen.row_tokens, chosen.steps)
  if chosen.tok_s then
    lines[#lines + 1] = ("measured here: %.0f slots/s. Estimated: %s an epoch, %s of memory%s"):format(
      chosen.tok_s, progress.duration(chosen.seconds), progress.bytes(chosen.bytes),
      chosen.room and (" (%s has %s)"):format(chosen.whose, progress.bytes(chosen.room)) or "")
    if chosen.room and chosen.bytes > chosen.room then
      lines[#lines + 1] = "IT DOES NOT FIT: shorter rows, --recompute, or a smaller model"
    end
    lines[#lines + 1] = estimates.errors() or
      "how far such estimates are off is not known here yet: a training run with these settings, at its end, " ..
      "is compared with them"
  end
  lines[#lines + 1] = "command: " .. chosen.command
  return table.concat(lines, "\n")
end

-- width: of the terminal; nil for a page.
local function sections(file, found, chosen, width)
  local rows, note = row_lengths(found, not width)
  return {
    { "The data", parts = { totals(file, found) } },
    { "Lengths", parts = { lengths_line(found), percentiles(found), length_bars(found, width or 80) } },
    { "Sources", parts = { sources(found) } },
    { "Rows", parts = { rows, note } },
    { "Recommended", parts = { advice(found, chosen) } },
  }
end

-- {{title, text}...} for the terminal.
function analyze_report.sections(file, found, chosen, width)
  return grid.sections(sections(file, found, chosen, width))
end

local function steps(bins, total)
  local points = {}
  for i = 1, #bins - 1 do  -- the last bin, which holds the rest, has no width of its own
    points[#points + 1] = { bins[i].from, 100 * bins[i].records / total }
    points[#points + 1] = { bins[i].to + 1, 100 * bins[i].records / total }
  end
  return points
end

function analyze_report.write(path, title, file, found, chosen)
  local filled, cut = {}, {}
  for i, one in ipairs(found.rows) do
    filled[i], cut[i] = { one.row_tokens, 100 * one.efficiency }, { one.row_tokens, 100 * one.split }
  end
  local whole = found.records - found.damaged
  page.write(path, title, {
    { charts = {
      charts.draw("Lengths", "% of the records, over tokens", { { "tokens", 1, steps(found.bins, whole) },
        { "trained tokens", 2, steps(analyze.histogram(found.trained_lengths, 20), whole) } }),
      charts.draw("Rows", "%, over tokens of a row",
        { { "filled", 1, filled, dots = true }, { "documents longer", 2, cut, dots = true } }),
    } },
    unpack(sections(file, found, chosen)),
  })
end

return analyze_report
