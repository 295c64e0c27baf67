-- Trains a language model of one-bit weights from nothing. Integer counters take the place of gradients and moments.
--   qeng recipes/onebit_pretrain.lua --data text.jsonl --out onebit

local q = require "qeng"

local opt = q.options {
  [[Trains a model whose linear layers are 1 bit a weight, from nothing. Each weight has a counter of --levels + 1
values. Pulses of the gradient feed it, and the gradient is never kept; embeddings, norms, head and a scale for each
row are floats under AdamW. What to expect: better than frozen random bits, worse than training with 12 bytes a
weight (recipes/onebit_compare.lua measures it).]],
  "onebit",
}
q.use_device(opt)

q.onebit.pretrain(opt, function(model) return q.inertia(model, q.onebit.inertia_options(opt)) end,
  "Pretraining with one-bit weights")
