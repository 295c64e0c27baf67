-- The step model: which one is trained. Then the records become its tokens, packets/train.qubgpu and
-- packets/held_out.qubgpu, and one is shown with the part that is trained.

local analyze = require "qeng.plan.analyze"
local candidates = require "qeng.wizard.candidates"
local data = require "qeng.data"
local hub = require "qeng.hub"
local models = require "qeng.model"
local progress = require "qeng.console.progress"
local q = require "qeng.core"

local patience = 3600  -- seconds of a pass over the data, at the machine's limits

-- The name of the model to recommend, and why.
local function recommended(run, list)
  local tokens, best, at = run.found.data.said / 4, nil, nil  -- English has some four bytes a token
  for _, one in ipairs(list) do
    local seconds = candidates.seconds(one.plan, tokens)
    local larger = not best or one.plan.parameters > best.plan.parameters
    if one.fits and larger and (not seconds or seconds < patience) then
      best, at = one, seconds
    end
  end
  if not best then return "tiny", "no other fits here; it is for a try" end
  if best.name == "tiny" then
    return "tiny", run.opt.yes and "no other model is here: it is for a try, and --model org/name fetches one"
      or "no other passes over these data in an hour: it is for a try"
  end
  return best.name, ("the largest that fits and passes over these data in less than an hour%s%s"):format(
    at and (" (%s at the machine's limits)"):format(progress.duration(at)) or "", best.here and "" or "; it is fetched")
end

local function size(plan)
  local million = plan.parameters / 1e6
  return million < 1000 and ("%.3g million parameters"):format(million)
    or ("%.3g billion parameters"):format(million / 1000)
end

-- A line for each model.
local function show(run, list)
  for _, one in ipairs(list) do
    run:say(("  %-24s %s, %s%s"):format(one.name, size(one.plan), one.sentence,
      one.here and "" or "; not here, would be fetched"))
  end
end

-- Asks for a model that fits. Returns its path, how many parameters it has, and the model.
local function choose(run)
  local opt, path, parameters, model, name, why = run.opt, nil, nil, nil, nil, nil
  if not opt.__given.model then
    local list = candidates.list(opt, not opt.yes)
    if not opt.yes then show(run, list) end
    name, why = recommended(run, list)
  end
  run:ask {
    name = "model", text = "Which model? A folder, a GGUF file, org/name on the hub, or tiny, the built-in one.",
    default = name, why = why,
    check = function(given)
      path = candidates.path(given)
      run:outside(path)
      local plan = candidates.plan(path, opt)
      local fits, sentence = candidates.fits(plan, opt)
      if not fits then
        q.error("value", ("%s %s; take a smaller model, shorter rows (--row-tokens), or --mode lora"):format(given,
          sentence))
      end
      run:say(("%s: %s; by plan it %s"):format(given, size(plan), sentence))
      parameters, path = plan.parameters, hub.resolve_model(path)
      path = q.fs.real(path) or path
      model = models.load(path, { dtype = opt.dtype, weights = "map" })
      if not model.tokenizer then error(model.tokenizer_error, 0) end
    end,
  }
  return path, parameters, model
end

-- Opens data/NAME.jsonl as packets of the model's tokens, packets/NAME.qubgpu.
local function convert(run, model, name)
  return data.open(run:at("data/" .. name .. ".jsonl"), { tokenizer = model.tokenizer, template = run.opt.template,
    template_args = run.opt.template_args, cache = run:at("packets/" .. name .. ".qubgpu") })
end

return function(run)
  run:note("dtype", "template", "template_args")
  local path, parameters, model = choose(run)
  q.fs.remove(run:at "packets")
  q.fs.mkdir(run:at "packets")
  run:leave "packets"
  local longest = model.config.max_position
  local found = analyze.dataset(convert(run, model, "train"), { tokenizer = model.tokenizer, max_row = longest })
  convert(run, model, "held_out")
  local over = 0
  for _, pair in ipairs(found.lengths) do if pair[1] > longest then over = over + pair[2] end end
  run:say(("%d tokens, %d of them trained; a record has %.0f, the longest %d"):format(found.tokens, found.trained,
    found.mean, found.longest))
  run:say(over == 0 and ("no record is longer than the model's %d positions"):format(longest)
    or ("over-long: %d of the records exceed the model's %d positions; conversations are left out, texts split"):format(
      over, longest))
  if found.truncated > 0 then run:say(("%d records end in the middle of an answer"):format(found.truncated)) end
  return { path = path, parameters = parameters, tokens = found.tokens, trained = found.trained,
    over_long = over, positions = longest }
end
