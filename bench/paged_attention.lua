-- PagedAttention of the CPU: decoding against the bandwidth of the machine, prefill against Attention over contiguous
-- memory.
--   qeng bench/paged_attention.lua [threads]

local kv_codes = require "qeng.model.kv_codes"
local kv_types = require "qeng.model.kv_types"
local q = require "qeng"
q.device { device = "cpu", threads = tonumber(arg[1] or 0) }
local heads, kv_heads, dim, page_tokens = 16, 8, 128, 16

-- On one thread the CPU's time counts. Other programs on the machine lengthen it less.
local clock = arg[1] == "1" and os.clock or q.time

local function best(body)
  local least = math.huge
  for _ = 1, 7 do
    local start = clock()
    body()
    least = math.min(least, clock() - start)
  end
  return least
end

-- Pools of a dtype, or of codes: "tq4". Returns what paged_attention is given of them, and the bytes of a token's head.
local function pool(tokens, name)
  local pages = math.ceil(tokens / page_tokens)
  local rows = q.randn({ pages * page_tokens, kv_heads, dim }, { seed = 1 })
  local side = kv_types.parse(name).key
  local shape, dtype, levels = { pages * page_tokens, kv_heads, dim }, name, nil
  if side.bits then
    shape, dtype, levels = { pages, kv_heads, kv_types.tile_bytes(side, dim) }, "u8", kv_codes.levels(side, dim)
  end
  local keys, values = q.empty(shape, dtype), q.empty(shape, dtype)
  local slots, table_ = {}, {}
  for i = 1, pages * page_tokens do slots[i] = i - 1 end
  for i = 1, pages do table_[i] = (i * 7919) % pages end  -- a prime: each page once, in no order
  q.pages.kv_store(rows, rows, q.tensor(slots, "i32"), keys, values, levels, levels)
  return keys, values, { pages = q.tensor({ table_ }, "i32"), page_tokens = page_tokens, key_levels = levels,
    value_levels = levels, value_dim = dim }, kv_types.bytes(side, dim)
end

local limits = q.limits()
print(("copy bandwidth %.1f GB/s, %.0f GFLOP/s in f32; %d query heads, %d of K and V, head_dim %d"):format(
  limits.bandwidth / 1e9, limits.flops_f32 / 1e9, heads, kv_heads, dim))
for _, dtype in ipairs { "f32", "bf16", "f16", "q8_0", "tq4", "tq3", "tq2" } do
  q.scope(function()
    local tokens = 16384
    local keys, values, step, bytes = pool(tokens, dtype)
    step.cu_q, step.lengths = q.tensor({ 0, 1 }, "i32"), q.tensor({ tokens }, "i32")
    local query = q.randn { 1, heads, dim }
    local seconds = best(function() q.scope(function() q.pages.paged_attention(query, keys, values, step) end) end)
    print(("decode %5s, %d keys: %6.2f ms, %5.1f GB/s"):format(dtype, tokens, seconds * 1e3,
      2 * tokens * kv_heads * bytes / seconds / 1e9))
  end)
end
q.no_grad(q.scope, function()
  local tokens = 2048
  local query, rows = q.randn { tokens, heads, dim }, q.randn { tokens, kv_heads, dim }
  local flops = 2 * 2 * heads * dim * tokens * tokens / 2
  for _, dtype in ipairs { "f32", "bf16", "q8_0", "tq4", "tq3", "tq2" } do
    local keys, values, step = pool(tokens, dtype)
    step.cu_q, step.lengths = q.tensor({ 0, tokens }, "i32"), q.tensor({ tokens }, "i32")
    local seconds = best(function() q.scope(function() q.pages.paged_attention(query, keys, values, step) end) end)
    print(("prefill %5s, %d tokens: %6.1f ms, %5.0f GFLOP/s"):format(dtype, tokens, seconds * 1e3,
      flops / seconds / 1e9))
  end
  local cu = { cu_q = q.tensor({ 0, tokens }, "i32") }
  local seconds = best(function() q.scope(function() q.attention(query, rows, rows, cu) end) end)
  print(("attention, f32, contiguous: %6.1f ms, %5.0f GFLOP/s"):format(seconds * 1e3, flops / seconds / 1e9))
end)
