-- AdamW with moments in 8 bits and full training with gradients in bf16: the losses stay with those of f32, memory is
-- what it should be, a run that is stopped and restored has the bits of one that was not, and what is refused.
local q = require "qeng"
local scratch = require "scratch"
local refused = scratch.refused

q.device { device = os.getenv "QENG_TEST_DEVICE" or "cpu", threads = 2 }

local config = {
  architectures = q.json.array { "Qwen2ForCausalLM" }, model_type = "qwen2", hidden_size = 64, intermediate_size = 192,
  num_hidden_layers = 2, num_attention_heads = 4, num_key_value_heads = 2, vocab_size = 96,
  max_position_embeddings = 512, rms_norm_eps = 1e-6, rope_theta = 10000, tie_word_embeddings = true,
  hidden_act = "silu",
}
local ids = {}
for i = 1, 48 do ids[i] = (i * i * 7 + 3) % 96 end
local targets, scale = q.keep(q.tensor(ids, "i32")), q.keep(q.tensor({ 1 / #ids }, "f32"))

local function new(dtype, how)
  local model = q.random_model(config, { seed = 3, std = 0.05, dtype = dtype }):full { gradients = how.gradients }
  local tensors, names = {}, {}
  for i, parameter in ipairs(model:trainable()) do tensors[i], names[i] = parameter.tensor, parameter.name end
  return { model = model, names = names, tensors = tensors,
    adamw = q.adamw_state(tensors, { decay = 0.1, moment_bits = how.moment_bits }) }
end
local function train(run, steps)
  local losses = {}
  for i = 1, steps do
    q.scope(function()
      local loss = q.lm_head_loss(run.model:hidden(ids), run.model.head, targets, scale)
      losses[i] = loss:item()
      loss:backward()
      run.adamw:step { lr = 3e-3, clip = 1 }
    end)
  end
  return losses
end
local function bytes_of(account) return q.memory()[account] and q.memory()[account].bytes or 0 end

-- In the emulator a step takes seconds.
local last = os.getenv "QENG_TEST_DEVICE" and 12 or 40
for _, dtype in ipairs { "f32", "bf16" } do
  local plain, coded = train(new(dtype, {}), last), train(new(dtype, { moment_bits = 8 }), last)
  local both = dtype == "bf16" and train(new(dtype, { moment_bits = 8, gradients = "bf16" }), last) or coded
  assert(plain[last] < (last == 40 and 0.3 or 0.8) * plain[1], "nothing was learned")
  for i, loss in ipairs(plain) do
    for _, other in ipairs { coded[i], both[i] } do
      assert(math.abs(other - loss) < 0.05 * plain[1], ("step %d: %.4f, in f32 %.4f"):format(i, other, loss))
    end
  end
  print(("%s: losses from %.3f to %.4f; with codes %.4f, and gradients in bf16 %.4f"):format(dtype, plain[1],
    plain[last], coded[last], both[last]))
end
collectgarbage()

-- Memory: codes and a scale for each 256, of the tensors that are large enough; gradients of linear layers.
local function taken(how)
  local optimizer, gradients = bytes_of "optimizer", bytes_of "gradients"
  local run = new("bf16", how)
  return bytes_of "optimizer" - optimizer, bytes_of "gradients" - gradients, run
end
local all_32, grads_32, run = taken {}
local large, linear = 0, 0
for _, tensor in ipairs(run.tensors) do
  if tensor:elements() >= 4096 then large = large + tensor:elements() end
end
for _, layer in ipairs(run.model.linears) do linear = linear + layer.weight:elements() end
local all_8, grads_16 = taken { moment_bits = 8, gradients = "bf16" }
local saved = large * 2 * 3 - 8 * math.ceil(large / 256)
assert(math.abs((all_32 - all_8) - saved) < 8 * 64 * #run.tensors,
  ("%d bytes saved, expected %d"):format(all_32 - all_8, saved))
assert(math.abs((grads_32 - grads_16) - 2 * linear) < 64 * #run.tensors, "gradients of linear layers are half as large")

-- Stopped and restored.
do
  local how = { moment_bits = 8, gradients = "bf16" }
  local through, first, second = new("bf16", how), new("bf16", how), new("bf16", how)
  local wanted = train(through, 6)
  train(first, 3)
  local state, steps = first.adamw:state(first.names)
  local path = scratch.at "optimizer.safetensors"
  q.safetensors.save(path, state)
  for i, tensor in ipairs(second.tensors) do tensor:copy(first.tensors[i]) end
  local file = q.safetensors.open(path)
  second.adamw:restore(file, second.names, steps)
  file:close()
  local found = train(second, 3)
  for i = 1, 3 do assert(found[i] == wanted[3 + i], "a restored run has other bits") end
  -- Not into moments of another kind.
  local other = new("bf16", {})
  file = q.safetensors.open(path)
  refused("with the moment_bits of the saved run", other.adamw.restore, other.adamw, file, other.names, steps)
  file:close()
end

refused("expected 32 or 8", q.adamw_state, run.tensors, { moment_bits = 4 })
local full = q.random_model(config, { dtype = "f32" })
refused("a gradient in bf16 of f32", full.full, full, { gradients = "bf16" })
refused("may be f32, or bf16 of a bf16 matrix", function() q.zeros({ 4, 4 }, "f32"):requires_grad(true, "bf16") end)
local kept = q.zeros({ 4, 4 }, "bf16")
kept:requires_grad(true, "bf16")
kept:requires_grad(true)
assert(kept:grad():dtype() == "bf16", "asked for again, a gradient stays what it is")
print "ok"
