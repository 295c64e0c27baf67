-- The levels that represent one coordinate of a random unit vector with the least mean squared error.
--
-- A coordinate t of a vector drawn evenly from the unit sphere of d dimensions has the density of (1 - t^2)^((d - 3)
-- / 2) on [-1, 1]. Its best levels (Lloyd 1957, Max 1960) are the means of their cells, and cells end half way
-- between levels: equations that Newton's method solves at once, as each level meets its two neighbours alone.
-- Lloyd's own iteration needs a hundred thousand rounds for 256 levels.
--
-- Here lengths are in units of 1 / sqrt(d), so that they hardly depend on d, and the levels below 0 are left out.

local q = require "qeng.core"

local codebook = {}

-- Points and weights of Gauss's quadrature on [-1, 1]: the roots of the Legendre polynomial of that degree.
local degree = 16
local points, weights = {}, {}
for i = 1, degree do
  local x, slope = math.cos(math.pi * (i - 0.25) / (degree + 0.5)), 0
  for _ = 1, 100 do
    local before, value = 0, 1
    for n = 1, degree do before, value = value, ((2 * n - 1) * x * value - (n - 1) * before) / n end
    slope = degree * (x * value - before) / (x * x - 1)
    x = x - value / slope
    if math.abs(value) < 1e-15 then break end
  end
  points[i], weights[i] = x, 2 / ((1 - x * x) * slope * slope)
end

-- The integral of f from a to b, in steps of at most a half.
local function integral(f, a, b)
  local steps = math.max(1, math.ceil(2 * (b - a)))
  local half, sum = (b - a) / steps / 2, 0
  for step = 1, steps do
    local middle = a + (2 * step - 1) * half
    for i = 1, degree do sum = sum + weights[i] * f(middle + half * points[i]) end
  end
  return half * sum
end

-- (1 - x)^power, to the last digits also where x is small and the power large (Kahan's logarithm).
local function below_one(x, power)
  local rest = 1 - x
  if rest <= 0 then return power > 0 and 0 or 1 end
  return math.exp(power * (rest == 1 and -x or math.log(rest) * x / (1 - rest)))
end

-- A density of (1 - s^2 / d)^power on s >= 0 up to its end, without its constant factor.
local function density(d, power)
  return function(s) return below_one(s * s / d, power) end, math.min(math.sqrt(d), 40)
end

-- Where the integral from 0 has reached each of the given ascending parts of the whole.
local function quantiles(f, to, parts)
  local cells, sums = 4096, { [0] = 0 }
  for i = 1, cells do sums[i] = sums[i - 1] + integral(f, (i - 1) * to / cells, i * to / cells) end
  local found, cell = {}, 1
  for i, part in ipairs(parts) do
    local wanted = part * sums[cells]
    while sums[cell] < wanted do cell = cell + 1 end
    found[i] = (cell - 1 + (wanted - sums[cell - 1]) / (sums[cell] - sums[cell - 1])) * to / cells
  end
  return found
end

-- Solves for the levels above 0. Returns them and the probability of each one's cell.
local function solve(d, count)
  local power = (d - 3) / 2
  local f, to = density(d, power)
  local parts = {}
  for i = 1, count do parts[i] = (i - 0.5) / count end
  local root, root_to = density(d, power / 3)  -- many levels lie as densely as the third root of the density
  local level = quantiles(root, math.min(root_to, to), parts)
  local whole = 2 * integral(f, 0, to)
  local function moment(s) return -d / (d - 1) * below_one(s * s / d, (d - 1) / 2) end
  local edge, mass, mean, change, diagonal, above = {}, {}, {}, {}, {}, {}
  for _ = 1, 1000 do
    edge[0], edge[count] = 0, to
    for i = 1, count - 1 do edge[i] = (level[i] + level[i + 1]) / 2 end
    -- level - mean = 0: below, diagonal and above are its derivatives by the levels.
    for i = 1, count do
      mass[i] = integral(f, edge[i - 1], edge[i])
      mean[i] = (moment(edge[i]) - moment(edge[i - 1])) / mass[i]
      local left = i > 1 and (mean[i] - edge[i - 1]) * f(edge[i - 1]) / mass[i] / 2 or 0
      local right = i < count and (edge[i] - mean[i]) * f(edge[i]) / mass[i] / 2 or 0
      diagonal[i], above[i], change[i] = 1 - left - right, -right, mean[i] - level[i]
      if i > 1 then
        local factor = -left / diagonal[i - 1]
        diagonal[i], change[i] = diagonal[i] - factor * above[i - 1], change[i] - factor * change[i - 1]
      end
    end
    local most, before, ordered = 0, 0, true
    for i = count, 1, -1 do change[i] = (change[i] - (i < count and above[i] * change[i + 1] or 0)) / diagonal[i] end
    for i = 1, count do
      ordered = ordered and level[i] + change[i] > before and level[i] + change[i] < to
      before, most = level[i] + change[i], math.max(most, math.abs(change[i]))
    end
    -- A step that would mix up the levels is Lloyd's instead.
    for i = 1, count do level[i] = ordered and level[i] + change[i] or mean[i] end
    if ordered and most < 1e-13 then break end
  end
  for i = 1, count do mass[i] = mass[i] / whole end
  return level, mass
end

local made = {}

-- The codebook of 2^bits levels for vectors of dim elements. dim: 4 or more; bits: 1 to 8.
-- {levels =, thresholds =: ascending, of a unit vector's coordinate; distortion =: the mean of |u - its levels|^2}.
-- A coordinate on a threshold belongs to the lower level.
function codebook.sphere(dim, bits)
  if dim < 4 or dim % 1 ~= 0 then q.error("value", ("a codebook for vectors of %s; expected 4 or more"):format(dim)) end
  if bits < 1 or bits > 8 or bits % 1 ~= 0 then
    q.error("value", ("a codebook of %s bits; expected 1 to 8"):format(bits))
  end
  local name = dim .. "/" .. bits
  if made[name] then return made[name] end
  local count = 2 ^ (bits - 1)
  local half, mass = solve(dim, count)
  local unit, levels, thresholds, kept = 1 / math.sqrt(dim), {}, {}, 0
  for i = 1, count do
    levels[count + i], levels[count + 1 - i] = half[i] * unit, -half[i] * unit
    kept = kept + 2 * mass[i] * half[i] ^ 2
  end
  for i = 1, 2 * count - 1 do thresholds[i] = (levels[i] + levels[i + 1]) / 2 end
  made[name] = { levels = levels, thresholds = thresholds, distortion = 1 - kept }
  return made[name]
end

return codebook
