-- The sequence state of a causal convolution (CausalConv in kernels/ops): the last rows of each page, in f32, as a
-- ring. infer/sequences.lua says what a state is.

local q = require "qeng.core"

local conv_pages = {}

local Kind, Pages = {}, {}
Kind.__index, Pages.__index = Kind, Pages

-- The state of a convolution over `channels` that looks back at width - 1 rows. back: how many more it keeps, by which
-- a sequence can go back within a page (0).
function conv_pages.kind(channels, width, back)
  return setmetatable({ channels = channels, back = back or 0, depth = width - 1 + (back or 0) }, Kind)
end

function Kind:bytes(tokens, shape)
  return 4 * self.depth * self.channels * math.ceil(tokens / shape.page_tokens)
end

function Kind:open(shape)
  local pool = q.scope(function()
    return q.keep(q.empty({ shape.pages, self.depth, self.channels }, "f32", "kv"))
  end)
  return setmetatable({ pool = pool, depth = self.depth, page_tokens = shape.page_tokens }, Pages)
end

-- The convolution of a step's rows [rows, channels].
function Pages:convolve(step, x, w, bias)
  return q.causal_conv(x, w, bias, step.cu_q, {
    state = self.pool, pages = step.pages, lengths = step.lengths, page_tokens = self.page_tokens,
  })
end

local function in_rows(tensor)
  local shape = tensor:shape()
  return tensor:reshape { shape[1] * shape[2], 1, shape[3] }
end

function Pages:copy(pairs_) q.pages.copy_pages(in_rows(self.pool), pairs_, self.depth) end

function Kind:rollback(length, from, page_tokens)
  return from - length <= self.back and length or length - length % page_tokens
end

-- How many tokens after the next one can be taken back one by one, unless all that lead to a full page can.
function Kind:ahead() return self.back > 0 and self.back or math.huge end

function Pages:stored() return { { in_rows(self.pool), self.depth } } end

function Pages:free() self.pool:free() end

return conv_pages
