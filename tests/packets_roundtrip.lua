-- Writes random records of every type and reads them back:
--   qeng tests/packets_roundtrip.lua OUT COUNT SEED ccitt|xmodem
-- makes OUT.qubgpu, OUT.ndp and OUT.txt, whose lines tests/packets_decoder.py --lines prints too. packets_test.sh runs
-- it. COUNT 1000000 takes some minutes.
local q = require "qeng"

local out, count, seed, crc = arg[1], tonumber(arg[2]), tonumber(arg[3]), arg[4]
math.randomseed(seed)
local random = math.random

local function number(bits, low, high)  -- exact in a float of so many bits
  local kind = random(40)
  if kind == 1 then return 0 elseif kind == 2 then return math.huge elseif kind == 3 then return -math.huge end
  return (random(2) * 2 - 3) * (2 ^ bits + random(0, 2 ^ bits - 1)) * 2 ^ (random(low, high) - bits)
end
local function list(length, value)
  local values = {}
  for i = 1, length do values[i] = value() end
  return values
end
local function length(largest)  -- small mostly; now and then over a frame
  return random(2000) == 1 and random(largest) or random(0, 40)
end

local make = {
  float32 = function() return list(length(40000), function() return number(23, -126, 127) end) end,
  float16 = function() return list(length(80000), function() return number(10, -14, 15) end) end,
  bfloat16 = function() return list(length(80000), function() return number(7, -126, 127) end) end,
  int8 = function() return list(length(150000), function() return random(-128, 127) end) end,
  ternary = function() return list(4 * length(70000), function() return random(-1, 1) end) end,
  one_bit = function() return list(8 * length(70000), function() return random(0, 1) * 2 - 1 end) end,
  utf8 = function()
    local pieces = { "a", "é", "\0", "漢", "🙂", " ", "\n", "\239\191\189" }
    return table.concat(list(length(60000), function() return pieces[random(#pieces)] end))
  end,
  meta = function() return { key = random(1000), list = list(random(3), function() return random(-5, 5) end) } end,
}
local kinds = {}
for kind in pairs(make) do kinds[#kinds + 1] = kind end
table.sort(kinds)

-- A number without rounding: 24 bits of mantissa and the exponent.
local function exact(value)
  if math.abs(value) == math.huge then return value > 0 and "inf" or "-inf" end
  local mantissa, exponent = math.frexp(value)
  return ("%d:%d"):format(mantissa * 2 ^ 24, exponent)
end

local function line(kind, value, mask, src, dst)
  local text
  if kind == "token_ids" then text = table.concat(value, " ") .. " / " .. table.concat(mask)
  elseif kind == "utf8" then text = value:gsub(".", function(byte) return ("%02x"):format(byte:byte()) end)
  elseif kind == "meta" then text = ('{"key":%d,"list":[%s]}'):format(value.key, table.concat(value.list, ","))
  else text = table.concat((function()
    local words = {}
    for i = 1, #value do words[i] = kind:find "float" and exact(value[i]) or value[i] end
    return words
  end)(), " ") end
  return ("%s %d %d %s"):format(kind, src, dst, text)
end

local writer, frames = q.ndp.create(out .. ".qubgpu", { crc = crc }), q.ndp.frame_writer(out .. ".ndp", { crc = crc })
local lines = io.open(out .. ".txt", "wb")
for _ = 1, count do
  local to = { src = random(0, 255), dst = random(0, 255) }
  if random(2) == 1 then
    local tokens = list(math.max(1, length(40000)), function() return random(0, 2 ^ 31 - 1) end)
    local mask = random(2) == 1 and list(#tokens, function() return random(0, 1) end) or nil
    writer:add(tokens, mask, to)
    frames:add(tokens, mask, to)
    lines:write(line("token_ids", tokens, mask or {}, to.src, to.dst), "\n")
  else
    local kind = kinds[random(#kinds)]
    local value = make[kind]()
    writer:payload(kind, value, to)
    frames:payload(kind, value, to)
    lines:write(line(kind, value, nil, to.src, to.dst), "\n")
  end
end
writer:finish()
frames:finish()
lines:close()

-- What qeng itself reads. (A document without a mask reads as all ones; the writer's lines show none.)
local function all_ones(mask)
  for i = 1, #mask do if mask[i] ~= 1 then return false end end
  return true
end
local file, from, record = q.ndp.open(out .. ".qubgpu"), q.ndp.scan(out .. ".ndp", { crc = crc }), 0
for expected in io.lines(out .. ".txt") do
  local info = file:info(record)
  local value, mask
  if info.type == "token_ids" then value, mask = file:read(record) else value = file:payload(record) end
  local scanned = from:next()
  for _, seen in ipairs { { info.type, value, mask, info.src, info.dst },
    { scanned.type, scanned.tokens or scanned.payload, scanned.mask, scanned.src, scanned.dst } } do
    local got = line(seen[1], seen[2], seen[3] or {}, seen[4], seen[5])
    if seen[3] and all_ones(seen[3]) and got ~= expected then got = line(seen[1], seen[2], {}, seen[4], seen[5]) end
    assert(got == expected, ("record %d:\n%s\n%s"):format(record, got:sub(1, 500), expected:sub(1, 500)))
  end
  record = record + 1
end
assert(record == count and not from:next() and from:errors().total == 0 and file:verify().ok and file:crc() == crc)
