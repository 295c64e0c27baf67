-- What a run does with held-out data: it ends early, keeps the best weights, answers prompts and writes event files.
-- None of this changes what is trained.
package.path = (arg[0]:match "^(.*/)" or "./") .. "?.lua;" .. package.path
local q = require "qeng"
local scratch = require "scratch"
local at, refused = scratch.at, scratch.refused

local function write(name, count, record)
  local lines = {}
  for i = 1, count do lines[i] = q.json.encode(record(i)) end
  q.fs.write(at(name), table.concat(lines, "\n") .. "\n")
  return at(name)
end
local data = write("a.jsonl", 60, function(i) return { prompt = "how many? " .. i, completion = i .. " geese" } end)
-- Other answers. Their loss rises while the run learns its own.
local others = write("e.jsonl", 8, function(i)
  return { prompt = "who? " .. i, completion = "nobody at all, said the fox" }
end)

local function train(out, more)
  local opt = { model = "recipes/tiny", data = data, out = at(out), eval_data = others, steps = 60, eval_every = 5,
    lr = 2e-3, row_tokens = 64 }
  for name, value in pairs(more) do opt[name] = value end
  return select(3, q.finetune(opt))
end
local function adapter(folder) return q.fs.read(at(folder) .. "/adapter_model.safetensors") end

local result = train("patient", { patience = 3, samples = "how many? 3", sample_tokens = 8, tensorboard = true })
assert(result.steps == result.best_step + 15 and result.steps < 60, "it ends three evaluations after the lowest loss")
assert(adapter "patient/adapter" == adapter "patient/best" and result.best < result.eval_loss, "with the best weights")
local rows = result.metrics
for _, row in ipairs(rows) do assert(not row.eval_loss or row.eval_loss >= result.best) end

-- Looking changes nothing: without samples and event files, and stopped by patience later, the steps are the same.
local plain = train("plain", { patience = 3 })
assert(adapter "plain/adapter" == adapter "patient/adapter")
for i, row in ipairs(plain.metrics) do
  assert(row.loss == rows[i].loss and row.eval_loss == rows[i].eval_loss, "step " .. i)
end
assert(not q.fs.kind(at "plain/samples.jsonl") and not q.fs.kind(at "plain/tensorboard"))

-- Every evaluation has its answers; the event file holds every step.
local answers = 0
for line in q.fs.read(at "patient/samples.jsonl"):gmatch "[^\n]+" do
  local sample = q.json.decode(line)
  answers = answers + 1
  assert(sample.step == 5 * answers and sample.prompt == "how many? 3" and #sample.answer > 0)
end
assert(answers == result.steps / 5)
local events = select(2, q.fs.read(at "patient/tensorboard/events.out.tfevents.qeng"):gsub("train/loss", ""))
assert(events == result.steps, events)

-- With more patience, the run that ended goes on.
local more = train("plain", { patience = 6, resume = true })
assert(more.steps == plain.best_step + 30 and more.best_step == plain.best_step,
  ("%d, best %d"):format(more.steps, more.best_step or -1))

-- A best/ of a step that a kill has undone is not taken for that of an earlier one.
assert(train("undone", { best = true, steps = 10 }).best_step <= 10)
assert(q.json.decode(q.fs.read(at "undone/best/step.json")).step <= 10)
q.fs.write(at "undone/best/step.json", '{"step": 12}')
local undone = train("undone", { best = true, steps = 20, lr = 1e-2, resume = true })
assert(undone.best_step > 10 and q.json.decode(q.fs.read(at "undone/best/step.json")).step == undone.best_step)
-- What is held out is the same in a resumed run.
write("e.jsonl", 8, function(i) return { prompt = "who? " .. i, completion = "somebody" } end)
refused("has held-out data 8 records, digest", train, "undone", { best = true, steps = 30, resume = true })

-- The best weights of a whole model, without ending early.
local whole = train("whole", { mode = "full", best = true, steps = 30, lr = 2e-3 })
local kept, best = q.safetensors.open(at "whole/model"), q.safetensors.open(at "whole/best")
assert(whole.best_step < 30, whole.best_step)
for _, name in ipairs(kept:names()) do assert(kept:tensor(name):hash() == best:tensor(name):hash(), name) end

-- Prompts of a file: lines, and records without the answer that they would train.
local samples = require "qeng.train.samples"
q.fs.write(at "prompts", 'one?\n{"messages": [{"role": "user", "content": "two?"}, {"role": "assistant", "content": ' ..
  '"2"}]}\n\n{"prompt": "three?"}\n')
local list = samples.read(at "prompts")
assert(#list == 3 and list[1].shown == "one?" and list[2].shown == "two?" and #list[2].messages == 1 and
  list[3].shown == "three?")
for line, why in pairs {
  ['{"question": "one?"}'] = "no known shape", ['{"messages": []}'] = "messages is empty",
  ['{"messages": 3}'] = "prompts: ", ['{"messages'] = "parse error",
  ['{"messages": [{"role": "assistant", "content": "2"}]}'] = "asks nothing", [" "] = "holds no prompt",
} do
  q.fs.write(at "prompts", line .. "\n")
  local fine, err = pcall(samples.read, at "prompts")
  assert(not fine and type(err) == "table" and err.message:find(at "prompts", 1, true) and
    err.message:find(why, 1, true), tostring(err and err.message or err))
  refused("prompts", train, "none", { samples = at "prompts" })
end
assert(not q.fs.kind(at "none"), "refused before anything was written")
refused("--patience needs held-out data", train, "none", { eval_data = "", eval_share = 0, patience = 2 })
refused("no such file", train, "none", { eval_data = at "nowhere.jsonl" })
print "evaluation: ok"
