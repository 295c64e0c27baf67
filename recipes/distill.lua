-- Teaches a model what another one knows: LoRA adapters learn a teacher's distribution over the next token, of a larger
-- model with the same tokenizer, or of the same model before it was quantized. Ctrl-C and --resume as in own_loop.lua.
--   qeng recipes/distill.lua --model small.Q4_0.gguf --teacher ~/Qwen2.5-7B-Instruct --data my.jsonl

local q = require "qeng"

local opt = q.options {
  "Trains LoRA adapters on a teacher's distribution over the next token.",
  "model",
  { "teacher", nil, "the model that teaches, as --model", kind = "input", required = true },
  { "data", nil, "JSONL, a JSON array, plain text or a .qubgpu file", kind = "input", required = true },
  "run",
  { "temperature", 1, "softens both distributions", min = 0.01, number = true },
  { "top", 0, "learn the teacher's so many likeliest tokens alone, 0: all", min = 0 },
  { "alpha", 0, "the share of the data's own tokens in the loss", min = 0, max = 1, number = true },
  { "row_tokens", 512, "tokens of a packed row", min = 2 },
  { "rank", 16, "LoRA rank", min = 1 },
  { "lr", 2e-4, "peak learning rate", min = 0 },
  { "steps", 200, "optimizer steps", min = 1 },
  { "eval_share", 0.02, "share of the documents held out", min = 0, max = 0.9 },
  "device",
}
q.use_device(opt)

local model = q.load(opt.model, { dtype = opt.dtype, model_file = opt.model_file })
model:lora { rank = opt.rank, seed = opt.seed }
local teacher = q.load(opt.teacher, { dtype = opt.dtype })
if model.tokenizer:hash() ~= teacher.tokenizer:hash() then
  q.error("value", ("distill: %s and %s have other tokenizers: what one says of a token means nothing to the other")
    :format(opt.model, opt.teacher))
end
local classes = math.min(model.head:shape()[1], teacher.head:shape()[1])  -- sizes of one family pad them differently
local data = q.packets(opt.data, { tokenizer = model.tokenizer, cache_dir = opt.out })
local adamw = q.adamw(model:trainable(), { lr = q.cosine(opt.lr, opt.steps, { warmup = math.floor(opt.steps / 20) }) })
local run = q.run { model = model, data = data, optimizer = adamw, out = opt.out, row_tokens = opt.row_tokens,
  eval_share = opt.eval_share, eval_every = 50, save_every = opt.save_every, seed = opt.seed, resume = opt.resume,
  overwrite = opt.overwrite, leaves = { "adapter" }, settings = opt, title = "Distillation" }

local function loss_of(batch)
  local logits = model:packed_logits(batch):slice(2, 0, classes)
  local wanted = q.no_grad(teacher.packed_logits, teacher, batch):slice(2, 0, classes)
  local loss = q.losses.distill(logits, wanted,
    { temperature = opt.temperature, top = opt.top, weight = batch.targets:ge(0) })
  if opt.alpha == 0 then return loss:compute() end
  return ((1 - opt.alpha) * loss + opt.alpha * q.losses.cross_entropy(logits, batch.targets)):compute()
end

for _, batch in run:steps(opt.steps) do
  local loss = q.scope(function()
    local loss = loss_of(batch)
    loss:backward()
    adamw:step { clip = 1.0 }
    return loss
  end)
  run:log { loss = loss, lr = adamw.lr }
end
model:save_adapter(opt.out .. "/adapter")
print(opt.out .. ": adapter/ (PEFT), metrics.jsonl, report.html")
