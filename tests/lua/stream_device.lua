-- Weights streamed to a device with memory of its own (a GPU, or the emulator): the bits of a resident model in logits, generation and
-- training, eager, recorded and recomputed.  qeng stream_device.lua cuda
local q = require "qeng"
q.device { device = arg[1] or "cuda", budget = 64e6 }

local values = {
  architectures = q.json.array { "LlamaForCausalLM" }, model_type = "llama", hidden_size = 64, intermediate_size = 96,
  num_hidden_layers = 5, num_attention_heads = 4, num_key_value_heads = 2, vocab_size = 128, max_position_embeddings = 64,
  rms_norm_eps = 1e-6, rope_theta = 10000, tie_word_embeddings = false, hidden_act = "silu",
}
local ids, targets, positions = { 5, 9, 2, 77, 30, 4, 4, 19 }, { 9, 2, 77, 30, 4, 4, 19, -1 }, { 0, 1, 2, 3, 4, 5, 6, 7 }
local slot = {
  tokens = q.tensor(ids, "i32"), targets = q.tensor(targets, "i32"), positions = q.tensor(positions, "i32"),
  cu_q = q.tensor({ 0, 8 }, "i32"), scale = q.tensor { 1 / 7 },
}

local function train(model, how)
  model:lora { rank = 2, seed = 3 }
  model.recompute = how == "recomputed"
  local parameters, results = {}, {}
  for i, parameter in ipairs(model:trainable()) do parameters[i] = parameter.tensor end
  local adamw = q.adamw_state(parameters, {})
  local function pass()
    local loss = model:loss(slot)
    loss:backward()
    return loss
  end
  local program, result
  if how == "captured" then program, result = q.capture(pass) end
  for _ = 1, 4 do
    if program then
      program:run()
      results[#results + 1] = result:item()
    else
      results[#results + 1] = q.scope(function() return pass():item() end)
    end
    adamw:step { lr = 1e-2, clip = 1 }
    if how == "eager" then results[#results + 1] = q.no_grad(q.scope, function() return (model:loss(slot)):item() end) end
  end
  if program then program:free() end
  for _, parameter in ipairs(model:trainable()) do results[#results + 1] = q.json.encode(parameter.tensor:table()) end
  return results
end

local function generate(model)
  local engine = model:engine { max_batch = 2, pages = 8 }
  local request = engine:submit { ids = ids, max_tokens = 6, temperature = 0, stop_ids = {} }
  engine:finish()
  engine:close()
  return request.output
end

local function same(what, one, other)
  assert(#one == #other and #one > 0, what)
  for i = 1, #one do assert(one[i] == other[i], ("%s: value %d differs"):format(what, i)) end
end

local path = os.tmpname() .. ".gguf"
q.random_model(values, { std = 0.1 }):save_gguf(path, { type = "q8_0" })
local function logits(model) return { q.json.encode(model:logits(ids):table()) } end
for _, how in ipairs { "eager", "captured", "recomputed" } do
  local resident = q.load(path)
  local shown, output = logits(resident), generate(resident)
  local wanted = train(resident, how)
  for _, keep in ipairs { 0, 60e3 } do  -- all streamed; a layer or two stay
    local streamed = q.load(path, { weights = "stream", stream_keep = keep })
    local figures = streamed.stream:figures()
    assert(figures.total > 100e3 and (keep == 0) == (figures.resident == 0) and figures.resident <= keep)
    same(how .. ": logits", logits(streamed), shown)
    same(how .. ": generated", generate(streamed), output)
    local before = streamed.stream:figures()
    same(how .. ": training", train(streamed, how), wanted)
    local moved = streamed.stream:figures().bytes - before.bytes
    local each = figures.total - figures.resident
    assert(moved > 4 * each and moved <= 4 * 3 * each + (how == "eager" and 4 * each or 0), ("%s: %d bytes were moved"):format(how, moved))
  end
end
local ok, err = pcall(q.load, path, { weights = "stream", stream_keep = 0, host_budget = 10e3 })
assert(not ok and err.code == "memory" and err.message:find "pinned memory of the host, more than %-%-host%-budget", tostring(err.message))
ok, err = pcall(q.load, path, { weights = "stream", dtype = "bf16" })
assert(ok or err.message:find "streamed as they are stored", tostring(ok or err.message))
os.remove(path)
print "streamed to the device: the bits of a resident model"
