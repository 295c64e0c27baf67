-- q.time: of a function whose time is known, of tensors, and what stays of the runs.
local q = require "qeng"
q.device { device = "cpu", threads = 1 }

local function busy(seconds)
  local began = q.time()
  while q.time() < began + seconds do end
end
local known = q.time(busy, 0.02)
assert(known.fastest >= 0.02 and known.median >= known.fastest and known.median <= known.slowest)
assert(known.median < 0.2 and known.runs >= 3 and known.share == nil)  -- ten times as long, on a machine that is busy
assert(tostring(known):find "^%d[%d.]* ms %(%d[%d.]* ms to %d[%d.]* m?s, %d+ runs%)$", tostring(known))

local a, b = q.randn { 256, 256 }, q.randn { 256, 256 }
local product = q.time(q.linear, a, b)
assert(product.flops == 2 * 256 ^ 3 and product.share > 0)
assert(tostring(product):find "; %d+ %% of the device's limit, %d[%d.]* GFLOP/s, %d[%d.]* GB/s$", tostring(product))
assert(q.time(function() return a * b + 1 end).bytes > 2 * 4 * 256 ^ 2, "an expression that was returned is computed")

local before = q.memory().activations.bytes
q.time(function() return q.zeros { 1000 } end)
collectgarbage()
assert(q.memory().activations.bytes <= before, "tensors of the runs stayed")

assert(type(q.time()) == "number")
local ok, err = q.try(q.time, 5)
assert(not ok and err.message:find "a function expected, got a number")
ok, err = q.try(q.time, function() q.error("value", "no good") end)
assert(not ok and err.message == "no good")
print "timing: ok"
