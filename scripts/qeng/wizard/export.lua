-- The steps after training: the adapter merged into a Hugging Face folder, a GGUF file, and what serves them.

local examine = require "qeng.train.examine"
local evaluate = require "qeng.wizard.evaluate"
local kept = require "qeng.model.kept"
local models = require "qeng.model"
local mtp = require "qeng.model.mtp"
local names = require "qeng.gguf.names"
local q = require "qeng.core"
local quantized = require "qeng.gguf.quantized"
local settings = require "qeng.wizard.settings"
local types = require "qeng.gguf.types"
local word = require "qeng.console.word"

local export = {}

local function merged(run) return run:at(run.found.merge.folder) end

function export.merge(run)
  local model, folder = evaluate.trained(run), "train/model"
  local beside = model.kept and #model.kept.names > 0 and kept.parts(model.kept.names) or nil
  if run.found.settings.mode == "lora" then
    folder = "merged"
    model:merge():save(run:at(folder))
    run:leave(folder)
    run:say(("%s: the model with the adapter merged in, as transformers loads it"):format(run:at(folder)))
  else
    run:say(("%s is the whole model: every weight was trained"):format(run:at(folder)))
  end
  if beside then run:say(("beside the model, kept as in its own folder: %s"):format(beside)) end
  return { folder = folder, kept = beside, drafts = mtp.has_own(model) or false,
    parameters = run.found.model.parameters, architecture = model.arch.hf }
end

-- Refuses a type that there is not.
function export.check_type(name)
  for _, known in ipairs { "none", unpack(types.names()) } do if name == known then return end end
  q.error("value", ("gguf: there is no type %s; expected none, or one of %s"):format(name,
    table.concat(types.names(), ", ")))
end

-- The type to recommend, and why.
local function mix(run, model)
  local _, no_words = q.try(names.architecture, model.arch)
  if no_words then return "none", no_words.message end
  if run.found.model.parameters < 1e9 then return "q8_0", "under a billion parameters, few bits cost much" end
  return "q4_k_m", "4.8 bits a weight, of which a billion parameters and more lose little"
end

function export.gguf(run)
  local default, why = mix(run, models.load(merged(run), { weights = "map" }))
  local type = run:ask { name = "gguf", text = "A GGUF file of which type?", default = default, why = why,
    check = export.check_type, help = "llama.cpp and others read it, and so do qeng's recipes" }
  if type == "none" then
    run:say "no GGUF file"
    return {}
  end
  local name = ("model-%s.gguf"):format(type)
  local result = quantized.write(merged(run), run:at(name), { type = type })
  run:leave(name)
  for _, line in ipairs(quantized.lines(result)) do run:say(line) end
  if result.left then run:say(("the GGUF file has none of %s; %s has"):format(result.left, merged(run))) end
  return { file = name, bytes = result.bytes }
end

-- Asks the exported model a held-out question.
local function try(run)
  local file, one = run.found.export.file, evaluate.questions(run)[1]
  if not one then return run:say "--try: the held-out records ask nothing" end
  local path = file and run:at(file) or merged(run)
  settings.let_go()
  local answers = q.no_grad(examine.answers, models.load(path), { one }, { what = "one question", max_tokens = 256,
    max_batch = 1, template = run.answer.template, template_args = run.answer.template_args })
  run:say(("%s was asked:  %s\nit answers:  %s\nwanted:  %s"):format(path, one.shown, answers[1], one.wanted))
end

-- Says what serves the result, each time.
function export.serve(run)
  local commands, file = { "qeng recipes/serve.lua --model " .. word(merged(run)) }, run.found.export.file
  if file then commands[2] = "qeng recipes/serve.lua --model " .. word(run:at(file)) end
  for _, command in ipairs(commands) do run:say("to serve it: " .. command) end
  if run.found.merge.drafts then run:say "--draft mtp: the model's own head guesses ahead; the text is the same" end
  if run.opt.try then try(run) end
  return { commands = q.json.array(commands) }
end

return export
