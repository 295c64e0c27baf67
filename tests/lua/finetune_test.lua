-- q.finetune from a script: what is left out has the defaults of the set "finetune"; what is wrong is told.
local q = require "qeng"
local scratch = require "scratch"
local refused = scratch.refused

-- ---- the least that a script has to say
local lines = {}
for i = 1, 60 do lines[i] = q.json.encode { prompt = "how many? " .. i, completion = ("%d geese"):format(i) } end
q.fs.write(scratch.at "data.jsonl", table.concat(lines, "\n") .. "\n")
local model, file, result = q.finetune { model = "recipes/tiny", data = scratch.at "data.jsonl", out = scratch.at "run",
  steps = 2, row_tokens = 64 }
assert(model.adapter.rank == 16 and model.adapter.alpha == 32 and file:records() == 60 and result.steps == 2 and
  result.eval_loss)
assert(q.fs.kind(scratch.at "run/adapter/adapter_model.safetensors") == "file")
local page = q.fs.read(scratch.at "run/report.html")
assert(page:find "<td>alpha</td><td>32  %(given: 0%)</td>" and
  page:find "<td>template</td><td>model  %(given: auto%)</td>", "the report has no resolved settings")
model = q.finetune { model = "recipes/tiny", data = scratch.at "data.jsonl", out = scratch.at "few", steps = 1,
  row_tokens = 64, alpha = 8, rank = 4, targets = { "q_proj", "v_proj" } }
assert(model.adapter.alpha == 8 and #model.adapter.targets == 2)

-- ---- data that a hook makes when the folder is ready, as those of the built-in demo
local made = { make_data = function() return scratch.at "data.jsonl" end }
assert(select(3, q.finetune({ model = "recipes/tiny", out = scratch.at "made", steps = 1, row_tokens = 64 },
  made)).steps == 1)

refused("finetune: data is missing", q.finetune, { model = "recipes/tiny" })
refused("does not mention 'nosuch'", q.finetune, { model = "recipes/tiny", data = scratch.at "data.jsonl",
  out = scratch.at "args", template_args = { nosuch = true } })
refused("finetune: lr is fast: not a number", q.finetune, { model = "recipes/tiny", data = "x", lr = "fast" })
refused("finetune: mode is all: one of lora, full", q.finetune, { model = "recipes/tiny", data = "x", mode = "all" })
refused("--targets takes those of this model, q_proj", q.finetune,
  { model = "recipes/tiny", data = scratch.at "data.jsonl", out = scratch.at "none", targets = "q" })
print "finetune: ok"
