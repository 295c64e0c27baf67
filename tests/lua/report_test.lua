-- Reports: their pages hold the figures worked out here.
local q = require "qeng"
local charts = require "qeng.report.charts"
local grid = require "qeng.report.grid"
local page = require "qeng.report.page"
local report = require "qeng.report"
local scratch = require "scratch"

-- WCAG 2.1's contrast of two colours, "#rrggbb".
local function contrast(a, b)
  local function luminance(colour)
    local sum = 0
    for i, weight in ipairs { 0.2126, 0.7152, 0.0722 } do
      local c = tonumber(colour:sub(2 * i, 2 * i + 1), 16) / 255
      sum = sum + weight * (c <= 0.04045 and c / 12.92 or ((c + 0.055) / 1.055) ^ 2.4)
    end
    return sum
  end
  local x, y = luminance(a), luminance(b)
  return (math.max(x, y) + 0.05) / (math.min(x, y) + 0.05)
end
assert(math.abs(contrast("#000000", "#ffffff") - 21) < 1e-9)
assert(#page.light == #page.dark)
for i in ipairs(page.light) do
  assert(contrast(page.light[i], page.backgrounds.light) >= 3, "colour " .. i .. " is too pale on light ground")
  assert(contrast(page.dark[i], page.backgrounds.dark) >= 3, "colour " .. i .. " is too dark on dark ground")
end

-- ---- axes: whole steps, units, no -0, and no axis below zero where nothing is negative
local function labels(html, class)
  local found = {}
  for block in html:gmatch('<div class="' .. class .. '">(.-)</div>') do
    for text in block:gmatch "<i[^>]*>(.-)</i>" do found[#found + 1] = text end
  end
  return found
end
local function line_of(points, opt) return charts.draw("A & B", nil, { { "a", 1, points } }, opt) end
local function same(given, wanted)
  assert(table.concat(given, " ") == wanted, table.concat(given, " ") .. ", expected " .. wanted)
end
same(labels(line_of { { 1, -1 }, { 2, 1 } }, "y lin"), "-1 -0.5 0 0.5 1")
same(labels(line_of { { 1, -1 }, { 2, 1 } }, "x"), "1 2")
same(labels(line_of { { 0, 0 }, { 1000, 3 } }, "y lin"), "0 1 2 3")
same(labels(line_of { { 0, 0 }, { 100000, 2e6 } }, "y lin"), "0 0.5M 1M 1.5M 2M")
same(labels(line_of { { 0, 0 }, { 100000, 2e6 } }, "x"), "0 20k 40k 60k 80k 100k")
same(labels(line_of { { 1, 0 }, { 2, 2e-4 } }, "y lin"), "0 5e-5 1e-4 1.5e-4 2e-4")
for shift = -3, 3 do
  assert(not line_of({ { 0, -0.1 * shift - 1 }, { 7, 0.37 * shift + 1 } }):find "%-0[<%%\" ]", "an axis has a -0")
end
assert(line_of({ { 1, 1 }, { 2, 2 } }):find("A &amp; B", 1, true), "the title is not escaped")

-- ---- a logarithmic axis, by choice: 10 lies in the middle of 1 and 100 (with a tenth of room at both ends)
local logged = line_of({ { 0, 1 }, { 1, 10 }, { 2, 100 } }, { log = true })
same(labels(logged, "y log"), "1 2 5 10 20 50 100")
assert(logged:find '<input type="checkbox" class="logarithmic"' and not line_of({ { 0, 1 }, { 1, 2 } }):find "<input")
local path = logged:match '<g class="log">.-<path class="line s1" d="M%d+ %d+L%d+ (%d+)'
assert(path == "500", "10 lies at " .. tostring(path) .. " of 1000")
assert(not line_of({ { 0, 0 }, { 1, 0 } }, { log = true }):find "logarithmic", "a log axis for zeros")

-- ---- smoothing: the mean of the neighbours, as many on either side
local points = {}
for i = 1, 100 do points[i] = { i, (i * 37) % 11 } end
local smooth = line_of(points, { smooth = true })
local width = tonumber(smooth:match "smoothed over (%d+) steps")
assert(width == 7)
local drawn = {}
for y in smooth:match('class="line mean s1" d="(.-)"'):gmatch "[ML]%d+ (%d+)" do drawn[#drawn + 1] = tonumber(y) end
assert(#drawn == 100)
for i = 1, 100 do
  local reach, sum = math.min(3, i - 1, 100 - i), 0
  for k = i - reach, i + reach do sum = sum + points[k][2] end
  local share = (sum / (2 * reach + 1)) / 10.5  -- from 0 (nothing is negative) to 10 and a twentieth
  assert(math.abs(drawn[i] - (1000 - 1000 * share)) <= 0.5 + 1e-6, "the mean at " .. i)
end

-- ---- a long run is drawn with few points, and its spike is there
points = {}
for i = 1, 100000 do points[i] = { i, i == 54321 and 100 or 1 } end
local long = line_of(points, { smooth = true, log = true })
assert(#long < 40000, "a chart of " .. #long .. " bytes")
assert(long:find "[ML]%d+ 4[78]L", "the spike is lost")  -- 100 of 0 to 104.95

-- ---- every key of a legend has the colour of its line
local two = charts.draw("Loss", nil,
  { { "first", 3, { { 1, 1 }, { 2, 2 } } }, { "second", 5, { { 1, 2 }, { 2, 1 } }, dots = true } })
assert(two:find '<b class="s3"></b>first' and two:find '<path class="line s3"' and
  two:find '<b class="s5 dots"></b>second' and two:find '<path class="dot s5"')
assert(not two:find "fill=", "a colour that a style would beat")
assert(charts.draw("Loss", nil, { { "none", 1, {} } }) == "")

-- ---- tables as text and as HTML
local columns, rows = { "name", "count" }, { { "a<b", 5 }, { "c", 12, mark = true } }
assert(grid.text(columns, rows) == "name  count\na<b       5\nc        12   <- chosen")
assert(page.table(columns, rows):find('<td>a&lt;b</td><td class="n">5</td>', 1, true))

-- ---- the report of a run: metrics of earlier versions, settings as given and as used
local out = scratch.folder
q.fs.write(out .. "/metrics.jsonl", '{"step":1,"loss":2,"lr":0.1,"sol":0.5,"trained_tokens":3}' ..
  '\n{"step":2,"loss":1,"lr":0.1,"limit_share":0.25,"trained_tokens":4,"eval_loss":1.5}\n')
report.write(out, { title = "A run", settings = { alpha = 0, data = "<x>", epochs = 1 },
  used = { alpha = 32, epochs = 1 }, eval_before = 3, state = "Running", reload = 15 })
local html = q.fs.read(out .. "/report.html")
assert(html:find "2 steps, 7 trained tokens, last training loss 1.0000, held%-out loss 1.5000, before training 3.0000")
local limit = html:match "<figcaption>Share of the measured GEMM limit.-</figure>"
same(labels(limit, "x"), "1 2")
assert(html:find "<td>alpha</td><td>32  %(given: 0%)</td>" and html:find "<td>data</td><td>&lt;x&gt;</td>" and
  html:find "<td>epochs</td><td>1</td>")
assert(not html:find "Exchange between ranks", "a run without ranks exchanges nothing")
assert(html:find 'http%-equiv="refresh"' and not html:find "https?://", "the page wants a network")
for class in html:gmatch 'class="[^"]*(s%d+)[^%d]' do
  assert(html:find("." .. class .. "{color:", 1, true), class .. " has no colour")
end

-- ---- the limit of several ranks is that of one, so many times
local measured = q.limits
q.limits = function() return { flops_f32 = 10 } end
local journal = require("qeng.train.journal").open {
  opt = { accumulate = 1, rows = 1, row_tokens = 1, checkpoints = false }, out = out, state = { step = 0 },
  model = { dtype = "f32" }, ranks = { size = 3, first = true, texts = function() return {} end },
}
q.limits = measured
assert(journal.peak == 30)

-- ---- a run on several ranks shows what they exchanged: 40 and 20 ms a step, of which 10 and 5 were waited for
q.fs.write(out .. "/metrics.jsonl", '{"step":1,"loss":2,"exchange_ms":40,"exchange_wait_ms":10}' ..
  '\n{"step":2,"loss":1,"exchange_ms":20,"exchange_wait_ms":5}\n')
report.write(out, { title = "A run" })
local exchange = q.fs.read(out .. "/report.html"):match "<figcaption>Exchange between ranks.-</figure>"
local top = 40 + 35 / 20  -- a twentieth of the range above, and the same below
local function height(value) return math.floor(1000 * (top - value) / (top - (5 - 35 / 20)) + 0.5) end
for class, values in pairs { s1 = { 40, 20 }, s2 = { 10, 5 } } do
  local first, last = exchange:match('class="line ' .. class .. '" d="M0 (%d+)L1000 (%d+)"')
  assert(tonumber(first) == height(values[1]) and tonumber(last) == height(values[2]), class)
end
assert(exchange:find "exchange</span>" and exchange:find "waited for</span>", "its legend")
q.fs.remove(out)
print "report: ok"
