-- What a head that drafts tokens brings: greedy answers to held-out questions of the built-in demo, with guesses and
-- without in turns. The texts have to be the same.
--   qeng bench/mtp.lua --out DIR [--layers 12] [--times 3] [--dtype f32]     --model PATH measures another model
--
-- The demo's model is fully trained on its task, its head beside it. A step of its 0.8 million weights takes 0.1 ms, as
-- the head's does. So it is grown before it is measured: its matrices are padded with zeros to several times the width,
-- and layers are added that add nothing. It says what it said, and costs what a model of that size costs.

local demo = require "qeng.train.demo"
local draft_report = require "qeng.infer.draft_report"
local q = require "qeng"
local request = require "qeng.infer.request"
local tinydata = require "qeng.train.tinydata"

local opt = q.options {
  "Measures greedy decoding with the guesses of a model's own head, and without.",
  { "model", "", "folder or GGUF file that has such a head, instead of the demo's", kind = "input" },
  { "out", "mtp", "folder of the demo's model; what is there is not trained again" },
  { "steps", 400, "of its training, of 1024 tokens each", min = 1 },
  { "depth", 3, "tokens ahead that its head is trained for", min = 1, max = 8 },
  { "layers", 12, "that it is given; it has 3", min = 3 },
  { "times", 3, "its width is multiplied by", min = 1 },
  { "dtype", "f32", "of weights and activations while decoding", choices = { "f32", "bf16" } },
  { "batches", "1,8", "sequences at once" },
  { "prompts", 48, "held-out questions", min = 1 },
  { "rounds", 5, "of each, of which the fastest counts", min = 1 },
  { "always", false, "guess also where it does not pay" },
  { "threads", 2, "of the CPU", min = 1 },
}
q.device { device = "cpu", threads = opt.threads }

local function train()
  local model = q.load(demo.model(), { dtype = "f32", writable = true })
  model:full()
  model:attach_mtp { writable = true, seed = 1 }
  model:train_mtp { weight = 0.5, depth = opt.depth }
  demo.write_examples(opt.out .. "/examples.jsonl", 1, 20000)
  q.train {
    model = model, data = q.packets(opt.out .. "/examples.jsonl", { tokenizer = model.tokenizer, cache_dir = opt.out }),
    out = opt.out, steps = opt.steps, row_tokens = 512, rows = 2, lr = 2e-3, warmup = 20, clip = 1, seed = 1,
    eval_share = 0.01, eval_every = 200, save_every = 100, title = "A model and its head",
    resume = q.fs.kind(opt.out .. "/checkpoints") ~= nil,
  }
  model:save(opt.out .. "/model")
end

-- A parameter of the small model as the grown one has it. Norms divide by the mean over all columns, also the new ones.
local function padded(name, small, shape)
  local columns = small:shape()[#shape]
  if name:find "norm" then small = small * math.sqrt(columns / shape[1]) end
  if name == "mtp.fc.weight" then  -- reads two vectors side by side
    local of_token, of_hidden = small:split({ columns / 2, columns / 2 }, 2)
    local more = (shape[2] - columns) / 2
    small = q.concat({ of_token:pad(2, 0, more), of_hidden:pad(2, 0, more) }, 2)
  end
  for dim, size in ipairs(shape) do small = small:pad(dim, 0, size - small:shape()[dim]) end
  return small
end

local function grown(small)
  local parameters, values = {}, {}
  for _, list in ipairs { small.parameters, small.mtp.parameters } do
    for _, parameter in ipairs(list) do parameters[parameter.name] = parameter.tensor end
  end
  for key, value in pairs(small.config_values) do values[key] = value end
  for _, key in ipairs { "hidden_size", "intermediate_size", "num_attention_heads", "num_key_value_heads" } do
    values[key] = opt.times * values[key]
  end
  values.num_hidden_layers, values.rms_norm_eps = opt.layers, values.rms_norm_eps / opt.times
  local function fill(name, tensor)
    if parameters[name] then
      q.no_grad(q.scope, function() tensor:copy(padded(name, parameters[name], tensor:shape())) end)
    end
    return tensor
  end
  local model = q.random_model(values, {
    dtype = opt.dtype, weights = function(name, shape) return fill(name, q.zeros(shape, opt.dtype, "weights")) end,
  })
  model.tokenizer, model.dir = small.tokenizer, small.dir
  for _, parameter in ipairs(model:attach_mtp { from = "layer" }.parameters) do
    fill(parameter.name, parameter.tensor)
  end
  return model
end

q.fs.mkdir(opt.out)
local model
if opt.model ~= "" then
  model = q.load(opt.model)
  model:attach_mtp { from = "folder" }
else
  if not q.fs.kind(opt.out .. "/model") then train() end
  local small = q.load(opt.out .. "/model", { dtype = "f32" })
  small:attach_mtp { from = "folder" }
  model = grown(small)
end

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
