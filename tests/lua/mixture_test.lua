-- Models of experts: the router's choices and weights, the load-balancing loss, folders with a matrix for each expert,
-- weights however they are held, training that is stopped and resumed, adapters, hooks, and what is refused. (Figures
-- of transformers and llama.cpp: models_test.lua. Batches of requests: engine_test.lua.)
local q = require "qeng"

local experts = require "qeng.model.experts"
local importance = require "qeng.gguf.importance"
local route = require "qeng.train.route"
local scratch = require "scratch"
local types = require "qeng.gguf.types"
local at, refused = scratch.at, scratch.refused

local function values(more)
  local v = {
    architectures = q.json.array { "Qwen3MoeForCausalLM" }, model_type = "qwen3_moe", hidden_size = 64,
    intermediate_size = 96, moe_intermediate_size = 32, num_hidden_layers = 2, num_attention_heads = 4,
    num_key_value_heads = 2, head_dim = 16, vocab_size = 300, num_experts = 6, num_experts_per_tok = 2,
    norm_topk_prob = true, max_position_embeddings = 128,
  }
  for key, value in pairs(more or {}) do v[key] = value end
  return v
end

local tokens = { 3, 17, 5, 11, 2, 19, 7, 13, 1, 22 }
local function random(more, opt) return q.random_model(values(more), opt or { seed = 1, std = 0.2 }) end
local function distance(a, b) return q.no_grad(function() return (a - b):abs():max():item() end) end

-- ---------------------------------------------------------------- the router

-- Of 3 tokens and 4 experts: by hand.
local logits = q.tensor { { 2, -1, 0, 1 }, { 0, 0, 3, -2 }, { -1, 0.5, 0.25, 0 } }
local list = logits:table()
local function by_hand(e, bias, t)
  local scores, order, total = {}, { 1, 2, 3, 4 }, 0
  for i = 1, 4 do scores[i] = e.scores == "sigmoid" and 1 / (1 + math.exp(-list[t][i])) or math.exp(list[t][i]) end
  for i = 1, 4 do total = total + scores[i] end
  for i = 1, 4 do scores[i] = e.scores == "sigmoid" and scores[i] or scores[i] / total end
  table.sort(order, function(i, j) return scores[i] + bias[i] > scores[j] + bias[j] end)
  local sum = e.normalised and scores[order[1]] + scores[order[2]] or 1
  return (e.scale or 1) * scores[order[1]] / sum, (e.scale or 1) * scores[order[2]] / sum
end
for _, e in ipairs {
  { scores = "softmax", used = 2, normalised = true }, { scores = "softmax", used = 2 },
  { scores = "sigmoid", used = 2, normalised = true, scale = 2.5 }, { scores = "sigmoid", used = 2 },
} do
  for _, bias in ipairs { { 0, 0, 0, 0 }, { -5, 0.125, 0.25, 1 } } do
    local weight, place, first = experts.choose(logits, e, q.tensor(bias))
    local found, bounds = weight:table(), first:table()
    for t = 1, 3 do
      local one, two = by_hand(e, bias, t)
      assert(math.abs(found[t][1] - one) < 1e-6 and math.abs(found[t][2] - two) < 1e-6,
        ("token %d: %g %g, expected %g %g"):format(t, found[t][1], found[t][2], one, two))
    end
    assert(bounds[5] == 6 and place:shape()[2] == 2)
  end
end

-- ---------------------------------------------------------------- the load-balancing loss

local function batch_of(documents, slots)
  local batch, ids, targets, positions, bounds = q.micro_batch(slots, 3), {}, {}, {}, { 0 }
  for _, document in ipairs(documents) do
    for i, id in ipairs(document) do
      ids[#ids + 1], targets[#targets + 1], positions[#positions + 1] = id, document[i + 1] or -1, i - 1
    end
    bounds[#bounds + 1] = #ids
  end
  for i = #bounds + 1, 4 do bounds[i] = bounds[i - 1] end
  for i = #ids + 1, slots do ids[i], targets[i], positions[i] = 0, -1, 0 end
  batch.tokens:set(ids) batch.targets:set(targets) batch.positions:set(positions)
  batch.cu_q:set(bounds) batch.scale:fill(1 / (#tokens - 1))
  return batch
end

local model = random()
local loss, _, balance = model:loss(batch_of({ tokens }, 10))
assert(not balance, "no load-balancing loss without its weight")
model.router_aux_loss = 0.5
local with, _, whole = model:loss(batch_of({ tokens }, 10))
local _, _, padded = model:loss(batch_of({ tokens }, 16))
assert(with:item() == loss:item(), "the loss is that of the tokens alone")
assert(math.abs(whole:item() - padded:item()) < 1e-6, "what fills a row up does not count")
local half = batch_of({ tokens }, 10)
half.scale:fill(0.5 / (#tokens - 1))
local _, _, share = model:loss(half)
assert(math.abs(share:item() - whole:item() / 2) < 1e-6, "a micro-batch has the part of its targets")
assert(whole:item() >= 0.5 * 2, "which even loads make the least, the number of experts of a token")
model.recompute = true
refused("router_aux_loss with recompute", model.loss, model, half)
model = q.random_model {
  architectures = q.json.array { "Qwen2ForCausalLM" }, model_type = "qwen2", hidden_size = 32, intermediate_size = 32,
  num_hidden_layers = 1, num_attention_heads = 2, num_key_value_heads = 2, vocab_size = 32,
}
model.router_aux_loss = 1
refused("this one has none", model.loss, model, half)

-- ---------------------------------------------------------------- packing, recomputing

local first, second = { unpack(tokens, 1, 4) }, { unpack(tokens, 5) }
local function nll_of(documents)
  return q.no_grad(function() return select(2, random():loss(batch_of(documents, 16))):table() end)
end
local together, one, two = nll_of { first, second }, nll_of { first }, nll_of { second }
for i = 1, 4 do assert(math.abs(together[i] - one[i]) < 1e-5, "a packed document is as alone") end
for i = 1, 6 do assert(math.abs(together[4 + i] - two[i]) < 1e-5, "a packed document is as alone") end

local plain, again = random():full(), random():full()
again.recompute = true
for _, each in ipairs { plain, again } do each:loss(batch_of({ tokens }, 10)):backward() end
local gradients = again:gradients()
for name, gradient in pairs(plain:gradients()) do
  assert(gradient:hash() == gradients[name]:hash(), name .. ": another gradient when recomputed")
end
assert(plain:gradients()["model.layers.1.mlp.experts.up_proj.weight"]:shape()[1] == 6)

-- ---------------------------------------------------------------- folders and files

model = random()
local expected = model:logits(tokens)
model:save(at "folder")
local stored = q.safetensors.open(at "folder/model.safetensors")
local stack = model.linears[7].weight
assert(model.linears[7].name == "model.layers.0.mlp.experts.up_proj")
for e = 0, 5 do
  local matrix = stored:tensor(("model.layers.0.mlp.experts.%d.up_proj.weight"):format(e))
  assert(matrix:hash() == stack:rows(e, 1):reshape({ 32, 64 }):hash(), "an expert's matrix is not the one saved")
end
for _, how in ipairs { {}, { weights = "map" }, { weights = "copy" }, { writable = true },
  { weights = "stream", host_budget = 2e9 } } do
  assert(distance(q.load(at "folder", how):logits(tokens), expected) == 0, "weights that are held otherwise are others")
end
q.load(at "folder"):save(at "again")
for _, name in ipairs(stored:names()) do
  assert(q.safetensors.open(at "again"):tensor(name):hash() == stored:tensor(name):hash(), name .. " has changed")
end
assert(distance(q.load(at "folder", { dtype = "bf16" }):logits(tokens), expected) < 0.6)  -- of 6
local text = tostring(model)
assert(text:find("a token meets", 1, true) and text:find("2 of 6, each of 32", 1, true), text)

-- Blocks of few bits go into products as stored, and compute what the folder of their decoded values does.
for _, type in ipairs { "q8_0", "q4_0", "bf16" } do
  model:save_gguf(at "blocks.gguf", { type = type })
  for _, how in ipairs { {}, { weights = "stream", host_budget = 2e9 } } do
    local blocks = q.load(at "blocks.gguf", how)
    assert(blocks.linears[7].weight:dtype() == type)
    assert(distance(blocks:logits(tokens), expected) > 0)
    if not how.weights then
      local engine = blocks:engine { max_batch = 2, context = 60, kv = "f32" }
      local request = engine:submit { ids = tokens, max_tokens = 12, temperature = 0, stop_ids = {} }
      engine:finish()
      engine:close()
      assert(#request.output == 12)
      blocks:save(at "of_blocks")
      local off = distance(q.load(at "of_blocks", { dtype = "f32" }):logits(tokens), blocks:logits(tokens))
      assert(off < 1e-4, ("%s: logits are off by %g"):format(type, off))
    end
  end
end

-- llama.cpp's mixes: experts' matrices have the types of an MLP's, routers stay f32, and beside eight experts attention
-- gets more bits.
local function type_of(mix, name, count)
  local plan = types.plan(mix, "", { layers = 32, groups = 4, tied = false, experts = count })
  return (plan:type_of(("blk.%d.%s.weight"):format(name == "ffn_down_exps" and 31 or 5, name), { 1024, 4096 }))
end
for name, theirs in pairs {
  ffn_down_exps = "q6_k q6_k", ffn_up_exps = "q4_k q4_k", ffn_gate_inp = "f32 f32", attn_v = "q4_k q8_0",
  attn_k = "q4_k q8_0", attn_output = "q4_k q5_k", attn_q = "q4_k q4_k",
} do
  local found = type_of("q4_k_m", name, 128) .. " " .. type_of("q4_k_m", name, 8)
  assert(found == theirs, ("%s: %s, llama.cpp has %s"):format(name, found, theirs))
end
assert(type_of("q4_k_m", "ffn_down_shexp", 128) == type_of("q4_k_m", "ffn_down", 128), "a shared expert is an MLP")
assert(type_of("q5_k_m", "attn_output", 8) == "q5_k" and type_of("q3_k_l", "attn_output", 8) == "q3_k")

-- ---------------------------------------------------------------- training

local writer = q.ndp.create(at "data.qubgpu")
for i = 1, 40 do
  local ids = {}
  for k = 1, 12 do ids[k] = (i * 7 + k * k) % 50 end
  writer:add(ids)
end
writer:finish()

local function train(mode, out, more)
  local trained = random()
  if mode == "full" then
    trained:full()
  else
    trained:lora { rank = 2, targets = { "q_proj", "up_proj", "down_proj", "gate_proj" }, dropout = 0.1 }
  end
  trained.router_aux_loss = mode == "full" and 0.01 or 0
  local opt = {
    model = trained, data = q.ndp.open(at "data.qubgpu"), out = at(out), steps = 6, row_tokens = 32, accumulate = 2,
    lr = 2e-3, decay = 0.1, eval_share = 0.2, save_every = 3, schedule = "constant",
  }
  for key, value in pairs(more or {}) do opt[key] = value end
  return trained, q.train(opt)
end
local function bits(trained)
  local hashes = {}
  for i, parameter in ipairs(trained:trainable()) do hashes[i] = parameter.tensor:hash() end
  return table.concat(hashes, " ")
end
for _, mode in ipairs { "full", "lora" } do
  local straight, result = train(mode, mode .. "1")
  assert(result.eval_loss < result.eval_before, mode .. " does not learn")
  train(mode, mode .. "2", { steps = 3 })
  local resumed = train(mode, mode .. "2", { resume = true })
  assert(bits(resumed) == bits(straight), mode .. ": a resumed run has other bits")
  assert(bits(train(mode, mode .. "3", { eager = true })) == bits(straight), mode .. ": eager, and other bits")
  for _, row in ipairs(result.metrics) do
    assert((row.router_aux_loss ~= nil) == (mode == "full") and row.loss > 0)
  end
  for _, parameter in ipairs(straight:trainable()) do
    if parameter.name:find(".experts.", 1, true) then
      assert(parameter.tensor:hash() ~= "" and #parameter.tensor:shape() == 3, parameter.name)
    end
  end
end

-- The best weights of a run come back from the folder that it was saved in, where each expert is apart. Without the
-- option the load is balanced if the config trains so.
q.train_bpe({ "the cat sees the dog" }, { vocab = 262, specials = { "<|endoftext|>", "<|im_start|>", "<|im_end|>" },
  out = at "folder" })
local function finetune(mode, more)
  local opt = {
    model = at "folder", data = at "data.qubgpu", any_tokenizer = true, mode = mode, out = at("tuned_" .. mode),
    steps = 4, row_tokens = 32, eval_share = 0.2, eval_every = 1, best = true, lr = mode == "full" and 1 or 3,
    schedule = "constant", overwrite = true,
  }
  for key, value in pairs(more or {}) do opt[key] = value end
  return q.finetune(opt)
end
for _, mode in ipairs { "full", "lora" } do
  local tuned, _, result = finetune(mode, mode == "lora" and { targets = { "up_proj" } } or { router_aux_loss = 0.1 })
  assert(result.best_step < 4, "a rate that high makes the first evaluations the best")
  local best = mode == "full" and q.load(at "tuned_full/best")
    or q.load(at "folder"):load_adapter(at "tuned_lora/best")
  assert(distance(tuned:logits(tokens), best:logits(tokens)) == 0, mode .. ": other weights than the best")
  assert((result.metrics[1].router_aux_loss ~= nil) == (mode == "full"))
end
-- What calibration says of each expert's inputs survives its file, and weighs that expert's matrix.
local calibrated = q.load(at "folder")
local found = importance.collect(calibrated, ("the cat sees the dog "):rep(40), { length = 32, chunks = 2 })
local up = found["blk.0.ffn_up_exps.weight"]
local rows = 0
for _, count in ipairs(up.counts) do rows = rows + count end
assert(rows == 2 * 32 * 2 and #up.counts == 6, "each token counts for two experts")
importance.save(found, at "imatrix.gguf", 32)
local weights = importance.tensors(importance.load(at "imatrix.gguf"))
assert(weights["blk.0.ffn_up_exps.weight"]:hash() == up.sums:hash())
calibrated:save_gguf(at "weighed.gguf", { type = "q4_0", importance = weights })
local weighed = q.load(at "weighed.gguf").linears[7].weight:to "f32"
local stack_of = calibrated.linears[7].weight
for e = 0, 5 do
  local own = weights["blk.0.ffn_up_exps.weight"]:rows(e, 1):reshape { 64 }
  local matrix = stack_of:rows(e, 1):reshape { 32, 64 }
  local alone = q.quantize(matrix, "q4_0", { importance = up.counts[e + 1] > 0 and own or nil })
  assert(distance(alone:to "f32", weighed:rows(e, 1):reshape { 32, 64 }) == 0, "weighed by another's inputs")
end

local config = q.json.decode(q.fs.read(at "folder/config.json"))
config.output_router_logits, config.router_aux_loss_coef = true, 0.25
q.fs.write(at "folder/config.json", q.json.encode(config))
local said, tuned = scratch.said(finetune, "full")
assert(tuned.router_aux_loss == 0.25 and said:find("balanced by a loss of weight 0.25", 1, true), said)
assert(finetune("full", { router_aux_loss = 0 }).router_aux_loss == 0)
refused("does not go with --recompute", finetune, "full", { recompute = true })

-- Packets that are addressed to MLPs move experts and routers, whatever their names.
local mixtral = q.random_model({
  architectures = q.json.array { "MixtralForCausalLM" }, model_type = "mixtral", hidden_size = 32,
  num_hidden_layers = 1, intermediate_size = 32, num_attention_heads = 4, num_key_value_heads = 2, vocab_size = 32,
}):full()
local number = 0x03  -- FFN
local stays = {}
for _, tensor in ipairs(route.plan(mixtral, { [number] = 1 }).frozen[number]) do stays[tensor] = true end
for _, parameter in ipairs(mixtral.parameters) do
  assert((stays[parameter.tensor] == nil) == (parameter.name:find "block_sparse_moe" ~= nil), parameter.name)
end

-- ---------------------------------------------------------------- adapters

model = random():lora { rank = 2, targets = { "up_proj", "gate_proj" } }
assert(model.linears[7].lora and not model.linears[1].lora)
model:save_adapter(at "adapter")
local names = table.concat(q.safetensors.open(at "adapter/adapter_model.safetensors"):names(), "\n")
assert(names:find("base_model.model.model.layers.0.mlp.experts.5.up_proj.lora_B.weight", 1, true), names)
model = random():lora { rank = 2 }
for _, layer in ipairs(model.linears) do
  assert((layer.lora ~= nil) == (layer.name:find "self_attn" ~= nil), layer.name .. ": adapters are of attention")
end
-- PEFT leaves fused experts alone whose name is in the list for the shared expert's sake. It takes targets and patterns
-- that match nothing.
local shared = {
  architectures = q.json.array { "Qwen2MoeForCausalLM" }, model_type = "qwen2_moe", head_dim = q.json.null,
  shared_expert_intermediate_size = 32,
}
model = random(shared):lora { rank = 2, targets = { "q_proj", "shared_expert.gate_proj" } }
for _, parameter in ipairs(model.adapter.parameters) do parameter.tensor:set(q.randn(parameter.tensor:shape())) end
model:save_adapter(at "listed")
local settings = q.json.decode(q.fs.read(at "listed/adapter_config.json"))
settings.target_modules, settings.rank_pattern = q.json.array { "gate_proj", "q_proj", "c_attn" }, { nowhere = 5 }
q.fs.write(at "listed/adapter_config.json", q.json.encode(settings))
local loaded = random(shared):load_adapter(at "listed")
assert(distance(model:logits(tokens), loaded:logits(tokens)) == 0, "targets that PEFT passed over")
loaded:save_adapter(at "again")
loaded = random(shared):load_adapter(at "again")
assert(distance(model:logits(tokens), loaded:logits(tokens)) == 0, "saved again")
assert(loaded:read_adapter(at "listed").taken == #model.adapter.parameters)

refused("dora of model.layers.0.mlp.experts.up_proj, which is of 6 experts", random().lora, random(),
  { rank = 2, targets = { "up_proj" }, dora = true })

-- ---------------------------------------------------------------- hooks

model = random()
local seen = model:activations(tokens, { "layers.1.mlp.router", "layers.1.mlp" })
assert(seen["layers.1.mlp.router"]:shape()[2] == 6 and seen["layers.1.mlp"]:shape()[2] == 64)
local before = seen["layers.1.mlp"]
model:hook("layers.1.mlp.router", function(x) return x * 0 + q.tensor { 0, 0, 9, 0, 9, 0 } end)
seen = model:activations(tokens, { "layers.1.mlp" })["layers.1.mlp"]
assert(distance(before, seen) > 1e-3, "a hook of the router changes nothing")

-- ---------------------------------------------------------------- what is refused

refused("mlp_only_layers[0] is 2, expected the number of a layer, from 0 to 1", random, { mlp_only_layers = { 2 } })
refused("num_experts_per_tok is 7, of 6 experts", random, { num_experts_per_tok = 7 })
refused("num_local_experts = 5 changes the mathematics", random, { num_local_experts = 5 })
refused("unknown key shared_expert_intermediate_size", random, { shared_expert_intermediate_size = 32 })
refused("one-bit training: model.layers.0.mlp.experts.gate_proj is of 6 experts", q.onebit.learn, random(), "frozen",
  {})
refused("use_sliding_window = true changes the mathematics", random, {
  architectures = q.json.array { "Qwen2MoeForCausalLM" }, model_type = "qwen2_moe", use_sliding_window = true,
})
refused("router_jitter_noise = 0.1 changes", q.random_model, {
  architectures = q.json.array { "MixtralForCausalLM" }, model_type = "mixtral", hidden_size = 32,
  num_hidden_layers = 1, intermediate_size = 32, num_attention_heads = 4, num_key_value_heads = 2, vocab_size = 32,
  router_jitter_noise = 0.1,
})
q.fs.mkdir(at "gap")
q.fs.copy(at "folder/config.json", at "gap/config.json")
local kept = {}
for _, name in ipairs(stored:names()) do
  if not name:find "layers.1.mlp.experts.3.up_proj" then kept[#kept + 1] = { name, stored:tensor(name) } end
end
q.safetensors.save(at "gap/model.safetensors", kept)
refused("of model.layers.1.mlp.experts.up_proj.weight expert 3 is missing", q.load, at "gap")

print "mixture: models of experts load, train, adapt and are saved as what they are"
