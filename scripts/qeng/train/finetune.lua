-- q.finetune: its options, and the way from them to a trained model.

local advise = require "qeng.train.advise"
local checkpoint = require "qeng.train.checkpoint"
local data = require "qeng.data"
local estimates = require "qeng.train.estimates"
local gguf_lora = require "qeng.gguf.lora"
local hub = require "qeng.hub"
local mode = require "qeng.train.mode"
local models = require "qeng.model"
local mtp = require "qeng.model.mtp"
local names = require "qeng.gguf.names"
local new_tokens = require "qeng.model.new_tokens"
local options = require "qeng.console.options"
local q = require "qeng.core"
local peft = require "qeng.model.peft"
local ranks = require "qeng.train.ranks"
local resume = require "qeng.train.resume"
local route = require "qeng.train.route"
local samples = require "qeng.train.samples"
local shards = require "qeng.train.shards"
local run_folder = require "qeng.train.run_folder"
local train = require "qeng.train"
local value_heads = require "qeng.model.value_heads"
require "qeng.console.shared"
require "qeng.train.trained_data"

-- The options of q.finetune with their defaults.
options.set("finetune", {
  ranks = true,
  { "model", "", "Hugging Face folder, GGUF file, or its name on the hub: org/name[@revision]", kind = "input" },
  "model_file",
  { "data", "", "JSONL, a JSON array or a .qubgpu file, a folder of data, a dataset's name on the hub: "
    .. "org/name[:config][:split], or what a peer serves: peer:HOST:PORT/NAME", kind = "input" },
  "run",
  { "mode", "lora", "what is trained", choices = { "lora", "full" } },
  { "adapter", "", "go on from this adapter (a PEFT folder or a GGUF file) instead of a new one", kind = "input" },
  { "rank", 16, "LoRA rank", min = 1, max = 4096 },
  { "alpha", 0, "LoRA alpha, 0: twice the rank", min = 0, number = true },
  { "rslora", false, "scale by alpha / sqrt(rank)" },
  { "dropout", 0, "dropout on the adapters' input; with --adapter by default its own", min = 0, max = 0.9,
    number = true },
  { "targets", {}, "layers with adapters: roles, or ends of names as layers.3.mlp.up_proj (all linear layers; where "
    .. "there are experts, those of attention)" },
  { "rank_pattern", {}, "ranks of single layers: down_proj=32,layers.0.self_attn.q_proj=8", kind = "map" },
  { "alpha_pattern", {}, "alphas of single layers, likewise", kind = "map" },
  { "dora", false, "also train the length of each weight row (DoRA)" },
  { "add_tokens", {}, "special tokens to add; embedding and head are then trained beside the adapters" },
  { "train_embeddings", false, "train embedding and head beside the adapters" },
  { "router_aux_loss", 0, "weight of the loss that balances experts; 0.001 is usual, 0: none, or what config.json says",
    min = 0, number = true },
  { "mtp", 0, "weight of the loss of a head that drafts tokens (MTP) and is trained beside, 0.3 is usual, 0: none",
    min = 0, number = true },
  { "mtp_depth", 1, "tokens ahead that this head is trained for", min = 1, max = 8 },
  { "neftune", 0, "strength of noise on embedded tokens while training, 5 is usual, 0: none", min = 0, number = true },
  { "steps", 0, "optimizer steps, 0: by --epochs", min = 0 },
  { "epochs", 1, "passes over the data", min = 0, number = true },
  { "row_tokens", 512, "tokens of a packed row", min = 2 },
  "long",
  { "rows", 1, "rows of a micro-batch", min = 1 },
  { "accumulate", 1, "micro-batches of an optimizer step", min = 1 },
  { "optim", "adamw", "what updates the parameters", choices = { "adamw", "lion", "muon", "sgd", "adafactor" } },
  { "moment_bits", 32, "bits of AdamW's moments; 8 takes a quarter of their memory", choices = { 32, 8 } },
  { "zero", 0, "what each of several ranks (mpirun) keeps of its part of the parameters alone: 0 nothing, 1 the "
    .. "optimizer's state; with --mode full 2 gradients too, 3 weights too", choices = { 0, 1, 2, 3 } },
  { "gradients", "f32", "with --mode full in bf16, what weights of linear layers gather; bf16 halves its memory, and "
    .. "rounds each sum", choices = { "f32", "bf16" } },
  { "lr", 2e-4, "peak learning rate", min = 0 },
  { "schedule", "cosine", "learning-rate schedule", choices = { "constant", "linear", "cosine", "wsd" } },
  { "warmup", 0, "steps of linear warm-up", min = 0 },
  { "decay", 0, "weight decay of matrices", min = 0, number = true },
  { "clip", 1, "largest gradient norm, 0: none", min = 0, number = true },
  { "dtype", nil, "f32 or bf16, by default the file's own (f16 is kept, and computed in f32); fp8: bf16 whose linear "
    .. "layers multiply numbers rounded to E4M3, for GPUs that do (8.9 and later)",
    choices = { "f32", "bf16", "fp8" } },
  { "eval_share", 0.05, "share of the documents held out", min = 0, max = 0.9 },
  { "eval_data", "", "held-out data: a file as --data takes, instead of a share of that", kind = "input" },
  { "eval_every", 50, "steps between evaluations, 0: at the end", min = 0 },
  { "patience", 0, "end after so many evaluations without a lower held-out loss, with the best weights; 0: never",
    min = 0 },
  { "best", false, "end with the weights of the lowest held-out loss" },
  { "samples", "", "a prompt, or a file of them (a line each), to answer at each evaluation" },
  { "sample_tokens", 64, "longest such answer", min = 1 },
  { "tensorboard", false, "also write TensorBoard event files" },
  { "keep", 2, "checkpoints kept", min = 1 },
  { "recompute", false, "keep one activation a block, recompute the others" },
  { "eager", false, "run operation by operation instead of a captured program" },
  { "profile", false, "at the end, print where a pass spends its time and memory" },
  { "timeline", "", "write when each operation of the third step ran, and what was exchanged with other ranks: a file "
    .. "for chrome://tracing or ui.perfetto.dev", kind = "output",
    holds = { "traceEvents", "a file of trace events" } },
  { "gguf", false, "also write the adapter as adapter.gguf, for llama.cpp" },
  { "sources", "", "train on packets of these sources only: names or numbers, by commas" },
  { "drop", 0, "CRC-Drop: share of the documents left out of each epoch, by chance", min = 0, max = 0.99,
    number = true },
  "data", "device", "weights",
})

-- Options that say how a new adapter is made. They make no sense with --adapter.
local of_new_adapters = { "rank", "alpha", "rslora", "targets", "rank_pattern", "alpha_pattern", "dora" }

local function flag(name) return "--" .. name:gsub("_", "-") end

-- Whether an option was given, and says more than that something is not wanted.
local function asks(opt, name)
  local value = opt[name]
  return opt.__given[name] and value ~= 0 and value ~= false and (type(value) ~= "table" or next(value) ~= nil)
end

-- Refuses, before anything is done, options of adapters where the mode trains none, or what is there has its own.
local function check_adapter(opt)
  if opt.mode == "full" then
    if opt.gguf then
      q.error("usage", "--gguf writes an adapter, and --mode full trains none: recipes/quantize.lua OUT/model "
        .. "MODEL.gguf writes the whole model")
    end
    if opt.adapter ~= "" then
      q.error("usage", "--adapter goes with --mode lora; to train every weight from there, merge it first: "
        .. "model:merge():save(DIR)")
    end
    -- A run that goes on has what it began with, also what says nothing.
    for _, name in ipairs(opt.resume and {} or { "dropout", unpack(of_new_adapters) }) do
      if asks(opt, name) then
        q.error("usage", ("%s is of adapters, and --mode full trains every weight: leave one of them out")
          :format(flag(name)))
      end
    end
  end
  if opt.gguf and (opt.dora or opt.train_embeddings or #opt.add_tokens > 0) then
    q.error("usage", ("--gguf: a GGUF file's adapter cannot have %s: leave --gguf out; recipes/quantize.lua writes the "
      .. "merged model"):format(opt.dora and "--dora" or "an embedding (--train-embeddings, --add-tokens)"))
  end
  for _, name in ipairs(opt.adapter ~= "" and of_new_adapters or {}) do
    if opt.__given[name] then
      q.error("usage", ("--adapter %s brings its own: leave %s out"):format(opt.adapter, flag(name)))
    end
  end
end

-- Sets the weight of the load-balancing loss. Without the option it is the config's, if that trains with it.
local function prepare_router(model, opt)
  if opt.__given.router_aux_loss then model.router_aux_loss = opt.router_aux_loss end
  local weight = model.router_aux_loss
  if weight == 0 then return end
  if not model.config.experts then
    q.error("usage", "--router-aux-loss balances the experts of a model, and this one has none: leave it out")
  end
  if opt.recompute then
    q.error("unsupported", "--router-aux-loss does not go with --recompute: leave one out (--router-aux-loss 0)")
  end
  io.stderr:write(("the experts are balanced by a loss of weight %g, which router_aux_loss in the metrics is\n")
    :format(weight))
end

-- Refuses, before anything is done: held-out data from two places, options that need held-out data without any, and
-- prompts that cannot be read.
local function check_evaluation(opt)
  samples.read(opt.samples)
  if opt.eval_data ~= "" then
    if opt.__given.eval_share and opt.eval_share > 0 then
      q.error("usage", "--eval-data is what is held out: leave --eval-share out, which would hold out a part of --data "
        .. "as well")
    end
    opt.eval_share = 0
  end
  if opt.patience > 0 and opt.eval_every == 0 then
    q.error("usage", "--patience counts evaluations, and --eval-every 0 makes one at the end: give --eval-every N")
  end
  if opt.eval_data ~= "" or opt.eval_share > 0 then return end
  if opt.patience > 0 or opt.best then
    local what = opt.best and "--best" or "--patience"
    q.error("usage", what .. " needs held-out data: give --eval-data FILE, or an --eval-share")
  end
end

-- Puts the trained weights of a folder that the run saved back on the model, bit for bit.
local function restore(model, folder)
  if model.mode == "lora" then
    local file = q.weights.open(folder .. "/adapter_model.safetensors")
    local heads = q.fs.kind(mtp.beside(folder)) and q.weights.open(mtp.beside(folder))
    for _, parameter in ipairs(model:trainable()) do
      local of_head = parameter.name:find "^mtp%."
      checkpoint.fill(parameter.tensor, of_head and heads or file, (of_head and "" or peft.prefix) .. parameter.name)
      local own = value_heads.adapter_from(model.config, parameter.name, parameter.tensor)
      if own ~= parameter.tensor then parameter.tensor:copy(own) end
    end
    if heads then heads:close() end
    return file:close()
  end
  local file, saved = q.weights.open(folder), nil
  for _, parameter in ipairs(model:trainable()) do
    local name = parameter.name
    if file:info(name) and not value_heads.moves(model.config, name, false) then
      checkpoint.fill(parameter.tensor, file, name)
    else  -- a folder has it in another form
      saved = saved or models.load(folder, { dtype = model.dtype, weights = "map" })
      for _, own in ipairs(saved.parameters) do
        if own.name == name then
          parameter.tensor:copy(value_heads.weight_from(model.config, name, own.tensor, false))
        end
      end
    end
  end
  file:close()
end

-- Writes best/ with its step, so that both appear at once.
local function save_best(out, save, step)
  q.fs.write_dir(out .. "/best", function(folder)
    save(folder)
    q.fs.write(folder .. "/step.json", q.json.encode { step = step } .. "\n")
  end)
end

-- After a kill best/ may be of a step beyond the checkpoint, which the resumed run may not come to again. Then the
-- lowest loss is not known any more, and counts anew.
local function forget_undone(out, state)
  local _, kept = pcall(function() return q.json.decode(q.fs.read(out .. "/best/step.json")).step end)
  if type(kept) ~= "number" or kept <= state.step then return end
  if ranks.join().first then
    io.stderr:write(("resume: %s/best is of step %d, which is undone: the lowest held-out loss counts from step %d "
      .. "on\n"):format(out, kept, state.step))
  end
  state.best, state.best_step, state.stale, state.stopped = nil, nil, 0, false
end

-- `given` with the defaults, checked: a script may give anything.
local function completed(given, hooks)
  local opt = options.complete("finetune", "finetune", given, { "overwrite", "merge", "any_tokenizer" })
  for _, name in ipairs { "model", "data" } do
    if opt[name] == "" and not (name == "data" and hooks.make_data) then
      q.error("value", ("finetune: %s is missing: q.finetune { model = FOLDER, data = FILE }"):format(name))
    end
  end
  return opt
end

-- Loads opt.model for opt.mode (lora, full), opens opt.data, trains, and writes what opt asks for. Returns the model,
-- the dataset and the result. hooks:
--   prepare(model, file)  is called before training
--   make_data()           writes the data when opt.out is ready, and returns their path
--   and the fields of q.train (on_step, weights)
return function(opt, hooks)
  hooks = hooks or {}
  opt = completed(opt, hooks)
  check_adapter(opt)
  if opt.mtp == 0 and not opt.resume and asks(opt, "mtp_depth") then
    q.error("usage", "--mtp-depth is of the head that --mtp trains: give --mtp 0.3, or leave it out")
  end
  check_evaluation(opt)
  local team = ranks.join()
  team:check(opt.accumulate)
  resume.agree(team, resume.flat(options.settings(opt)))
  local place = run_folder.open(opt.out, {
    resume = opt.resume, overwrite = opt.overwrite, merge = opt.merge, gguf = opt.gguf,
    reads = { opt.model, opt.adapter, opt.eval_data, unpack(q.try(data.inputs, opt.data) or {}) },
  })
  opt.model = team:in_turn(function() return hub.resolve_model(opt.model) end)
  opt.data = team:in_turn(function() return hub.resolve_data(opt.data) end)
  if not hooks.make_data then data.inputs(opt.data) end  -- says so if they are not there
  local shares = shards.wanted(opt.mode, opt.zero, team)
  if shares then shards.check(opt) end
  local model = models.load(opt.model, {
    model_file = opt.model_file, dtype = opt.dtype, writable = opt.mode == "full", weights = opt.weights,
    shared_out = shares and opt.zero == 3,
    host_budget = opt.host_budget, stream_keep = opt.stream_keep,
  })
  if not model.tokenizer then error(model.tokenizer_error, 0) end
  if opt.gguf then names.architecture(model.arch) end  -- refuses before the training what it would after it
  model.recompute = opt.recompute
  place:clear()
  if hooks.make_data then opt.data = team:tell(hooks.make_data) end
  local settings, added = options.settings(opt), #opt.add_tokens > 0
  if added then
    local fresh = team:in_turn(function()
      return new_tokens.add(model, opt.add_tokens, opt.out .. "/tokenizer", not team.first)
    end)
    io.stderr:write(("new tokens: %s; the vocabulary is %d\n"):format(
      #fresh > 0 and table.concat(fresh, " ") or "none, the tokenizer has them all", model.config.vocab))
  end
  local function reading(cache)
    return { tokenizer = model.tokenizer, template = opt.template, template_args = opt.template_args,
      special = opt.special, documents = opt.documents, any_tokenizer = opt.any_tokenizer, cache = cache,
      resumed = opt.resume }
  end
  local file = place:data(opt.data, reading())
  local eval_data = opt.eval_data ~= "" and place:open(opt.eval_data, reading(opt.out .. "/eval.qubgpu")) or nil
  if shares then shards.attach(model, team, opt.zero) end
  mode.set(model, opt)
  if opt.mode ~= "full" and (added or opt.train_embeddings) then new_tokens.train_embeddings(model) end
  if opt.gguf then gguf_lora.check(model) end
  mode.draft(model, opt)
  model.neftune = opt.neftune > 0 and opt.neftune or nil
  prepare_router(model, opt)
  if hooks.prepare then hooks.prepare(model, file) end

  local function save(dir)
    if opt.mode == "full" then model:save(dir) else model:save_adapter(dir) end
  end
  local result = train {
    model = model, data = file, out = opt.out, steps = opt.steps, epochs = opt.epochs, row_tokens = opt.row_tokens,
    long = opt.long, rows = opt.rows, accumulate = opt.accumulate, lr = opt.lr, schedule = opt.schedule,
    warmup = opt.warmup, optim = opt.optim, moment_bits = opt.moment_bits, zero = opt.zero, decay = opt.decay,
    clip = opt.clip, seed = opt.seed,
    eval_share = opt.eval_share, eval_data = eval_data, eval_every = opt.eval_every, patience = opt.patience,
    save_every = opt.save_every, keep = opt.keep, resume = opt.resume, overwrite = opt.overwrite, eager = opt.eager,
    profile = opt.profile, timeline = opt.timeline,
    sources = route.source_list(opt.sources), drop = opt.drop, weights = hooks.weights, tensorboard = opt.tensorboard,
    settings = settings, title = hooks.title, pad = model.tokenizer:id("<|endoftext|>") or 0,
    on_begin = function(state)
      if opt.resume then forget_undone(opt.out, state) end
      place:begin(settings)
    end,
    on_step = hooks.on_step,
    on_eval = samples.new(model, opt.samples, {
      out = opt.out, template = opt.template, template_args = opt.template_args, max_tokens = opt.sample_tokens,
    }),
    save_best = function(state) save_best(opt.out, save, state.step) end,
  }
  if result.best and result.eval_before and result.best >= result.eval_before then
    io.stderr:write(("note: no evaluation was below the held-out loss before training, %.4f; the lowest was %.4f\n")
      :format(result.eval_before, result.best))
  end
  if (opt.best or opt.patience > 0) and result.best_step and result.best_step < result.steps then
    restore(model, opt.out .. "/best")
    io.stderr:write(("the weights of step %d are kept, with the lowest held-out loss, %.4f\n"):format(
      result.best_step, result.best))
  end
  if team.size == 1 then  -- as estimates are
    estimates.came_true(model, {
      device = advise.device(opt.device).description, mode = opt.mode, rank = opt.rank, row_tokens = opt.row_tokens,
      rows = opt.rows, recompute = opt.recompute,
    }, result.metrics)
  end
  save(opt.out .. (opt.mode == "full" and "/model" or "/adapter"))
  if opt.gguf then model:save_adapter_gguf(opt.out .. "/adapter.gguf") end
  return model, file, result
end
