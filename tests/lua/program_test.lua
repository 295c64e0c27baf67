-- A captured program that fails goes on when what it read is mended. It may fail in its first run, where operations are
-- checked, or in a later one, where a device replays them.  qeng program_test.lua [DEVICE]
local q = require "qeng"
q.device { device = arg[1] or "cpu" }

local weights = q.tensor({ 1, 2, 3, 4, 5, 6, 7, 8 }, "f32"):reshape { 4, 2 }
local tokens = q.tensor({ 3 }, "i32")
local program, rows = q.capture(q.no_grad, function() return q.linear(q.embedding(weights, tokens), weights) end)

-- What program:run() gives for a token.
local function run(token)
  tokens:set { token }
  program:run()
  return rows:table()[1]
end
local function expect(token)
  local row = run(token)
  for i = 1, 4 do
    local wanted = (2 * token + 1) * (2 * i - 1) + (2 * token + 2) * 2 * i
    assert(row[i] == wanted, ("token %d, column %d: %g, expected %g"):format(token, i, row[i], wanted))
  end
end
local function refuse(token)
  local fine, message = pcall(run, token)
  assert(not fine and tostring(message):find("token " .. token, 1, true), tostring(message))
end

refuse(4)
for _ = 1, 3 do
  expect(2)
  expect(0)
  refuse(-1)
  expect(3)
end
program:free()

-- A run that fails, or that is within a block, leaves the names of blocks as they were.
program = q.capture(q.no_grad, q.block, "within", q.embedding, weights, tokens)
local function around()
  refuse(4)
  local seen = q.trace(weights.fill, weights, 1)
  assert(seen:find "outer" and not seen:find "within", seen)
end
q.block("outer", around)
program:free()
-- Parts of a result are results too, and so is what another one was computed from.
do
  local x = q.tensor { { 1, 2 }, { 3, 4 }, { 5, 6 } }
  local made, last, parts, square, sum
  program, made, last, parts, square, sum = q.capture(function()
    local y, squares = (x * 2):compute(), x * x
    return y, y:slice(1, 2), { y:split { 1, 2 } }, squares, squares:sum():compute()
  end)
  for _, value in ipairs { 6, 7 } do
    x[2] = value
    program:run()
    assert(made:at(2, 0) == 2 * value and last:at(0, 1) == 2 * value and parts[2]:at(1, 0) == 2 * value)
    assert(square:at(2, 1) == value * value and sum:item() == 30 + 2 * value * value)
  end
  program:free()
end
-- Values that do not exist while capturing: the message says what does without it.
local looks = { function() return weights:table() end }
-- of host memory alone
if pcall(weights.view, weights) then looks[2] = function() return q.linear(weights, weights):view() end end
for _, look in ipairs(looks) do
  local fine, why = pcall(q.capture, q.no_grad, look)
  assert(not fine and why.message:find("do without capturing", 1, true), tostring(fine or why.message))
end
print "a captured program goes on where its input is mended"
