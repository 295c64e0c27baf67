-- q.save and q.load_tensors give back what was saved; .npy files are read as numpy wrote them (golden/npy_golden.py).
-- With a folder as argument, writes files there for npy_golden.py check.
package.path = (arg[0]:match("^(.*/)") or "./") .. "?.lua;" .. package.path
local q = require "qeng"
local scratch = require "scratch"

local refused = scratch.refused
local function same(a, b)
  assert(a:dtype() == b:dtype() and table.concat(a:shape(), ",") == table.concat(b:shape(), ","))
  assert(a:hash() == b:hash(), tostring(a) .. "\n" .. tostring(b))
end

-- ---------------------------------------------------------------- safetensors

local path = scratch.at "mine.safetensors"
local tensors = {
  weight = q.randn({ 3, 4 }, { seed = 1 }), half = q.randn({ 5 }, { seed = 2, dtype = "bf16" }),
  f16 = q.randn({ 2, 2, 2 }, { dtype = "f16" }), ids = q.tensor({ 1, -2 }, "i64"), bytes = q.tensor({ 255 }, "u8"),
  ["a.b"] = q.tensor({ { 7 } }, "i32"), sum = q.tensor { 1, 2 } + 1,
}
q.save(path, tensors)
local loaded, count = q.load_tensors(path), 0
for name, tensor in pairs(loaded) do
  count = count + 1
  same(tensor, tensors[name])
  assert(tensor:label() == name)
end
assert(count == 7)
loaded.weight:fill(3)  -- the file stays as it is, and the tensor when there is a new file
q.save(path, { weight = q.zeros { 2 } })
assert(loaded.weight:max():item() == 3 and q.load_tensors(path).weight:elements() == 2)
q.save(path, { blocks = q.quantize(q.randn({ 2, 256 }, { seed = 1 }), "q8_0") }, { dtype = "f32" })
assert(q.load_tensors(path).blocks:dtype() == "f32")
refused("give a dtype", q.save, path, { blocks = q.quantize(q.randn { 2, 256 }, "q8_0") })
assert(q.load_tensors(path).blocks, "a refused save changed the file")
refused("expected a path that ends in .safetensors; q.save_npy", q.save, "x.npy", tensors)
refused("tensors need names", q.save, path, { q.zeros { 1 } })
refused("no tensors", q.save, path, {})
refused("no such file", q.load_tensors, "nothing.safetensors")

-- ---------------------------------------------------------------- npy

local golden = "tests/golden/npy/"
local expected = q.json.decode(q.fs.read(golden .. "expected.json"))
local dtypes = {
  f64 = "f32", bool = "u8", i8 = "i32", i16 = "i32", u16 = "i32", scalar = "f32", empty = "f32", fortran = "f32",
  version2 = "f32", version3 = "f32",
}
local told = 0
local out = arg[1] or scratch.folder
for name, wanted in pairs(expected.read) do
  local said, tensor = scratch.said(q.load_npy, golden .. name .. ".npy")
  if said:find " became " or said:find " was rounded " then told = told + 1 end
  assert(tensor:dtype() == (dtypes[name] or name), name)
  assert(table.concat(tensor:shape(), ",") == table.concat(wanted.shape, ","), name)
  local values = tensor:elements() > 0 and tensor:reshape({ tensor:elements() }):table() or {}
  assert(#values == #wanted.values, name)
  for i, value in ipairs(wanted.values) do
    local error_ = math.abs(values[i] - value)
    assert(error_ <= 1e-3 * math.abs(value), ("%s: element %d is %g, expected %g"):format(name, i, values[i], value))
  end
  q.save_npy(out .. "/" .. name .. ".npy", tensor)
  same(q.load_npy(out .. "/" .. name .. ".npy"), tensor)
end
assert(told == 5, told .. " conversions were told")
for _, name in ipairs(expected.refused) do refused(golden .. name .. ".npy: ", q.load_npy, golden .. name .. ".npy") end
refused("astype('<f4')", q.load_npy, golden .. "big_endian.npy")
refused("NumPy has no bf16: save x:to('f32')", q.save_npy, scratch.at "x.npy", q.zeros({ 2 }, "bf16"))
refused("expected a path that ends in .npy", q.save_npy, scratch.at "x", q.zeros { 2 })

-- Damaged files are refused by name.
local whole = q.fs.read(golden .. "f32.npy")
local function damaged(text, bytes)
  q.fs.write(scratch.at "bad.npy", bytes)
  refused(text, q.load_npy, scratch.at "bad.npy")
end
damaged("no .npy file", "")
damaged("no .npy file", "\147NUMPX" .. whole:sub(7))
damaged("version 9", whole:sub(1, 6) .. "\9" .. whole:sub(8))
damaged("24 bytes of data, and the file has 23", whole:sub(1, -2))
damaged("24 bytes of data, and the file has 25", whole .. "x")
damaged("the header of the .npy file has", whole:sub(1, 40))
local function edited(text, from, to)
  local at, last = whole:find(from, 1, true)
  local header = whole:sub(1, at - 1) .. to .. whole:sub(last + 1)
  damaged(text, header:sub(1, 8) .. string.char(#whole - 34 + #to - #from) .. header:sub(10))
end
edited("no size", "(2, 3)", "(-2, 3)")
edited("no size", "(2, 3)", "(2, 99999999999999999999)")
edited("out of range", "(2, 3)", "(70368744177664, 2)")
edited("12 bytes of data, and the file has 24", "(2, 3)", "(3,)")
edited("no (", "(2, 3)", "[2, 3]")
edited("no False", "False", "0")
edited("is not known", "'shape'", "'sharp'")
edited("twice", "'fortran_order'", "'descr'")
edited("dtype '<f3' is not read", "<f4", "<f3")
print "tensor files: ok"
