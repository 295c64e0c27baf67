-- The best split of a model's layers into ranges, by dynamic programming. It is over whole numbers, so that equal times
-- compare as equal. assign.lua makes the problem of what it is given, and says what a step is.
--
-- A problem, with times in ticks and sums up to layer l at [l], from [0] = 0:
--   layers    how many there are
--   bytes     sums of what layers take
--   groups    groups of requests in flight
--   own       the coordinator: fixed = ticks of the ends, room = bytes for layers, time = sums
--   workers   likewise; fixed = ticks of the two hops, link = ticks that one hop keeps the link busy
-- The coordinator has the first layers or none, and each worker that is used has one range behind. So a split is
-- {own = layers, {worker, layers}, ...}.
--
-- The value of a split is max(L, groups * B): L is the time of one step from end to end, B the longest that it keeps
-- one machine or link busy. Below a limit for B the least L is a sum over ranges, which dynamic programming finds. L
-- falls as the limit rises. So bisection over all times that something can be busy finds the least value. With one
-- group B is never more than L, and nothing is bisected.

local search = {}

local most_devices = 256  -- a cost is ticks times this plus devices: of equal times the fewer devices

-- ---------------------------------------------------------------- what is searched

-- States of what may still be used, each after those that it leads to. A state: moves = {{worker, state that is left}},
-- skip (it may leave its worker out), size (the workers that it has to use), includes(worker).
-- starts: the states to begin with; of equals the first.

-- All sets of workers, in any order. A set is the number with worker i's bit at 2^(count - i): of sets of one size the
-- larger has the earlier workers.
local function subsets(count)
  local space = { states = {}, starts = {}, cache = {} }
  for set = 0, 2 ^ count - 1 do
    local state = { moves = {}, size = 0 }
    for worker = 1, count do
      local bit = 2 ^ (count - worker)
      if math.floor(set / bit) % 2 == 1 then
        state.moves[state.size + 1], state.size = { worker, set - bit }, state.size + 1
      end
    end
    function state.includes(worker) return math.floor(set / 2 ^ (count - worker)) % 2 == 1 end
    space.states[set], space.starts[2 ^ count - set] = state, set
  end
  return space
end

-- The workers of a list in its order, each used or left out; `must` is used.
local function in_order(list, must)
  local space = { states = { [0] = { moves = {}, size = 0 } }, starts = { #list }, cache = {} }
  for left = 1, #list do
    local worker = list[#list + 1 - left]
    space.states[left] = {
      moves = { { worker, left - 1 } }, skip = worker ~= must, size = 0, includes = function() return true end,
    }
  end
  return space
end

-- ---------------------------------------------------------------- the least time below a limit

-- The layer up to which a machine can go on from each layer, by memory and by time.
local function reaches(problem, machine, limit)
  local reach, bytes, time, to = {}, problem.bytes, machine.time, 0
  for from = 0, problem.layers do
    to = math.max(to, from)
    while to < problem.layers and bytes[to + 1] - bytes[from] <= machine.room
      and time[to + 1] - time[from] <= limit do to = to + 1 end
    reach[from] = to
  end
  return reach
end

-- costs[state][l]: the least cost of layers l .. by the workers of a state.
local function costs_of(problem, states, limit)
  local n, costs, reach = problem.layers, {}, {}
  for i, worker in ipairs(problem.workers) do reach[i] = worker.link <= limit and reaches(problem, worker, limit) end
  costs[0] = {}
  for l = 0, n do costs[0][l] = l == n and 0 or math.huge end
  for s = 1, #states do
    local state, row = states[s], {}
    for l = 0, n do row[l] = state.skip and costs[s - 1][l] or math.huge end
    for _, move in ipairs(state.moves) do
      local worker, rest = problem.workers[move[1]], costs[move[2]]
      local time, ends = worker.time, reach[move[1]]
      for l = 0, ends and n - 1 or -1 do
        local least, base = math.huge, most_devices * (worker.fixed - time[l]) + 1
        for to = l + 1, ends[l] do
          local cost = most_devices * time[to] + rest[to]
          if cost < least then least = cost end
        end
        if least + base < row[l] then row[l] = least + base end
      end
    end
    costs[s] = row
  end
  return costs, reach
end

-- The least cost from each start, in their order: {{state =, own =, cost =}...}, of equals most layers here.
local function answers(problem, space, limit)
  if space.cache[limit] then return space.cache[limit] end
  local costs, own, list = costs_of(problem, space.states, limit), problem.own, {}
  local reach = reaches(problem, own, limit - own.fixed)[0]
  for i, state in ipairs(space.starts) do
    local best = { state = state, own = 0, cost = math.huge }
    for count = own.fixed <= limit and own.room >= 0 and reach or -1, 0, -1 do
      local cost = most_devices * (own.fixed + own.time[count]) + costs[state][count]
      if cost < best.cost then best.own, best.cost = count, cost end
    end
    list[i] = best
  end
  space.cache[limit] = list
  return list
end

local function ticks(cost) return math.floor(cost / most_devices) end

-- The least L below a limit, with `must` among the workers (nil: with any).
local function least_time(problem, space, limit, must)
  local least = math.huge
  for _, each in ipairs(answers(problem, space, limit)) do
    if not must or space.states[each.state].includes(must) then least = math.min(least, each.cost) end
  end
  return ticks(least)
end

-- ---------------------------------------------------------------- the least value

-- All times that something can be busy, ascending.
local function limits_of(problem)
  if problem.limits then return problem.limits end
  local known, list, n = {}, {}, problem.layers
  local function add(time)
    if not known[time] then known[time], list[#list + 1] = true, time end
  end
  for count = 0, n do add(problem.own.fixed + problem.own.time[count]) end
  for _, worker in ipairs(problem.workers) do
    add(worker.link)
    for from = 0, n - 1 do
      for to = from + 1, n do add(worker.time[to] - worker.time[from]) end
    end
  end
  table.sort(list)
  problem.limits = list
  return list
end

local function least_value(problem, space, must)
  local groups = problem.groups
  if groups == 1 then return least_time(problem, space, math.huge, must) end
  local limits = limits_of(problem)
  local low, high = 0, #limits + 1  -- the crossing, where L <= groups * limit, is behind low and not behind high
  while high - low > 1 do
    local middle = math.floor((low + high) / 2)
    if least_time(problem, space, limits[middle], must) <= groups * limits[middle] then
      high = middle
    else
      low = middle
    end
  end
  return math.min(limits[high] and groups * limits[high] or math.huge,
    limits[low] and least_time(problem, space, limits[low], must) or math.huge)
end

-- The split from an answer: of equals the worker that comes first, and most layers.
local function split_of(problem, space, answer, limit)
  local costs, reach = costs_of(problem, space.states, limit)
  local split, state, l = { own = answer.own }, answer.state, answer.own
  while l < problem.layers do
    local found
    if space.states[state].skip and costs[state - 1][l] == costs[state][l] then
      state, found = state - 1, true
    end
    for _, move in ipairs(found and {} or space.states[state].moves) do
      local worker = problem.workers[move[1]]
      for to = reach[move[1]] and not found and reach[move[1]][l] or l, l + 1, -1 do
        local base = most_devices * (worker.fixed - worker.time[l]) + 1
        if most_devices * worker.time[to] + costs[move[2]][to] + base == costs[state][l] then
          split[#split + 1], found = { move[1], to - l }, true
          state, l = move[2], to
          break
        end
      end
    end
  end
  return split
end

-- The split of the least value in a space, and that value. Of equals that of fewest workers, then of least time. Equal
-- is what differs by no more than rounding to ticks does, half a tick for each layer and hop.
local function best(problem, space)
  local value = least_value(problem, space)
  if value == math.huge then return nil end
  value = value + problem.groups * (problem.layers + 2 * #problem.workers)
  local limit, chosen = problem.groups == 1 and math.huge or math.floor(value / problem.groups), nil
  local function size(answer) return space.states[answer.state].size end
  for _, each in ipairs(answers(problem, space, limit)) do
    if ticks(each.cost) <= value and (not chosen or size(each) < size(chosen)
      or size(each) == size(chosen) and each.cost < chosen.cost) then chosen = each end
  end
  return split_of(problem, space, chosen, limit), value
end

-- ---------------------------------------------------------------- the methods

-- Each returns a split, nil where none fits, and a function that gives the least value with a worker, infinite where
-- there is none.

function search.exact(problem)
  local space = subsets(#problem.workers)
  return best(problem, space), function(worker) return least_value(problem, space, worker) end
end

local function sorted(problem, key)
  local list = {}
  for i in ipairs(problem.workers) do list[i] = i end
  table.sort(list, function(a, b)
    local x, y = key(problem.workers[a]), key(problem.workers[b])
    if x ~= y then return x > y end
    return a < b
  end)
  return list
end

-- The order is chosen, by memory and speed or by memory alone. Which workers are used, and the split, are the best in
-- that order.
function search.greedy(problem)
  local n, room, speed = problem.layers, 0, 0
  local function rate(worker) return 1 / (worker.time[n] + worker.fixed + 1) end
  for _, worker in ipairs(problem.workers) do room, speed = room + worker.room, speed + rate(worker) end
  local by_both = sorted(problem, function(worker) return math.min(worker.room / room, rate(worker) / speed) end)
  local chosen, least, order
  for _, list in ipairs { by_both, sorted(problem, function(worker) return worker.room end) } do
    local split, value = best(problem, in_order(list))
    if split and (not least or value < least) then chosen, least, order = split, value, list end
  end
  return chosen, function(worker) return least_value(problem, in_order(order, worker), worker) end
end

-- Each in its order takes layers up to one share of its memory, the least that holds all layers.
function search.proportional(problem)
  local n, bytes = problem.layers, problem.bytes
  local function filled(share)
    local split, l = {}, 0
    for i = 0, #problem.workers do
      local room = share * (problem.workers[i] or problem.own).room
      local to = l
      while to < n and bytes[to + 1] - bytes[l] <= room do to = to + 1 end
      if i == 0 then split.own = to elseif to > l then split[#split + 1] = { i, to - l } end
      l = to
    end
    return l == n and split or nil
  end
  local low, high = 0, 1
  for _ = 1, 40 do  -- to a millionth of a millionth of the memory
    local middle = (low + high) / 2
    if filled(middle) then high = middle else low = middle end
  end
  return filled(high), function() return math.huge end
end

-- How many layers, from the first, the machines can hold together: the coordinator, then workers by their memory.
function search.held(problem)
  local l = problem.own.room >= 0 and reaches(problem, problem.own, math.huge)[0] or 0
  for _, i in ipairs(sorted(problem, function(worker) return worker.room end)) do
    l = reaches(problem, problem.workers[i], math.huge)[l]
  end
  return l
end

return search
