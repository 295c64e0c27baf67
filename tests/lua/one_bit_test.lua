-- One-bit and ternary weights from Lua: saved, counted, multiplied with a scale for each row, and as GGUF.
local q = require "qeng"

local function near(x, y, what)
  assert(math.abs(x - y) <= 1e-5 * math.max(1, math.abs(y)), ("%s: %g, expected %g"):format(what, x, y))
end

local rows, columns = 5, 256
local plain = q.randn({ rows, columns }, { seed = 7 })
local bits, pairs_ = q.quantize(plain, "one_bit"), q.quantize(plain, "ternary")
local scale = q.tensor { 0.5, -1, 2, 0.25, 4 }

-- Saved and restored.
local path = os.tmpname() .. ".safetensors"
q.safetensors.save(path, { { "bits", bits }, { "pairs", pairs_ }, { "scale", scale } })
local file = q.safetensors.open(path)
assert(file:info("bits").dtype == "one_bit" and file:info("pairs").dtype == "ternary")
local restored = q.quantize(q.zeros { rows, columns }, "one_bit")
assert(q.onebit.count_bits(restored) == rows * columns)
restored:copy(file:tensor("bits", { shape = { rows, columns } }))
assert(q.onebit.count_bits(restored, bits) == 0)
assert(q.quant.squared_error(file:tensor "pairs", pairs_) == 0)
file:close()
os.remove(path)

-- Counted, and by rows.
local set, values = 0, bits:to("f32"):table()
for r = 1, rows do
  local of_row = 0
  for c = 1, columns do of_row = of_row + (values[r][c] == 1 and 1 or 0) end
  assert(q.onebit.count_bits(bits:rows(r - 1, 1)) == of_row)
  set = set + of_row
end
assert(q.onebit.count_bits(bits) == set)
assert(q.onebit.count_bits(bits:rows(0, 1), bits:rows(1, 1)) > 0)

-- Multiplied: exact where x is whole numbers of at most 127.
local x = q.zeros { 2, columns }
x:rows(1, 1):fill(127)
local y = q.row_linear(x, { bits, pairs_ }, { scale = { scale, false }, bias = { false, q.tensor { 1, 2, 3, 4, 5 } } })
local dense = pairs_:to("f32"):table()
local factors = scale:table()
for r = 1, rows do
  local of_bits, of_pairs = 0, 0
  for c = 1, columns do of_bits, of_pairs = of_bits + values[r][c], of_pairs + dense[r][c] end
  near(y[1]:table()[1][r], 0, "zeros")
  near(y[1]:table()[2][r], 127 * of_bits * factors[r], "one_bit")
  near(y[2]:table()[2][r], 127 * of_pairs + r, "ternary")
end
-- The largest possible sums: all codes are 127 or -127, all weights as they are.
for _, dtype in ipairs { "one_bit", "ternary" } do
  local largest = q.tensor { 127 }
  local ones = q.quantize(q.zeros({ 1, 1312 }):fill(1), dtype)
  for _, sign in ipairs { 1, -1 } do
    local input = q.zeros({ 1, 1312 }):fill(sign * 127)
    near(q.row_linear(input, { ones }, { scale = { largest } })[1]:item(), sign * 1312 * 127 * 127, dtype)
  end
end

local ok, problem = pcall(q.row_linear, x, { bits }, { scale = { q.tensor { 1, 2 } } })
assert(not ok and tostring(problem):find("scale", 1, true), tostring(problem))

-- As GGUF: a plan never rounds such weights to a type of few bits, and a file gives them back.
local types = require "qeng.gguf.types"
local shape = { layers = 2, groups = 1, tied = true }
local name = "blk.0.ffn_up.weight"
assert(types.plan("q1_0", "", shape):type_of(name, { rows, columns }, "one_bit") == "q1_0")
assert(types.plan("q1_0", "", shape):type_of(name, { rows, 96 }) == "q4_0")
ok, problem = pcall(types.plan("q1_0", "", shape).type_of, types.plan("q1_0", "", shape), name, { rows, 96 }, "one_bit")
assert(not ok and problem.message:find("blk.0.ffn_up.weight=f16", 1, true), tostring(problem))

local export = require "qeng.gguf.export"
path = os.tmpname() .. ".gguf"
local source = {
  metadata = { { "general.architecture", "string", "llama" } }, shape = shape,
  tensors = {
    { name = name, shape = { rows, columns }, signs = "one_bit", read = function() return bits, scale end },
    { name = "blk.1.ffn_up.weight", shape = { rows, columns }, signs = "ternary",
      read = function() return pairs_, scale end },
  },
}
export.write(path, source, types.plan("q1_0", "blk.1=tq2_0", shape))
file = q.gguf.open(path)
assert(file:info(name).dtype == "q1_0" and file:info("blk.1.ffn_up.weight").dtype == "tq2_0")
local w, s = q.onebit.split_row_scale(file:tensor(name))
assert(q.onebit.count_bits(w, bits) == 0 and q.quant.squared_error(s, scale) == 0)
w, s = q.onebit.split_row_scale(file:tensor "blk.1.ffn_up.weight")
assert(q.quant.squared_error(w, pairs_) == 0 and q.quant.squared_error(s, scale) == 0)
file:close()
local report = export.write(path, source, types.plan("q8_0", "", shape), { measure = true })
assert(report.by_type[1].type == "q8_0" and report.by_type[1].rmse < 1e-3)
os.remove(path)

-- Weights with a scale a group have none a row.
ok, problem = pcall(q.onebit.split_row_scale, q.quantize(plain, "q1_0"))
assert(not ok and tostring(problem):find("keep this tensor in its format", 1, true), tostring(problem))
print "one_bit: saved, counted, multiplied and exported"
