-- The sequence state of a gated delta net (GatedDelta in kernels/ops): for each page the state as the chunk of 64
-- tokens began in which its last token is, and the rows of that chunk. So a sequence goes back to any token of that
-- chunk, and else to the nearest full page. infer/sequences.lua says what a state is.

local q = require "qeng.core"

local delta_pages = {}

local chunk = 64  -- kDeltaChunk

-- A page's state is as large as hundreds of tokens' keys and values. So a page holds so many tokens, or of short
-- sequences a quarter.
local most_tokens = 1024

local Kind, Pages = {}, {}
Kind.__index, Pages.__index = Kind, Pages

-- heads: key_heads, key_dim, value_heads, value_dim.
function delta_pages.kind(heads)
  local state = heads.value_heads * heads.key_dim * heads.value_dim
  local rows = chunk * (heads.key_heads * heads.key_dim + heads.value_heads * (heads.value_dim + 1))
  return setmetatable({ heads = heads, state = state, rows = rows }, Kind)
end

function Kind:bytes(tokens, shape) return 4 * (self.state + self.rows) * math.ceil(tokens / shape.page_tokens) end

-- Tokens of a page, if nothing else is asked for.
function Kind:page(context) return math.min(most_tokens, chunk * math.ceil(context / (4 * chunk))) end

function Kind:open(shape)
  if shape.page_tokens % chunk ~= 0 then
    q.error("value", ("page_tokens is %d: pages of this model hold a multiple of %d tokens"):format(shape.page_tokens,
      chunk))
  end
  local function pool(size)
    return q.scope(function() return q.keep(q.empty({ shape.pages, size }, "f32", "kv")) end)
  end
  return setmetatable({
    heads = self.heads, state = pool(self.state), rows = pool(self.rows), page_tokens = shape.page_tokens,
  }, Pages)
end

-- o [rows, value_heads * value_dim] of a step's rows, as q.gated_delta has it.
function Pages:advance(step, x, g, beta)
  return q.gated_delta(x, g, beta, step.cu_q, {
    key_heads = self.heads.key_heads, key_dim = self.heads.key_dim, value_heads = self.heads.value_heads,
    state = self.state, rows = self.rows, pages = step.pages, lengths = step.lengths, page_tokens = self.page_tokens,
  })
end

local function in_pages(tensor) return tensor:reshape { tensor:shape()[1], 1, tensor:shape()[2] } end

function Pages:copy(pairs_)
  for _, pool in ipairs { self.state, self.rows } do q.pages.copy_pages(in_pages(pool), pairs_, 1) end
end

-- Of the chunk that the last of `from` tokens is in, one has to stay: nothing is kept of the state before it.
function Kind:rollback(length, from, page_tokens)
  if length > 0 and math.floor((length - 1) / chunk) == math.floor((from - 1) / chunk) then return length end
  return length - length % page_tokens
end

function Kind:ahead(length) return chunk - 1 - length % chunk end

function Pages:stored() return { { in_pages(self.state), 1 }, { in_pages(self.rows), 1 } } end

function Pages:free()
  self.state:free()
  self.rows:free()
end

return delta_pages
