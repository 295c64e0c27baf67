-- What GGUF files are written from. Folders are checked as q.load checks them. Weights that a type cannot hold are
-- refused. Patterns and importance matrices say what they match. Tokens that end an answer are kept, and small tensors
-- stay as they are.
package.path = (arg[0]:match "^(.*/)" or "./") .. "?.lua;" .. package.path
local q = require "qeng"
local export = require "qeng.gguf.export"
local golden = require "golden"
local request = require "qeng.infer.request"
local types = require "qeng.gguf.types"

local scratch = require "scratch"
local at, refused = scratch.at, scratch.refused
local function flat(tensor) return tensor:reshape({ tensor:elements() }):table() end
local function write(source, type, opt)
  return export.write(at "out.gguf", source, types.plan(type, opt and opt.overrides, source.shape), opt)
end

-- A folder of a small llama, with `edit` applied to its tensors and its configuration.
local values = {
  architectures = { "LlamaForCausalLM" }, hidden_size = 64, intermediate_size = 96, num_hidden_layers = 1,
  num_attention_heads = 4,
  num_key_value_heads = 2, vocab_size = 80, max_position_embeddings = 64, rms_norm_eps = 1e-5, hidden_act = "silu",
  tie_word_embeddings = false,
}
q.random_model(values, { seed = 1, std = 0.1 }):save(at "plain")
local function folder_with(edit)
  local file, tensors = q.safetensors.open(at "plain"), {}
  for _, name in ipairs(file:names()) do tensors[name] = file:tensor(name):clone() end
  edit(tensors)
  local list = {}
  for name, tensor in pairs(tensors) do list[#list + 1] = { name, tensor } end
  q.fs.remove(at "edited")
  q.safetensors.save(at "edited", list)
  q.fs.copy(at "plain/config.json", at "edited/config.json")
  return at "edited"
end
local query, up = "model.layers.0.self_attn.q_proj.weight", "model.layers.0.mlp.up_proj.weight"
for text, edit in pairs {
  ["tensor lm_head.weight is missing"] = function(t) t["lm_head.weight"] = nil end,
  ["q_proj.weight is missing"] = function(t) t[query] = nil end,
  ["up_proj.weight is [50, 64], "] = function(t) t[up] = t[up]:rows(0, 50):clone() end,
  ["tensor model.extra belongs to no part"] = function(t) t["model.extra"] = q.zeros { 4 } end,
} do
  local dir = folder_with(edit)
  refused(text, export.of_folder, dir)
  refused(text, q.load, dir)
end

-- Weights that are no numbers, or too large for a type.
local function with_first(value) return folder_with(function(t) t[query]:rows(0, 1):fill(value) end) end
for _, type in ipairs { "f32", "f16", "bf16" } do
  refused("attn_q.weight holds a weight that is not finite", write, export.open(with_first(0 / 0)), type)
end
refused("above 65504", write, export.open(with_first(1e5)), "f16")
refused("above 65504", write, export.open(with_first(1e5)), "q4_0", { overrides = "attn_q=f16" })
assert(not q.fs.kind(at "out.gguf"), "a refused file was written")
assert(#write(export.open(with_first(1e5)), "bf16", { measure = true }).by_type == 2)

-- Patterns begin where a name or a part of it does.
local function types_with(overrides)
  local plan, found = types.plan("f16", overrides, { layers = 1, groups = 2 }), {}
  for _, name in ipairs { "output.weight", "token_embd.weight", "blk.0.attn_output.weight", "blk.0.ffn_down.weight",
      "blk.10.ffn_down.weight" } do
    found[#found + 1] = plan:type_of(name, { 256, 256 })
  end
  return table.concat(found, " ")
end
assert(types_with "output=q8_0" == "q8_0 f16 f16 f16 f16")
assert(types_with "attn_output=q8_0,token_embd=q6_k" == "f16 q6_k q8_0 f16 f16")
assert(types_with "*embd=q8_0,ffn_*=q4_0,blk.1*.weight=q5_0" == "f16 q8_0 f16 q4_0 q5_0")

-- An importance matrix of another model is refused, and one of this model says how much of it there was.
local source = export.open(at "plain")
local columns = q.zeros({ 64 }, "f32"):fill(1)
refused("it is of another model", write, source, "q8_0", { importance = { ["blk.7.attn_q.weight"] = columns } })
local report = write(export.open(at "plain"), "q8_0", { importance = { ["blk.0.attn_q.weight"] = columns } })
assert(table.concat(report.notes):find("1 of 9 quantized matrices", 1, true), table.concat(report.notes))

-- What is read is not written over, by whatever name.
local copy = export.of_gguf(at "out.gguf")
assert(os.execute(("ln -s out.gguf %s && ln %s %s"):format(at "link.gguf", at "out.gguf", at "second.gguf")) == 0)
for _, name in ipairs { "out.gguf", "link.gguf", "second.gguf" } do
  refused("is what is read", export.begin, at(name), copy, types.plan("q4_0", "", copy.shape))
end
refused("is what is read", function() q.load(at "out.gguf"):save_gguf(at "out.gguf", { type = "q8_0" }) end)
refused("does not exist", export.begin, at "none/x.gguf", copy, types.plan("q4_0", "", copy.shape))

-- Answers end in the file where they end in the folder: at eos, eot, eom, and at tokens that only qeng's own entry
-- lists.
local llama = q.load "tests/golden/small_llama.gguf"
llama:save(at "llama")
local function ends_at(ids)
  q.fs.write(at "llama/generation_config.json", q.json.encode { eos_token_id = q.json.array(ids) })
  local written = write(export.open(at "llama"), "f16")
  local stops, list = request.stops(q.load(at "out.gguf")), {}
  for id in pairs(stops) do list[#list + 1] = id end
  table.sort(list)
  assert(table.concat(list, " ") == table.concat(ids, " "), table.concat(list, " "))
  local file = q.gguf.open(at "out.gguf")
  q.fs.remove(at "again")
  q.load(at "out.gguf"):save(at "again")
  assert(#q.json.decode(q.fs.read(at "again/generation_config.json")).eos_token_id == #ids)
  return table.concat(written.notes), file:get "tokenizer.ggml.eot_token_id", file:get "tokenizer.ggml.eom_token_id"
end
local note, eot, eom = ends_at { 2, 5, 7 }
assert(note == "" and eot == 5 and eom == 7)
assert(ends_at { 2, 5, 7, 8, 9 }:find("also end at token 8, 9", 1, true))
note, eot, eom = ends_at { 2 }
assert(note == "" and not eot and not eom)

-- Special tokens that llama.cpp knows by name end answers too, of files that list eos alone. <|end|> does not where it
-- ends a channel. No note tells of them. What a file suppresses is never drawn, nor from a folder or a file of it.
q.load("recipes/tiny"):save_gguf(at "tiny.gguf")
local specials = { ["<|endoftext|>"] = 1, ["<|im_start|>"] = 2, ["<|im_end|>"] = 3 }
local function tiny_with(names, eos, suppressed)
  local tiny, ids = export.of_gguf(at "tiny.gguf"), {}
  for i = #tiny.metadata, 1, -1 do
    local key, value = tiny.metadata[i][1], tiny.metadata[i][3]
    if key == "tokenizer.ggml.tokens" then
      for place, token in ipairs(value) do
        if specials[token] then value[place], ids[specials[token]] = names[specials[token]], place - 1 end
      end
    elseif key:find "_token_id" then
      table.remove(tiny.metadata, i)
    end
  end
  table.insert(tiny.metadata, { "tokenizer.ggml.eos_token_id", "u32", ids[eos] })
  table.insert(tiny.metadata, suppressed and { "tokenizer.ggml.suppress_tokens", "[i32]", suppressed })
  write(tiny, "f16")
  return q.load(at "out.gguf"), ids
end
for ends, names in pairs {
  ["1 3"] = { "<|endoftext|>", "<|user|>", "<|end|>" }, ["1 2"] = { "<|return|>", "<|call|>", "<|end|>" },
  ["1 2 3"] = { "<|end_of_text|>", "<|eom_id|>", "<|eot_id|>" },
} do
  local model, ids = tiny_with(names, 1)
  local set, list = request.stops(model), {}
  for i, id in ipairs(ids) do
    if set[id] then list[#list + 1] = i end
  end
  assert(table.concat(list, " ") == ends, ("%s: ends at %s"):format(table.concat(names, " "), table.concat(list, " ")))
  q.fs.remove(at "named")
  model:save(at "named")
  local written = write(export.open(at "named"), "f16")
  local file = q.gguf.open(at "out.gguf")
  assert(table.concat(written.notes) == "" and not file:get "tokenizer.ggml.eom_token_id")
end
local function first(model)
  local pieces, said = model:generate { prompt = "The", max_tokens = 1, temperature = 0, stop_ids = {} }
  while pieces() do end
  return said.output[1]
end
local best = first(q.load(at "tiny.gguf"))
local muted = tiny_with({ "<|endoftext|>", "<|im_start|>", "<|im_end|>" }, 3, { best })
local second = first(muted)
q.fs.remove(at "muted")
muted:save(at "muted")
muted:save_gguf(at "muted.gguf")
assert(second ~= best and first(q.load(at "muted")) == second and first(q.load(at "muted.gguf")) == second)

-- A bf16 file has bf16 activations. Under f32 its matrices stay as they are, also for training and saving.
write(export.open(at "llama"), "bf16")
local half, kept = q.load(at "out.gguf"), q.load(at "out.gguf", { dtype = "f32" })
assert(half.dtype == "bf16" and kept.dtype == "f32" and kept.linears[1].weight:dtype() == "bf16" and
  kept.embed:dtype() == "bf16")
assert(q.load(at "out.gguf", { dtype = "f32", writable = true }).linears[1].weight:dtype() == "f32")
q.fs.remove(at "again")
kept:save(at "again")
local wide = q.load(at "again", { dtype = "f32" })
local _, off = golden.differences(golden.flat(kept:logits { 3, 1, 4, 1, 5 }),
  golden.flat(wide:logits { 3, 1, 4, 1, 5 }))
assert(off < 1e-5, "logits of bf16 matrices under f32 are off by " .. off)

-- Tokens that a folder adds to its SentencePiece model are in the file.
q.fs.write(at "llama/generation_config.json", "{}")
local count = q.load(at "llama").tokenizer:vocab_size()
q.fs.write(at "llama/added_tokens.json", q.json.encode { ["<|im_end|>"] = count })
q.fs.write(at "llama/special_tokens_map.json", q.json.encode { additional_special_tokens = { "<|im_end|>" } })
refused("the tokenizer has " .. count + 1, export.open, at "llama")
local more = q.json.decode(q.fs.read(at "llama/config.json"))
more.vocab_size = count + 2
q.random_model(more, { seed = 2 }):save(at "more")
for _, name in ipairs { "tokenizer.model", "tokenizer_config.json", "added_tokens.json", "special_tokens_map.json" } do
  q.fs.copy(at("llama/" .. name), at("more/" .. name))
end
write(export.open(at "more"), "f16")
local before, after = q.load(at "more").tokenizer, q.load(at "out.gguf").tokenizer
assert(before:id "<|im_end|>" == count and after:id "<|im_end|>" == count and
  q.gguf.open(at "out.gguf"):get "tokenizer.ggml.eot_token_id" == count)
for _, special in ipairs { true, false } do
  local text = "the cat<|im_end|> sat"
  assert(table.concat(before:encode(text, { special = special }),
    " ") == table.concat(after:encode(text, { special = special }), " "))
end

-- A folder that AWQ quantized is written from the values that its int4 weights stand for.
write(export.open "tests/golden/int4/awq", "f32")
local theirs, ours = q.load("tests/golden/int4/awq", { dtype = "f32" }), q.load(at "out.gguf")
for i, layer in ipairs(theirs.linears) do
  assert(q.quant.squared_error(layer.weight, ours.linears[i].weight) == 0, layer.name)
end

-- llama.cpp's quantizer leaves these tensors as they are, and so does a copy. A pattern may ask for them.
q.gguf.save(at "moe.gguf", {
  { "blk.0.ffn_gate_inp.weight", q.randn({ 8, 256 }, { dtype = "f16" }) },
  { "blk.0.ssm_conv1d.weight", q.randn({ 64, 32 }, { dtype = "f32" }) },
  { "blk.0.ffn_up_exps.weight", q.randn({ 4, 64, 256 }, { dtype = "f32" }) },
  { "blk.0.ssm_a", q.randn({ 256, 256 }, { dtype = "f32" }) },
}, { { "general.architecture", "string", "qwen3moe" }, { "qwen3moe.attention.head_count", "[u32]", {} } })
local function copied(overrides)
  write(export.of_gguf(at "moe.gguf"), "q2_k", { overrides = overrides })
  local file, found = q.gguf.open(at "out.gguf"), {}
  for _, name in ipairs(file:names()) do found[#found + 1] = file:info(name).dtype end
  return table.concat(found, " ")
end
assert(copied() == "f16 f32 q2_k f32", copied())
assert(copied "ffn_gate_inp=q8_0" == "q8_0 f32 q2_k f32")
local convolution = q.gguf.open(at "out.gguf"):tensor "blk.0.ssm_conv1d.weight"
assert(table.concat(flat(convolution)) ==
  table.concat(flat(q.gguf.open(at "moe.gguf"):tensor "blk.0.ssm_conv1d.weight")))
print "gguf_export: what is written is what was read, or it is refused"
