-- Pretrains the model of the built-in demo (recipes/tiny) from nothing: qeng.train.tinydata makes the text, a tokenizer
-- is learned from it, and a small Qwen2 begins with random weights.
--   qeng recipes/pretrain_tiny.lua --out tiny

local q = require "qeng"
local tinydata = require "qeng.train.tinydata"

local opt = q.options {
  "Pretrains the small Qwen2 model of the built-in demo; --out/model is a Hugging Face folder.",
  { "out", "tiny", "output folder", kind = "folder" },
  { "records", 160000, "stories and dialogues made", min = 100 },
  { "epochs", 1, "passes over them", min = 0, number = true },
  { "row_tokens", 512, "tokens of a packed row", min = 64 },
  "long",
  { "rows", 1, "rows of an optimizer step", min = 1 },
  { "lr", 3e-3, "peak learning rate", min = 0 },
  { "seed", 1, "seed of text, weights and order", min = 0 },
  { "resume", false, "go on from the newest checkpoint in --out" },
  "device",
}
q.use_device(opt)

local function records() return tinydata.pretrain(opt.seed, opt.records) end
local function write_json(name, value)
  q.fs.write(opt.out .. "/model/" .. name, q.json.encode(value, { pretty = true }) .. "\n")
end

local place = q.run_folder(opt.out, { resume = opt.resume, overwrite = opt.overwrite })
place:clear()

-- The tokenizer: whole words of the small world, and all bytes for everything else.
q.fs.mkdir(opt.out .. "/model")
local texts = {}
for record in tinydata.pretrain(opt.seed, math.min(opt.records, 20000)) do
  texts[#texts + 1] = record.text
  for _, message in ipairs(record.messages or {}) do texts[#texts + 1] = message.role .. "\n" .. message.content end
end
local specials = { "<|endoftext|>", "<|im_start|>", "<|im_end|>" }
q.train_bpe(texts, { vocab = 1024, specials = specials, out = opt.out .. "/model" })
write_json("tokenizer_config.json", {
  tokenizer_class = "Qwen2Tokenizer", eos_token = "<|im_end|>", pad_token = "<|endoftext|>", model_max_length = 1024,
  add_prefix_space = false, clean_up_tokenization_spaces = false,
  chat_template = "{% for message in messages %}{{ '<|im_start|>' + message['role'] + '\\n' + message['content'] "
    .. "+ '<|im_end|>\\n' }}{% endfor %}{% if add_generation_prompt %}{{ '<|im_start|>assistant\\n' }}{% endif %}",
})
local tokenizer = q.tokenizer(opt.out .. "/model")
local ending = { tokenizer:id "<|im_end|>", tokenizer:id "<|endoftext|>" }
write_json("generation_config.json", { eos_token_id = ending, pad_token_id = ending[2], do_sample = false })

-- The dataset: every token is a target, what users say too.
local template = q.chat_template(tokenizer, "chatml")
local meta = { tokenizer_hash = tokenizer:hash(), template = "chatml" }
local writer = q.ndp.create(opt.out .. "/data.qubgpu", { meta = meta })
for record in records() do writer:add((template:encode(record))) end
writer:finish()

local model = q.random_model({
  architectures = { "Qwen2ForCausalLM" }, model_type = "qwen2", vocab_size = 1024, hidden_size = 128,
  num_hidden_layers = 3, num_attention_heads = 4, num_key_value_heads = 4, intermediate_size = 384,
  max_position_embeddings = 1024, rms_norm_eps = 1e-6, rope_theta = 10000, hidden_act = "silu",
  tie_word_embeddings = true, eos_token_id = ending[1], bos_token_id = ending[2],
}, { std = 0.06, seed = opt.seed })
q.train {
  model = model:full(), data = q.ndp.open(opt.out .. "/data.qubgpu"), out = opt.out, epochs = opt.epochs,
  row_tokens = opt.row_tokens, long = opt.long, rows = opt.rows, lr = opt.lr, warmup = 100, lr_floor = 0.05,
  decay = 0.1, beta2 = 0.99, clip = 1.0, seed = opt.seed, resume = opt.resume, overwrite = opt.overwrite,
  eval_share = 0.005, eval_every = 1000, save_every = 1000, pad = ending[2], title = "Pretraining the demo's model",
}
model.dir = opt.out .. "/model"
model:save(opt.out .. "/model", { dtype = "bf16" })
print(opt.out .. "/model: a Hugging Face folder")
