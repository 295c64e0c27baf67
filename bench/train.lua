-- Trains a model of a real shape for some steps and says how fast:  qeng bench/train.lua --shape 1.5B --out DIR
-- Weights, adapters and documents come from one block of random numbers, by rules that train_peer.py follows too. So
-- nothing is downloaded and no file of weights is written. README.md says what is in DIR afterwards.

local q = require "qeng"

local shapes = {  -- Qwen2.5
  ["0.5B"] = { hidden_size = 896, num_hidden_layers = 24, num_attention_heads = 14, num_key_value_heads = 2,
    intermediate_size = 4864, vocab_size = 151936, tie_word_embeddings = true },
  ["1.5B"] = { hidden_size = 1536, num_hidden_layers = 28, num_attention_heads = 12, num_key_value_heads = 2,
    intermediate_size = 8960, vocab_size = 151936, tie_word_embeddings = true },
  ["7B"] = { hidden_size = 3584, num_hidden_layers = 28, num_attention_heads = 28, num_key_value_heads = 4,
    intermediate_size = 18944, vocab_size = 152064, tie_word_embeddings = false },
  tiny = { hidden_size = 64, num_hidden_layers = 2, num_attention_heads = 4, num_key_value_heads = 2,
    intermediate_size = 96, vocab_size = 320, tie_word_embeddings = true },
}

local opt = q.options {
  "Times training of a model with random weights.",
  { "shape", "1.5B", "whose shape", choices = { "0.5B", "1.5B", "7B", "tiny" } },
  { "mode", "lora", "what is trained", choices = { "lora", "full" } },
  { "row_tokens", 8192, "tokens of a packed row", min = 2 },
  { "rows", 1, "rows of a step", min = 1 },
  { "steps", 13, "steps, of which the first three are not timed", min = 1 },
  { "rank", 16, "LoRA rank", min = 1 },
  { "dtype", "bf16", "of weights and activations", choices = { "f32", "bf16" } },
  { "recompute", false, "keep one activation a layer, recompute the others" },
  { "eager", false, "run operation by operation" },
  { "profile", false, "at the end, print where a pass spends its time" },
  { "batches", false, "write batches.json, which train_peer.py reads" },
  { "adapter", false, "at the end, save the adapter (to compare the bits of runs)" },
  { "out", nil, "folder to write", required = true },
  "device",
}
q.use_device(opt)
q.fs.mkdir(opt.out)

local shape = shapes[opt.shape]
local config = {
  architectures = q.json.array { "Qwen2ForCausalLM" }, model_type = "qwen2", max_position_embeddings = 32768,
  rms_norm_eps = 1e-6,
  rope_theta = 1000000, hidden_act = "silu", bos_token_id = 0, eos_token_id = 0,
}
for key, value in pairs(shape) do config[key] = value end
q.fs.write(opt.out .. "/config.json", q.json.encode(config, { pretty = true }) .. "\n")

-- A prime: it divides no width, so the rows of a matrix do not repeat each other.
local period = 1048573
local block = q.randn({ period }, { std = 0.02, seed = 1, dtype = opt.dtype, label = "batch" })
q.safetensors.save(opt.out .. "/block.safetensors", { { "block", block } })

-- Fills with the block, repeated, from a place that the name decides.
local function fill(name, tensor)
  local n, start = tensor:elements(), 0
  for i = 1, #name do start = (start * 31 + name:byte(i)) % period end
  local flat = tensor:reshape { n }
  local first = math.min(n, period - start)
  flat:rows(0, first):copy(block:rows(start, first))
  if n > first then
    local second = math.min(n - first, start)
    if second > 0 then flat:rows(first, second):copy(block:rows(0, second)) end
    local done = first + second
    while done < n do
      local more = math.min(done, n - done)
      flat:rows(done, more):copy(flat:rows(0, more))
      done = done + more
    end
  end
  return tensor
end

local model = q.random_model(config, { dtype = opt.dtype, weights = function(name, size)
  local tensor = q.zeros(size, opt.dtype, "weights")
  if #size == 1 then return tensor:fill(name:find "norm" and 1 or 0) end
  return fill(name, tensor)
end })
model.recompute = opt.recompute
local parameters = model.head:elements()
for _, layer in ipairs(model.linears) do parameters = parameters + layer.weight:elements() end
if opt.mode == "full" then
  model:full()
else
  model:lora { rank = opt.rank }
  for _, parameter in ipairs(model:trainable()) do
    if parameter.name:find("lora_A", 1, true) then fill(parameter.name, parameter.tensor) end
  end
end

-- Documents of mixed lengths, their tokens frequent and rare as in text; the second half of each is trained.
local state = 12345
local function uniform()
  state = (state * 1103515245 + 12345) % 2147483648
  return state / 2147483648
end
local writer, needed = q.ndp.create(opt.out .. "/data.qubgpu", {}), opt.row_tokens * opt.rows * opt.steps * 1.25
while needed > 0 do
  local length = math.floor(16 * (math.min(opt.row_tokens, 2048) / 16) ^ uniform())
  local tokens, mask = {}, {}
  for i = 1, length do
    tokens[i] = math.floor(shape.vocab_size ^ uniform()) - 1
    mask[i] = i > length / 2 and 1 or 0
  end
  writer:add(tokens, mask)
  needed = needed - length
end
writer:finish()
local file = q.ndp.open(opt.out .. "/data.qubgpu")

if opt.batches then  -- those that q.train will draw
  local batches = file:batches { row_tokens = opt.row_tokens, rows = opt.rows, seed = 0, split = "train", pad = 0 }
  local list = q.json.array {}
  for i = 1, opt.steps do
    local batch = batches:next()
    local info = batch:info()
    local micro_batch = q.micro_batch(info.tokens, info.max_documents)
    batch:load(micro_batch)
    local ends = q.json.array {}
    for _, v in ipairs(micro_batch.cu_q:table()) do if #ends == 0 or v > ends[#ends] then ends[#ends + 1] = v end end
    list[i] = {
      tokens = micro_batch.tokens:table(), targets = micro_batch.targets:table(),
      positions = micro_batch.positions:table(),
      cu_seqlens = ends,
      real_tokens = info.real_tokens,
    }
  end
  q.fs.write(opt.out .. "/batches.json", q.json.encode { row_tokens = opt.row_tokens, rows = opt.rows, rank = opt.rank,
    batches = list })
end
block:free()

local began = q.time()
local result = q.train {
  model = model, data = file, out = opt.out, steps = opt.steps, row_tokens = opt.row_tokens, rows = opt.rows,
  schedule = "constant",
  lr = opt.mode == "full" and 1e-5 or 2e-4, clip = 1.0, seed = 0, checkpoints = false, eager = opt.eager,
  profile = opt.profile,
}

local timed, data_ms, losses = {}, 0, q.json.array {}
for i, row in ipairs(result.metrics) do
  losses[i] = row.loss
  if i > math.min(3, opt.steps - 1) then
    timed[#timed + 1] = row.step_ms
    data_ms = data_ms + row.data_ms
  end
end
table.sort(timed)
local sum = 0
for _, ms in ipairs(timed) do sum = sum + ms end
local median = timed[math.ceil(#timed / 2)]
local memory = {}
for name, account in pairs(q.memory()) do memory[name] = account.peak end
local device = {}
for _, one in ipairs(q.devices()) do
  if one.name:find(opt.device == "auto" and "" or opt.device, 1, true) == 1 then device = one; break end
end
local flops = (opt.mode == "full" and 6 or 4) * parameters
local rate = opt.row_tokens * opt.rows / median * 1000
q.fs.write(opt.out .. "/result.json", q.json.encode({
  who = "qeng", version = q.version, device = opt.device, description = device.description, shape = opt.shape,
  mode = opt.mode,
  row_tokens = opt.row_tokens, rows = opt.rows, steps = #losses, rank = opt.rank, dtype = opt.dtype,
  recompute = opt.recompute,
  parameters = parameters, flops_per_token = flops, tok_s = rate, step_ms = median, step_ms_least = timed[1],
  step_ms_most = timed[#timed],
  first_step_ms = result.metrics[1].step_ms, data_wait = data_ms / sum, flops_s = rate * flops, limits = q.limits(),
  losses = losses, pass = result.pass,
  memory_peaks = memory, seconds = q.time() - began,
}, { pretty = true }) .. "\n")
if opt.adapter and opt.mode == "lora" then
  local tensors = {}
  for i, parameter in ipairs(model:trainable()) do tensors[i] = { parameter.name, parameter.tensor } end
  q.safetensors.save(opt.out .. "/adapter.safetensors", tensors)
end
print(("qeng %s %s, rows of %d: %.0f tok/s, %.1f ms a step, %.1f TFLOP/s at %d N a token, data wait %.2f %%"):format(
  opt.shape, opt.mode, opt.row_tokens, rate, median, rate * flops / 1e12, opt.mode == "full" and 6 or 4,
    100 * data_ms / sum))
if result.pass then
  local nodes = result.pass.nodes > 0 and (", %d nodes of its recording"):format(result.pass.nodes) or ""
  print(("a pass: %d operations%s, at least %.2f GB moved, %.1f ms at the measured bandwidth"):format(result.pass.ops,
    nodes, result.pass.bytes / 1e9, 1000 * result.pass.bytes / q.limits().bandwidth))
end
