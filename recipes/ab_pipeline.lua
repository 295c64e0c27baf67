-- Does it matter how data reach the model? Compares JSONL tokenized on the fly, packets, and packets with CRC-Drop: the
-- same model, the same records in the same order, several seeds.
--   qeng recipes/ab_pipeline.lua
-- With the built-in model and its task it takes a few minutes on two quiet cores; --model and --data are for your own.

local q = require "qeng"
local ab = require "qeng.train.ab"
local ab_report = require "qeng.train.ab_report"
local demo = require "qeng.train.demo"
local progress = require "qeng.console.progress"

local opt = q.options {
  "Compares JSONL tokenized on the fly, packets, and packets with CRC-Drop: loading, training speed, held-out loss.",
  { "model", "", "Hugging Face folder, GGUF file or org/name (the built-in model)", kind = "input" },
  { "data", "", "JSONL, one record a line (the built-in task)", kind = "input" },
  { "out", "ab_pipeline", "output folder", kind = "folder",
    files = { "data.qubgpu", "examples.jsonl", "figures.json", "report.html" } },
  { "seeds", 5, "runs of each way", min = 3, max = 100 },
  { "steps", 300, "steps of a run", min = 20 },
  { "records", 20000, "records of the built-in task", min = 1000 },
  { "row_tokens", 512, "tokens of a packed row", min = 16 },
  "long",
  { "rows", 2, "rows of a step", min = 1 },
  { "rank", 16, "LoRA rank", min = 1 },
  { "lr", 3e-3, "peak learning rate", min = 0 },
  { "drop", 0.05, "share of records that CRC-Drop leaves out", min = 0, max = 0.5 },
  { "eval_share", 0.02, "share of the records held out", min = 0.001, max = 0.5 },
  "dtype", "template", "device",
}
q.use_device(opt)
q.fs.mkdir(opt.out)
q.fs.hold(opt.out)
if (opt.model == "") ~= (opt.data == "") then
  q.error("usage", "--model and --data go together; without both, the built-in ones are used")
end
opt.jsonl = opt.data
if opt.model == "" then
  opt.model, opt.jsonl, opt.dtype = demo.model(), opt.out .. "/examples.jsonl", opt.dtype or "f32"
  demo.write_examples(opt.jsonl, 0, opt.records)
end

local speak, began = progress.new(), q.time()
local bench = ab.setup(opt)
bench:same_rows(1, 20)
local found = { load = {}, runs = {}, drop = opt.drop, mean_tokens = bench.counts.tokens / bench.counts.records }
local forgotten = true
for _, way in ipairs(ab.ways) do
  speak:line("loading alone: " .. way)
  local cold, dropped = bench:load_speed(way, 1, true)
  found.load[way], found.runs[way], forgotten = { cold = cold, warm = 0 }, {}, forgotten and dropped
  for _ = 1, 3 do found.load[way].warm = math.max(found.load[way].warm, (bench:load_speed(way, 1))) end
end
bench:run("packets", 0, 20)  -- what a first run alone pays for is paid for
for seed = 1, opt.seeds do
  for i = 1, #ab.ways do
    local way = ab.ways[(i + seed - 2) % #ab.ways + 1]  -- each way comes first, second and last in turn
    found.runs[way][seed] = bench:run(way, seed, opt.steps)
    local run = found.runs[way][seed]
    speak:line(("seed %d of %d, %s: held-out loss %.4f, %.0f tok/s"):format(seed, opt.seeds, way, run.loss, run.tok_s))
  end
end
speak:finish()
found.how = (("%d seeds of %d steps of %d rows of %d tokens, LoRA rank %d, AdamW, %s, %d records of %.0f tokens on "
  .. "average; %s in all. Loaders alone: an epoch, cold once%s, warm the best of three."):format(
  opt.seeds, opt.steps, opt.rows, opt.row_tokens, opt.rank, opt.dtype or "the model file's dtype", bench.counts.records,
  found.mean_tokens, progress.duration(q.time() - began),
  forgotten and " (the system was asked to forget the file, and may not have)"
    or " (BUT THE SYSTEM REFUSED to forget the file: it was warm)"))

for _, section in ipairs(ab_report.sections(found)) do print(("%s\n%s\n"):format(section[1]:upper(), section[2])) end
ab_report.write(opt.out .. "/report.html", found)
ab_report.save(opt.out .. "/figures.json", found)
print(opt.out .. ": report.html, figures.json")
