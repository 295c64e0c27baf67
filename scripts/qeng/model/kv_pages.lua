-- The sequence state of attention: keys and values in pages (KvStore and PagedAttention in kernels/ops). Only this file
-- and its kin know how they are stored (kv_types.lua: as what; kv_codes.lua: codes). infer/sequences.lua says what a
-- state is.

local kv_bases = require "qeng.model.kv_bases"
local kv_codes = require "qeng.model.kv_codes"
local kv_types = require "qeng.model.kv_types"
local q = require "qeng.core"

local kv_pages = {}

local Kind, Pages = {}, {}
Kind.__index, Pages.__index = Kind, Pages

-- The state of a layer with so many heads of keys of head_dim and values of value_dim elements. opt: layer (its number,
-- from 0), whole (its softmax is one of keys alone, with neither sinks nor a cap, so that a mean may come off), rope
-- (nil where positions turn nothing; "rope_local" where they turn as the model's second table says).
function kv_pages.kind(heads, head_dim, value_dim, opt)
  return setmetatable({
    heads = heads, head_dim = head_dim, value_dim = value_dim, layer = opt.layer, whole = opt.whole,
    rope = opt.rope,
  }, Kind)
end

-- Tells the kinds of a model their places among the layers with keys and values.
function Kind:count(kinds)
  local layers = {}
  for _, kind in ipairs(kinds) do
    if getmetatable(kind) == Kind then layers[#layers + 1] = kind end
  end
  for place, kind in ipairs(layers) do kind.place, kind.layers = place, #layers end
end

function Kind:sides(shape) return kv_types.sides(kv_types.parse(shape.kv), self.place, self.layers, self.layer) end

function Kind:bytes(tokens, shape)
  local key, value = self:sides(shape)
  return tokens * self.heads * (kv_types.bytes(key, self.head_dim) + kv_types.bytes(value, self.value_dim))
end

-- Bytes of the rows that are kept exactly, in shape.exact_pages.
function Kind:exact_bytes(shape)
  local key, value = self:sides(shape)
  return shape.exact_pages * shape.page_tokens * self.heads
    * (kv_types.exact_bytes(key, self.head_dim) + kv_types.exact_bytes(value, self.value_dim))
end

local function pool(shape, dtype) return q.scope(function() return q.keep(q.empty(shape, dtype, "kv")) end) end

-- One side: {pool =, codes = (kv_codes.lua) and exact = a pool, of codes}.
local function open(side, dim, heads, slots, exact_slots)
  if side.dtype then return { pool = pool({ slots, heads, dim }, side.dtype) } end
  return {
    pool = pool({ slots / 16, heads, kv_types.tile_bytes(side, dim) }, "u8"),
    exact = exact_slots > 0 and pool({ exact_slots, heads, dim }, "f16") or nil,
  }
end

function Kind:open(shape)
  local key, value = self:sides(shape)
  if (key.bits or value.bits) and shape.page_tokens % 16 ~= 0 then
    q.error("value", ("kv = %s: pages of codes hold a multiple of 16 tokens, not %d"):format(shape.kv,
      shape.page_tokens))
  end
  local spec, slots = kv_types.parse(shape.kv), shape.pages * shape.page_tokens
  local exact_slots = shape.exact_pages * shape.page_tokens
  local keys = open(key, self.head_dim, self.heads, slots, exact_slots)
  local values = open(value, self.value_dim, self.heads, slots, exact_slots)
  local mean = spec.mean and self.means and self.means[spec.mean]
  local fitted = spec.bases and kv_bases.layer(spec.bases, self) or { key = mean and { mean = q.tensor(mean) } }
  if key.bits then keys.codes = kv_codes.open(key, self.head_dim, true, fitted.key, self.whole) end
  if value.bits then values.codes = kv_codes.open(value, self.value_dim, false, fitted.value, self.whole) end
  return setmetatable({
    keys = keys, values = values, value_dim = self.value_dim, page_tokens = shape.page_tokens, tail = spec.tail,
    sinks = spec.sinks,
  }, Pages)
end

-- Stores the step's keys [tokens, heads, head_dim] and values [tokens, heads, value_dim]. Returns the attention of its
-- queries to all tokens of their sequences. opt: {window =, scale =, softcap =, sinks =}
function Pages:attend(step, query, key, value, opt)
  local keys, values = self.keys, self.values
  local of_keys, of_values = keys.codes or {}, values.codes or {}
  if keys.codes then
    query = q.pages.head_linear(query, of_keys.query, nil, of_keys.signs)
    key = q.pages.head_linear(key, of_keys.to, of_keys.to_bias, of_keys.signs)
  end
  if values.codes then value = q.pages.head_linear(value, of_values.to, of_values.to_bias, of_values.signs) end
  q.pages.kv_store(key, value, step.slots, keys.pool, values.pool, of_keys.levels, of_values.levels)
  if keys.exact then q.pages.kv_store(key, nil, step.exact_slots, keys.exact) end
  if values.exact then q.pages.kv_store(value, nil, step.exact_slots, values.exact) end
  local mixed = q.pages.paged_attention(query, keys.pool, values.pool, {
    pages = step.pages, cu_q = step.cu_q, lengths = step.lengths, page_tokens = self.page_tokens, window = opt.window,
    scale = opt.scale, softcap = opt.softcap, sinks = opt.sinks, value_dim = self.value_dim,
    key_levels = of_keys.levels, value_levels = of_values.levels,
    exact = (keys.exact or values.exact) and {
      keys = keys.exact, values = values.exact, pages = step.exact, first = self.sinks, last = self.tail,
    } or nil,
  })
  if not values.codes then return mixed end
  return q.pages.head_linear(mixed, of_values.from, of_values.back_bias, of_values.back_signs)
end

-- Rows of a pool to a page: of tokens, or of tiles.
local function rows_of(self, side) return side.codes and self.page_tokens / 16 or self.page_tokens end

function Pages:copy(pairs_, exact_pairs)
  for _, side in ipairs { self.keys, self.values } do
    if pairs_ then q.pages.copy_pages(side.pool, pairs_, rows_of(self, side)) end
    if side.exact and exact_pairs then q.pages.copy_pages(side.exact, exact_pairs, self.page_tokens) end
  end
end

function Kind:rollback(length) return length end

function Pages:stored()
  local list = {}
  for _, side in ipairs { self.keys, self.values } do
    list[#list + 1] = { side.pool, rows_of(self, side) }
    if side.exact then list[#list + 1] = { side.exact, self.page_tokens, exact = true } end
  end
  return list
end

function Pages:free()
  for _, side in ipairs { self.keys, self.values } do
    side.pool:free()
    if side.exact then side.exact:free() end
    if side.codes then kv_codes.free(side.codes) end
  end
end

return kv_pages
