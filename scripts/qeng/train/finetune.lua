-- What fine-tuning recipes share: the options of the device, the model and the run, and the way from them to a trained model.

local advise = require "qeng.train.advise"
local checkpoint = require "qeng.train.checkpoint"
local data = require "qeng.data"
local estimates = require "qeng.train.estimates"
local hub = require "qeng.hub"
local lora = require "qeng.model.lora"
local models = require "qeng.model"
local names = require "qeng.gguf.names"
local new_tokens = require "qeng.model.new_tokens"
local q = require "qeng.core"
local peft = require "qeng.model.peft"
local route = require "qeng.train.route"
local samples = require "qeng.train.samples"
local run_folder = require "qeng.train.run_folder"
local train = require "qeng.train"

local run = {}

-- Adds to `declared` what every recipe that computes takes.
function run.device_options(declared)
  declared.device = { "auto", "where to compute: auto (a GPU if there is one), cpu, cuda, cuda:N", order = 90 }
  declared.threads = { 0, "CPU threads, 0: the cores this process may use", min = 0, max = 4096, integer = true, order = 91 }
  declared.device_budget = { nil, "memory that tensors may take on the device, as 8G: what needs more is an error", kind = "bytes", order = 92 }
  return declared
end

-- Adds how the weights of a model that is not trained in full are held.
function run.weight_options(declared)
  declared.weights = {
    nil, "map the file, copy it into memory (faster; by default if there is room), or stream it within --host-budget",
    choices = { "map", "copy", "stream" }, order = 93,
  }
  declared.host_budget = { nil, "with --weights stream: memory of the whole process, as 16G; with a GPU, of what is pinned, beyond which weights are read from the file", kind = "bytes", order = 94 }
  declared.stream_keep = { nil, "with --weights stream to a GPU: bytes of weights that stay there, as recipes/plan.lua says; by default half of what --device-budget leaves", kind = "bytes", order = 95 }
  return declared
end

function run.use_device(opt)
  q.device { device = opt.device, threads = opt.threads, budget = opt.device_budget }
end

local function list(text)
  local words = {}
  for word in text:gmatch("[^,%s]+") do words[#words + 1] = word end
  return #words > 0 and words or nil
end

-- Settings as they were resolved, for the output folder and the report.
local function settings_of(opt)
  local settings = {}
  for key, value in pairs(opt) do
    if type(value) ~= "table" and type(value) ~= "function" then settings[key] = value end
  end
  return settings
end

-- What says how an adapter is made, and so cannot be said of one that is there.
local of_new_adapters = { "rank", "alpha", "rslora", "targets", "rank_pattern", "alpha_pattern", "dora" }

-- What is trained: everything, a new adapter, or the one of opt.adapter.
local function prepare_mode(model, opt)
  if opt.mode == "full" then return model:full() end
  local from = opt.adapter and opt.adapter ~= "" and opt.adapter
  if not from then
    return model:lora {
      rank = opt.rank, alpha = opt.alpha > 0 and opt.alpha or nil, rslora = opt.rslora, dropout = opt.dropout,
      targets = list(opt.targets), ranks = lora.patterns(opt.rank_pattern, "--rank-pattern"), alphas = lora.patterns(opt.alpha_pattern, "--alpha-pattern"),
      dora = opt.dora, seed = opt.seed,
    }
  end
  model:load_adapter(from)
  local adapter = model.adapter
  adapter.dropout = opt.dropout
  for _, layer in ipairs(model.linears) do
    if layer.lora then layer.lora.dropout = opt.dropout end
  end
  io.stderr:write(("going on from %s: rank %d, alpha %g, %d parameters of %s\n"):format(from, adapter.rank, adapter.alpha, #adapter.parameters, table.concat(adapter.targets, ", ")))
end

local function check_adapter(opt)
  if not opt.adapter or opt.adapter == "" then return end
  if opt.mode == "full" then q.error("usage", "--adapter goes with --mode lora; to train every weight from there, merge it first: model:merge():save(DIR)") end
  for _, name in ipairs(of_new_adapters) do
    if opt.__given and opt.__given[name] then
      q.error("usage", ("--adapter %s brings its own: leave --%s out"):format(opt.adapter, (name:gsub("_", "-"))))
    end
  end
end

-- Held-out data come from one place, what looks at their loss needs some, and prompts have to be readable: before anything is done.
local function check_evaluation(opt)
  samples.read(opt.samples)
  if opt.eval_data ~= "" then
    if opt.__given and opt.__given.eval_share and opt.eval_share > 0 then
      q.error("usage", "--eval-data is what is held out: leave --eval-share out, which would hold out a part of --data as well")
    end
    opt.eval_share = 0
  end
  if opt.eval_data ~= "" or opt.eval_share > 0 then return end
  if opt.patience > 0 or opt.best then
    q.error("usage", ("%s needs held-out data: give --eval-data FILE, or an --eval-share"):format(opt.best and "--best" or "--patience"))
  end
end

-- Puts the trained weights of a folder that the run saved back on the model, to the bit.
local function restore(model, folder)
  local lora_mode = model.mode == "lora"
  local file = q.safetensors.open(lora_mode and folder .. "/adapter_model.safetensors" or folder)
  for _, parameter in ipairs(model:trainable()) do
    checkpoint.fill(parameter.tensor, file, (lora_mode and peft.prefix or "") .. parameter.name)
  end
  file:close()
end

-- What q.finetune takes where opt is silent: the defaults of recipes/lora_qwen.lua (a test compares them).
local defaults = {
  model = "", data = "", out = "out", mode = "lora", adapter = "", rank = 16, alpha = 0, rslora = false, dropout = 0, targets = "",
  rank_pattern = "", alpha_pattern = "", dora = false, add_tokens = "", train_embeddings = false, neftune = 0, steps = 0, epochs = 1, row_tokens = 512, rows = 1,
  accumulate = 1, lr = 2e-4, schedule = "cosine", warmup = 0, decay = 0, clip = 1.0, seed = 0, template = "auto", template_args = "", special = "parse", documents = "paragraph",
  eval_share = 0.05, eval_data = "", eval_every = 50, patience = 0, best = false, samples = "", sample_tokens = 64, tensorboard = false, save_every = 100, keep = 2, resume = false, recompute = false, eager = false, profile = false, gguf = false, sources = "", drop = 0, long = "auto", device = "auto", threads = 0,
}

-- given with the defaults, and checked: a script gives what it likes. A list stands for its words. __given: as q.options has it.
local function with_defaults(given, hooks)
  local told = given.__given or {}
  if not given.__given then
    for name in pairs(given) do told[name] = true end
  end
  local opt = setmetatable({}, { __index = { __given = told } })
  for name, value in pairs(defaults) do opt[name] = value end
  for name, value in pairs(given) do
    local wanted = type(defaults[name])
    if name == "template_args" and type(value) == "table" then value = q.json.encode(value) end
    if wanted == "string" and type(value) == "table" then value = table.concat(value, ",") end
    if wanted ~= "nil" and type(value) ~= wanted then q.error("value", ("finetune: %s is %s, expected a %s"):format(name, tostring(value), wanted)) end
    opt[name] = value
  end
  for _, name in ipairs { "model", "data" } do
    if opt[name] == "" and not (name == "data" and hooks.make_data) then
      q.error("value", ("finetune: %s is missing: q.finetune { model = FOLDER, data = FILE }"):format(name))
    end
  end
  if opt.mode ~= "lora" and opt.mode ~= "full" then q.error("value", ("finetune: mode is %s, expected lora or full"):format(opt.mode)) end
  return opt
end

-- Loads opt.model for opt.mode (lora, full), opens opt.data, trains, writes what opt asks for. hooks: prepare(model, file)
-- before, make_data(), which writes the data when opt.out is ready and returns its path, and the fields of q.train (on_step, weights).
-- Returns the model, the dataset and the result.
function run.finetune(opt, hooks)
  hooks = hooks or {}
  opt = with_defaults(opt, hooks)
  if opt.gguf and opt.mode == "full" then
    q.error("usage", "--gguf writes an adapter, and --mode full trains none: recipes/quantize.lua OUT/model MODEL.gguf writes the whole model")
  end
  check_adapter(opt)
  check_evaluation(opt)
  local place = run_folder.open(opt.out, { resume = opt.resume, overwrite = opt.overwrite, merge = opt.merge, gguf = opt.gguf,
    reads = { opt.model, opt.adapter or "", opt.eval_data, unpack(q.try(data.inputs, opt.data) or {}) } })
  opt.model, opt.data = hub.resolve_model(opt.model), hub.resolve_data(opt.data)
  if not hooks.make_data then data.inputs(opt.data) end  -- says so if they are not there
  local model = models.load(opt.model, { dtype = opt.dtype, writable = opt.mode == "full", weights = opt.weights, host_budget = opt.host_budget, stream_keep = opt.stream_keep })
  if not model.tokenizer then error(model.tokenizer_error, 0) end
  if opt.gguf then names.architecture(model.arch.hf) end  -- refuses before the training what it would after it
  model.recompute = opt.recompute
  place:clear()
  if hooks.make_data then opt.data = hooks.make_data() end
  local settings = settings_of(opt)
  local added = list(opt.add_tokens or "")
  if added then
    local fresh = new_tokens.add(model, added, opt.out .. "/tokenizer")
    io.stderr:write(("new tokens: %s; the vocabulary is %d\n"):format(#fresh > 0 and table.concat(fresh, " ") or "none, the tokenizer has them all", model.config.vocab))
  end
  local file = place:data(opt.data, { tokenizer = model.tokenizer, template = opt.template, template_args = opt.template_args, special = opt.special, documents = opt.documents, any_tokenizer = opt.any_tokenizer })
  local eval_data = opt.eval_data ~= "" and data.open(opt.eval_data, {
    tokenizer = model.tokenizer, template = opt.template, template_args = opt.template_args, special = opt.special, documents = opt.documents, any_tokenizer = opt.any_tokenizer,
    cache = opt.out .. "/eval.qubgpu" }) or nil
  prepare_mode(model, opt)
  if opt.mode ~= "full" and (added or opt.train_embeddings) then new_tokens.train_embeddings(model) end
  model.neftune = opt.neftune and opt.neftune > 0 and opt.neftune or nil
  if hooks.prepare then hooks.prepare(model, file) end

  local function save(dir)
    if opt.mode == "full" then model:save(dir) else model:save_adapter(dir) end
  end
  local result = train {
    model = model, data = file, out = opt.out, steps = opt.steps, epochs = opt.epochs, row_tokens = opt.row_tokens, long = opt.long, rows = opt.rows,
    accumulate = opt.accumulate, lr = opt.lr, schedule = opt.schedule, warmup = opt.warmup, decay = opt.decay, clip = opt.clip,
    seed = opt.seed, eval_share = opt.eval_share, eval_every = opt.eval_every, save_every = opt.save_every, keep = opt.keep,
    resume = opt.resume, overwrite = opt.overwrite, eager = opt.eager, profile = opt.profile, settings = settings, title = hooks.title, on_step = hooks.on_step,
    sources = route.source_list(opt.sources), drop = opt.drop, weights = hooks.weights,
    eval_data = eval_data, patience = opt.patience, on_eval = samples.new(model, opt.samples, { out = opt.out, template = opt.template, template_args = opt.template_args, max_tokens = opt.sample_tokens }),
    tensorboard = opt.tensorboard, pad = model.tokenizer:id("<|endoftext|>") or 0,
    on_begin = function() place:begin(settings) end,
    save_best = function() save(opt.out .. "/best") end,
  }
  if result.best and result.eval_before and result.best >= result.eval_before then
    io.stderr:write(("note: no evaluation was below the held-out loss before training, %.4f; the lowest was %.4f\n"):format(result.eval_before, result.best))
  end
  if (opt.best or opt.patience > 0) and result.best_step and result.best_step < result.steps then
    restore(model, opt.out .. "/best")
    io.stderr:write(("the weights of step %d are kept, with the lowest held-out loss, %.4f\n"):format(result.best_step, result.best))
  end
  estimates.came_true(model, {
    device = advise.device(opt.device).description, mode = opt.mode, rank = opt.rank, row_tokens = opt.row_tokens, rows = opt.rows, recompute = opt.recompute,
  }, result.metrics)
  save(opt.out .. (opt.mode == "full" and "/model" or "/adapter"))
  if opt.gguf then model:save_adapter_gguf(opt.out .. "/adapter.gguf") end
  return model, file, result
end

run.defaults = defaults
return run
