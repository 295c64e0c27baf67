-- One training run of a small one-bit model on a text of characters. Data, floats and schedule are the same for every
-- rule, so runs differ by the rule alone.
--
--   case: rule        of onebit/init.lua or compare_rules.lua
--         seed, lr    of the floats
--         scale_rate  the row scales' share of lr (0.3)
--         latent_lr   of latent, grid and dense weights (1e-2)
--         levels, q, k, friction, target, schedule, gamma, tau, rise: of q.inertia, for counters and momenta
--         phases      {parts =, steps =, keep =}: one of so many parts learns at a time, for so many steps, or fewer
--                     where the run would end before each had its turn
--         dtype       of floats and activations (f32)
--   set:  values (a config.json's keys), text (compare_text.lua), rows, tokens, steps, points (of the curve),
--         point_windows
--         folder (of checkpoints), save_every (steps), settings (words that have to be the same then): to go on after a
--         stop. All else has to be the same too, but folder and save_every
--
-- Returns a table:
--   loss (of the whole held-out text), train, curve = {{step, loss}...}, tokens, seconds, warnings
--   flips             {per thousand weights and step, by tenth of the run}
--   flips_per_weight  nil of grid and dense weights, which are no bits
--   pulse_rate        of the first tenth
--   levels            the histogram of the counters
--   diverged          the step at which the loss was no number any more; then there is no loss, train or levels

local adamw = require "qeng.train.adamw"
local q = require "qeng.core"
local char_text = require "qeng.onebit.compare_text"
local compare_rules = require "qeng.onebit.compare_rules"
local checkpoint = require "qeng.train.checkpoint"
local inertia = require "qeng.onebit.inertia"
local onebit = require "qeng.onebit"
local pass = require "qeng.train.pass"
local phases = require "qeng.onebit.phases"
local resume = require "qeng.train.resume"
local schedule = require "qeng.train.schedule"

local warmup = 50  -- steps

local function learns_by_pulses(case) return case.rule == "counter" or case.rule == "bop" end

local function learner(case, set, model, options)
  local turns = case.phases
  if not turns then return inertia.new(model, options) end
  local steps = math.max(1, math.min(turns.steps, math.floor(set.steps / turns.parts)))
  return phases.new(model, { count = turns.parts, steps = steps, keep = turns.keep, inertia = options })
end

local function options_of(case)
  return { levels = case.levels, q = case.q, k = case.k, friction = case.friction, target = case.target,
    schedule = case.schedule, bop = case.rule == "bop",
    gamma = case.gamma, tau = case.tau, rise = case.rise }
end

-- The optimizers of floats and of latent weights as one object, for checkpoints.
local Pair = {}
Pair.__index = Pair

-- `names` are the names of both.
local function divide(self, names)
  local of_floats, of_latents = {}, {}
  for i, name in ipairs(names) do table.insert(i <= self.count and of_floats or of_latents, name) end
  return of_floats, of_latents
end
function Pair:state(names)
  local of_floats, of_latents = divide(self, names)
  local list, steps = self.floats:state(of_floats)
  if not self.latents then return list, { steps } end
  local more, latent_steps = self.latents:state(of_latents)
  for _, each in ipairs(more) do list[#list + 1] = each end
  return list, { steps, latent_steps }
end
function Pair:step(step)
  for _, each in ipairs { self.floats, self.latents or nil } do
    each.at = step
    each:step()
  end
end
function Pair:restore(file, names, steps)
  local of_floats, of_latents = divide(self, names)
  self.floats:restore(file, of_floats, steps[1])
  if self.latents then self.latents:restore(file, of_latents, steps[2]) end
end

local function finite(value) return math.abs(value) < math.huge end  -- false for NaN too

local function adamw_of(parameters, rates, lr)
  return adamw.new(parameters, { lr = lr, rates = rates, beta1 = 0.9, beta2 = 0.99, eps = 1e-10 })
end

-- The parts of a run: model, bits, optimizer and its parameters, and `result`, what is known so far.
local function begin(case, set)
  q.seed(case.seed)
  q.rng_step(0)
  local model = onebit.random(set.values,
    { rule = case.rule, seed = case.seed, levels = case.grid_levels, dtype = case.dtype })
  local floats = onebit.float_parameters(model)
  local parameters = {}
  for _, list in ipairs { floats, model.latents } do
    for _, parameter in ipairs(list) do parameters[#parameters + 1] = parameter end
  end
  return {
    model = model, parameters = parameters,
    bits = learns_by_pulses(case) and learner(case, set, model, options_of(case)),
    optimizer = setmetatable({ count = #floats, floats = adamw_of(floats, { scales = case.scale_rate or 0.3 },
        schedule.cosine(case.lr, set.steps, { warmup = warmup, floor = 0.1 })),
      latents = #model.latents > 0 and adamw_of(model.latents, {},
        schedule.cosine(case.latent_lr or 1e-2, set.steps,
          { warmup = warmup, floor = case.rule == "dense" and 0.1 or 0 })) }, Pair),
    result = { step = 0, curve = q.json.array {}, flips = q.json.array {}, pulse_rate = 0, warnings = q.json.array {},
      seconds = 0,
      tokens = set.steps * set.rows * set.tokens, recent = q.json.array {}, flipped = 0, flipped_tenth = 0,
        steps_tenth = 0 },
  }
end

-- Returns a function that tells how many latent weights changed their sign since it was last called.
local function sign_changes(latents)
  local before = {}
  for i, latent in ipairs(latents) do before[i] = latent.bits:clone() end
  return function()
    local count = 0
    for i, latent in ipairs(latents) do
      count = count + q.onebit.count_bits(before[i], latent.bits)
      before[i]:copy(latent.bits)
    end
    return count
  end
end

-- Notes what the bits did in the step that ended.
local function note_flips(run, set)
  local result, report = run.result, run.bits and run.bits:finish()
  local step, tenth = result.step, math.ceil(set.steps / 10)
  local flips = report and report.flips or run.sign_changes and run.sign_changes() or 0
  result.flipped, result.flipped_tenth = result.flipped + flips, result.flipped_tenth + flips
  if report then
    if step <= tenth then result.pulse_rate = result.pulse_rate + report.pulse_rate / tenth end
    if report.warning and #result.warnings < 5 and step % 50 == 0 then
      table.insert(result.warnings, ("step %d: %s"):format(step, report.warning))
    end
  end
  result.steps_tenth = result.steps_tenth + 1
  if math.floor(step * 10 / set.steps) > math.floor((step - 1) * 10 / set.steps) then
    table.insert(result.flips, 1000 * result.flipped_tenth / onebit.weights(run.model) / result.steps_tenth)
    result.flipped_tenth, result.steps_tenth = 0, 0
  end
end

local function train(case, set, say)
  local run = begin(case, set)
  local model, bits, optimizer, result = run.model, run.bits, run.optimizer, run.result
  local fixed = resume.flat { case = case, values = set.values, rows = set.rows, tokens = set.tokens, steps = set.steps,
    points = set.points,
    point_windows = set.point_windows, text = set.text.digest }
  if set.folder then
    checkpoint.clean(set.folder)
    local found = checkpoint.load(set.folder, run.parameters, optimizer, bits, function(state)
      if state.settings ~= set.settings then
        q.error("value", ("%s holds a run of other settings (%s; these are %s): remove it, or give another --out")
          :format(set.folder, tostring(state.settings), set.settings))
      end
      checkpoint.compare(set.folder, state.fixed, fixed)
    end)
    if found then run.result, result = found.result, found.result end
    if found and case.rule == "latent" then compare_rules.settle(model) end
  end
  if case.rule == "latent" then run.sign_changes = sign_changes(model.latents) end
  local function save()
    checkpoint.save(set.folder, run.parameters, optimizer,
      { step = result.step, settings = set.settings, fixed = fixed, result = result }, 1, bits)
  end
  local micro_batch = char_text.micro_batch(set.rows, set.tokens)
  local places = set.text:places(1000 + case.seed, set.rows, set.tokens)
  local program
  local before, started = result.seconds, q.time()
  while result.step < set.steps do
    local step = result.step
    set.text:fill(micro_batch, set.text.train, places(step), set.tokens)
    if bits and bits:begin(step / set.steps, step) and program then  -- another part learns now
      program:free()
      program = nil
    end
    q.rng_step(step)
    program = program or pass.capture(model, micro_batch, {})
    program:run()
    if bits and bits.observe then bits:observe() end
    optimizer:step(step)
    if optimizer.latents then compare_rules.settle(model) end
    result.step = step + 1
    note_flips(run, set)
    local value, point = program.loss:item(), nil
    if math.floor(result.step * set.points / set.steps) > math.floor(step * set.points / set.steps) then
      point = set.text:held_out_loss(model, micro_batch, set.rows, set.tokens,
        result.step < set.steps and set.point_windows or nil)
    end
    if not finite(value) or point and not finite(point) then
      result.diverged = result.step
      break
    end
    result.recent[step % 100 + 1] = value
    if point then table.insert(result.curve, { result.step, point }) end
    say(result.step, value)
    result.seconds = before + q.time() - started
    local stopped = q.host.interrupted()
    if set.folder and (stopped or result.step % set.save_every == 0) then save() end
    if stopped then q.error("interrupted", "stopped; a next call goes on where this one stood") end
  end
  if not result.diverged then
    result.loss = result.curve[#result.curve][2]  -- of all windows
    local sum = 0
    for _, value in ipairs(result.recent) do sum = sum + value end
    result.train, result.levels = sum / #result.recent, case.rule == "counter" and bits:histogram() or nil
  end
  if case.rule == "grid" or case.rule == "dense" then
    result.flips = q.json.array {}
  else
    result.flips_per_weight = result.flipped / onebit.weights(model)
  end
  for _, name in ipairs { "step", "recent", "flipped", "flipped_tenth", "steps_tenth" } do result[name] = nil end
  if program then program:free() end
  if bits then bits:free() end
  return result
end

return function(case, set, say)
  return q.scope(function() return train(case, set, say or function() end) end)
end
