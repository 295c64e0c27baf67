-- q.inertia: the optimizer of one-bit weights. Each weight has a counter, its health. A pulse of the gradient that
-- agrees with the weight adds health; a pulse against it takes some. At none the weight flips and its health is
-- refilled. The backward pass feeds the counters at every micro-batch. No gradient of a weight is kept.
--
--   local bits = q.inertia(model, { levels = 7 })
--   for step = 1, steps do
--     bits:begin(step / steps)          -- the threshold of this step, cooled along a cosine
--     model:loss(batch):backward()
--     local report = bits:finish()      -- flips, pulses, and a warning where they are out of range
--   end
--
--   levels    the top of a counter: 1 (the two-step machine; also "strict"), 3 (2 bits), 7 (a nibble with its weight;
--             the default), 15, or 255 (a byte, fed by several steps at once)
--   q         the share of a row's entries that pulse at the start, if they were normal
--   k         with levels = 255, instead of q: steps per rms of the row (10)
--   friction  how far every gradient counts for the sign its weight has, in rms of the row: then it takes a drift to
--             flip a weight, and noise alone does not. It rises along a line from 0 to its value at the end
--   target    flips per thousand weights and step that the thresholds are steered to, instead of q
--   schedule  cosine or constant, of friction too
--   bop       momenta instead of counters (gamma, tau, rise)

local checkpoint = require "qeng.train.checkpoint"
local q = require "qeng.core"
local quantile = require "qeng.onebit.quantile"

local inertia = {}

local Inertia = {}
Inertia.__index = Inertia

-- The experiments chose these. With few levels a pulse says more, so pulses have to be rare.
local share = { [1] = 0.02, [3] = 0.05, [7] = 0.15, [15] = 0.6 }
local usual_friction = { [7] = 0.2 }  -- others run without
local planes = { [1] = 1, [3] = 2, [7] = 3, [15] = 4 }  -- bits of state a weight; of 255 a byte

local options = { "levels", "q", "k", "friction", "target", "schedule", "bop", "gamma", "tau", "rise", "parts" }
local names = {}
for _, name in ipairs(options) do names[name] = true end

local hot, cold = 4, 0.1  -- flips per thousand weights and step, outside of which training was seen to fail
local judged = 30         -- feeds whose mean that is

-- Feeds until flips are as usual. Counters start full: at first none flips, then many do together. Twice the shortest
-- way down; of momenta, twice what they average over.
local function settling(knobs)
  if knobs.bop then return 2 / knobs.gamma end
  return knobs.levels == 255 and 2 * 255 / knobs.k or 2 * (knobs.levels + 1)
end

-- The options of q.inertia, with their defaults.
function inertia.knobs(opt)
  local levels = opt.bop and 255 or opt.levels == "strict" and 1 or opt.levels or 7
  if not planes[levels] and levels ~= 255 then
    q.error("value", ("inertia: levels is %s, expected 1 (strict), 3, 7, 15 or 255"):format(tostring(levels)))
  end
  local by_steps = levels == 255  -- these have no quantile
  if opt.schedule and opt.schedule ~= "cosine" and opt.schedule ~= "constant" then
    q.error("value", ("inertia: schedule is %s, expected cosine or constant"):format(tostring(opt.schedule)))
  end
  for name in pairs(opt) do
    if not names[name] then
      q.error("value", ("inertia: no option %s; there are %s"):format(tostring(name), table.concat(options, ", ")))
    end
  end
  for _, name in ipairs { "k", "gamma", "tau", "rise", "target" } do
    local value = opt[name]
    if value ~= nil and not (type(value) == "number" and value > 0 and value < math.huge) then
      q.error("value", ("inertia: %s is %s, expected a number over 0"):format(name, tostring(value)))
    end
  end
  if not opt.bop and (opt.gamma or opt.tau or opt.rise) then
    q.error("value", "inertia: gamma, tau and rise are of momenta: set bop")
  end
  if opt.gamma and opt.gamma > 1 then
    q.error("value", ("inertia: gamma is %g, expected a share up to 1"):format(opt.gamma))
  end
  if opt.q and not (type(opt.q) == "number" and opt.q > 0 and opt.q < 1) then
    q.error("value", ("inertia: q is %s, expected a share between 0 and 1"):format(tostring(opt.q)))
  end
  if opt.target and by_steps then
    q.error("value",
      ("inertia: target = %s steers the thresholds of counters of up to 15; momenta and 255 levels have none: " ..
        "set k, or tau"):format(tostring(opt.target)))
  end
  if opt.q and by_steps then
    q.error("value", ("inertia: q = %s is of counters of up to 15; momenta and 255 levels take steps: set k, or tau")
      :format(tostring(opt.q)))
  end
  if opt.k and not by_steps then
    q.error("value", ("inertia: k = %s is of 255 levels; with %d, set q"):format(tostring(opt.k), levels))
  end
  local friction = opt.friction or usual_friction[levels] or 0
  if not (type(friction) == "number" and friction >= 0 and friction <= 1) then
    q.error("value", ("inertia: friction is %s, expected 0 to 1"):format(tostring(opt.friction)))
  end
  if opt.bop and friction > 0 then
    q.error("value", "inertia: friction is of counters; momenta have a threshold, tau")
  end
  return {
    levels = levels, friction = friction, q = opt.q or share[levels], k = opt.k or (opt.bop and 16 or 10),
    target = opt.target, bop = opt.bop or false,
    schedule = opt.schedule or "cosine", gamma = opt.gamma or 0.02, tau = opt.tau or 1.7, rise = opt.rise or 2.2,
  }
end

-- Bit planes of counters at the top.
local function full_planes(count, rows, width)
  local state = q.empty({ count, rows, width }, "one_bit", "optimizer")
  -- rows at a time: floats take 32 times the memory of bits
  local some = math.min(rows, math.max(1, math.floor(65536 / width)))
  local ones = q.zeros({ some, width }, "f32"):fill(1)
  for p = 0, count - 1 do
    local bits = state:rows(p, 1):reshape { rows, width }
    for first = 0, rows - 1, some do
      local here = math.min(some, rows - first)
      q.onebit.pack_signs(ones:rows(0, here), bits:rows(first, here))
    end
  end
  return q.keep(state)
end

-- Whether `state` can hold the counters of `part` = {layer, rows}.
function inertia.fits(state, knobs, part)
  local of_bits = not knobs.bop and planes[knobs.levels]
  local shape, width = state:shape(), part.layer.weight:shape()[2]
  if not of_bits then return state:dtype() == "u8" and #shape == 2 and shape[1] == part.rows and shape[2] == width end
  return state:dtype() == "one_bit" and #shape == 3 and shape[1] == of_bits and shape[2] == part.rows and
    shape[3] == width
end

-- Gives `part` = {layer, first, rows, [state]} its counters. New ones are full.
local function attach(self, index, part)
  local width = part.layer.weight:shape()[2]
  local of_bits = not self.knobs.bop and planes[self.knobs.levels]
  if not part.state and of_bits then
    part.state = q.scope(full_planes, of_bits, part.rows, width)
  elseif not part.state then
    part.state = q.zeros({ part.rows, width }, "u8", "optimizer"):fill(self.knobs.bop and 0 or 255)
  end
  part.state:label(part.layer.name .. ".inertia")
  q.onebit.learn_by_pulses(part.layer.weight, {
    state = part.state, hyper = self.hyper:rows(index - 1, 1):reshape { 4 },
    counts = self.counts:rows(index - 1, 1):reshape { 2 },
    first = part.first, subsequence = 9000 + part.number, bop = self.knobs.bop,
  })
end

function inertia.name_of(part) return ("%s.inertia.%d"):format(part.layer.name, part.first) end

-- opt.parts: {{layer =, first =, rows =, [state =]}...}, the rows that learn. Without it all rows of the model learn.
function inertia.new(model, opt)
  opt = opt or {}
  local self = setmetatable({ model = model, knobs = inertia.knobs(opt), parts = opt.parts or {}, weights = 0, z = {},
    progress = 0, fed = 0, recent = 0 }, Inertia)
  local numbers = {}
  for number, layer in ipairs(model.linears) do
    numbers[layer] = number
    if not opt.parts then self.parts[number] = { layer = layer, first = 0, rows = layer.weight:shape()[1] } end
  end
  if #self.parts == 0 then
    q.error("value", "inertia: no part of the model is to learn: opt.parts, or the model's linears, is empty")
  end
  self.hyper, self.counts = q.zeros({ #self.parts, 4 }, "f32", "optimizer"),
    q.zeros({ #self.parts, 2 }, "i64", "optimizer")
  for index, part in ipairs(self.parts) do
    local dtype = part.layer.weight:dtype()
    if dtype ~= "one_bit" then
      q.error("dtype", ("inertia: the weight of %s is %s, expected one_bit; q.onebit.random makes such a model"):format(
        part.layer.name, dtype))
    end
    part.number, part.weights = numbers[part.layer], part.rows * part.layer.weight:shape()[2]
    self.weights = self.weights + part.weights
    attach(self, index, part)
    if self.knobs.target then self.z[index] = quantile.two_sided(self.knobs.q) end
  end
  return self
end

local function cooling(self)
  return self.knobs.schedule == "cosine" and 0.5 * (1 + math.cos(math.pi * math.min(self.progress, 1))) or 1
end

-- Sets how the next micro-batches feed the counters. progress: 0 at the first step, 1 at the end.
function Inertia:begin(progress)
  self.progress = progress
  local knobs, cold_share = self.knobs, cooling(self)
  local values, friction = {}, knobs.friction * (knobs.schedule == "cosine" and math.min(progress, 1) or 1)
  for index = 1, #self.parts do
    local strength
    local gamma, threshold = 0, 0
    if knobs.bop then  -- the momentum of noise has the deviation sqrt(gamma / 2)
      strength, gamma = knobs.k, knobs.gamma
      threshold = knobs.tau * math.sqrt(gamma / 2) * (1 + (knobs.rise - 1) * math.min(progress, 1))
    elseif knobs.levels == 255 then
      strength = knobs.k * cold_share
    elseif knobs.target then
      strength = self.z[index]
    else
      strength = quantile.two_sided(knobs.q * cold_share)
    end
    for _, value in ipairs { strength, friction, gamma, threshold } do values[#values + 1] = value end
  end
  self.hyper:set(values)
end

-- Reports on the `feeds` micro-batches since begin(): flips, pulses, flip_rate (per thousand weights and feed),
-- pulse_rate (share), layers = {{name, flip_rate}...}, and a warning where the mean of late is out of range, once flips
-- are as usual.
function Inertia:finish(feeds)
  feeds = feeds or 1
  local counted = self.counts:table()
  self.counts:fill(0)
  local report = { flips = 0, pulses = 0, layers = {} }
  local hottest
  for index, part in ipairs(self.parts) do
    local pulses, flips = counted[index][1], counted[index][2]
    local rate = 1000 * flips / part.weights / feeds
    report.flips, report.pulses = report.flips + flips, report.pulses + pulses
    if not hottest or rate > hottest.flip_rate then hottest = { name = part.layer.name, flip_rate = rate } end
    report.layers[index] = { name = part.layer.name, flip_rate = rate }
    -- a threshold rises where there are too many flips; a tenth of the way, and at most by a tenth
    if self.knobs.target then
      local wanted = self.knobs.target * cooling(self)
      local step = 0.1 * math.log((rate + 0.02) / (wanted + 0.02))
      self.z[index] = math.max(0.05, self.z[index] + math.max(-0.1, math.min(0.1, step)))
    end
  end
  report.flip_rate = 1000 * report.flips / self.weights / feeds
  report.pulse_rate = report.pulses / self.weights / feeds
  self.fed = self.fed + feeds
  local late = self.fed - settling(self.knobs)
  if late > 0 then
    self.recent = self.recent + (report.flip_rate - self.recent) * math.min(1, feeds / math.min(late, judged))
  end
  if late >= judged and self.recent > hot then
    report.warning = ("%.1f flips per thousand weights and step, %.1f in %s: too hot (over %g); lower q or k"):format(
      self.recent,
      hottest.flip_rate, hottest.name, hot)
  elseif late >= judged and self.recent < cold and self.progress < 0.5 then
    report.warning =
      ("%.3f flips per thousand weights and step in the first half: too cold; raise q or k, or lower friction"):format(
        self.recent)
  end
  return report
end

-- How many counters stand at each level, from 0 on. The levels of bytes come in 16 bins.
function Inertia:histogram()
  local total = {}
  for _, part in ipairs(self.parts) do
    for level, count in ipairs(q.onebit.count_levels(part.state)) do total[level] = (total[level] or 0) + count end
  end
  return total
end

-- What a checkpoint keeps: {{name, tensor}...}, the bits of the model among them, and a table of numbers.
function Inertia:tensors()
  local list = {}
  for _, layer in ipairs(self.model.linears) do list[#list + 1] = { layer.name .. ".weight", layer.weight } end
  for _, part in ipairs(self.parts) do list[#list + 1] = { inertia.name_of(part), part.state } end
  return list
end
function Inertia:state() return { z = q.json.array(self.z), fed = self.fed, recent = self.recent } end

-- What has to be the same in a resumed run: every knob, and `more`, whose rule comes before the name of this one. A
-- knob that is not set is false.
function inertia.settings(knobs, more)
  more.rule = (more.rule or "") .. (knobs.bop and "bop" or "counter")
  for _, name in ipairs(options) do
    if name ~= "parts" and name ~= "bop" then more[name] = knobs[name] or false end
  end
  return more
end
function Inertia:settings()
  return inertia.settings(self.knobs, { matrices = #self.model.linears, parts = #self.parts, weights = self.weights })
end

-- Restores what state() and tensors() gave. file: of the tensors.
function Inertia:restore(state, file)
  self:restore_numbers(state)
  for _, each in ipairs(self:tensors()) do checkpoint.fill(each[2], file, each[1]) end
end
function Inertia:restore_numbers(state)
  local z = state.z
  for index = 1, self.knobs.target and #self.parts or 0 do
    if type(z) ~= "table" or type(z[index]) ~= "number" then
      q.error("format", "the checkpoint holds no threshold for each matrix: it is damaged")
    end
    self.z[index] = z[index]
  end
  if type(state.fed) ~= "number" or type(state.recent) ~= "number" then
    q.error("format", "the checkpoint does not say how often counters were fed: it is damaged")
  end
  self.fed, self.recent = state.fed, state.recent
end

-- Ends the learning: frees the counters and leaves the weights as they are.
function Inertia:free()
  for _, part in ipairs(self.parts) do
    q.onebit.stop_learning(part.layer.weight)
    part.state:free()
  end
end

inertia.Inertia = Inertia
return inertia
