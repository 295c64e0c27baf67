-- What the tape does where functions give back what they did not make, where parameters are frozen, after a backward,
-- and where integers or expressions that nobody has read yet come into it.
local q = require "qeng"

q.device { device = os.getenv "QENG_TEST_DEVICE" or "cpu" }

local function text(t) return table.concat(t:table(), " ") end
local function parameter(t)
  local x = q.tensor(t)
  x:requires_grad(true)
  return x
end
local function refused(code, part, fn, ...)
  local ok, err = pcall(fn, ...)
  assert(not ok and err.code == code and err.message:find(part, 1, true), ok and "no error" or err.message)
end
local function gradient(w, loss)
  w:grad():fill(0)
  loss:sum():backward()
  return text(w:grad())
end

-- A checkpointed function gives an input, a parameter, a tensor from outside, a constant, positions.
local w, constant = parameter { 1, 2, 3 }, q.tensor { 1, 1, 2 }
local function both(x) return x, x * x end
local function add(a, b) return a + b end
assert(gradient(w, add(q.checkpoint("input", both, w * 2))) == "10 18 26")
assert(gradient(w, add(q.checkpoint("parameter", both, w))) == "3 5 7")
local passed = q.checkpoint("dropout", function(x) return q.dropout(x, 0) end, w * 2)
assert(gradient(w, passed * passed) == "8 16 24")
local doubled = w * 2
local outer, square = q.checkpoint("outer", function(x) return doubled, x * x end, w)
assert(gradient(w, outer * square) == "6 24 54")
for _ = 1, 2 do
  local mask, y = q.checkpoint("constant", function(x) return constant, x * x end, w)
  assert(gradient(w, mask * y * constant) == "2 4 24")
end
local best, places = q.checkpoint("places", function(x) return x:topk(2) end, w * 2)
assert(gradient(w, best * places) == "0 2 4")

-- Frozen parameters get no gradient, wherever backward runs; others do, through them and from what was made before.
local g, of, bias = parameter { { 0.5, -1 } }, parameter { { 1 }, { 2 } }, parameter { 3 }
local function score(x) return (x:matmul(of) + bias):tanh() end
local function gradients(run)
  for _, each in ipairs { g, of, bias } do each:grad():fill(0) end
  run()
  return text(g:grad():reshape { 2 }), text(of:grad():reshape { 2 }), text(bias:grad())
end
local x = q.tensor { { 1 }, { 2 } }
local expected = gradients(function() score(x:matmul(g)):mean():backward() end)
local function checkpointed(h) return q.checkpoint("score", score, h) end
for _, frozen in ipairs { score, checkpointed, function(h) return score(h):mean() end } do
  local got, of_it, of_bias = gradients(function()
    assert(bias:requires_grad())
    local y = q.freeze({ of, bias }, function(...)
      assert(not bias:requires_grad())
      return frozen(...)
    end, x:matmul(g))
    y:mean():backward()
  end)
  assert(got == expected and of_it == "0 0" and of_bias == "0")
end
local b = parameter { 4, 5, 6 }
assert(gradient(w, q.freeze({ w }, add, w, b) * w) == "5 7 9")            -- of the factor alone
assert(gradient(w, q.freeze({ w }, function(y) return y * b end, w * 2)) == "8 10 12")
assert(gradient(w, q.freeze({ b }, q.freeze, { w }, function() return w * b end) + w * 3) == "3 3 3")
b:grad():fill(0)
w:grad():fill(0)
local loss = (w * b):sum():compute()
q.freeze({ w }, loss.backward, loss)
assert(text(w:grad()) == "0 0 0" and text(b:grad()) == "1 2 3" and w:requires_grad())
local alone = (w * w):sum():compute()
q.freeze({ w }, alone.backward, alone)
assert(text(w:grad()) == "0 0 0")
refused("value", "depends on no tensor", function() q.freeze({ w }, function() return w * 2 end):sum():backward() end)

-- A gradient does not end unseen at what was made before an earlier backward.
local trunk = (w * w):compute()
gradient(w, trunk * 2)
refused("state", "before an earlier backward", gradient, w, trunk * 3)
refused("state", "before an earlier backward", gradient, w, q.checkpoint("old", both, trunk))
assert(gradient(w, trunk:clone() * w) == "1 4 9")
assert(gradient(w, w * w) == "2 4 6")

-- Nor at one that is to be a parameter: one of an earlier part can be, and a constant afterwards, and be written to.
local made = (w * 2):compute()
refused("state", "take its :clone()", made.requires_grad, made, true)
assert(gradient(w, made * made) == "8 16 24")
made:requires_grad(true)
assert(gradient(w, q.freeze({ made }, function() return made * w end)) == "2 4 6" and text(made:grad()) == "0 0 0")
assert(gradient(w, made * w) == "2 4 6" and text(made:grad()) == "1 2 3")
made:requires_grad(false)
assert(gradient(w, made * w) == "2 4 6")
trunk:set(0)

-- Gradients are summed in the order of what was computed, wherever it lies in memory.
local memory = { q.zeros { 1 }, q.zeros { 1 }, q.zeros { 1 }, q.zeros { 1 } }
for _, order in ipairs { { 1, 2, 3, 4 }, { 4, 3, 2, 1 }, { 4, 1, 2, 3 }, { 1, 4, 3, 2 } } do
  local one, y = memory[order[4]]:fill(1), {}
  one:requires_grad(true)
  for i, value in ipairs { 1e8, -1e8, 1 } do y[i] = one * memory[order[i]]:fill(value) end
  q.capture(q.zeros, { 1 })  -- which computes what is pending
  assert(gradient(one, y[1] + y[2] + y[3]) == "0")
  one:requires_grad(false)
end

-- No gradient flows through integers.
assert(gradient(w, w:to "i32" * w) == "1 2 3")
assert(gradient(w, w:to("i32"):to "f32" * w) == "1 2 3")
refused("dtype", "integers", function() q.tensor({ 1, 2 }, "i32"):requires_grad(true) end)

-- What was read as a step of an expression is there in and after a program.
local mask = constant:gt(1)
assert((w * mask):sum():item() == 3)
local program, sum = q.capture(function() return (w * mask):sum() end)
program:run()
assert(sum:item() == 3 and text(mask) == "0 0 1")
local scale = q.tensor { { 1, 2 }, { 3, 4 } } * 2
assert((scale + 1):sum():item() == 24)
local of_scale, product = q.capture(function() return scale:matmul(scale) end)
of_scale:run()
assert(text(product:reshape { 4 }) == "28 40 60 88")
print "tape: ok"
