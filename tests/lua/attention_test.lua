-- Attention with soft-capped scores, sinks and values of another length than keys is what algebra of products, tanh and
-- softmax says, and so are its gradients. A model with them generates what whole forward passes give. Rotated
-- neighbours are rotated halves in another order.
package.path = (arg[0]:match "^(.*/)" or "./") .. "?.lua;" .. package.path
local q = require "qeng"
q.device { device = os.getenv "QENG_TEST_DEVICE" or "cpu" }

local nn = require "qeng.model.nn"
local scratch = require "scratch"

local tokens, heads, kv_heads, head_dim, value_dim = 9, 4, 2, 6, 10

local function near(what, a, b, most)
  local off = (a - b):abs():max():item()
  assert(off < (most or 2e-6), ("%s is off by %g"):format(what, off))
end

local function operands()
  local made = {}
  for i, shape in ipairs { { tokens, heads, head_dim }, { tokens, kv_heads, head_dim }, { tokens, kv_heads, value_dim },
    { heads } } do
    made[i] = q.randn(shape, { seed = 3, subsequence = i })
    made[i]:requires_grad(true)
  end
  return unpack(made)
end

-- Head h of a tensor [tokens, heads, dim], from 0.
local function head_of(x, h) return x:slice(2, h, h + 1):reshape { tokens, x:shape()[3] } end

-- The attention of one document, [tokens, value_dim] of each head.
local function by_algebra(query, key, value, sinks, opt)
  local after = q.arange(tokens):unsqueeze(2) - q.arange(tokens)
  local seen = q.where(after:ge(0), after:lt(opt.window > 0 and opt.window or tokens), 0)
  local mixed = {}
  for h = 0, heads - 1 do
    local kv = math.floor(h / (heads / kv_heads))
    local scores = head_of(query, h):matmul(head_of(key, kv), { transpose_b = true }) * opt.scale
    if opt.softcap > 0 then scores = (scores / opt.softcap):tanh() * opt.softcap end
    local weights = q.where(seen, scores:exp(), 0)
    local total = weights:sum(-1, true)
    if sinks then total = total + sinks:slice(1, h, h + 1):exp() end
    mixed[h + 1] = (weights / total):matmul(head_of(value, kv))
  end
  return mixed
end

for _, opt in ipairs {
  { scale = 0.4, softcap = 0, window = 0, sinks = true },
  { scale = 1.3, softcap = 1.5, window = 0 },
  { scale = 0.7, softcap = 2, window = 4, sinks = true },
} do
  local seq = { cu_q = q.tensor({ 0, tokens }, "i32") }
  local direction = q.randn({ tokens, heads, value_dim }, { seed = 5 })
  local one, other = { operands() }, { operands() }
  local mixed = q.attention(one[1], one[2], one[3], seq, {
    scale = opt.scale, softcap = opt.softcap, window = opt.window, sinks = opt.sinks and one[4],
  })
  local expected = by_algebra(other[1], other[2], other[3], opt.sinks and other[4], opt)
  local loss = (mixed * direction):sum()
  for h = 0, heads - 1 do
    near("head " .. h, head_of(mixed, h), expected[h + 1])
    loss = loss + (expected[h + 1] * head_of(direction, h)):sum()
  end
  loss:backward()
  for i, name in ipairs { "query", "key", "value", "sinks" } do
    if i < 4 or opt.sinks then near("the gradient of " .. name, one[i]:grad(), other[i]:grad(), 1e-5) end
  end
end
assert(not pcall(q.attention, q.zeros { 2, 2, 4 }, q.zeros { 2, 2, 4 }, q.zeros { 2, 2, 4 },
  { cu_q = q.tensor({ 0, 2 }, "i32") }, { sinks = q.zeros { 3 } }), "sinks of other heads")

-- Neighbours 2 i and 2 i + 1 as halves: element i and i + dim / 2.
do
  local x = q.randn({ tokens, heads, head_dim }, { seed = 8 })
  local positions = q.arange(tokens):to "i32"
  local rope = q.rope_table { dim = head_dim - 2, theta = 100 }
  local half = (head_dim - 2) / 2
  local order = {}
  for i = 0, half - 1 do order[i + 1], order[half + i + 1] = 2 * i, 2 * i + 1 end
  order[head_dim - 1], order[head_dim] = head_dim - 2, head_dim - 1
  local function in_order(y)
    return q.embedding(y:transpose(1, 3):reshape { head_dim, -1 }:clone(), q.tensor(order, "i32"))
  end
  local neighbours = q.rope(x, nil, positions, { inv_freq = rope.inv_freq, scale = rope.scale, interleaved = true })
  local halves = q.rope(in_order(x):reshape { head_dim, heads, tokens }:transpose(1, 3):clone(), nil, positions, rope)
  near("rotated neighbours", in_order(neighbours), halves:transpose(1, 3):reshape { head_dim, -1 }, 1e-6)
end

-- A model of such layers, over pages of each dtype.
q.fs.write(scratch.at "own.lua", [[
  local nn = require "qeng.model.nn"
  return {
    hf = "Own", model_type = "own",
    config = function(file)
      local c = file:decoder(1e4)
      c.attention_softcap, c.logit_softcap = 1.5, 4
      return c
    end,
    build = function(model, source, c)
      return nn.decoder(model, source, c, function(p, index)
        return nn.block(p, c, { mixer = nn.attention { sinks = true, value_dim = 32, window = index * 5 } })
      end)
    end,
  }
]])
local model = q.random_model({
  architectures = { "Own" }, hidden_size = 64, intermediate_size = 48, num_hidden_layers = 2, num_attention_heads = 4,
  num_key_value_heads = 2, head_dim = 64, vocab_size = 96, max_position_embeddings = 128,
}, { seed = 5, std = 0.15, model_file = scratch.at "own.lua" })
for _, parameter in ipairs(model.parameters) do
  if parameter.name:find "sinks" then parameter.tensor:copy(q.tensor { 1, -2, 0, 3 }) end
end
local ids = {}
for i = 1, 30 do ids[i] = (i * i * 7 + 3 * i) % 96 end
local paged = require "qeng.infer.paged"
for kv, most in pairs { f32 = 1e-5, f16 = 1e-2, bf16 = 5e-2, q8_0 = 5e-2 } do
  local runner = paged.new(model, { pages = 4, kv = kv })
  assert(runner.page_bytes == 2 * 16 * 2 * (64 + 32) * ({ f32 = 4, f16 = 2, bf16 = 2, q8_0 = 34 / 32 })[kv])
  local id = runner.pool:open(0)
  runner:extend(id, ids)
  runner:run({ { id = id, count = #ids } }, { #ids - 1 }, function(logits)
    near("logits over pages of " .. kv, logits, model:logits(ids):rows(#ids - 1, 1), most)
  end)
  runner:free()
end
assert(model:logits(ids):abs():max():item() < 4 and nn.softcap(q.tensor { 2 }, {}):item() == 2)
print "attention: capped scores, sinks, values of another length and rotated neighbours are what algebra says"
