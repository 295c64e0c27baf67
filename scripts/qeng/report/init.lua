-- report.html, the page of a training run: how it stands, its curves, figures and settings. It is written during
-- training too.

local charts = require "qeng.report.charts"
local metrics = require "qeng.report.metrics"
local page = require "qeng.report.page"
local progress = require "qeng.console.progress"
local q = require "qeng.core"

local report = {}

local function column(rows, key, factor)
  local points = {}
  for _, row in ipairs(rows) do
    if type(row[key]) == "number" then points[#points + 1] = { row.step, row[key] * (factor or 1) } end
  end
  return points
end

-- The names of the sources in field `key` of the rows, sorted.
local function sources_of(rows, key)
  local seen, names = {}, {}
  for _, row in ipairs(rows) do
    for name in pairs(type(row[key]) == "table" and row[key] or {}) do
      if not seen[name] then seen[name], names[#names + 1] = true, name end
    end
  end
  table.sort(names)
  return names
end

-- For each source: a curve, and dots for its held-out loss.
local function source_chart(rows)
  local series = {}
  for i, name in ipairs(sources_of(rows, "by_source")) do
    local trained, held_out = {}, {}
    for _, row in ipairs(rows) do
      local here, held = (row.by_source or {})[name], (row.eval_by_source or {})[name]
      if here and type(here.loss) == "number" then trained[#trained + 1] = { row.step, here.loss } end
      if held and type(held.loss) == "number" then held_out[#held_out + 1] = { row.step, held.loss } end
    end
    series[#series + 1] = { name, page.colour(i), trained }
    if #held_out > 0 then series[#series + 1] = { name .. " held out", page.colour(i), held_out, dots = true } end
  end
  return charts.draw("Loss by source", "nats a trained token, over steps", series, { log = true, smooth = true })
end

local function source_table(rows)
  local names = sources_of(rows, "by_source")
  if #names == 0 then return "" end
  local total, tokens, last, held_out = 0, {}, {}, {}
  local function figure(loss) return type(loss) == "number" and ("%.4f"):format(loss) or "none" end
  for _, row in ipairs(rows) do
    for name, part in pairs(row.by_source or {}) do
      total, tokens[name], last[name] = total + part.trained_tokens,
        (tokens[name] or 0) + part.trained_tokens, part.loss
    end
    for name, part in pairs(row.eval_by_source or {}) do held_out[name] = part.loss end
  end
  local lines = {}
  for i, name in ipairs(names) do
    lines[i] = { name, ("%d"):format(tokens[name]), ("%.1f %%"):format(100 * tokens[name] / math.max(total, 1)),
      figure(last[name]), figure(held_out[name]) }
  end
  return page.table({ "source", "trained tokens", "share", "last loss", "last held-out loss" }, lines)
end

-- How long ranks exchanged gradients, and how long nothing was computed beside.
local function exchange(rows)
  return { { "exchange", 1, column(rows, "exchange_ms") }, { "waited for", 2, column(rows, "exchange_wait_ms") } }
end

-- Each setting as it was used. Where another value was given, that stands beside it.
local function settings_table(given, used)
  local names, seen, rows = {}, {}, {}
  for _, settings in ipairs { given, used } do
    for name, value in pairs(settings) do
      if not seen[name] and type(value) ~= "table" and type(value) ~= "function" then
        seen[name], names[#names + 1] = true, name
      end
    end
  end
  table.sort(names)
  local function shown(value) return type(value) == "number" and ("%.10g"):format(value) or tostring(value) end
  for i, name in ipairs(names) do
    local value = used[name] == nil and given[name] or used[name]
    local other = given[name] ~= nil and shown(given[name]) ~= shown(value)
    rows[i] = { name, shown(value) ..
      (other and ("  (given: %s)"):format(given[name] == "" and "nothing" or shown(given[name])) or "") }
  end
  return page.table({ "setting", "used" }, rows)
end

-- Writes out/report.html from out/metrics.jsonl. opt:
--   title, settings (name = value, as given), used (the same, as resolved), facts ({name, text}...)
--   state        how the run stands, a sentence
--   reload       seconds after which the page reads itself again, while the run goes on
--   sections     page.section
--   curves       the names of the training loss and of the held-out loss
--   eval_before  the held-out loss before the first step
function report.write(out, opt)
  local rows = metrics.read(out .. "/metrics.jsonl")
  local last = rows[#rows] or {}
  local names = opt.curves or { "training loss", "held-out loss" }
  local loss = { { names[1], 1, column(rows, "loss") } }
  local held_out = column(rows, "eval_loss")
  local figures = type(last.loss) == "number" and (", last %s %.4f"):format(names[1], last.loss) or ""
  if #held_out > 0 then figures = figures .. (", %s %.4f"):format(names[2], held_out[#held_out][2]) end
  if opt.eval_before then
    figures = figures .. (", before training %.4f"):format(opt.eval_before)
    table.insert(held_out, 1, { 0, opt.eval_before })
  end
  if #held_out > 0 then loss[2] = { names[2], 2, held_out, dots = true } end
  local trained = 0
  for _, row in ipairs(rows) do
    trained = trained + (row.trained_tokens or 0)
    row.limit_share = row.limit_share or row.sol  -- its name in files of earlier versions
  end
  local function one(title, unit, key, factor, how)
    return charts.draw(title, unit, { { title, 1, column(rows, key, factor) } }, how)
  end
  local parts = {
    opt.state and ('<p class="state">%s</p>'):format(page.escape(opt.state)) or "",
    ("<p>%d steps, %d trained tokens%s, qeng %s</p>"):format(last.step or 0, trained, page.escape(figures),
      page.escape(q.version)),
    opt.facts and page.table({ "", "" }, opt.facts) or "", source_table(rows),
    { charts = {
      charts.draw("Loss", "nats a trained token, over steps", loss, { log = true, smooth = true }), source_chart(rows),
      one("Learning rate", "over steps", "lr"),
      one("Gradient norm", "before clipping", "grad_norm", 1, { log = true, smooth = true }),
      one("Flips of one-bit weights", "per thousand that learn, and step", "flip_rate", 1, { smooth = true }),
      one("Speed", "token slots a second", "tok_s", 1, { smooth = true }),
      one("Share of the measured GEMM limit", "%", "limit_share", 100, { smooth = true }),
      one("Waiting for data", "ms a step", "data_ms", 1, { smooth = true }),
      charts.draw("Exchange between ranks", "ms a step", exchange(rows), { smooth = true }),
    } },
  }
  for _, section in ipairs(opt.sections or {}) do parts[#parts + 1] = page.section(section) end
  parts[#parts + 1] = "<h2>Settings</h2>" .. settings_table(opt.settings or {}, opt.used or {})
  page.write(out .. "/report.html", opt.title, parts, { reload = opt.reload })
end

local every = 10  -- seconds between two writings while training, the least
local share = 50  -- a writing takes at most a fiftieth of the time, however long the metrics are

local Live = {}
Live.__index = Live

-- The report of a run that goes on. opt: that of report.write.
function report.live(out, opt) return setmetatable({ out = out, opt = opt, next = 0 }, Live) end

-- Writes the page when it is due. rest: seconds left. A failure is told once and does not end the training.
function Live:step(step, steps, rest, speak)
  local began = q.time()
  if self.failed or progress.silent or began < self.next then return end
  self.opt.state = ("Running: step %d of %d, about %s left. As of %s; this page reloads itself."):format(
    step, steps, progress.duration(rest), os.date "%Y-%m-%d %H:%M:%S")
  self.opt.reload = 15
  local ok, why = q.try(function() report.write(self.out, self.opt) return true end)
  if not ok then
    self.failed = true
    speak:say(("report.html is not written while training: %s"):format(why.message))
  end
  self.next = q.time() + math.max(every, share * (q.time() - began))
end

-- Writes the page for the last time. state: a sentence.
function Live:finish(state)
  self.opt.state, self.opt.reload = state, nil
  report.write(self.out, self.opt)
end

return report
