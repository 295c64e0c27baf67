-- What evaluate.lua found, in a folder:
--   trials.csv, null.csv   a line for each document, layer and method; of the null apart
--   summary.md             means over documents with 95 % intervals, and how methods differ from the first
--   report.html            the same with charts: error against bits, and KL by layer
--   seed_*.csv             figures by the seed's names (seed_metrics.lua)
-- The front are methods of which no other has as few bits and as little error. The null is a method with another seed:
-- what two seeds differ by is no difference of methods, so that a claim is an interval beyond the null's.

local charts = require "qeng.report.charts"
local evaluate = require "qeng.turboquant.evaluate"
local grid = require "qeng.report.grid"
local page = require "qeng.report.page"
local q = require "qeng.core"
local seed_metrics = require "qeng.turboquant.seed_metrics"
local statistics = require "qeng.report.statistics"

local report = {}

local shown = { "kl", "top1", "top5", "cosine", "spearman", "output", "output_k", "output_v" }
local judged = { "kl", "output" }  -- what claims and fronts are of
local front_colour = 9  -- of page.light: nearly black
local titles = { kl = "KL", output = "Error of outputs" }

-- A metric of the documents; of a second method: less that of it.
local function values_of(documents, name, metric, less)
  local list = {}
  for d, figures in ipairs(documents) do
    list[d] = figures[name][metric] - (less and figures[less][metric] or 0)
  end
  return list
end

-- {[name] = {bits = mean, [metric] = {mean, low, high}, front = {[metric] = true}}}
local function means_of(methods, documents)
  local means = {}
  for _, method in ipairs(methods) do
    local one = { front = {} }
    for _, metric in ipairs(shown) do
      one[metric] = { statistics.interval(values_of(documents, method.name, metric)) }
    end
    one.bits = statistics.interval(values_of(documents, method.name, "bits"))
    means[method.name] = one
  end
  for _, metric in ipairs(judged) do
    for _, one in pairs(means) do
      one.front[metric] = true
      for _, other in pairs(means) do
        local better = other.bits < one.bits or other[metric][1] < one[metric][1]
        if better and other.bits <= one.bits and other[metric][1] <= one[metric][1] then one.front[metric] = nil end
      end
    end
  end
  return means
end

local function means_table(methods, means)
  local columns, rows = { "method", "bits", "front" }, {}
  for i, method in ipairs(methods) do
    local one, fronts = means[method.name], {}
    for _, metric in ipairs(judged) do if one.front[metric] then fronts[#fronts + 1] = metric end end
    rows[i] = { method.name, ("%.3f"):format(one.bits), table.concat(fronts, "+") }
    for _, metric in ipairs(shown) do
      table.insert(rows[i], ("%.4g (%.3g to %.3g)"):format(unpack(one[metric])))
    end
  end
  for _, metric in ipairs(shown) do columns[#columns + 1] = metric end
  return { columns, rows }
end

-- Differences from the first method, in pairs of documents, and those of the null from its own.
local function differences_table(methods, documents, null)
  local columns, rows = { "method" }, {}
  for i = 2, #methods do rows[i - 1] = { methods[i].name } end
  local last = null and { null.name .. " less " .. null.null }
  local claims = {}
  for _, metric in ipairs(judged) do
    columns[#columns + 1] = metric .. " less that of " .. methods[1].name
    columns[#columns + 1] = "Wilcoxon, Holm"
    local reach, probabilities = 0, {}
    local function add(row, off)
      local mean, low, high = statistics.interval(off)
      table.insert(row, ("%+.4g (%+.3g to %+.3g)"):format(mean, low, high))
      return low, high
    end
    if null then
      local low, high = add(last, values_of(documents, null.name, metric, null.null))
      table.insert(last, "-")
      reach = math.max(math.abs(low), math.abs(high))
    end
    for i = 2, #methods do
      local off = values_of(documents, methods[i].name, metric, methods[1].name)
      local low, high = add(rows[i - 1], off)
      local claim = low > reach and "more " .. metric or high < -reach and "less " .. metric
      if claim then claims[i] = (claims[i] and claims[i] .. ", " or "") .. claim end
      probabilities[i - 1] = statistics.wilcoxon(off).probability
    end
    for i, p in ipairs(statistics.holm(probabilities)) do table.insert(rows[i], ("%.2g"):format(p)) end
  end
  columns[#columns + 1] = "claim"
  for i, row in ipairs(rows) do row[#row + 1] = claims[i + 1] or "none" end
  if null then
    last[#last + 1] = "the null"
    rows[#rows + 1] = last
  end
  return { columns, rows }
end

-- {title, parts} as page.section and grid.sections take them.
local function sections_of(methods, documents, means, null)
  local sections = { { "Means over documents", parts = { means_table(methods, means) } } }
  if #documents == 1 or #methods == 1 then return sections end
  local parts = { differences_table(methods, documents, null) }
  parts[2] = null and ("The null: %s with two seeds. A claim's interval is beyond the null's on either side."):format(
    null.null) or "No method here depends on a seed: there is no null, and a claim's interval leaves out 0."
  if #documents < 6 then parts[2] = parts[2] .. " Of fewer than 6 documents Wilcoxon's test never reaches 0.05." end
  if #methods > 2 then
    local rows = {}
    for d in ipairs(documents) do
      rows[d] = {}
      for i, method in ipairs(methods) do rows[d][i] = documents[d][method.name].kl end
    end
    local found = statistics.friedman(rows)
    parts[3] = ("Friedman's test of the KL of all methods: statistic %.4g, probability %.2g."):format(
      found.statistic, found.probability)
  end
  sections[2] = { "Differences, in pairs of documents", parts = parts }
  return sections
end

-- A method's name without its widths: hadamard2/sphereN.
local function family(name)
  return (name:gsub("/([^+]*)", function(codec) return "/" .. codec:gsub("[%d.]*%d", "N") end))
end

local function by_bits(methods, means, metric)
  local series, by_family, front = {}, {}, {}
  for _, method in ipairs(methods) do
    local one, name = means[method.name], family(method.name)
    local point = { one.bits, unpack(one[metric]) }
    point.label = method.name
    if not by_family[name] then
      local i = #series + 1
      by_family[name] = { name, page.colour(i < front_colour and i or i + 1), {}, dots = true }
      series[#series + 1] = by_family[name]
    end
    table.insert(by_family[name][3], point)
    if one.front[metric] then front[#front + 1] = { one.bits, one[metric][1] } end
  end
  series[#series + 1] = { "front", front_colour, front }
  for _, s in ipairs(series) do table.sort(s[3], function(a, b) return a[1] < b[1] end) end
  return charts.draw(titles[metric], "over bits of a coordinate; 95 % intervals", series,
    { log = "on", fractions = true, id = "bits-" .. metric })
end

local function by_layer(methods, documents, means, layers)
  local series = {}
  for _, method in ipairs(methods) do
    if means[method.name].front.kl then
      local points = {}
      for i, layer in ipairs(layers) do
        local of_layer = {}
        for d, figures in ipairs(documents) do of_layer[d] = figures[method.name].layers[tostring(layer)].kl end
        points[i] = { layer, statistics.interval(of_layer) }
      end
      series[#series + 1] = { method.name, page.colour(#series + 1), points, dots = true }
    end
  end
  return charts.draw("KL by layer", "methods of the front; 95 % intervals", series, { log = "on", id = "layers" })
end

local function csv(methods, documents, layers, from)
  local lines = { "document,layer,method,bits," .. table.concat(evaluate.metrics, ",") }
  for d, figures in ipairs(documents) do
    for _, layer in ipairs(layers) do
      for _, method in ipairs(methods) do
        local one = figures[method.name].layers[tostring(layer)]
        local cells = { d + from - 1, layer, method.name, ("%.6g"):format(one.bits) }
        for _, metric in ipairs(evaluate.metrics) do cells[#cells + 1] = ("%.9g"):format(one[metric]) end
        lines[#lines + 1] = table.concat(cells, ",")
      end
    end
  end
  return table.concat(lines, "\n") .. "\n"
end

-- Writes the files, and returns the tables as text. methods: as evaluate.run returns them; from: the first document.
function report.write(out, methods, documents, manifest, from)
  local compared, names, null, s = {}, {}, nil, manifest.settings
  for _, method in ipairs(methods) do
    if method.null then
      null = method
    else
      compared[#compared + 1], names[#names + 1] = method, method.name
    end
  end
  local means = means_of(compared, documents)
  local sections = sections_of(compared, documents, means, null)
  local function write(name, text) q.fs.write(out .. "/" .. name, text) end
  write("trials.csv", csv(compared, documents, s.layers, from))
  if null then write("null.csv", csv({ null }, documents, s.layers, from)) end
  local trials, summary = seed_metrics.tables(names, documents, s.layers, from)
  write("seed_trials.csv", trials)
  write("seed_summary.csv", summary)
  local title = "KV codecs on captures"
  local head = ("Layers %s, %d documents of %d tokens, stored in %s. Bits are of a coordinate, with scales and masks. "
    .. "Means over documents and their 95 %% intervals (bootstrap)."):format(
    table.concat(s.layers, " "), #documents, s.tokens, s.store)
  local html, markdown, text = { page.paragraphs(head) }, { "# " .. title, head }, {}
  html[2] = { charts = { by_bits(compared, means, "kl"), by_bits(compared, means, "output") } }
  if #s.layers > 1 then table.insert(html[2].charts, by_layer(compared, documents, means, s.layers)) end
  for _, section in ipairs(sections) do
    html[#html + 1] = section
    markdown[#markdown + 1] = "## " .. section[1]
    for _, part in ipairs(section.parts) do
      markdown[#markdown + 1] = type(part) == "string" and part or grid.markdown(part[1], part[2])
      text[#text + 1] = type(part) == "string" and part or grid.text(part[1], part[2])
    end
  end
  page.write(out .. "/report.html", title, html)
  write("summary.md", table.concat(markdown, "\n\n") .. "\n")
  return table.concat(text, "\n\n")
end

return report
