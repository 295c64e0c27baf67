-- The sequence state of recurrent mixers: what each became by the last token of a page, one snapshot a page, in f32.
-- infer/sequences.lua says what a state is.
--
-- A snapshot is as large as hundreds of tokens' keys and values (19 MB of 130 million parameters), so by default a page
-- holds a whole sequence (the engine's page_tokens): one snapshot a sequence. Equal beginnings are then computed anew,
-- and a sequence that has to go back starts over. Smaller pages share beginnings, and go back to the nearest full page,
-- at the price of a snapshot each.

local q = require "qeng.core"

local snapshots = {}

local Kind, Pages = {}, {}
Kind.__index, Pages.__index = Kind, Pages

-- The state of a layer that keeps two tensors of so many elements, for example its own and a convolution's.
function snapshots.kind(first, second) return setmetatable({ sizes = { first, second }, of_sequence = true }, Kind) end

function Kind:bytes(tokens, shape)
  return 4 * (self.sizes[1] + self.sizes[2]) * math.ceil(tokens / shape.page_tokens)
end

function Kind:open(shape)
  local pools = {}
  for i, size in ipairs(self.sizes) do  -- the row behind the pages stays zeros: what a sequence begins with
    pools[i] = q.scope(function() return q.keep(q.zeros({ shape.pages + 1, 1, size }, "f32", "kv")) end)
  end
  return setmetatable({ pools = pools, sizes = self.sizes, page_tokens = shape.page_tokens }, Pages)
end

-- What the sequences of a step had become before it, two tensors [sequences, elements], copies.
function Pages:before(step)
  local results = {}
  for i, pool in ipairs(self.pools) do
    results[i] = pool:index_select(1, step.before):reshape { step.before:elements(), self.sizes[i] }
  end
  return unpack(results)
end

-- Stores what they have become, [n, elements] each, as the snapshots of pages [n] i32.
function Pages:keep(pages, first, second)
  local n = pages:elements()
  q.pages.kv_store(first:reshape { n, 1, self.sizes[1] }, second:reshape { n, 1, self.sizes[2] }, pages, self.pools[1],
    self.pools[2])
end

function Pages:copy(pairs_)
  for _, pool in ipairs(self.pools) do q.pages.copy_pages(pool, pairs_, 1) end
end

function Pages:rollback(length) return length - length % self.page_tokens end

function Pages:stored() return { { self.pools[1], 1 }, { self.pools[2], 1 } } end

function Pages:free()
  for _, pool in ipairs(self.pools) do pool:free() end
end

return snapshots
