-- Fine-tunes a Qwen, Llama or Mistral model on your own data: LoRA adapters, or with --mode full every weight.
--   qeng recipes/lora_qwen.lua --model ~/Qwen2.5-0.5B-Instruct --data my.jsonl
-- Without --model and --data it runs the built-in demo: a small model learns a task it has never seen.

local q = require "qeng"
local demo = require "qeng.train.demo"

local opt = q.options(q.weight_options(q.device_options(q.data_options {
  "Fine-tunes a model on your data; without --model and --data, runs the built-in demo.",
  model = { "", "Hugging Face folder, GGUF file, or its name on the hub: org/name[@revision]", kind = "input", order = 1 },
  data = { "", "JSONL, a JSON array or a .qubgpu file, a folder of data, or a dataset's name on the hub: org/name[:config][:split]", kind = "input", order = 2 },
  out = { "out", "output folder", kind = "folder", order = 3 },
  mode = { "lora", "what is trained", choices = { "lora", "full" }, order = 4 },
  adapter = { "", "go on from this adapter (a PEFT folder or a GGUF file) instead of a new one", kind = "input", order = 4.5 },
  rank = { 16, "LoRA rank", min = 1, max = 4096, order = 5 },
  alpha = { 0, "LoRA alpha, 0: twice the rank", min = 0, integer = false, order = 6 },
  rslora = { false, "scale by alpha / sqrt(rank)", order = 7 },
  dropout = { 0, "dropout on the adapters' input", min = 0, max = 0.9, integer = false, order = 8 },
  targets = { "", "layers with adapters, by commas: roles, or ends of names as layers.3.mlp.up_proj (all linear layers)", order = 9 },
  rank_pattern = { "", "ranks of single layers: down_proj=32,layers.0.self_attn.q_proj=8", order = 9.1 },
  alpha_pattern = { "", "alphas of single layers, likewise", order = 9.2 },
  dora = { false, "also train the length of each weight row (DoRA)", order = 9.3 },
  add_tokens = { "", "special tokens to add, by commas; embedding and head are then trained beside the adapters", order = 9.35 },
  train_embeddings = { false, "train embedding and head beside the adapters", order = 9.36 },
  neftune = { 0, "strength of noise on embedded tokens while training, 5 is usual, 0: none", min = 0, integer = false, order = 9.4 },
  steps = { 0, "optimizer steps, 0: by --epochs", min = 0, integer = true, order = 10 },
  epochs = { 1, "passes over the data", min = 0, integer = false, order = 11 },
  row_tokens = { 512, "tokens of a packed row", min = 2, order = 12 },
  long = q.long_option(12.5),
  rows = { 1, "rows of a micro-batch", min = 1, order = 13 },
  accumulate = { 1, "micro-batches of an optimizer step", min = 1, order = 14 },
  lr = { 2e-4, "peak learning rate", min = 0, order = 15 },
  schedule = { "cosine", "learning-rate schedule", choices = { "constant", "linear", "cosine", "wsd" }, order = 16 },
  warmup = { 0, "steps of linear warm-up", min = 0, integer = true, order = 17 },
  decay = { 0, "weight decay of matrices", min = 0, integer = false, order = 18 },
  clip = { 1.0, "largest gradient norm, 0: none", min = 0, integer = false, order = 19 },
  seed = { 0, "seed of order, adapters and dropout", min = 0, integer = true, order = 20 },
  dtype = { nil, "f32 or bf16, by default the file's own (f16 is kept, and computed in f32)", choices = { "f32", "bf16" }, order = 21 },
  eval_share = { 0.05, "share of the documents held out", min = 0, max = 0.9, integer = false, order = 23 },
  eval_data = { "", "held-out data: a file as --data takes, instead of a share of that", kind = "input", order = 23.5 },
  patience = { 0, "end after so many evaluations without a lower held-out loss, with the best weights; 0: never", min = 0, integer = true, order = 24.5 },
  best = { false, "end with the weights of the lowest held-out loss", order = 24.6 },
  samples = { "", "a prompt, or a file of them (a line each), to answer at each evaluation", order = 24.7 },
  sample_tokens = { 64, "longest such answer", min = 1, integer = true, order = 24.8 },
  tensorboard = { false, "also write TensorBoard event files", order = 24.9 },
  eval_every = { 50, "steps between evaluations, 0: at the end", min = 0, order = 24 },
  save_every = { 100, "steps between checkpoints, 0: at the end", min = 0, order = 25 },
  keep = { 2, "checkpoints kept", min = 1, order = 26 },
  resume = { false, "go on from the newest checkpoint in --out", order = 27 },
  recompute = { false, "keep one activation a block, recompute the others", order = 28 },
  eager = { false, "run operation by operation instead of a captured program", order = 29 },
  profile = { false, "at the end, print where a pass spends its time and memory", order = 31 },
  merge = { false, "also write the merged model", order = 30 },
  gguf = { false, "also write the adapter as adapter.gguf, for llama.cpp", order = 30.5 },
  sources = { "", "train on packets of these sources only: names or numbers, by commas", order = 32 },
  drop = { 0, "CRC-Drop: share of the documents left out of each epoch, by chance", min = 0, max = 0.99, integer = false, order = 33 },
})))
if opt.merge and opt.weights == "stream" then q.error("usage", "--merge needs the whole model in memory: merge without --weights stream") end
q.use_device(opt)

if opt.model == "" and opt.data == "" then return demo.run(opt) end
if opt.model == "" or opt.data == "" then q.error("usage", "--model and --data go together; without both, the built-in demo runs") end

local model = q.finetune(opt, { title = "Fine-tuning " .. opt.model .. " on " .. opt.data })
print(("%s: %s, metrics.jsonl, report.html"):format(opt.out, opt.mode == "full" and "model/" or opt.gguf and "adapter/ (PEFT), adapter.gguf" or "adapter/ (PEFT)"))
if opt.merge and opt.mode == "lora" then
  model:merge():save(opt.out .. "/merged")
  print(opt.out .. "/merged: the model with the adapter merged in")
end
