-- q.phases: trains a part of a one-bit model at a time. The other weights are bits without state, frozen. A phase lasts
-- so many steps; then the next part gets counters. It stands where q.inertia does.
--
--   active   the most weights that learn at once; or count: into how many parts to divide
--   steps    of a phase
--   by       layer     whole blocks in turn, or the matrices of a block that is larger than that
--            rows      the same band of rows of every matrix
--            gradient  the matrices with the largest gradients a weight. The gradients of their row scales tell, which
--                      observe() saw in the last step of the phase before. The first phase takes the first matrices;
--                      some may never learn
--   keep     counters of parts that rest are kept; otherwise they are dropped, and refilled when their turn comes. A
--            part that goes on keeps its own
--   inertia  options of q.inertia
--
-- begin() returns true where the part changed: a program captured before is then out of date. The part changes at the
-- start of a step. tensors(), state() and restore() carry the phases over a resume.

local q = require "qeng.core"
local inertia = require "qeng.onebit.inertia"
local onebit = require "qeng.onebit"

local phases = {}

local Phases = {}
Phases.__index = Phases

local function weights_of(layers)
  local sum = 0
  for _, layer in ipairs(layers) do sum = sum + layer.weight:elements() end
  return sum
end

local function whole(layer) return { layer = layer, first = 0, rows = layer.weight:shape()[1] } end

-- Turns of at most `active` weights: as many blocks as that holds. A block that is larger is divided into its matrices.
local function by_layer(model, active)
  local turns, current, held = {}, {}, 0
  local function close()
    if #current > 0 then turns[#turns + 1] = current end
    current, held = {}, 0
  end
  for _, block in ipairs(onebit.blocks(model)) do
    local divided = weights_of(block) > active
    if divided or held + weights_of(block) > active then close() end
    for _, layer in ipairs(block) do
      if divided and held + layer.weight:elements() > active then close() end
      table.insert(current, whole(layer))
      held = held + layer.weight:elements()
    end
  end
  close()
  return turns
end

-- `count` turns of neighbouring blocks, as equal as blocks allow. Where there are fewer blocks: of neighbouring
-- matrices.
local function in_turns(model, count)
  local pieces = onebit.blocks(model)
  if #pieces < count then
    pieces = {}
    for i, layer in ipairs(model.linears) do pieces[i] = { layer } end
  end
  local turns = {}
  for i, piece in ipairs(pieces) do
    local turn = math.floor((i - 1) * count / #pieces) + 1
    turns[turn] = turns[turn] or {}
    for _, layer in ipairs(piece) do table.insert(turns[turn], whole(layer)) end
  end
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

-- The most weights of one of `count` bands of rows.
local function widest(model, count)
  local sum = 0
  for _, layer in ipairs(model.linears) do
    local shape = layer.weight:shape()
    sum = sum + math.max(1, math.ceil(shape[1] / count)) * shape[2]
  end
  return sum
end

-- The fewest bands of rows that have at most `active` weights each.
local function bands(model, active, total)
  local count = math.ceil(total / active)
  while widest(model, count) > active do count = count + 1 end
  return count
end

-- The least that a turn holds: a matrix, or for bands of rows, one row of each matrix.
local function check_active(model, by, active)
  local least = by == "rows" and widest(model, math.huge) or 0
  for _, layer in ipairs(by == "rows" and {} or model.linears) do least = math.max(least, layer.weight:elements()) end
  if not (active >= least) then
    q.error("value", ("phases: active is %.0f; by = %s needs %.0f at least, %s"):format(active, by, least,
      by == "rows" and "a row of each matrix" or "the weights of the largest matrix (by = rows divides matrices)"))
  end
end

function phases.new(model, opt)
  local total, by, count = onebit.weights(model), opt.by or "layer", opt.count
  if by ~= "layer" and by ~= "rows" and by ~= "gradient" then
    q.error("value", ("phases: by is %s, expected layer, rows or gradient"):format(tostring(by)))
  end
  local most = #model.linears
  if by == "rows" then
    most = 1
    for _, layer in ipairs(model.linears) do most = math.max(most, layer.weight:shape()[1]) end
  end
  if not opt.active and (type(count) ~= "number" or not (count >= 1 and count <= most) or count % 1 ~= 0) then
    q.error("value",
      ("phases: give active (weights that learn at once), or count, the number of parts, from 1 to %d (%s)"):format(
        most,
        by == "rows" and "rows of the largest matrix" or "matrices"))
  end
  if opt.active and type(opt.active) ~= "number" then
    q.error("value", ("phases: active is %s, expected a number of weights"):format(tostring(opt.active)))
  end
  local active = opt.active or math.ceil(total / count)
  if opt.active then check_active(model, by, active) end
  if type(opt.steps) ~= "number" or not (opt.steps >= 1) or opt.steps % 1 ~= 0 then
    q.error("value", ("phases: steps is %s, expected the steps of a phase, a whole number from 1"):format(
      tostring(opt.steps)))
  end
  local self = setmetatable({ model = model, active = active, total = total, steps = opt.steps, by = by,
    keep = opt.keep or false, knobs = opt.inertia or {},
    kept = {}, turn = 0, phase = -1 }, Phases)
  if by == "layer" then
    self.turns = opt.active and by_layer(model, active) or in_turns(model, count)
  elseif by == "rows" then
    self.turns = by_rows(model, opt.active and bands(model, active, total) or count)
  end
  return self
end

-- The matrices whose row scales have the largest mean squared gradient, within the budget. With random signs, the
-- gradient of a row scale has the mean squared size of the row's gradient.
local function largest(self)
  local list = {}
  for _, layer in ipairs(self.model.linears) do
    local grad, sum = layer.row_scale:grad(), 0
    for _, value in ipairs(grad and grad:table() or {}) do sum = sum + value * value end
    list[#list + 1] = { layer = layer, size = sum / layer.weight:elements(), index = #list }
  end
  table.sort(list, function(a, b)
    if a.size ~= b.size then return a.size > b.size end
    return a.index < b.index
  end)
  local parts, held = {}, 0
  for _, each in ipairs(list) do
    if #parts == 0 or held + each.layer.weight:elements() <= self.active then
      parts[#parts + 1] = whole(each.layer)
      held = held + each.layer.weight:elements()
    end
  end
  return parts
end

local function same(parts, others)
  for i = 1, math.max(#parts, #others) do
    local a, b = parts[i], others[i]
    if not (a and b and a.layer == b.layer and a.first == b.first and a.rows == b.rows) then return false end
  end
  return true
end

local function switch(self, parts)
  local goes_on, states, thresholds = {}, {}, {}
  for _, part in ipairs(parts) do goes_on[inertia.name_of(part)] = true end
  for name, state in pairs(self.kept) do states[name] = state end
  for i, part in ipairs(self.inertia and self.inertia.parts or {}) do
    local name = inertia.name_of(part)
    thresholds[name] = self.inertia.z[i]
    q.onebit.stop_learning(part.layer.weight)
    if self.keep then self.kept[name] = part.state end
    if self.keep or goes_on[name] then states[name] = part.state else part.state:free() end
  end
  local fresh = {}
  for i, part in ipairs(parts) do
    fresh[i] = { layer = part.layer, first = part.first, rows = part.rows, state = states[inertia.name_of(part)] }
  end
  local knobs = {}
  for name, value in pairs(self.knobs) do knobs[name] = value end
  knobs.parts = fresh
  self.inertia = inertia.new(self.model, knobs)
  for i, part in ipairs(parts) do self.inertia.z[i] = thresholds[inertia.name_of(part)] or self.inertia.z[i] end
end

-- step: from 0. Returns whether another part learns now.
function Phases:begin(progress, step)
  local phase = math.floor(step / self.steps)
  local changed = false
  if phase ~= self.phase then
    local parts = self.turns and self.turns[phase % #self.turns + 1] or self.next or not self.inertia and largest(self)
    if not parts then
      q.error("value", "phases: by = gradient saw no gradients: call observe() between backward and the floats' step")
    end
    changed = not (self.inertia and same(parts, self.inertia.parts))
    if changed then switch(self, parts) end
    self.phase, self.next = phase, nil
  end
  self.last = (step + 1) % self.steps == 0
  self.inertia:begin(progress)
  return changed
end

-- As Inertia:finish; the rates are of the active weights. The floats' optimizer clears the gradients of scales, which
-- by = gradient needs: call observe() between the backward pass and that step.
function Phases:finish(feeds) return self.inertia:finish(feeds) end
function Phases:observe()
  if self.by == "gradient" and self.last then self.next = largest(self) end
end

-- As Inertia. Counters that rest are among the tensors.
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
  return { phase = self.phase, parts = described(self.inertia.parts), next = self.next and described(self.next) or nil,
    kept = kept,
    inertia = self.inertia:state() }
end
-- What has to be the same in a resumed run.
function Phases:settings()
  return inertia.settings(inertia.knobs(self.knobs),
    { rule = "phases of ", by = self.by, active = self.active, phase_steps = self.steps, keep = self.keep,
      matrices = #self.model.linears, weights = self.total })
end
function Phases:restore(state, file)
  local layers = {}
  for _, layer in ipairs(self.model.linears) do layers[layer.name] = layer end
  local function expect(good)
    if not good then
      q.error("format", "the checkpoint's phases are not of this model: it is damaged, or of another run")
    end
  end
  local function parts_of(list)
    local parts, seen = {}, {}
    expect(type(list) == "table" and #list > 0)
    for i, each in ipairs(list) do
      local layer = type(each) == "table" and layers[each[1]]
      expect(layer and not seen[layer])
      seen[layer], parts[i] = true, { layer = layer, first = each[2], rows = each[3] }
      expect(self.turns or same({ parts[i] }, { whole(layer) }))
    end
    return parts
  end
  expect(type(state.phase) == "number" and state.phase >= 0 and state.phase % 1 == 0 and type(state.kept) == "table" and
    type(state.inertia) == "table")
  local parts, next_parts = parts_of(state.parts), state.next and parts_of(state.next)
  expect(not self.turns or same(parts, self.turns[state.phase % #self.turns + 1]) and not next_parts)

  -- Counters that rest are those of every turn so far. Which matrices had the largest gradients is not known any more.
  local resting, expected = {}, {}
  for turn, list in ipairs(self.turns or { self.model.linears }) do
    for _, each in ipairs(list) do
      local part = self.turns and each or whole(each)
      local name = inertia.name_of(part)
      resting[name], expected[name] = part, self.keep and self.turns ~= nil and #self.turns > 1 and turn <= state.phase
    end
  end
  local knobs = inertia.knobs(self.knobs)
  for name in pairs(state.kept) do
    expect(self.keep and resting[name] and file:info(name))
    local kept = file:tensor(name):clone()
    expect(inertia.fits(kept, knobs, resting[name]))
    self.kept[name] = kept
  end
  for name, was in pairs(expected) do expect(not was or self.kept[name]) end
  switch(self, parts)
  self.phase, self.next = state.phase, next_parts
  self.inertia:restore(state.inertia, file)
end

-- As Inertia:histogram, with the counters that rest.
function Phases:histogram()
  local total, active = self.inertia:histogram(), {}
  for _, part in ipairs(self.inertia.parts) do active[inertia.name_of(part)] = true end
  for name, state in pairs(self.kept) do
    for level, count in ipairs(active[name] and {} or q.onebit.count_levels(state)) do
      total[level] = (total[level] or 0) + count
    end
  end
  return total
end

function Phases:free()
  self.inertia:free()
  for _, state in pairs(self.kept) do state:free() end
end

phases.Phases = Phases
return phases
