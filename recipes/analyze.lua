-- Shows what is in a dataset, and says how to train on it here.
--   qeng recipes/analyze.lua FILE --model DIR

local q = require "qeng"
local advise = require "qeng.train.advise"
local analyze = require "qeng.plan.analyze"
local analyze_report = require "qeng.plan.analysis_report"
local word = require "qeng.console.word"

local opt = q.options {
  "Shows lengths, trained shares, answers, duplicates and sources of a dataset, and recommends row length, mode,\n" ..
    "rank and batch.",
  positional = { "file" },
  { "file", nil, "a .qubgpu file, or data to convert (needs --model); also as the first word", kind = "input",
    required = true },
  { "model", "", "Hugging Face folder, GGUF file, or org/name on the hub: judges answers, and is measured for a few "
    .. "steps", kind = "input" },
  { "out", "analysis", "folder for report.html, and the converted data", kind = "folder",
    files = { "data.qubgpu", "report.html" } },
  { "mode", "auto", "what is to be trained", choices = { "auto", "lora", "full" } },
  { "rank", 0, "LoRA rank, 0: by the data", min = 0, max = 4096 },
  { "steps", 6, "steps to measure, 0: none", min = 0 },
  "dtype", "data", "device",
}
q.use_device(opt)
q.fs.mkdir(opt.out)

local max_row
if opt.model ~= "" then
  opt.model = q.fs.kind(opt.model) and opt.model or q.hub.model(opt.model)
  opt.tokenizer = q.tokenizer(opt.model)
  max_row = q.load(opt.model, { weights = "map" }).config.max_position
end
if not opt.tokenizer and not analyze.is_packets(opt.file) then
  q.error("usage", "--model is needed to convert " .. opt.file .. ": its tokenizer makes the tokens")
end
opt.cache_dir = opt.out
local file = q.packets(opt.file, opt)
local found = analyze.dataset(file, { tokenizer = opt.tokenizer, max_row = max_row })
local chosen
if opt.model ~= "" then
  chosen = advise.training(file, found, opt)
  local rank = chosen.mode == "lora" and " --rank " .. chosen.rank or ""
  chosen.command = ("qeng recipes/lora_qwen.lua --model %s --data %s --mode %s%s --row-tokens %d --rows %d "
    .. "--accumulate %d"):format(word(opt.model), word(opt.file), chosen.mode, rank, chosen.row_tokens,
    chosen.rows, chosen.accumulate)
  for _, name in ipairs { "dtype", "template", "template_args", "special", "documents" } do
    if opt.__given[name] then
      chosen.command = ("%s --%s %s"):format(chosen.command, name:gsub("_", "-"), word(opt[name]))
    end
  end
end

for _, section in ipairs(analyze_report.sections(file, found, chosen, q.host.columns())) do
  print(("%s\n%s\n"):format(section[1]:upper(), section[2]))
end
analyze_report.write(opt.out .. "/report.html", "Analysis of " .. opt.file, file, found, chosen)
print(opt.out .. "/report.html")
