-- Are two settings the same training, and what does each cost? Runs both side by side from the same weights, on the
-- same documents, in turns, and compares losses, gradient norms and trained parameters bit for bit.
--   qeng recipes/ab_settings.lua --model DIR --data FILE --a "recompute=false" --b "recompute=true"
--   qeng recipes/ab_settings.lua              the table of speed-ups, one at a time, with the built-in model and data
-- A side has the options given for both, and its own after --a or --b.

local q = require "qeng"
local ab_settings = require "qeng.train.ab_settings"
local demo = require "qeng.train.demo"
local progress = require "qeng.console.progress"
local report = require "qeng.train.ab_settings_report"

local opt = q.options {
  "Runs two settings of training side by side: are losses and parameters equal to the bit, or within a bound, and what "
    .. "does each cost?",
  { "model", "", "Hugging Face folder, GGUF file or org/name (the built-in model)", kind = "input" },
  "model_file",
  { "data", "", "JSONL, a .qubgpu file, a folder or a dataset's name (the built-in task)", kind = "input" },
  { "a", "", "settings of one side, NAME=VALUE,...; what is left out is as below" },
  { "b", "", "settings of the other" },
  { "table", false, "padding, loss, kernels, activations, capturing, one at a time; by default without --a and --b" },
  { "steps", 30, "optimizer steps of each side", min = 2 },
  { "turn", 5, "steps of a side before it is the other's turn", min = 1 },
  { "bound", nil, "the most that losses may differ by, relative; by default 1e-4 in f32, 2e-2 in bf16, 0.2 "
    .. "in fp8, 1e-2 more with experts", number = true, min = 0 },
  { "costs", false, "compare costs also where losses differ by design, as with other batches or optimizers" },
  { "out", "ab_settings", "output folder", kind = "folder",
    files = { "data.qubgpu", "examples.jsonl", "report.html" } },
  "settings", "data",
}
if (opt.model == "") ~= (opt.data == "") then
  q.error("usage", "--model and --data go together; without both, the built-in ones are used")
end
q.fs.mkdir(opt.out)
q.fs.hold(opt.out)
if opt.model == "" then
  demo.inputs(opt)
  if not opt.__given.dtype then opt.dtype = "f32" end
  if not opt.__given.lr then opt.lr = 3e-3 end
end
q.use_device(opt)
local tokenizer, speak, began = q.tokenizer(opt.model), progress.new(), q.time()
opt.pad_token = tokenizer:id "<|endoftext|>"
opt.data = q.packets(opt.data, { tokenizer = tokenizer, template = opt.template, template_args = opt.template_args,
  special = opt.special, documents = opt.documents, cache_dir = opt.out })

local function compare(what, a, b)
  opt.a, opt.b = a, b
  function opt.speak(step) speak:line(("%s: step %d of %d"):format(what, step, opt.steps)) end
  return ab_settings.compare(opt)
end
local found
if opt.table or opt.a == "" and opt.b == "" then
  found = {}
  for i, row in ipairs(ab_settings.table) do found[i] = { row[1], compare(row[1], row[2], row[3]) } end
else
  found = compare("a and b", opt.a, opt.b)
end
speak:finish()
local how = ("%d steps of each side, in turns of %d, from seed %d; the first two are not timed, nor is making batches. "
  .. "%s; %s in all."):format(opt.steps, opt.turn, opt.seed, tostring(q.runtime()), progress.duration(q.time() - began))
for _, section in ipairs(report.sections(found, how)) do print(("%s\n%s\n"):format(section[1]:upper(), section[2])) end
report.write(opt.out .. "/report.html", found, how)
print(opt.out .. ": report.html")
