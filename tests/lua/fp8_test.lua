-- Products in E4M3: q.linear { fp8 = true } against numbers rounded here by E4M3's definition, and training with it.

local q = require "qeng"
local scratch = require "scratch"
local refused = scratch.refused

q.device { device = os.getenv "QENG_TEST_DEVICE" or "cpu", threads = 2 }

-- All magnitudes that E4M3 has.
local magnitudes = {}
for exponent = 0, 15 do
  for fraction = 0, 7 do
    if not (exponent == 15 and fraction == 7) then
      magnitudes[#magnitudes + 1] = exponent == 0 and fraction * 2 ^ -9 or (1 + fraction / 8) * 2 ^ (exponent - 7)
    end
  end
end

local function flat(tensor) return tensor:reshape({ tensor:elements() }):table() end

-- The nearest of them by a power of two that brings the largest to 448 or less.
local function rounded(list)
  local most, scale = 0, 1
  for _, x in ipairs(list) do most = math.max(most, math.abs(x)) end
  while most / scale > 448 do scale = scale * 2 end
  while most * 2 / scale <= 448 do scale = scale / 2 end
  local result = {}
  for i, x in ipairs(list) do
    local best, off = 1, math.huge
    for index, magnitude in ipairs(magnitudes) do
      local apart = math.abs(math.abs(x) / scale - magnitude)
      if apart < off or (apart == off and index % 2 == 1) then best, off = index, apart end
    end
    result[i] = (x < 0 and -1 or 1) * magnitudes[best] * scale
  end
  return result
end

-- c[i][j] = sum over l of a[i * di + l * dl] b[j * dj + l * dm], counted from 0.
local function product(a, di, dl, b, dj, dm, rows, columns, depth)
  local c = {}
  for i = 0, rows - 1 do
    for j = 0, columns - 1 do
      local sum = 0
      for l = 0, depth - 1 do sum = sum + a[1 + i * di + l * dl] * b[1 + j * dj + l * dm] end
      c[#c + 1] = sum
    end
  end
  return c
end
local function close(what, found, wanted, bound)
  local most = 0
  for i, x in ipairs(wanted) do
    most = math.max(most, math.abs(x))
    assert(math.abs(found[i] - x) <= bound, ("%s[%d]: %g, expected %g"):format(what, i, found[i], x))
  end
  assert(most > 100 * bound, what .. " are no numbers to compare")
end
local function plus(a, b)
  local sum = {}
  for i, x in ipairs(a) do sum[i] = x + b[i] end
  return sum
end

do  -- forward and backward, with a bias and an adapter, alone and beside a layer that is not rounded
  local rows, inputs, outputs, rank = 5, 12, 7, 2
  local function random(shape, seed, std) return q.randn(shape, { seed = seed, std = std or 1, dtype = "f32" }) end
  local x, w, v = random({ rows, inputs }, 1), random({ outputs, inputs }, 2, 0.1), random({ outputs, inputs }, 3, 0.1)
  local bias, a, b = random({ outputs }, 4), random({ rank, inputs }, 5, 0.3), random({ outputs, rank }, 6, 0.3)
  for _, tensor in ipairs { x, w, v, bias, a, b } do tensor:requires_grad(true) end
  local dy = random({ rows, outputs }, 7)
  local lora = { a = a, b = b, scale = 1.5 }
  local y = q.linears(x, { { weight = w, bias = bias, lora = lora, fp8 = true }, { weight = v } })
  ;(y[1] * dy + y[2] * dy):sum():backward()
  local X, W, V, DY = flat(x), flat(w), flat(v), flat(dy)
  local x8, w8, dy8 = rounded(X), rounded(W), rounded(DY)
  assert(math.abs(x8[1] - X[1]) > 1e-4, "rounding changes numbers")
  local u = product(X, inputs, 1, flat(a), inputs, 1, rows, rank, inputs)
  for i, value in ipairs(u) do u[i] = 1.5 * value end
  local expected = plus(product(x8, inputs, 1, w8, inputs, 1, rows, outputs, inputs),
    product(u, rank, 1, flat(b), rank, 1, rows, outputs, rank))
  for i, value in ipairs(expected) do expected[i] = value + flat(bias)[(i - 1) % outputs + 1] end
  close("y", flat(y[1]), expected, 1e-5)
  local du = product(DY, outputs, 1, flat(b), 1, rank, rows, rank, outputs)
  for i, value in ipairs(du) do du[i] = 1.5 * value end
  close("dx", flat(x:grad()), plus(plus(product(dy8, outputs, 1, w8, 1, inputs, rows, inputs, outputs),
    product(DY, outputs, 1, V, 1, inputs, rows, inputs, outputs)),
    product(du, rank, 1, flat(a), 1, inputs, rows, inputs, rank)), 1e-5)
  close("dw", flat(w:grad()), product(dy8, 1, outputs, x8, 1, inputs, outputs, inputs, rows), 1e-5)
  close("dv", flat(v:grad()), product(DY, 1, outputs, X, 1, inputs, outputs, inputs, rows), 1e-5)
  close("da", flat(a:grad()), product(du, 1, rank, X, 1, inputs, rank, inputs, rows), 1e-5)
  local alone = q.linear(x, w, { bias = bias, lora = lora, fp8 = true })
  for i, value in ipairs(flat(alone)) do assert(value == flat(y[1])[i], "other bits alone") end
end

local config = {
  model_type = "qwen2", architectures = q.json.array { "Qwen2ForCausalLM" }, vocab_size = 96, hidden_size = 64,
  num_hidden_layers = 2, num_attention_heads = 4, num_key_value_heads = 2, intermediate_size = 160,
  max_position_embeddings = 128, rms_norm_eps = 1e-6, rope_theta = 10000, tie_word_embeddings = true,
  hidden_act = "silu",
}
local tokens, targets = {}, {}
for i = 1, 32 do tokens[i], targets[i] = i * i % 96, (i + 1) * (i + 1) % 96 end
local wanted = q.keep(q.tensor(targets, "i32"))
local scale = q.keep(q.tensor({ 1 / 32 }, "f32"))

-- Losses of some steps, and a digest of what was trained.
local function train(dtype, mode, recompute)
  local model = q.random_model(config, { dtype = dtype, seed = 5, std = 0.05 })
  if mode == "full" then model:full() else model:lora { rank = 4, seed = 1, dropout = 0.1 } end
  model.recompute = recompute
  local tensors, losses = {}, {}
  for i, parameter in ipairs(model:trainable()) do tensors[i] = parameter.tensor end
  local adamw = q.adamw_state(tensors, {})
  for step = 1, 20 do
    q.scope(function()
      q.rng_step(step)
      local loss = q.lm_head_loss(model:hidden(tokens), model.head, wanted, scale)
      losses[step] = loss:item()
      loss:backward()
      adamw:step { lr = mode == "full" and 3e-3 or 2e-2, clip = 1 }
    end)
  end
  local digest = {}
  for i, tensor in ipairs(tensors) do digest[i] = tensor:hash() end
  return losses, table.concat(digest, " ")
end
for _, mode in ipairs { "full", "lora" } do
  local plain, coded, bits = train("bf16", mode), train("fp8", mode)
  assert(plain[20] < 0.7 * plain[1], "nothing was learned")
  local differs = 0
  for i, loss in ipairs(plain) do differs = math.max(differs, math.abs(coded[i] - loss) / loss) end
  assert(differs > 0 and differs < 0.12, ("losses differ by %g"):format(differs))
  local again, recomputed = train("fp8", mode, true)
  assert(bits == recomputed, "recomputed, other bits are trained")
  print(("%s: losses %.4f to %.4f, in fp8 %.4f to %.4f, at most %.2g apart"):format(mode, plain[1], plain[20], again[1],
    again[20], differs))
end

local model = q.random_model(config, { dtype = "fp8" })
assert(model.dtype == "bf16" and model.fp8 == 14)
for _, layer in ipairs(model.linears) do assert(layer.fp8, layer.name) end
-- Weights of blocks are not rounded once more.
local path = scratch.at "model"
model:save(path)
q.load(path):save_gguf(path .. ".gguf", { type = "q8_0" })
refused("is stored as q8_0", q.load, path .. ".gguf", { dtype = "fp8" })
local blocks = q.quantize(q.randn({ 4, 32 }, {}), "q8_0")
refused("fp8 rounds weights of f32 or bf16", q.linear, q.zeros({ 2, 32 }, "f32"), blocks, { fp8 = true })
assert(q.load(path, { dtype = "fp8" }).fp8 == 14)
refused("dtype fp8 is for training", q.plan, { model = config, mode = "inference", dtype = "fp8" })
local plan = q.plan { model = config, mode = "full", dtype = "fp8" }
assert(plan.dtype == "fp8" and tostring(plan):find ", fp8, full")
-- Experts and their routers stay in bf16.
config.model_type, config.architectures = "qwen3_moe", q.json.array { "Qwen3MoeForCausalLM" }
config.num_experts, config.num_experts_per_tok, config.moe_intermediate_size, config.head_dim = 4, 2, 32, 16
config.norm_topk_prob, config.decoder_sparse_step, config.mlp_only_layers = true, 1, {}
local mixture = q.random_model(config, { dtype = "fp8" })
for _, layer in ipairs(mixture.linears) do
  assert((layer.fp8 or false) == (layer.name:find "self_attn" ~= nil), layer.name)
end
print "ok"
