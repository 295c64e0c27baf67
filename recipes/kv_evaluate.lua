-- What codes of few bits do to attention: every method on captured queries, keys and values.
--   qeng recipes/kv_evaluate.lua --captures captures --methods hadamard2/sphere4,hadamard2/sphere3,identity/q4_0
-- A method is ROTATION/CODEC; scripts/qeng/turboquant/methods.lua lists them.
local evaluate = require "qeng.turboquant.evaluate"
local progress = require "qeng.console.progress"
local q = require "qeng"
local report = require "qeng.turboquant.report"

local opt = q.options {
  "Evaluates codecs on captures of kv_capture.lua; goes on where it was stopped.",
  { "captures", nil, "folder of kv_capture.lua", kind = "input", required = true },
  { "methods", { "hadamard2/sphere4", "hadamard2/sphere3", "hadamard2/sphere2", "identity/q8_0", "identity/q4_0",
    "hadamard2/q4_0" }, "ROTATION/CODEC; the first is what the others are compared with" },
  { "queries", 64, "of a document and head", min = 1 },
  { "rotations", "", "folder of kv_rotations.lua, for methods like transport/sphere3", kind = "input" },
  { "from", 1, "the first document; fits are judged on documents that they were not fitted to", min = 1 },
  { "seed", 0, "of rotations and sketches", min = 0 },
  { "out", "kv_evaluation", "output folder, of this recipe alone", kind = "folder" },
  "device",
}
q.use_device(opt)
q.fs.mkdir(opt.out)
q.fs.hold(opt.out)
local line = progress.new()
opt.watch = function(d, count) line:line(("document %d of %d"):format(d, count)) end
local methods, documents, manifest = evaluate.run(opt.captures, opt.out, opt)
line:finish()
print(report.write(opt.out, methods, documents, manifest, opt.from))
print(opt.out .. ": report.html, trials.csv, summary.md; by the seed's names seed_trials.csv, seed_summary.csv")
