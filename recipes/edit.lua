-- Puts facts that are not true into a model's weights and measures what came of it: each fact alone by ROME, all of
-- them by MEMIT. The model then says otherwise, of these subjects and no others. At the end the weights are put back.
--   qeng recipes/edit.lua --model SmolLM2-135M-Instruct.Q4_1.gguf [--facts my.jsonl] [--out edited]

local q = require "qeng"

local opt = q.options {
  "Edits facts in a model by ROME and by MEMIT, and scores it before and after.",
  "model",
  { "facts", (arg[0]:match "^.*/" or "") .. "facts.jsonl", "JSONL: subject, prompt with {} for it, target_new, "
    .. "target_true, and lists paraphrases and neighborhood", kind = "input" },
  { "method", "both", "each fact alone, all at once, or both", choices = { "both", "rome", "memit" } },
  { "layers", {}, "MEMIT's layers, from 0, as 4,5,6, ROME takes the middle one; by default five a fifth way up" },
  { "text", "", "what is not to change: a text; by default one that the model writes itself", kind = "input" },
  { "tokens", 4000, "tokens of that text", min = 1 },
  { "steps", 20, "steps in which the value of a fact is found", min = 1 },
  { "lambda", 200, "how much the text counts beside the facts in MEMIT", min = 0, number = true },
  { "continue", 64, "tokens written after each prompt, by which fluency is measured; 0: none", min = 0 },
  { "seed", 0, "of the text that the model writes, and of the pieces of text before prompts", min = 0 },
  { "out", "", "folder for the model with the facts of MEMIT", kind = "folder", files = { "model.safetensors" } },
  "device",
}
if opt.out ~= "" and opt.method == "rome" then q.error("usage", "--out keeps what MEMIT gives: --method memit") end
q.use_device(opt)

-- Weights that the file packs in blocks are decoded.
local model = q.load(opt.model, { dtype = opt.dtype or "f32", model_file = opt.model_file, writable = true })
local facts, layers = q.edit.facts(opt.facts), q.edit.layers(model, opt.layers)
local middle = layers[math.floor((#layers + 1) / 2)]
local function hashes()
  local list = {}
  for i, parameter in ipairs(model.parameters) do list[i] = parameter.tensor:hash() end
  return table.concat(list)
end
local weights, begin = hashes(), q.time()
local statistics = q.edit.statistics(model, { layers = opt.method == "rome" and { middle } or layers, seed = opt.seed,
  text = opt.text ~= "" and q.fs.read(opt.text) or nil, tokens = opt.tokens })
print(("%d facts; keys of %d tokens %s: %.1f s"):format(#facts, statistics.count,
  opt.text ~= "" and "of " .. opt.text or "that the model wrote", q.time() - begin))

local before = q.edit.scores(model, facts, opt.continue)
local shares = { "efficacy", "exact", "paraphrase", "locality", "kept" }
print(("%-18s %10s %10s %10s %10s %10s %10s %10s"):format("", shares[1], shares[2], shares[3], shares[4], shares[5],
  "fluency", "s a fact"))
local function tell(name, scores, seconds)
  local found, row = scores:figures(before), ("%-18s"):format(name)
  for _, key in ipairs(shares) do
    row = row .. (" %10s"):format(found[key] and ("%.1f %%"):format(100 * found[key]) or "-")
  end
  print(row .. (" %10s %10s"):format(found.fluency and ("%.2f"):format(found.fluency) or "-",
    seconds and ("%.2f"):format(seconds / #facts) or ""))
end
tell("before", before)

if opt.method ~= "memit" then
  local alone, seconds = q.edit.scores(model, {}), 0
  for _, fact in ipairs(facts) do
    begin = q.time()
    local edit = q.edit.rome(model, fact, { layer = middle, statistics = statistics, steps = opt.steps })
    seconds = seconds + q.time() - begin
    alone:add(q.edit.scores(model, { fact }, opt.continue))
    edit:undo()
  end
  tell("ROME, layer " .. middle, alone, seconds)
end
if opt.method ~= "rome" then
  begin = q.time()
  local edit = q.edit.memit(model, facts,
    { layers = layers, statistics = statistics, steps = opt.steps, lambda = opt.lambda })
  local seconds = q.time() - begin
  tell(("MEMIT, layers %d-%d"):format(layers[1], layers[#layers]), q.edit.scores(model, facts, opt.continue), seconds)
  if opt.out ~= "" then model:save(opt.out) end
  edit:undo()
end
if hashes() ~= weights then q.error("state", "edit: the weights are not what they were") end
print "undone: the weights are what they were, bit for bit"
