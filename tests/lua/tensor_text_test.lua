-- How tensors print, and what Tensor:describe says of them. The texts are those of numpy 2.4 (precision=4,
-- linewidth=80), except that all numbers have as many decimals as the one that needs most.
local q = require "qeng"

local function shows(tensor, ...)
  local expected = table.concat({ ... }, "\n")
  local text = tostring(tensor)
  assert(text == expected, ("expected\n%s\ngot\n%s"):format(expected, text))
end

shows(q.tensor({ 1, -2, 300 }, "i32"), "i32 [3]  [  1  -2 300]")
shows(q.tensor({ { 0, 255 }, { 7, 10 } }, "u8"), "u8 [2, 2]", "[[  0 255]", " [  7  10]]")
shows(q.tensor { 1, 2, -3 }, "f32 [3]  [ 1.  2. -3.]")
shows(q.tensor { { 0.5, 0.25 }, { -1, 10 } }, "f32 [2, 2]", "[[ 0.50  0.25]", " [-1.00 10.00]]")
shows(q.tensor { 1 / 3, 2 / 3 }, "f32 [2]  [0.3333 0.6667]")
shows(q.tensor { 1e-5, 0.25 }, "f32 [2]  [1.0e-05 2.5e-01]")
shows(q.tensor { 12345.678, 1 }, "f32 [2]  [1.2346e+04 1.0000e+00]")
shows(q.tensor { 1e9 }, "f32 [1]  [1.0e+09]")
shows(q.tensor { 0 / 0, 1 / 0, -1 / 0, 0.5 }, "f32 [4]  [ nan  inf -inf  0.5]")
shows(q.tensor({ 0.1, 2 }, "bf16"), "bf16 [2]  [0.1001 2.0000]")
shows(q.zeros { 2 }:label "w", "f32 [2] w  [0. 0.]")
shows(q.zeros { 0, 3 }, "f32 [0, 3]")
shows(q.tensor({ { { 1, 2 }, { 3, 4 } }, { { 5, 6 }, { 7, 8 } } }, "i32"),
  "i32 [2, 2, 2]", "[[[1 2]", "  [3 4]]", "", " [[5 6]", "  [7 8]]]")
shows(q.tensor({ 1, 2 }, "i64"):reshape { 1, 2, 1, 1 }, "i64 [1, 2, 1, 1]", "[[[[1]]", "", "  [[2]]]]")
local closed = q.zeros { 1 }
closed:free()
shows(closed, "Tensor (closed)")

-- A row that is longer than a line goes on below; of more than 1000 elements the edges are shown.
local counted = {}
for i = 1, 30 do counted[i] = i end
shows(q.tensor(counted, "i32"), "i32 [30]",
  "[ 1  2  3  4  5  6  7  8  9 10 11 12 13 14 15 16 17 18 19 20 21 22 23 24 25 26",
  " 27 28 29 30]")
local many = {}
for i = 1, 50 do
  many[i] = {}
  for k = 1, 30 do many[i][k] = 100 * i + k end
end
shows(q.tensor(many, "i32"), "i32 [50, 30]",
  "[[ 101  102  103 ...  128  129  130]", " [ 201  202  203 ...  228  229  230]",
  " [ 301  302  303 ...  328  329  330]", " ...", " [4801 4802 4803 ... 4828 4829 4830]",
  " [4901 4902 4903 ... 4928 4929 4930]", " [5001 5002 5003 ... 5028 5029 5030]]")
shows(q.tensor(many, "i32"):reshape { 500, 3 }:rows(0, 400), "i32 [400, 3]",
  "[[ 101  102  103]", " [ 104  105  106]", " [ 107  108  109]", " ...", " [4022 4023 4024]", " [4025 4026 4027]",
  " [4028 4029 4030]]")
shows(q.tensor(many, "i32"):reshape { 1500 }, "i32 [1500]  [ 101  102  103 ... 5028 5029 5030]")
shows(q.tensor(many, "i32"):reshape { 2, 2, 375 }, "i32 [2, 2, 375]",
  "[[[ 101  102  103 ... 1313 1314 1315]", "  [1316 1317 1318 ... 2528 2529 2530]]", "",
  " [[2601 2602 2603 ... 3813 3814 3815]", "  [3816 3817 3818 ... 5028 5029 5030]]]")
local blocks = q.quantize(q.tensor(many):reshape { 1500 }:rows(0, 1280):reshape { 5, 256 }, "q8_0")
assert(tostring(blocks):find "^q8_0 %[5, 256%]\n%[%[ *%d" and tostring(blocks):find " %.%.%. ", tostring(blocks))

-- Printing reads the edges alone: the rest of a file's pages, for one, is not touched.
local large = q.zeros { 64, 1024, 1024 }
local before = q.host.peak_rss()
assert(tostring(large):find "%[0%. 0%. 0%. %.%.%. 0%. 0%. 0%.%]")
assert(q.host.peak_rss() - before < 16e6, "printing copied the tensor")
large:free()

-- An expression is computed when it prints; a table shows the head.
shows(q.tensor { 1, 2 } * 2, "f32 [2]  [2. 4.]")
local repl = require "qeng.console.repl"
assert(repl.text({ q.zeros { 2 }, q.zeros { 2, 2 } }) == "{f32 [2]  [0. 0.], f32 [2, 2]}")

-- ---------------------------------------------------------------- describe, against sorting in Lua

local function near(a, b) return math.abs(a - b) <= 1e-9 + 1e-6 * math.abs(b) end
local function check(tensor)
  local d, values, sum, zeros = tensor:describe(), tensor:reshape({ tensor:elements() }):table(), 0, 0
  table.sort(values)
  for _, value in ipairs(values) do
    sum = sum + value
    zeros = zeros + (value == 0 and 1 or 0)
  end
  local mean, squares = sum / #values, 0
  for _, value in ipairs(values) do squares = squares + (value - mean) ^ 2 end
  assert(d.elements == #values and d.zeros == zeros and d.nan == 0 and d.inf == 0)
  assert(d.min == values[1] and d.max == values[#values])
  assert(near(d.mean, mean) and near(d.std, math.sqrt(squares / #values)))
  for share, found in pairs(d.quantiles) do
    local position = share * (#values - 1)
    local i = math.floor(position)
    local low, high = values[i + 1], values[math.min(i + 2, #values)]
    assert(near(found, low + (position - i) * (high - low)), ("quantile %g of %d: %g"):format(share, #values, found))
  end
end
for n = 1, 40 do check(q.randn({ n }, { seed = n })) end
check(q.randn({ 37, 101 }, { seed = 3, std = 1e-3 }))
check(q.uniform({ 1100000 }, { seed = 1, low = -2, high = 1 }))  -- more than a piece
check(q.tensor({ 5, 5, 0, 0, -1 }, "i32"))
check(q.quantize(q.randn({ 8, 256 }, { seed = 2 }), "q4_k"):to "f32")
assert(q.quantize(q.randn({ 8, 256 }, { seed = 2 }), "q4_k"):describe().elements == 2048)

local odd = q.tensor { 0 / 0, 1 / 0, -1 / 0, 0, 4, 2 }:describe()
assert(odd.nan == 1 and odd.inf == 2 and odd.zeros == 1 and odd.min == 0 and odd.max == 4 and odd.mean == 2)
assert(odd.quantiles[0.5] == 2)
local none = q.tensor { 0 / 0 }:describe()
assert(none.nan == 1 and none.mean ~= none.mean and none.quantiles[0.5] ~= none.quantiles[0.5])
assert(q.zeros({ 0 }):describe().elements == 0)
assert(tostring(q.tensor({ { 1, 2 }, { 3, 0 } }):describe()) == table.concat({ "f32 [2, 2], 4 elements",
  "  min, max   0, 3", "  mean, std  1.5, 1.11803",
  "  quantiles  1 %, 25 %, 50 %, 75 %, 99 %: 0.03, 0.75, 1.5, 2.25, 2.97", "  zeros      1 (25 %)",
  "  not finite 0 NaN, 0 infinite" }, "\n"), tostring(q.tensor({ { 1, 2 }, { 3, 0 } }):describe()))
print "tensor text: ok"
