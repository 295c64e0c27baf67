-- Event files for TensorBoard: TFRecords (length, masked CRC-32C of it, bytes, masked CRC-32C of these), each an Event
-- message of protocol buffers. tensorboard/compat/proto/event.proto and summary.proto number the fields.

local bit = require "bit"
local ffi = require "ffi"
local q = require "qeng.core"

local tensorboard = {}

-- ---------------------------------------------------------------- records

local crc_table = {}
for i = 0, 255 do
  local value = i
  for _ = 1, 8 do value = bit.bxor(bit.rshift(value, 1), bit.band(value, 1) == 1 and 0x82f63b78 or 0) end
  crc_table[i] = value
end

local function little_endian(kind, value) return ffi.string(ffi.new(kind .. "[1]", value), ffi.sizeof(kind)) end

-- The CRC-32C of a text, rotated and offset as TFRecord has it, as four bytes.
local function masked_crc(text)
  local crc = bit.bnot(0)
  for i = 1, #text do crc = bit.bxor(crc_table[bit.band(bit.bxor(crc, text:byte(i)), 255)], bit.rshift(crc, 8)) end
  return little_endian("int32_t", bit.tobit(bit.ror(bit.bnot(crc), 15) + 0xa282ead8))
end

local function record(event)
  local length = little_endian("uint64_t", #event)
  return length .. masked_crc(length) .. event .. masked_crc(event)
end

-- ---------------------------------------------------------------- messages

local function varint(value)
  local bytes = {}
  repeat
    local low = value % 128
    value = (value - low) / 128
    bytes[#bytes + 1] = string.char(value > 0 and low + 128 or low)
  until value == 0
  return table.concat(bytes)
end

local function field(number, text) return varint(number * 8 + 2) .. varint(#text) .. text end

local function event(time, step, content)
  return record(varint(1 * 8 + 1) .. little_endian("double", time) ..
    (step > 0 and varint(2 * 8) .. varint(step) or "") .. content)
end

-- The tag of a field of metrics. TensorBoard groups tags by what comes before the slash.
local tags = {
  { "loss", "train/loss" }, { "eval_loss", "eval/loss" }, { "lr", "train/learning_rate" },
  { "grad_norm", "train/grad_norm" },
  { "epoch", "train/epoch" }, { "tok_s", "speed/tokens_per_second" }, { "mem_bytes", "memory/bytes" },
}

-- A row of metrics as one event; "" if it has nothing to plot.
function tensorboard.row(row, time)
  local values = {}
  for _, tag in ipairs(tags) do
    local value = row[tag[1]]
    if type(value) == "number" then
      values[#values + 1] = field(1, field(1, tag[2]) .. varint(2 * 8 + 5) .. little_endian("float", value))
    end
  end
  return #values > 0 and event(time, row.step, field(5, table.concat(values))) or ""
end

function tensorboard.head(time) return event(time, 0, field(3, "brain.Event:2")) end

-- Begins the file anew with the rows that are kept. Returns a function that adds a row.
function tensorboard.open(folder, rows)
  q.fs.mkdir(folder)
  local path, parts = folder .. "/events.out.tfevents.qeng", { tensorboard.head(os.time()) }
  for _, row in ipairs(rows) do parts[#parts + 1] = tensorboard.row(row, os.time()) end
  q.fs.write(path, table.concat(parts))
  return function(row) q.fs.append(path, tensorboard.row(row, os.time())) end
end

return tensorboard
