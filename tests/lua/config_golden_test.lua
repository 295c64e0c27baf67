-- config.json files that are easily read another way compute what transformers computes of them; a head that
-- config.json ties and the file does not is used, trained, saved and exported.
package.path = (arg[0]:match "^(.*/)" or "./") .. "?.lua;" .. package.path
local q = require "qeng"

local formula = require "formula"
local last_logits = require "last_logits"
local scratch = require "scratch"
local at = scratch.at

local golden = q.json.decode(q.fs.read "tests/golden/config_golden.json")

-- A folder of such a config, and of weights by the formula.
local function folder(name, values, own_head)
  local whole = {}
  for key, value in pairs(values) do whole[key] = value end
  if own_head then whole.tie_word_embeddings = false end
  local tensors = {}
  for i, parameter in ipairs(q.random_model(whole, { weights = formula }).parameters) do
    tensors[i] = { parameter.name, parameter.tensor }
  end
  q.fs.mkdir(at(name))
  q.safetensors.save(at(name) .. "/model.safetensors", tensors)
  q.fs.write(at(name) .. "/config.json", q.json.encode(values))
  return at(name)
end

local distance = last_logits.distance
local function last(model) return last_logits.of(model, golden.tokens) end

-- Both sides compute in f32 and differ by the order of sums: 2e-6 at most was measured. A wrong reading is off by 1e-2
-- or more.
local heads = {}
for _, case in ipairs(golden.cases) do
  local model = q.load(folder(case.name, case.config, case.own_head), { dtype = "f32" })
  local off = distance(case.logits, last(model))
  assert(off < 1e-5, ("%s: logits are off by %g"):format(case.name, off))
  if case.own_head then heads[#heads + 1] = case end
end

-- A head of its own, in a folder whose config.json ties it.
assert(#heads == 2)
for _, case in ipairs(heads) do
  local model = q.load(at(case.name), { dtype = "f32" })
  assert(not model.config.tied)
  model:save(at "saved")
  assert(q.json.decode(q.fs.read(at "saved/config.json")).tie_word_embeddings == false,
    "the head would be lost by what reads the folder")
  assert(distance(case.logits, last(q.load(at "saved", { dtype = "f32" }))) < 1e-5)

  local lora = q.load(at(case.name), { dtype = "f32" }):lora { rank = 2, seed = 1 }
  for i, parameter in ipairs(lora.adapter.parameters) do
    parameter.tensor:copy(q.randn(parameter.tensor:shape(), { std = 0.3, seed = 7, subsequence = i }))
  end
  local adapted = last(lora)
  lora:merge():save(at "merged")
  assert(distance(case.logits, adapted) > 1e-2 and distance(adapted,
    last(q.load(at "merged", { dtype = "f32" }))) < 1e-5)

  local full, names = q.load(at(case.name), { dtype = "f32", writable = true }):full(), {}
  for _, parameter in ipairs(full:trainable()) do names[parameter.name] = true end
  assert(names["lm_head.weight"] and names["model.embed_tokens.weight"])

  if case.config.model_type == "llama" then
    model:save_gguf(at "head.gguf", { type = "f32" })
    assert(distance(case.logits, last(q.load(at "head.gguf"))) < 1e-5)
    local export, types = require "qeng.gguf.export", require "qeng.gguf.types"
    export.write(at "folder.gguf", export.open(at(case.name)), types.plan("f32", "", { layers = 2, groups = 2 }))
    assert(distance(case.logits, last(q.load(at "folder.gguf"))) < 2e-6, "a folder's own head is not exported")
  else
    scratch.refused("no words for a head that is not the embedding", model.save_gguf, model, at "head.gguf")
  end
end

-- A head that is there twice, with the same values, counts as one.
local tied = folder("twice", { architectures = { "LlamaForCausalLM" }, hidden_size = 32, intermediate_size = 24,
  num_hidden_layers = 1,
  num_attention_heads = 4, vocab_size = 24, tie_word_embeddings = true }, true)
local file, tensors = q.safetensors.open(tied), {}
for i, name in ipairs(file:names()) do
  tensors[i] = { name, file:tensor(name == "lm_head.weight" and "model.embed_tokens.weight" or name) }
end
assert(not file:same("lm_head.weight", "model.embed_tokens.weight") and file:same("lm_head.weight", "lm_head.weight"))
q.fs.mkdir(at "once")
q.safetensors.save(at "once/model.safetensors", tensors)
q.fs.copy(tied .. "/config.json", at "once/config.json")
assert(q.load(at "once").config.tied and not q.load(tied).config.tied)
print "config golden: read as transformers reads it"
