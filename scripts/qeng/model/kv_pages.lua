-- The sequence state of attention: keys and values in pages (KvStore and PagedAttention in kernels/ops). Only this file
-- knows how they are stored. infer/sequences.lua says what a state is.

local q = require "qeng.core"

local kv_pages = {}

-- Dtypes of the cache, and their bytes an element.
kv_pages.dtypes = { "f32", "f16", "bf16", "q8_0" }
local element = { f32 = 4, f16 = 2, bf16 = 2, q8_0 = 34 / 32 }

local Kind, Pages = {}, {}
Kind.__index, Pages.__index = Kind, Pages

-- The state of a layer with so many heads of keys of head_dim and values of value_dim elements.
function kv_pages.kind(heads, head_dim, value_dim)
  return setmetatable({ heads = heads, head_dim = head_dim, value_dim = value_dim }, Kind)
end

function Kind:bytes(tokens, shape)
  local size = element[shape.kv]
  if not size then q.error("value", ("kv is %s; expected f32, bf16, f16 or q8_0"):format(tostring(shape.kv))) end
  for _, dim in ipairs { self.head_dim, self.value_dim } do
    if shape.kv == "q8_0" and dim % 32 ~= 0 then
      q.error("unsupported", ("kv = q8_0 needs heads of a multiple of 32, this model's have %d; take f16"):format(dim))
    end
  end
  return tokens * self.heads * (self.head_dim + self.value_dim) * size
end

function Kind:open(shape)
  local function pool(dim)
    return q.scope(function()
      return q.keep(q.empty({ shape.pages * shape.page_tokens, self.heads, dim }, shape.kv, "kv"))
    end)
  end
  return setmetatable({
    keys = pool(self.head_dim), values = pool(self.value_dim), page_tokens = shape.page_tokens,
  }, Pages)
end

-- Stores the step's keys [tokens, heads, head_dim] and values [tokens, heads, value_dim]. Returns the attention of its
-- queries to all tokens of their sequences. opt: {window =, scale =, softcap =, sinks =}
function Pages:attend(step, query, key, value, opt)
  q.pages.kv_store(key, value, step.slots, self.keys, self.values)
  return q.pages.paged_attention(query, self.keys, self.values, {
    pages = step.pages, cu_q = step.cu_q, lengths = step.lengths, page_tokens = self.page_tokens, window = opt.window,
    scale = opt.scale, softcap = opt.softcap, sinks = opt.sinks,
  })
end

function Pages:copy(pairs_)
  q.pages.copy_pages(self.keys, pairs_, self.page_tokens)
  q.pages.copy_pages(self.values, pairs_, self.page_tokens)
end

function Pages:rollback(length) return length end

function Pages:stored() return { { self.keys, self.page_tokens }, { self.values, self.page_tokens } } end

function Pages:free()
  self.keys:free()
  self.values:free()
end

return kv_pages
