-- Tokens a second of a model, for prompt and output, against the most that the device can do.
--
-- A step of decoding n sequences reads every matrix once, and each sequence's state. So it takes at least
--   (bytes of matrices + n * bytes of the state of a sequence of `context` tokens) / bandwidth
-- Tables that are read by row (the embedding, unless it is also the head) do not count: one row is next to nothing.
--
-- A prompt of t tokens is one pass over the matrices. Every weight is multiplied t times, and the head's once.
-- Attention takes two products of head_dim for each layer and each pair of a token and one that it sees; a recurrence
-- in its place is not counted. So it takes at least the longer of
--   (2 t weights + 2 head + 4 heads head_dim pairs layers) / rate of matrix products   and   bytes as above / bandwidth
-- The rate is that of f32 if the weights are f32, else the faster of f32 and bf16. Products in int8 may be faster.

local experts = require "qeng.model.experts"
local paged = require "qeng.infer.paged"
local q = require "qeng.core"
local states = require "qeng.infer.sequences"

local bench = {}

-- Bytes of the matrices that a step reads. Of experts it counts those that a token meets: a step of several tokens
-- meets that many at least.
function bench.weight_bytes(model)
  local bytes = model.head:bytes()
  for _, layer in ipairs(model.linears) do bytes = bytes + layer.weight:bytes() * (layer.share or 1) end
  return bytes
end

-- {once = function() -> seconds of reading a matrix too large for any cache, bytes = its bytes, free =}
local function reader()
  local w, x = q.zeros({ 16384, 8192 }, "f32"), q.zeros({ 1, 8192 }, "f32")
  local function once()
    return q.scope(function()
      local begin = q.time()
      q.row_linear(x, { w })[1]:rows(0, 1):reshape { 16384 }:rows(0, 1):item()
      return q.time() - begin
    end)
  end
  once()
  return { once = once, bytes = w:bytes(), free = function() w:free() x:free() end }
end

local function median(list)
  table.sort(list)
  return list[math.ceil(#list / 2)]
end

-- Waits until the device has computed them.
local function wait(logits) logits:rows(0, 1):reshape { logits:shape()[2] }:rows(0, 1):item() end

-- n sequences of `context` tokens each, and a function that decodes one token of each.
local function sequences(model, runner, n, context)
  local vocab, ids, parts, wanted = model.config.vocab, {}, {}, {}
  for i = 1, n do
    ids[i] = {}
    for k = 1, context do ids[i][k] = (i * 7919 + k * 104729) % vocab end
    parts[i] = { id = runner.pool:open(0), count = context }
    runner:extend(parts[i].id, ids[i])
    runner:run({ parts[i] }, { context - 1 }, function() end)
    parts[i].count, wanted[i] = 1, i - 1
  end
  local function step()
    for i = 1, n do
      table.insert(ids[i], (i * 31 + #ids[i]) % vocab)
      runner:extend(parts[i].id, ids[i], #ids[i], #ids[i])
    end
    runner:run(parts, wanted, wait)
  end
  return parts, step
end

local function close(runner, parts)
  for _, part in ipairs(parts) do runner.pool:close(part.id) end
end

-- Seconds of a prompt of `tokens`: the least of `repeats` measurements.
function bench.prefill(model, tokens, opt)
  local runner = paged.new(model, {
    pages = paged.pages(model, tokens) + 1, kv = opt.kv, rows = tokens, sequences = 1, remember = false,
  })
  local best = math.huge
  for _ = 1, opt.repeats do
    local ids = {}
    for k = 1, tokens do ids[k] = k * 104729 % model.config.vocab end
    local part = { id = runner.pool:open(0), count = tokens }
    runner:extend(part.id, ids)
    local begin = q.time()
    runner:run({ part }, { tokens - 1 }, wait)
    best = math.min(best, q.time() - begin)
    close(runner, { part })
  end
  runner:free()
  return best
end

-- Seconds of a step of n sequences that begin with `context` tokens: {best =, median =, bandwidth =, nodes =} over
-- `tokens` steps. The first two are left out: they capture a program. bandwidth: bytes a second of reading alone, the
-- median of readings between the steps, since a shared machine changes its speed from second to second; or that of a
-- copy, if it is more. nodes: kernels and copies of a step, 0 on a CPU.
function bench.decode(model, n, context, tokens, opt)
  local pages = n * paged.pages(model, context + tokens + 3)
  local runner = paged.new(model, {
    pages = pages, kv = opt.kv, rows = math.max(context, n), sequences = n, remember = false,
  })
  local parts, step = sequences(model, runner, n, context)
  local times, reads, read = {}, {}, reader()
  step()
  step()
  for i = 1, tokens do
    if i % 2 == 1 then reads[#reads + 1] = read.once() end
    local begin = q.time()
    step()
    times[i] = q.time() - begin
  end
  local nodes = runner:nodes()
  close(runner, parts)
  runner:free()
  read.free()
  local middle = median(times)
  return {
    best = times[1], median = middle, bandwidth = math.max(read.bytes / median(reads), q.limits().bandwidth),
    nodes = nodes,
  }
end

-- Least seconds of a step of n sequences of `context` tokens.
function bench.limit(model, n, context, kv, bandwidth)
  local state = states.bytes(model, context, { kv = kv, page_tokens = paged.page_tokens(model, context) })
  return (bench.weight_bytes(model) + n * state) / bandwidth
end

-- Pairs of one of t tokens and a token that it sees: itself and those before it, or with a window only the nearest.
local function pairs_seen(t, window)
  if window == 0 or window >= t then return t * (t + 1) / 2 end
  return window * (window + 1) / 2 + (t - window) * window
end

-- Floating-point operations of a prompt of t tokens.
function bench.prefill_flops(model, t)
  local c, flops = model.config, 2 * model.head:elements() + 2 * t * experts.met(model.linears)
  for i = 1, c.kv_heads and c.layers or 0 do
    local all = c.local_layers and not c.local_layers[i]
    flops = flops + 4 * c.heads * c.head_dim * pairs_seen(t, not all and c.window or 0)
  end
  return flops
end

-- Least seconds of a prompt of t tokens under `limits` (q.limits()), and the rate of products that this assumes.
function bench.prefill_limit(model, t, kv, limits)
  local rate = limits.flops_f32
  if model.linears[1].weight:dtype() ~= "f32" then rate = math.max(rate, limits.flops_bf16) end
  return math.max(bench.prefill_flops(model, t) / rate, bench.limit(model, 1, t, kv, limits.bandwidth)), rate
end

return bench
