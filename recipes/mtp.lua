-- Gives a model a head that drafts tokens (MTP), trains it, measures what its guesses bring, or takes it off.
--   qeng recipes/mtp.lua --model out/merged --data my.jsonl
-- The texts stay the same: guesses are checked by the model. Fine-tune and merge first, then train the head.

local q = require "qeng"
local demo = require "qeng.train.demo"
local draft_report = require "qeng.infer.draft_report"
local held_out = require "qeng.train.held_out"

local opt = q.options {
  "Trains the head of a model that drafts tokens; without --model and --data, on the built-in demo.",
  { "model", "", "Hugging Face folder, or its name on the hub; not --out/model", kind = "input" },
  { "data", "", "JSONL, a JSON array, plain text or a .qubgpu file", kind = "input" },
  "run",
  { "from", "auto", "auto: the model's own head if it has one, else a copy of its last layer",
    choices = { "auto", "folder", "layer" } },
  { "input", "post", "the head reads the hidden state behind the model's last norm, or before it",
    choices = { "post", "pre" } },
  { "strip", false, "write the model without its head" },
  { "steps", 200, "optimizer steps, 0: only measure", min = 0 },
  { "depth", 3, "tokens ahead that it is trained for", min = 1, max = 8 },
  { "lr", 1e-3, "peak learning rate", min = 0 },
  { "row_tokens", 512, "tokens of a packed row", min = 2 },
  { "eval_share", 0.05, "share of the documents held out, which the guesses are measured on", min = 0.001, max = 0.9 },
  { "prompts", 16, "held-out documents that are gone on from", min = 1 },
  { "draft_vocab", 0, "guess only so many tokens, the most frequent of --data; their ids go to --out/draft_vocab.json; "
    .. "0: all", min = 0 },
  "dtype", "device",
}
q.use_device(opt)
if opt.model == "" and opt.data == "" then demo.inputs(opt) end

local leaves = { "model" }
local place = (opt.strip or opt.steps > 0) and q.run_folder(opt.out, { own = true, leaves = leaves,
  reads = { opt.model }, resume = opt.resume, overwrite = opt.overwrite })
local model = q.load(opt.model, { dtype = opt.dtype })
if opt.strip then
  model:strip_mtp()
  place:clear()
  model:save(opt.out .. "/model")
  return print(opt.out .. "/model: the model, saved without tensors of a head that drafts tokens")
end
model:attach_mtp { from = opt.from ~= "auto" and opt.from or nil, input = opt.input, writable = true, seed = opt.seed }
model:train_mtp { alone = true, depth = opt.depth }
local data = q.packets(opt.data, { tokenizer = model.tokenizer, cache_dir = opt.out })

local split = { row_tokens = opt.row_tokens, rows = 1, seed = opt.seed, eval_share = opt.eval_share }
local info = held_out.batches(data, split):next():info()
local micro_batch = q.micro_batch(info.tokens, info.max_documents)
local guessed
if opt.draft_vocab > 0 then
  local once = data:batches { row_tokens = opt.row_tokens, seed = opt.seed, eval_share = opt.eval_share, once = true }
  guessed = draft_report.most_frequent(once, micro_batch, opt.draft_vocab, model.config.vocab)
  q.fs.mkdir(opt.out)
  q.fs.write(opt.out .. "/draft_vocab.json", q.json.encode(guessed) .. "\n")
end
local function measure(when)
  local prompts = draft_report.prompts(held_out.batches(data, split), micro_batch, opt.prompts, 64)
  local rows = q.no_grad(draft_report.measure, model, prompts, { draft_vocab = guessed })
  print(when .. " " .. table.concat(draft_report.lines(rows), "\n" .. when .. " "))
end
measure "before:"
if opt.steps == 0 then return end

local adamw = q.adamw(model:trainable(), { lr = q.cosine(opt.lr, opt.steps, { warmup = math.floor(opt.steps / 20) }) })
local run = q.run { model = model, data = data, optimizer = adamw, out = opt.out, row_tokens = opt.row_tokens,
  eval_share = opt.eval_share, eval_every = 100, save_every = opt.save_every, seed = opt.seed, resume = opt.resume,
  overwrite = opt.overwrite, leaves = leaves, settings = opt, title = "A head that drafts tokens" }
for _, batch in run:steps(opt.steps) do
  local loss, _, _, further = model:loss(batch)
  loss:backward(unpack(further))
  adamw:step { clip = 1 }
  run:log { loss = loss, lr = adamw.lr }
end
measure "after:"
model:save(opt.out .. "/model")
print(opt.out .. "/model: the model with its head; model:engine { draft = \"mtp\" } guesses with it")
