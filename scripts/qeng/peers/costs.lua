-- What each layer of a model holds and does in a step, for assign.lua. There are no formulas: as in q.plan, the model
-- is built and runs steps on a device that computes nothing (q.rehearsal.run), and what passes its layers is watched.
--
--   local cost = costs.of(make, { context = 4096, batch = 8, kv = "f16" })
--   local found = assign.plan(costs.given(cost, cost.steps.batch, peers))
--
-- make() builds the model in the rehearsal. shape: context (tokens of a sequence, 4096, as far as the model's positions
-- go), batch (sequences, 1), in_flight (equal groups of them whose steps are under way at once, 1), chunk (tokens of a
-- piece of a prompt, 256), kv (model/kv_types.lua; the model's dtype).
--
-- costs.of returns
--   layers      {bytes = weights as they are stored, state_bytes = of all the sequences}, one for each layer
--   ends        {bytes =} of all other weights: embedding, last norm, head
--   activation_bytes   of a row from layer to layer
--   slack       bytes of a machine beside these: activations of the largest step, tables, and 64 MiB for what kernels
--               and libraries take for themselves
--   steps       one: a token of one sequence, the last of its context. batch: of each sequence of a group. prompt: a
--               piece of a prompt in the middle of a context, where a piece costs as much as pieces do on average.
--               Each {rows =, in_flight =, layers and ends = {moved = bytes in memory, flops =}}
--   parameters, dtype, kv, context, batch, chunk

local hooks = require "qeng.model.hooks"
local kv_types = require "qeng.model.kv_types"
local paged = require "qeng.infer.paged"
local part_names = require "qeng.model.names"
local progress = require "qeng.console.progress"
local q = require "qeng.core"
local speculate = require "qeng.infer.speculate"

local costs = {}

local most_read = 2 ^ 22     -- tokens of all sequences: a list of them is made
local scratch = 64 * 2 ^ 20  -- of a machine; largest are oneDNN's and cuBLAS's workspaces

-- ---------------------------------------------------------------- steps

-- Calls fn(turn) while turn.layer is the layer, from 0, that the model computes, and see(layer) at its end. Before the
-- first and behind the last layer turn.layer is nil, and see(nil) has what was there.
local function watching(model, turn, see, fn)
  local places, layers = { "embed" }, model.config.layers
  for i = 0, layers - 1 do places[i + 2] = "layers." .. i end
  hooks.watching(model, places, function()
    see(turn.layer)
    local next = (turn.layer or -1) + 1
    turn.layer = next < layers and next or nil
  end, fn)
  see(nil)
end

-- Notes in layer_of[i] the layer whose mixer asks for state i, when a step runs.
local function watch_states(states, turn, layer_of)
  for i, state in pairs(states) do
    states[i] = setmetatable({}, {
      __index = function(_, name)
        layer_of[i] = turn.layer or layer_of[i]
        return state[name]
      end,
      __newindex = state,
    })
  end
end

-- Runs a step over parts (infer/paged.lua), of each of which the logits of the last row are wanted. Returns its rows.
local function run(runner, parts)
  local wanted, rows = {}, 0
  for i, part in ipairs(parts) do
    rows = rows + part.count
    wanted[i] = rows - 1
  end
  runner:run(parts, wanted, function() end)
  return rows
end

-- What a step over parts moves and computes.
local function step_of(runner, turn, parts, in_flight)
  local step, before = { in_flight = in_flight, layers = {}, ends = { moved = 0, flops = 0 } }, nil
  local function see(layer)
    local now = q.rehearsal.cost()
    local part = layer and { moved = 0, flops = 0 } or step.ends
    part.moved = part.moved + now.bytes - before.bytes
    part.flops = part.flops + now.flops_f32 + now.flops_bf16 - before.flops_f32 - before.flops_bf16
    if layer then step.layers[layer + 1] = part end
    before = now
  end
  before = q.rehearsal.cost()
  watching(runner.model, turn, see, function() step.rows = run(runner, parts) end)
  return step
end

-- Sequences of so many tokens, as parts of a step that runs the last `count` of each. They grow as if steps had run
-- them: of exact rows (model/kv_types.lua) there is room for those that steps need.
local function opened(runner, sequences, tokens, count)
  local ids, parts = {}, {}
  for i = 1, tokens do ids[i] = 0 end
  for i = 1, sequences do
    local id = runner.pool:open(0)
    for first = 1, tokens, runner.rows do
      if not runner:extend(id, ids, first, math.min(first + runner.rows - 1, tokens)) then
        q.error("memory", ("costs: %d pages do not hold %d sequences"):format(runner.pool:stats().pages, sequences))
      end
      runner.pool:commit(id)
    end
    parts[i] = { id = id, count = count }
  end
  return parts
end

local function closed(runner, parts)
  for _, part in ipairs(parts) do runner.pool:close(part.id) end
end

-- ---------------------------------------------------------------- memory

-- Adds the weights to their layers, or to the ends.
local function add_weights(model, found)
  for _, parameter in ipairs(model.parameters) do
    local layer = part_names.plain(model.arch, parameter.name):match "layers%.(%d+)%."
    local part = layer and found.layers[layer + 1] or found.ends
    part.bytes = part.bytes + parameter.tensor:bytes()
    found.parameters = found.parameters + parameter.tensor:elements()
  end
end

-- And the states of all sequences. Returns their bytes.
local function add_states(states, layer_of, found)
  local total = 0
  for i, state in pairs(states) do
    local part = found.layers[layer_of[i] + 1]
    for _, stored in ipairs(state:stored()) do
      part.state_bytes, total = part.state_bytes + stored[1]:bytes(), total + stored[1]:bytes()
    end
  end
  return total
end

-- ---------------------------------------------------------------- costs.of

local function rehearse(model, shape)
  local c = model.config
  local context, batch, groups = math.min(shape.context or 4096, c.max_position), shape.batch or 1, shape.in_flight or 1
  local chunk, group = math.min(shape.chunk or 256, context), batch / groups
  if group % 1 ~= 0 then
    q.error("value", ("costs: %d sequences in %d groups: expected as many in each"):format(batch, groups))
  end
  if batch * context > most_read then
    q.error("value", ("costs: batch x context is %.0f tokens, expected %d at most: plan fewer sequences, whose cache "
      .. "is as much each"):format(batch * context, most_read))
  end
  local runner = paged.new(model, {
    kv = kv_types.unmeasured(shape.kv), pages = batch * paged.pages(model, context), sequences = batch,
    rows = chunk + batch * (speculate.most + 1),  -- as infer/engine.lua has it
    context = context, remember = false,
  })
  local found = {
    layers = {}, ends = { bytes = 0 }, parameters = 0, dtype = model.dtype, kv = runner.kv,
    context = context, batch = batch, chunk = chunk,
    activation_bytes = c.hidden * ((c.f32_residual or model.dtype == "f32") and 4 or 2),
  }
  for i = 1, c.layers do found.layers[i] = { bytes = 0, state_bytes = 0 } end
  local turn, layer_of, running = {}, {}, 0
  watch_states(runner.pool.states, turn, layer_of)
  local function over(sequences, tokens, count, fn)
    local parts = opened(runner, sequences, tokens, count)
    local result = fn(runner, parts)
    closed(runner, parts)
    return result
  end
  -- What steps hold is counted before anything watches: then what each layer gives stays.
  over(1, chunk, chunk, run)
  over(group, 1, 1, run)
  for name, account in pairs(q.memory()) do
    if name ~= "weights" then running = running + account.peak end
  end
  local function watched(sequences, tokens, count, in_flight)
    return over(sequences, tokens, count, function(_, parts) return step_of(runner, turn, parts, in_flight) end)
  end
  found.steps = {
    one = watched(1, context, 1, 1), batch = watched(group, context, 1, groups),
    prompt = watched(1, math.ceil((context + chunk) / 2), chunk, 1),
  }
  add_weights(model, found)
  found.slack = scratch + running - add_states(runner.pool.states, layer_of, found)
  return found
end

function costs.of(make, shape)
  local silent = progress.silent
  progress.silent = true
  local ok, result = pcall(q.rehearsal.run, function() return rehearse(make(), shape or {}) end)
  progress.silent = silent
  if not ok then error(result, 0) end
  return result
end

-- What assign.plan and assign.time take, of a step on peers. measured: {[peer's name] = {seconds of each layer in this
-- step}}, in the place of what bandwidth and flops say. opt: policy.
function costs.given(cost, step, peers, measured, opt)
  local given = {
    layers = {}, peers = peers, activation_bytes = cost.activation_bytes, rows = step.rows, in_flight = step.in_flight,
    slack = cost.slack, policy = opt and opt.policy,
    ends = { bytes = cost.ends.bytes, moved = step.ends.moved, flops = step.ends.flops },
  }
  for i, layer in ipairs(cost.layers) do
    local seconds = {}
    for name, list in pairs(measured or {}) do seconds[name] = list[i] end
    given.layers[i] = {
      bytes = layer.bytes, state_bytes = layer.state_bytes, moved = step.layers[i].moved, flops = step.layers[i].flops,
      seconds = seconds,
    }
  end
  return given
end

return costs
