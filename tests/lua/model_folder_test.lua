-- Folders of models and adapters: saving leaves other files in them alone; files that contradict each other are
-- refused.
package.path = (arg[0]:match "^(.*/)" or "./") .. "?.lua;" .. package.path
local q = require "qeng"

local scratch = require "scratch"
local at, refused = scratch.at, scratch.refused

local values = {
  architectures = { "LlamaForCausalLM" }, hidden_size = 32, intermediate_size = 64, num_hidden_layers = 1,
  num_attention_heads = 2,
  num_key_value_heads = 2, vocab_size = 40, max_position_embeddings = 64, rms_norm_eps = 1e-5, hidden_act = "silu",
}
local function with(key, value)
  local all = {}
  for k, v in pairs(values) do all[k] = v end
  all[key] = value
  return all
end

-- A backup with a name that people give. It is not taken for a part of the model, and not written over.
local model = q.random_model(values, { seed = 1 }):lora { rank = 2 }
for _, name in ipairs { "mine", "adapter" } do
  for _, ending in ipairs { ".old", ".tmp" } do
    q.fs.mkdir(at(name .. ending))
    q.fs.write(at(name .. ending .. "/precious.txt"), "only copy")
  end
  assert(not q.fs.kind(at(name)), "a folder was given another name")
end
for _ = 1, 2 do
  model:save_adapter(at "adapter")
  q.random_model(values, { seed = 2 }):save(at "mine")
end
for _, name in ipairs { "mine", "adapter" } do
  for _, ending in ipairs { ".old", ".tmp" } do
    assert(q.fs.read(at(name .. ending .. "/precious.txt")) == "only copy")
  end
end
assert(table.concat(q.fs.list(scratch.folder), " ") == "adapter adapter.old adapter.tmp mine mine.old mine.tmp")

-- An adapter whose configuration does not say its scale.
local path = at "adapter/adapter_config.json"
local config = q.json.decode(q.fs.read(path))
for _, key in ipairs { "r", "lora_alpha" } do
  local kept = config[key]
  for _, wrong in ipairs { false, "8", -1 } do
    config[key] = wrong or nil
    q.fs.write(path, q.json.encode(config))
    local fresh = q.random_model(values)
    for _, read in ipairs { fresh.load_adapter, fresh.read_adapter } do
      refused(key .. " is " .. tostring(wrong or "missing"), read, fresh, at "adapter")
    end
  end
  config[key] = kept
end
q.fs.write(path, q.json.encode(config))
assert(q.random_model(values):load_adapter(at "adapter").adapter.alpha == 4)

-- f16 weights stay as they are and are computed in f32. Nothing is lost, and a line says so. bf16 is there for who
-- asks.
local half_values = with("model_type", "llama")
q.random_model(half_values, { seed = 3, std = 0.3 }):save(at "half", { dtype = "f16" })
local function logits(folder, opt)
  local said, loaded = scratch.said(q.load, at(folder), opt)
  local flat = loaded:logits { 3, 7, 1, 20 }
  return flat:reshape({ flat:elements() }):table(), loaded, said
end
local function largest(a, b)
  local most = 0
  for i = 1, #a do most = math.max(most, math.abs(a[i] - b[i])) end
  return most
end
local as_f32, whole = logits("half", { dtype = "f32" })
local as_is, half, said = logits "half"
assert(said:find("half: weights of f16 are computed in f32", 1, true), said)
assert(half.dtype == "f32" and half.linears[1].weight:dtype() == "f16" and whole.linears[1].weight:dtype() == "f32")
assert(largest(as_f32, as_is) < 1e-5 and largest(as_f32, (logits("half", { dtype = "bf16" }))) > 1e-3)
local _, writable = logits("half", { writable = true })
assert(writable.dtype == "f32" and writable.linears[1].weight:dtype() == "f32")
half:save(at "half again")
assert(q.json.decode(q.fs.read(at "half again/config.json")).torch_dtype == "float16")
local stored = { q.safetensors.open(at "half"), q.safetensors.open(at "half again") }
for _, name in ipairs(stored[1]:names()) do
  local info = stored[2]:info(name)
  assert(info.dtype == "f16" and q.quant.squared_error(stored[1]:tensor(name), stored[2]:tensor(name)) == 0, name)
end
local file, mixed = q.safetensors.open(at "half"), {}
for i, name in ipairs(file:names()) do mixed[i] = { name, file:tensor(name), name:find "embed" and "bf16" or "f32" } end
q.fs.mkdir(at "mixed")
q.safetensors.save(at "mixed/model.safetensors", mixed)
q.fs.copy(at "half/config.json", at "mixed/config.json")
assert(q.load(at "mixed").dtype == "f32", "matrices of f32 are rounded because the first one is bf16")
half:lora { rank = 2, seed = 1 }
local micro_batch = q.micro_batch(4, 1)
micro_batch.tokens:set { 3, 7, 1, 20 }
micro_batch.targets:set { 7, 1, 20, -1 }
micro_batch.positions:set { 0, 1, 2, 3 }
micro_batch.cu_q:set { 0, 4 }
micro_batch.scale:fill(1 / 3)
half:loss(micro_batch):backward()
for i, parameter in ipairs(half:trainable()) do
  assert(parameter.tensor:dtype() == "f32" and
    (i % 2 == 1 or q.quant.squared_error(parameter.tensor:grad(), parameter.tensor) > 0))
end

-- Where an answer ends: eos_token_id of generation_config.json, or of config.json where that has none.
local request = require "qeng.infer.request"
q.random_model(with("eos_token_id", 7)):save(at "ends")
local function ends(text)
  if text then q.fs.write(at "ends/generation_config.json", text) end
  local ids = {}
  for id in pairs(request.stops { dir = at "ends" }) do ids[#ids + 1] = id end
  table.sort(ids)
  return table.concat(ids, " ")
end
assert(ends() == "7" and ends "{}" == "7" and ends '{"temperature": Infinity, "eos_token_id": null}' == "7")
assert(ends '{"eos_token_id": 9}' == "9" and ends '{"eos_token_id": [4, 5, -1]}' == "4 5")

-- Numbers that no model has are refused before anything is counted up to them.
refused("num_hidden_layers is 2000000000, expected a positive integer, at most 1024", q.random_model,
  with("num_hidden_layers", 2e9))
for _, wrong in ipairs { 0, -1e-5, math.huge } do
  refused("rms_norm_eps is", q.random_model, with("rms_norm_eps", wrong))
end
refused("theta is", q.random_model, with("rope_theta", -1))
refused("factor is", q.random_model, with("rope_scaling", { rope_type = "linear", factor = -4 }))
refused("hidden_size is", q.random_model, with("hidden_size", 0 / 0))

local entries = {
  block_count = { "u32", 1 }, context_length = { "u32", 64 }, embedding_length = { "u32", 32 },
  feed_forward_length = { "u32", 32 },
  ["attention.head_count"] = { "u32", 2 }, ["attention.layer_norm_rms_epsilon"] = { "f32", 1e-5 },
}
local function gguf_with(architecture, key, type, value)
  local list = { { "general.architecture", "string", architecture } }
  for name, entry in pairs(entries) do
    if name ~= key then list[#list + 1] = { architecture .. "." .. name, entry[1], entry[2] } end
  end
  list[#list + 1] = { architecture .. "." .. key, type, value }
  q.gguf.save(at "odd.gguf", { { "token_embd.weight", q.zeros({ 4, 32 }) } }, list)
  return at "odd.gguf"
end
for _, case in ipairs {
  { "block_count", "u32", 4294967295 }, { "block_count", "u32", 0 }, { "attention.head_count", "[u32]", {} },
  { "attention.head_count", "[string]", { "a" } },
  { "attention.head_count", "u32", 0 }, { "attention.head_count_kv", "[string]", { "a" } },
  { "embedding_length", "f32", 0.5 },
} do
  for _, architecture in ipairs { "llama", "gemma3" } do
    refused(("entry %s.%s is"):format(architecture, case[1]), q.load, gguf_with(architecture, unpack(case)))
  end
end
for key, value in pairs { ["attention.layer_norm_rms_epsilon"] = 0 / 0, ["rope.freq_base"] = math.huge } do
  refused("expected a finite number", q.load, gguf_with("llama", key, "f32", value))
end
refused("rms_norm_eps is 0", q.load, gguf_with("llama", "attention.layer_norm_rms_epsilon", "f32", 0))
print "model_folder: folders beside stay, contradictions are refused"
