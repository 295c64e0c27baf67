-- Adapters that PEFT wrote (tests/golden/adapter_golden.py): DoRA, layers by full path, ranks and alphas of single
-- layers. They give PEFT's logits and gradients, merged and in the batch engine too. Saved again, they are the same
-- adapter.
package.path = (arg[0]:match "^(.*/)" or "./") .. "?.lua;" .. package.path
local q = require "qeng"
local scratch = require "scratch"
local at, refused = scratch.at, scratch.refused

local golden = "tests/golden/adapters"
local expected = q.json.decode(q.fs.read(golden .. "/expected.json"))
local ids = expected.tokens

local function worst(got, rows)
  local numbers, most = got:table(), 0
  for i, row in ipairs(rows) do
    for j, value in ipairs(row) do most = math.max(most, math.abs(numbers[i][j] - value)) end
  end
  return most
end

local function flat(tensor) return table.concat(tensor:reshape { tensor:elements() }:table(), " ") end

local function near(what, got, rows)
  local most = worst(got, rows)
  assert(most < 2e-5, ("%s: off by %g"):format(what, most))  -- logits of about 5, in f32
end

for _, name in ipairs { "dora", "plain" } do
  local function fresh(opt) return q.load(golden .. "/base", opt) end
  local rows = expected.logits[name]
  local model = fresh():load_adapter(golden .. "/" .. name)
  near(name, model:logits(ids), rows)
  assert(worst(fresh():logits(ids), rows) > 0.1, "the adapter makes a difference")

  -- Greedy text of the batch engine is that of the full forward pass: with the adapter on the model, and as a request's
  -- own.
  local function greedy(logits, row)
    local numbers, best = logits:table()[row], 1
    for j, value in ipairs(numbers) do if value > numbers[best] then best = j end end
    return best - 1
  end
  local want, all = {}, { unpack(ids) }
  for i = 1, 6 do
    want[i] = greedy(model:logits(all), #all)
    all[#all + 1] = want[i]
  end
  local function generated(owner, adapter)
    local engine = owner:engine { max_batch = 2, pages = 8 }
    local r = engine:submit { ids = ids, max_tokens = 6, temperature = 0, stop_ids = {}, adapter = adapter }
    while engine:step() do end
    local tokens = table.concat(r.output, " ")
    engine:close()
    return tokens
  end
  assert(generated(model) == table.concat(want, " "), name .. ": the engine's text")
  local plain = fresh()
  assert(generated(plain, plain:read_adapter(golden .. "/" .. name)) == table.concat(want, " "),
    name .. ": a request's adapter")

  -- A server scales an adapter that was used as it scales one that was not.
  local function halved(used)
    local served = require("qeng.server.served").new(name, fresh(), { max_batch = 2, pages = 8 })
    served:add_adapter("it", golden .. "/" .. name)
    local function likely()
      local r = served.engine:submit { ids = ids, max_tokens = 1, temperature = 0, stop_ids = {}, logprobs = 0,
        adapter = served.adapters.it.adapter }
      served.engine:finish()
      return r.logprobs[1].logprob
    end
    local whole = used and likely()
    served:scale_adapter("it", 0.5)
    local half = likely()
    assert(half ~= whole)
    served:close()
    return half
  end
  assert(halved(true) == halved(false), name .. ": scaled after use")

  -- Saved again and loaded: the same tensors. Merged: the same logits.
  model:save_adapter(at(name))
  local first, second = q.safetensors.open(golden .. "/" .. name .. "/adapter_model.safetensors"),
    q.safetensors.open(at(name) .. "/adapter_model.safetensors")
  assert(#first:names() == #second:names())
  for _, tensor in ipairs(first:names()) do
    assert(flat(first:tensor(tensor)) == flat(second:tensor(tensor)), tensor)
  end
  near(name .. " saved again", fresh():load_adapter(at(name)):logits(ids), rows)
  near(name .. " merged", fresh():load_adapter(golden .. "/" .. name):merge():logits(ids), rows)
  if name == "plain" then
    model:save_adapter_gguf(at "plain.gguf")
    near("as GGUF", fresh():load_adapter(at "plain.gguf"):logits(ids), rows)
    -- What it is for may be said. An entry that may change what it computes is refused.
    local file, tensors, entries = q.gguf.open(at "plain.gguf"), {}, { { "adapter.lora.task_name", "string", "x" } }
    for _, key in ipairs(file:keys()) do
      local value, kind = file:get(key)
      entries[#entries + 1] = { key, kind, value }
    end
    for _, tensor in ipairs(file:names()) do tensors[#tensors + 1] = { tensor, file:tensor(tensor) } end
    q.gguf.save(at "named.gguf", tensors, entries)
    near("with a task's name", fresh():load_adapter(at "named.gguf"):logits(ids), rows)
    entries[1] = { "adapter.alora.invocation_tokens", "[u32]", { 3, 4 } }
    q.gguf.save(at "activated.gguf", tensors, entries)
    refused("adapter.alora.invocation_tokens, which may change", function()
      fresh():read_adapter(at "activated.gguf")
    end)
  else
    refused("GGUF has no DoRA", function() model:save_adapter_gguf(at "dora.gguf") end)
  end
end

-- Embedding and head, or one of them, were trained beside the adapters of a base that ties them. In PEFT's file they
-- are two.
for _, name in ipairs { "whole", "embed" } do
  local model = q.load(golden .. "/base"):load_adapter(golden .. "/" .. name)
  near(name, model:logits(ids), expected.logits[name])
  model:save_adapter(at(name))
  near(name .. " saved again", q.load(golden .. "/base"):load_adapter(at(name)):logits(ids), expected.logits[name])
  model:merge():save(at(name .. "_merged"))
  near(name .. " merged and saved", q.load(at(name .. "_merged")):logits(ids), expected.logits[name])
  refused("an embedding of its own", function() q.load(golden .. "/base"):read_adapter(golden .. "/" .. name) end)
end

-- New tokens: their rows are the mean of the others, and they are trained. A folder with them loads as it was saved.
do
  local new_tokens = require "qeng.model.new_tokens"
  local model = q.load("recipes/tiny", { dtype = "f32" })
  local before, tokens = model.config.vocab, model.tokenizer:vocab_size()
  local mean = {}
  for _, row in ipairs(model.embed:table()) do
    for j, value in ipairs(row) do mean[j] = (mean[j] or 0) + value / before end
  end
  assert(#new_tokens.add(model, { "<tool>", "<|im_end|>", "<tool>", "</tool>" }, at "tokenizer") == 2)
  assert(model.config.vocab == before + 2 and model.tokenizer:id "<tool>" == tokens and
    model.tokenizer:id "</tool>" == tokens + 1)
  assert(#model.tokenizer:encode("a<tool>b</tool>", { special = true }) == 4 and #new_tokens.add(model, { "<tool>" },
    at "again") == 0)
  local second = q.load("recipes/tiny", { dtype = "f32" })  -- of another process, which finds the folder
  q.fs.write(at "tokenizer/mark", "")
  assert(#new_tokens.add(second, { "<tool>", "</tool>" }, at "tokenizer", true) == 2 and
    second.embed:hash() == model.embed:hash() and q.fs.kind(at "tokenizer/mark"))
  q.fs.remove(at "tokenizer/mark")
  local row = model.embed:rows(tokens + 1, 1):table()[1]
  -- rounded to bf16
  for j, value in ipairs(row) do assert(math.abs(value - mean[j]) <= 1e-6 + math.abs(mean[j]) / 256) end
  model:lora { rank = 2, targets = { "q_proj" } }
  new_tokens.train_embeddings(model)
  local trained = model:trainable()
  assert(trained[#trained].tensor == model.embed and model.head == model.embed)
  local adamw = q.adamw_state((function(list)
    for i, p in ipairs(trained) do list[i] = p.tensor end
    return list
  end)({}), {})
  local text = { tokens, 5, tokens + 1, 7 }
  local micro_batch = q.micro_batch(4, 1)
  micro_batch.tokens:set(text)
  micro_batch.targets:set { 5, tokens + 1, 7, -1 }
  micro_batch.positions:set { 0, 1, 2, 3 }
  micro_batch.cu_q:set { 0, 4 }
  micro_batch.scale:fill(1 / 3)
  local first, last
  for _ = 1, 20 do
    local loss = model:loss(micro_batch)
    first, last = first or loss:item(), loss:item()
    loss:backward()
    adamw:step { lr = 1e-2 }
  end
  assert(last < 0.5 * first, ("%g to %g"):format(first, last))
  local logits = model:logits(text):table()
  local function same(other, what)
    local got = other:logits(text):table()
    for i, values in ipairs(logits) do
      for j, value in ipairs(values) do assert(math.abs(got[i][j] - value) < 1e-5, what) end
    end
    assert(other.tokenizer:id "</tool>" == tokens + 1 and other.config.vocab == before + 2, what)
  end
  model:save_adapter(at "tools")
  same(q.load("recipes/tiny", { dtype = "f32" }):load_adapter(at "tools"), "loaded")
  refused("GGUF's adapters have no embedding", function() model:save_adapter_gguf(at "tools.gguf") end)
  model:merge():save(at "tools_merged")
  same(q.load(at "tools_merged"), "merged and saved")
end

-- The gradients of the magnitudes, and of an A that stands before one, are PyTorch's. Recomputed, and in two steps,
-- they are the same.
local function gradients(recompute)
  local model = q.load(golden .. "/base"):load_adapter(golden .. "/dora")
  model.recompute = recompute
  local micro_batch = q.micro_batch(#ids, 1)
  micro_batch.tokens:set(ids)
  local targets, positions = {}, {}
  for i = 1, #ids do targets[i], positions[i] = ids[i + 1] or -1, i - 1 end
  micro_batch.targets:set(targets)
  micro_batch.positions:set(positions)
  micro_batch.cu_q:set { 0, #ids }
  micro_batch.scale:fill(1 / (#ids - 1))
  local loss = model:loss(micro_batch)
  local value = loss:item()
  loss:backward()
  local found = {}
  for _, parameter in ipairs(model:trainable()) do
    found[parameter.name:gsub("%.weight$", "")] = parameter.tensor:grad():reshape {
      parameter.tensor:elements() }:table()
  end
  return value, found
end
local value, found = gradients(false)
assert(math.abs(value - expected.loss) < 2e-6, value)
local seen = 0
for name, numbers in pairs(expected.gradients) do
  seen = seen + 1
  for i, number in ipairs(numbers) do
    assert(math.abs(found[name][i] - number) < 2e-6,
      ("%s[%d]: %g, expected %g"):format(name, i, found[name][i], number))
  end
end
assert(seen == 5)
local again, recomputed = gradients(true)
assert(again == value)
for name, numbers in pairs(found) do assert(table.concat(numbers, " ") == table.concat(recomputed[name], " "), name) end

-- NEFTune: noise only in training, drawn anew each step. Its strength follows a document's length, whatever lies beside
-- it.
do
  local x = q.zeros({ 6, 50 }, "f32")
  local cu = q.tensor({ 0, 4, 6 }, "i32")
  local program, drawn = q.capture(function() return q.embedding_noise(x, cu, 5):reshape { 300 } end)
  local function noisy(step)
    q.rng_step(step)
    program:run()
    return drawn:table()
  end
  local y = noisy(0)
  local function most(first, last)
    local sum = 0
    for i = first, last do sum = math.max(sum, math.abs(y[i])) end
    return sum
  end
  local long, short = 5 / math.sqrt(4 * 50), 5 / math.sqrt(2 * 50)
  assert(most(1, 200) <= long and most(1, 200) > 0.95 * long, "the first document's strength")
  assert(most(201, 300) <= short and most(201, 300) > 0.95 * short, "the second document's strength")
  assert(q.no_grad(q.embedding_noise, x, cu, 5):table()[1][1] == 0, "none outside of training")
  local other, same = noisy(1), noisy(0)
  assert(other[1] ~= y[1] and same[1] == y[1] and same[300] == y[300], "drawn from the step")
end

-- What is not supported is refused by name.
local function config_with(key, setting)
  local folder = at("bad_" .. key)
  q.fs.mkdir(folder)
  q.fs.copy(golden .. "/plain/adapter_model.safetensors", folder .. "/adapter_model.safetensors")
  local config = q.json.decode(q.fs.read(golden .. "/plain/adapter_config.json"))
  config[key] = setting
  q.fs.write(folder .. "/adapter_config.json", q.json.encode(config))
  return function() q.load(golden .. "/base"):load_adapter(folder) end
end
refused("velora_config is not supported", config_with("velora_config", { rank = 2 }))
refused("modules_to_save has norm", config_with("modules_to_save", q.json.array { "norm" }))
refused("is a pattern; names of layers", config_with("rank_pattern", { ["layers.[01].*"] = 3 }))
refused("is missing: the adapter belongs to another model",
  config_with("target_modules", q.json.array { "v_proj", "o_proj", "gate_proj", "q_proj" }))
refused("", config_with("rank_pattern", { gate_proj = 5 }))
refused("ranks: no layer with an adapter is named nowhere", function()
  q.load(golden .. "/base"):lora { ranks = { nowhere = 3 } }
end)
refused("no layer is named layers.7.self_attn.q_proj", function()
  q.load(golden .. "/base"):lora { targets = { "layers.7.self_attn.q_proj" } }
end)
print "ok"
