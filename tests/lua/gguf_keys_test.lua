-- GGUF metadata mean what llama.cpp makes of them for the architecture. What llama.cpp does not read is not applied,
-- which is said. What changes the mathematics and is not supported is refused by name.
package.path = (arg[0]:match "^(.*/)" or "./") .. "?.lua;" .. package.path
local q = require "qeng"

local formula = require "formula"
local last_logits = require "last_logits"
local scratch = require "scratch"
local at, refused, said = scratch.at, scratch.refused, scratch.said

local golden = q.json.decode(q.fs.read "tests/golden/gguf_keys_golden.json")

-- A file of `architecture` with the entries of `all` and these. Beside the usual tensors it has those named in `more`
-- ([vocab, hidden]).
local function file(architecture, entries, more)
  local list, tensors = { { "general.architecture", "string", architecture },
    { "tokenizer.ggml.model", "string", "none" } }, {}
  for _, given in ipairs { golden.base, entries } do
    for key, entry in pairs(given) do
      if given == entries or not entries[key] then
        list[#list + 1] = { key:find "^qeng%." and key or architecture .. "." .. key, entry[1], entry[2] }
      end
    end
  end
  for name, shape in pairs(golden.shapes[architecture]) do tensors[#tensors + 1] = { name, formula(name, shape) } end
  for _, name in ipairs(more or {}) do tensors[#tensors + 1] = { name, formula(name, { 32, 32 }) } end
  q.gguf.save(at "model.gguf", tensors, list)
  return at "model.gguf"
end

local distance = last_logits.distance
local function last(model) return last_logits.of(model, golden.tokens) end

-- Both compute in f32 (8e-7 at most was measured). But llama.cpp's GELU is a table of f16 (6e-5).
for _, case in ipairs(golden.cases) do
  local line, model = said(q.load, file(case.architecture, case.entries, case.more))
  local off = distance(case.logits, last(model))
  assert(off < (case.architecture:find "^gemma" and 5e-4 or 1e-5), ("%s: logits are off by %g"):format(case.name, off))
  if case.said ~= q.json.null then
    assert(line:find(case.architecture .. "." .. case.said .. " = ", 1, true) and
      line:find("is not applied, as in llama.cpp", 1, true), line)
  else
    assert(line == "", line)
  end
end

-- A window that qeng writes is one that it reads. A note tells what llama.cpp makes of the file.
local export, types = require "qeng.gguf.export", require "qeng.gguf.types"
for name, values in pairs {
  llama = { architectures = { "MistralForCausalLM" }, sliding_window = 3 },
  qwen2 = { architectures = { "Qwen2ForCausalLM" }, use_sliding_window = true, sliding_window = 3,
    max_window_layers = 0 },
} do
  for key, value in pairs {
    hidden_size = 32, intermediate_size = 32, num_hidden_layers = 2, num_attention_heads = 4, num_key_value_heads = 2,
    vocab_size = 32,
    max_position_embeddings = 64,
  } do values[key] = value end
  local model = q.random_model(values, { weights = formula })
  local notes = model:save_gguf(at "window.gguf", { type = "f32" }).notes
  assert(table.concat(notes):find("attention looks back over 3 tokens, for which llama.cpp has no key", 1, true))
  local again = q.load(at "window.gguf")
  assert(again.config.window == 3 and distance(last(model), last(again)) < 1e-5)
  again:save(at(name))
  assert(distance(last(model), last(q.load(at(name)))) < 1e-5)
  export.write(at "copy.gguf", export.of_gguf(at "window.gguf"), types.plan("f32", "", { layers = 2, groups = 2 }))
  assert(q.load(at "copy.gguf").config.window == 3)
end

for _, case in ipairs {
  { "llama.attention.causal = false is not supported, only true", "llama",
    { ["attention.causal"] = { "bool", false } } },
  { "gemma3.attention.causal = false", "gemma3", { ["attention.causal"] = { "bool", false } } },
  { "llama.rope.scaling.attn_factor = 0.5 is not supported", "llama",
    { ["rope.scaling.attn_factor"] = { "f32", 0.5 } } },
  { "gemma3.rope.scaling.attn_factor = 0.5 is not supported", "gemma3",
    { ["rope.scaling.attn_factor"] = { "f32", 0.5 }, ["rope.scaling.type"] = { "string", "yarn" },
      ["rope.scaling.factor"] = { "f32", 4 } } },
  { "rope scaling longrope", "qwen3",
    { ["rope.scaling.type"] = { "string", "longrope" }, ["rope.scaling.factor"] = { "f32", 4 } } },
  { "unknown entry llama.rope.scaling.alpha", "llama", { ["rope.scaling.alpha"] = { "f32", 2 } } },
  { "unknown entry llama.rope.scaling.yarn_log_multiplier", "llama",
    { ["rope.scaling.yarn_log_multiplier"] = { "f32", 0.1 } } },
  { "unknown entry qwen2.nextn_predict_layers", "qwen2", { nextn_predict_layers = { "u32", 1 } } },
  { "unknown entry llama.attention.scale", "llama", { ["attention.scale"] = { "f32", 0.1 } } },
  { "final_logit_softcapping is -1, expected a positive", "gemma3", { final_logit_softcapping = { "f32", -1 } } },
  { "unknown entry qeng.something", "llama", { ["qeng.something"] = { "u32", 1 } } },
  { "entry qeng.sliding_window", "gemma", { ["qeng.sliding_window"] = { "u32", 3 } } },
} do
  refused(case[1], q.load, file(case[2], case[3]))
end
golden.shapes.qwen2["rope_freqs.weight"] = { 4 }
refused("tensor rope_freqs.weight, which qwen2 has not", q.load, file("qwen2", {}))
refused("rope scaling llama3 has no words in architecture qwen2", function()
  q.random_model({ architectures = { "Qwen2ForCausalLM" }, hidden_size = 32, intermediate_size = 32,
    num_hidden_layers = 1, num_attention_heads = 4,
    num_key_value_heads = 2, vocab_size = 32,
      rope_scaling = { rope_type = "llama3", factor = 8, low_freq_factor = 1, high_freq_factor = 4 } })
    :save_gguf(at "x.gguf")
end)
-- OLMo 3 has the word of OLMo 2, and a window beside it.
golden.shapes.olmo2 = { ["token_embd.weight"] = { 32, 32 } }
refused("olmo2.attention.sliding_window = 3: it is an OLMo 3", q.load,
  file("olmo2", { ["attention.sliding_window"] = { "u32", 3 } }))
print "gguf keys: what llama.cpp makes of them"
