-- Weights streamed to a device with memory of its own (a GPU, or the emulator). Logits, generation and training give
-- the bits of a resident model: eager, recorded and recomputed.  qeng stream_device.lua cuda
package.path = (arg[0]:match "^(.*/)" or "./") .. "?.lua;" .. package.path
local q = require "qeng"
local streamed = require "streamed"
local same = streamed.same
q.device { device = arg[1] or "cuda", budget = 64e6 }

local values = {
  architectures = q.json.array { "LlamaForCausalLM" }, model_type = "llama", hidden_size = 64, intermediate_size = 64,
  num_hidden_layers = 4, num_attention_heads = 4, num_key_value_heads = 2, vocab_size = 64,
  max_position_embeddings = 64,
  rms_norm_eps = 1e-6, rope_theta = 10000, tie_word_embeddings = false, hidden_act = "silu",
}
local ids, targets, positions = { 5, 9, 2, 30 }, { 9, 2, 30, -1 }, { 0, 1, 2, 3 }
local micro_batch = {
  tokens = q.tensor(ids, "i32"), targets = q.tensor(targets, "i32"), positions = q.tensor(positions, "i32"),
  cu_q = q.tensor({ 0, 4 }, "i32"), scale = q.tensor { 1 / 3 },
}

-- Losses and the adapter's values, and how many steps there were.
local function train(model, how)
  local steps = how == "captured" and 4 or 1  -- run, recorded, and replayed twice
  local losses, adapter = streamed.train(model, micro_batch, how,
      { rank = 2, lr = 1e-2, steps = steps, after = function(losses)
    if how == "eager" then
      losses[#losses + 1] = q.no_grad(q.scope, function() return (model:loss(micro_batch)):item() end)
    end
  end })
  for _, value in ipairs(adapter) do losses[#losses + 1] = value end
  return losses, steps
end
local function generate(model) return streamed.generate(model, ids, 3) end

local path = os.tmpname() .. ".gguf"
q.random_model(values, { std = 0.1 }):save_gguf(path, { type = "q8_0" })
local function logits(model) return streamed.flat(model:logits(ids)) end
-- a layer or two stay; all are streamed, some from the file
for _, case in ipairs { { "eager", 40e3 }, { "captured", 0 }, { "recomputed", 0 }, { "captured", 0, 130e3 },
    { "eager", 0, 90e3 } } do
  local how, keep, host_budget = unpack(case)
  local resident = q.load(path)
  local shown, output = logits(resident), how == "captured" and generate(resident)
  local wanted, steps = train(resident, how)
  local streaming = q.load(path, { weights = "stream", stream_keep = keep, host_budget = host_budget })
  local figures = streaming.stream:figures()
  assert(host_budget and figures.filed > 30e3 and figures.process <= host_budget or figures.filed == 0)
  assert(figures.total > 80e3 and (keep == 0) == (figures.resident == 0) and figures.resident <= keep)
  same(how .. ": logits", logits(streaming), shown)
  if output then same(how .. ": generated", generate(streaming), output) end
  local before = streaming.stream:figures()
  same(how .. ": training", train(streaming, how), wanted)
  local moved, each = streaming.stream:figures().bytes - before.bytes, figures.total - figures.resident
  assert(moved > steps * each and moved <= steps * 3 * each,
    ("%s: %d bytes were moved, of %d"):format(how, moved, each))
end
do  -- times are kept of many passes, none of which asks for them
  local streaming = q.load(path, { weights = "stream", stream_keep = 0 })
  local one = streaming.stream:figures()
  for _ = 1, 40 do q.no_grad(q.scope, function() streaming:logits { 5, 9 } end) end
  local now = streaming.stream:figures()
  assert(now.fetches - one.fetches > 140 and now.fetch_ms > one.fetch_ms,
    ("%d fetches"):format(now.fetches - one.fetches))
end
-- a weight that is used by hand has its own values, whatever its buffer holds by then: after a pass, or after a program
-- is freed
do
  -- while its last launch is under way
  local resident, streaming = q.load(path), q.load(path, { weights = "stream", stream_keep = 0 })
  streaming:lora { rank = 1, seed = 3 }
  streaming:trainable()
  local program = q.capture(function()
    local loss = streaming:loss(micro_batch)
    loss:backward()
    return loss
  end)
  for _ = 1, 3 do
    logits(streaming)
    program:run()
  end
  program:free()
  local x = q.randn({ 3, 64 }, { seed = 2 })
  for i, layer in ipairs(resident.linears) do
    same(layer.name, streamed.flat(q.linear(x, streaming.linears[i].weight)), streamed.flat(q.linear(x, layer.weight)))
    same(layer.name, streamed.flat(streaming.linears[i].weight:rows(1, 2)), streamed.flat(layer.weight:rows(1, 2)))
  end
end
-- weights in the file: operations by hand are refused, values are read, and a torn file is an error of the pass
do
  local torn = os.tmpname()
  assert(q.fs.write(torn, q.fs.read(path)) ~= false)
  local streaming = q.load(torn, { weights = "stream", stream_keep = 0, host_budget = 90e3 })
  local resident, refused = q.load(path), 0
  for i, layer in ipairs(resident.linears) do
    local weight = streaming.linears[i].weight
    same(layer.name, streamed.flat(weight:rows(1, 2)), streamed.flat(layer.weight:rows(1, 2)))
    local ok, err = pcall(q.linear, q.zeros { 1, layer.weight:shape()[2] }, weight)
    if not ok then
      assert(err.code == "value" and err.message:find "its weights are in their file", err.message)
      refused = refused + 1
    end
  end
  assert(refused > 0 and refused < #resident.linears and refused % 7 == 0, refused .. " weights are in the file")
  same("from the file", logits(streaming), logits(resident))
  assert(os.execute("truncate -s 20000 " .. torn) == 0)
  local ok, err = pcall(logits, streaming)
  assert(not ok and err.code == "io" and err.message:find "the file became shorter", tostring(ok or err.message))
  os.remove(torn)
end
for _, budget in ipairs { 0, 90e3 } do  -- a weight outlives its stream, with its values
  local resident, streaming = q.load(path),
    q.load(path, { weights = "stream", stream_keep = 0, host_budget = budget > 0 and budget or nil })
  local name, weight, wanted = "model.layers.2.mlp.down_proj.weight", nil, nil
  for i, parameter in ipairs(streaming.parameters) do
    if parameter.name == name then
      weight, wanted = parameter.tensor, q.json.encode(resident.parameters[i].tensor:table())
    end
  end
  streaming = nil  -- luacheck: ignore 311
  collectgarbage()
  collectgarbage()
  assert(q.json.encode(weight:table()) == wanted, name .. ": other values after its stream")
end
do  -- learned positions are read with the embedding, also where both are in the file
  local absolute, dir = {}, os.tmpname()
  for key, value in pairs(values) do absolute[key] = value end
  absolute.architectures, absolute.model_type, absolute.num_key_value_heads = q.json.array {
    "QengAbsoluteForCausalLM" }, "qeng_absolute", 4
  os.remove(dir)
  q.random_model(absolute, { dtype = "bf16", std = 0.1 }):save(dir)
  local streaming = q.load(dir, { weights = "stream", stream_keep = 0, host_budget = 60e3 })
  assert(streaming.stream:figures().filed > 200e3)
  same("learned positions", logits(streaming), logits(q.load(dir)))
  q.fs.remove(dir)
end
do  -- rows that the CPU has interleaved in the file's memory come in the file's order
  local wide, ternary = {}, os.tmpname() .. ".gguf"
  for key, value in pairs(values) do wide[key] = value end
  wide.hidden_size, wide.num_hidden_layers = 256, 1
  q.random_model(wide, { std = 0.1 }):save_gguf(ternary, { type = "tq2_0" })
  local file, cpu = q.gguf.open(ternary), q.runtime { device = "cpu" }
  file:load()
  os.remove(ternary)
  local name = "blk.0.ffn_up.weight"
  local wanted = cpu:use(function() return streamed.flat(file:tensor(name, { interleave = true }):to "f32") end)
  same("interleaved", streamed.flat(file:tensor(name):to "f32"), wanted)
  same("interleaved, streamed", streamed.flat(file:tensor(name, { stream = true })), streamed.flat(file:tensor(name)))
  same("interleaved, after that", cpu:use(function() return streamed.flat(file:tensor(name):to "f32") end), wanted)
end
for _, name in ipairs { "int4/awq", "int4/act_order", "nf4/double" } do  -- decoded into the host's memory
  local dir = (arg[0]:match "^(.*/)" or "./") .. "../golden/" .. name
  local streaming, resident = q.load(dir, { weights = "stream", stream_keep = 0 }), q.load(dir)
  same("packed, " .. name, streamed.flat(streaming:logits { 5, 9, 2 }), streamed.flat(resident:logits { 5, 9, 2 }))
end
local ok, err = pcall(q.load, path, { weights = "stream", stream_keep = 0, host_budget = 10e3 })
assert(not ok and err.code == "memory" and err.message:find "pinned memory of the host, more than %-%-host%-budget",
  tostring(err.message))
ok, err = pcall(q.load, path, { weights = "stream", dtype = "bf16" })
assert(ok or err.message:find "streamed as they are stored", tostring(ok or err.message))
os.remove(path)
print "streamed to the device: the bits of a resident model"
