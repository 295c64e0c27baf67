-- A GPU that reads the host's memory, as the emulator's with QENG_EMULATOR_ONE_MEMORY=1: weights stay in their file's
-- memory, mapped, read in or streamed. Logits, generation and training give the bits of weights that were copied to the
-- device.  qeng one_memory.lua
package.path = (arg[0]:match "^(.*/)" or "./") .. "?.lua;" .. package.path
local golden = require "golden"
local q = require "qeng"
local streamed = require "streamed"
local flat, same = streamed.flat, streamed.same
q.device { device = "cuda" }

local own = q.devices()[1]
assert(own.name == "cuda:0" and own.one_memory, "this device has memory of its own")

local values = {
  architectures = q.json.array { "Qwen2ForCausalLM" }, model_type = "qwen2", hidden_size = 64, intermediate_size = 64,
  num_hidden_layers = 4, num_attention_heads = 4, num_key_value_heads = 2, vocab_size = 64,
  max_position_embeddings = 64,
  rms_norm_eps = 1e-6, rope_theta = 10000, tie_word_embeddings = true, hidden_act = "silu",
}
local tokens, mask = {}, {}
for i = 1, 6 do tokens[i], mask[i] = i * 37 % 64, 1 end
local micro_batch = golden.micro_batch { { tokens = tokens, mask = mask } }

local function outcome(model, how)
  local logits, output = flat(model:logits(tokens)), how == "captured" and streamed.generate(model, tokens, 4)
  local losses, adapter = streamed.train(model, micro_batch, how, { rank = 2, lr = 1e-2, steps = 3,
    after = function() end })
  return { logits = logits, output = output, losses = losses, adapter = adapter }
end
local function compare(what, got, wanted)
  for _, part in ipairs { "logits", "output", "losses", "adapter" } do
    if wanted[part] then same(what .. ": " .. part, got[part], wanted[part]) end
  end
end

local root = os.tmpname()
q.fs.remove(root)
local files = { gguf = root .. ".gguf", folder = root }
q.random_model(values, { std = 0.05 }):save_gguf(files.gguf, { type = "q8_0" })
q.random_model(values, { dtype = "bf16", std = 0.05 }):save(files.folder)
for kind, path in pairs(files) do
  for _, how in ipairs { "captured", "recomputed" } do
    local wanted = outcome(q.load(path, { writable = true }), how)
    for _, weights in ipairs { "map", "copy" } do
      compare(("%s, %s, %s"):format(kind, weights, how), outcome(q.load(path, { weights = weights }), how), wanted)
    end
    local model = q.load(path, { weights = "stream" })
    compare(("%s, streamed, %s"):format(kind, how), outcome(model, how), wanted)
    local figures = model.stream:figures()
    assert(figures.total > 6e4 and figures.bytes >= figures.total, figures.bytes .. " bytes were brought")
    model.stream:close()
    model = nil  -- luacheck: ignore 311
    streamed.collect()
  end
end
-- mapped weights take nothing of a budget that has no room for copies
local small = q.runtime { device = "cuda", budget = 120e3 }
small:use(function()
  assert(#flat(q.load(files.folder, { weights = "map" }):logits { 1, 2 }) == 2 * values.vocab_size)
  local ok, err = pcall(q.load, files.folder, { writable = true })
  assert(not ok and err.code == "memory", tostring(err.message))
end)
local ok, err = pcall(q.load, files.gguf, { weights = "stream", stream_keep = 1e6 })
assert(not ok and err.code == "value" and err.message:find "cuda:0 reads them where they lie", tostring(err.message))
q.fs.remove(files.folder)
os.remove(files.gguf)
print "one memory: the bits of weights that were copied"
