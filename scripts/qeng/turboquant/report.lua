-- Tables of what evaluate.lua found: means over documents with 95 % intervals, and whether methods differ from the
-- first.

local evaluate = require "qeng.turboquant.evaluate"
local grid = require "qeng.report.grid"
local q = require "qeng.core"
local seed_metrics = require "qeng.turboquant.seed_metrics"
local statistics = require "qeng.report.statistics"

local report = {}

local shown = { "kl", "top1", "top5", "cosine", "spearman", "output", "output_k", "output_v" }

local function values_of(documents, name, metric)
  local list = {}
  for d, figures in ipairs(documents) do list[d] = figures[name][metric] end
  return list
end

local function means(methods, documents)
  local rows = {}
  for i, method in ipairs(methods) do
    local row = { method.name, ("%.3f"):format((statistics.interval(values_of(documents, method.name, "bits")))) }
    for _, metric in ipairs(shown) do
      local mean, low, high = statistics.interval(values_of(documents, method.name, metric))
      row[#row + 1] = ("%.4g (%.3g to %.3g)"):format(mean, low, high)
    end
    rows[i] = row
  end
  local columns = { "method", "bits" }
  for _, metric in ipairs(shown) do columns[#columns + 1] = metric end
  return columns, rows
end

-- KL of each method less that of the first, in pairs of documents.
local function differences(methods, documents)
  local probabilities, list = {}, {}
  local first = values_of(documents, methods[1].name, "kl")
  for i = 2, #methods do
    local off = {}
    for d, x in ipairs(values_of(documents, methods[i].name, "kl")) do off[d] = x - first[d] end
    probabilities[i - 1], list[i - 1] = statistics.wilcoxon(off).probability, off
  end
  local adjusted, rows = statistics.holm(probabilities), {}
  for i, off in ipairs(list) do
    local mean, low, high = statistics.interval(off)
    rows[i] = { methods[i + 1].name, ("%+.4g (%+.3g to %+.3g)"):format(mean, low, high), ("%.2g"):format(adjusted[i]) }
  end
  return { "method", "KL less that of " .. methods[1].name, "probability by Wilcoxon, Holm" }, rows
end

local function sections(methods, documents, draw)
  local parts = { draw(means(methods, documents)) }
  if #documents > 1 and #methods > 1 then parts[#parts + 1] = draw(differences(methods, documents)) end
  if #documents > 1 and #methods > 2 then
    local rows = {}
    for d in ipairs(documents) do
      rows[d] = {}
      for i, method in ipairs(methods) do rows[d][i] = documents[d][method.name].kl end
    end
    local found = statistics.friedman(rows)
    parts[#parts + 1] = ("Friedman's test of the KL of all methods: statistic %.4g, probability %.2g."):format(
      found.statistic, found.probability)
  end
  return table.concat(parts, "\n\n")
end

function report.text(methods, documents) return sections(methods, documents, grid.text) end

-- trials.csv: a line for each document, from the given one on, layer and method; summary.md: the tables.
function report.write(out, methods, documents, manifest, from)
  local lines = { "document,layer,method,bits," .. table.concat(evaluate.metrics, ",") }
  for d, figures in ipairs(documents) do
    for _, layer in ipairs(manifest.settings.layers) do
      for _, method in ipairs(methods) do
        local one = figures[method.name].layers[tostring(layer)]
        local cells = { d + from - 1, layer, method.name, ("%.6g"):format(one.bits) }
        for _, metric in ipairs(evaluate.metrics) do cells[#cells + 1] = ("%.9g"):format(one[metric]) end
        lines[#lines + 1] = table.concat(cells, ",")
      end
    end
  end
  q.fs.write(out .. "/trials.csv", table.concat(lines, "\n") .. "\n")
  local names = {}
  for i, method in ipairs(methods) do names[i] = method.name end
  local trials, summary = seed_metrics.tables(names, documents, manifest.settings.layers, from)
  q.fs.write(out .. "/seed_trials.csv", trials)
  q.fs.write(out .. "/seed_summary.csv", summary)
  local s = manifest.settings
  local head = ("# KV codecs on captures\n\nLayers %s, %d documents of %d tokens, stored in %s. Bits are of a "
    .. "coordinate, with scales and masks. Means over documents and their 95 %% intervals (bootstrap).\n\n"):format(
    table.concat(s.layers, " "), #documents, s.tokens, s.store)
  q.fs.write(out .. "/summary.md", head .. sections(methods, documents, grid.markdown) .. "\n")
end

return report
