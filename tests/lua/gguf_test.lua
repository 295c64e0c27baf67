-- Models in GGUF files: written from a folder, loaded, and written again, they compute the same. Unknown metadata that
-- may change the mathematics are refused by name.
local q = require "qeng"
local export = require "qeng.gguf.export"
local importance = require "qeng.gguf.importance"
local types = require "qeng.gguf.types"

local scratch = os.tmpname()
q.fs.remove(scratch)
q.fs.mkdir(scratch)
local function at(name) return scratch .. "/" .. name end

local ids = { 5, 17, 300, 4, 99, 260 }
local function logits(model)
  local all = {}
  for _, row in ipairs(model:logits(ids):table()) do for _, value in ipairs(row) do all[#all + 1] = value end end
  return all
end
local function distance(a, b)
  local off, size = 0, 0
  for i = 1, #a do off, size = off + (a[i] - b[i]) ^ 2, size + a[i] ^ 2 end
  return math.sqrt(off / size)
end

local function refused(text, fn, ...)
  local ok, err = pcall(fn, ...)
  assert(not ok and tostring(err.message):find(text, 1, true),
    ("expected an error with '%s', got %s"):format(text, tostring(ok or err.message)))
end

-- llama3's frequencies, the order of llama's rows, biases and head norms: each architecture through a file and back.
local common = {
  hidden_size = 64, intermediate_size = 96, num_hidden_layers = 2, num_attention_heads = 4, num_key_value_heads = 2,
  vocab_size = 320,
  max_position_embeddings = 256, rms_norm_eps = 1e-5, rope_theta = 10000, hidden_act = "silu",
}
local function with(more)
  local values = {}
  for key, value in pairs(common) do values[key] = value end
  for key, value in pairs(more) do values[key] = value or nil end
  return values
end
for name, values in pairs {
  llama = with { architectures = { "LlamaForCausalLM" }, tie_word_embeddings = false, attention_bias = true,
    rope_scaling = { rope_type = "llama3", factor = 8, low_freq_factor = 1, high_freq_factor = 4,
      original_max_position_embeddings = 8192 } },
  mistral = with { architectures = { "MistralForCausalLM" }, sliding_window = 4 },
  qwen2 = with { architectures = { "Qwen2ForCausalLM" }, tie_word_embeddings = true,
    rope_scaling = { rope_type = "yarn", factor = 4, original_max_position_embeddings = 64 } },
  qwen3 = with { architectures = { "Qwen3ForCausalLM" }, head_dim = 32 },
  gemma = with { architectures = { "GemmaForCausalLM" }, head_dim = 32, hidden_act = "gelu_pytorch_tanh" },
  gemma3 = with { architectures = { "Gemma3ForCausalLM" }, head_dim = 32, hidden_act = false,
    hidden_activation = "gelu_pytorch_tanh",
    num_hidden_layers = 6, sliding_window = 4, rope_scaling = { rope_type = "linear", factor = 8 },
      query_pre_attn_scalar = 32 },
} do
  local model = q.random_model(values, { seed = 3, std = 0.2 })
  local before = logits(model)
  model:save_gguf(at(name .. ".gguf"), { type = "f32" })
  local again = q.load(at(name .. ".gguf"))
  assert(distance(before, logits(again)) < 1e-6, name .. ": the model of the file computes something else")
  again:save(at(name))
  assert(distance(before, logits(q.load(at(name)))) < 1e-6,
    name .. ": the folder made of the file computes something else")
  export.write(at "copy.gguf", export.of_gguf(at(name .. ".gguf")), types.plan("f32", "", { layers = 2, groups = 2 }))
  assert(distance(logits(again), logits(q.load(at "copy.gguf"))) == 0, name .. ": a copy differs")
  local bytes = q.fs.read(at "copy.gguf")
  assert(bytes:sub(1, 8) == "GGUF\3\0\0\0")
  q.fs.write(at "second.gguf", "GGUF\2\0\0\0" .. bytes:sub(9))  -- versions 2 and 3 differ by the number alone
  assert(distance(logits(again), logits(q.load(at "second.gguf"))) == 0, name .. ": version 2 differs")

  -- An adapter beside the model, and merged into it.
  local adapted = q.load(at(name .. ".gguf")):lora { rank = 2, seed = 1 }
  for i, parameter in ipairs(adapted.adapter.parameters) do
    parameter.tensor:copy(q.randn(parameter.tensor:shape(), { std = 0.3, seed = 7, subsequence = i }))
  end
  local changed = logits(adapted)
  assert(distance(before, changed) > 1e-2)
  adapted:save_adapter_gguf(at "adapter.gguf")
  assert(distance(changed, logits(q.load(at(name .. ".gguf")):load_adapter(at "adapter.gguf"))) < 1e-6,
    name .. ": the adapter of the file differs")
  adapted:merge():save_gguf(at "merged.gguf", { type = "f32" })
  assert(distance(changed, logits(q.load(at "merged.gguf"))) < 1e-5, name .. ": the merged model differs")
  refused("is an adapter", q.load, at "adapter.gguf")
end

-- The demo's model with its tokenizer, in types of falling precision. The figures are loose bounds of what was
-- measured.
local demo = q.load("recipes/tiny", { dtype = "f32" })
local before = logits(demo)
for type, most in pairs { f16 = 0.01, q8_0 = 0.03, q5_0 = 0.15, q4_k_m = 0.15 } do
  local report = export.write(at "demo.gguf", export.open "recipes/tiny",
    types.plan(type, "ffn_down=q8_0", { layers = 3, groups = 1, tied = true }), { measure = true })
  assert(report.elements == 772096)
  local model = q.load(at "demo.gguf")
  local off = distance(before, logits(model))
  assert(off < most, ("%s: logits are off by %.4f of their norm"):format(type, off))
  local text = "The red bell — 12 birds.\n<|im_end|>"
  assert(table.concat(model.tokenizer:encode(text), " ") == table.concat(demo.tokenizer:encode(text), " "))
  assert(model.tokenizer:info().chat_template == demo.tokenizer:info().chat_template and
    model.stop_ids[1] == demo.tokenizer:id "<|im_end|>")
end

-- Files of the gguf package, and what llama.cpp makes of them. Its logits differ by its rounding of activations to f16.
local function as_theirs(name, vocabulary, expected)
  local model = q.load("tests/golden/" .. name .. ".gguf")
  for i, text in ipairs(vocabulary.texts) do
    local ids_ = table.concat(model.tokenizer:encode(text), " ")
    assert(ids_ == table.concat(vocabulary.ids[i], " "), ("%s: ids of '%s' differ: %s"):format(name, text, ids_))
  end
  local ours = model:logits(expected.prompt):table()
  assert(distance(expected.logits, ours[#ours]) < 0.005, name .. ": logits differ from llama.cpp's")
end
local golden = q.json.decode(q.fs.read "tests/golden/small_llama.json")
as_theirs("small_llama", golden, golden)
golden = q.json.decode(q.fs.read "tests/golden/small_gemma.json")
as_theirs("small_gemma", { texts = {} }, golden.gemma)
as_theirs("small_gemma3", golden, golden.gemma3)

-- Importance matrices survive their file, and say of each column what its inputs were.
local found = importance.collect(demo, ("Once upon a time there was a red bird. "):rep(40), { length = 64, chunks = 2 })
importance.save(found, at "imatrix.gguf", 64)
local kept = importance.load(at "imatrix.gguf")
for name, entry in pairs(found) do
  local off, all = q.quant.squared_error(entry.sums, kept[name].sums)
  assert(off == 0 and all > 0, name)
end
assert(found["blk.2.ffn_down.weight"].sums:elements() == 384 and found["token_embd.weight"])

-- Refusals: what changes the mathematics, and what is not there.
local function file_with(entries, tensors)
  local list = { { "general.architecture", "string", "llama" } }
  for key, value in pairs(entries) do
    list[#list + 1] = { key, type(value) == "number" and "u32" or "string", value }
  end
  q.gguf.save(at "odd.gguf", tensors or { { "token_embd.weight", q.zeros({ 8, 64 }) } }, list)
  return at "odd.gguf"
end
local sizes = {
  ["llama.block_count"] = 1, ["llama.context_length"] = 64, ["llama.embedding_length"] = 64,
  ["llama.feed_forward_length"] = 64,
  ["llama.attention.head_count"] = 2, ["llama.attention.layer_norm_rms_epsilon"] = 1,
}
local function sizes_and(key, value)
  local all = {}
  for k, v in pairs(sizes) do all[k] = v end
  all[key] = value
  return all
end
refused("llama.logit_scale", q.load, file_with(sizes_and("llama.logit_scale", 2)))
-- llama with experts is Mixtral.
local mixture = sizes_and("llama.expert_count", 8)
refused("llama.expert_used_count is missing", q.load, file_with(mixture))
mixture["llama.expert_used_count"] = 2
refused("tensor blk.0.ffn_gate_inp.weight is missing", q.load, file_with(mixture, {
  { "token_embd.weight", q.zeros { 8, 64 } }, { "output.weight", q.zeros { 8, 64 } },
  { "blk.0.attn_q.weight", q.zeros { 64, 64 } }, { "blk.0.attn_k.weight", q.zeros { 64, 64 } },
  { "blk.0.attn_v.weight", q.zeros { 64, 64 } }, { "blk.0.attn_output.weight", q.zeros { 64, 64 } },
  { "blk.0.attn_norm.weight", q.zeros { 64 } }, { "blk.0.ffn_norm.weight", q.zeros { 64 } },
}))
refused("a tensor for each expert (blk.0.ffn_gate.0.weight)", q.load, file_with(mixture, {
  { "token_embd.weight", q.zeros { 8, 64 } }, { "blk.0.ffn_gate.0.weight", q.zeros { 64, 64 } },
}))
mixture["llama.expert_weights_scale"] = 3
refused("llama.expert_weights_scale = 3 is not supported", q.load, file_with(mixture))
refused("rope scaling longrope", q.load, file_with(sizes_and("llama.rope.scaling.type", "longrope")))
refused("sign_mode", q.load, file_with((function()
  local all = sizes_and("prism.hadamard.version", 1)
  all["prism.hadamard.transform"], all["prism.hadamard.axis"] = "normalized-sylvester-walsh-hadamard",
    "input-last-dimension"
  all["prism.hadamard.block_size"], all["prism.hadamard.sign_mode"] = 64, "random"
  return all
end)()))
q.gguf.save(at "mamba.gguf", { { "token_embd.weight", q.zeros({ 8, 64 }) } },
  { { "general.architecture", "string", "mamba" } })
refused("architecture mamba", q.load, at "mamba.gguf")

-- Newer files say what older ones leave to the architecture. What they say has to make sense.
local function copy_with(key, type, value)
  local source = export.of_gguf "tests/golden/small_gemma3.gguf"
  table.insert(source.metadata, { key, type, value })
  export.write(at "said.gguf", source, types.plan("f16", "", { layers = 6, groups = 2 }))
  return at "said.gguf"
end
local function as_before(file)
  return distance(logits(q.load "tests/golden/small_gemma3.gguf"), logits(q.load(file)))
end
local short = ids
ids = { 2, 5, 17, 260, 4, 99, 31, 8 }
assert(as_before(copy_with("gemma3.attention.sliding_window_pattern", "[bool]",
  { true, true, true, true, true, false })) == 0)
assert(as_before(copy_with("gemma3.attention.sliding_window_pattern", "u32", 6)) == 0)
assert(as_before(copy_with("gemma3.attention.sliding_window_pattern", "u32", 5)) > 1e-3)
assert(as_before(copy_with("gemma3.rope.freq_base_swa", "f32", 10000)) == 0)
assert(as_before(copy_with("gemma3.rope.freq_base_swa", "f32", 500)) > 1e-3)
refused("sliding_window_pattern is 0", q.load, copy_with("gemma3.attention.sliding_window_pattern", "u32", 0))
refused("sliding_window_pattern has 1 entries", q.load,
  copy_with("gemma3.attention.sliding_window_pattern", "[bool]", { true }))
ids = short
local gemma3 = { architectures = { "Gemma3ForCausalLM" }, hidden_act = false, head_dim = 32 }
local function gemma3_with(key, value)
  gemma3[key] = value
  local values = with(gemma3)
  gemma3[key] = nil
  return values
end
refused("attention logit soft-capping", q.random_model, gemma3_with("attn_logit_softcapping", 50))
refused("final_logit_softcapping is -1, expected a positive", q.random_model,
  gemma3_with("final_logit_softcapping", -1))
refused("hidden_activation = silu", q.random_model, gemma3_with("hidden_activation", "silu"))
assert(distance(logits(q.load(at "qwen2.gguf", { weights = "map" })),
  logits(q.load(at "qwen2.gguf", { weights = "copy" }))) == 0)
-- Matrices of tq2_0 and q6_k are interleaved when they are copied. That shows nowhere: not in logits, rows, values or
-- files.
for name, values in pairs {
  llama = { architectures = { "LlamaForCausalLM" }, tie_word_embeddings = false },
  qwen2 = { architectures = { "Qwen2ForCausalLM" }, tie_word_embeddings = true },
} do
  values = with(values)
  values.hidden_size, values.intermediate_size = 256, 512
  q.random_model(values, { seed = 4, std = 0.2 }):save_gguf(at(name .. "-ternary.gguf"),
    { type = "tq2_0", overrides = "attn_output=q6_k" })
  local mapped, copied = q.load(at(name .. "-ternary.gguf"), { weights = "map" }),
    q.load(at(name .. "-ternary.gguf"), { weights = "copy" })
  assert(distance(logits(mapped), logits(copied)) == 0, name .. ": interleaved rows compute something else")
  for _, pair in ipairs { { mapped.head, copied.head }, { mapped.linears[1].weight, copied.linears[1].weight } } do
    assert(pair[1]:dtype() == pair[2]:dtype() and distance(pair[1]:to("f32"):reshape({ pair[1]:elements() }):table(),
      pair[2]:to("f32"):reshape({ pair[1]:elements() }):table()) == 0)
    assert(tostring(pair[1]) == tostring(pair[2]) and pair[1]:hash() == pair[2]:hash() and
      pair[1]:hash(5) == pair[2]:hash(5) and pair[1]:clone():hash() == pair[2]:clone():hash() and
      pair[1]:to(pair[1]:dtype()):hash() == pair[2]:to(pair[1]:dtype()):hash())
  end
  refused("groups of 32 rows", function() copied.linears[1].weight:rows(1, 2) end)
  refused("lie in groups", function() copied.linears[1].weight:reshape { 128, 512 } end)
  local file = q.gguf.open(at(name .. "-ternary.gguf"))
  local plain = file:tensor "blk.0.ffn_up.weight"
  local values_of_plain = plain:to("f32"):reshape({ plain:elements() }):table()
  local again = file:tensor("blk.0.ffn_up.weight", { interleave = true })  -- may not move what `plain` shows
  assert(distance(values_of_plain, plain:to("f32"):reshape({ plain:elements() }):table()) == 0)
  assert(distance(values_of_plain, again:to("f32"):reshape({ plain:elements() }):table()) == 0)
  local down = file:tensor("blk.0.ffn_down.weight", { interleave = true })
  local same = file:tensor("blk.0.ffn_down.weight", { copy = true })
  assert(distance(down:to("f32"):reshape({ down:elements() }):table(),
    same:to("f32"):reshape({ down:elements() }):table()) == 0)
  refused("load the file before", function() file:load() end)
  local loaded = q.gguf.open(at(name .. "-ternary.gguf"))  -- what is in memory is not given up as a file's pages are
  loaded:load()
  loaded:tensor("blk.0.ffn_up.weight", { stream = true, dtype = "f32" })
  assert(loaded:tensor("blk.0.ffn_up.weight"):hash() == plain:hash())
  for i, model in ipairs { mapped, copied } do
    model:save_gguf(at(i .. ".gguf"), { type = "tq2_0", overrides = "attn_output=q6_k" })
  end
  assert(q.fs.read(at "1.gguf") == q.fs.read(at "2.gguf"), name .. ": interleaved rows are written as they lie")
end
refused('expected "map", "copy" or "stream"', function() q.load(at "qwen2.gguf", { weights = "mmap" }) end)
refused("gemma3 has no words for", function()
  q.random_model(gemma3_with("query_pre_attn_scalar", 99)):save_gguf(at "x.gguf")
end)
for _, name in ipairs { "Gemma", "Gemma2", "Gemma3" } do
  local biased = q.random_model(with { architectures = { name .. "ForCausalLM" }, head_dim = 32, hidden_act = false,
    attention_bias = true, query_pre_attn_scalar = name ~= "Gemma" and 32 })
  refused("no words for biases of attention", biased.save_gguf, biased, at "x.gguf")
end
refused("blk.0.attn_norm.weight is missing", q.load, file_with(sizes))
refused("there is no type q9", types.plan, "q9", "", {})
refused("no matrix is called like nothing", export.write, at "x.gguf", export.open "recipes/tiny",
  types.plan("f16", "nothing=f32", { layers = 3, groups = 1 }))

q.fs.remove(scratch)
print "gguf: files and folders compute the same, and the rest is refused"
