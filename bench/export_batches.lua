-- Writes the packed batches that recipes/lora_qwen.lua trains on, and the adapter it starts from, for lora_vs_peft.py:
--   qeng bench/export_batches.lua --model DIR --data FILE.qubgpu --out DIR
local q = require "qeng"
local opt = q.options {
  { "model", nil, "model folder", required = true },
  { "data", nil, ".qubgpu file", required = true },
  { "out", nil, "folder to write", required = true },
  { "row_tokens", 512, "tokens of a row", min = 2 },
  { "steps", 20, "batches", min = 1 },
  { "rank", 16, "LoRA rank", min = 1 },
}
q.fs.mkdir(opt.out)
local file = q.ndp.open(opt.data)
local model = q.load(opt.model):lora { rank = opt.rank, seed = 0 }
model:save_adapter(opt.out .. "/adapter0")
local batches = file:batches { row_tokens = opt.row_tokens, rows = 1, seed = 0, split = "train",
  pad = model.tokenizer:id("<|endoftext|>") }
local list = q.json.array {}
for i = 1, opt.steps do
  local batch = batches:next()
  local info = batch:info()
  local micro_batch = q.micro_batch(info.tokens, info.max_documents)
  batch:load(micro_batch)
  local cu, ends = micro_batch.cu_q:table(), q.json.array {}
  for _, v in ipairs(cu) do if #ends == 0 or v > ends[#ends] then ends[#ends + 1] = v end end
  list[i] = { tokens = micro_batch.tokens:table(), targets = micro_batch.targets:table(),
    positions = micro_batch.positions:table(),
    cu_seqlens = ends }
end
q.fs.write(opt.out .. "/batches.json", q.json.encode { row_tokens = opt.row_tokens, batches = list })
