-- A training loop to copy and change. Ctrl-C stops it with a checkpoint, and --resume goes on to the same bits.
--   qeng recipes/own_loop.lua --model ~/Qwen2.5-0.5B-Instruct --data my.jsonl
-- Without --model and --data a small model learns the task of the built-in demo.

local q = require "qeng"
local demo = require "qeng.train.demo"

local opt = q.options {
  "Trains LoRA adapters by a loop that is written out in the recipe; without --model and --data, on the built-in demo.",
  { "model", "", "Hugging Face folder, GGUF file, or its name on the hub", kind = "input" },
  { "data", "", "JSONL, a JSON array, plain text or a .qubgpu file", kind = "input" },
  "run",
  { "rank", 16, "LoRA rank", min = 1 },
  { "lr", 3e-3, "peak learning rate", min = 0 },
  { "steps", 200, "optimizer steps", min = 1 },
  "device",
}
q.use_device(opt)
if opt.model == "" and opt.data == "" then demo.inputs(opt) end

local model = q.load(opt.model):lora { rank = opt.rank, seed = opt.seed }
local data = q.packets(opt.data, { tokenizer = model.tokenizer, cache_dir = opt.out })
local adamw = q.adamw(model:trainable(), { lr = q.cosine(opt.lr, opt.steps, { warmup = 10 }) })
local run = q.run { model = model, data = data, optimizer = adamw, out = opt.out, row_tokens = 512, eval_share = 0.02,
  eval_every = 100, save_every = opt.save_every, seed = opt.seed, resume = opt.resume, overwrite = opt.overwrite,
  leaves = { "adapter" }, settings = opt, title = "A loop of your own" }

for _, batch in run:steps(opt.steps) do
  local loss = model:loss(batch)
  loss:backward()
  adamw:step { clip = 1.0 }
  run:log { loss = loss, lr = adamw.lr }
end

model:save_adapter(opt.out .. "/adapter")
print(opt.out .. ": adapter/ (PEFT), metrics.jsonl, report.html")
