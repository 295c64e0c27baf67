-- Mistakes with tensors: each error names the operation, what it was given, and the line of the recipe, also where the
-- library is Lua, and where an expression is computed later than it was written.
local q = require "qeng"

q.device { device = os.getenv "QENG_TEST_DEVICE" or "cpu" }

local head = [[
local q = require "qeng"
local x, y, v = q.zeros { 2, 3 }, q.zeros { 4, 3 }, q.zeros { 3 }
local half, ids, weight = q.zeros({ 2, 3 }, "bf16"), q.tensor({ 0, 5 }, "i32"), q.zeros { 8, 3 }
local packed = q.quantize(q.zeros { 2, 32 }, "q8_0")
]]

-- The mistake, and what its message has to hold.
local mistakes = {
  { "x + y", "add of f32 [2, 3], f32 [4, 3]", "dimensions differ, 2 and 4" },
  { "x * q.zeros { 2 }", "mul of f32 [2, 3], f32 [2]", "3 and 2" },
  { "(x + 1):exp() - y", "sub of f32 [2, 3], f32 [4, 3]" },
  { "q.where(x:gt(0), x, y)", "where of u8 [2, 3], f32 [2, 3], f32 [4, 3]" },
  { "x + 'one'", "__add", "Tensor or number expected, got string" },
  { "x * nil", "__mul", "got nil" },
  { "x / {}", "__div", "got table" },
  { "x:maximum(y)", "max of f32 [2, 3], f32 [4, 3]" },
  { "packed + 1", "add of q8_0 [2, 32]", "decode it first" },
  { "q.exp(1)", "q.exp", "got a number" },
  { "x:sum(3)", "sum", "no dimension 3 in a tensor of 2" },
  { "x:mean(0)", "mean", "no dimension 0 in a tensor of 2" },
  { "x:max(-3)", "max", "no dimension -3 in a tensor of 2" },
  { "q.zeros({ 3, 0 }):max(-1)", "max", "nothing to reduce" },
  { "q.zeros({ 0 }):mean()", "mean", "nothing to average" },
  { "x:reshape { 4, 2 }", "reshape of f32 [2, 3] to f32 [4, 2]" },
  { "x:reshape { -1, 4 }", "reshape of f32 [2, 3]" },
  { "x:slice(3, 0, 1)", "slice", "no dimension 3" },
  { "x:slice(1, 0, 1, 0)", "slice", "not 0" },
  { "x[2]", "index", "position 2 is outside [0, 2)" },
  { "x:at(0)", "at", "1 positions in a tensor of 2" },
  { "x:at(0, 3)", "at", "position 3 is outside [0, 3)" },
  { "x:permute(1, 1)", "permute of f32 [2, 3]" },
  { "x:transpose(1, 4)", "transpose", "no dimension 4" },
  { "x:squeeze(2)", "squeeze of [2, 3]", "dimension 2 is not 1" },
  { "x:expand(4, 3)", "expand of f32 [2, 3]", "dimension 1 is 2" },
  { "x:split({ 1, 1 }, 2)", "split of [2, 3]", "2 positions of 3" },
  { "q.concat { x, q.zeros { 2, 2 } }", "concat", "f32 [2, 3] and f32 [2, 2]" },
  { "q.concat { x, half }", "concat", "f32 [2, 3] and bf16 [2, 3]" },
  { "q.stack { x, y }", "concat", "f32 [1, 2, 3] and f32 [1, 4, 3]" },
  { "x:gather(1, ids)", "gather of [2, 3] by [2]" },
  { "x:gather(1, x)", "gather", "i32, not f32" },
  { "x:index_select(1, ids)", "gather", "index 5 at position 1 is outside [0, 2)" },
  { "x:scatter_add(1, ids, q.zeros { 1, 3 })", "scatter_add", "f32 [1, 3], expected f32 [2, 3]" },
  { "x:topk(4)", "topk of [2, 3]", "no 4 elements along dimension 2" },
  { "v:tril()", "tril", "not [3]" },
  { "x:matmul(x)", "matmul", "a is f32 [2, 3], b is f32 [2, 3]", "3 and 2" },
  { "x:matmul(half:transpose())", "matmul of f32 [2, 3] and bf16 [3, 2]" },
  { "q.matmul(q.zeros { 2, 1, 3 }, q.zeros { 3, 3, 1 })", "matmul of f32 [2, 1, 3] and f32 [3, 3, 1]", "2 and 3" },
  { "q.linear(x, q.zeros { 8, 4 })", "linear", "x is f32 [2, 3], w is f32 [8, 4]" },
  { "q.rmsnorm(x, y, 1e-6)", "rmsnorm", "w is f32 [4, 3]", "f32 [3]" },
  { "q.embedding(weight, x)", "embedding", "f32 [2, 3]" },
  { "x:set(y)", "set of f32 [2, 3] to f32 [4, 3]" },
  { "x:backward()", "backward", "f32 [2, 3]" },
  { "q.losses.dpo(v, v, v, q.zeros { 2 })", "sub of f32 [3], f32 [2]" },
  { "x:softmaxx()", "softmaxx" },
}

local missed = {}
for _, mistake in ipairs(mistakes) do
  local chunk = assert(loadstring(head .. "\nlocal found = " .. mistake[1] .. "\nreturn found", "=recipe.lua"))
  local ok, err = pcall(q.scope, chunk)
  local message = ok and "no mistake" or tostring(type(err) == "table" and err.message or err)
  local where = type(err) == "table" and err.where or tostring(err)
  for i = 2, #mistake do
    if not message:find(mistake[i], 1, true) then
      missed[#missed + 1] = ("%s: '%s' does not say '%s'"):format(mistake[1], message, mistake[i])
    end
  end
  if not where:find("recipe.lua:6", 1, true) then missed[#missed + 1] = mistake[1] .. ": of which line? " .. where end
end
assert(#missed == 0, table.concat(missed, "\n"))
print(#mistakes .. " mistakes")
