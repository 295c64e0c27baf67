-- Training of one-bit weights that are streamed, those that learn included: within a limit of the process's memory the bits, flips and
-- losses are those of a model in memory, through switches of phases and from a saved state.
local q = require "qeng"
q.device { device = "cpu", threads = 1 }

local values = {
  architectures = { "QengAbsoluteForCausalLM" }, model_type = "qeng_absolute", vocab_size = 61, hidden_size = 512, num_hidden_layers = 6, num_attention_heads = 4,
  num_key_value_heads = 4, intermediate_size = 2048, max_position_embeddings = 32, rms_norm_eps = 1e-6, hidden_act = "silu", tie_word_embeddings = false,
}

local slot = q.slot(16, 1)
local ids, targets, positions = {}, {}, {}
for i = 1, 16 do ids[i], targets[i], positions[i] = i * 7 % 61, (i + 1) * 7 % 61, i - 1 end
slot.tokens:set(ids)
slot.targets:set(targets)
slot.positions:set(positions)
slot.cu_q:set { 0, 16 }
slot.scale:fill(1 / 16)

-- Losses, flips and a digest of the bits after four steps, in phases of two. how: of q.onebit.random.
local function trained(how)
  return q.scope(function()
    local model = q.onebit.random(values, how)
    local list = {}
    for i, parameter in ipairs(model:trainable()) do list[i] = parameter.tensor end
    local adam = q.adamw_state(list)
    local bits = q.phases(model, { count = 3, steps = 2, keep = true, inertia = { levels = 1, q = 0.5 } })
    local result, program, loss = { losses = {}, flips = 0, bits = {} }, nil, nil
    for step = 0, 3 do
      if bits:begin(step / 4, step) then
        if program then
          program:free()
          loss:free()  -- which holds on to the program's memory
        end
        program, loss = q.capture(function()
          local value = model:loss(slot)
          value:backward()
          return value
        end)
      end
      q.rng_step(step)
      program:run()
      result.losses[step + 1] = loss:item()
      adam:step { lr = 5e-3 }
      result.flips = result.flips + bits:finish().flips
    end
    for _, layer in ipairs(model.linears) do result.bits[#result.bits + 1] = q.count_bits(layer.weight) end
    result.figures = model.stream and model.stream:figures()
    program:free()
    loss:free()
    bits:free()
    if model.stream then model.stream:close() end
    return result
  end)
end

local inside = trained { rule = "counter", seed = 4 }
collectgarbage()
collectgarbage()
local probe = q.onebit.random(values, { rule = "frozen", seed = 4, weights = "stream", stream_slack = 4e6 })
local figures = probe.stream:figures()
probe.stream:close()
probe = nil
collectgarbage()
collectgarbage()
local streamed = trained { rule = "counter", seed = 4, weights = "stream", host_budget = math.floor(figures.process + 14e6 + 0.5 * figures.total), stream_slack = 4e6 }
assert(streamed.figures.bytes > 2 * streamed.figures.total, "the limit did not make it stream")
assert(inside.flips > 0 and inside.flips == streamed.flips, ("flips: %d in memory, %d streamed"):format(inside.flips, streamed.flips))
for i, loss in ipairs(inside.losses) do assert(loss == streamed.losses[i], ("step %d: loss %.9g in memory, %.9g streamed"):format(i, loss, streamed.losses[i])) end
for i, count in ipairs(inside.bits) do assert(count == streamed.bits[i], "matrix " .. i .. ": other bits") end
local ok, err = pcall(q.onebit.random, values, { rule = "latent", weights = "stream" })
assert(not ok and tostring(err):find "keeps more than bits", tostring(err))
print(("one-bit weights, streamed: the bits of a model in memory; %.1f MB moved, %d flips"):format(streamed.figures.bytes / 1e6, streamed.flips))
