-- An analysis (qeng.analyze, qeng.advise) as text for the terminal and as a self-contained page.

local analyze = require "qeng.analyze"
local estimates = require "qeng.estimates"
local progress = require "qeng.progress"
local q = require "qeng.core"
local report = require "qeng.report"

local analyze_report = {}

local function percent(part, whole) return ("%.1f %%"):format(100 * part / math.max(whole, 1)) end

local function totals(file, found)
  local lines = {
    ("%d records, %d tokens, %d of them trained (%s); read in %.1f s"):format(found.records, found.tokens, found.trained, percent(found.trained, found.tokens), found.seconds),
  }
  local meta = file:meta()
  if meta.tokenizer then lines[#lines + 1] = ("tokenizer %s, template %s"):format(tostring(meta.tokenizer), tostring(meta.template)) end
  if found.damaged > 0 then lines[#lines + 1] = ("DAMAGED: %d records cannot be read (recipes/inspect.lua --verify names them)"):format(found.damaged) end
  if found.untrained > 0 then lines[#lines + 1] = ("%d records (%s) have no token that is trained"):format(found.untrained, percent(found.untrained, found.records)) end
  if found.judged then
    lines[#lines + 1] = ("%d answers: %d empty (%s); %d records (%s) end in the middle of an answer, without its end token"):format(found.answers, found.empty_answers,
      percent(found.empty_answers, found.answers), found.truncated, percent(found.truncated, found.records))
  else
    lines[#lines + 1] = ("%d answers; whether they are empty or cut short is told with --model"):format(found.answers)
  end
  lines[#lines + 1] = ("%d duplicates (%s of the records, %d tokens)%s"):format(found.duplicates, percent(found.duplicates, found.records), found.duplicate_tokens,
    found.groups[1] and (": the most frequent record, number %d, is there %d times"):format(found.groups[1].first, found.groups[1].records) or "")
  return table.concat(lines, "\n")
end

local function lengths(found, width)
  local lines, most = {}, 1
  local head, body = {}, {}
  for i, one in ipairs(found.percentiles) do
    head[i] = ("%8s"):format(one.share == 1 and "longest" or ("%g %%"):format(one.share * 100))
    body[i] = ("%8d"):format(one.tokens)
  end
  lines[1] = ("tokens of a record: mean %.1f, shortest %d"):format(found.mean, found.shortest)
  lines[2] = table.concat(head)
  lines[3] = table.concat(body)
  for _, bin in ipairs(found.bins) do most = math.max(most, bin.records) end
  for _, bin in ipairs(found.bins) do
    local bar = math.floor(bin.records / most * (width - 32) + 0.5)
    lines[#lines + 1] = ("%7d-%-7d %8d  %s"):format(bin.from, bin.to, bin.records, ("#"):rep(bin.records > 0 and math.max(1, bar) or 0))
  end
  return table.concat(lines, "\n")
end

local function sources(found)
  local lines = { ("%-18s %9s %11s %8s %8s %8s %8s %9s %10s"):format("source", "records", "tokens", "mean", "trained", "empty", "cut", "same", "longest") }
  for src = 0, 255 do
    local one = found.sources[src]
    if one then
      lines[#lines + 1] = ("%-18s %9d %11d %8.1f %8s %8d %8d %9d %10d"):format(analyze.source_name(src), one.records, one.tokens, one.tokens / math.max(one.records, 1),
        percent(one.trained, one.tokens), one.empty_answers, one.truncated, one.duplicates, one.longest)
    end
  end
  return table.concat(lines, "\n")
end

local function rows(found)
  local lines = { ("%9s %10s %12s %16s"):format("row", "rows", "filled", "documents cut") }
  for _, one in ipairs(found.rows) do
    lines[#lines + 1] = ("%9d %10d %12s %16s%s%s"):format(one.row_tokens, one.rows, ("%.1f %%"):format(100 * one.efficiency), ("%.1f %%"):format(100 * one.split),
      one.mean_rule and "   mean length rounded up to 128" or "", one.chosen and "   <- recommended" or "")
    if one.mean_rule and one.split > 0.01 then
      lines.note = ("Rows of the mean length (%d) are well filled too, but only because they cut %.0f %% of the documents in two, and the second part is then learned without the first.")
        :format(one.row_tokens, 100 * one.split)
    end
  end
  lines[#lines + 1] = lines.note
  return table.concat(lines, "\n")
end

local function advice(found, chosen)
  local lines = {
    "row length " .. found.row.row_tokens .. (": the shortest that cuts %.1f %% of the documents and is %.1f %% full"):format(100 * found.row.split, 100 * found.row.efficiency),
  }
  if found.duplicates > 0.01 * found.records then lines[#lines + 1] = ("drop the %d duplicates: each counts as another epoch of the same text"):format(found.duplicates) end
  if not chosen then return table.concat(lines, "\n") end
  lines[#lines + 1] = chosen.why
  lines[#lines + 1] = ("%d rows, %d micro-batches a step: %d slots a step, %d steps an epoch"):format(chosen.rows, chosen.accumulate, chosen.rows * chosen.accumulate * chosen.row_tokens, chosen.steps)
  if chosen.tok_s then
    lines[#lines + 1] = ("measured here: %.0f slots/s. Estimated: %s an epoch, %s of memory%s"):format(chosen.tok_s, progress.duration(chosen.seconds), progress.bytes(chosen.bytes),
      chosen.room and (" (%s has %s)"):format(chosen.whose, progress.bytes(chosen.room)) or "")
    if chosen.room and chosen.bytes > chosen.room then lines[#lines + 1] = "IT DOES NOT FIT: shorter rows, --recompute, or a smaller model" end
    lines[#lines + 1] = estimates.errors() or "how far such estimates are off is not known here yet: a training run with these settings, at its end, is compared with them"
  end
  lines[#lines + 1] = "command: " .. chosen.command
  return table.concat(lines, "\n")
end

-- {{title, text}...}
function analyze_report.sections(file, found, chosen, width)
  return {
    { "The data", totals(file, found) }, { "Lengths", lengths(found, width) }, { "Sources", sources(found) }, { "Rows", rows(found) },
    { "Recommended", advice(found, chosen) },
  }
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
  report.page(path, title, {
    report.chart("Lengths", "% of the records, over tokens", {
      { "tokens", "#2f6fde", steps(found.bins, whole) }, { "trained tokens", "#d0552b", steps(analyze.histogram(found.trained_lengths, 20), whole) },
    }),
    report.chart("Rows", "%, over tokens of a row", { { "filled", "#2f6fde", filled, dots = true }, { "documents cut", "#d0552b", cut, dots = true } }),
  }, analyze_report.sections(file, found, chosen, 100))
end

return analyze_report
