-- The models of tests/golden/models: logits, gradients and the losses of 20 steps, in full and of an adapter, are those
-- of transformers and PEFT. Generation is that of whole forward passes. GGUF files have llama.cpp's entries and read
-- back, and so do adapters. What llama.cpp has no words for is refused. Arguments: names of models (all).
package.path = (arg[0]:match "^(.*/)" or "./") .. "?.lua;" .. package.path
local q = require "qeng"

local export = require "qeng.gguf.export"
local formula = require "formula"
local last_logits = require "last_logits"
local scratch = require "scratch"
local types = require "qeng.gguf.types"
local at, refused = scratch.at, scratch.refused
local distance = last_logits.distance

local worst = {}  -- by what is compared

local function near(what, name, off, most)
  worst[what] = math.max(worst[what] or 0, off)
  assert(off < most, ("%s: %s is off by %g"):format(name, what, off))
end

local function batch_of(tokens)
  local micro_batch = q.micro_batch(#tokens, 2)
  local targets, positions = { unpack(tokens, 2) }, {}
  targets[#tokens] = -1
  for i = 1, #tokens do positions[i] = i - 1 end
  micro_batch.tokens:set(tokens) micro_batch.targets:set(targets) micro_batch.positions:set(positions)
  micro_batch.cu_q:set { 0, #tokens, #tokens } micro_batch.scale:fill(1 / (#tokens - 1))
  return micro_batch
end

local function norm(tensor) return math.sqrt((q.quant.squared_error(q.zeros(tensor:shape()), tensor))) end

-- The loss as a number, with that of the balance of experts if the config trains with it: transformers has both in one.
-- Goes back from both.
local function train_on(model, batch)
  local loss, _, balance = model:loss(batch)
  local sum = loss:item() + (balance and balance:item() or 0)
  loss:backward(balance)
  return sum
end

-- Each gradient has the length, and the product with a direction, that the golden file says. Lengths are near 1. One of
-- 1e-7 is rounding: a bias of keys changes nothing where heads are not turned.
local function check_gradients(name, model, batch, case)
  -- Of experts they are of doubles, from which PyTorch is off by up to 2e-5; of delta rules by up to 1e-5.
  local most = (model.config.experts or model.config.delta) and 1e-4 or 1e-5
  near("loss", name, math.abs(train_on(model, batch) - case.loss), 1e-5)
  local found = model:gradients()
  for parameter, expected in pairs(case.gradients) do
    local grad = assert(found[parameter], name .. ": no gradient of " .. parameter)
    if model.arch.transposed and model.arch.transposed(parameter) then grad = grad:transpose():clone() end
    local direction = formula(parameter .. "?", grad:shape())
    local length = math.max(expected[1], 0.1)
    local product = (grad * direction):sum():item()
    near("length of a gradient", name .. ", " .. parameter, math.abs(norm(grad) - expected[1]) / length, most)
    near("gradient", name .. ", " .. parameter, math.abs(product - expected[2]) / (length * norm(direction)), most)
  end
end

-- Every weight in bf16: together gradients are as long as those that transformers gives in f32, but for rounding.
local function check_half(name, model, batch, case)
  near("loss in bf16", name, math.abs(train_on(model:full(), batch) - case.loss), 0.03)
  local found, square, expected = model:gradients(), 0, 0
  for parameter, each in pairs(case.gradients) do
    square, expected = square + norm(found[parameter]) ^ 2, expected + each[1] ^ 2
  end
  near("length of all gradients in bf16", name, math.abs(math.sqrt(square / expected) - 1), 0.15)
end

local function check_curve(what, name, model, batch, golden, expected)
  local adamw = q.adamw(model:trainable(),
    { lr = golden.rate, eps = golden.eps, decay = 0, beta1 = 0.9, beta2 = 0.999 })
  for step, loss_then in ipairs(expected) do
    near(what, ("%s, step %d"):format(name, step), math.abs(train_on(model, batch) - loss_then), 1e-4)
    adamw:step()
  end
end

-- The greedy continuation by the engine (pages, captured programs, guesses), while another request runs.
local function generated(model, tokens, count)
  local engine = model:engine { kv = "f32", max_batch = 2, context = #tokens + 30 }
  local request = engine:submit { ids = tokens, max_tokens = count, temperature = 0, lookup = 3 }
  engine:submit { ids = { unpack(tokens, 1, 5) }, max_tokens = 12, temperature = 1, seed = 1 }
  engine:finish()
  local ids = request.output
  engine:close()
  return ids
end

local function check_gguf(name, model, tokens, case, word)
  if not case.entries and not case.windowed then
    return refused("gguf: ", model.save_gguf, model, at "model.gguf", { type = "f32" })
  end
  model:save_gguf(at "model.gguf", { type = "f32" })
  local file = q.gguf.open(at "model.gguf")
  for key, value in pairs(case.entries or {}) do
    local written = file:get(word .. "." .. key)
    local function same(a, b) return a and math.abs(a - b) <= 1e-6 * math.abs(b) end
    if type(value) == "table" then
      for i, each in ipairs(value) do assert(same(written[i], each), name .. ": " .. key .. " has other numbers") end
    else
      assert(same(written, value),
        ("%s: %s is %s, llama.cpp writes %s"):format(name, key, tostring(written), tostring(value)))
    end
  end
  file:close()
  local again = q.load(at "model.gguf")
  if case.llama then  -- which has GELU from a table of f16; a gate multiplies it in Gemmas
    near("logits of llama.cpp", name, distance(case.llama, last_logits.of(again, tokens)),
      word:find "^gemma" and 5e-4 or 1e-4)
  end
  again:save(at "folder")
  near("a folder of a GGUF file", name, distance(case.logits, last_logits.of(q.load(at "folder"), tokens)), 1e-5)
end

-- An adapter that learned: saved and read back, as PEFT's and llama.cpp's, and merged.
local function check_adapter(name, model, fresh, tokens, has_words)
  local changed = last_logits.of(model, tokens)
  model:save_adapter(at "adapter")
  if has_words then model:save_adapter_gguf(at "adapter.gguf") end
  for _, path in ipairs { "adapter", has_words and "adapter.gguf" or nil } do
    local again = last_logits.of(fresh():load_adapter(at(path)), tokens)
    near("adapter", name .. ", " .. path, distance(changed, again), 1e-6)
  end
  near("merged adapter", name, distance(changed, last_logits.of(model:merge(), tokens)), 3e-5)
end

local files = q.fs.list "tests/golden/models"
table.sort(files)
if arg[1] then
  files = {}
  for i, name in ipairs(arg) do files[i] = name .. ".json" end
end
for _, path in ipairs(files) do
  local golden = q.json.decode(q.fs.read("tests/golden/models/" .. path:match "[^/]+$"))
  local tokens = golden.tokens
  local batch = batch_of(tokens)
  for _, case in ipairs(golden.cases) do
    local name = golden.word .. ", " .. case.name
    local function fresh() return q.random_model(case.values, { weights = formula }) end
    local model = fresh()
    near("logits", name, distance(case.logits, last_logits.of(model, tokens)), 1e-5)
    local ids = generated(model, tokens, #case.greedy)
    assert(table.concat(ids, " ") == table.concat(case.greedy, " "),
      ("%s: generates %s, transformers %s"):format(name, table.concat(ids, " "), table.concat(case.greedy, " ")))
    check_gguf(name, model, tokens, case, golden.word)
    model:save(at "own")
    near("folder", name, distance(case.logits, last_logits.of(q.load(at "own"), tokens)), 1e-5)

    check_gradients(name, fresh():full(), batch, case)
    check_half(name, q.load(at "own", { dtype = "bf16", writable = true }), batch, case)
    check_curve("full training", name, fresh():full(), batch, golden, case.full)
    model = fresh():lora { rank = golden.rank, alpha = golden.alpha, targets = case.targets }
    for _, parameter in ipairs(model.adapter.parameters) do
      local tensor = parameter.tensor
      if parameter.name:find "lora_A" then tensor:copy(formula(parameter.name, tensor:shape())) end
    end
    check_curve("training of an adapter", name, model, batch, golden, case.lora)
    check_adapter(name, model, fresh, tokens, case.entries ~= nil)
  end
end

-- GPT-2's first checkpoints leave out "transformer." and hold tables of the causal mask. A folder becomes the GGUF file
-- that its model does, and blocks of few bits and bf16 go through products as elsewhere.
local function check_gpt2()
  local golden = q.json.decode(q.fs.read "tests/golden/models/gpt2.json")
  local tokens, expected = golden.tokens, golden.cases[1].logits
  local model = q.random_model(golden.cases[1].values, { weights = formula })
  local function close(what, path, most, opt)
    local loaded = q.load(at(path), opt)
    local logits = last_logits.of(loaded, tokens)
    near(what, "gpt2", distance(expected, logits), most)
    return loaded, logits
  end
  model:save(at "whole")
  local stored = q.safetensors.open(at "whole/model.safetensors")
  local tensors = { { "h.0.attn.bias", q.zeros({ 8, 8 }):fill(1) } }
  for _, name in ipairs(stored:names()) do
    tensors[#tensors + 1] = { (name:gsub("^transformer%.", "")), stored:tensor(name) }
  end
  q.fs.mkdir(at "first")
  q.safetensors.save(at "first/model.safetensors", tensors)
  q.fs.copy(at "whole/config.json", at "first/config.json")
  close("a folder without a prefix", "first", 1e-5)
  for _, folder in ipairs { "whole", "first" } do
    local source = export.open(at(folder))
    export.write(at "of_folder.gguf", source, types.plan("f32", "", source.shape, false))
    close("a GGUF file of a folder", "of_folder.gguf", 1e-5)
  end
  refused("is [in, out], and cannot be streamed", q.load, at "whole", { weights = "stream" })
  close("streamed", "of_folder.gguf", 1e-5, { weights = "stream" })
  close("bf16", "whole", 0.03, { dtype = "bf16" })
  model:save_gguf(at "blocks.gguf", { type = "q8_0" })
  local blocks
  blocks, expected = close("q8_0", "blocks.gguf", 0.05)
  generated(blocks, tokens, 8)
  blocks:save(at "of_blocks")
  close("a folder of blocks", "of_blocks", 1e-5)
  assert(model.places[5] == "layers.0.attn" and model:activations(tokens, { "layers.1" })["layers.1"])
end
check_gpt2()

-- Settings that no transformers has for a model, or that it does not compute here, are refused by name.
local function refuses(text, model, more)
  local golden = q.json.decode(q.fs.read("tests/golden/models/" .. model .. ".json"))
  local values = golden.cases[1].values
  for key, value in pairs(more) do values[key] = value end
  refused(text, q.random_model, values)
end
refuses("unknown key clip_qkv", "olmo2", { clip_qkv = 8 })
refuses("no_rope_layers[2] is 2, expected 0 or 1", "smollm3", { no_rope_layers = { 1, 1, 2, 0 } })
refuses("a list of 4 numbers", "smollm3", { no_rope_layers = { 1, 1, 0 } })
refuses("residual_multiplier is -1, expected a positive number", "granite", { residual_multiplier = -1 })
refuses("scale_attn_by_inverse_layer_idx = true changes", "gpt2", { scale_attn_by_inverse_layer_idx = true })
refuses("activation_function = relu changes the mathematics", "gpt2", { activation_function = "relu" })
refuses("use_sliding_window = true changes the mathematics", "smollm3", { use_sliding_window = true })

local said = {}
for what, off in pairs(worst) do said[#said + 1] = ("%s %.1g"):format(what, off) end
table.sort(said)
print("models: as transformers, PEFT and llama.cpp have them; the largest differences: " .. table.concat(said, ", "))
