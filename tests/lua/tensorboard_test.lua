-- Event files are byte for byte what TensorBoard's own writer makes (its RecordWriter, Event and Summary, of these
-- figures).
package.path = (arg[0]:match "^(.*/)" or "./") .. "?.lua;" .. package.path
local q = require "qeng"
local scratch = require "scratch"
local tensorboard = require "qeng.train.tensorboard"

local function hex(text) return (text:gsub(".", function(byte) return ("%02x"):format(byte:byte()) end)) end
local written =
  "1800000000000000a37f4b2209000000000000f83f1a0d627261696e2e4576656e743a322a28646c" ..
  "3d000000000000006049f1ec09000000000000084010ac022a2f0a110a0a747261696e2f6c6f7373" ..
  "15cdcccc3d0a1a0a13747261696e2f6c6561726e696e675f726174651517b7513928fee029"
assert(hex(tensorboard.head(1.5) .. tensorboard.row({ step = 300, loss = 0.1, lr = 2e-4, data_ms = 3 },
  3.0)) == written)
assert(tensorboard.row({ step = 3 }, 1) == "", "a row without a figure writes nothing")

-- A file begun anew with the rows that a resumed run keeps, and gone on with.
local folder = scratch.at "tensorboard"
local add = tensorboard.open(folder, { { step = 1, loss = 2 } })
local length = #q.fs.read(folder .. "/events.out.tfevents.qeng")
add { step = 2, loss = 1 }
assert(#q.fs.read(folder .. "/events.out.tfevents.qeng") - length == #tensorboard.row({ step = 2, loss = 1 }, 1))
print "tensorboard: the bytes of its own writer"
