-- Systems of equations with a symmetric positive definite matrix, in float64: A = L L^T, then two triangular solves.
-- About n^3 / 3 steps of a loop: a second for n = 1536.

local ffi = require "ffi"
local q = require "qeng.core"

local Cholesky = {}
Cholesky.__index = Cholesky

-- The sum of the products of a[i .. i + n) and b[j .. j + n). Four sums, since each addition waits for the last one.
local function dot(a, i, b, j, n)
  local s0, s1, s2, s3 = 0, 0, 0, 0
  local whole = n - n % 4
  for k = 0, whole - 1, 4 do
    s0 = s0 + a[i + k] * b[j + k]
    s1 = s1 + a[i + k + 1] * b[j + k + 1]
    s2 = s2 + a[i + k + 2] * b[j + k + 2]
    s3 = s3 + a[i + k + 3] * b[j + k + 3]
  end
  for k = whole, n - 1 do s0 = s0 + a[i + k] * b[j + k] end
  return s0 + s1 + s2 + s3
end

-- Factors the n x n matrix of which row(i) gives row i, from 1, as a list; its entries beyond the diagonal are not
-- read. add: a number added to the diagonal.
local function factor(n, row, add)
  local l = ffi.new("double[?]", n * n)
  for i = 0, n - 1 do
    local values = row(i + 1)
    for j = 0, i do
      local rest = values[j + 1] - dot(l, i * n, l, j * n, j)
      if j < i then
        l[i * n + j] = rest / l[j * n + j]
      else
        rest = rest + add
        if not (rest > 0) then
          q.error("value", ("edit: the matrix of %d rows is not positive definite (row %d leaves %g): a text of more "
            .. "tokens or a larger ridge makes it so"):format(n, i + 1, rest))
        end
        l[i * n + i] = math.sqrt(rest)
      end
    end
  end
  return setmetatable({ n = n, l = l }, Cholesky)
end

-- The list x with A x = b, a list.
function Cholesky:solve(b)
  local n, l, x, result = self.n, self.l, ffi.new("double[?]", self.n), {}
  for i = 0, n - 1 do x[i] = (b[i + 1] - dot(l, i * n, x, 0, i)) / l[i * n + i] end
  for i = n - 1, 0, -1 do  -- L^T by its columns, which are the rows of L
    local value = x[i] / l[i * n + i]
    x[i] = value
    for j = 0, i - 1 do x[j] = x[j] - value * l[i * n + j] end
  end
  for i = 0, n - 1 do result[i + 1] = x[i] end
  return result
end

return { factor = factor }
