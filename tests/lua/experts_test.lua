-- A mixture of experts of q.route, q.dispatch, q.grouped_linear and q.combine: values and gradients against doubles,
-- the same bits again, captured, recomputed and in any batch, stored weights under adapters, and what is refused.
local golden = require "golden"
local q = require "qeng"
local refused = require("scratch").refused

q.device { device = os.getenv "QENG_TEST_DEVICE" or "cpu" }

local tokens, hidden, width, experts, k, rank = 9, 6, 5, 7, 3, 2
local scale = 0.5
local shapes = {
  x = { tokens, hidden }, scores = { tokens, experts }, bias = { experts },
  gate = { experts, width, hidden }, gate_bias = { experts, width }, up = { experts, width, hidden },
  down = { experts, hidden, width }, down_bias = { experts, hidden },
  a = { experts, rank, hidden }, b = { experts, width, rank },
}
local names = {}
for name in pairs(shapes) do names[#names + 1] = name end
table.sort(names)

local function draw(seed)
  local p = {}
  for i, name in ipairs(names) do p[name] = q.randn(shapes[name], { seed = seed + i }) end
  p.scores:set(p.scores - q.tensor { 9, 0, 0, 0, 0, 0, 0 })  -- an expert without tokens
  return p
end

local function mixture(p)
  local choice, _, first, place = q.route(p.scores, k, { bias = p.bias })
  local rows = q.dispatch(p.x, place)
  local lora = { a = p.a, b = p.b, scale = scale }
  local gate = q.grouped_linear(rows, p.gate, first, { bias = p.gate_bias, lora = lora })
  local inner = q.swiglu(gate, q.grouped_linear(rows, p.up, first))
  local out = q.grouped_linear(inner, p.down, first, { bias = p.down_bias })
  return q.combine(out, place, p.scores:softmax():gather(2, choice))
end

-- ---------------------------------------------------------------- doubles

-- The k largest of row t, the largest first, of equal ones the lower number.
local function chosen(v, t)
  local list = {}
  for e = 1, experts do list[e] = { e = e, score = v.scores[t * experts + e] + v.bias[e] } end
  table.sort(list, function(one, two)
    if one.score ~= two.score then return one.score > two.score end
    return one.e < two.e
  end)
  return list
end

-- <row e, i of w, x>; w: [.., rows, n] as a list, from 1
local function dot(w, rows, n, e, i, x)
  local sum = 0
  for j = 1, n do sum = sum + w[((e - 1) * rows + i - 1) * n + j] * x[j] end
  return sum
end

-- What mixture(p) gives, of lists of doubles.
local function formula(v)
  local y = {}
  for t = 0, tokens - 1 do
    local x, sum = {}, 0
    for i = 1, hidden do x[i], y[t * hidden + i] = v.x[t * hidden + i], 0 end
    for e = 1, experts do sum = sum + math.exp(v.scores[t * experts + e]) end
    local list = chosen(v, t)
    for j = 1, k do
      local e = list[j].e
      local low, inner = {}, {}
      for r = 1, rank do low[r] = dot(v.a, rank, hidden, e, r, x) end
      for i = 1, width do
        local gate = dot(v.gate, width, hidden, e, i, x) + v.gate_bias[(e - 1) * width + i]
          + scale * dot(v.b, width, rank, e, i, low)
        inner[i] = gate / (1 + math.exp(-gate)) * dot(v.up, width, hidden, e, i, x)
      end
      local weight = math.exp(v.scores[t * experts + e]) / sum
      for i = 1, hidden do
        local out = dot(v.down, hidden, width, e, i, inner) + v.down_bias[(e - 1) * hidden + i]
        y[t * hidden + i] = y[t * hidden + i] + weight * out
      end
    end
  end
  return y
end

local function lists(p)
  local v = {}
  for _, name in ipairs(names) do v[name] = golden.flat(p[name]) end
  return v
end

local function close(got, wanted, what, bound)
  local _, difference = golden.differences(got, wanted)
  assert(difference < bound, ("%s differs by %g of its length"):format(what, difference))
end

for seed = 100, 500, 100 do
  local p = draw(seed)
  local v, dy = lists(p), q.randn({ tokens, hidden }, { seed = seed + 99 })
  for _, name in ipairs(names) do p[name]:requires_grad(name ~= "bias") end
  local y = mixture(p)
  close(golden.flat(y), formula(v), "a mixture of experts", 1e-6);
  (y * dy):sum():backward()

  -- Each gradient along one random direction, by a difference of doubles.
  local weights = golden.flat(dy)
  local function loss()
    local sum = 0
    for i, value in ipairs(formula(v)) do sum = sum + value * weights[i] end
    return sum
  end
  for i, name in ipairs(names) do
    if name ~= "bias" then
      local gradient = golden.flat(p[name]:grad())
      local direction = golden.flat(q.randn(shapes[name], { seed = seed + 50 + i }))
      local own, along, size = v[name], 0, 0
      local function moved(step)
        v[name] = {}
        for n = 1, #own do v[name][n] = own[n] + step * direction[n] end
        return loss()
      end
      for n = 1, #own do
        along, size = along + gradient[n] * direction[n], size + math.abs(gradient[n] * direction[n])
      end
      local step = 1e-6
      local measured = (moved(step) - moved(-step)) / (2 * step)
      v[name] = own
      assert(math.abs(measured - along) < 1e-5 * size + 1e-6, ("gradient of %s: %g, expected %g"):format(name, along,
        measured))
    end
  end
end

-- ---------------------------------------------------------------- the same bits

local function bits(list) return table.concat(list, " ") end

-- The values of y and of all gradients, of a pass by `run`.
local function pass(p, run)
  for _, name in ipairs(names) do
    p[name]:requires_grad(false)
    p[name]:requires_grad(name ~= "bias")
  end
  local y
  q.scope(function()
    y = golden.flat(run(p))
  end)
  local all = { bits(y) }
  for _, name in ipairs(names) do
    if name ~= "bias" then all[#all + 1] = bits(golden.flat(p[name]:grad())) end
  end
  return table.concat(all, "\n")
end

local p = draw(7)
local function trained(of)
  local y = mixture(of)
  y:sum():backward()
  return y
end
local once = pass(p, trained)
assert(pass(p, trained) == once, "a pass gives other bits the second time")
assert(pass(p, function(of)
  local y = q.checkpoint("experts", function(x)
    return mixture(setmetatable({ x = x }, { __index = of }))
  end, of.x)
  y:sum():backward()
  return y
end) == once, "a pass that is recomputed gives other bits")
do  -- captured, and replayed with other scores, which send tokens elsewhere
  local program, y = q.capture(q.no_grad, function() return mixture(p) end)
  local before = q.tensor(golden.flat(p.scores)):reshape(shapes.scores)
  for _, other in ipairs { draw(8).scores, before } do
    p.scores:set(other)
    program:run()
    local replayed = bits(golden.flat(y))
    assert(replayed == bits(golden.flat(q.no_grad(mixture, p))), "a captured mixture gives other bits")
  end
  program:free()
end

local function stored(w, dtype)
  if dtype == "f32" or dtype == "bf16" or dtype == "f16" then return w:to(dtype) end
  return q.quantize(w, dtype)
end

-- apart: each token's result is that of the token alone, and each row's that of q.row_linear
for _, dtype in ipairs { "f32", "bf16", "f16", "q8_0", "q4_k", "tq2_0", "one_bit" } do
  local n, wide = 40, 512
  local rows = q.randn({ 50, wide }, { seed = 3 })
  local w = q.randn({ experts * n, wide }, { seed = 4 })
  local starts = { 0, 1, 1, 20, 20, 38, 47, 50 }
  local all = stored(w, dtype):reshape { experts, n, wide }
  local y = golden.flat(q.grouped_linear(rows, all, q.tensor(starts, "i32"), { apart = true }))
  for e = 1, experts do
    for _, row in ipairs { starts[e], starts[e + 1] - 1 } do
      if starts[e] <= row and row < starts[e + 1] then
        local own = stored(w:slice(1, (e - 1) * n, e * n), dtype)
        local alone = q.row_linear(rows:slice(1, row, row + 1), { own })[1]
        assert(bits(golden.flat(alone)) == bits({ unpack(y, row * n + 1, (row + 1) * n) }),
          ("row %d of %s has other bits alone"):format(row, dtype))
      end
    end
  end
end

-- ---------------------------------------------------------------- stored weights under adapters

for _, dtype in ipairs { "f16", "bf16", "q8_0", "q6_k" } do
  local n, wide = 16, 256
  local w = stored(q.randn({ experts * n, wide }, { seed = 5 }), dtype)
  local first = q.tensor({ 0, 2, 2, 9, 12, 12, 13, 19 }, "i32")
  local found = {}
  for i, each in ipairs { w, w:to "f32" } do  -- as it is stored, and decoded
    local x = q.randn({ 20, wide }, { seed = 6 })
    local a, b = q.randn({ experts, rank, wide }, { seed = 7 }), q.randn({ experts, n, rank }, { seed = 8 })
    for _, t in ipairs { x, a, b } do t:requires_grad(true) end
    local y = q.grouped_linear(x, each:reshape { experts, n, wide }, first, { lora = { a = a, b = b, scale = scale } });
    (y * q.randn({ 20, n }, { seed = 9 })):sum():backward()
    found[i] = { y = golden.flat(y), x = golden.flat(x:grad()), a = golden.flat(a:grad()), b = golden.flat(b:grad()) }
  end
  for name, values in pairs(found[1]) do close(values, found[2][name], name .. " of " .. dtype, 2e-6) end
  for i = 19 * n + 1, 20 * n do assert(found[1].y[i] == 0, "a row past the last expert's is not 0") end
end

-- ---------------------------------------------------------------- one expert is a linear layer

for _, case in ipairs { { "f32", 1e-6 }, { "bf16", 0.01 } } do
  local dtype, n, wide, rows = case[1], 24, 40, 30
  local function made(...)
    local t = q.keep(q.randn({ ... }, { seed = 10 + select("#", ...) + select(1, ...) }):to(dtype))
    t:requires_grad(true)
    return t
  end
  local x, w, bias, a, b = made(rows, wide), made(n, wide), made(n), made(rank, wide), made(n, rank)
  local of = { x = x, w = w, bias = bias, a = a, b = b }
  local dy = q.randn({ rows, n }, { seed = 11 })
  local function results(y)
    (y * dy):sum():to("f32"):backward()
    local found = { y = golden.flat(y:to "f32") }
    for name, t in pairs(of) do
      found[name] = golden.flat(t:grad())
      t:requires_grad(false)
      t:requires_grad(true)
    end
    return found
  end
  q.rng_step(1)
  local want = results(q.linear(x, w, { bias = bias, lora = { a = a, b = b, scale = scale, dropout = 0.4 } }))
  local function one(t) return t:unsqueeze(1) end
  q.rng_step(1)
  local got = results(q.grouped_linear(x, one(w), q.tensor({ 0, rows }, "i32"),
    { bias = one(bias), lora = { a = one(a), b = one(b), scale = scale, dropout = 0.4 } }))
  for name, values in pairs(got) do close(values, want[name], name .. " of one expert in " .. dtype, case[2]) end
end

-- ---------------------------------------------------------------- what is refused

local first = q.tensor({ 0, 1, 2, 3, 4, 5, 6, 9 }, "i32")
refused("no gradient", q.grouped_linear, p.x, p.gate, first, { apart = true })
refused("expected [rows, in]", q.grouped_linear, p.x, p.down, first)
refused("first is", q.grouped_linear, p.x, p.gate, q.tensor({ 0, 9 }, "i32"))
refused("expected 1 to 7", q.route, p.scores, 8)
local function now(fn, ...)  -- a device that finds it while it runs says so when it is waited for
  return golden.flat(q.no_grad(fn, ...))
end
refused("expected ascending", now, q.grouped_linear, p.x, p.gate, q.tensor({ 0, 3, 2, 3, 4, 5, 6, 9 }, "i32"))
refused("expected ascending", now, q.grouped_linear, p.x, p.gate, q.tensor({ 0, 1, 2, 3, 4, 5, 6, 10 }, "i32"))
do  -- rows apart, of bf16: a GPU's tensor cores
  local x, w = q.randn({ 50, 64 }, { seed = 1 }):to "bf16", q.randn({ 4, 40, 64 }, { seed = 2 }):to "bf16"
  local wrong = { { 0, 30, 20, 40, 50 }, { 0, 10, 20, 40, 60 }, { 3, 10, 20, 40, 50 }, { 0, -5, 20, 40, 50 } }
  for _, starts in ipairs(wrong) do
    refused("expected ascending", now, q.grouped_linear, x, w, q.tensor(starts, "i32"), { apart = true })
  end
end
refused("outside [0, 27)", now, q.dispatch, p.x, q.zeros({ tokens, k }, "i32"):set(27))
print "a mixture of experts is the formula's, in any batch"
