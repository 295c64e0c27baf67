-- Turns a trained model into one of one-bit weights, a few blocks at a time. The model as it was teaches it.
--   qeng recipes/onebit_convert.lua --model DIR --data text.jsonl --out onebit

local q = require "qeng"

local opt = q.options {
  [[Replaces the linear weights of a trained model by their signs and a scale a row, block after block, and trains
counters, scales, embeddings, norms and head towards what the model was. Expect a model much worse than the one it
came from: the report shows the held-out loss of the text before, and after every evaluation.]],
  { "model", "", "Hugging Face folder or its name on the hub", kind = "input" },
  "model_file",
  { "data", "", "JSONL, a JSON array, plain text or a .qubgpu file", kind = "input" },
  { "out", "onebit", "output folder", kind = "folder" },
  { "steps", 1000, "optimizer steps", min = 1 },
  { "stages", 0, "groups of blocks, 0: each block its own", min = 0 },
  { "share", 0.5, "share of the steps until the last group is converted", min = 0, max = 1 },
  { "order", "last", "which block comes first", choices = { "last", "first" } },
  { "levels", 7, "top of a weight's counter: 1, 3, 7, 15 or 255" },
  { "q", 0, "share of a row's gradient that pulses at first, 0: 0.05 (255 levels have none)", min = 0, max = 0.99,
    number = true },
  { "temperature", 1, "of the teacher's distribution", min = 0.01, number = true },
  { "row_tokens", 256, "tokens of a packed row", min = 2 },
  "long",
  { "rows", 2, "rows of a step", min = 1 },
  { "lr", 1e-3, "peak learning rate of embeddings, norms and head", min = 0 },
  { "scale_rate", 1, "the same of row scales, as a share of --lr", min = 0, number = true },
  { "seed", 1, "seed of order and teacher", min = 0 },
  { "eval_share", 0.05, "share of the documents held out", min = 0, max = 0.9 },
  { "eval_every", 100, "steps between evaluations, 0: at the end", min = 0 },
  { "resume", false, "go on from the newest checkpoint in --out" },
  "data", "device",
}
q.use_device(opt)
if opt.model == "" or opt.data == "" then q.error("usage", "which model and data? --model DIR --data FILE") end
q.onebit.convert(opt)
