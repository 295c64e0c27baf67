-- Keeps what a model answers to ten prompts, and compares later: with another backend, another file of its weights, another version.
--   qeng recipes/golden.lua --model DIR --file golden.json --write
--   qeng recipes/golden.lua --model model.gguf --file golden.json      exit status 1 where an answer differs and it was no tie

local q = require "qeng"
local golden = require "qeng.infer.golden"

local opt = q.options(q.device_options {
  "Ten prompts, always the likeliest token: the answers have to be those that were kept.",
  model = { nil, "Hugging Face folder, .gguf file, or org/name[@revision] on the hub", required = true, order = 1 },
  file = { nil, "the kept answers, JSON", required = true, order = 2 },
  write = { false, "keep the answers instead of comparing them", order = 3 },
  overwrite = { false, "with --write: also over a file that is no golden set", order = 98 },
  steps = { 64, "with --write: tokens of each answer", min = 1, max = 4096, integer = true, order = 4 },
  epsilon = { 0.05, "a first difference is a tie where the kept logits of both tokens were nearer than this", min = 0, integer = false, order = 5 },
  dtype = { nil, "f32 or bf16, by default the file's own (f16 is kept, and computed in f32)", choices = { "f32", "bf16" }, order = 6 },
})
q.use_device(opt)
if opt.write then q.check_output(opt.file, { holds = { "answers", "a golden set" }, reads = { opt.model }, overwrite = opt.overwrite }) end
local model = q.load(opt.model, { dtype = opt.dtype })

if opt.write then
  local set = golden.record(model, opt.steps)
  q.fs.write(opt.file, q.json.encode(set) .. "\n")
  print(("%s: %d answers of %d tokens"):format(opt.file, #set.answers, opt.steps))
  return
end

local set = q.json.decode(q.fs.read(opt.file))
local results, different = golden.compare(model, set, opt.epsilon)
local ties = 0
for _, r in ipairs(results) do
  local what = r.result
  if r.step then what = ("%s at token %d: %q for %q, gap %.3f"):format(r.result, r.step, r.got, r.kept, r.gap) end
  if r.result == "tie" then ties = ties + 1 end
  print(("%-44s %s  (KL %.1e a step, %.1e at most)"):format(("%q"):format(r.prompt:sub(1, 38)):gsub("\n", "n"), what, r.kl, r.kl_most))
end
print(("%d of %d answers the same, %d ties, %d different"):format(#results - different - ties, #results, ties, different))
if different > 0 then os.exit(1, true) end
