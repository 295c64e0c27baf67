-- A text as characters: its symbols, a part that trains and a part held out, and windows of it as batches.

local q = require "qeng.core"

local char_text = {}

local Text = {}
Text.__index = Text

-- The file at `path`; its bytes are the characters. held_out: the share at the end that is not trained on.
function char_text.open(path, held_out)
  local text = q.fs.read(path)
  local self = setmetatable({ symbols = {}, id = {} }, Text)
  local seen, digest = {}, 0
  for i = 1, #text do
    local byte = text:byte(i)
    seen[byte], digest = true, (digest * 31 + byte) % 2 ^ 32
  end
  self.digest = ("%08x"):format(digest)  -- tells texts apart that are as long
  for byte = 0, 255 do
    if seen[byte] then
      self.id[byte] = #self.symbols
      self.symbols[#self.symbols + 1] = byte
    end
  end
  local split = math.floor(#text * (1 - (held_out or 0.1)))
  self.train, self.held = { text = text, first = 1, length = split },
    { text = text, first = split + 1, length = #text - split }
  return self
end

-- Fills a micro-batch (q.micro_batch) with rows of `tokens` characters and their targets. A row begins at a given place
-- of a part (from 0).
function Text:fill(micro_batch, part, places, tokens)
  local ids, targets = {}, {}
  for r, place in ipairs(places) do
    local at = part.first + place
    for i = 0, tokens - 1 do
      ids[(r - 1) * tokens + i + 1] = self.id[part.text:byte(at + i)]
      targets[(r - 1) * tokens + i + 1] = self.id[part.text:byte(at + i + 1)]
    end
  end
  micro_batch.tokens:set(ids)
  micro_batch.targets:set(targets)
end

-- A micro-batch of `rows` windows of `tokens`, each a document.
function char_text.micro_batch(rows, tokens)
  local micro_batch = q.micro_batch(rows * tokens, rows)
  local positions, cu = {}, {}
  for i = 0, rows * tokens - 1 do positions[i + 1] = i % tokens end
  for r = 0, rows do cu[r + 1] = r * tokens end
  micro_batch.positions:set(positions)
  micro_batch.cu_q:set(cu)
  micro_batch.scale:fill(1 / (rows * tokens))
  return micro_batch
end

-- Places where windows of the training part begin: `rows` for each step, uniform. A seed gives the same places.
function Text:places(seed, rows, tokens)
  local most = self.train.length - tokens - 1
  return function(step)
    local list = {}
    local drawn = q.uniform({ rows }, { low = 0, high = 1, seed = seed, subsequence = step }):table()
    for r = 1, rows do list[r] = math.min(most, math.floor(drawn[r] * (most + 1))) end
    return list
  end
end

-- The mean loss over the whole windows of the held-out part, or over `windows` of them, spread evenly.
function Text:held_out_loss(model, micro_batch, rows, tokens, windows)
  local whole = math.floor((self.held.length - 1) / tokens)
  local count = math.min(windows or whole, whole)
  local sum = 0
  for first = 0, count - 1, rows do
    local places = {}
    for r = 1, rows do  -- the last batch repeats a window, of which it does not count the loss
      places[r] = math.floor(math.min(first + r - 1, count - 1) * whole / count) * tokens
    end
    self:fill(micro_batch, self.held, places, tokens)
    local counted = math.min(rows, count - first) * tokens
    sum = sum + q.no_grad(q.scope, function()
      local _, nll = model:loss(micro_batch)
      local total, values = 0, nll:table()
      for i = 1, counted do total = total + values[i] end
      return total
    end)
  end
  return sum / (count * tokens)
end

return char_text
