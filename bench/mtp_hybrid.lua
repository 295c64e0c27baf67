-- A small model of Qwen3.5's shape that learns the built-in demo's task from nothing, its head beside it, as a GGUF
-- file for bench/mtp_peer.py. A run that was stopped goes on.
--   qeng bench/mtp_hybrid.lua --out DIR [--steps 2500] [--layers 12] [--hidden 384] [--depth 3] [--type q8_0]

local demo = require "qeng.train.demo"
local q = require "qeng"

local opt = q.options {
  "Trains a small hybrid model with a head that drafts tokens.",
  { "out", "mtp", "folder of the model and its data" },
  { "steps", 2500, "of training, of 512 tokens each", min = 1 },
  { "layers", 12, "of the model; every fourth has attention", min = 4 },
  { "hidden", 384, "its width, a multiple of 64", min = 64 },
  { "depth", 3, "tokens ahead that the head is trained for", min = 1, max = 8 },
  { "lr", 2e-3, "peak learning rate", min = 0 },
  { "type", "q8_0", "of the file", choices = { "f32", "f16", "bf16", "q8_0" } },
}
q.device { device = "cpu" }

local tokenizer, heads = q.tokenizer(demo.model()), opt.hidden / 64
local model = q.random_model({
  architectures = q.json.array { "Qwen3_5ForCausalLM" }, model_type = "qwen3_5_text", hidden_size = opt.hidden,
  intermediate_size = 64 * math.ceil(opt.hidden / 24), num_hidden_layers = opt.layers, num_attention_heads = heads,
  num_key_value_heads = heads, head_dim = 64, vocab_size = tokenizer:vocab_size(), max_position_embeddings = 1024,
  linear_num_key_heads = heads, linear_num_value_heads = heads, linear_key_head_dim = 64, linear_value_head_dim = 64,
  tie_word_embeddings = true,
  rope_parameters = {
    rope_type = "default", rope_theta = 1e4, partial_rotary_factor = 0.5, mrope_section = q.json.array { 6, 5, 5 },
    mrope_interleaved = true,
  },
}, { seed = 1, std = 0.05, dtype = "bf16" })
model.tokenizer, model.dir = tokenizer, demo.model()
model:full()
model:attach_mtp { seed = 1 }
model:train_mtp { weight = 0.5, depth = opt.depth }
q.fs.mkdir(opt.out)
demo.write_examples(opt.out .. "/examples.jsonl", 1, 20000)
q.train {
  model = model, data = q.packets(opt.out .. "/examples.jsonl", { tokenizer = tokenizer, cache_dir = opt.out }),
  out = opt.out, steps = opt.steps, row_tokens = 512, lr = opt.lr, warmup = 50, decay = 0.1, clip = 1, seed = 1,
  eval_share = 0.01, eval_every = 250, save_every = 100, title = "A model and its head",
  resume = q.fs.kind(opt.out .. "/checkpoints") ~= nil,
}
model:save_gguf(opt.out .. "/model.gguf", { type = opt.type })
