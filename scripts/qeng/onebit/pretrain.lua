-- Pretrains a one-bit model from nothing, on packets. The recipes onebit_pretrain and onebit_phased share it.

local data = require "qeng.data"
local hub = require "qeng.hub"
local onebit = require "qeng.onebit"
local options = require "qeng.console.options"
local q = require "qeng.core"
local run_folder = require "qeng.train.run_folder"
local train = require "qeng.train"
require "qeng.console.shared"
require "qeng.train.trained_data"

local pretrain = {}

-- The options of both.
options.set("onebit", {
  { "data", "", "JSONL, a JSON array, plain text or a .qubgpu file, or a dataset's name on the hub", kind = "input" },
  { "tokenizer", "demo", "folder or hub name with the tokenizer (demo: that of the built-in demo)", kind = "input" },
  "run", { "out", "onebit", "output folder", kind = "folder" },
  { "hidden", 256, "width of the model, a multiple of 32", min = 32 },
  { "layers", 6, "blocks", min = 1 },
  { "heads", 4, "attention heads", min = 1 },
  { "ffn", 704, "inner width of the MLP, a multiple of 32", min = 32 },
  { "levels", 7, "top of a weight's counter: 1, 3, 7, 15 or 255" },
  { "q", 0, "share of a row's gradient that pulses at first, 0: what suits the levels", min = 0, max = 0.99,
    number = true },
  { "k", 0, "with 255 levels: steps of a counter for a gradient of the row's rms, 0: 10", min = 0, number = true },
  { "friction", -1, "how far a gradient counts for the sign a weight has, in rms of its row, -1: what suits the levels",
    min = -1, max = 1, number = true },
  { "target", 0, "flips per thousand weights and step to steer to, 0: by --q", min = 0, number = true },
  { "steps", 0, "optimizer steps, 0: by --epochs", min = 0 },
  { "epochs", 1, "passes over the data", min = 0, number = true },
  { "row_tokens", 256, "tokens of a packed row", min = 2 },
  "long",
  { "rows", 4, "rows of a micro-batch", min = 1 },
  { "accumulate", 1, "micro-batches of a step of the floats; bits learn at each", min = 1 },
  { "lr", 6e-3, "peak learning rate of embeddings, norms and head", min = 0 },
  { "scale_rate", 0.3, "the same of row scales, as a share of --lr", min = 0 },
  { "warmup", 50, "steps of linear warm-up", min = 0 },
  { "seed", 1, "seed of weights and order", min = 0 },
  { "dtype", "f32", "of activations and floats", choices = { "f32", "bf16" } },
  { "eval_share", 0.02, "share of the documents held out", min = 0, max = 0.9 },
  { "eval_every", 200, "steps between evaluations, 0: at the end", min = 0 },
  { "save_every", 200, "steps between checkpoints, 0: at the end", min = 0 },
  { "weights", "copy", "bits in memory, or streamed from a temporary file within --host-budget",
    choices = { "copy", "stream" } },
  { "host_budget", nil, "memory of the whole process with --weights stream, as 16G", kind = "bytes" },
  { "stream_keep", nil, "on a GPU with --weights stream: bytes of bits that stay there, as 1G; by default half of what "
    .. "--device-budget leaves", kind = "bytes" },
  { "recompute", false, "keep one activation a block, recompute the others" },
  "data", "device",
})

-- The options that q.inertia takes.
function pretrain.inertia(opt)
  return {
    levels = opt.levels, friction = opt.friction >= 0 and opt.friction or nil, q = opt.q > 0 and opt.q or nil,
    k = opt.k > 0 and opt.k or nil, target = opt.target > 0 and opt.target or nil,
  }
end

-- learn(model) returns q.inertia or q.phases. Trains and writes opt.out/model, a folder that q.load reads. Returns the
-- model and q.train's result.
function pretrain.run(opt, learn, title)
  if opt.data == "" then q.error("usage", "which data? --data FILE") end
  if opt.weights ~= "stream" and (opt.host_budget or opt.stream_keep) then
    q.error("usage", "--host-budget and --stream-keep are of streamed bits: add --weights stream, or leave them out")
  end
  onebit.check_sizes(opt)
  local place = run_folder.open(opt.out, { resume = opt.resume, overwrite = opt.overwrite,
    reads = { opt.tokenizer, unpack(q.try(data.inputs, opt.data) or {}) } })
  local folder = opt.tokenizer == "demo" and q.fs.find "recipes/tiny" or hub.resolve_model(opt.tokenizer)
  local tokenizer, from = q.tokenizer(folder), hub.resolve_data(opt.data)
  data.inputs(from)  -- says so if they are not there
  place:clear()
  local settings = options.settings(opt)
  local file = place:data(from, { tokenizer = tokenizer, template = opt.template, template_args = opt.template_args,
    special = opt.special, documents = opt.documents })
  local model = onebit.random({
    architectures = { "Qwen3ForCausalLM" }, model_type = "qwen3", vocab_size = tokenizer:vocab_size(),
    hidden_size = opt.hidden, num_hidden_layers = opt.layers,
    num_attention_heads = opt.heads, num_key_value_heads = opt.heads, head_dim = math.floor(opt.hidden / opt.heads),
    intermediate_size = opt.ffn,
    max_position_embeddings = math.max(1024, opt.row_tokens), rms_norm_eps = 1e-6, rope_theta = 10000,
    hidden_act = "silu", tie_word_embeddings = false,
  }, { rule = "counter", seed = opt.seed, dtype = opt.dtype, weights = opt.weights, host_budget = opt.host_budget,
    stream_keep = opt.stream_keep })
  model.tokenizer, model.recompute = tokenizer, opt.recompute
  print(("%.2f million one-bit weights, %.2f million floats"):format(onebit.weights(model) / 1e6,
    (model.embed:elements() + model.head:elements()) / 1e6))
  local bits = learn(model)
  local result = train {
    model = model, bits = bits, data = file, out = opt.out, steps = opt.steps, epochs = opt.epochs,
    row_tokens = opt.row_tokens, long = opt.long, rows = opt.rows,
    accumulate = opt.accumulate, lr = opt.lr, scale_rate = opt.scale_rate, lr_floor = 0.1, warmup = opt.warmup,
    beta2 = 0.99, eps = 1e-10, clip = 0, seed = opt.seed,
    eval_share = opt.eval_share, eval_every = opt.eval_every, save_every = opt.save_every, resume = opt.resume,
    overwrite = opt.overwrite, settings = settings, title = title,
    pad = tokenizer:id "<|endoftext|>" or 0, on_begin = function() place:begin(settings) end,
  }
  model.dir = folder
  model:save(opt.out .. "/model")
  if result.eval_before and result.eval_loss then
    print(("held-out loss: %.4f before, %.4f after"):format(result.eval_before, result.eval_loss))
  end
  print(opt.out .. "/model: bits and floats, which q.load reads; report.html, metrics.jsonl beside it")
  return model, result
end

return pretrain
