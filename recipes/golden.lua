-- Keeps what a model answers to ten prompts, and compares later: with another backend, another file of its weights,
-- another version. The exit status is 1 where an answer differs and it was no tie.
--   qeng recipes/golden.lua --model DIR --file golden.json --write
--   qeng recipes/golden.lua --model model.gguf --file golden.json

local q = require "qeng"
local golden = require "qeng.infer.golden"

local opt = q.options {
  "Ten prompts, always the likeliest token: the answers have to be those that were kept.",
  "model",
  { "file", nil, "the kept answers, JSON", required = true },
  { "write", false, "keep the answers instead of comparing them" },
  { "steps", 64, "with --write: tokens of each answer", min = 1, max = 4096 },
  { "epsilon", 0.05, "a first difference is a tie where the kept logits of both tokens were nearer than this",
    min = 0 },
  "device",
  { "overwrite", false, "with --write: also over a file that is no golden set" },
}
q.use_device(opt)
if opt.write then
  q.check_output(opt.file, { holds = { "answers", "a golden set" }, reads = { opt.model }, overwrite = opt.overwrite })
end
local model = q.load(opt.model, opt)

if opt.write then
  local set = golden.record(model, opt.steps)
  q.fs.write(opt.file, q.json.encode(set) .. "\n")
  print(("%s: %d answers of %d tokens"):format(opt.file, #set.answers, opt.steps))
  return
end

local set = golden.read(opt.file)
local results, different = golden.compare(model, set, opt.epsilon)
local ties = 0
for _, r in ipairs(results) do
  local what = r.result
  if r.step then what = ("%s at token %d: %q for %q, gap %.3f"):format(r.result, r.step, r.got, r.kept, r.gap) end
  if r.result == "tie" then ties = ties + 1 end
  local prompt = ("%q"):format(r.prompt:sub(1, 38)):gsub("\n", "n")
  print(("%-44s %s  (KL %.1e a step, %.1e at most)"):format(prompt, what, r.kl, r.kl_most))
end
local same = #results - different - ties
print(("%d of %d answers the same, %d ties, %d different"):format(same, #results, ties, different))
if different > 0 then os.exit(1, true) end
