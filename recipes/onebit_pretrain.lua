-- Trains a language model of one-bit weights from nothing: integer counters take the place of gradients and moments.
--   qeng recipes/onebit_pretrain.lua --data text.jsonl --out onebit

local q = require "qeng"

local opt = q.options(q.device_options(q.onebit.options {
  [[Trains a model whose linear layers are 1 bit a weight, from nothing. Each weight has a counter of --levels + 1 values, fed with
pulses of the gradient, which is never kept; embeddings, norms, head and a scale for each row are floats under AdamW. What to
expect: better than frozen random bits, worse than training with 12 bytes a weight (recipes/onebit_compare.lua measures it).]],
}))
q.use_device(opt)

q.onebit.pretrain(opt, function(model) return q.inertia(model, q.onebit.inertia_options(opt)) end, "Pretraining with one-bit weights")
