-- How many of 40 coding questions a model answers right, its answers run or read; with an adapter, base against tuned.
--   qeng recipes/chat_quality.lua --model DIR [--adapter DIR] --samples 4

local q = require "qeng"
local progress = require "qeng.console.progress"
local quality = require "qeng.infer.quality"

local opt = q.options(q.drawing_options(q.device_options {
  "Asks 40 coding questions; Lua answers are run in a sandbox, JSON is parsed, the rest compared.",
  model = { nil, "Hugging Face folder, .gguf file, or org/name[@revision] on the hub", kind = "input", required = true, order = 1 },
  adapter = { "", "PEFT adapter folder, or an adapter as a GGUF file: asked with and without it", kind = "input", order = 2 },
  samples = { 4, "answers to each question", min = 1, max = 1000, integer = true, order = 3 },
  out = { "quality", "folder for report.html and quality.json", kind = "folder", files = { "quality.json", "report.html" }, order = 4 },
  template = { "auto", "chat template", choices = { "auto", "chatml", "model" }, order = 5 },
  template_args = q.template_args_option(5.5),
  max_tokens = { 256, "at most so many tokens an answer", min = 1, integer = true, order = 6 },
  top_p = { 0.95, "sample within this probability mass", min = 0.01, max = 1, integer = false, order = 12 },
  dtype = { nil, "f32 or bf16, by default the file's own (f16 is kept, and computed in f32)", choices = { "f32", "bf16" }, order = 50 },
}))
q.use_device(opt)
q.fs.mkdir(opt.out)

local model, line, runs = q.load(opt.model, { dtype = opt.dtype }), progress.new(), {}
local function ask(name)
  local begin, given = q.time(), {}
  for key, value in pairs(opt) do given[key] = value end
  function given.watch(done, all)
    line:line(("%s: question %d of %d, %s left"):format(name, done, all, progress.duration((q.time() - begin) / done * (all - done))))
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
