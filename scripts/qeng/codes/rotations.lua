-- Rotations of the vectors of a head before their coordinates are quantized: a codebook of a random direction's
-- coordinates suits any vector that has been turned at random. Products of turned vectors are those of the vectors
-- themselves.
--
-- A rotation is {name =, dim =, matrix = R: [dim, dim] f32}; y = x R^T, as rotations.apply does.

local q = require "qeng.core"

local rotations = {}

-- Gram and Schmidt's orthonormal rows, each made so twice, in the order of the rows. A matrix of normally distributed
-- numbers becomes one drawn evenly from all orthogonal matrices.
local function orthonormal(rows)
  for i, row in ipairs(rows) do
    for _ = 1, 2 do
      for j = 1, i - 1 do
        local other, product = rows[j], 0
        for c = 1, #row do product = product + row[c] * other[c] end
        for c = 1, #row do row[c] = row[c] - product * other[c] end
      end
    end
    local squares = 0
    for c = 1, #row do squares = squares + row[c] ^ 2 end
    for c = 1, #row do row[c] = row[c] / math.sqrt(squares) end
  end
  return rows
end

local function normal_rows(dim, seed) return q.randn({ dim, dim }, { seed = seed }):table() end

-- The rows of a matrix of blocks along the diagonal.
local function diagonal(blocks)
  local rows = {}
  for b, block in ipairs(blocks) do
    for i = 1, #block do
      local row = {}
      for c = 1, #blocks * #block do row[c] = block[i][c - (b - 1) * #block] or 0 end
      rows[#rows + 1] = row
    end
  end
  return rows
end

-- +1 or -1 for each of dim coordinates.
local function signs(dim, seed) return q.where(q.randn({ dim }, { seed = seed }):ge(0), 1, -1) end

-- Signs, and Hadamard's matrix over all coordinates: over the largest power of two of them, where they are none, once
-- from the first and once up to the last.
local function hadamard_round(x, dim, seed)
  local power = 1
  while power * 2 <= dim do power = power * 2 end
  local y = x * signs(dim, seed)
  if power == dim then return q.hadamard(y) end
  local rest = dim - power
  y = q.concat({ q.hadamard(y:slice(2, 0, power)), y:slice(2, power) }, 2)
  y = y * signs(dim, seed + 1000003)
  return q.concat({ y:slice(2, 0, rest), q.hadamard(y:slice(2, rest)) }, 2)
end

local function identity_rows(dim)
  local rows = {}
  for i = 1, dim do
    rows[i] = {}
    for c = 1, dim do rows[i][c] = i == c and 1 or 0 end
  end
  return rows
end

local function hadamard(dim, seed, rounds)
  local x = q.tensor(identity_rows(dim))
  for round = 1, rounds do x = hadamard_round(x, dim, seed + round - 1) end
  return x:transpose(1, 2):compute()  -- row i of x is R e_i
end

local function check_block(dim)
  if dim % 8 ~= 0 then
    q.error("unsupported", ("rotations of blocks of 8 need a multiple of 8 coordinates, not %d"):format(dim))
  end
end

-- The maps of zapabob/Turboquant-CUDA's three views of a block of 8: where each new coordinate comes from, and its
-- sign.
local views = {
  vector = { 1, 2, 3, 4, 5, 6, 7, 8 },
  plus = { 1, 8, 2, 3, 4, 5, 6, 7 },
  minus = { 1, -8, 7, 6, 5, 4, 3, 2 },
}

-- P for every block of 8, [dim, dim].
local function view_rows(name, dim)
  local block = {}
  for i, from in ipairs(views[name]) do
    block[i] = {}
    for c = 1, 8 do block[i][c] = c == math.abs(from) and from / c or 0 end
  end
  local blocks = {}
  for b = 1, dim / 8 do blocks[b] = block end
  return diagonal(blocks)
end

local makers = {
  identity = function(dim) return q.tensor(identity_rows(dim)) end,
  random_haar = function(dim, seed) return q.tensor(orthonormal(normal_rows(dim, seed))) end,
  -- Orthogonal, of determinant 1 or -1, as the seed's.
  block_so8_static = function(dim, seed)
    check_block(dim)
    local blocks = {}
    for b = 1, dim / 8 do blocks[b] = orthonormal(normal_rows(8, seed + b)) end
    return q.tensor(diagonal(blocks))
  end,
  hadamard = function(dim, seed) return hadamard(dim, seed, 1) end,
  hadamard2 = function(dim, seed) return hadamard(dim, seed, 2) end,
}

-- The rotations that need no fitting, by name.
rotations.names = { "identity", "random_haar", "block_so8_static", "hadamard", "hadamard2" }

-- The signs of hadamard2 over a power of two, [3, dim] as q.pages.head_linear takes them: those of its two rounds, and
-- none. Nil for other numbers of coordinates. inverse: of the transposed matrix.
function rotations.hadamard2_signs(dim, seed, inverse)
  if bit.band(dim, dim - 1) ~= 0 then return nil end
  local rounds = { signs(dim, seed), signs(dim, seed + 1), q.zeros { dim } + 1 }
  if inverse then rounds[1], rounds[3] = rounds[3], rounds[1] end
  return q.stack(rounds, 1)
end

-- A rotation by its name. dim: coordinates of a head; seed: of what is drawn at random (0).
function rotations.make(name, dim, seed)
  local maker = makers[name]
  if not maker then
    q.error("value", ("rotation %s; expected one of %s"):format(tostring(name), table.concat(rotations.names, ", ")))
  end
  return { name = name, dim = dim, matrix = q.scope(function() return q.keep(maker(dim, seed or 0)) end) }
end

-- The matrix [dim, dim] of blocks exp(A - A^T), after a view's map: of determinant 1, differentiable by A: [dim / 8,
-- 8, 8]. exp by squaring 4 times the Taylor polynomial of a 16th.
function rotations.of_blocks(a, view)
  local count = a:shape()[1]
  local s = (a - a:transpose(2, 3)) * (1 / 16)
  local sum, term = q.tensor(identity_rows(8)) + s, s
  for n = 2, 8 do
    term = term:matmul(s) * (1 / n)
    sum = sum + term
  end
  for _ = 1, 4 do sum = sum:matmul(sum) end
  -- Block b in rows and columns 8b and on.
  local places = q.tensor(identity_rows(count)):reshape { count, 1, count, 1 }
  local blocks = (sum:unsqueeze(3) * places):reshape { 8 * count, 8 * count }
  if not view or view == "vector" then return blocks end
  if not views[view] then q.error("value", ("view %s; expected vector, plus or minus"):format(tostring(view))) end
  return blocks:matmul(q.tensor(view_rows(view, 8 * count)))
end

-- x R^T: x [..., dim] turned.
function rotations.apply(rotation, x) return x:matmul(rotation.matrix, { transpose_b = true }) end
-- x R: turned back.
function rotations.undo(rotation, x) return x:matmul(rotation.matrix) end

return rotations
