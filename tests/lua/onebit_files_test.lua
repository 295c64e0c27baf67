-- One-bit models in files: saved as bits, whatever they were loaded from; merged with an adapter; refused for learning
-- where their memory belongs to the file. And the conversion of a trained model, stopped and resumed.
package.path = (arg[0]:match "^(.*/)" or "./") .. "?.lua;" .. package.path
local q = require "qeng"
local onebit = require "qeng.onebit"
local small = require "onebit_small"

q.device { device = "cpu", threads = 2 }

local dir = ("%s/qeng_onebit_files_%d_%d"):format(os.getenv "TMPDIR" or "/tmp", os.time(), math.random(1e9))
q.fs.mkdir(dir)
local tokenizer = q.tokenizer "recipes/tiny"
local values = {
  architectures = { "Qwen3ForCausalLM" }, model_type = "qwen3", vocab_size = tokenizer:vocab_size(), hidden_size = 128,
  num_hidden_layers = 2, num_attention_heads = 2,
  num_key_value_heads = 2, head_dim = 64, intermediate_size = 128, max_position_embeddings = 128, rms_norm_eps = 1e-6,
  rope_theta = 10000, hidden_act = "silu",
  tie_word_embeddings = false }
local ids = { 5, 9, 100, 7, 61, 3 }

local function differ(a, b)
  local x, y, worst = a:logits(ids):table(), b:logits(ids):table(), 0
  for i, row in ipairs(x) do
    for j, value in ipairs(row) do worst = math.max(worst, math.abs(value - y[i][j])) end
  end
  return worst
end

-- No scale is a power of two, so a scale that is forgotten or used twice shows.
local function model_of_bits(seed)
  local model = q.onebit.random(values, { seed = seed })
  for i, layer in ipairs(model.linears) do
    layer.row_scale:copy(q.uniform(layer.row_scale:shape(), { low = 0.03, high = 0.2, seed = seed, subsequence = i }))
  end
  return model
end

-- ---------------------------------------------------------------- merged with an adapter

do
  local bare, model = model_of_bits(1), model_of_bits(1):lora { rank = 4, seed = 2 }
  for i, layer in ipairs(model.linears) do
    layer.lora.b:copy(q.randn(layer.lora.b:shape(), { std = 0.05, seed = 3, subsequence = i }))
  end
  model:save_adapter(dir .. "/adapter")
  local apart, before = differ(model, bare), model:logits(ids):clone()
  assert(apart > 0.1, "the adapter does nothing")
  model:merge()
  local worst = 0
  for i, row in ipairs(model:logits(ids):table()) do
    for j, value in ipairs(row) do worst = math.max(worst, math.abs(value - before:table()[i][j])) end
  end
  assert(worst < 1e-4 * apart, ("merging moves logits by %g, the adapter by %g"):format(worst, apart))
  assert(model.linears[1].weight:dtype() == "f32" and not model.linears[1].row_scale)
  model:save(dir .. "/merged")
  assert(differ(q.load(dir .. "/merged"), model) == 0, "the merged model is saved as another")
end

-- ---------------------------------------------------------------- saved as bits

do
  local model = model_of_bits(4)
  model.tokenizer, model.stop_ids = tokenizer, {}
  model:save_gguf(dir .. "/bits.gguf",
    { type = "q1_0", overrides = "token_embd=f32,output.weight=f32,attn_output.weight=q1_0" })
  local from_gguf = onebit.unpack(q.load(dir .. "/bits.gguf", { dtype = "f32" }))
  from_gguf:save(dir .. "/bits")
  local again = q.load(dir .. "/bits", { writable = true })
  assert(again.linears[1].weight:dtype() == "one_bit" and differ(again, from_gguf) == 0,
    "bits from a GGUF file are saved as something else")
  q.inertia(again, {}):free()  -- they can learn
  model:save(dir .. "/narrow", { dtype = "bf16" })
  local file = q.safetensors.open(dir .. "/narrow")
  for _, layer in ipairs(model.linears) do
    assert(file:info(layer.name .. ".weight").dtype == "one_bit" and
      file:info(layer.name .. ".weight_scale").dtype == "f32", "bits or scales were cast")
  end
  assert(file:info("model.norm.weight").dtype == "bf16")
  file:close()
end

do  -- as a GGUF file and back: the same signs, scales rounded to f16
  local model = q.onebit.random(values, { seed = 6 })
  model.tokenizer = tokenizer
  model:save_gguf(dir .. "/signs.gguf",
    { type = "q1_0", overrides = "token_embd=f32,output.weight=f32,attn_output.weight=q1_0" })
  local again = onebit.unpack(q.load(dir .. "/signs.gguf", { weights = "map" }))
  local worst = differ(model, again)
  assert(worst < 0.02, "one bit a weight by way of GGUF: logits differ by " .. worst)
  for i, layer in ipairs(model.linears) do
    assert(q.onebit.count_bits(layer.weight, again.linears[i].weight) == 0, layer.name .. ": other signs")
  end
end

-- ---------------------------------------------------------------- where the memory is the file's

do
  local model = q.load(dir .. "/bits",
    { weights = "stream", host_budget = require("qeng.model.stream").process() + 200e6 })
  local weight = model.linears[1].weight
  for name, learn in pairs {
    inertia = function() q.inertia(model, {}) end,
    latent = function()
      local latent = q.zeros(weight:shape())
      latent:requires_grad(true)
      q.onebit.learn_latent(weight, latent)
    end,
    signs = function() q.onebit.pack_signs(q.zeros(weight:shape()), weight) end,
  } do
    local ok, err = pcall(learn)
    assert(not ok and err.code == "unsupported" and tostring(err):find "streamed", name .. ": " .. tostring(err))
  end
end

-- ---------------------------------------------------------------- converted

do
  local train_tokens = q.ndp.create(dir .. "/data.qubgpu", { meta = { tokenizer_hash = tokenizer:hash() } })
  local template = q.chat_template(tokenizer, "chatml")
  for i = 1, 60 do
    train_tokens:add((template:encode { text = ("Anna counts to %d and then to %d again."):format(i, i + 3) }))
  end
  train_tokens:finish()
  local convert = require "qeng.onebit.convert"
  local function converted(out, seed, steps, stop)
    local student = q.random_model(values, { seed = seed, dtype = "f32" })
    local bits = convert.progressive(student, { steps = steps, stages = 2, inertia = { levels = 3, q = 0.4 } })
    local ok, err = pcall(q.train, {
      model = student, bits = bits, data = q.ndp.open(dir .. "/data.qubgpu"), out = out, steps = steps, row_tokens = 48,
      rows = 1, lr = 5e-3, seed = 3, save_every = 1,
      resume = true, on_step = function(row) if row.step == stop then q.error("value", "stopped here") end end,
    })
    if stop then assert(not ok and tostring(err):find "stopped here", tostring(err)) end
    return ok, tostring(err), small.digest(student)
  end
  local ok, err, whole = converted(dir .. "/whole", 7, 12)
  assert(ok, err)
  for _, stop in ipairs { 2, 5, 9 } do converted(dir .. "/parts", 7, 12, stop) end
  local fine, why, resumed = converted(dir .. "/parts", 7, 12)
  assert(fine, why)
  assert(resumed == whole, "a conversion that was stopped gives other bits")
  converted(dir .. "/other", 7, 12, 5)
  ok, err = converted(dir .. "/other", 8, 12)
  assert(not ok and err:find "has weights to convert %x+, this one %x+", err)
  ok, err = converted(dir .. "/other", 7, 20)
  assert(not ok and err:find "has steps 12, this one 20", err)
end
do  -- what is one-bit already is refused before anything else is done
  local convert = require "qeng.onebit.convert"
  local ok, err = pcall(convert.progressive, model_of_bits(1), { steps = 4 })
  assert(not ok and err.code == "dtype" and
    tostring(err):find "is one_bit, expected f32, bf16 or f16: convert the model", tostring(err))
end
q.fs.remove(dir)
print "one-bit files: ok"
