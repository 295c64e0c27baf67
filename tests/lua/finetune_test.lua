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

-- ---- names that nothing has, and options that would do nothing
local function wrong(text, more)
  local opt = { model = "recipes/tiny", data = scratch.at "data.jsonl", out = scratch.at "nothing" }
  for name, value in pairs(more) do opt[name] = value end
  refused(text, q.finetune, opt)
end
wrong("finetune: no option step; did you mean steps", { step = 3 })
wrong("--rank is of adapters, and --mode full", { mode = "full", rank = 8 })
wrong("--dropout is of adapters, and --mode full", { mode = "full", dropout = 0.1 })
wrong("--mtp-depth is of the head that --mtp trains", { mtp_depth = 2 })
wrong("--eval-every 0 makes one at the end", { patience = 2, eval_every = 0 })
wrong("cannot have --dora", { gguf = true, dora = true })
wrong("cannot have an embedding", { gguf = true, add_tokens = { "<x>" } })
assert(not q.fs.kind(scratch.at "nothing"))
refused("load: no option dtyp; did you mean dtype", q.load, "recipes/tiny", { dtyp = "f32" })
refused("packets: no option tempalte; did you mean template", q.packets, scratch.at "data.jsonl",
  { tempalte = "chatml" })
refused("lora: no option rnk; did you mean rank", function() q.load("recipes/tiny"):lora { rnk = 4 } end)

-- ---- an adapter keeps its dropout where none is given
q.load("recipes/tiny"):lora({ rank = 2, dropout = 0.3 }):save_adapter(scratch.at "dropped")
for _, given in ipairs { false, 0 } do
  model = q.finetune { model = "recipes/tiny", data = scratch.at "data.jsonl", out = scratch.at "on", steps = 1,
    row_tokens = 64, adapter = scratch.at "dropped", dropout = given or nil }
  local wanted = given or 0.3
  assert(math.abs(model.adapter.dropout - wanted) < 1e-6 and model.linears[1].lora.dropout == model.adapter.dropout)
end
-- and what a GGUF file cannot hold is refused before the training
q.load("recipes/tiny"):lora({ rank = 2, dora = true }):save_adapter(scratch.at "dora")
wrong("GGUF has no DoRA", { adapter = scratch.at "dora", gguf = true })
assert(not q.fs.kind(scratch.at "nothing/metrics.jsonl"))
print "finetune: ok"
