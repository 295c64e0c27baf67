-- report.html: one self-contained page of a run: settings, curves (inline SVG) and the last figures. No scripts, no network.

local q = require "qeng.core"
local metrics = require "qeng.metrics"

local report = {}

local function escape(text)
  return (tostring(text):gsub("[&<>\"]", { ["&"] = "&amp;", ["<"] = "&lt;", [">"] = "&gt;", ['"'] = "&quot;" }))
end

local width, height, left, bottom, top = 640, 240, 64, 28, 14

-- Round numbers that cover [low, high], about five of them.
local function ticks(low, high)
  local step = 10 ^ math.floor(math.log10((high - low) / 4))
  for _, factor in ipairs { 1, 2, 2.5, 5, 10 } do
    if (high - low) / (step * factor) <= 5 then step = step * factor; break end
  end
  local list = {}
  for i = math.ceil(low / step - 1e-9), math.floor(high / step + 1e-9) do list[#list + 1] = i * step end
  return list
end

-- series: { {label, colour, {{x, y}...}, dots = bool}... }
local function chart(title, unit, series)
  local x0, x1, y0, y1 = math.huge, -math.huge, math.huge, -math.huge
  for _, s in ipairs(series) do
    for _, p in ipairs(s[3]) do
      x0, x1, y0, y1 = math.min(x0, p[1]), math.max(x1, p[1]), math.min(y0, p[2]), math.max(y1, p[2])
    end
  end
  if x0 == math.huge then return "" end
  if x1 == x0 then x1 = x0 + 1 end
  local margin = y1 > y0 and (y1 - y0) * 0.05 or math.abs(y0) * 0.1 + 1e-9
  y0, y1 = y0 - margin, y1 + margin
  local function px(x) return left + (x - x0) / (x1 - x0) * (width - left - 10) end
  local function py(y) return height - bottom - (y - y0) / (y1 - y0) * (height - bottom - top) end
  local svg = { ('<figure><figcaption>%s%s</figcaption><svg viewBox="0 0 %d %d" role="img">'):format(escape(title), unit and " <small>" .. escape(unit) .. "</small>" or "", width, height) }
  for _, y in ipairs(ticks(y0, y1)) do
    svg[#svg + 1] = ('<line class="grid" x1="%d" x2="%d" y1="%.1f" y2="%.1f"/><text x="%d" y="%.1f" text-anchor="end">%.4g</text>'):format(left, width - 10, py(y), py(y), left - 6, py(y) + 4, y)
  end
  for _, x in ipairs(ticks(x0, x1)) do
    svg[#svg + 1] = ('<text x="%.1f" y="%d" text-anchor="middle">%.6g</text>'):format(px(x), height - 8, x)
  end
  local legend = left + 8
  for _, s in ipairs(series) do
    local points = {}
    for i, p in ipairs(s[3]) do points[i] = ("%.1f,%.1f"):format(px(p[1]), py(p[2])) end
    svg[#svg + 1] = ('<polyline points="%s" stroke="%s"/>'):format(table.concat(points, " "), s[2])
    if s.dots then
      for _, p in ipairs(s[3]) do svg[#svg + 1] = ('<circle cx="%.1f" cy="%.1f" r="3" fill="%s"/>'):format(px(p[1]), py(p[2]), s[2]) end
    end
    if #series > 1 then
      svg[#svg + 1] = ('<text x="%d" y="%d" fill="%s">%s</text>'):format(legend, top + 4, s[2], escape(s[1]))
      legend = legend + 12 + 7 * #s[1]
    end
  end
  svg[#svg + 1] = "</svg></figure>"
  return table.concat(svg)
end

local function column(rows, key, factor)
  local points = {}
  for _, row in ipairs(rows) do
    if type(row[key]) == "number" then points[#points + 1] = { row.step, row[key] * (factor or 1) } end
  end
  return points
end

local colours = { "#2f6fde", "#d0552b", "#2a9d5c", "#8a4fd0", "#b58a00", "#0f8f9c", "#c2357b", "#6b7280" }

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

-- A curve for each source of by_source, dots for its held-out loss, and a table of its share and last losses.
local function source_chart(rows)
  local series = {}
  for i, name in ipairs(sources_of(rows, "by_source")) do
    local colour = colours[(i - 1) % #colours + 1]
    local trained, held_out = {}, {}
    for _, row in ipairs(rows) do
      local here, held = (row.by_source or {})[name], (row.eval_by_source or {})[name]
      if here and type(here.loss) == "number" then trained[#trained + 1] = { row.step, here.loss } end
      if held and type(held.loss) == "number" then held_out[#held_out + 1] = { row.step, held.loss } end
    end
    series[#series + 1] = { name, colour, trained }
    if #held_out > 0 then series[#series + 1] = { name .. " held out", colour, held_out, dots = true } end
  end
  return #series > 0 and chart("Loss by source", "nats a trained token, over steps", series) or ""
end

local function source_table(rows)
  local names = sources_of(rows, "by_source")
  if #names == 0 then return "" end
  local total, tokens, last, held_out = 0, {}, {}, {}
  local function figure(loss) return type(loss) == "number" and ("%.4f"):format(loss) or "none" end
  for _, row in ipairs(rows) do
    for name, part in pairs(row.by_source or {}) do
      total, tokens[name], last[name] = total + part.trained_tokens, (tokens[name] or 0) + part.trained_tokens, part.loss
    end
    for name, part in pairs(row.eval_by_source or {}) do held_out[name] = part.loss end
  end
  local lines = {}
  for i, name in ipairs(names) do
    lines[i] = ("<tr><td>%s</td><td>%d</td><td>%.1f %%</td><td>%s</td><td>%s</td></tr>"):format(escape(name), tokens[name],
      100 * tokens[name] / total, figure(last[name]), figure(held_out[name]))
  end
  return "<table><tr><th>source</th><th>trained tokens</th><th>share</th><th>last loss</th><th>last held-out loss</th></tr>"
    .. table.concat(lines) .. "</table>"
end

local style = [[
body{font:15px/1.5 system-ui,sans-serif;max-width:1360px;margin:2rem auto;padding:0 1rem;color:#1b2430;background:#fff}
h1{font-size:1.4rem}main{display:flex;flex-wrap:wrap;gap:1rem}figure{margin:0;flex:1 1 480px}figcaption{font-weight:600}
svg{width:100%;background:#fafbfc;border:1px solid #e3e7ec}polyline{fill:none;stroke-width:1.6}text{font-size:11px;fill:#5a6675}
.grid{stroke:#e3e7ec}table{border-collapse:collapse;margin:1rem 0}td,th{text-align:left;padding:.15rem 1rem .15rem 0;border-bottom:1px solid #eceff3}
pre{background:#fafbfc;border:1px solid #e3e7ec;padding:.6rem;white-space:pre-wrap}
@media(prefers-color-scheme:dark){body{background:#14181d;color:#dde3ea}svg,pre{background:#1a2027;border-color:#2b333d}.grid{stroke:#2b333d}td,th{border-color:#2b333d}}
]]

local function settings_table(settings)
  local names = {}
  for name, value in pairs(settings) do
    if type(value) ~= "table" and type(value) ~= "function" then names[#names + 1] = name end
  end
  table.sort(names)
  local rows = {}
  for i, name in ipairs(names) do rows[i] = ("<tr><td>%s</td><td>%s</td></tr>"):format(escape(name), escape(settings[name])) end
  return "<table><tr><th>setting</th><th>value</th></tr>" .. table.concat(rows) .. "</table>"
end

-- Writes out/report.html from out/metrics.jsonl. opt: title, settings (name = value), sections ({title, text}...), curves (names of
-- the training and of the held-out loss), eval_before (the held-out loss before the first step).
function report.write(out, opt)
  local rows = metrics.read(out .. "/metrics.jsonl")
  local last = rows[#rows] or {}
  local names = opt.curves or { "training loss", "held-out loss" }
  local loss = { { names[1], "#2f6fde", column(rows, "loss") } }
  local held_out = column(rows, "eval_loss")
  local figures = type(last.loss) == "number" and (", last %s %.4f"):format(names[1], last.loss) or ""
  if #held_out > 0 then figures = figures .. (", %s %.4f"):format(names[2], held_out[#held_out][2]) end
  if opt.eval_before then
    figures = figures .. (", before training %.4f"):format(opt.eval_before)
    table.insert(held_out, 1, { 0, opt.eval_before })
  end
  if #held_out > 0 then loss[2] = { names[2], "#d0552b", held_out, dots = true } end
  local trained = 0
  for _, row in ipairs(rows) do trained = trained + (row.trained_tokens or 0) end
  local parts = {
    '<!doctype html><html lang="en"><meta charset="utf-8"><meta name="viewport" content="width=device-width">',
    "<title>", escape(opt.title), "</title><style>", style, "</style><h1>", escape(opt.title), "</h1>",
    ("<p>%d steps, %d trained tokens%s, qeng %s</p>"):format(last.step or 0, trained, escape(figures), escape(q.version)),
    source_table(rows), "<main>", chart("Loss", "nats a trained token, over steps", loss), source_chart(rows),
    chart("Learning rate", nil, { { "lr", "#2f6fde", column(rows, "lr") } }),
    chart("Gradient norm", "before clipping", { { "norm", "#2f6fde", column(rows, "grad_norm") } }),
    chart("Flips of one-bit weights", "per thousand that learn, and step", { { "flips", "#2f6fde", column(rows, "flip_rate") } }),
    chart("Speed", "token slots a second", { { "tok/s", "#2f6fde", column(rows, "tok_s") } }),
    chart("Share of the measured GEMM limit", "%", { { "sol", "#2f6fde", column(rows, "sol", 100) } }),
    chart("Waiting for data", "ms a step", { { "data", "#2f6fde", column(rows, "data_ms") } }),
    "</main>",
  }
  for _, section in ipairs(opt.sections or {}) do
    parts[#parts + 1] = ("<h2>%s</h2><pre>%s</pre>"):format(escape(section[1]), escape(section[2]))
  end
  parts[#parts + 1] = "<h2>Settings</h2>" .. settings_table(opt.settings) .. "</html>\n"
  q.fs.write(out .. "/report.html", table.concat(parts))
end

report.chart, report.escape = chart, escape

-- A page of charts (of report.chart), then {title, text} sections, then html as it is.
function report.page(path, title, charts, sections, html)
  local parts = {
    '<!doctype html><html lang="en"><meta charset="utf-8"><meta name="viewport" content="width=device-width">',
    "<title>", escape(title), "</title><style>", style, "</style><h1>", escape(title), "</h1><main>", table.concat(charts), "</main>",
  }
  for _, section in ipairs(sections) do parts[#parts + 1] = ("<h2>%s</h2><pre>%s</pre>"):format(escape(section[1]), escape(section[2])) end
  parts[#parts + 1] = (html or "") .. "</html>\n"
  q.fs.write(path, table.concat(parts))
end

return report
