-- Arithmetic on tensors: what is made of the functions that bindings/bind_expression.cpp has. Everything here is an
-- expression (engine/autograd/expression.h): it is computed, in one pass where it can be, when something reads it.
--
-- Dimensions count from 1, or from -1 backwards. Shapes are broadcast as NumPy does.

local q = require "qeng.core"

local shapes = require "qeng.shapes"

local Tensor = q.Tensor

-- The dimensions that `dims` says (a number, a list; nil: all), in order, from 0.
local function dimensions(x, dims, name)
  local rank, list, seen = #x:shape(), {}, {}
  if dims == nil then
    dims = {}
    for d = 1, rank do dims[d] = d end
  end
  for _, d in ipairs(type(dims) == "table" and dims or { dims }) do
    local from_one = shapes.dimension(d, rank, name)
    if not seen[from_one] then list[#list + 1] = from_one - 1 end
    seen[from_one] = true
  end
  table.sort(list)
  return list
end

-- x whose dimensions `list` are 1, without them, or as it is with keep.
local function dropped(x, list, keep)
  if keep then return x end
  local gone, shape = {}, {}
  for _, d in ipairs(list) do gone[d + 1] = true end
  for d, size in ipairs(x:shape()) do
    if not gone[d] then shape[#shape + 1] = size end
  end
  return x:reshape(#shape > 0 and shape or { 1 })
end

local function count(x, list)
  local n, shape = 1, x:shape()
  for _, d in ipairs(list) do n = n * shape[d + 1] end
  return n
end

-- ---------------------------------------------------------------- elementwise

function Tensor.square(x) return x * x end
function Tensor.reciprocal(x) return 1 / x end
function Tensor.relu(x) return x:maximum(0) end
function Tensor.silu(x) return x * x:sigmoid() end
-- GELU (Hendrycks & Gimpel 2016, arXiv 1606.08415): x times the normal distribution up to x. approximate: the form
-- with tanh.
function Tensor.gelu(x, approximate)
  if approximate then return x * (1.5957691216 * (x + 0.044715 * x * x * x)):sigmoid() end
  return 0.5 * x * (1 + (x * 0.7071067811865476):erf())
end
-- log(1 + e^x) without its overflow.
function Tensor.softplus(x) return x:maximum(0) + (-x:abs()):exp():log1p() end
-- Each element brought to [low, high]; either may be nil.
function Tensor.clamp(x, low, high)
  if low then x = x:maximum(low) end
  return high and x:minimum(high) or x
end
-- a where the condition is not 0, else b.
function q.where(condition, a, b) return condition:_where(a, b) end

-- ---------------------------------------------------------------- reductions

function Tensor.sum(x, dims, keep)
  local list = dimensions(x, dims, "sum")
  return dropped(x:_sum(list), list, keep)
end

function Tensor.mean(x, dims, keep)
  local list = dimensions(x, dims, "mean")
  local n = count(x, list)
  if n == 0 then q.error("shape", "mean: there is nothing to average") end
  return dropped(x:_sum(list) * (1 / n), list, keep)
end

local function extreme(name, of_row)
  Tensor[name] = function(x, dims, keep)
    local list = dimensions(x, dims, name)
    local shape, n, others, last, reduced = x:shape(), count(x, list), {}, {}, {}
    for _, d in ipairs(list) do reduced[d + 1] = true end
    for d = 1, #shape do
      local to = reduced[d] and last or others
      to[#to + 1] = d
      if reduced[d] then shape[d] = 1 end
    end
    if #last == 0 then return x end
    for _, d in ipairs(last) do others[#others + 1] = d end
    local rows = {}
    for i = 1, #others - #last do rows[i] = x:shape()[others[i]] end
    local ordered = true
    for i, d in ipairs(others) do ordered = ordered and i == d end
    if not ordered then x = x:permute(others) end
    if #last > 1 then
      rows[#rows + 1] = n
      x = x:reshape(rows)
    end
    return dropped(#last > 1 and of_row(x):reshape(shape) or ordered and of_row(x) or of_row(x):reshape(shape), list,
      keep)
  end
end
extreme("max", function(x) return x:_row_max() end)
extreme("min", function(x) return x:_row_min() end)

-- The variance; corrected: divided by n - 1 instead of n.
function Tensor.var(x, dims, keep, corrected)
  local list = dimensions(x, dims, "var")
  local n = count(x, list)
  local centred = x - x:_sum(list) * (1 / n)
  return dropped((centred * centred):_sum(list) * (1 / (n - (corrected and 1 or 0))), list, keep)
end

-- f(x), and where x is 0 the value `there`, with a gradient of 0: the slope of f is infinite, and would make NaN.
local function steep(f, x, there)
  local zero = x:eq(0)
  return q.where(zero, there, f(q.where(zero, 1, x)))
end

-- The root of the sum of squares.
function Tensor.norm(x, dims, keep)
  local list = dimensions(x, dims, "norm")
  return dropped(steep(Tensor.sqrt, (x * x):_sum(list), 0), list, keep)
end

function Tensor.any(x, dims, keep) return x:ne(0):sum(dims, keep):gt(0) end
function Tensor.all(x, dims, keep) return x:eq(0):sum(dims, keep):eq(0) end

-- What exponentials are taken relative to: of no influence on the result, so nothing flows through it.
local function highest(x) return q.no_grad(x._row_max, x) end

local largest = 3.3895e38  -- finite in f32 and in bf16

-- log(sum(exp(x))) over the last dimension. An infinite maximum would give the NaN of infinity - infinity.
function Tensor.logsumexp(x, keep)
  local most = highest(x):clamp(-largest, largest)
  local sum = (x - most):exp():_sum { #x:shape() - 1 }
  return dropped(steep(Tensor.log, sum, -1 / 0) + most, { #x:shape() - 1 }, keep)
end

-- Over the last dimension.
function Tensor.softmax(x)
  local e = (x - highest(x)):exp()
  return e * (1 / e:_sum { #x:shape() - 1 })
end
function Tensor.log_softmax(x)
  local shifted = x - highest(x)
  return shifted - shifted:exp():_sum { #x:shape() - 1 }:log()
end

for name in ([[
  abs sign exp expm1 log log1p sqrt rsqrt sin cos tanh erf sigmoid square reciprocal relu silu gelu softplus clamp
  minimum maximum softmax log_softmax logsumexp
]]):gmatch "%S+" do
  q[name] = function(x, ...)
    if type(x) == "number" then q.error("value", ("q.%s: Tensor expected, got a number"):format(name)) end
    return Tensor[name](x, ...)
  end
end
