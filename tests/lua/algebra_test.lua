-- Arithmetic on tensors: random compositions against Lua's doubles, their gradients against finite differences; shapes,
-- dtypes, when things are computed, and what is refused.
local q = require "qeng"

q.device { device = os.getenv "QENG_TEST_DEVICE" or "cpu" }

local rng = { state = tonumber(os.getenv "QENG_SEED") or 7 }
local function random()
  rng.state = (rng.state * 1103515245 + 12345) % 2147483648
  return rng.state / 2147483648
end
local function pick(list) return list[1 + math.floor(random() * #list)] end

-- ---------------------------------------------------------------- arrays of doubles: {shape, values}

local function size(shape)
  local n = 1
  for _, d in ipairs(shape) do n = n * d end
  return n
end
local function flat(t, out)
  if type(t) == "number" then out[#out + 1] = t else for _, each in ipairs(t) do flat(each, out) end end
  return out
end
local function array(tensor) return { shape = tensor:shape(), values = flat(tensor:table(), {}) } end

-- Element `at` of an array of this shape, read from one that is broadcast to it.
local function element(a, shape, at)
  local index, stride, own = 0, 1, #a.shape
  for d = #shape, 1, -1 do
    local i = at % shape[d]
    at = (at - i) / shape[d]
    local mine = a.shape[own]
    if mine then
      if mine ~= 1 then index = index + i * stride end
      stride, own = stride * mine, own - 1
    end
  end
  return a.values[index + 1]
end
local function broadcast(...)
  local shape = {}
  for _, a in ipairs { ... } do
    for d = 1, #a.shape do
      local mine, place = a.shape[#a.shape + 1 - d], d
      if not shape[place] or shape[place] == 1 then shape[place] = mine end
    end
  end
  local turned = {}
  for d = #shape, 1, -1 do turned[#turned + 1] = shape[d] end
  return turned
end
local function map(f, ...)
  local arrays, shape = { ... }, broadcast(...)
  local result = { shape = shape, values = {} }
  for at = 0, size(shape) - 1 do
    local x = {}
    for i, a in ipairs(arrays) do x[i] = element(a, shape, at) end
    result.values[at + 1] = f(unpack(x))
  end
  return result
end
-- none: of a row without elements; without it such rows are refused.
local function over_rows(f, a, none)
  local n = a.shape[#a.shape]
  local result = { shape = { unpack(a.shape) }, values = {} }
  result.shape[#a.shape] = 1
  if n == 0 and not none then error { message = "nothing to reduce" } end
  for row = 0, size(result.shape) - 1 do
    local all = n > 0 and a.values[row * n + 1] or none
    for i = 2, n do all = f(all, a.values[row * n + i]) end
    result.values[row + 1] = all
  end
  return result
end
local function erf(x)  -- Abramowitz & Stegun 7.1.6, and for large x its continued fraction
  if math.abs(x) > 5 then return x > 0 and 1 or -1 end
  local term, total, k = x, x, 0
  repeat
    k = k + 1
    term = term * 2 * x * x / (2 * k + 1)
    total = total + term
  until math.abs(term) < 1e-17 * math.abs(total) + 1e-300
  return 2 / math.sqrt(math.pi) * math.exp(-x * x) * total
end

-- ---------------------------------------------------------------- functions: of tensors, and of doubles

local function sigmoid(x) return 1 / (1 + math.exp(-x)) end
local unary = {
  { function(x) return -x end, function(x) return -x end },
  { q.abs, math.abs }, { q.exp, math.exp }, { q.sin, math.sin }, { q.cos, math.cos }, { q.sigmoid, sigmoid },
  { q.tanh, function(x) local e = math.exp(2 * x) return (e - 1) / (e + 1) end }, { q.erf, erf },
  { q.expm1, function(x) return math.exp(x) - 1 end },
  { function(x) return q.log(x * x + 0.5) end, function(x) return math.log(x * x + 0.5) end },
  { function(x) return q.log1p(x * x) end, function(x) return math.log(1 + x * x) end },
  { function(x) return (x:abs() + 0.5) ^ 1.5 end, function(x) return (math.abs(x) + 0.5) ^ 1.5 end },
  { function(x) return q.sqrt(x * x + 0.5) end, function(x) return math.sqrt(x * x + 0.5) end },
  { function(x) return q.rsqrt(x * x + 0.5) end, function(x) return 1 / math.sqrt(x * x + 0.5) end },
  { q.silu, function(x) return x * sigmoid(x) end }, { q.relu, function(x) return math.max(x, 0) end },
  { q.gelu, function(x) return 0.5 * x * (1 + erf(x / math.sqrt(2))) end },
  { function(x) return x:gelu(true) end,
    function(x) return x * sigmoid(2 * math.sqrt(2 / math.pi) * (x + 0.044715 * x ^ 3)) end },
  { q.softplus, function(x) return math.log(1 + math.exp(x)) end },
  { function(x) return x:clamp(-1, 1.5) end, function(x) return math.min(math.max(x, -1), 1.5) end },
  { function(x) return 2 / (x * x + 1) end, function(x) return 2 / (x * x + 1) end },
  { function(x) return 3 - x * 0.5 end, function(x) return 3 - x * 0.5 end },
}
local binary = {
  { function(a, b) return a + b end, function(a, b) return a + b end },
  { function(a, b) return a - b end, function(a, b) return a - b end },
  { function(a, b) return a * b end, function(a, b) return a * b end },
  { function(a, b) return a / (b * b + 0.5) end, function(a, b) return a / (b * b + 0.5) end },
  { q.maximum, math.max }, { q.minimum, math.min },
  { function(a, b) return (a:abs() + 0.5) ^ b:clamp(-2, 2) end,
    function(a, b) return (math.abs(a) + 0.5) ^ math.max(math.min(b, 2), -2) end },
  { function(a, b) return q.where(a:gt(b), a * 2, b - 1) end, function(a, b) return a > b and a * 2 or b - 1 end },
}
local function add(a, b) return a + b end
local rows = {
  { function(x) return x:sum(-1, true) end, function(x) return over_rows(add, x, 0) end },
  { function(x) return x:mean(-1, true) end,
    function(x)
      local n = x.shape[#x.shape]
      return map(function(v) return v / n end, over_rows(add, x))
    end },
  { function(x) return x:max(-1, true) end, function(x) return over_rows(math.max, x) end },
  { function(x) return x:min(-1, true) end, function(x) return over_rows(math.min, x) end },
  { q.softmax, function(x)
    local e = map(math.exp, x)
    return map(function(a, b) return a / b end, e, over_rows(add, e))
  end },
  { q.log_softmax, function(x)
    local e = map(math.exp, x)
    return map(function(a, b) return a - math.log(b) end, x, over_rows(add, e))
  end },
}

-- Sums over one dimension that stays.
local function over_dim(a, dim)
  local result = { shape = { unpack(a.shape) }, values = {} }
  result.shape[dim] = 1
  local n = size(result.shape)
  for i = 1, n do result.values[i] = 0 end
  for at = 0, size(a.shape) - 1 do
    local index, stride, rest = 0, 1, at
    for d = #a.shape, 1, -1 do
      local i = rest % a.shape[d]
      rest = (rest - i) / a.shape[d]
      if d ~= dim then index, stride = index + i * stride, stride * a.shape[d] end
    end
    result.values[index + 1] = result.values[index + 1] + a.values[at + 1]
  end
  return result
end

-- A random composition: build(leaves) of tensors, value(arrays) of doubles.
local function composition(leaves, depth)
  if depth == 0 then
    local i = 1 + math.floor(random() * leaves)
    return function(x) return x[i] end, function(x) return x[i] end
  end
  local kind = random()
  if kind < 0.45 then
    local f, build, value = pick(unary), composition(leaves, depth - 1)
    local function tame(v) return math.max(math.min(v, 3), -3) end
    return function(x) return f[1](build(x):clamp(-3, 3)) end,
      function(x) return map(function(v) return f[2](tame(v)) end, value(x)) end
  elseif kind < 0.85 then
    local f, left, left_value = pick(binary), composition(leaves, depth - 1)
    local right, right_value = composition(leaves, math.floor(random() * depth))
    return function(x) return f[1](left(x), right(x)) end,
      function(x) return map(f[2], left_value(x), right_value(x)) end
  elseif kind < 0.95 then
    local f, build, value = pick(rows), composition(leaves, depth - 1)
    local function tame(v) return math.max(math.min(v, 3), -3) end
    return function(x) return f[1](build(x):clamp(-3, 3)) end, function(x) return f[2](map(tame, value(x))) end
  end
  local build, value = composition(leaves, depth - 1)
  return function(x) return build(x):sum(1, true) end, function(x) return over_dim(value(x), 1) end
end

-- sizes: of dimensions, drawn from.
local function shapes(sizes)
  local rank, full = 1 + math.floor(random() * 3), {}
  for d = 1, rank do full[d] = pick(sizes) end
  local list = {}
  for i = 1, 1 + math.floor(random() * 3) do
    local shape = {}
    for d = 1 + (i > 1 and math.floor(random() * rank) or 0), rank do
      shape[#shape + 1] = i > 1 and random() < 0.35 and 1 or full[d]
    end
    list[i] = shape
  end
  return list
end

local function leaf(shape, dtype)
  local t = q.randn(shape, { seed = math.floor(random() * 1e6) })
  if dtype == "u8" then return t:gt(0):compute() end
  if dtype ~= "i32" then return dtype == "f32" and t or t:to(dtype) end
  local list = {}
  for i, v in ipairs(flat(t:table(), {})) do list[i] = math.floor(2 * v) end
  return q.zeros(shape, "i32"):set(list)
end

local rounds = tonumber(os.getenv "QENG_ROUNDS") or 300
local worst, refusals = 0, 0
for round = 1, rounds do
  local list, tensors, arrays = shapes { 1, 2, 3, 5, 17, 0 }, {}, {}
  local dtypes = pick { { "f32" }, { "f32" }, { "bf16" }, { "f16" }, { "f32", "bf16", "f16", "i32", "u8" } }
  local unit = 0
  for i, shape in ipairs(list) do
    local dtype = pick(dtypes)
    tensors[i] = leaf(shape, dtype)
    arrays[i] = array(tensors[i])
    unit = math.max(unit, ({ bf16 = 1e-2, f16 = 2e-3 })[dtype] or 2e-5)
  end
  local build, value = composition(#list, 1 + math.floor(random() * 8))
  local whole, want = pcall(value, arrays)
  local ok, got = pcall(function() return array(build(tensors)) end)
  local where = ("seed %s, round %d"):format(os.getenv "QENG_SEED" or "7", round)
  if not whole then
    if not want.message then error(want) end
    assert(not ok and got.message:find "there is nothing to", where)
    refusals = refusals + 1
  else
    if not ok then error(got) end
    assert(table.concat(got.shape, " ") == table.concat(want.shape, " "),
      ("%s: shape [%s], expected [%s]"):format(where, table.concat(got.shape, " "), table.concat(want.shape, " ")))
    assert(#got.values == size(want.shape) and #want.values == #got.values, where)
    for i, v in ipairs(want.values) do
      local off = math.abs(got.values[i] - v) / (1 + math.abs(v))
      assert(off < unit, ("%s, element %d: %.9g, expected %.9g, within %g"):format(where, i, got.values[i], v, unit))
      if unit < 1e-3 then worst = math.max(worst, off) end
    end
  end
end
print(("%d compositions, furthest off: %.1e; %d refused, with nothing to reduce"):format(rounds, worst, refusals))

-- Gradients of sum(composition * weights), where finite differences in doubles agree among themselves: not at kinks.
local checked, skipped = 0, 0
for round = 1, rounds / 2 do
  q.scope(function()
    local list, tensors, arrays = shapes { 1, 2, 3, 5, 17 }, {}, {}
    for i, shape in ipairs(list) do
      local t = leaf(shape, "f32")
      t:requires_grad(true)
      tensors[i], arrays[i] = t, array(t)
    end
    local build, value = composition(#list, 1 + math.floor(random() * 6))
    local y = build(tensors)
    local weights = q.randn(y:shape(), { seed = round })
    local w = array(weights)
    local function loss(x)
      local total = 0
      for i, v in ipairs(value(x).values) do total = total + v * w.values[i] end
      return total
    end
    local scalar = (y * weights):sum()
    local ok, err = pcall(scalar.backward, scalar)
    if not ok then  -- of a comparison, say
      assert(err.message:find "depends on no tensor", err.message)
      return
    end
    for i, t in ipairs(tensors) do
      local grad = array(t:grad())
      for _ = 1, math.min(4, #arrays[i].values) do
        local at = 1 + math.floor(random() * #arrays[i].values)
        local was, slopes = arrays[i].values[at], {}
        for _, h in ipairs { 1e-3, 5e-4 } do
          arrays[i].values[at] = was + h
          local above = loss(arrays)
          arrays[i].values[at] = was - h
          slopes[#slopes + 1] = (above - loss(arrays)) / (2 * h)
          arrays[i].values[at] = was
        end
        if math.abs(slopes[1] - slopes[2]) < 1e-4 * (1 + math.abs(slopes[2])) then
          checked = checked + 1
          local off = math.abs(grad.values[at] - slopes[2]) / (1 + math.abs(slopes[2]))
          assert(off < 1e-3, ("gradient, round %d, leaf %d, element %d: %.7g, expected %.7g"):format(round, i, at,
            grad.values[at], slopes[2]))
        else
          skipped = skipped + 1
        end
      end
    end
  end)
end
print(("%d slopes agree, %d at kinks left out"):format(checked, skipped))
assert(checked > 5 * skipped and checked > rounds)

do  -- where the slope of a root or a logarithm is infinite, its gradient is 0; the sum of no exponentials is 0
  local x = q.tensor { { 0, 0 }, { 3, 4 } }
  x:requires_grad(true)
  local norms = x:norm(-1)
  norms:sum():backward()
  assert((x:grad() - q.tensor { { 0, 0 }, { 0.6, 0.8 } }):abs():max():item() < 1e-6 and norms:at(0) == 0)
  local y = q.tensor { { -1 / 0, -1 / 0 }, { 0, 0 }, { 1 / 0, 0 } }
  y:requires_grad(true)
  local sums = y:logsumexp()
  assert(sums:at(0) == -1 / 0 and math.abs(sums:at(1) - math.log(2)) < 1e-6 and sums:at(2) == 1 / 0)
  sums:slice(1, 0, 2):sum():backward()
  assert(y:grad():at(0, 0) == 0 and math.abs(y:grad():at(1, 1) - 0.5) < 1e-6)
end

-- ---------------------------------------------------------------- when things are computed

local function values(t) return table.concat(flat(t:table(), {}), " ") end
local function refused(text, fn, ...)
  local ok, err = pcall(fn, ...)
  assert(not ok and tostring(err.message):find(text, 1, true),
    ("expected an error with '%s', got %s"):format(text, ok and "none" or err.message))
end

do  -- a tensor has the values of when it was made, whatever is written to its operands
  local a, b = q.tensor { 1, 2, 3 }, q.tensor { 10, 20, 30 }
  local sum = a + b
  assert(sum:is_pending() and sum:shape()[1] == 3 and sum:dtype() == "f32" and sum:is_pending())
  a:fill(0)
  assert(not sum:is_pending() and values(sum) == "11 22 33")
  local product = a * b
  b:copy(q.tensor { 1, 1, 1 })
  assert(values(product) == "0 0 0")
  local kept = (b + 1) * 2
  q.scope(function() b:fill(7) end)
  assert(values(kept) == "4 4 4")
end
do  -- one that was but a step cannot be read after its operand has changed, and says so
  local a = q.tensor { 1, 2 }
  local step = a * 3
  local whole = step + 1
  a:fill(5)
  assert(values(whole) == "4 7")
  refused("was a step of another expression", step.table, step)
  local early = a * 3
  early:compute()
  local later = early + 1
  a:fill(0)
  assert(values(early) == "15 15" and values(later) == "16 16")
end
do  -- captured programs compute it anew each run
  local x = q.tensor { 1, 2, 3, 4 }
  local before = x * 10
  local y
  local program = q.capture(function() y = q.keep(((x + 1):exp():log() * 2):compute()) end)
  assert(values(before) == "10 20 30 40")
  for _, value in ipairs { 1, 5 } do
    x:fill(value)
    program:run()
    for _, each in ipairs(y:table()) do assert(math.abs(each - 2 * (value + 1)) < 1e-5, each) end
  end
end
do  -- gradients: through a checkpoint, and twice the same tensor; nothing flows through no_grad
  local x = q.tensor { 0.5, -1, 2 }
  x:requires_grad(true)
  local function loss(checkpointed)
    x:grad():fill(0)
    local function f(v) return (v * v):sigmoid() * v end
    local y = checkpointed and q.checkpoint("part", f, x * 1.5) or f(x * 1.5)
    y:sum():backward()
    return values(x:grad())
  end
  assert(loss(true) == loss(false))
  x:grad():fill(0)
  local stopped = q.no_grad(function() return x * 2 end)
  local through = (stopped * x):sum()
  through:backward()
  assert(values(x:grad()) == "1 -2 4")
end
do  -- what no_grad made stops gradients for itself alone, also where the same is computed beside it
  local x = q.tensor { { 1, 2, 4 } }
  x:requires_grad(true)
  local product = (x:max(-1, true) * x:softmax()):sum()  -- softmax has its own maximum, which is a constant to it
  product:backward()
  for i, slope in ipairs { 0, 0, 1 } do assert(math.abs(x:grad():table()[1][i] - slope) < 1e-5) end
  x:grad():fill(0)
  local same = (q.no_grad(function() return x * 1 end) * x):sum()
  same:backward()
  assert(values(x:grad()) == "1 2 4")
end
do  -- sums of masks and of integers are counts
  local mask = q.tensor { { 1, 0 }, { 3, 1 } }:gt(0)
  assert(values(mask:sum(1)) == "2 1" and values(mask:sum(2)) == "1 2" and mask:sum():item() == 3)
  assert(values(q.tensor({ { 1, 2 }, { 3, 4 } }, "i32"):sum(1)) == "4 6")
end
do  -- set: an optimizer's step; what broadcasts; what was made of the old values keeps them
  local p = q.tensor { { 1, 2 }, { 3, 4 } }
  p:requires_grad(true)
  local loss = (p * p):sum()
  loss:backward()
  local before, row = q.no_grad(function() return p * 10 end), q.tensor { 7, 8 }
  q.no_grad(function() assert(p:set(p - 0.25 * p:grad()) == p) end)
  assert(values(p) == "0.5 1 1.5 2" and values(before) == "10 20 30 40" and p:requires_grad())
  q.no_grad(function() p:set(p / p:sum(-1, true)):set(p) end)
  assert(math.abs(p:table()[1][1] - 1 / 3) < 1e-6 and math.abs(p:table()[2][2] - 4 / 7) < 1e-6)
  local half = q.zeros({ 2, 2 }, "bf16")
  assert(values(half:set(row)) == "7 8 7 8" and values(half:set(1.00390625)) == "1 1 1 1")
  assert(values(half:set(q.tensor { { 1.01171875 }, { 2 } })) == "1.015625 1.015625 2 2")
  assert(values(q.zeros({ 2 }, "i32"):set(q.tensor({ 5, 6 }, "i32"))) == "5 6")
  -- into the target itself, where each element is read for itself; else beside it first
  local m = q.tensor { { 1, 2 }, { 3, 4 } }
  local first, tail = m:rows(0, 1), q.no_grad(function() return m * 100 end)
  local new = m * 2 + m
  m:set(new)
  local again = m * 2 + m
  assert(values(m) == "3 6 9 12" and values(new) == "3 6 9 12" and values(tail) == "100 200 300 400")
  m:set(again)
  local reader = again + 1
  m:set(m / 3)
  assert(values(reader) == "10 19 28 37" and values(m) == "3 6 9 12")
  m:set(m - m:sum(-1, true)):set(first + m)
  assert(values(m) == "-12 -6 -18 -12", values(m))
  m:set(m:max(-1, true) + m):set(m:sum(1, true) + m)
  assert(values(m) == "-66 -48 -78 -60", values(m))
  local column = m:rows(0, 2):reshape { 2, 2 }
  m:set(column:eq(m) + column)
  assert(values(m) == "-65 -47 -77 -59" and values(column) == values(m))
  half:set(half + 1)
  assert(values(half) == "2.015625 2.015625 3 3")
  local later = m + 1
  m:set(later)
  m:fill(0)
  refused("was a step of another expression", later.table, later)
  local p2 = q.tensor { 1, 2 }
  p2:requires_grad(true)
  local kept = q.no_grad(function()
    local doubled = p2 * 2
    p2:set(doubled)
    return doubled
  end)
  local through = (kept * p2):sum()
  through:backward()
  assert(values(p2:grad()) == "2 4")
  assert(values(q.zeros({ 2, 2 }):set { 5, 6, 7 }) == "5 6 7 0")
  refused("set of bf16 [2, 2] to f32 [3, 2, 2]", half.set, half, q.zeros { 3, 2, 2 })
  refused("set of bf16 [2, 2] to f32 [3]: from the last", half.set, half, q.zeros { 3 })
  refused("Tensor or number expected, got string", half.set, half, "7")
  refused("in a function given to q.no_grad", p.set, p, p * 2)
  refused("in a function given to q.no_grad", p.set, p * 2, 1)
  refused("set: this Tensor is closed", function() row:free() half:set(row) end)
end
do  -- a power of 0 has no slope, also at 0
  local x, exponent = q.tensor { 0, 2 }, q.tensor { 0, 1 }
  x:requires_grad(true)
  local sum = (x ^ 0 + x ^ exponent + x ^ 2):sum()
  sum:backward()
  assert(values(x:grad()) == "0 5", values(x:grad()))
end
do  -- long rows, expressions of many parts, and no elements at all
  local n = 70001
  local ones = q.zeros({ 2, n }):fill(1)
  assert(values((ones * 2):sum(-1)) == ("%d %d"):format(2 * n, 2 * n))
  local soft = ones:softmax()
  assert(math.abs(soft:sum():item() - 2) < 1e-4 and math.abs(soft:max():item() - 1 / n) < 1e-9)
  local x = q.tensor { 1, 2 }
  for _ = 1, 300 do x = x * 1.01 + 0.5 - x * 0.01 end
  assert(math.abs(x:table()[1] - 151) < 1e-3, x:table()[1])
  local none = q.zeros { 0, 3 }
  assert(values(q.zeros({ 2, 0 }):sum(-1) + 1) == "1 1")
  assert((none + 1):elements() == 0 and values(none:sum(1)) == "0 0 0")
  refused("there is nothing to reduce", function() return q.zeros({ 3, 0 }):max(-1) end)
end
do  -- dtypes
  local function dtype(t) return t:dtype() end
  local f, b, h = q.zeros { 2 }, q.zeros({ 2 }, "bf16"), q.zeros({ 2 }, "f16")
  local i = q.tensor({ 3, 4 }, "i32")
  assert(dtype(f + b) == "f32" and dtype(b + 1) == "bf16" and dtype(b + h) == "f32" and dtype(i + 1) == "f32")
  assert(dtype(b * i) == "bf16" and dtype(f:lt(1)) == "u8" and values(i:eq(4)) == "0 1" and values(i:ge(4)) == "0 1")
  assert(values(q.where(i:gt(3), 1, i)) == "3 1" and i:any():item() == 1 and f:all():item() == 0)
end
do  -- mistakes name the function, the shapes, and what is wrong
  local a, b = q.zeros { 2, 3 }, q.zeros { 4, 3 }
  refused("add of f32 [2, 3], f32 [4, 3]: dimensions differ, 2 and 4", function() return a + b end)
  refused("Tensor or number expected, got string", function() return a + "one" end)
  refused("Tensor or number expected, got nil", function() return a * nil end)
  refused("there is no dimension 3 in a tensor of 2", function() return a:sum(3) end)
  refused("decode it first", function() return q.quantize(q.zeros { 2, 32 }, "q8_0") + 1 end)
  refused("Tensor expected, got a number", q.exp, 1)
end
