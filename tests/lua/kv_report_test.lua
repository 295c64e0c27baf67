-- The report of kv_evaluate: which methods are on the front, which differences are claims beside those of two seeds,
-- and files that need nothing else.
local charts = require "qeng.report.charts"
local evaluate = require "qeng.turboquant.evaluate"
local q = require "qeng"
local report = require "qeng.turboquant.report"
local seed_metrics = require "qeng.turboquant.seed_metrics"

q.device { device = "cpu", threads = 1 }
local dir = ("%s/qeng_kv_report_%d_%d"):format(os.getenv "TMPDIR" or "/tmp", os.time(), math.random(1e9))
q.fs.mkdir(dir)

-- Six documents; every method has its own mean of KL, and of all other figures ten times it.
local layers, documents = { 0, 4 }, {}
local methods = {
  { name = "hadamard2/sphere3", bits = 3.25, kl = 0.1 },
  { name = "hadamard2/sphere4", bits = 4.25, kl = 0.02 },
  { name = "identity/q4_0", bits = 4.5, kl = 0.04 },
  { name = "transport/sphere3", bits = 3.25, kl = 0.097 },
  { name = "hadamard2/sphere3, seed 1", bits = 3.25, kl = 0.105, null = "hadamard2/sphere3" },
}
for d = 1, 6 do
  documents[d] = {}
  for i, method in ipairs(methods) do
    local function figures(kl)
      local found = { bits = method.bits, seed = {}, layers = {} }
      for _, metric in ipairs(evaluate.metrics) do found[metric] = metric == "kl" and kl or kl * 10 end
      for _, metric in ipairs(seed_metrics.names) do found.seed[metric] = kl end
      return found
    end
    -- Harder documents are so for all methods, and a little more for one than for another.
    documents[d][method.name] = figures(method.kl + 0.01 * d + 1e-4 * ((d * i) % 3))
    for _, layer in ipairs(layers) do
      documents[d][method.name].layers[tostring(layer)] = figures(method.kl + 0.01 * d)
    end
  end
end
local manifest = { settings = { layers = layers, tokens = 100, store = "f16" } }
local text = report.write(dir, methods, documents, manifest, 3)

local function line_of(block, name)
  for line in block:gmatch "[^\n]+" do if line:find(name, 1, true) == 1 then return line end end
  error("no line of " .. name)
end
local means, differences = text:match "^(.-)\n\n(.*)$"
for name, front in pairs { ["hadamard2/sphere3"] = false, ["hadamard2/sphere4"] = true, ["identity/q4_0"] = false,
  ["transport/sphere3"] = true } do
  assert((line_of(means, name):find "kl%+output" ~= nil) == front, "front: " .. name)
end
assert(not means:find("seed 1", 1, true), "the null is among the methods")
-- 0.003 less is within what two seeds differ by; 0.06 and 0.08 less are not.
assert(line_of(differences, "transport/sphere3"):find "none$")
assert(line_of(differences, "hadamard2/sphere4"):find "less kl, less output$")
assert(line_of(differences, "identity/q4_0"):find "less kl, less output$")
assert(line_of(differences, "hadamard2/sphere3, seed 1 less hadamard2/sphere3"):find "the null$")
assert(text:find("The null: hadamard2/sphere3 with two seeds", 1, true) and not text:find("fewer than 6", 1, true))

local function lines_in(name) return select(2, q.fs.read(dir .. "/" .. name):gsub("\n", "\n")) end
assert(lines_in "trials.csv" == 1 + 6 * 2 * 4 and lines_in "null.csv" == 1 + 6 * 2)
assert(lines_in "seed_trials.csv" == 1 + 6 * 2 * 4 and lines_in "seed_summary.csv" == 1 + 4 * #seed_metrics.names)
assert(q.fs.read(dir .. "/trials.csv"):find("\n3,0,hadamard2/sphere3,3.25,", 1, true))
assert(not q.fs.read(dir .. "/seed_trials.csv"):find("seed 1", 1, true))
local html, markdown = q.fs.read(dir .. "/report.html"), q.fs.read(dir .. "/summary.md")
for _, words in ipairs { "Means over documents", "Differences, in pairs of documents", "transport/sphere3" } do
  assert(html:find(words, 1, true) and markdown:find(words, 1, true), words)
end
assert(html:find("KL by layer", 1, true) and html:find("hadamard2/sphereN", 1, true))
assert(not html:find "https?://" and not html:find "src=" and not html:find "<link", "the page needs other files")

do  -- without a null a claim leaves out 0; one document has no differences
  table.remove(methods)
  local alone = report.write(dir, methods, documents, manifest, 3)
  assert(line_of(alone:match "\n\n(.*)$", "transport/sphere3"):find "less kl, less output$")
  assert(not report.write(dir, methods, { documents[1] }, manifest, 3):find "claim")
end

do  -- error bars reach from the low to the high end, and the axis holds them
  local points = { { 1.5, 2, 1, 3, label = "one" }, { 2.5, 2, 2, 2 } }
  local drawn = charts.draw("t", nil, { { "a", 1, points, dots = true } }, { log = "on", fractions = true })
  local low, high = drawn:match 'd="M0 (%d+)L0 (%d+)"'
  assert(low and tonumber(low) < 1000 and tonumber(high) > 0 and tonumber(low) - tonumber(high) > 800, "error bar")
  assert(drawn:find("<title>one, 1.5: 2</title>", 1, true) and drawn:find('id="t-logarithmic" checked', 1, true))
end
q.fs.remove(dir)
