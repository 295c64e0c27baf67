-- Layer norms, norms of groups and causal convolutions are what the algebra makes of their equations, with their
-- gradients; a convolution that keeps a state gives the bits of one that sees all rows.
local q = require "qeng"
q.device { device = os.getenv "QENG_TEST_DEVICE" or "cpu" }

-- |a - b| / |a|
local function distance(a, b)
  return math.sqrt((q.quant.squared_error(a, b)) / (q.quant.squared_error(q.zeros(a:shape()), a)))
end

-- Compares y and the gradients of `inputs` (each wanted) of two ways to compute the same.
local function same(what, inputs, one, other)
  local results = {}
  for k, way in ipairs { one, other } do
    for _, x in ipairs(inputs) do
      x:requires_grad(true)
      x:grad():fill(0)
    end
    local y = way(unpack(inputs))
    local loss = (y * q.randn(y:shape(), { seed = 5 })):sum()
    loss:backward()
    results[k] = { y:clone() }
    for i, x in ipairs(inputs) do results[k][i + 1] = x:grad():clone() end
  end
  for i, result in ipairs(results[1]) do
    local off = distance(results[2][i], result)
    assert(off < 1e-5, ("%s: %s is off by %g"):format(what, i == 1 and "y" or "gradient " .. i - 1, off))
  end
end

local function draw(seed, ...) return q.randn({ ... }, { seed = seed, std = 1 }) end

same("layer norm", { draw(1, 5, 33), draw(2, 33), draw(3, 33) },
  function(x, w, b) return q.layer_norm(x, w, b, 1e-5) end,
  function(x, w, b)
    local centred = x - x:mean(-1, true)
    return centred * (centred:square():mean(-1, true) + 1e-5):rsqrt() * w + b
  end)
same("layer norm without a bias, used twice", { draw(1, 5, 8), draw(2, 8) },
  function(x, w) return q.layer_norm(x, w, nil, 1e-5) + q.layer_norm(x * 2, w, nil, 0.1) end,
  function(x, w)
    local centred = x - x:mean(-1, true)
    local variance = centred:square():mean(-1, true)
    return centred * ((variance + 1e-5):rsqrt() + 2 * (variance * 4 + 0.1):rsqrt()) * w
  end)
same("norm of groups", { draw(1, 5, 3, 16), draw(2, 3, 16) },
  function(x, w) return q.rmsnorm(x, w, 1e-5) end,
  function(x, w) return x * (x:square():mean(-1, true) + 1e-5):rsqrt() * w end)
same("gated norm of groups", { draw(1, 5, 3, 16), draw(2, 3, 16), draw(3, 5, 3, 16) },
  function(x, w, z) return q.rmsnorm(x * z:silu(), w, 1e-5) end,
  function(x, w, z)
    local gated = x * z * z:sigmoid()
    return gated * (gated:square():mean(-1, true) + 1e-5):rsqrt() * w
  end)

local cu = q.tensor({ 0, 5, 5, 6, 11 }, "i32")
local first = q.tensor({ 0, 0, 0, 0, 0, 5, 6, 6, 6, 6, 6, 11, 12 }, "i32")
same("convolution", { draw(1, 13, 7), draw(2, 7, 4), draw(3, 7) },
  function(x, w, b) return q.causal_conv(x, w, b, cu) end,
  function(x, w, b)
    local y = b
    for j = 0, 3 do
      local back = 3 - j
      local moved = x:pad(1, back, 0):slice(1, 0, 13)
      local inside = (q.arange(13) - back):ge(first):unsqueeze(2)
      y = y + q.where(inside, moved, 0) * w:slice(2, j, j + 1):reshape { 1, 7 }
    end
    return y * q.arange(13):lt(11):unsqueeze(2)  -- rows past the last document
  end)

-- Two documents in pieces: the state of each is carried from piece to piece.
q.no_grad(function()
  local x, w, b = draw(4, 20, 6), draw(5, 6, 4), draw(6, 6)
  local whole = q.causal_conv(x, w, b, q.tensor({ 0, 12, 20 }, "i32"))
  local state, lengths = q.zeros { 7, 3, 6 }, { 0, 0 }
  local at, ends = { 0, 12 }, { 12, 20 }
  local rows, pages = {}, q.tensor({ 6, 2, 1, 4, 0, 5 }, "i32"):reshape { 2, 3 }
  for _, counts in ipairs { { 1, 5 }, { 7, 0 }, { 2, 1 }, { 2, 2 } } do
    local parts, bounds = {}, { 0 }
    for d, count in ipairs(counts) do
      if count > 0 then parts[#parts + 1] = x:slice(1, at[d], at[d] + count) end
      bounds[d + 1], lengths[d] = bounds[d] + count, lengths[d] + count
    end
    local y = q.causal_conv(q.concat(parts), w, b, q.tensor(bounds, "i32"),
      { state = state, pages = pages, lengths = q.tensor(lengths, "i32"), page_tokens = 4 })
    for d, count in ipairs(counts) do
      for k = 0, count - 1 do rows[at[d] + k] = y:rows(bounds[d] + k, 1) end
      at[d] = at[d] + count
    end
  end
  assert(at[1] == ends[1] and at[2] == ends[2])
  for row = 0, 19 do
    assert(q.quant.squared_error(whole:rows(row, 1), rows[row]) == 0, "a convolution in pieces has other bits")
  end
  assert(state:rows(3, 1):square():sum():item() == 0, "a page of no document was written")
end)

local function refused(text, ...)
  local _, why = q.try(...)
  assert(why and tostring(why):find(text, 1, true), ("expected %s, got %s"):format(text, tostring(why)))
end
local x, w = q.zeros { 4, 6 }, q.zeros { 6, 3 }
refused("w is f32 [6, 9]", q.causal_conv, x, q.zeros { 6, 9 }, nil, cu)
local function read(...) return q.causal_conv(...):table() end  -- a device says it when it is waited for
refused("is 6; expected ascending from 0 to at most 4", read, x, w, nil, q.tensor({ 0, 1, 2, 6 }, "i32"))
refused("state, pages and lengths are given together", q.causal_conv, x, w, nil, q.tensor({ 0, 4 }, "i32"),
  { state = q.zeros { 1, 2, 6 } })
refused("is outside", read, x, w, nil, q.tensor({ 0, 4 }, "i32"), {
  state = q.zeros { 1, 2, 6 }, pages = q.tensor({ 1 }, "i32"):reshape { 1, 1 }, lengths = q.tensor({ 4 }, "i32"),
  page_tokens = 8,
})
local trained = q.zeros { 4, 6 }
trained:requires_grad(true)
refused("no gradient passes it", q.causal_conv, trained, w, nil, q.tensor({ 0, 4 }, "i32"), {
  state = q.zeros { 1, 2, 6 }, pages = q.tensor({ 0 }, "i32"):reshape { 1, 1 }, lengths = q.tensor({ 4 }, "i32"),
  page_tokens = 8,
})
refused("rmsnorm: w is f32 [2, 6], expected f32 [6], or f32 [4, 6] by group", q.rmsnorm, x, q.zeros { 2, 6 }, 1e-5)
refused("b is f32 [5], w is f32 [6]", q.layer_norm, x, q.zeros { 6 }, q.zeros { 5 }, 1e-5)
print "layers: as the algebra computes them"
