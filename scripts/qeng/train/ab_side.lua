-- A side of a comparison (train/ab_settings.lua): its settings, and a run of q.train's pieces that takes single steps.
-- It has a runtime of its own: threads, programs, accounts. A setting is an option of the set "settings": those of
-- q.finetune that a step depends on, and these:
--   pad      each document in a row of its own instead of packed rows (train/padded.lua)
--   head     fused, or logits: the loss from the logits of all tokens, by tensor algebra
--   kernels  fused, or algebra: norms and SwiGLU by tensor algebra
-- The loss is that of the tokens; none balances experts.

local feed = require "qeng.train.feed"
local mode = require "qeng.train.mode"
local models = require "qeng.model"
local optimizers = require "qeng.train.optimizers"
local options = require "qeng.console.options"
local padded = require "qeng.train.padded"
local pass = require "qeng.train.pass"
local q = require "qeng.core"
local ranks = require "qeng.train.ranks"
local route = require "qeng.train.route"
require "qeng.train.finetune"  -- declares its options

local ab_side = {}

-- ---------------------------------------------------------------- settings

local function words(text)
  local set = {}
  for word in text:gmatch "%S+" do set[word], set[#set + 1] = true, word end
  return set
end

-- What a comparison takes of the set "finetune", by what a difference in it does: the same computation in another way;
-- other documents in a step; another way to learn. The seed is of both sides.
local same = words "dtype recompute eager device threads device_budget weights host_budget stream_keep"
ab_side.documents = words "row_tokens long rows accumulate drop"
ab_side.learning = words [[mode rank alpha rslora dropout targets dora neftune optim moment_bits gradients lr schedule
  warmup decay clip]]

local entries = {}
for _, entry in ipairs(options.entries "finetune") do
  local name = entry[1]
  if same[name] or ab_side.documents[name] or ab_side.learning[name] or name == "seed" then
    entries[#entries + 1] = entry
  end
end
entries[#entries + 1] = { "pad", false, "each document in a row of its own, padded to the longest, instead of packed" }
entries[#entries + 1] = { "head", "fused", "the loss fused with the head, or from all logits at once",
  choices = { "fused", "logits" } }
entries[#entries + 1] = { "kernels", "fused", "norms and SwiGLU as kernels, or as tensor algebra",
  choices = { "fused", "algebra" } }
options.set("settings", entries)

-- The option that NAME=VALUE names, and the value.
local function one_setting(known, part)
  local name, value = part:match "^%s*([%w_-]+)%s*=%s*(.-)%s*$"
  name = name or part
  local entry = known[(name:gsub("-", "_"))]
  if not entry then
    local near = options.nearest(name, known)
    q.error("usage", ("%s: no setting of a training step; %s"):format(name, #near > 0 and "did you mean " ..
      table.concat(near, " or ") .. "?" or "they are " .. table.concat(known, ", ")))
  end
  if not value then q.error("usage", ("%s: expected NAME=VALUE"):format(part)) end
  if name == "seed" then q.error("usage", "seed is of both sides: give --seed") end
  if type(entry[2]) ~= "boolean" then return entry, options.convert(entry, value) end
  if value ~= "true" and value ~= "false" then q.error("usage", ("%s: true or false, not %s"):format(name, value)) end
  return entry, value == "true"
end

-- The settings of a side: those of both, and NAME=VALUE,... of its own. A part without = belongs to the list before it.
function ab_side.parse(given, text)
  local opt, known, parts = {}, {}, {}
  for _, entry in ipairs(options.entries "settings") do
    known[entry[1]], known[#known + 1] = entry, entry[1]
    opt[entry[1]] = given[entry[1]]
    if opt[entry[1]] == nil then opt[entry[1]] = entry[2] end
  end
  for part in text:gmatch "[^,]+" do
    if part:find "=" or #parts == 0 then parts[#parts + 1] = part else parts[#parts] = parts[#parts] .. "," .. part end
  end
  for _, part in ipairs(parts) do
    local entry, value = one_setting(known, part)
    opt[entry[1]] = value
  end
  return opt
end

-- ---------------------------------------------------------------- kernels

local algebra = {}
function algebra.rmsnorm(x, w, eps, plus_one)
  local y = x:to "f32"
  return (y * (y:square():mean(-1, true) + eps):rsqrt() * (plus_one and w + 1 or w)):to(x:dtype())
end
function algebra.add_rmsnorm(a, b, w, eps, plus_one)
  local sum = a + b
  return sum, algebra.rmsnorm(sum, w, eps, plus_one)
end
function algebra.swiglu(gate, up, opt)
  return ((opt and opt.gelu and gate:gelu() or gate:silu()) * up):to(gate:dtype())
end

-- fn(...) with these functions in place of those of q.
local function with(functions, fn, ...)
  local own = {}
  for name, other in pairs(functions) do own[name], q[name] = q[name], other end
  local results = { pcall(fn, ...) }
  for name, before in pairs(own) do q[name] = before end
  if not results[1] then error(results[2], 0) end
  return unpack(results, 2)
end

-- fn(...) on the side's runtime and by its kernels.
local function on(self, fn, ...)
  return self.runtime:use(with, self.opt.kernels == "algebra" and algebra or {}, fn, ...)
end

-- ---------------------------------------------------------------- sides

local Side = {}
Side.__index = Side

-- A side of which only the documents of its steps are known yet. given: of ab_settings.compare. text: its own settings.
function ab_side.new(given, text)
  local opt = ab_side.parse(given, text)
  local self = setmetatable({ given = given, opt = opt, text = text == "" and "default" or text, losses = {},
    norms = {}, seconds = {}, tokens = {}, slots = {} }, Side)
  self.fields = { data = given.data, row_tokens = opt.row_tokens, rows = opt.rows, accumulate = opt.accumulate,
    seed = opt.seed, eval_share = 0, pad = given.pad_token or 0, long = opt.long, drop = opt.drop, eager = opt.eager,
    optim = opt.optim, moment_bits = opt.moment_bits, lr = opt.lr, schedule = opt.schedule, warmup = opt.warmup,
    decay = opt.decay, clip = opt.clip }
  self.documents = feed.documents(self.fields, given.steps)
  return self
end

local function loss_of_logits(model, batch, length)
  return q.losses.cross_entropy(model:packed_logits(batch, length), batch.targets, { sum = true }) * batch.scale
end

local function loaded(self)
  local opt, given = self.opt, self.given
  local model = models.load(given.model, { model_file = given.model_file, dtype = opt.dtype,
    writable = opt.mode == "full", weights = opt.weights, host_budget = opt.host_budget,
    stream_keep = opt.stream_keep })
  model.recompute, model.router_aux_loss = opt.recompute, 0
  if opt.head == "logits" then model.loss = loss_of_logits end
  opt.adapter, opt.rank_pattern, opt.alpha_pattern = "", {}, {}
  mode.set(model, opt)
  model.neftune = opt.neftune > 0 and opt.neftune or nil
  model:check_length(opt.row_tokens)
  return model
end

local function begin(self)
  local fields = self.fields
  self.model = loaded(self)
  self.parameters = self.model:trainable()
  q.seed(self.opt.seed)
  self.feed = feed.new(fields)
  local routing = route.plan(self.model, self.feed.batches:plan().destinations)
  if self.opt.pad then
    self.feed = padded.new(self.feed, self.documents)
    self.fields = setmetatable({ row_tokens = self.feed.row_tokens, rows = self.feed.rows,
      accumulate = self.feed.most }, { __index = fields })
  end
  local run = { opt = self.fields, model = self.model, parameters = self.parameters, total = self.given.steps, turn = 0,
    feed = self.feed, ranks = ranks.alone }
  self.optimizer, self.passes = optimizers.new(run, routing), pass.new(run, routing)
end

-- Loads the model. It raises what q.train would.
function Side:begin()
  local opt = self.opt
  self.runtime = q.runtime { device = opt.device, threads = opt.threads, budget = opt.device_budget }
  on(self, begin, self)
end

-- A step of which no token is trained changes nothing.
local function step(self, number)
  self.feed:take(number - 1, number < self.given.steps)
  self.losses[number], self.norms[number], self.seconds[number] = 0, 0, 0
  if self.feed.sums.trained > 0 then
    if self.opt.pad then self.passes.losses:fill(0) end  -- not every step fills all its micro-batches
    self.feed:load(1)
    local began = q.time()
    self.passes:compute(self.feed)
    local update = self.optimizer:step { clip = self.opt.clip, groups = self.passes:groups() }
    self.losses[number] = self.passes:loss()
    self.seconds[number], self.norms[number] = q.time() - began, update.grad_norm
  end
  self.tokens[number] = self.feed.sums.real
  self.slots[number] = #self.feed.infos * self.fields.rows * self.fields.row_tokens
end

function Side:step(number) on(self, step, self, number) end

-- The largest difference from the trained tensors of another side, |a - b| / |a| in Euclidean norms, and whether all
-- are equal to the bit.
local function apart(self, other)
  local worst, equal = 0, true
  for i, parameter in ipairs(self.parameters) do
    local mine, theirs = parameter.tensor, other.parameters[i].tensor
    local copy = q.zeros(theirs:shape(), theirs:dtype()):copy(theirs)
    if mine:dtype() ~= copy:dtype() or mine:hash() ~= copy:hash() then
      local a, b = copy:to "f32", mine:to "f32"
      equal, worst = false, math.max(worst, (a - b):norm():item() / math.max(a:norm():item(), 1e-30))
    end
  end
  return worst, equal
end

function Side:apart(other) return on(self, q.no_grad, q.scope, apart, self, other) end

-- Peak bytes by account.
function Side:memory()
  local peaks = {}
  for name, account in pairs(self.runtime:use(q.memory)) do peaks[name] = account.peak end
  return peaks
end

function Side:finish()
  self.passes:forget()
  self.runtime:free()
end

return ab_side
