-- Tensors in another order: every function against the place that each element has to come from, written down here a
-- second time; gradients, which follow from the same places; orders and products against doubles.
local golden = require "golden"
local q = require "qeng"

q.device { device = os.getenv "QENG_TEST_DEVICE" or "cpu" }

local rng = { state = tonumber(os.getenv "QENG_SEED") or 7 }
local function random(low, high)  -- a whole number of low .. high
  rng.state = (rng.state * 1103515245 + 12345) % 2147483648
  return low + math.floor(rng.state / 2147483648 * (high - low + 1))
end
local function pick(list) return list[random(1, #list)] end

local function size(shape)
  local n = 1
  for _, d in ipairs(shape) do n = n * d end
  return n
end
local values = golden.flat
local function text(list) return table.concat(list, " ") end

-- The indices of element `at` of a shape, from 0; and back.
local function index_of(shape, at)
  local index = {}
  for d = #shape, 1, -1 do
    index[d] = at % shape[d]
    at = (at - index[d]) / shape[d]
  end
  return index
end
local function place_of(shape, index)
  local at = 0
  for d = 1, #shape do at = at * shape[d] + index[d] end
  return at
end

local function shape_of(rank)
  local shape = {}
  for d = 1, rank do shape[d] = pick { 1, 2, 3, 5, 7, 0 } end
  return shape
end
local function with(list, d, value)
  local other = { unpack(list) }
  other[d] = value
  return other
end
local function without(list, d)
  local other = { unpack(list) }
  table.remove(other, d)
  return other
end
local function negative(d, rank) return pick { d, d - rank - 1 } end

-- Each draws arguments for a tensor of a shape: the call, the shape that it has to give, and for the index of each
-- element the index that it comes from; nil for a filled one (0).
local moves = {
  slice = function(shape)
    local d = random(1, #shape)
    local from, to = pick { "nil", random(-8, 8) }, pick { "nil", random(-8, 8) }
    if from == "nil" then from = nil end
    if to == "nil" then to = nil end
    local step = pick { 1, 1, 2, 3, -1, -2 }
    local which, n = {}, shape[d]  -- Python's rule, by walking
    local at = from or (step > 0 and 0 or n - 1)
    if from and from < 0 then at = from + n end
    if step > 0 then at = math.max(at, 0) else at = math.min(at, n - 1) end
    local stop = to and (to < 0 and to + n or to)
    while at >= 0 and at < n and not (stop and (step > 0 and at >= stop or step < 0 and at <= stop)) do
      which[#which + 1] = at
      at = at + step
    end
    return function(x) return x:slice(negative(d, #shape), from, to, step) end, with(shape, d, #which),
      function(i) return with(i, d, which[i[d] + 1]) end
  end,
  permute = function(shape)
    local dims, left, wanted = {}, {}, {}
    for d = 1, #shape do left[d] = d end
    while #left > 0 do dims[#dims + 1] = table.remove(left, random(1, #left)) end
    for d = 1, #shape do wanted[d] = shape[dims[d]] end
    return function(x) return x:permute(dims) end, wanted, function(i)
      local index = {}
      for d = 1, #shape do index[dims[d]] = i[d] end
      return index
    end
  end,
  transpose = function(shape)
    local a, b = random(1, #shape), random(1, #shape)
    local function turned(list)
      local other = { unpack(list) }
      other[a], other[b] = list[b], list[a]
      return other
    end
    return function(x) return x:transpose(negative(a, #shape), b) end, turned(shape), turned
  end,
  expand = function(shape)
    local wanted, added = {}, random(0, 4 - #shape)
    for _ = 1, added do wanted[#wanted + 1] = pick { 1, 3 } end
    for d = 1, #shape do wanted[#wanted + 1] = shape[d] == 1 and pick { 1, 4, 0 } or shape[d] end
    return function(x) return x:expand(wanted) end, wanted, function(i)
      local index = {}
      for d = 1, #shape do index[d] = shape[d] == 1 and 0 or i[added + d] end
      return index
    end
  end,
  roll = function(shape)
    local d, shift = random(1, #shape), random(-9, 9)
    return function(x) return x:roll(shift, d) end, shape, function(i) return with(i, d, (i[d] - shift) % shape[d]) end
  end,
  flip = function(shape)
    local d = random(1, #shape)
    return function(x) return x:flip(d) end, shape, function(i) return with(i, d, shape[d] - 1 - i[d]) end
  end,
  pad = function(shape)
    local d, before, after = random(1, #shape), random(0, 2), random(0, 2)
    return function(x) return x:pad(d, before, after) end, with(shape, d, before + shape[d] + after), function(i)
      local at = i[d] - before
      return at >= 0 and at < shape[d] and with(i, d, at) or nil
    end
  end,
  at_first = function(shape)
    if shape[1] == 0 then return nil end
    local at = random(0, shape[1] - 1)
    local rest = without(shape, 1)
    return function(x) return x[pick { at, at - shape[1] }] end, #rest > 0 and rest or { 1 }, function(i)
      local index = #rest > 0 and { unpack(i) } or {}
      table.insert(index, 1, at)
      return index
    end
  end,
  squeeze = function(shape)
    local kept, where = {}, {}
    for d, n in ipairs(shape) do
      if n ~= 1 then kept[#kept + 1], where[#where + 1] = n, d end
    end
    return function(x) return x:squeeze() end, #kept > 0 and kept or { 1 }, function(i)
      local index = {}
      for d = 1, #shape do index[d] = 0 end
      for k, d in ipairs(where) do index[d] = i[k] end
      return index
    end
  end,
  unsqueeze = function(shape)
    if #shape == 4 then return nil end
    local d, wanted = random(1, #shape + 1), { unpack(shape) }
    table.insert(wanted, d, 1)
    return function(x) return x:unsqueeze(d) end, wanted, function(i) return without(i, d) end
  end,
  concat = function(shape)
    local d = random(1, #shape)
    local function doubled(x) return q.concat({ x, x:slice(d, 0, 1), x }, d) end
    local first = math.min(1, shape[d])
    return doubled, with(shape, d, 2 * shape[d] + first), function(i)
      local at = i[d]
      if at >= shape[d] then at = at < shape[d] + first and 0 or at - shape[d] - first end
      return with(i, d, at)
    end
  end,
  stack = function(shape)
    if #shape == 4 then return nil end
    local d, wanted = random(1, #shape + 1), { unpack(shape) }
    table.insert(wanted, d, 2)
    return function(x) return q.stack({ x, x }, d) end, wanted, function(i) return without(i, d) end
  end,
  split = function(shape)
    local d = random(1, #shape)
    if shape[d] < 2 then return nil end
    local first = random(1, shape[d] - 1)
    return function(x) return (select(2, x:split({ first, shape[d] - first }, d))) end,
      with(shape, d, shape[d] - first), function(i) return with(i, d, i[d] + first) end
  end,
  index_select = function(shape)
    local d, which = random(1, #shape), {}
    if shape[d] == 0 then return nil end
    for i = 1, random(1, 5) do which[i] = random(0, shape[d] - 1) end
    return function(x) return x:index_select(d, which) end, with(shape, d, #which), function(i)
      return with(i, d, which[i[d] + 1])
    end
  end,
  gather = function(shape)
    local d = random(1, #shape)
    if shape[d] == 0 then return nil end
    local its = with(shape, d, random(1, 4))
    if pick { true, false } then for i = 1, d - 1 do its[i] = 1 end end
    if pick { true, false } then for i = d + 1, #shape do its[i] = 1 end end
    local which = {}
    for i = 1, size(its) do which[i] = random(0, shape[d] - 1) end
    local index = q.zeros(its, "i32"):set(which)
    return function(x) return x:gather(d, index) end, with(shape, d, its[d]), function(i)
      local at = {}
      for k = 1, #its do at[k] = its[k] == 1 and 0 or i[k] end
      return with(i, d, which[place_of(its, at) + 1])
    end
  end,
  tril = function(shape)
    if #shape < 2 then return nil end
    local k = random(-3, 3)
    return function(x) return x:tril(k) end, shape,
      function(i) return i[#i] - i[#i - 1] <= k and i or nil end
  end,
}
local names = {}
for name in pairs(moves) do names[#names + 1] = name end
table.sort(names)

local function where(name, round) return ("%s, seed %s, round %d"):format(name, os.getenv "QENG_SEED" or "7", round) end

local rounds = tonumber(os.getenv "QENG_ROUNDS") or 40
local done = {}
for _, name in ipairs(names) do
  for round = 1, rounds do
    q.scope(function()
      local shape = shape_of(random(1, 4))
      local call, wanted, from = moves[name](shape)
      if not call then return end
      local dtype = pick { "f32", "f32", "bf16", "f16", "i32" }
      local list = {}
      for i = 1, size(shape) do list[i] = 1 + i * 37 % 251 end  -- exact in bf16
      local x = q.zeros(shape, dtype):set(list)
      if dtype == "f32" then x:requires_grad(true) end
      local y = call(dtype == "f32" and pick { x, x * 1 } or x)
      assert(text(y:shape()) == text(wanted), ("%s: [%s], expected [%s]"):format(where(name, round), text(y:shape()),
        text(wanted)))
      assert(y:dtype() == (name == "tril" and dtype == "i32" and "f32" or dtype), where(name, round))
      local got, slopes, weights = values(y), {}, {}
      for i = 1, size(shape) do slopes[i] = 0 end
      for at = 0, size(wanted) - 1 do
        local source = from(index_of(wanted, at))
        local place = source and place_of(shape, source)
        assert(got[at + 1] == (place and list[place + 1] or 0), where(name, round))
        weights[at + 1] = random(-9, 9)
        if place then slopes[place + 1] = slopes[place + 1] + weights[at + 1] end
      end
      done[name] = (done[name] or 0) + 1
      if dtype ~= "f32" or size(wanted) == 0 then return end
      local loss = (y * q.zeros(wanted):set(weights)):sum()
      loss:backward()
      assert(text(values(x:grad())) == text(slopes), where(name, round) .. ": gradient")
    end)
  end
  assert(done[name] > rounds / 4, name)
end
print(("%d functions, %d draws of each"):format(#names, rounds))

local function near(got, want, what, bound)
  assert(#got == #want, what)
  for i = 1, #want do
    assert(math.abs(got[i] - want[i]) <= (bound or 1e-5) * (1 + math.abs(want[i])),
      ("%s, element %d: %.8g, expected %.8g"):format(what, i, got[i], want[i]))
  end
end

-- ---------------------------------------------------------------- orders

for round = 1, rounds do
  q.scope(function()
    local shape = shape_of(random(1, 3))
    local d = random(1, #shape)
    local n = shape[d]
    if n == 0 then return end
    local list = {}
    for i = 1, size(shape) do list[i] = random(-4, 4) end
    local x = q.zeros(shape):set(list)
    x:requires_grad(true)
    local k, largest = random(1, n), pick { true, false }
    local got, index = x:topk(k, d, largest)
    local wanted = with(shape, d, k)
    assert(text(got:shape()) == text(wanted) and text(index:shape()) == text(wanted) and index:dtype() == "i32")
    local arg, sums, most = x:argmax(d), x:cumsum(d), x:max(d)
    local weights, slopes = {}, {}
    for i = 1, #list do slopes[i] = 0 end
    local got_values, got_index = values(got), values(index)
    local arg_values, sum_values, most_values = values(arg), values(sums), values(most)
    for at = 0, size(shape) / n - 1 do
      local line, places = {}, {}  -- along d
      local outer = index_of(without(shape, d), at)
      for i = 0, n - 1 do
        local index_here = { unpack(outer) }
        table.insert(index_here, d, i)
        places[i] = place_of(shape, index_here)
        line[i + 1] = { value = list[places[i] + 1], at = i }
      end
      local sum = 0
      for i = 0, n - 1 do
        sum = sum + line[i + 1].value
        assert(sum_values[places[i] + 1] == sum, where("cumsum", round))
      end
      table.sort(line, function(a, b)
        if a.value ~= b.value then
          if largest then return a.value > b.value end
          return a.value < b.value
        end
        return a.at < b.at
      end)
      for j = 0, k - 1 do
        local index_here = { unpack(outer) }
        table.insert(index_here, d, j)
        local place = place_of(wanted, index_here)
        assert(got_values[place + 1] == line[j + 1].value and got_index[place + 1] == line[j + 1].at,
          where("topk", round))
        weights[place + 1] = random(-9, 9)
        slopes[places[line[j + 1].at] + 1] = slopes[places[line[j + 1].at] + 1] + weights[place + 1]
      end
      if largest then
        assert(arg_values[at + 1] == line[1].at and most_values[at + 1] == line[1].value, where("argmax", round))
      end
    end
    local loss = (got * q.zeros(wanted):set(weights)):sum()
    loss:backward()
    assert(text(values(x:grad())) == text(slopes), where("topk: gradient", round))
  end)
end
do
  local nan = 0 / 0
  local sorted, index = q.tensor({ 2, nan, -1, 0, -0.0, 1 / 0 }):sort()
  assert(text { unpack(values(index)) } == "2 3 4 0 5 1" and sorted:table()[6] ~= sorted:table()[6])
  assert(text(values(q.tensor({ 5, 7, 5 }):argsort(1, true))) == "1 0 2")
  local x = q.tensor { { 1, 2, 3 } }
  x:requires_grad(true)
  local loss = (x:cumsum() * q.tensor { 1, 10, 100 }):sum()
  loss:backward()
  assert(text(values(x:grad())) == "111 110 100" and text(values(x:cumsum(-1, true))) == "6 5 3")
  for _, dims in ipairs { { 1, 3 }, { 2 }, { 1, 2, 3 }, { 2, 3 } } do
    local t = q.randn({ 3, 4, 5 }, { seed = 5 })
    local most, least = t:max(dims, true), (-t):min(dims)
    local reached = t:eq(most):sum(dims)
    assert(text(values(most)) == text(values(-least)) and reached:min():item() == 1 and t:gt(most):any():item() == 0)
    assert(#t:max(dims):shape() == math.max(1, 3 - #dims))
  end
end

-- ---------------------------------------------------------------- products

local function product(a, b, shapes_of_a, shapes_of_b, ta, tb)
  local rank = math.max(#shapes_of_a, #shapes_of_b)
  local function size_at(shape, d) return shape[d - rank + #shape] or 1 end
  local wanted = {}
  for d = 1, rank - 2 do
    local mine, other = size_at(shapes_of_a, d), size_at(shapes_of_b, d)
    wanted[d] = mine == 1 and other or mine
  end
  local m, k = shapes_of_a[#shapes_of_a - (ta and 0 or 1)], shapes_of_a[#shapes_of_a - (ta and 1 or 0)]
  local n = shapes_of_b[#shapes_of_b - (tb and 1 or 0)]
  wanted[#wanted + 1], wanted[#wanted + 2] = m, n
  local function element(shape, batch, row, column)
    local at = {}
    for d = rank - #shape + 1, rank - 2 do at[#at + 1] = size_at(shape, d) == 1 and 0 or batch[d] end
    at[#at + 1], at[#at + 2] = row, column
    return place_of(shape, at) + 1
  end
  local result, pairs_of = {}, {}
  for at = 0, size(wanted) - 1 do
    local index = index_of(wanted, at)
    local row, column, sum = index[rank - 1], index[rank], 0
    pairs_of[at + 1] = {}
    for i = 0, k - 1 do
      local left = element(shapes_of_a, index, ta and i or row, ta and row or i)
      local right = element(shapes_of_b, index, tb and column or i, tb and i or column)
      sum = sum + a[left] * b[right]
      pairs_of[at + 1][i + 1] = { left, right }
    end
    result[at + 1] = sum
  end
  return result, wanted, pairs_of
end

for round = 1, rounds do
  q.scope(function()
    local m, n, k = random(1, 6), random(1, 6), random(1, 6)
    local ta, tb = pick { true, false }, pick { true, false }
    local function matrices(rows, columns, transposed)
      local shape = {}
      for d = 1, random(0, 2) do shape[d] = pick { 1, d + 1 } end
      if #shape == 1 then shape[1] = pick { 1, 3 } end
      shape[#shape + 1], shape[#shape + 2] = transposed and columns or rows, transposed and rows or columns
      local t = q.randn(shape, { seed = random(1, 1e6) })
      t:requires_grad(true)
      return t, shape
    end
    local a, shape_a = matrices(m, k, ta)
    local b, shape_b = matrices(k, n, tb)
    local c = a:matmul(b, { transpose_a = ta, transpose_b = tb })
    local list_a, list_b = values(a), values(b)
    local want, wanted, pairs_of = product(list_a, list_b, shape_a, shape_b, ta, tb)
    assert(text(c:shape()) == text(wanted), where("matmul", round))
    near(values(c), want, where("matmul", round))
    local weights = q.randn(wanted, { seed = round })
    local w, da, db = values(weights), {}, {}
    for i = 1, #list_a do da[i] = 0 end
    for i = 1, #list_b do db[i] = 0 end
    for at, all in ipairs(pairs_of) do
      for _, pair in ipairs(all) do
        da[pair[1]] = da[pair[1]] + w[at] * list_b[pair[2]]
        db[pair[2]] = db[pair[2]] + w[at] * list_a[pair[1]]
      end
    end
    local loss = (c * weights):sum()
    loss:backward()
    near(values(a:grad()), da, where("matmul: gradient of a", round), 3e-5)
    near(values(b:grad()), db, where("matmul: gradient of b", round), 3e-5)
  end)
end
do
  local a, b = q.tensor { 1, 2, 3 }, q.tensor { { 1, 0 }, { 0, 1 }, { 1, 1 } }
  assert(text(values(a:matmul(b))) == "4 5" and text(a:matmul(b):shape()) == "2")
  assert(text(values(q.matmul(b, q.tensor { 1, 2 }))) == "1 2 3" and a:matmul(a):item() == 14)
  assert(text(values(q.outer(a, q.tensor { 1, 10 }))) == "1 10 2 20 3 30" and q.inner(a, a):item() == 14)
end

-- ---------------------------------------------------------------- the rest

do  -- sums of what is gathered twice, in f32; and what is added to
  local x = q.zeros({ 4, 2 }, "bf16"):fill(1)
  local y = x:scatter_add(1, { 2, 0, 2 }, q.tensor({ { 1, 2 }, { 3, 4 }, { 5, 6 } }, "bf16"))
  assert(text(values(y)) == "4 5 1 1 7 9 1 1" and y:dtype() == "bf16" and values(x)[1] == 1)
  local base, added = q.zeros { 3 }, q.tensor { 1, 2 }
  base:requires_grad(true)
  added:requires_grad(true)
  local loss = (base:scatter_add(1, { 2, 2 }, added) * q.tensor { 1, 10, 100 }):sum()
  loss:backward()
  assert(text(values(base:grad())) == "1 10 100" and text(values(added:grad())) == "100 100")
end
do  -- gradients need an index that nobody else has any more
  local base, values_of = q.zeros { 3 }, q.tensor { 1, 2 }
  base:requires_grad(true)
  values_of:requires_grad(true)
  local picked = q.scope(function() return base:gather(1, q.tensor({ 2, 0 }, "i32")) end)
  local placed = q.scope(function() return base:scatter_add(1, q.tensor({ 2, 0 }, "i32"), values_of) end)
  local others = {}
  for i = 1, 64 do others[i] = q.tensor({ 1000 + i, 1000 + i }, "i32") end
  local loss = (picked * q.tensor { 1, 10 }):sum() + (placed * q.tensor { 1, 2, 3 }):sum()
  loss:backward()
  assert(text(values(base:grad())) == "11 2 4" and text(values(values_of:grad())) == "3 1" and #others == 64)
end
do  -- a position of the first dimension is a view: what is written to it is in the whole
  local x = q.zeros { 3, 2 }
  x[1] = 5
  x[-1]:set { 7, 8 }
  x:slice(1, 0, 1):set(q.tensor { 1, 2 })
  assert(text(values(x)) == "1 2 5 5 7 8" and x:at(2, -1) == 8)
  assert(text(values(q.one_hot(q.tensor({ 2, 0 }, "i32"), 3))) == "0 0 1 1 0 0")
  assert(q.one_hot(q.tensor({ 1 }, "i32"), 2, "bf16"):dtype() == "bf16")
  assert(text(values(q.arange(2, 7, 2))) == "2 4 6" and q.arange(3, 0, -1):dtype() == "i32")
  assert(q.arange(0):elements() == 0 and text(values(q.arange(0, 1, 0.25, "f32"))) == "0 0.25 0.5 0.75")
  assert(text(values(q.arange(0.5, 3))) == "0.5 1.5 2.5" and q.arange(0, 1, 0.25):dtype() == "f32")
  assert(text(q.zeros({ 2, 3, 4 }):reshape({ -1, 4 }):shape()) == "6 4")
end
do  -- products over nothing, and without elements
  for _, shapes in ipairs {
    { { 3, 0 }, { 0, 4 }, "3 4" }, { { 2, 3 }, { 3, 0 }, "2 0" }, { { 0, 3 }, { 3, 4 }, "0 4" },
    { { 2, 3, 0 }, { 2, 0, 4 }, "2 3 4" }, { { 0, 3, 2 }, { 2, 4 }, "0 3 4" },
  } do
    local a, b = q.zeros(shapes[1]):fill(1), q.zeros(shapes[2]):fill(1)
    a:requires_grad(true)
    b:requires_grad(true)
    local y = a:matmul(b)
    local sum = y:sum()
    sum:backward()
    assert(text(y:shape()) == shapes[3] and sum:item() == 0)
    for _, x in ipairs { a, b } do assert(x:grad():abs():sum():item() == 0) end
  end
end
do  -- the same bits recomputed, captured and again
  local x = q.randn({ 6, 5 }, { seed = 3 })
  x:requires_grad(true)
  local index = q.tensor({ 1, 1, 4, 0 }, "i32")
  local function f(v)
    local y = v:transpose():index_select(1, index):matmul(v:roll(2, 1))
    return (y:topk(3, -1) * q.concat({ y:cumsum(1):slice(2, 0, 3), y:flip(2):slice(2, 0, 3) }, 1):slice(1, 2, 6)):tanh()
  end
  local function bits(checkpointed)
    x:grad():fill(0)
    local y = checkpointed and q.checkpoint("part", f, x * 1.5) or f(x * 1.5)
    y:sum():backward()
    return text(values(x:grad())), text(values(y))
  end
  local plain, value = bits(false)
  assert(plain == bits(false) and plain == bits(true))
  local kept
  local program = q.capture(function() kept = q.keep(f(x * 1.5):compute()) end)
  for _ = 1, 2 do
    program:run()
    assert(text(values(kept)) == value)
  end
end
print "ok"
