-- Tensors in another order, elements by index, products of matrices: what is made of bindings/bind_shapes.cpp.
--
-- Dimensions count from 1, or from -1 backwards. Positions along a dimension count from 0, as token ids do, or from -1
-- backwards; a range ends before its end.

local q = require "qeng.core"

local Tensor = q.Tensor
local shapes = {}

-- Dimension d of a tensor of so many, from 1.
function shapes.dimension(d, rank, name)
  local from_one = type(d) == "number" and (d < 0 and rank + 1 + d or d)
  if not from_one or from_one < 1 or from_one > rank or from_one % 1 ~= 0 then
    q.error("shape", ("%s: there is no dimension %s in a tensor of %d"):format(name, tostring(d), rank))
  end
  return from_one
end

local function dimension(x, d, name) return shapes.dimension(d, #x:shape(), name) end

-- Position i of `size`, from 0.
local function position(i, size, name)
  local from_zero = type(i) == "number" and (i < 0 and size + i or i)
  if not from_zero or from_zero < 0 or from_zero >= size or from_zero % 1 ~= 0 then
    q.error("value", ("%s: position %s is outside [0, %d)"):format(name, tostring(i), size))
  end
  return from_zero
end

local function text(shape) return "[" .. table.concat(shape, ", ") .. "]" end

-- ---------------------------------------------------------------- shapes

-- Positions from .. to - 1 of a dimension, every step-th; either may be nil: all. A negative step goes backwards from
-- `from` (the last) to after `to` (before the first).
function Tensor.slice(x, dim, from, to, step)
  local d = dimension(x, dim, "slice")
  local size = x:shape()[d]
  step = step or 1
  if type(step) ~= "number" or step == 0 or step % 1 ~= 0 then
    q.error("value", "slice: the step is a whole number, not " .. tostring(step))
  end
  for _, each in pairs { from or 0, to or 0 } do
    if type(each) ~= "number" or each % 1 ~= 0 then
      q.error("value", "slice: positions are whole numbers, not " .. tostring(each))
    end
  end
  local low, high = step > 0 and 0 or -1, step > 0 and size or size - 1
  local function brought(i, default)
    if i == nil then return default end
    return math.max(low, math.min(high, i < 0 and size + i or i))
  end
  local first, last = brought(from, step > 0 and low or high), brought(to, step > 0 and high or low)
  return x:_slice(d - 1, first, step, math.max(0, math.ceil((last - first) / step)))
end

-- Position i of the first dimension, which is gone: what x[i] is.
function Tensor._at_first(x, i)
  local shape = x:shape()
  if #shape == 0 then q.error("shape", "a tensor of no dimension has no positions") end
  local first = position(i, shape[1], "index")
  table.remove(shape, 1)
  return x:_slice(0, first, 1, 1):reshape(#shape > 0 and shape or { 1 })
end

-- The number at these positions, one for each dimension.
function Tensor.at(x, ...)
  local shape, at = x:shape(), { ... }
  if #at ~= #shape then
    q.error("value", ("at: %d positions in a tensor of %d dimensions"):format(#at, #shape))
  end
  for d, i in ipairs(at) do x = x:_slice(d - 1, position(i, shape[d], "at"), 1, 1) end
  return x:item()
end

-- Dimension d of the result is dimension dims[d] of x.
function Tensor.permute(x, dims, ...)
  if type(dims) ~= "table" then dims = { dims, ... } end
  local list = {}
  for i, d in ipairs(dims) do list[i] = dimension(x, d, "permute") - 1 end
  return x:_permute(list)
end

-- Two dimensions exchanged: the last two if none are given.
function Tensor.transpose(x, a, b)
  local first, second = dimension(x, a or -2, "transpose"), dimension(x, b or -1, "transpose")
  local dims = {}
  for d = 1, #x:shape() do dims[d] = d == first and second or d == second and first or d end
  return x:permute(dims)
end

-- Without a dimension of 1; without all of them if none is given.
function Tensor.squeeze(x, dim)
  local shape, kept = x:shape(), {}
  local which = dim and dimension(x, dim, "squeeze")
  if which and shape[which] ~= 1 then
    q.error("shape", ("squeeze of %s: dimension %d is not 1"):format(text(shape), which))
  end
  for d, size in ipairs(shape) do
    if not (which and d == which or not which and size == 1) then kept[#kept + 1] = size end
  end
  return x:reshape(#kept > 0 and kept or { 1 })
end

-- With a dimension of 1 put in, which is then number dim.
function Tensor.unsqueeze(x, dim)
  local shape = x:shape()
  table.insert(shape, shapes.dimension(dim, #shape + 1, "unsqueeze"), 1)
  return x:reshape(shape)
end

-- Repeated where it has 1; -1 keeps a size.
function Tensor.expand(x, shape, ...)
  if type(shape) ~= "table" then shape = { shape, ... } end
  local own, wanted = x:shape(), {}
  for d, size in ipairs(shape) do wanted[d] = size == -1 and own[d - #shape + #own] or size end
  return x:_expand(wanted)
end

-- One after the other along a dimension (1).
function q.concat(parts, dim)
  if type(parts) ~= "table" or not parts[1] then q.error("value", "concat: a list of tensors is expected") end
  return q._concat(parts, dimension(parts[1], dim or 1, "concat") - 1)
end

-- The same along a new dimension.
function q.stack(parts, dim)
  if type(parts) ~= "table" or not parts[1] then q.error("value", "stack: a list of tensors is expected") end
  local list = {}
  for i, part in ipairs(parts) do list[i] = part:unsqueeze(dim or 1) end
  return q.concat(list, dim or 1)
end

-- Parts of these sizes, or of one size (the last may be smaller), along a dimension (1): as many results.
function Tensor.split(x, sizes, dim)
  local d = dimension(x, dim or 1, "split")
  local whole = x:shape()[d]
  if type(sizes) == "number" then
    if sizes < 1 or sizes % 1 ~= 0 then q.error("value", "split: parts have a whole number of positions") end
    local each = sizes
    sizes = {}
    for first = 0, whole - 1, each do sizes[#sizes + 1] = math.min(each, whole - first) end
  end
  local parts, first = {}, 0
  for i, size in ipairs(sizes) do
    parts[i], first = x:slice(d, first, first + size), first + size
  end
  if first ~= whole then
    q.error("shape", ("split of %s: the parts have %d positions of %d"):format(text(x:shape()), first, whole))
  end
  return unpack(parts)
end

local function filled(x, d, size, value)
  local shape = x:shape()
  shape[d] = size
  return q.zeros(shape, x:dtype()):fill(value)
end

-- So many positions of `value` (0) before and after those of a dimension.
function Tensor.pad(x, dim, before, after, value)
  local d, parts = dimension(x, dim, "pad"), { x }
  if before > 0 then table.insert(parts, 1, filled(x, d, before, value or 0)) end
  if (after or 0) > 0 then parts[#parts + 1] = filled(x, d, after, value or 0) end
  return q.concat(parts, d)
end

-- Position i goes to i + shift, around the end.
function Tensor.roll(x, shift, dim)
  local d = dimension(x, dim or 1, "roll")
  local size = x:shape()[d]
  local first = size > 0 and (size - shift) % size or 0
  return first == 0 and x or q.concat({ x:slice(d, first), x:slice(d, 0, first) }, d)
end

-- Backwards along a dimension.
function Tensor.flip(x, dim) return x:slice(dimension(x, dim or 1, "flip"), nil, nil, -1) end

-- from .. to - 1, every step-th; of one argument, 0 .. to - 1. Unless said otherwise i32, or f32 of fractions.
function q.arange(from, to, step, dtype)
  if to == nil then from, to = 0, from end
  local list = {}
  step = step or 1
  if step == 0 then q.error("value", "arange: the step is 0") end
  dtype = dtype or (from % 1 == 0 and step % 1 == 0 and "i32" or "f32")
  for i = 0, math.ceil((to - from) / step) - 1 do list[#list + 1] = from + i * step end
  return #list > 0 and q.tensor(list, dtype) or q.zeros({ 0 }, dtype)
end

local function triangle(x, keep)
  local shape = x:shape()
  if #shape < 2 then q.error("shape", "tril and triu take two dimensions or more, not " .. text(shape)) end
  return q.where(keep(q.arange(shape[#shape - 1]):unsqueeze(2), q.arange(shape[#shape])), x, 0)
end
-- Of the last two dimensions what lies on or below the k-th diagonal (0), on or above it; the rest is 0.
function Tensor.tril(x, k)
  return triangle(x, function(row, column) return (column - row):le(k or 0) end)
end
function Tensor.triu(x, k)
  return triangle(x, function(row, column) return (column - row):ge(k or 0) end)
end

-- ---------------------------------------------------------------- elements by index

local function indices(index, name)
  if type(index) == "table" then return q.tensor(index, "i32") end
  if index:dtype() ~= "i32" then q.error("dtype", name .. ": the index is i32, not " .. index:dtype()) end
  return index
end

-- Along dim, of each place of the index (i32, of x's shape but for dim; dimensions before it may all be 1, and those
-- behind it) the element there.
function Tensor.gather(x, dim, index)
  index = indices(index, "gather")
  if #index:shape() ~= #x:shape() then
    q.error("shape", ("gather of %s by %s: they have as many dimensions"):format(text(x:shape()), text(index:shape())))
  end
  return x:_gather(dimension(x, dim, "gather") - 1, index)
end

-- The positions of dim that a list or a tensor of one dimension says, in its order.
function Tensor.index_select(x, dim, index)
  index = indices(index, "index_select")
  if #index:shape() ~= 1 then
    q.error("shape", "index_select: the index has one dimension, not " .. text(index:shape()))
  end
  return x:_gather(dimension(x, dim, "index_select") - 1, index)
end

-- x with the values added where gather, or index_select, would read; equal places in the order of the index.
function Tensor.scatter_add(x, dim, index, values)
  return x:_scatter_add(dimension(x, dim, "scatter_add") - 1, indices(index, "scatter_add"), values)
end

-- 1 at the index, 0 elsewhere, along a new last dimension of n; u8 unless said otherwise.
function q.one_hot(index, n, dtype)
  local hot = index:unsqueeze(-1):eq(q.arange(n))
  return dtype and dtype ~= "u8" and q.where(hot, 1, q.zeros({ 1 }, dtype)) or hot
end

-- ---------------------------------------------------------------- orders

-- x with dimension d last, and what brings it back.
local function last(x, dim, name)
  local d, rank = dimension(x, dim or -1, name), #x:shape()
  if d == rank then return x, function(y) return y end end
  return x:transpose(d, rank), function(y) return y:transpose(d, rank) end
end

-- The k largest along a dimension (the last) in order, and their positions (i32); the least with largest = false.
-- Equal ones keep their order.
function Tensor.topk(x, k, dim, largest)
  local d, shape = dimension(x, dim or -1, "topk"), x:shape()
  if type(k) ~= "number" or k < 0 or k > shape[d] or k % 1 ~= 0 then
    q.error("shape", ("topk of %s: there are no %s elements along dimension %d"):format(text(shape), tostring(k), d))
  end
  local y, back = last(x, dim, "topk")
  local values, index = y:_sort(k, largest ~= false)
  return back(values), back(index)
end

-- All of them, ascending or descending.
function Tensor.sort(x, dim, descending)
  return x:topk(x:shape()[dimension(x, dim or -1, "sort")], dim, descending == true)
end
function Tensor.argsort(x, dim, descending)
  local _, index = x:sort(dim, descending)
  return index
end

local function extreme(name, largest)
  Tensor[name] = function(x, dim, keep)
    local d = dimension(x, dim or -1, name)
    local _, index = x:topk(1, d, largest)
    return keep and index or index:squeeze(d)
  end
end
-- The position of the largest (least) along a dimension (the last), the first of equals, i32.
extreme("argmax", true)
extreme("argmin", false)

-- The sum up to each position of a dimension (the last); reverse: from there on.
function Tensor.cumsum(x, dim, reverse)
  local y, back = last(x, dim, "cumsum")
  return back(y:_cumulative_sum(reverse or false))
end

-- ---------------------------------------------------------------- products

-- Matrices in the last two dimensions; those before are broadcast. A vector on the left is a row, one on the right a
-- column, and the result goes without that dimension. opt: transpose_a, transpose_b: that operand lies transposed.
function Tensor.matmul(a, b, opt)
  opt = opt or {}
  for key in pairs(opt) do
    if key ~= "transpose_a" and key ~= "transpose_b" then
      q.error("value", "matmul: there is no option " .. tostring(key) .. "; transpose_a and transpose_b are known")
    end
  end
  local row, column = #a:shape() == 1, #b:shape() == 1
  if row then a = a:unsqueeze(1) end
  if column then b = b:unsqueeze(2) end
  local c = a:_matmul(b, not row and opt.transpose_a or false, not column and opt.transpose_b or false)
  if column then c = c:squeeze(-1) end
  if row then c = c:squeeze(column and -1 or -2) end
  return c
end
-- a_i b_j of two vectors.
function q.outer(a, b) return a:reshape { -1, 1 } * b:reshape { 1, -1 } end
-- The sum of the products, over the last dimension.
function q.inner(a, b) return (a * b):sum(-1) end

for name in ([[
  matmul gather index_select scatter_add topk sort argsort argmax argmin cumsum tril triu roll flip pad split
]]):gmatch "%S+" do
  q[name] = function(x, ...)
    if type(x) == "number" then q.error("value", ("q.%s: Tensor expected, got a number"):format(name)) end
    return Tensor[name](x, ...)
  end
end

return shapes
