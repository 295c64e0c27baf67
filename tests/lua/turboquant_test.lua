-- Codebooks, rotations and codecs are what theory and published tables say (the figures of Lloyd-Max quantisers of a
-- sphere's coordinates in float64; those of the normal distribution are Max's).
local codebook = require "qeng.codes.codebook"
local codecs = require "qeng.turboquant.codecs"
local methods = require "qeng.turboquant.methods"
local q = require "qeng"
local rotations = require "qeng.codes.rotations"

q.device { device = os.getenv "QENG_TEST_DEVICE" or "cpu" }

local function near(got, want, tolerance, what)
  assert(math.abs(got - want) <= tolerance, ("%s: %.8g, expected %.8g within %.1g"):format(what, got, want, tolerance))
end

do  -- codebooks: the levels above 0 times sqrt(dim), and the distortion
  local known = {
    { 64, { 0.80101 }, 0.35839 }, { 64, { 0.45212, 1.49997 }, 0.11453 },
    { 64, { 0.24375, 0.75066, 1.32934, 2.11131 }, 0.03339 },
    { 64, { 0.12735, 0.38472, 0.65049, 0.93189, 1.23940, 1.59085, 2.02331, 2.64637 }, 0.00913 },
    { 128, { 0.79944 }, 0.36089 }, { 128, { 0.45245, 1.50519 }, 0.11600 },
    { 128, { 0.24442, 0.75333, 1.33660, 2.13147 }, 0.03397 },
    { 128, { 0.12787, 0.38638, 0.65362, 0.93710, 1.24777, 1.60434, 2.04593, 2.68886 }, 0.00932 },
    { 256, { 0.79866 }, 0.36214 }, { 256, { 0.45262, 1.50780 }, 0.11674 },
    { 256, { 0.24476, 0.75467, 1.34025, 2.14167 }, 0.03426 },
    { 256, { 0.12813, 0.38721, 0.65519, 0.93971, 1.25199, 1.61117, 2.05741, 2.71057 }, 0.00941 },
  }
  for _, row in ipairs(known) do
    local dim, levels, distortion = unpack(row)
    local bits = math.log(2 * #levels) / math.log(2)
    local book = codebook.sphere(dim, bits)
    for i, level in ipairs(levels) do
      near(book.levels[#levels + i] * math.sqrt(dim), level, 6e-6, ("level %d of %d, %d bits"):format(i, dim, bits))
    end
    near(book.distortion, distortion, 6e-6, "distortion")
  end
  -- Many coordinates: the normal distribution's.
  local normal = {
    { 0.797885 }, { 0.452780, 1.510418 }, { 0.245094, 0.756005, 1.343909, 2.151946 },
    { 0.128395, 0.388048, 0.656759, 0.942340, 1.256231, 1.618046, 2.069017, 2.732590 },
    { 0.065890, 0.198052, 0.331378, 0.466700, 0.604934, 0.747136, 0.894565, 1.048783, 1.211804, 1.386340, 1.576228,
      1.787233, 2.028728, 2.317739, 2.691120, 3.260732 },
  }
  for bits, levels in ipairs(normal) do
    local book = codebook.sphere(1e8, bits)
    for i, level in ipairs(levels) do
      near(book.levels[#levels + i] * 1e4, level, 1e-6, ("level %d of %d bits"):format(i, bits))
    end
  end
  for bits, distortion in ipairs { 0.363380, 0.117482, 0.034548, 0.009501, 0.002505, 6.442e-4, 1.635e-4, 4.119e-5 } do
    near(codebook.sphere(1e8, bits).distortion / distortion, 1, 2.5e-4, ("distortion of %d bits"):format(bits))
  end
  assert(codebook.sphere(256, 8).distortion <= 4.2e-5)
end

local function directions(count, dim, seed)
  local x = q.randn({ count, dim }, { seed = seed })
  return (x / x:norm(-1, true)):compute()
end

do  -- rotations are orthogonal, keep products, and are undone; those of blocks have determinant 1
  local function identity_error(m)
    local dim = m:shape()[1]
    return (m:matmul(m, { transpose_a = true }) - rotations.make("identity", dim).matrix):abs():max():item()
  end
  for _, dim in ipairs { 64, 80, 96, 128, 192, 256 } do
    local x = directions(5, dim, 3)
    for _, name in ipairs(rotations.names) do
      local r = rotations.make(name, dim, 7)
      assert(identity_error(r.matrix) < 1e-5, ("%s of %d is not orthogonal"):format(name, dim))
      local y = rotations.apply(r, x)
      assert((rotations.undo(r, y) - x):abs():max():item() < 2e-6 and (y:norm(-1) - 1):abs():max():item() < 2e-6)
      assert(name == "identity" or (y - x):abs():max():item() > 0.01, name .. " turns nothing")
      local other = rotations.make(name, dim, 8).matrix
      assert(name == "identity" or (other - r.matrix):abs():max():item() > 0.1, "one for all seeds")
    end
  end
  -- The determinant of 8 rows by elimination.
  local function determinant(rows)
    local product = 1
    for i = 1, 8 do
      local pivot = i
      for r = i + 1, 8 do if math.abs(rows[r][i]) > math.abs(rows[pivot][i]) then pivot = r end end
      if pivot ~= i then rows[i], rows[pivot], product = rows[pivot], rows[i], -product end
      product = product * rows[i][i]
      for r = i + 1, 8 do
        local factor = rows[r][i] / rows[i][i]
        for c = i, 8 do rows[r][c] = rows[r][c] - factor * rows[i][c] end
      end
    end
    return product
  end
  for _, view in ipairs { "vector", "plus", "minus" } do
    local m = rotations.of_blocks(q.randn({ 4, 8, 8 }, { seed = 5, std = 1.5 }), view)
    assert(identity_error(m) < 1e-5, view)
    for b = 0, 3 do
      local block = m:slice(1, 8 * b, 8 * b + 8):slice(2, 8 * b, 8 * b + 8):table()
      near(determinant(block), 1, 1e-5, view .. "'s determinant")
    end
    near(rotations.of_blocks(q.zeros { 2, 8, 8 }, view):abs():sum():item(), 16, 1e-6, view .. " at the beginning")
  end
  -- exp of a turn in one plane is that turn.
  local a = q.zeros { 1, 8, 8 }
  a[0][0]:set { 0, 0.7, 0, 0, 0, 0, 0, 0 }
  local turn = rotations.of_blocks(a)
  near(turn:at(0, 0), math.cos(0.7), 1e-6, "cosine")
  near(turn:at(0, 1), math.sin(0.7), 1e-6, "sine")
end

do  -- the mean squared error of unit vectors, and what corrections promise
  for _, dim in ipairs { 64, 128, 256 } do
    local x = directions(10000, dim, dim)
    for bits = 1, 4 do
      local want = codebook.sphere(dim, bits).distortion
      local decoded = codecs.sphere(dim, { bits = bits, correction = "none" }).reconstruct(x)
      local error_ = (decoded - x):square():sum(-1):mean():item()
      near(error_ / want, 1, 0.01, ("distortion of %d bits, %d"):format(bits, dim))
      near((decoded * x):sum(-1):mean():item(), 1 - want, 2e-3, "what is kept of the length")
      local same = codecs.sphere(dim, { bits = bits, correction = "norm" }).reconstruct(x * 3)
      assert((same:norm(-1) - 3):abs():max():item() < 3e-3, "the length is not that of the vector")
      local inner = codecs.sphere(dim, { bits = bits, correction = "inner" }).reconstruct(x * 3)
      assert(((inner * x):sum(-1) - 3):abs():max():item() < 6e-3, "the product with the vector itself")
    end
  end
  local zeros = q.zeros { 3, 64 }
  for _, correction in ipairs { "none", "norm", "inner" } do
    assert(codecs.sphere(64, { bits = 2, correction = correction }).reconstruct(zeros):abs():max():item() == 0)
  end
  assert(codecs.product(64, { bits = 2 }).reconstruct(zeros):abs():max():item() == 0)
end

-- Errors of products of `count` random directions with directions at right angles to them: mean, its standard error,
-- and dim times the mean square.
local function product_errors(codec_of, dim, count, rounds)
  local sum, squares = 0, 0
  for round = 1, rounds do
    local x, other = directions(count, dim, 100 + round), q.randn({ count, dim }, { seed = 500 + round })
    other = (other - x * (other * x):sum(-1, true)):compute()
    other = (other / other:norm(-1, true)):compute()
    local errors = (codec_of(round).reconstruct(x) * other):sum(-1)
    sum, squares = sum + errors:sum():item(), squares + errors:square():sum():item()
  end
  local n = count * rounds
  return sum / n, math.sqrt(squares) / n, dim * squares / n
end

do  -- Stage 2 has no bias and its variance is the theory's; the corrected Stage 1 has less
  local dim = 128
  for bits, want in ipairs { 1.55, 0.557, 0.175, 0.053 } do
    local mean, error_, variance = product_errors(function(round)
      return codecs.product(dim, { bits = bits, seed = round })
    end, dim, 2000, 10)
    assert(math.abs(mean) < 3 * error_, ("Stage 2 of %d bits is biased: %g +- %g"):format(bits, mean, error_))
    near(variance / want, 1, 0.04, ("variance of Stage 2, %d bits"):format(bits))
  end
  do  -- and of mixed widths
    local mean, error_, variance = product_errors(function(round)
      return codecs.product(dim, { bits = 2.25, seed = round })
    end, dim, 2000, 10)
    assert(math.abs(mean) < 3 * error_ and variance < 0.557 and variance > 0.175)
  end
  for bits, want in ipairs { 0.57, 0.128, 0.0348, 0.0093 } do
    local mean, error_, variance = product_errors(function()
      return codecs.sphere(dim, { bits = bits, correction = "inner" })
    end, dim, 5000, 4)
    assert(math.abs(mean) < 3 * error_)
    near(variance / want, 1, 0.04, ("variance of the corrected Stage 1, %d bits"):format(bits))
  end
  -- One sign's estimate of a product, over 10^5 draws: its mean is the product, its variance the theory's.
  local r, other = directions(1, dim, 1):table()[1], directions(1, dim, 2):table()[1]
  local product = 0
  for i = 1, dim do product = product + r[i] * other[i] end
  local count, draws = 100000, q.randn({ 100000, dim }, { seed = 9 })
  local estimates = draws:matmul(q.tensor(r)):ge(0) * 2 - 1
  estimates = estimates * draws:matmul(q.tensor(other)) * math.sqrt(math.pi / 2)
  local variance = math.pi / 2 - product * product
  local bias = estimates:mean():item() - product
  assert(math.abs(bias) < 3 * math.sqrt(variance / count), "signs of random products are biased")
  near(estimates:var():item() / variance, 1, 0.02, "variance of an estimate by a sign")
end

do  -- one large channel costs nothing after two rounds, much within blocks of 8
  local dim = 128
  local x = q.randn({ 4000, dim }, { seed = 11 })
  local large = q.where(q.arange(0, dim):eq(5), 20, 1)
  x = (x * large):compute()
  local function relative(name)
    local r = rotations.make(name, dim, 3)
    local y = rotations.apply(r, x)
    local decoded = codecs.sphere(dim, { bits = 3, correction = "none" }).reconstruct(y)
    return ((decoded - y):square():sum(-1) / y:square():sum(-1)):mean():item()
  end
  assert(relative "hadamard2" < 0.036 and relative "random_haar" < 0.036)
  assert(relative "block_so8_static" > 0.1 and relative "identity" > 0.2)
end

do  -- values under an attention of one key: the error is that of the vector
  local x = directions(4000, 256, 21)
  for bits, want in pairs { [2] = 0.342, [3] = 0.185, [4] = 0.097, [8] = 0.0064 } do
    local decoded = codecs.sphere(256, { bits = bits, correction = "none" }).reconstruct(x)
    local relative = ((decoded - x):square():sum() / x:square():sum()):sqrt():item()
    near(relative, want, 0.01 * want, ("values in %d bits"):format(bits))
  end
end

do  -- sizes are true: scales and masks are counted
  near(codecs.sphere(128, { bits = 4 }).bits * 128 / 8, 66, 0, "bytes of 4 bits")
  near(codecs.sphere(128, { bits = 3 }).bits * 128 / 8, 50, 0, "bytes of 3 bits")
  near(codecs.product(128, { bits = 4 }).bits * 128 / 8, 68, 0, "bytes of 4 bits with signs")
  near(codecs.alternating(128, { bits = 2, wide = 1, period = 2 }).bits, 2.5 + 16 / 128, 0, "2.5 bits")
  -- The seed's ratios to 16 bits, heads of 256: keys by Stage 2 alone, and values by Stage 1 too.
  local keys, values = q.zeros { 4, 1, 256 }, "+random_haar/sphere%d.none"
  for bits, ratios in pairs { [2] = { 0.566406, 0.130859 }, [3] = { 0.597656, 0.193359 }, [4] = { 0.628906, 0.255859 },
      [8] = { 0.753906, 0.505859 } } do
    for i, name in ipairs { "random_haar/product%d+identity/exact", "random_haar/product%d" .. values } do
      local found = methods.parse(name:gsub("%%d", bits), 256, 0).look(0, keys, keys).bits / 16
      near(found, ratios[i], 5e-7, ("ratio %d of %d bits"):format(i, bits))
    end
  end
  -- Of its mixed widths the seed counts no mask: of 256 coordinates log2 of 256 over 64, 204 bits.
  for bits, ratios in pairs { [2.25] = { 0.574219, 0.146484 }, [3.25] = { 0.605469, 0.208984 } } do
    for i, name in ipairs { "random_haar/product%g+identity/exact", "random_haar/product%g+random_haar/mixed%g" } do
      local found = methods.parse(name:gsub("%%g", bits), 256, 0).look(0, keys, keys).bits
      near(found / 16 - i * 204 / 256 / 32, ratios[i], 5e-7, ("ratio %d of %g bits"):format(i, bits))
    end
  end
  local mixed = codecs.mixed(128, { bits = 2 })
  assert(mixed.bits > 3 and mixed.bits < 3.2, "the mask of mixed widths is not counted")
  -- At equal bits mixed widths are worse than a uniform one.
  local x = directions(4000, 128, 31)
  local function distortion(codec) return (codec.reconstruct(x) - x):square():sum(-1):mean():item() end
  local function between(period)
    return distortion(codecs.alternating(128, { bits = 2, wide = 1, period = period, correction = "none" }))
  end
  near(between(2), 0.076, 0.002, "2.5 bits")
  near(between(4), 0.0955, 0.002, "2.25 bits")
  near(distortion(mixed), 0.083, 0.003, "mixed widths")
end

do  -- codecs without the sphere's codebook
  local x = q.randn({ 300, 64 }, { seed = 41 })
  x = (x * q.where(q.arange(0, 64):eq(3), 8, 1)):compute()
  -- Four bits in blocks are q4_0, but for what lies half way between two codes.
  local same = codecs.block(64, { bits = 4 }).reconstruct(x) - q.quantize(x, "q4_0"):to "f32"
  assert(same:abs():max():item() == 0, "block4 is not q4_0")
  local before = 0
  for bits = 8, 2, -1 do
    for _, kind in ipairs { "block", "tile" } do
      local codec = codecs[kind](64, { bits = bits })
      local error_ = (codec.reconstruct(x, "key") - x):square():mean():item() / x:square():mean():item()
      assert(error_ < 1.2 * 4 ^ (1.5 - bits), ("%s of %d bits: %g"):format(kind, bits, error_))
      if kind == "block" then
        assert(error_ > before)
        before = error_
      end
    end
  end
  -- Keys: f16 a token, and three a channel of the tile; values: three a token, and one a channel.
  near(codecs.tile(64, { bits = 2 }).bits, 2 + (48 / 128 + 16 / 64 + 16 / 128 + 48 / 64) / 2, 0, "bits of tiles")
  -- E4M3: what it holds stays, the rest goes to the nearer.
  local fp8 = codecs.fp8(64)
  local held = q.tensor { 0, 448, -448, 1, 1.125, -0.0625, 2 ^ -9, -7 * 2 ^ -9, 2 ^ -6, 240, 256 }
  assert((fp8.reconstruct(held) - held):abs():max():item() == 0)
  local moved = fp8.reconstruct(q.tensor { 1e6, -500, 1.07, 1.05, 2 ^ -11, 300 }):table()
  for i, want in ipairs { 448, -448, 1.125, 1, 0, 288 } do near(moved[i], want, 0, "E4M3") end
  local tiny = (fp8.reconstruct(x) / x - 1):abs()
  assert(q.where(x:abs():gt(2 ^ -6), tiny, 0):max():item() <= 1 / 17 + 1e-6)
end

for _, case in ipairs {
  { function() codebook.sphere(3, 2) end, "expected 4 or more" },
  { function() codebook.sphere(64, 9) end, "expected 1 to 8" },
  { function() rotations.make("spin", 64) end, "expected one of identity" },
  { function() rotations.make("block_so8_static", 60) end, "multiple of 8" },
  { function() codecs.sphere(64, { bits = 2, correction = "x" }) end, "expected none, norm or inner" },
} do
  local ok, why = pcall(case[1])
  assert(not ok and tostring(why):find(case[2], 1, true), tostring(why))
end
