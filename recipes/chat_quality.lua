-- Measures how many of 40 coding questions a model answers right. Answers are run or read. With --adapter, the model
-- with it is set against the one without.
--   qeng recipes/chat_quality.lua --model DIR [--adapter DIR] --samples 4

local q = require "qeng"
local progress = require "qeng.console.progress"
local quality = require "qeng.infer.quality"

local opt = q.options {
  "Asks 40 coding questions; Lua answers are run in a sandbox, JSON is parsed, the rest compared.",
  "model",
  { "adapter", "", "PEFT adapter folder, or an adapter as a GGUF file: asked with and without it", kind = "input" },
  { "samples", 4, "answers to each question", min = 1, max = 1000 },
  { "out", "quality", "folder for report.html and quality.json", kind = "folder",
    files = { "quality.json", "report.html" } },
  "template", "drawing",
  { "top_p", 0.95, "sample within this probability mass", min = 0.01, max = 1 },
  "device",
}
q.use_device(opt)
q.fs.mkdir(opt.out)

local model, line, runs = q.load(opt.model, opt), progress.new(), {}
local function ask(name)
  local begin, given = q.time(), {}
  for key, value in pairs(opt) do given[key] = value end
  function given.watch(done, all)
    local left = (q.time() - begin) / done * (all - done)
    line:line(("%s: question %d of %d, %s left"):format(name, done, all, progress.duration(left)))
  end
  runs[#runs + 1] = { name, quality.ask(model, given) }
end

ask(opt.adapter ~= "" and "base" or "model")
if opt.adapter ~= "" then
  model:load_adapter(opt.adapter)
  ask "tuned"
end
line:finish()

print(quality.summary(runs))
quality.write(opt.out, runs, opt)
print(opt.out .. "/report.html")
