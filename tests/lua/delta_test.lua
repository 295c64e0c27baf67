-- The gated delta rule from Lua: a document has the same bits alone and packed, in one step and in many; its gradient
-- too; and what 100,000 tokens leave is what the rule, token by token, gives in another arithmetic.
local q = require "qeng"

local heads = { key_heads = 2, key_dim = 16, value_heads = 4 }
local value_dim = 32
local columns = 2 * 2 * 16 + 4 * value_dim

local function draw(seed, rows, slowness)
  local function normal(n, subsequence)
    return q.randn({ rows, n }, { std = 1, seed = seed, subsequence = subsequence })
  end
  local x = normal(columns, 1)
  local g, beta = (normal(4, 2):abs() * -slowness):compute(), normal(4, 3):sigmoid():compute()
  return x, g, beta
end
local function bounds(list)
  local cu = { 0 }
  for i, length in ipairs(list) do cu[i + 1] = cu[i] + length end
  return q.tensor(cu, "i32"), cu
end
local function same(a, b) return q.quant.squared_error(a, b) == 0 end

-- ---- packed documents: forward and gradients, with a memory of a few tokens and of 10,000
for _, slowness in ipairs { 1, 1e-4 } do
  local lengths = { 1, 63, 64, 2, 200, 65, 3 }
  local cu, at = bounds(lengths)
  local x, g, beta = draw(1, 398, slowness)
  local weights = q.randn({ 398, 4 * value_dim }, { std = 1, seed = 2 })
  local function run(first, count, ends)
    local parts = { x:rows(first, count):clone(), g:rows(first, count):clone(), beta:rows(first, count):clone() }
    for _, part in ipairs(parts) do part:requires_grad(true) end
    local o = q.gated_delta(parts[1], parts[2], parts[3], ends, heads);
    (o * weights:rows(first, count)):sum():reshape({ 1 }):backward()
    return o, parts[1]:grad(), parts[2]:grad(), parts[3]:grad()
  end
  local whole = { run(0, 398, cu) }
  for i, length in ipairs(lengths) do
    local alone = { run(at[i], length, q.tensor({ 0, length }, "i32")) }
    for k, what in ipairs { "o", "the gradient of x", "of g", "of beta" } do
      assert(same(alone[k], whole[k]:rows(at[i], length)), ("%s of document %d has other bits alone"):format(what, i))
    end
  end
end

-- ---- in pages, step by step
local function pages_of(count, page_tokens)
  local state, rows = 4 * 16 * value_dim, 64 * (2 * 16 + 4 * (value_dim + 1))
  return {
    key_heads = 2, key_dim = 16, value_heads = 4, page_tokens = page_tokens,
    state = q.zeros({ count, state }):fill(0 / 0), rows = q.zeros({ count, rows }):fill(0 / 0),
  }
end
q.no_grad(function()
  local x, g, beta = draw(3, 300, 0.05)
  local cu = bounds { 170, 130 }
  local whole = q.gated_delta(x, g, beta, cu, heads)
  for _, steps in ipairs { { { 170, 130 } }, { { 1, 63 }, { 64, 1 }, { 0, 1 }, { 100, 65 }, { 5, 0 } } } do
    local how, at, given = pages_of(8, 64), { 0, 170 }, { {}, {} }
    how.pages = q.tensor({ 7, 2, 5, 0, 3, 1, 6, 4 }, "i32"):reshape { 2, 4 }
    for _, counts in ipairs(steps) do
      local function rows_of(t)
        local parts = {}
        for d, count in ipairs(counts) do
          if count > 0 then parts[#parts + 1] = t:slice(1, at[d], at[d] + count) end
        end
        return q.concat(parts)
      end
      how.lengths = q.tensor({ at[1] + counts[1], at[2] - 170 + counts[2] }, "i32")
      local ends, list = bounds(counts)
      local o = q.gated_delta(rows_of(x), rows_of(g), rows_of(beta), ends, how)
      for d, count in ipairs(counts) do
        if count > 0 then given[d][#given[d] + 1] = o:slice(1, list[d], list[d] + count) end
        at[d] = at[d] + count
      end
    end
    assert(at[1] == 170 and at[2] == 300)
    assert(same(q.concat { q.concat(given[1]), q.concat(given[2]) }, whole), "rows in several steps have other bits")
  end
end)

-- ---- a long document: the last rows by the rule itself, in f64
q.no_grad(function()
  local rows = 100000
  local narrow = { key_heads = 1, key_dim = 16, value_heads = 1 }
  local x = q.randn({ rows, 48 }, { std = 1, seed = 4 })
  local g = (q.randn({ rows, 1 }, { std = 1, seed = 5 }):abs() * -1e-4):compute()
  local beta = (q.randn({ rows, 1 }, { std = 1, seed = 6 }):sigmoid() * 0.05):compute()
  local o = q.gated_delta(x, g, beta, bounds { rows }, narrow):slice(1, rows - 1, rows):table()
  local xs, gs, betas = x:view(), g:view(), beta:view()
  local S = {}
  for i = 0, 255 do S[i] = 0 end
  local function unit(first)
    local sum = 1e-6
    for d = 0, 15 do sum = sum + xs[first + d] ^ 2 end
    return 1 / math.sqrt(sum)
  end
  local last = {}
  for t = 0, rows - 1 do
    local at, decay, b = t * 48, math.exp(gs[t]), betas[t]
    local of_q, of_k = unit(at) / 4, unit(at + 16)
    for c = 0, 15 do
      local read = 0
      for d = 0, 15 do
        S[d * 16 + c] = S[d * 16 + c] * decay
        read = read + S[d * 16 + c] * xs[at + 16 + d] * of_k
      end
      local delta, out = b * (xs[at + 32 + c] - read), 0
      for d = 0, 15 do
        S[d * 16 + c] = S[d * 16 + c] + xs[at + 16 + d] * of_k * delta
        out = out + S[d * 16 + c] * xs[at + d] * of_q
      end
      last[c + 1] = out
    end
  end
  for c = 1, 16 do
    assert(math.abs(o[1][c] - last[c]) < 1e-4 * math.max(1, math.abs(last[c])),
      ("after 100,000 tokens o[%d] is %.9g, token by token %.9g"):format(c, o[1][c], last[c]))
  end
end)

-- ---- refusals
local x, g, beta = draw(7, 5, 1)
local function refused(text, ...)
  local _, why = q.try(...)
  assert(why and tostring(why):find(text, 1, true), ("expected %s, got %s"):format(text, tostring(why)))
end
local cu = bounds { 5 }
refused("3 value heads are no multiple of 2 key heads", q.gated_delta, x, g, beta, cu,
  { key_heads = 2, key_dim = 16, value_heads = 3 })
refused("expected multiples of 16 up to 256", q.gated_delta, x, g, beta, cu,
  { key_heads = 2, key_dim = 8, value_heads = 4 })
refused("beta is f32 [5, 3], expected f32 [5, 4]", q.gated_delta, x, g, q.zeros { 5, 3 }, cu, heads)
local function read(...) return q.gated_delta(...):table() end
refused("cu[1] is 6; expected ascending from 0 to at most 5", read, x, g, beta, q.tensor({ 0, 6 }, "i32"), heads)
local how = pages_of(1, 48)
how.pages, how.lengths = q.tensor({ 0 }, "i32"):reshape { 1, 1 }, q.tensor({ 5 }, "i32")
refused("page_tokens is 48, expected a multiple of 64", q.gated_delta, x, g, beta, cu, how)
how.page_tokens, how.pages = 64, q.tensor({ 1 }, "i32"):reshape { 1, 1 }
refused("page 1 of document 0 is outside the 1 pages", read, x, g, beta, cu, how)
print "delta: alone, packed and step by step to the bit; 100,000 tokens within 1e-4"
