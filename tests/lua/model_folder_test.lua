-- Folders of models and adapters: saving leaves what lies beside them alone, and what contradicts itself in their files is refused.
package.path = (arg[0]:match "^(.*/)" or "./") .. "?.lua;" .. package.path
local q = require "qeng"

local scratch = require "scratch"
local at, refused = scratch.at, scratch.refused

local values = {
  architectures = { "LlamaForCausalLM" }, hidden_size = 32, intermediate_size = 64, num_hidden_layers = 1, num_attention_heads = 2,
  num_key_value_heads = 2, vocab_size = 40, max_position_embeddings = 64, rms_norm_eps = 1e-5, hidden_act = "silu",
}
local function with(key, value)
  local all = {}
  for k, v in pairs(values) do all[k] = v end
  all[key] = value
  return all
end

-- A backup by the names that people give: neither taken for a part of ours nor written over.
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
  for _, ending in ipairs { ".old", ".tmp" } do assert(q.fs.read(at(name .. ending .. "/precious.txt")) == "only copy") end
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
    for _, read in ipairs { fresh.load_adapter, fresh.read_adapter } do refused(key .. " is " .. tostring(wrong or "missing"), read, fresh, at "adapter") end
  end
  config[key] = kept
end
q.fs.write(path, q.json.encode(config))
assert(q.random_model(values):load_adapter(at "adapter").adapter.alpha == 4)

-- Numbers that no model has, before anything is counted up to them.
refused("num_hidden_layers is 2000000000, expected a positive integer, at most 1024", q.random_model, with("num_hidden_layers", 2e9))
for _, wrong in ipairs { 0, -1e-5, math.huge } do refused("rms_norm_eps is", q.random_model, with("rms_norm_eps", wrong)) end
refused("theta is", q.random_model, with("rope_theta", -1))
refused("factor is", q.random_model, with("rope_scaling", { rope_type = "linear", factor = -4 }))
refused("hidden_size is", q.random_model, with("hidden_size", 0 / 0))

local entries = {
  block_count = { "u32", 1 }, context_length = { "u32", 64 }, embedding_length = { "u32", 32 }, feed_forward_length = { "u32", 32 },
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
  { "block_count", "u32", 4294967295 }, { "block_count", "u32", 0 }, { "attention.head_count", "[u32]", {} }, { "attention.head_count", "[string]", { "a" } },
  { "attention.head_count", "u32", 0 }, { "attention.head_count_kv", "[string]", { "a" } }, { "embedding_length", "f32", 0.5 },
} do
  for _, architecture in ipairs { "llama", "gemma3" } do
    refused(("entry %s.%s is"):format(architecture, case[1]), q.load, gguf_with(architecture, unpack(case)))
  end
end
for key, value in pairs { ["attention.layer_norm_rms_epsilon"] = 0 / 0, ["rope.freq_base"] = math.huge } do
  refused("expected a finite number", q.load, gguf_with("llama", key, "f32", value))
end
refused("rms_norm_eps is 0", q.load, gguf_with("llama", "attention.layer_norm_rms_epsilon", "f32", 0))

q.fs.remove(scratch.folder)
print "model_folder: folders beside stay, contradictions are refused"
