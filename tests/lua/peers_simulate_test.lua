-- What layers of a model cost (scripts/qeng/peers/costs.lua): by layer what equations say, in sum what q.plan says of
-- the whole model; and what a described cluster is read as and predicted to do (cluster.lua, simulate.lua).
package.path = (arg[0]:match "^(.*/)" or "./") .. "?.lua;" .. package.path
local q = require "qeng"
q.device { device = "cpu", threads = 1 }
local cluster = require "qeng.peers.cluster"
local costs = require "qeng.peers.costs"
local scratch = require "scratch"
local simulate = require "qeng.peers.simulate"
local source_of = require "qeng.plan.source"
local refused = scratch.refused

local function near(a, b, tolerance) return math.abs(a - b) <= tolerance * math.abs(b) end

local hidden, ffn, heads, kv_heads, dim, vocab, layers = 256, 512, 4, 2, 64, 32000, 6
local config = {
  architectures = { "Qwen3ForCausalLM" }, model_type = "qwen3", vocab_size = vocab, hidden_size = hidden,
  num_hidden_layers = layers, num_attention_heads = heads, num_key_value_heads = kv_heads, head_dim = dim,
  intermediate_size = ffn, max_position_embeddings = 4096, rms_norm_eps = 1e-6, rope_theta = 10000, hidden_act = "silu",
  tie_word_embeddings = false, torch_dtype = "bfloat16",
}

local function cost_of(model, shape) return costs.of(source_of { model = model, mode = "inference" }, shape) end

-- Sums over layers, and with the ends.
local function sum(parts, name)
  local total = 0
  for _, part in ipairs(parts) do total = total + part[name] end
  return total
end

-- ---------------------------------------------------------------- a plain decoder, by its equations

local matrices = 2 * hidden * heads * dim + 2 * hidden * kv_heads * dim + 3 * hidden * ffn
do
  local cost = cost_of(config, { context = 1024, batch = 6, in_flight = 2, kv = "f16", chunk = 64 })
  local cached = 2 * kv_heads * dim * 2  -- bytes of a token's keys and values in f16
  assert(#cost.layers == layers and cost.activation_bytes == 2 * hidden and cost.dtype == "bf16")
  for _, layer in ipairs(cost.layers) do
    assert(layer.bytes == 2 * (matrices + 2 * hidden + 2 * dim), layer.bytes)
    assert(layer.state_bytes == 6 * 1024 * cached, layer.state_bytes)
  end
  assert(cost.ends.bytes == 2 * (2 * vocab * hidden + hidden))
  assert(cost.slack > 64 * 2 ^ 20 and cost.slack < 72 * 2 ^ 20, cost.slack)
  local one, batch, prompt = cost.steps.one, cost.steps.batch, cost.steps.prompt
  assert(one.rows == 1 and one.in_flight == 1 and batch.rows == 3 and batch.in_flight == 2 and prompt.rows == 64)
  for i = 1, layers do
    local attention = 4 * 1024 * heads * dim  -- q k^T and P v, of a query
    assert(near(one.layers[i].flops, 2 * matrices + attention, 1e-2), one.layers[i].flops)
    assert(near(batch.layers[i].flops, 3 * (2 * matrices + attention), 1e-2), batch.layers[i].flops)
    local mean = 4 * (1024 + 64) / 2 * heads * dim - 4 * 64 / 2 * heads * dim  -- a piece is causal, and ends there
    assert(near(prompt.layers[i].flops, 64 * (2 * matrices + mean), 1e-2), prompt.layers[i].flops)
    -- Weights once, and the cache of each row; activations are a few rows.
    assert(near(one.layers[i].moved, cost.layers[i].bytes + 1024 * cached, 2e-2), one.layers[i].moved)
    assert(near(batch.layers[i].moved, cost.layers[i].bytes + 3 * 1024 * cached, 5e-2), batch.layers[i].moved)
  end
  assert(near(one.ends.flops, 2 * hidden * vocab, 1e-3) and near(one.ends.moved, 2 * hidden * vocab, 2e-2))
end

-- ---------------------------------------------------------------- in sum, what q.plan says of the whole model

local hybrid = {
  architectures = { "Qwen3_5ForCausalLM" }, model_type = "qwen3_5_text", hidden_size = 256, num_hidden_layers = 8,
  num_attention_heads = 4, num_key_value_heads = 2, head_dim = 64, linear_num_key_heads = 4,
  linear_num_value_heads = 8, linear_key_head_dim = 32, linear_value_head_dim = 32, linear_conv_kernel_dim = 4,
  intermediate_size = 512, vocab_size = 1024, tie_word_embeddings = true, max_position_embeddings = 4096,
  rms_norm_eps = 1e-6, rope_theta = 1e7, torch_dtype = "bfloat16",
}
local mamba = {
  architectures = { "Mamba2ForCausalLM" }, model_type = "mamba2", hidden_size = 64, num_hidden_layers = 3,
  num_heads = 8, head_dim = 16, state_size = 16, n_groups = 2, conv_kernel = 4, vocab_size = 320,
  tie_word_embeddings = true,
}
for _, case in ipairs {
  { config, "f16" }, { config, "tq4" }, { config, "q8_0" }, { hybrid, "f16" }, { hybrid, "tq4" }, { mamba },
  { q.fs.find "recipes/tiny", "f32" },
} do
  local model, kv = unpack(case)
  local cost = cost_of(model, { context = 512, kv = kv })
  local plan = q.plan { model = model, mode = "inference", context = 512, kv = kv, bandwidth = 1e11, flops = 1e13 }
  assert(sum(cost.layers, "bytes") + cost.ends.bytes == plan.accounts.weights)
  local tables = plan.accounts.kv - sum(cost.layers, "state_bytes")  -- of a step: where its tokens and pages are
  assert(tables > 0 and tables < 16384 + 0.01 * plan.accounts.kv, tables)
  local one = cost.steps.one
  local flops, moved = sum(one.layers, "flops") + one.ends.flops, sum(one.layers, "moved") + one.ends.moved
  assert(near(flops, plan.step.flops_f32 + plan.step.flops_bf16, 0.02), flops)  -- the plan's step is 5 tokens earlier
  assert(near(moved, plan.step.bytes, 0.03), moved .. " " .. plan.step.bytes)
  -- One machine of the plan's rates takes the plan's time: that is a sum over operations, and no less.
  local alone = simulate { model = model, context = 512, kv = kv,
    peers = { { name = "here", coordinator = true, memory = "1G", bandwidth = "100G", flops = "10T" } } }
  assert(alone.one.seconds <= plan.step.seconds * 1.02 and alone.one.seconds > plan.step.seconds * 0.9,
    alone.one.seconds .. " " .. plan.step.seconds)
end

-- Layers differ: attention has keys and values, delta nets have states.
do
  local cost = cost_of(hybrid, { context = 4096, kv = "f16" })
  for i, layer in ipairs(cost.layers) do
    local attends = i % 4 == 0
    assert((layer.state_bytes == 4096 * 2 * 2 * 64 * 2) == attends, i .. ": " .. layer.state_bytes)
    assert(layer.state_bytes == cost.layers[attends and 4 or 1].state_bytes and layer.state_bytes > 0)
  end
end

-- A GGUF file's layers are as large as their blocks.
do
  local path = scratch.at "model.gguf"
  q.random_model(config, { dtype = "f32", seed = 1 }):save_gguf(path, { type = "q8_0" })
  local cost = cost_of(path, { context = 64, kv = "f16" })
  for _, layer in ipairs(cost.layers) do
    assert(layer.bytes >= matrices * 34 / 32 and layer.bytes <= matrices * 34 / 32 + 4 * (2 * hidden + 2 * dim))
  end
end

refused("5 sequences in 2 groups: expected as many in each", cost_of, config, { batch = 5, in_flight = 2 })
refused("batch x context is 8388608 tokens", cost_of, config, { batch = 2048, context = 4096 })

-- ---------------------------------------------------------------- a described cluster

local function written(name, text)
  q.fs.write(scratch.at(name), text)
  return scratch.at(name)
end

local lua = [[
-- two machines
return {
  { name = "desk", coordinator = true, memory = "20M", bandwidth = "80G", flops = 60e12 },
  { name = "rack", machine = "rtx3090", memory = 1e9, link = { latency = 2e-4, bandwidth = "1.1GB" } },
}]]
local json = [=[[{"name": "desk", "coordinator": true, "memory": "20M", "bandwidth": 80e9, "flops": "60T"},
  {"name": "rack", "machine": "rtx3090", "memory": "1G", "link": {"latency": 0.0002, "bandwidth": 1.1e9}}]]=]
for _, path in ipairs { written("a.lua", lua), written("a.json", json) } do
  local peers = cluster.read(path)
  assert(#peers == 2 and peers[1].coordinator and peers[1].memory == 20e6 and peers[1].bandwidth == 80e9)
  assert(peers[1].flops == 60e12 and not peers[1].link and not peers[2].coordinator)
  assert(peers[2].memory == 1e9 and peers[2].bandwidth == 936e9 and peers[2].flops == 71e12)
  assert(peers[2].link.latency == 2e-4 and peers[2].link.bandwidth == 1.1e9)
end

local function unread(part, change)
  local text = lua:gsub(change[1], change[2])
  assert(text ~= lua)
  refused(part, cluster.read, written("wrong.lua", text))
end

unread("wrong.lua: machine 1: unknown key memry; did you mean memory?", { 'memory = "20M"', "memry = 1" })
unread("machine 2 (rack): link: unknown key speed; there are latency, bandwidth", { "latency = 2e%-4", "speed = 1" })
unread("machine 1 (desk): memory is 20 apples, expected a size", { '"20M"', '"20 apples"' })
unread("machine 1 (desk): flops is missing; give it, or a machine, of which there are a100,", { ", flops = 60e12", "" })
unread("machine 2 (rack): link is missing", { ", link = %b{}", "" })
unread("machine 2 (rack): link.latency is slow", { "2e%-4", '"slow"' })
unread("there is no machine rtx9090", { "rtx3090", "rtx9090" })
unread("machine 1: expected a name", { 'name = "desk"', "name = 1" })
unread("machine 1 is 5, expected a table", { "%{ name = \"desk\"[^\n]*", "5," })
unread("unknown key more beside the list", { "return {", "return { more = 1," })
unread("expected a list of machines", { "return %b{}", "return 5" })
unread("wrong.lua:3:", { "{ name = \"desk\"", "{ name == " })
unread("attempt to index global 'os'", { "return {", "os.exit(0) return {" })
refused("bad.json: ", cluster.read, written("bad.json", "[{"))

-- ---------------------------------------------------------------- what is predicted

local function machines(change)
  local list = {
    { name = "desk", coordinator = true, memory = "110M", bandwidth = "80G", flops = 60e12 },
    { name = "rack", machine = "rtx3090", memory = 1e9, link = { latency = 2e-4, bandwidth = "1.1G" } },
    { name = "far", memory = "1G", bandwidth = "80G", flops = 60e12, link = { latency = 50e-3, bandwidth = "2M" } },
    { name = "tiny", memory = "60M", bandwidth = "80G", flops = 60e12, link = { latency = 0, bandwidth = "1G" } },
  }
  for name, value in pairs(change or {}) do list[name] = value end
  return list
end

local function predicted(change)
  local opt = { model = config, context = 512, batch = 4, kv = "f16", peers = machines() }
  for name, value in pairs(change or {}) do opt[name] = value end
  return simulate(opt)
end

local function says(found, pattern)
  local text = tostring(found)
  assert(text:find(pattern), ("expected '%s' in:\n%s"):format(pattern, text))
end

local found = predicted()
local ranges = found.assigned.ranges
assert(#ranges == 2 and ranges[1].peer == "desk" and ranges[2].peer == "rack" and ranges[1].count == 0,
  "the model does not fit here, and is fastest there")
assert(ranges[1].bytes + found.assigned.slack <= 110e6 and ranges[1].count + ranges[2].count == layers)
assert(found.one.in_turn > 2 * 2e-4 and found.one.tokens_per_second == 1 / found.one.seconds)
assert(near(found.assigned.tokens_per_second, 4 / found.assigned.seconds, 1e-12))
assert(near(found.prompt.tokens_per_second, 256 / found.prompt.seconds, 1e-12))
says(found, "^this config: 0.01993 billion parameters, 6 layers, bf16; a cache of 4 x 512 tokens in f16 takes 6.3 MB\n")
says(found, "\nmachine +layers +memory +of +a step +two hops\n")
says(found, "\ndesk +none +10%d.%d MB +110.0 MB +[%d.]+ us +\nrack +0 to 5 +[%d.]+ MB +1.0 GB +[%d.]+ us +40%d us\n")
says(found, "\nthe first is the coordinator, with embedding and head; "
  .. "memory: weights, cache, and %d+.%d MB of slack each\n")
says(found, "\nleft out: tiny: 60.0 MB free hold no layer: the smallest takes [%d.]+ MB, beside %d+.%d MB of slack\n")
says(found, "\nleft out: far: a step would take 10%d ms with it, and takes %d+ us without\n")
says(found, "\nno other machines, order or split are faster\n")
says(found, "\none request: [%d.]+ tokens/s, a step of %d+ us, of which links 401 us\n")
says(found, "\n4 requests: [%d.]+ tokens/s, a step of %d+ us, of which links 404 us\n")
says(found, "\nprompts in pieces of 256 tokens: %d+ tokens/s, a step of [%d.]+ us$")

-- In groups, which pass the machines one behind the other.
local groups = predicted { in_flight = 4 }
assert(groups.cost.steps.batch.rows == 1)
assert(groups.assigned.tokens_per_second > 1.5 * groups.one.tokens_per_second)
says(groups, "\n4 requests: [%d.]+ tokens/s, a step of [%d.]+ %ws in 4 groups of 1; one group alone %d+ us, "
  .. "slowest the layers of %w+, %d+ us\n")

says(predicted { batch = 1, policy = "proportional", peers = { machines()[1], machines()[2] } },
  "\nby free memory, whatever it takes\none request: ")
assert(predicted({ batch = 1 }).assigned.tokens_per_second == predicted({ batch = 1 }).one.tokens_per_second)

local desk = machines()[1]
refused("of 6 layers, which take", predicted, { peers = { desk } })
refused("desk, the coordinator, has 90.0 MB free, and embedding, head and", predicted,
  { peers = { { name = "desk", coordinator = true, memory = "90M", bandwidth = "80G", flops = 1e12 } } })
refused("no peer is the coordinator", predicted, { peers = { machines()[2] } })
refused("--rank says nothing of inference over machines (--peers)", predicted, { rank = 8 })
refused("--peers is of inference, not of mode lora", predicted, { mode = "lora" })
refused("no such file", predicted, { peers = scratch.at "nothing.json" })
print "peers_simulate: passed"
