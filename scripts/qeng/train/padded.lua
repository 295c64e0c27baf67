-- The documents of a feed's steps (train/feed.lua), padded instead of packed: each in a row of its own, as long as the
-- longest of them. A micro-batch has as many such rows as fit the slots of a packed one, so both take the same memory.
-- Padding is computed as any other slot is: it is a document after the one in its row, without targets.

local models = require "qeng.model"
local q = require "qeng.core"

local padded = {}

local Feed = {}
Feed.__index = Feed

-- packed: a feed. steps: of feed.documents, for the longest document and the most micro-batches of a step.
function padded.new(packed, steps)
  local opt, longest, most = packed.opt, 1, 1
  for _, step in ipairs(steps) do
    for _, batch in ipairs(step) do
      for _, piece in ipairs(batch) do longest = math.max(longest, piece.tokens) end
    end
  end
  local rows = math.max(1, math.floor(opt.rows * opt.row_tokens / longest))
  for _, step in ipairs(steps) do
    local count = 0
    for _, batch in ipairs(step) do count = count + math.ceil(#batch / rows) end
    most = math.max(most, count)
  end
  return setmetatable({ packed = packed, row_tokens = longest, rows = rows, most = most,
    micro_batch = models.micro_batch(rows * longest, 2 * rows) }, Feed)
end

-- The micro-batch of pieces `from` and on of a packed one, whose fields are lists.
local function rows_of(self, fields, pieces, from)
  local length, slots = self.row_tokens, self.rows * self.row_tokens
  local tokens, targets, positions, ends = {}, {}, {}, { 0 }
  for slot = 1, slots do tokens[slot], targets[slot], positions[slot] = self.packed.opt.pad, -1, 0 end
  for row = 0, self.rows - 1 do
    local piece = pieces[from + row]
    for k = 1, piece and piece.tokens or 0 do
      local packed, slot = piece.slot + k, row * length + k
      tokens[slot], targets[slot] = fields.tokens[packed], fields.targets[packed]
      positions[slot] = fields.positions[packed]
    end
    if piece and piece.tokens < length then ends[#ends + 1] = row * length + piece.tokens end
    ends[#ends + 1] = (row + 1) * length
  end
  for k = #ends + 1, 2 * self.rows + 1 do ends[k] = slots end
  return { tokens = q.tensor(tokens, "i32"), targets = q.tensor(targets, "i32"),
    positions = q.tensor(positions, "i32"), cu_q = q.tensor(ends, "i32") }
end

-- As Feed:take of a packed feed.
function Feed:take(step, more)
  self.packed:take(step, more)
  self.packed:load(1)
  self.sums, self.infos, self.made, self.first = self.packed.sums, {}, {}, step * self.most
  local i = 0
  for loaded, info in self.packed:parts() do
    i = i + 1
    local fields, pieces = {}, self.packed.taken[i]:documents()
    for _, name in ipairs { "tokens", "targets", "positions" } do fields[name] = loaded[name]:table() end
    for from = 1, #pieces, self.rows do
      self.made[#self.made + 1], self.infos[#self.infos + 1] = rows_of(self, fields, pieces, from), info
    end
  end
  self.micro_batch.scale:fill(1 / math.max(self.sums.trained, 1))
end

function Feed:load(i)
  for name, values in pairs(self.made[i]) do self.micro_batch[name]:copy(values) end
  q.rng_step(self.first + i - 1)
end

-- As Feed:parts. The first is loaded already.
function Feed:parts()
  local i = 0
  return function()
    i = i + 1
    if not self.made[i] then return nil end
    if i > 1 then self:load(i) end
    return self.micro_batch, self.infos[i], i
  end
end

return padded
