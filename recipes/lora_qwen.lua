-- Fine-tunes a Qwen, Llama or Mistral model on your own data: LoRA adapters, or with --mode full every weight.
--   qeng recipes/lora_qwen.lua --model ~/Qwen2.5-0.5B-Instruct --data my.jsonl
-- Without --model and --data it runs the built-in demo: a small model learns a task that it has never seen.

local q = require "qeng"
local demo = require "qeng.train.demo"

local opt = q.options {
  "Fine-tunes a model on your data; without --model and --data, runs the built-in demo.",
  "finetune",
  { "merge", false, "also write the merged model" },
}
if opt.merge and opt.weights == "stream" then
  q.error("usage", "--merge needs the whole model in memory: merge without --weights stream")
end
if opt.merge and opt.mode == "full" then
  q.error("usage", "--merge folds an adapter in, and --mode full trains none: leave it out, OUT/model is whole")
end
q.use_device(opt)

local model
if opt.model == "" and opt.data == "" then
  model = demo.run(opt)
elseif opt.model == "" or opt.data == "" then
  q.error("usage", "--model and --data go together; without both, the built-in demo runs")
else
  model = q.finetune(opt, { title = "Fine-tuning " .. opt.model .. " on " .. opt.data })
end

local trained = opt.mode == "full" and "model/" or opt.gguf and "adapter/ (PEFT), adapter.gguf" or "adapter/ (PEFT)"
if opt.mtp > 0 then trained = trained .. " with its head that drafts tokens" end
print(("%s: %s, metrics.jsonl, report.html"):format(opt.out, trained))
if opt.merge then
  model:merge():save(opt.out .. "/merged")
  print(opt.out .. "/merged: the model with the adapter merged in")
end
