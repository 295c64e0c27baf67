-- Weights streamed to a device with memory of its own (a GPU, or the emulator): the bits of a resident model in logits, generation and
-- training, eager, recorded and recomputed.  qeng stream_device.lua cuda
local q = require "qeng"
q.device { device = arg[1] or "cuda", budget = 64e6 }

local values = {
  architectures = q.json.array { "LlamaForCausalLM" }, model_type = "llama", hidden_size = 64, intermediate_size = 64,
  num_hidden_layers = 4, num_attention_heads = 4, num_key_value_heads = 2, vocab_size = 64, max_position_embeddings = 64,
  rms_norm_eps = 1e-6, rope_theta = 10000, tie_word_embeddings = false, hidden_act = "silu",
}
local ids, targets, positions = { 5, 9, 2, 30 }, { 9, 2, 30, -1 }, { 0, 1, 2, 3 }
local slot = {
  tokens = q.tensor(ids, "i32"), targets = q.tensor(targets, "i32"), positions = q.tensor(positions, "i32"),
  cu_q = q.tensor({ 0, 4 }, "i32"), scale = q.tensor { 1 / 3 },
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
  local steps = how == "captured" and 4 or 1  -- run, recorded, and replayed twice
  for _ = 1, steps do
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
  return results, steps
end

local function generate(model)
  local engine = model:engine { max_batch = 2, pages = 8 }
  local request = engine:submit { ids = ids, max_tokens = 3, temperature = 0, stop_ids = {} }
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
for _, case in ipairs { { "eager", 40e3 }, { "captured", 0 }, { "recomputed", 0 } } do  -- a layer or two stay; all are streamed
  local how, keep = unpack(case)
  local resident = q.load(path)
  local shown, output = logits(resident), how == "captured" and generate(resident)
  local wanted, steps = train(resident, how)
  local streamed = q.load(path, { weights = "stream", stream_keep = keep })
  local figures = streamed.stream:figures()
  assert(figures.total > 80e3 and (keep == 0) == (figures.resident == 0) and figures.resident <= keep)
  same(how .. ": logits", logits(streamed), shown)
  if output then same(how .. ": generated", generate(streamed), output) end
  local before = streamed.stream:figures()
  same(how .. ": training", train(streamed, how), wanted)
  local moved, each = streamed.stream:figures().bytes - before.bytes, figures.total - figures.resident
  assert(moved > steps * each and moved <= steps * 3 * each, ("%s: %d bytes were moved, of %d"):format(how, moved, each))
end
do  -- times are kept of many passes, none of which asks for them
  local streamed = q.load(path, { weights = "stream", stream_keep = 0 })
  local one = streamed.stream:figures()
  for _ = 1, 40 do q.no_grad(q.scope, function() streamed:logits { 5, 9 } end) end
  local now = streamed.stream:figures()
  assert(now.fetches - one.fetches > 140 and now.fetch_ms > one.fetch_ms, ("%d fetches"):format(now.fetches - one.fetches))
end
do  -- a weight outlives its stream, with its values
  local resident, streamed = q.load(path), q.load(path, { weights = "stream", stream_keep = 0 })
  local name, weight, wanted = "model.layers.2.mlp.down_proj.weight", nil, nil
  for i, parameter in ipairs(streamed.parameters) do
    if parameter.name == name then weight, wanted = parameter.tensor, q.json.encode(resident.parameters[i].tensor:table()) end
  end
  streamed = nil
  collectgarbage()
  collectgarbage()
  assert(q.json.encode(weight:table()) == wanted, name .. ": other values after its stream")
end
local ok, err = pcall(q.load, path, { weights = "stream", stream_keep = 0, host_budget = 10e3 })
assert(not ok and err.code == "memory" and err.message:find "pinned memory of the host, more than %-%-host%-budget", tostring(err.message))
ok, err = pcall(q.load, path, { weights = "stream", dtype = "bf16" })
assert(ok or err.message:find "streamed as they are stored", tostring(ok or err.message))
os.remove(path)
print "streamed to the device: the bits of a resident model"
