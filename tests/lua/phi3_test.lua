-- Phi-3, one file of scripts/qeng/models: logits are those of transformers and llama.cpp, gradients those of
-- transformers. An adapter is trained, merged and saved as for other models. A GGUF file of it has llama.cpp's words
-- and reads back.
package.path = (arg[0]:match "^(.*/)" or "./") .. "?.lua;" .. package.path
local q = require "qeng"

local cases = require "engine_cases"
local formula = require "formula"
local last_logits = require "last_logits"
local scoring = require "qeng.infer.scoring"
local scratch = require "scratch"
local at, refused = scratch.at, scratch.refused
local distance = last_logits.distance

local golden = q.json.decode(q.fs.read "tests/golden/phi3_golden.json")
local tokens = golden.tokens

local function near(name, expected, found, most)
  local off = distance(expected, found)
  assert(off < most, ("%s: off by %g"):format(name, off))
end

-- The gradients of the mean loss of all tokens but the first, by parameter, and that loss.
local function gradients(model)
  local micro_batch = q.micro_batch(#tokens, 2)
  local targets, positions = { unpack(tokens, 2) }, {}
  targets[#tokens] = -1
  for i = 1, #tokens do positions[i] = i - 1 end
  micro_batch.tokens:set(tokens) micro_batch.targets:set(targets) micro_batch.positions:set(positions)
  micro_batch.cu_q:set { 0, #tokens, #tokens } micro_batch.scale:fill(1 / (#tokens - 1))
  local loss = model:loss(micro_batch)
  local value = loss:item()
  loss:backward()
  local found = {}
  for _, parameter in ipairs(model:trainable()) do found[parameter.name] = parameter.tensor:grad() end
  return found, value
end

local function norm(tensor) return math.sqrt((q.quant.squared_error(q.zeros(tensor:shape()), tensor))) end

-- The greedy continuation by the engine (pages, programs) is that of whole forward passes.
local function generated(model)
  local engine = model:engine { kv = "f32", max_batch = 2, context = 40 }
  local request = engine:submit { ids = tokens, max_tokens = 8, temperature = 0, lookup = 3 }
  local other = engine:submit { ids = { unpack(tokens, 1, 5) }, max_tokens = 12, temperature = 1, seed = 1 }
  engine:finish()
  assert(#other.output > 0)
  local ids = { unpack(tokens) }
  for i, id in ipairs(request.output) do
    local best, row = 1, last_logits.of(model, ids)
    for k, value in ipairs(row) do if value > row[best] then best = k end end
    assert(best - 1 == id, ("token %d is %d, a forward pass gives %d"):format(i, id, best - 1))
    ids[#ids + 1] = id
  end
  engine:close()
end

for _, case in ipairs(golden.cases) do
  local name = case.name
  local model = q.random_model(case.values, { weights = formula })
  near(name, case.logits, last_logits.of(model, tokens), 1e-5)
  generated(model)

  local found, loss = gradients(q.random_model(case.values, { weights = formula }):full())
  assert(math.abs(loss - case.loss) < 1e-5, name .. ": the loss is another")
  for parameter, expected in pairs(case.gradients) do
    local off = math.abs(norm(found[parameter]) / expected - 1)
    assert(off < 1e-5, ("%s: the gradient of %s is off by %g"):format(name, parameter, off))
  end

  -- The entries are those that llama.cpp's converter writes; what reads them computes the same.
  model:save_gguf(at "model.gguf", { type = "f32" })
  local file = q.gguf.open(at "model.gguf")
  for key, value in pairs(case.entries) do
    local written = file:get("phi3." .. key)
    assert(math.abs(written / value - 1) < 1e-6,
      ("%s: %s is %s, llama.cpp writes %s"):format(name, key, written, value))
  end
  file:close()
  local again = q.load(at "model.gguf")
  near(name .. ", from GGUF", case.llama or case.logits, last_logits.of(again, tokens), 1e-4)
  near(name .. ", from GGUF", last_logits.of(model, tokens), last_logits.of(again, tokens), 1e-6)
  again:save(at "folder")
  near(name .. ", a folder of it", last_logits.of(model, tokens), last_logits.of(q.load(at "folder"), tokens), 1e-6)
end

-- ---- an adapter: dW = b a, so its gradient follows from the weight's
local values = golden.cases[4].values
local function fresh() return q.random_model(values, { weights = formula }) end
local full = gradients(fresh():full())
local model = fresh():lora { rank = 2, alpha = 6, seed = 1 }
assert(table.concat(model.adapter.targets, " ") == "qkv_proj o_proj gate_up_proj down_proj")
for layer, of in pairs(gradients(model)) do
  local stem = layer:match "^(.*)%.lora_B%.weight$"
  if stem then
    local a
    for _, each in ipairs(model.linears) do if each.name == stem then a = each.lora.a end end
    local expected = q.no_grad(function() return q.linear(full[stem .. ".weight"], a) * 3 end)  -- dW a^T alpha / rank
    local error = math.sqrt((q.quant.squared_error(expected, of)))
    assert(error < 1e-5 * norm(expected), "the gradient of " .. layer .. " is off")
  end
end
for i, parameter in ipairs(model.adapter.parameters) do
  parameter.tensor:copy(q.randn(parameter.tensor:shape(), { std = 0.3, seed = 7, subsequence = i }))
end
generated(model)
local changed = last_logits.of(model, tokens)
assert(distance(changed, last_logits.of(fresh(), tokens)) > 1e-2)
model:save_adapter(at "adapter")
model:save_adapter_gguf(at "adapter.gguf")
assert(q.safetensors.open(at "adapter/adapter_model.safetensors")
  :info "base_model.model.model.layers.0.self_attn.qkv_proj.lora_B.weight".shape[1] == 64)
for _, path in ipairs { "adapter", "adapter.gguf" } do
  near(path, changed, last_logits.of(fresh():load_adapter(at(path)), tokens), 1e-6)
end
near("merged", changed, last_logits.of(model:merge(), tokens), 1e-5)
refused("qkv_proj, which is several layers in one", function() fresh():lora { dora = true } end)

-- ---- settings that transformers does not have for it, or that fit nothing, are refused
local function refuses(text, more)
  local own = {}
  for key, value in pairs(values) do own[key] = value end
  for key, value in pairs(more) do own[key] = value end
  refused(text, q.random_model, own)
end
refuses("rope_type is yarn; default and longrope are supported", { rope_scaling = { type = "yarn", factor = 4 } })
refuses("longrope has 3 factors, expected 4", { partial_rotary_factor = 1 })
refuses("mlp_bias = true changes the mathematics", { mlp_bias = true })
refuses("turns 5 of a head's 8 elements", { partial_rotary_factor = 0.7 })
local odd = { type = "longrope", short_factor = { 1, -1, 1 }, long_factor = { 1, 1, 1 } }
refuses("short_factor[1] is -1", { rope_scaling = odd })

-- ---- blocks of few bits go through the file, and into products as parts
local wide = { hidden_size = 256, intermediate_size = 256, num_hidden_layers = 2, num_attention_heads = 4 }
for _, key in ipairs { "architectures", "model_type", "max_position_embeddings" } do wide[key] = values[key] end
wide.vocab_size = q.tokenizer("recipes/tiny"):vocab_size()
local whole = q.random_model(wide, { seed = 2, std = 0.1 })
for type, most in pairs { q8_0 = 0.05, q6_k = 0.15, q4_k_m = 0.5 } do
  whole:save_gguf(at "blocks.gguf", { type = type })
  local packed = q.load(at "blocks.gguf")
  local expected = last_logits.of(packed, tokens)
  near(type, last_logits.of(whole, tokens), expected, most)
  local scorer = scoring.new(packed, { tokens = #tokens, kv = "f32" })  -- its products round what they read to 8 bits
  scorer:run(tokens, { #tokens - 1 }, function(logits) near(type, expected, logits:table()[1], 0.03) end)
  scorer:free()
end

-- ---- whatever runs beside a request, it gets what it gets alone
local small = { hidden_size = 64, intermediate_size = 96, num_hidden_layers = 2, num_attention_heads = 4 }
small.vocab_size = 320
for _, key in ipairs { "architectures", "model_type" } do small[key] = values[key] end
for seed = 1, 2 do cases.schedule(seed, { model = q.random_model(small, { seed = seed, std = 0.12 }), count = 24 }) end

-- ---- the whole of a training run, from blocks and in full
local lines = {}
for i = 1, 40 do lines[i] = q.json.encode { prompt = "how many? " .. i, completion = ("%d geese"):format(i) } end
q.fs.write(at "data.jsonl", table.concat(lines, "\n") .. "\n")
whole.tokenizer_dir = "recipes/tiny"
whole:save(at "base")
for _, mode in ipairs { "lora", "full" } do
  local _, _, result = q.finetune {
    model = at "base", data = at "data.jsonl", out = at("run_" .. mode), steps = 12, row_tokens = 64, mode = mode,
    lr = mode == "lora" and 1e-2 or 2e-3, seed = 1,
  }
  assert(result.eval_loss < 0.8 * result.eval_before, "training in mode " .. mode .. " lowers no loss")
end
print "phi3: as transformers and llama.cpp have it, trained, generated from, and through GGUF"
