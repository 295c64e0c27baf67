-- Powers of symmetric matrices that are not negative, as lists of rows, in float64: by Jacobi's rotations, which make
-- one pair of entries zero after the other. A matrix of 128 rows takes a tenth of a second.

local symmetric = {}

function symmetric.product(a, b)
  local out, n = {}, #b[1]
  for i, row in ipairs(a) do
    local sums = {}
    for j = 1, n do sums[j] = 0 end
    for k, x in ipairs(row) do
      local other = b[k]
      for j = 1, n do sums[j] = sums[j] + x * other[j] end
    end
    out[i] = sums
  end
  return out
end

-- The eigenvalues, and V whose columns are their vectors: a = V diag(values) V^T.
function symmetric.eigen(matrix)
  local n, a, v = #matrix, {}, {}
  for i = 1, n do
    a[i], v[i] = {}, {}
    for j = 1, n do a[i][j], v[i][j] = (matrix[i][j] + matrix[j][i]) / 2, i == j and 1 or 0 end
  end
  local function turn(m, p, r, c, s)  -- columns p and r
    for k = 1, n do
      local row = m[k]
      local x, y = row[p], row[r]
      row[p], row[r] = c * x - s * y, s * x + c * y
    end
  end
  for _ = 1, 50 do
    local off, whole = 0, 0
    for i = 1, n do
      for j = 1, n do
        whole = whole + a[i][j] ^ 2
        if i ~= j then off = off + a[i][j] ^ 2 end
      end
    end
    if off <= 1e-26 * whole then break end
    for p = 1, n - 1 do
      for r = p + 1, n do
        local here = a[p][r]
        if here ~= 0 then
          local tau = (a[r][r] - a[p][p]) / (2 * here)
          local t = (tau >= 0 and 1 or -1) / (math.abs(tau) + math.sqrt(tau * tau + 1))
          local c = 1 / math.sqrt(t * t + 1)
          local s, one, other = t * c, a[p], a[r]
          turn(a, p, r, c, s)
          for k = 1, n do
            local x, y = one[k], other[k]
            one[k], other[k] = c * x - s * y, s * x + c * y
          end
          turn(v, p, r, c, s)
        end
      end
    end
  end
  local values = {}
  for i = 1, n do values[i] = a[i][i] end
  return values, v
end

-- The matrix to a power; eigenvalues below `least` of the largest count as that.
function symmetric.power(matrix, exponent, least)
  local values, v = symmetric.eigen(matrix)
  local n, most = #values, 0
  for _, x in ipairs(values) do most = math.max(most, x) end
  local scaled, back = {}, {}
  for i = 1, n do
    scaled[i], back[i] = {}, {}
    for k = 1, n do scaled[i][k] = v[i][k] * math.max(values[k], least * most) ^ exponent end
  end
  for k = 1, n do for j = 1, n do back[k][j] = v[j][k] end end
  return symmetric.product(scaled, back)
end

return symmetric
