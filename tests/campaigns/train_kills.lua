-- One run of the campaign train_kills.sh: full training of a small model on packets of three sources and two
-- destinations, by a curriculum, with CRC-Drop. With HYBRID the model is one of gated delta nets (Qwen3.5). With ONEBIT
-- it is one of `phased` below: a model of one-bit weights that learns in phases, or a model that becomes one. With
-- SMALL moments are in 8 bits, model and gradients in bf16.
--   qeng train_kills.lua MODEL DATA OUT
package.path = arg[0]:match "^(.*/)" .. "../lua/?.lua;" .. package.path
local q = require "qeng"
local from, data, out = assert(arg[1], "usage: train_kills.lua MODEL DATA OUT"), arg[2], arg[3]
local steps, onebit = tonumber(os.getenv "STEPS" or 120), os.getenv "ONEBIT"
local small = os.getenv "SMALL"
if q.fs.kind(data) == nil then
  local writer = q.ndp.create(data)
  for i = 1, 600 do
    local tokens = {}
    for t = 1, 4 + i % 23 do tokens[t] = (i * 31 + t * t * 7) % 300 end
    writer:add(tokens, nil, { src = 1 + i % 3, dst = not onebit and (i % 4 == 0 and 3 or i % 4 == 1 and 2) or 0 })
  end
  writer:finish()
end
local phased = {  -- options of q.phases
  layer = { count = 3, keep = true, inertia = { levels = 7, q = 0.4 } },
  rows = { count = 4, by = "rows", inertia = { levels = 255, k = 60 } },
  gradient = { count = 3, by = "gradient", inertia = { levels = 3, target = 3 } },
  bop = { count = 2, keep = true, inertia = { bop = true, gamma = 0.2, tau = 0.7 } },
}
if onebit and onebit ~= "convert" and not phased[onebit] then
  q.error("usage", "ONEBIT is layer, rows, gradient, bop or convert")
end
q.device { device = "cpu", threads = 1 }
q.fs.mkdir(out)
q.fs.sweep(out)
local model, bits
if onebit then
  local values = {
    architectures = { "Qwen3ForCausalLM" }, model_type = "qwen3", vocab_size = 300, hidden_size = 64,
    num_hidden_layers = 3, num_attention_heads = 2,
    num_key_value_heads = 1, head_dim = 32, intermediate_size = 96, max_position_embeddings = 128, rms_norm_eps = 1e-6,
    rope_theta = 10000, hidden_act = "silu",
    tie_word_embeddings = false }
  if onebit == "convert" then
    model = q.random_model(values, { seed = 5, dtype = "f32" })
    bits = require("qeng.onebit.convert").progressive(model, { steps = steps, inertia = { levels = 3, q = 0.4 } })
  else
    model = q.onebit.random(values, { rule = onebit == "bop" and "bop" or "counter", seed = 5 })
    phased[onebit].steps = 10
    bits = q.phases(model, phased[onebit])
  end
elseif os.getenv "HYBRID" then
  model = require("hybrid_model").fresh { vocab_size = 300 }:full()
else
  local how = small and { dtype = "bf16", writable = true } or { writable = true }
  model = q.load(from, how):full { gradients = small and "bf16" or nil }
end
q.train {
  model = model, bits = bits, data = q.ndp.open(data), out = out, steps = steps, row_tokens = 48, rows = 2,
  accumulate = 2, lr = 1e-3, decay = 0.1, moment_bits = small and 8 or 32,
  seed = 7, eval_share = 0.1, eval_every = 50, save_every = 3, resume = true, drop = 0.1,
  weights = function(step, source) return source == 1 and 1 or source == 2 and step / steps or 0.5 end,
}
model:save(out .. "/model")
