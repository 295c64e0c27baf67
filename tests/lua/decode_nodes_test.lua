-- A step of decoding that a GPU has recorded is few kernels, and gives what the operations one by one give: the logits
-- of steps that are recorded, against those of steps that are not. Steps are of one and of several sequences, over
-- context of one page and of many. And of each row a sampler that sees the largest logits draws what one draws that
-- sees all.
package.path = (arg[0]:match "^(.*/)" or "./") .. "?.lua;" .. package.path
local q = require "qeng"
local paged = require "qeng.infer.paged"
local scratch = require "scratch"
local device = os.getenv "QENG_TEST_DEVICE" or "cpu"
q.device { device = device, threads = 1 }
local on_gpu = device ~= "cpu"

local function config(layers)
  return {
    architectures = q.json.array { "Qwen3ForCausalLM" }, model_type = "qwen3", hidden_size = 256,
    intermediate_size = 512, num_hidden_layers = layers, num_attention_heads = 4, num_key_value_heads = 2,
    head_dim = 64, vocab_size = 96,
    max_position_embeddings = 2048, rms_norm_eps = 1e-6, rope_theta = 10000, tie_word_embeddings = false,
    hidden_act = "silu",
  }
end
local function model_of(layers, type)
  local model = q.random_model(config(layers), { seed = 5, std = 0.1, dtype = "bf16" })
  if type == "bf16" then return model end
  local path = scratch.at(("%s%d.gguf"):format(type, layers))
  model:save_gguf(path, { type = type })
  return q.load(path, { dtype = "bf16" })
end

-- The logits of a step at each of `steps` tokens of n sequences that begin with `context`, and the kernels of a step.
local function decoded(model, n, context, steps)
  local pages = n * paged.pages(model, context + steps) + n
  local runner = paged.new(model, { pages = pages, rows = context, sequences = n })
  local ids, parts, wanted, found = {}, {}, {}, {}
  for i = 1, n do
    ids[i] = {}
    for k = 1, context do ids[i][k] = (i * 31 + k * k) % 96 end
    parts[i], wanted[i] = { id = runner.pool:open(0), count = context }, i - 1
    runner:extend(parts[i].id, ids[i])
    runner:run({ parts[i] }, { context - 1 }, function() end)
    parts[i].count = 1
  end
  for step = 1, steps do
    for i = 1, n do
      table.insert(ids[i], (step * 7 + i) % 96)
      runner:extend(parts[i].id, ids[i], #ids[i], #ids[i])
    end
    runner:run(parts, wanted, function(logits, _, largest, whose)
      found[step] = logits:table()
      assert((largest ~= nil) == on_gpu, "a device says which logits are the largest, where the host cannot read them")
      paged.each_row(logits, function(k, row, top)
        local of_top, of_all = q.sampler { top_k = 5, seed = step + k }, q.sampler { top_k = 5, seed = step + k }
        assert((top.top ~= nil) == on_gpu and of_top:next(row, top) == of_all:next(row), "another token is drawn")
      end, largest, whose)
    end)
  end
  local nodes = runner:nodes()
  runner:free()
  return found, nodes
end

-- The same steps, none of them recorded.
local function alone(...)
  local runner = paged.new((...), { pages = 1 })
  local class = getmetatable(runner).__index
  local replay = class.replay
  class.replay = function() return false end
  local found, nodes = decoded(...)
  class.replay = replay
  runner:free()
  assert(nodes == 0, "a step was recorded that was not to be")
  return found
end

local function equal(a, b)
  for step, rows in ipairs(a) do
    for i, row in ipairs(rows) do
      for k, value in ipairs(row) do if value ~= b[step][i][k] then return false end end
    end
  end
  return true
end

for _, type in ipairs { "bf16", "q4_0" } do
  local nodes = {}
  for layers = 1, 2 do
    local model = model_of(layers, type)
    for _, how in ipairs { { 1, 300 }, { 1, 5 }, { 3, 40 } } do
      local n, context = unpack(how)
      local found, count = decoded(model, n, context, 4)
      assert(equal(found, alone(model, n, context, 4)), type .. ": a recorded step has other bits")
      assert((count > 0) == on_gpu, "steps are recorded on a GPU, and there alone")
      if n == 1 and context == 300 then nodes[layers] = count end
    end
  end
  -- Of 36 layers, as Qwen3-8B has them.
  local of_36 = nodes[1] + 35 * (nodes[2] - nodes[1])
  if on_gpu then print(("%s: %d kernels a layer, %d of 36 layers"):format(type, nodes[2] - nodes[1], of_36)) end
  assert(of_36 <= 250, ("%s: a step of 36 layers is %d kernels; at most 250 are wanted"):format(type, of_36))
end
print "ok"
