-- What a head that drafts tokens brings. A model of Qwen3.5's shape learns the built-in demo's task from nothing, its
-- head beside it, and answers held-out questions greedily, with guesses and without in turns. The texts have to be
-- the same. The model is kept in --out, and read by the next run.
--   qeng bench/mtp.lua --out /tmp/mtp [--steps 2500] [--layers 12] [--hidden 384] [--depth 3] [--type q8_0]

local demo = require "qeng.train.demo"
local draft_report = require "qeng.infer.draft_report"
local q = require "qeng"
local request = require "qeng.infer.request"
local tinydata = require "qeng.train.tinydata"

local opt = q.options {
  "Measures greedy decoding with the guesses of a model's own head, and without.",
  { "out", "mtp", "folder of the model and its data" },
  { "steps", 2500, "of training, of 512 tokens each", min = 1 },
  { "layers", 12, "of the model; every fourth has attention", min = 4 },
  { "hidden", 384, "its width, a multiple of 64", min = 64 },
  { "depth", 3, "tokens ahead that the head is trained for", min = 1, max = 8 },
  { "lr", 2e-3, "peak learning rate", min = 0 },
  { "type", "f32", "of the weights while decoding", choices = { "f32", "f16", "bf16", "q8_0" } },
  { "batches", "1,8", "sequences at once" },
  { "prompts", 48, "held-out questions", min = 1 },
  { "rounds", 5, "of each, of which the fastest counts", min = 1 },
  { "always", false, "guess also where it does not pay" },
  { "threads", 2, "of the CPU", min = 1 },
}
q.device { device = "cpu", threads = opt.threads }

local function train()
  local tokenizer = q.tokenizer(demo.model())
  local model = q.random_model({
    architectures = q.json.array { "Qwen3_5ForCausalLM" }, model_type = "qwen3_5_text", hidden_size = opt.hidden,
    intermediate_size = 64 * math.ceil(opt.hidden / 24), num_hidden_layers = opt.layers, num_attention_heads = opt.hidden / 64,
    num_key_value_heads = opt.hidden / 64, head_dim = 64, vocab_size = tokenizer:vocab_size(),
    max_position_embeddings = 1024, linear_num_key_heads = opt.hidden / 64, linear_num_value_heads = opt.hidden / 64,
    linear_key_head_dim = 64, linear_value_head_dim = 64, tie_word_embeddings = true,
    rope_parameters = {
      rope_type = "default", rope_theta = 1e4, partial_rotary_factor = 0.5,
      mrope_section = q.json.array { 6, 5, 5 }, mrope_interleaved = true,
    },
  }, { seed = 1, std = 0.05, dtype = "bf16" })
  model.tokenizer, model.dir = tokenizer, demo.model()
  model:full()
  model:attach_mtp { seed = 1 }
  model:train_mtp { weight = 0.5, depth = opt.depth }
  demo.write_examples(opt.out .. "/examples.jsonl", 1, 20000)
  q.train {
    model = model, data = q.packets(opt.out .. "/examples.jsonl", { tokenizer = tokenizer, cache_dir = opt.out }),
    out = opt.out, steps = opt.steps, row_tokens = 512, lr = opt.lr, warmup = 50, decay = 0.1, clip = 1,
    seed = 1, eval_share = 0.01, eval_every = 250, save_every = 100, title = "A model and its head",
    resume = q.fs.kind(opt.out .. "/checkpoints") ~= nil,
  }
  model:save(opt.out .. "/model")
end

q.fs.mkdir(opt.out)
if not q.fs.kind(opt.out .. "/model") then train() end
local path = ("%s/%s.gguf"):format(opt.out, opt.type)
if not q.fs.kind(path) then
  local model = q.load(opt.out .. "/model")
  model:attach_mtp()
  model:save_gguf(path, { type = opt.type })
end

local model = q.load(path, { dtype = opt.type ~= "bf16" and "f32" or nil })
model:attach_mtp()
local prompts = {}
for i, example in ipairs(tinydata.task(1, opt.prompts, "held_out")) do
  prompts[i] = request.ids(model, { messages = { example.messages[1] } })
end
q.fs.write(opt.out .. "/prompts.json", q.json.encode(prompts))
local batches = {}
for size in opt.batches:gmatch "%d+" do batches[#batches + 1] = tonumber(size) end
local rows = q.no_grad(draft_report.measure, model, prompts, {
  batches = batches, max_tokens = 96, rounds = opt.rounds, draft_always = opt.always,
})
print(table.concat(draft_report.lines(rows), "\n"))
