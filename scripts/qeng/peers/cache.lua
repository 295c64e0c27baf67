-- The sequence states of a model whose layers lie in stages (peers/fleet.lua), and the steps that are under way over
-- them.
--
--   local flight = cache:launch(x, what)    -- x: rows that go into the first layer; what: a step (infer/paged.lua)
--   local y = cache:land(flight)            -- rows that come out of the last one
--
-- Several steps may be under way: each stage takes them in the order of their launches, so a step finds the states that
-- the one before it left, whichever sequences that was over.

local kv_types = require "qeng.model.kv_types"
local q = require "qeng.core"
local stages = require "qeng.peers.stage"

local caches = {}
local Cache = {}
Cache.__index = Cache

local first_steps = 12  -- times the fleet's patience: the first steps may read weights from a disk

function caches.new(fleet, shape, pool)
  local spec = kv_types.parse(shape.kv)
  if spec.mean or spec.bases or spec.auto then
    q.error("unsupported", ("kv = %s: what it measures lies in layers that peers have: give a type as tq4"):format(
      shape.kv))
  end
  return setmetatable({ fleet = fleet, shape = shape, pool = pool }, Cache)
end

local function close_stages(self)
  for _, stage in ipairs(self.fleet.stages) do
    local number = stage.opened[self]
    stage.opened[self] = nil
    if number and stage.here then
      stage.here:close(number)
    elseif number and self.fleet.stands(stage) then
      self.fleet:tell(stage.worker, "close", { cache = number })
    end
  end
end

-- Keeps the rows that a stage here gave, in place of those before.
local function hold(flight, y)
  if flight.held then flight.held:free() end
  flight.held = y and q.keep(y) or nil
  flight.x = flight.held
end

-- Frees the frame that a worker gave: the collector does not see how large it is.
local function let_go(flight)
  if flight.frame then flight.frame:free() end
  flight.frame = nil
end

-- Steps that nobody waits for any more.
local function drop_flights(self)
  for _, flight in ipairs(self.flights or {}) do
    local asked = flight.asked
    if asked then self.fleet.pending[asked.request] = nil end
    if asked and asked.answer then asked.answer.frame:free() end
    hold(flight, nil)
    let_go(flight)
  end
end

-- Opens empty states in all stages, in place of those that were open. They have new numbers each time: what is late of
-- earlier ones is known by theirs.
function Cache:open()
  local fleet, shape, asked = self.fleet, self.shape, {}
  close_stages(self)
  drop_flights(self)
  self.steps, self.copies, self.exact, self.flights, self.opened, self.torn = 0, {}, {}, {}, {}, true
  for i, stage in ipairs(fleet.stages) do
    local number = fleet:next_number()
    if stage.worker then
      asked[i] = fleet:post(stage.worker, "open", {
        stage = stage.number, cache = number, kv = shape.kv, pages = shape.pages, page_tokens = shape.page_tokens,
        rows = shape.rows, sequences = shape.sequences, context = shape.context, wire = fleet.wire_name,
        blank = shape.blank,
      })
    else
      stage.here:open(number, shape)
    end
    stage.opened[self] = number
  end
  for _, each in pairs(asked) do fleet:await(each) end
  self.torn = false
end

-- How many steps are worth having under way: one in each stage.
function Cache:depth() return math.max(1, #self.fleet.stages) end

-- Notes pages to copy before the next step.
function Cache:copy(copied, exact)
  for _, page in ipairs(copied or {}) do self.copies[#self.copies + 1] = page end
  for _, page in ipairs(exact or {}) do self.exact[#self.exact + 1] = page end
end

-- ---------------------------------------------------------------- steps

-- Seconds for the answer to a step: the fleet's patience, or ten times what steps of as many rows took.
local function patience_of(self, stage, rows)
  local patience = self.fleet.patience
  if stage.steps < 3 then return first_steps * patience end
  return #self.flights * math.max(patience, 10 * (stage.seconds_a_row or 0) * rows)
end

-- Takes a flight to its next stage: asks a worker, or computes here and goes on.
local function go_on(self, flight)
  local fleet = self.fleet
  while true do
    flight.at = flight.at + 1
    local stage = fleet.stages[flight.at]
    if not stage then return end
    if stage.worker then
      q.scope(function()
        flight.asked = fleet:post(stage.worker, "step", flight.text, nil, {
          epoch = stage.opened[self], position = flight.position, data = flight.frame or fleet.wire:written(flight.x),
        })
      end)
      flight.patience = patience_of(self, stage, flight.rows)
      hold(flight, nil)
      let_go(flight)
      return
    end
    local began = q.time()
    stage.here:step(stage.opened[self], flight.text, function(to)
      if flight.frame then fleet.wire:read(flight.frame, to) else to:copy(flight.x) end
    end, function(y) hold(flight, y:clone()) end)
    let_go(flight)
    stage.steps, stage.computed = stage.steps + 1, (stage.computed or 0) + q.time() - began
  end
end

-- Takes the answer that a flight waits for.
local function take(self, flight, answer)
  local stage, computed = self.fleet.stages[flight.at], tonumber(answer.text) or 0
  flight.frame, flight.asked = answer.frame, nil
  stage.steps, stage.computed = stage.steps + 1, (stage.computed or 0) + computed
  stage.seconds_a_row = math.max((stage.seconds_a_row or 0) * 0.99, computed / flight.rows)
end

-- Refuses what a stage may have no states for any more.
local function check(self)
  if self.torn then error({ code = "peer", message = "a step over peers was cut short" }, 0) end
end

-- Sends a step on its way.
function Cache:launch(x, what)
  check(self)
  self.torn = true
  local ranges = {}
  for _, range in ipairs(what.ranges) do
    local number = range.adapter and self.fleet:send_adapter(range.adapter) or range.adapter == false and 1 or 0
    for _, value in ipairs { number, range.first, range.count } do ranges[#ranges + 1] = value end
  end
  local flight = {
    at = 0, opened = self.opened, position = self.steps, rows = what.shape.rows, shape = x:shape(), x = x,
    text = self.pool:pack(what.ids, what.counts, {
      most = what.shape.most, ranges = ranges, copies = self.copies, exact_copies = self.exact,
    }),
  }
  self.steps, self.copies, self.exact = self.steps + 1, {}, {}
  table.insert(self.flights, flight)
  go_on(self, flight)
  self.torn = false
  return flight
end

-- The rows that come out of the last layer, once they are here. The others go on meanwhile.
function Cache:land(flight)
  local fleet = self.fleet
  check(self)
  if flight.opened ~= self.opened then q.error("value", "this step began over states that are closed") end
  while flight.asked do
    if not flight.asked.answer and not flight.asked.failed then
      fleet:pump(fleet:left(flight.asked, flight.patience))
    end
    for _, each in ipairs(self.flights) do
      local asked = each.asked
      if asked and (asked.answer or asked.failed or fleet:left(asked, each.patience) <= 0) then
        self.torn = true
        take(self, each, fleet:await(asked, each.patience))
        go_on(self, each)
        self.torn = false
      end
    end
  end
  for i, each in ipairs(self.flights) do
    if each == flight then table.remove(self.flights, i) end
  end
  local y = q.empty(flight.shape, stages.dtype(fleet.model))
  if flight.frame then fleet.wire:read(flight.frame, y) else y:copy(flight.x) end
  hold(flight, nil)
  let_go(flight)
  return y
end

function Cache:close()
  self.fleet.caches[self] = nil
  close_stages(self)
end

return caches
