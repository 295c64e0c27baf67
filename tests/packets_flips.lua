-- Flips random bits of a dataset and of bare frames, one at a time:  qeng tests/packets_flips.lua FLIPS [SEED]
-- Each flip has to be found. Either the file is refused when it is opened, or exactly the record that holds the bit is
-- left out, counted, and named with its place by verify; every other record is as before.
-- tests/lua/packets_faults_test.lua runs a few.
local q = require "qeng"

local flips, seed = tonumber(arg and arg[1]) or 300, tonumber(arg and arg[2]) or 1
math.randomseed(seed)
local random, bit = math.random, require "bit"
local root = os.tmpname()
q.fs.remove(root)
local path, frames_path = root .. ".qubgpu", root .. ".ndp"

local writer, frames = q.ndp.create(path, { meta = { tokenizer = "flips" } }), q.ndp.frame_writer(frames_path)
for i = 1, 40 do
  local tokens, mask = {}, {}
  for t = 1, random(60) do tokens[t], mask[t] = random(0, 150000), random(0, 1) end
  for _, to in ipairs { writer, frames } do
    to:add(tokens, i % 2 == 0 and mask or nil, { src = i % 5 })
    if i % 8 == 0 then to:payload("utf8", "text of record " .. i, { src = 7 }) end
  end
end
writer:finish()
frames:finish()

local function record_text(file, record)
  local info = file:info(record)
  local value, mask
  if info.tokens > 0 then value, mask = file:read(record) else value = file:payload(record) end
  return value and q.json.encode { value, mask or false, info.src, info.dst }
end

local function bytes_of(name)
  local file = assert(io.open(name, "rb"))
  local bytes = file:read "*a"
  file:close()
  return bytes
end
local function flip(name, at, mask)
  local file = assert(io.open(name, "r+b"))
  file:seek("set", at)
  local byte = file:read(1):byte()
  file:seek("set", at)
  file:write(string.char(bit.bxor(byte, mask)))
  file:close()
end

local file = q.ndp.open(path)
local records, originals, starts, ends, at, largest = file:records(), {}, {}, {}, 4096, 0
for record = 0, records - 1 do
  originals[record], starts[record] = record_text(file, record), at
  at = at + file:info(record).bytes
  largest = math.max(largest, file:info(record).bytes)
  ends[record] = at
end
local frames_end, size = at, #bytes_of(path)
file = nil  -- luacheck: ignore 311

local counts = { refused = 0, skipped = 0 }
for _ = 1, flips do
  local choice = random(4)
  local where = choice == 1 and random(0, 111) or choice == 2 and random(frames_end, size - 1) or random(0, size - 1)
  local mask = 2 ^ random(0, 7)
  flip(path, where, mask)
  local opened, why = q.try(q.ndp.open, path)
  local place = ("bit 0x%02x of byte %d"):format(mask, where)
  if not opened then
    assert(why.message:find(path, 1, true) == 1, place .. ": " .. why.message)
    assert(where < 4096 or where >= frames_end, place .. ": refused for damage to a frame: " .. why.message)
    counts.refused = counts.refused + 1
  else
    assert(where >= 4096 and where < frames_end, place .. ": not found")
    for record = 0, records - 1 do
      local hit = where >= starts[record] and where < ends[record]
      local text = record_text(opened, record)
      assert(text == (not hit and originals[record] or nil), place .. ": record " .. record)
    end
    assert(opened:errors().total == 1, place .. ": not counted")
    local found = opened:verify()
    assert(not found.ok and found.bad_records == 1 and found.bad_blocks == 1, place .. ": verify")
    local damage = found.damaged[1]
    assert(where >= starts[damage.record] and where < ends[damage.record],
      place .. ": named as record " .. damage.record)
    assert(damage.offset <= where and damage.offset >= starts[damage.record], place .. ": named at " .. damage.offset)
    counts.skipped = counts.skipped + 1
  end
  flip(path, where, mask)
end
assert(q.ndp.open(path):verify().ok)

-- Bare frames: records come in the order they were written, and damage is counted.
local written = {}
for record in (function() local s = q.ndp.scan(frames_path); return function() return s:next() end end)() do
  written[#written + 1] = q.json.encode(record)
end
local frames_size, lost = #bytes_of(frames_path), 0
for _ = 1, flips do
  local where, mask = random(0, frames_size - 1), 2 ^ random(0, 7)
  flip(frames_path, where, mask)
  local damaged, following, unseen = q.ndp.scan(frames_path), 1, 0
  local function skip_to(text)
    while written[following] and written[following] ~= text do
      unseen = unseen + ends[following - 1] - starts[following - 1]
      following, lost = following + 1, lost + 1
    end
  end
  for record in function() return damaged:next() end do
    local text = q.json.encode(record)
    skip_to(text)
    assert(written[following], ("frames: byte %d: a record that was never written: %s"):format(where, text:sub(1, 200)))
    following = following + 1
  end
  skip_to(nil)
  -- Missing records were skipped and counted. The one before the damage may be missing uncounted, if the damage was its
  -- mask. (A damaged length may happen to lead to a later frame; then more than one record is missing.)
  local errors = damaged:errors()
  assert(errors.total >= 1 and unseen > 0 and unseen <= errors.skipped_bytes + largest,
    ("frames: byte %d: %d bytes of records missing, %d skipped"):format(where, unseen, errors.skipped_bytes))
  flip(frames_path, where, mask)
end
q.fs.remove(path)
q.fs.remove(frames_path)
print(("%d flips in a dataset: %d refused when opening, %d left out one record, counted and named; none unnoticed")
  :format(flips,
    counts.refused, counts.skipped))
print(("%d flips in bare frames: %.2f records lost each; none unnoticed, no record that was not written"):format(
  flips, lost / flips))
