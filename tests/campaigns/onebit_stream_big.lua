-- A step of phased training of a 1B-shaped one-bit model whose bits are streamed, by hand, about five minutes on two cores:
--   qeng tests/campaigns/onebit_stream_big.lua [budget in MB, 0: in memory] [tokens 2048] [steps 2]
-- Prints loss, flips, what was moved and how much of it was hidden, and the most memory that the process had.
local q = require "qeng"
local budget, tokens, steps = tonumber(arg[1] or 0), tonumber(arg[2] or 2048), tonumber(arg[3] or 2)
q.device { device = "cpu" }

local values = {
  architectures = { "Qwen3ForCausalLM" }, model_type = "qwen3", vocab_size = 1024, hidden_size = 2048, num_hidden_layers = 16, num_attention_heads = 16,
  num_key_value_heads = 16, head_dim = 128, intermediate_size = 8192, max_position_embeddings = 4096, rms_norm_eps = 1e-6, rope_theta = 10000, hidden_act = "silu",
  tie_word_embeddings = false,
}
local model = q.onebit.random(values, { rule = "counter", seed = 1, weights = budget > 0 and "stream" or nil, host_budget = budget > 0 and budget * 1e6 or nil })
model.recompute = true
local list = {}
for i, parameter in ipairs(model:trainable()) do list[i] = parameter.tensor end
local adam = q.adamw_state(list)
local bits = q.phases(model, { count = 4, steps = 1, by = "layer", inertia = { levels = 7 } })
local slot = q.slot(tokens, 1)
local ids, targets, positions = {}, {}, {}
for i = 1, tokens do ids[i], targets[i], positions[i] = i * 37 % 1024, (i + 1) * 37 % 1024, i - 1 end
slot.tokens:set(ids)
slot.targets:set(targets)
slot.positions:set(positions)
slot.cu_q:set { 0, tokens }
slot.scale:fill(1 / tokens)
print(("%.2f billion one-bit weights, %d tokens a step"):format(q.onebit.weights(model) / 1e9, tokens))
for step = 0, steps - 1 do
  local begun, before = q.time(), model.stream and model.stream:figures()
  bits:begin(step / steps, step)
  q.rng_step(step)
  local program, value = q.capture(function()
    local result = model:loss(slot)
    result:backward()
    return result
  end)
  program:run()
  local loss = value:item()
  adam:step { lr = 1e-3 }
  local report = bits:finish()
  program:free()
  value:free()
  local moved = ""
  if before then
    local now = model.stream:figures()
    local fetch, stall = now.fetch_ms - before.fetch_ms, now.stall_ms - before.stall_ms
    moved = ("; moved %.1f MB of %.1f, fetching %.1f ms, stalled %.1f ms: %.1f %% hidden"):format((now.bytes - before.bytes) / 1e6, now.total / 1e6, fetch, stall,
      100 * (1 - stall / math.max(fetch, 1e-9)))
  end
  print(("step %d: loss %.6f, %d flips of %.0f million weights that learn, %.1f s%s"):format(step + 1, loss, report.flips, bits.inertia.weights / 1e6, q.time() - begun, moved))
end
for line in io.lines "/proc/self/status" do
  if line:find "^VmHWM" then print((line:gsub("%s+", " "))) end
end
