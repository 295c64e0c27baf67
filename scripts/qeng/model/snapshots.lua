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

-- The state of a layer that keeps so many elements.
function snapshots.kind(size) return setmetatable({ size = size, by_spans = true }, Kind) end

function Kind:bytes(tokens, shape) return 4 * self.size * math.ceil(tokens / shape.page_tokens) end

function Kind:page(context) return context end

function Kind:open(shape)
  -- The row behind the pages stays zeros: what a sequence begins with.
  local pool = q.scope(function() return q.keep(q.zeros({ shape.pages + 1, 1, self.size }, "f32", "kv")) end)
  return setmetatable({ pool = pool, size = self.size, page_tokens = shape.page_tokens }, Pages)
end

-- What the sequences of a step had become before it, a copy [sequences, size].
function Pages:before(step)
  return self.pool:index_select(1, step.before):reshape { step.before:elements(), self.size }
end

-- Stores what they have become, [n, size], as the snapshots of pages [n] i32.
function Pages:keep(pages, state)
  q.pages.kv_store(state:reshape { pages:elements(), 1, self.size }, nil, pages, self.pool)
end

function Pages:copy(pairs_) q.pages.copy_pages(self.pool, pairs_, 1) end

function Kind:rollback(length, _, page_tokens) return length - length % page_tokens end

function Pages:stored() return { { self.pool, 1 } } end

function Pages:free() self.pool:free() end

return snapshots
