-- q.phases: training of a part of a one-bit model at a time; the others are bits without state, frozen. A phase lasts so many steps;
-- then the next part is given counters. It stands where q.inertia does.
--
--   active: weights that learn at once (or count: into how many parts to divide)    steps: of a phase
--   by: layer (whole blocks of layers in turn), rows (the same band of rows of every matrix), or gradient (the matrices with the
--       largest gradients a weight, by those of their row scales, seen at the end of the last phase)
--   keep: counters of parts that rest are kept, otherwise dropped and refilled when their turn comes
--   inertia: options of q.inertia
--
-- begin() returns true where the part changed: a captured program is then of the past. The switch happens at a step's start, and
-- tensors(), state() and restore() carry it over a resume.

local q = require "qeng.core"
local inertia = require "qeng.inertia"

local phases = {}

local Phases = {}
Phases.__index = Phases

local function weights_of(layer)
  local shape = layer.weight:shape()
  return shape[1] * shape[2]
end

-- The layers' parts in turn, none over `active` weights but where a single matrix is.
local function by_layer(model, active)
  local turns, current, held, block = {}, {}, 0, nil
  local blocks, order = {}, {}
  for _, layer in ipairs(model.linears) do
    local name = layer.name:match "layers%.(%d+)%." or layer.name
    if not blocks[name] then
      blocks[name] = { weights = 0 }
      order[#order + 1] = name
    end
    table.insert(blocks[name], layer)
    blocks[name].weights = blocks[name].weights + weights_of(layer)
  end
  local function close()
    if #current > 0 then turns[#turns + 1] = current end
    current, held = {}, 0
  end
  for _, name in ipairs(order) do
    block = blocks[name]
    local divided = block.weights > active  -- a block that is too large is taken matrix by matrix
    if divided or held + block.weights > active then close() end
    for _, layer in ipairs(block) do
      if divided and held + weights_of(layer) > active then close() end
      table.insert(current, { layer = layer, first = 0, rows = layer.weight:shape()[1] })
      held = held + weights_of(layer)
    end
  end
  close()
  return turns
end

local function by_rows(model, count)
  local turns = {}
  for turn = 1, count do
    turns[turn] = {}
    for _, layer in ipairs(model.linears) do
      local rows = layer.weight:shape()[1]
      local first = math.floor(rows * (turn - 1) / count)
      local past = math.floor(rows * turn / count)
      if past > first then table.insert(turns[turn], { layer = layer, first = first, rows = past - first }) end
    end
  end
  return turns
end

function phases.new(model, opt)
  local total = 0
  for _, layer in ipairs(model.linears) do total = total + weights_of(layer) end
  local active = opt.active or opt.count and math.ceil(total / opt.count)
  if not active or active <= 0 then q.error("value", "phases: give active (weights that learn at once) or count (parts)") end
  if not opt.steps or opt.steps < 1 then q.error("value", ("phases: steps is %s, expected the steps of a phase, at least 1"):format(tostring(opt.steps))) end
  local by = opt.by or "layer"
  local self = setmetatable({ model = model, active = active, total = total, steps = opt.steps, by = by, keep = opt.keep or false, knobs = opt.inertia or {},
    kept = {}, turn = 0, phase = -1 }, Phases)
  if by == "layer" then
    self.turns = by_layer(model, active)
  elseif by == "rows" then
    self.turns = by_rows(model, math.max(1, math.ceil(total / active)))
  elseif by ~= "gradient" then
    q.error("value", ("phases: by is %s, expected layer, rows or gradient"):format(tostring(by)))
  end
  return self
end

-- The matrices whose rows' scales have the largest mean squared gradient, within the budget. For random signs the gradient of a
-- row's scale has the squared size of the row's gradient in the mean.
local function largest(self)
  local list = {}
  for _, layer in ipairs(self.model.linears) do
    local grad, sum = layer.row_scale:grad(), 0
    for _, value in ipairs(grad and grad:table() or {}) do sum = sum + value * value end
    list[#list + 1] = { layer = layer, size = sum / weights_of(layer), index = #list }
  end
  table.sort(list, function(a, b)
    if a.size ~= b.size then return a.size > b.size end
    return a.index < b.index
  end)
  local parts, held = {}, 0
  for _, each in ipairs(list) do
    if #parts == 0 or held + weights_of(each.layer) <= self.active then
      parts[#parts + 1] = { layer = each.layer, first = 0, rows = each.layer.weight:shape()[1] }
      held = held + weights_of(each.layer)
    end
  end
  return parts
end

local function switch(self, parts)
  if self.inertia then
    for _, part in ipairs(self.inertia.parts) do
      q.stop_learning(part.layer.weight)
      if self.keep then self.kept[inertia.name_of(part)] = part.state else part.state:free() end
    end
  end
  local fresh = {}
  for i, part in ipairs(parts) do fresh[i] = { layer = part.layer, first = part.first, rows = part.rows, state = self.kept[inertia.name_of(part)] } end
  local knobs = {}
  for name, value in pairs(self.knobs) do knobs[name] = value end
  knobs.parts = fresh
  self.inertia = inertia.new(self.model, knobs)
end

-- step: from 0. Returns whether the part that learns changed.
function Phases:begin(progress, step)
  local phase = math.floor(step / self.steps)
  local changed = phase ~= self.phase
  if changed then
    self.phase = phase
    switch(self, self.by == "gradient" and (self.next or largest(self)) or self.turns[phase % #self.turns + 1])
    self.next = nil
  end
  self.last = (step + 1) % self.steps == 0
  self.inertia:begin(progress)
  return changed
end

-- As Inertia:finish; rates are of the active weights. Before the floats' optimizer clears the gradients of scales, by = gradient
-- looks at them: call observe() between backward and that step.
function Phases:finish(feeds) return self.inertia:finish(feeds) end
function Phases:observe()
  if self.by == "gradient" and self.last then self.next = largest(self) end
end

-- As of Inertia; counters that rest are among the tensors.
function Phases:tensors()
  local list, seen = self.inertia:tensors(), {}
  for _, each in ipairs(list) do seen[each[1]] = true end
  local names = {}
  for name in pairs(self.kept) do names[#names + 1] = name end
  table.sort(names)
  for _, name in ipairs(names) do
    if not seen[name] then list[#list + 1] = { name, self.kept[name] } end
  end
  return list
end
local function described(parts)
  local list = {}
  for i, part in ipairs(parts or {}) do list[i] = { part.layer.name, part.first, part.rows } end
  return q.json.array(list)
end
function Phases:state()
  local kept = {}
  for name, state in pairs(self.kept) do kept[name] = q.json.array(state:shape()) end
  return { phase = self.phase, parts = described(self.inertia.parts), next = self.next and described(self.next) or nil, kept = kept,
    inertia = self.inertia:state() }
end
function Phases:restore(state, file)
  local layers = {}
  for _, layer in ipairs(self.model.linears) do layers[layer.name] = layer end
  local function parts_of(list)
    local parts = {}
    for i, each in ipairs(list) do parts[i] = { layer = layers[each[1]], first = each[2], rows = each[3] } end
    return parts
  end
  for name in pairs(state.kept) do self.kept[name] = file:tensor(name):clone() end
  switch(self, parts_of(state.parts))
  self.phase, self.next = state.phase, state.next and parts_of(state.next)
  self.inertia:restore(state.inertia, file)
end

function Phases:histogram() return self.inertia:histogram() end

function Phases:free()
  self.inertia:free()
  for _, state in pairs(self.kept) do state:free() end
end

phases.Phases = Phases
return phases
