-- A model: its parameters by Hugging Face name, its forward pass, adapters, loss, saving. q.load makes one from a
-- folder. The model files (scripts/qeng/models) say what the architectures are.

local q = require "qeng.core"
local architectures = require "qeng.model.architectures"
local config = require "qeng.model.config"
local experts = require "qeng.model.experts"
local fp8 = require "qeng.model.fp8"
local gguf = require "qeng.gguf"
local gguf_export = require "qeng.gguf.export"
local gguf_lora = require "qeng.gguf.lora"
local hooks = require "qeng.model.hooks"
local hub = require "qeng.hub"
local kept = require "qeng.model.kept"
local look = require "qeng.model.look"
local lora = require "qeng.model.lora"
local mtp = require "qeng.model.mtp"
local nn = require "qeng.model.nn"
local peft = require "qeng.model.peft"
local range = require "qeng.model.range"
local save = require "qeng.model.save"
local stream = require "qeng.model.stream"

local Model = {}
Model.__index = Model

-- A source is a function (name, shape, plus_one, elsewhere, arch, c) that gives a parameter's tensor. elsewhere: a peer
-- has it (model/range.lua); the source then checks that it is there, and gives nothing.

-- The source of a checkpoint that has matrices as [in, out].
local function turned(source, transposed)
  return function(name, shape, ...)
    if not transposed(name) then return source(name, shape, ...) end
    local stored = source(name, { shape[2], shape[1] }, ...)
    return stored and q.no_grad(q.scope, function() return q.keep(stored:transpose():clone():label "weights") end)
  end
end

-- own: the user's model file, or nil. part: opt.range of load. rotations: those of weights that are stored rotated
-- (gguf/hadamard.lua).
local function build(file, own, part, dtype, source, rotations)
  local arch, c = architectures.of(file, own)
  if arch.transposed and not file.is_gguf then source = turned(source, arch.transposed) end
  if arch.source and not file.is_gguf then source = arch.source(source, file) end
  local model = setmetatable({
    runtime = q.runtime(), arch = arch, config = c, dtype = dtype, config_values = file.values, rotations = rotations,
    parameters = {}, linears = {}, states = {}, places = {}, ropes = {}, mode = "frozen", recompute = false,
    range = range.of(part, c),
  }, Model)
  local function of_model(name, shape, plus_one, elsewhere)
    return source(name, shape, plus_one, elsewhere or false, arch, c)
  end
  model.forward = arch.build(model, of_model, c)
  model.router_aux_loss = c.experts and c.experts.balance or 0
  -- A rotation that cannot be is refused now, not by the first forward pass.
  if c.rope then model:rope(c.max_position) end
  return model
end

local models = {}

local function load_gguf(path, opt)
  local own = architectures.read(opt.model_file)
  local checkpoint = gguf.open(path, opt, own)
  local file = config.wrap(checkpoint.values, path)
  file.rope_factors, file.layout, file.is_gguf = checkpoint.factors, checkpoint.layout, true
  local model = build(file, own, opt.range, checkpoint.dtype, checkpoint.source, checkpoint.rotations)
  checkpoint.finish(model)
  stream.attach(model, opt)
  return model
end

-- The dtype in which an open folder's matrices are computed without loss; nil if none is of floats. Also whether some
-- are f16. Nothing is computed in f16: f32 holds all of it, bf16 has three bits less.
local function own_dtype(weights)
  local found = {}
  for _, name in ipairs(weights:names()) do
    local info = weights:info(name)
    if #info.shape > 1 and name:find "%.weight$" then found[info.dtype] = true end
  end
  return (found.f16 or found.f32) and "f32" or found.bf16 and "bf16" or nil, found.f16 or false
end

-- What a script may give q.load.
models.load_options = { "dtype", "writable", "shared_out", "peers", "range", "weights", "host_budget", "stream_keep",
  "stream_slack", "stream_depth", "model_file", "runtime" }

-- Loads a folder `dir` (config.json, safetensors, tokenizer), a GGUF file, or a name on the hub. opt:
--   dtype        f32 or bf16, of weights and activations; fp8: for training (model/fp8.lua). By default the file's own;
--                then matrices of f16 stay as they are stored, and all is computed in f32. A GGUF file's matrices of
--                f16 and of block formats, and of bf16 under f32, stay as they are stored.
--   writable     the weights get memory of their own, for full fine-tuning
--   shared_out   with it: they get that later, when ranks share them out (train/shards.lua)
--   peers        workers that compute layers of it (scripts/qeng/peers/init.lua)
--   range        {first =, count =, ends =, layers = of the whole model}: only these layers, and with `ends` embedding,
--                last norm and head; peers have the others (model/range.lua)
--   weights      for other weights on the CPU. "map" reads them where the file is mapped. "copy" reads them from a copy
--                in large pages, which is faster, and is the default if memory has room for two. "stream" reads them
--                from the mapped file, within opt.host_budget bytes for the whole process (model/stream.lua).
--   model_file   a Lua file that says the architecture, in place of those of scripts/qeng/models. It is run. Nothing in
--                the model's own folder is, unless its path is given here.
function models.load(dir, opt)
  opt = opt or {}
  if opt.peers and #opt.peers > 0 then return models.over_peers(dir, opt) end
  if opt.dtype == "fp8" then return fp8.set(models.load(dir, fp8.begin(opt))) end
  dir = hub.resolve_model(dir)
  if q.fs.kind(dir) == "file" then return load_gguf(dir, opt) end
  if q.fs.kind(dir) ~= "dir" then
    q.error("io", ("model %s: no such file or folder; expected a .gguf file, or a Hugging Face folder with config.json "
      .. "and model.safetensors"):format(dir))
  end
  local file, weights = config.read(dir, q.weights.open(dir))
  range.check(dir, opt)
  gguf.into_memory(weights, opt)
  stream.check(dir, opt)
  for _, remark in ipairs(weights:remarks()) do io.stderr:write(remark, "\n") end
  local known = {}
  local dtype, half = opt.dtype, false
  if not dtype then dtype, half = own_dtype(weights) end
  if half then
    io.stderr:write(dir, ": weights of f16 are computed in f32, which loses nothing; dtype bf16 (--dtype bf16) drops "
      .. "three bits of each, and trains faster in less memory\n")
  end
  local function source(name, shape, _, elsewhere, arch)
    local half_of
    name, shape, half_of = experts.fused(weights, file:stored(name), shape)
    if half_of then file.fused_experts = true end
    local info = weights:info(name)
    if not info then
      q.error("format", ("%s: tensor %s is missing, though config.json asks for it"):format(dir, name))
    end
    known[name] = true
    if elsewhere then return nil end
    local streamed, as = opt.weights == "stream", nil
    if streamed and file.transposed and file.transposed(name) then
      q.error("unsupported", ("%s: tensor %s is [in, out], and cannot be streamed: write the model as a GGUF file "
        .. "(recipes/quantize.lua), or load it with weights = \"copy\""):format(dir, name))
    end
    if streamed and half_of then
      q.error("unsupported", ("%s: tensor %s is gate and up of experts in one, and cannot be streamed: write the model "
        .. "as a GGUF file (recipes/quantize.lua), or load it with weights = \"copy\""):format(dir, name))
    end
    if not info.keep then
      dtype = dtype or (info.dtype == "f32" and "f32" or "bf16")
      as = half and info.dtype == "f16" and #shape > 1 and not opt.writable and "f16" or dtype
      if info.dtype == "f32" and architectures.is_exact(arch, name) then as = "f32" end
    end
    local tensor = weights:tensor(name, {
      dtype = as, shape = shape, copy = opt.writable and not opt.shared_out and not half_of,
      stream = streamed,
      label = streamed and "weights in files" or "weights",
    })
    return half_of and half_of(tensor) or tensor
  end
  local model = build(file, architectures.read(opt.model_file), opt.range, nil, source)
  model.dtype, model.dir, model.saved_dtype = dtype, dir, half and not opt.writable and "f16" or nil
  for _, layer in ipairs(model.linears) do
    local scale = layer.name .. ".weight_scale"
    if weights:info(scale) then
      known[scale] = true
      local shape = { layer.weight:shape()[1] }
      local values = weights:tensor(scale, { dtype = "f32", shape = shape, copy = opt.writable, label = "weights" })
      require("qeng.onebit").give_scale(model, layer, values)
    elseif layer.weight:dtype() == "one_bit" or layer.weight:dtype() == "ternary" then
      q.error("format", ("%s: tensor %s is missing: the weight beside it has no scale of its own"):format(dir, scale))
    end
  end
  local left = file.left
  for _, name in ipairs(weights:names()) do
    if not known[name] and architectures.passes(model.arch, name) then
      left[#left + 1] = name
    elseif not known[name] and not file:is_spare(name, model.config.tied) then
      q.error("format", ("%s: tensor %s belongs to no part of a %s"):format(dir, name, model.arch.hf))
    end
  end
  kept.tell(dir, left, file.wrapped, ", and saved as they are")
  kept.keep(model, dir, left, file.wrapped)
  model.fused_experts = file.fused_experts
  local ok, tokenizer = pcall(q.tokenizer, dir)
  if ok then model.tokenizer = tokenizer else model.tokenizer_error = tokenizer end
  stream.attach(model, opt)
  return model
end

-- A model from the keys of a config.json, with random weights (std, Philox), or those of opt.weights(name, shape).
-- opt.model_file: as for load.
function models.random(values, opt)
  opt = opt or {}
  if opt.dtype == "fp8" then return fp8.set(models.random(values, fp8.begin(opt))) end
  local draw, dtype = 0, opt.dtype or "f32"
  local own = architectures.read(opt.model_file)
  local function given(name, shape, plus_one, elsewhere)
    return not elsewhere and opt.weights(name, shape, plus_one) or nil
  end
  return build(config.wrap(values), own, opt.range, dtype, opt.weights and given
    or function(name, shape, plus_one, elsewhere, arch)
    draw = draw + 1
    if elsewhere then return nil end
    local initial = arch.initial and arch.initial(name, shape)
    if initial then return q.tensor(initial, "f32"):to(dtype):label "weights" end
    if #shape == 1 then
      return q.zeros(shape, dtype, "weights"):fill(name:find("norm") and not plus_one and 1 or 0)
    end
    return q.randn(shape, {
      std = opt.std or 0.02, seed = opt.seed or 0, subsequence = draw, dtype = dtype, label = "weights",
    })
  end)
end

-- ---------------------------------------------------------------- forward

local function is_dynamic(rope) return rope.scaling and rope.scaling.rope_type == "dynamic" end

-- The part of a rotation table's key that depends on the length of documents (up to `length` tokens).
local function rope_key(c, length)
  local scaling = c.rope.scaling or {}
  if scaling.rope_type == "longrope" then
    return length > (scaling.original_max_position_embeddings or c.max_position) and 1 or 0
  end
  return is_dynamic(c.rope) and length or 0
end

-- The table of a rotation with these settings (Config:rope), for documents of up to `length` tokens.
local function rope_of(c, settings, length)
  local opt = {
    dim = c.rotary or c.head_dim, theta = settings.theta, length = length, max_position_embeddings = c.max_position,
  }
  for name, value in pairs(settings.scaling or {}) do opt[name == "rope_type" and "type" or name] = value end
  if opt.type == "longrope" and not opt.factor then
    opt.factor = c.max_position / (opt.original_max_position_embeddings or c.max_position)
  end
  local rope = q.rope_table(opt)
  if settings.factors then
    local divided = rope.inv_freq:table()
    for i, factor in ipairs(settings.factors) do divided[i] = divided[i] / factor end
    rope.inv_freq = q.tensor(divided, "f32")
  end
  return { inv_freq = q.keep(rope.inv_freq), scale = rope.scale }
end

-- Rotation frequencies for documents of up to `length` tokens. Also those of the layers that look at a window only, if
-- they have their own. Nothing of a model that turns no heads.
function Model:rope(length)
  local c = self.config
  if not c.rope then return nil end
  local key = rope_key(c, length)
  local found = self.ropes[key]
  if not found then
    found = { rope_of(c, c.rope, length), c.rope_local and rope_of(c, c.rope_local, length) }
    self.ropes[key] = found
  end
  return found[1], found[2]
end

-- Refuses packed rows in which dynamic RoPE scaling would differ between documents.
function Model:check_length(row_tokens)
  if self.config.rope and is_dynamic(self.config.rope) and row_tokens > self.config.max_position then
    q.error("unsupported", ("rows of %d tokens exceed max_position_embeddings = %d, and dynamic RoPE scaling differs "
      .. "by document; use shorter rows (--row-tokens)"):format(row_tokens, self.config.max_position))
  end
end

-- The last hidden states [t, hidden] of a packed batch. length: of the longest document. Dynamic RoPE scaling needs it
-- (see check_length), and longrope chooses its factors by it. balance: a list for what layers of experts note.
local function hidden_of(self, packed, length, balance)
  local seq = { positions = packed.positions, cu_q = packed.cu_q, balance = balance }
  seq.rope, seq.rope_local = self:rope(length or packed.longest or packed.tokens:shape()[1])
  local hidden, residual = self.forward(packed.tokens, seq)
  return hidden, residual, seq
end

-- Hidden states [t, hidden] of one document, a text or a list of token ids, or of documents that q.pack put together.
function Model:hidden(input)
  if type(input) == "table" and input.cu_q then return (hidden_of(self, input)) end
  local ids = look.ids(self, input)
  local positions = {}
  for i = 1, #ids do positions[i] = i - 1 end
  local seq = { positions = q.tensor(positions, "i32"), cu_q = q.tensor({ 0, #ids }, "i32") }
  seq.rope, seq.rope_local = self:rope(#ids)
  return (self.forward(q.tensor(ids, "i32"), seq))
end

-- Logits [t, vocab] in f32 of one document. Those of a text tell their tokens (Tensor:top).
function Model:logits(input) return look.logits(self, input) end

-- Hooks by place (model/hooks.lua), and what leaves the places.
function Model:hook(place, fn) hooks.set(self, place, fn) end
function Model:activations(input, places) return look.activations(self, input, places) end
-- {[name] = gradient} of parameters and adapters that have one.
function Model:gradients() return look.gradients(self) end

-- Tensors that hold one packed micro-batch. batch:load(micro_batch) and micro_batch.scale:fill(1 / trained tokens)
-- fill them. `trained`, which load sets, is how many targets are not -1, at most; nil: any number. A loss then computes
-- no more rows than that, rounded up.
function models.micro_batch(tokens, max_documents)
  return {
    tokens = q.zeros({ tokens }, "i32", "batch"), targets = q.zeros({ tokens }, "i32", "batch"),
    positions = q.zeros({ tokens }, "i32", "batch"), cu_q = q.zeros({ max_documents + 1 }, "i32", "batch"),
    scale = q.zeros({ 1 }, "f32", "batch"),
  }
end

-- Loss [1] of a packed batch: micro_batch.scale times the sum of nll over its targets. Also nll [t]. If
-- self.router_aux_loss is not 0, a third result is the load-balancing loss of the experts [1], times that and the
-- batch's share of the step's targets. A fourth is a list of the losses [1] of the head that drafts tokens, one for
-- each token further on, if it is trained (Model:train_mtp). Neither is part of the first: loss:backward(balance,
-- unpack(drafts)) goes back from all. Where only that head is trained, the first is its loss for the nearest token.
function Model:loss(micro_batch, length)
  local head = self.mtp
  if self.mode == "mtp" then
    local hidden, residual, seq = q.no_grad(hidden_of, self, micro_batch, length)
    local losses, nll = head:losses(head:reads(hidden, residual), micro_batch, seq, 1)
    return losses[1], nll, nil, { unpack(losses, 2) }
  end
  local wanted = (self.router_aux_loss or 0) ~= 0
  if wanted and self.recompute then
    q.error("unsupported", "loss: router_aux_loss with recompute: what is recomputed cannot tell the routers' loads")
  end
  local balance = wanted and {} or nil
  local hidden, residual, seq = hidden_of(self, micro_batch, length, balance)
  local loss, nll = q.block("head", q.lm_head_loss, hidden, self.head, micro_batch.targets, micro_batch.scale,
    { softcap = self.config.logit_softcap, trained = micro_batch.trained })
  local drafts
  if head and head.weight > 0 then
    seq.balance = nil  -- of the model's own experts
    drafts = head:losses(head:reads(hidden, residual), micro_batch, seq, head.weight / head.depth)
  end
  if not wanted then return loss, nll, nil, drafts end
  if #balance == 0 then q.error("value", "loss: router_aux_loss is of models of experts, and this one has none") end
  local share = q.where(micro_batch.targets:ge(0), 1, 0):sum() * micro_batch.scale
  return loss, nll, experts.balance_loss(balance) * share * self.router_aux_loss, drafts
end

-- Logits [t, vocab] of a packed batch in f32, for losses that need all of them.
function Model:packed_logits(packed, length)
  local hidden = hidden_of(self, packed, length)
  return nn.softcap(q.block("head", q.linear, hidden, self.head, { out = "f32" }), self.config)
end

-- The log probability [t] of each target of a packed batch, 0 where there is none. Under a frozen head no logits of the
-- whole batch exist.
function Model:logprobs(packed, length)
  if not self.head:requires_grad() then
    return -q.block("head", q.token_nll, hidden_of(self, packed, length), self.head, packed.targets,
      { softcap = self.config.logit_softcap, trained = packed.trained })
  end
  local logits = self:packed_logits(packed, length)
  local picked = q.where(packed.targets:unsqueeze(2):eq(q.arange(logits:shape()[2])), logits, 0):sum(-1)
  return q.where(packed.targets:ge(0), picked - logits:logsumexp(), 0)
end

-- fn(...) with the adapters off: the model as it was loaded.
function Model:without_adapter(fn, ...)
  return lora.with(self, {}, fn, ...)
end

-- ---------------------------------------------------------------- what is trained

-- Adds adapters. opt: rank, alpha, rslora, dropout, targets, ranks, alphas, dora, seed, as in model/lora.lua.
function Model:lora(opt) return lora.add(self, opt) end

-- Trains every parameter (load the model with writable = true). opt.gradients: "bf16", the dtype of what linear layers
-- of a bf16 model gather ("f32"); embeddings, norms, biases and experts keep f32.
function Model:full(opt)
  local shards = self.shards  -- of ranks that share gradients out (train/shards.lua)
  if not shards then stream.refuse(self, "full: every weight would change") end
  local function learn(tensor, gradient)
    if shards then shards.units:learn(tensor, gradient) else tensor:requires_grad(true, gradient) end
  end
  for _, layer in ipairs(self.linears) do
    if not (layer.experts or layer.parts or rawequal(layer.weight, self.embed)) then
      learn(layer.weight, opt and opt.gradients or "f32")
    end
  end
  for _, parameter in ipairs(self.parameters) do learn(parameter.tensor) end
  self.mode = "full"
  return self
end

-- The head that drafts tokens (model/mtp.lua): attach, take off.
function Model:attach_mtp(opt) return mtp.attach(self, opt) end
function Model:strip_mtp() return mtp.strip(self) end

-- Trains that head. opt: weight (of its loss beside the model's, 0.3; nil with `alone`), depth (how many tokens ahead
-- it is trained for, 1), alone (nothing else is trained).
function Model:train_mtp(opt)
  local head = self.mtp or q.error("value", "train_mtp: the model has no head that drafts tokens: attach_mtp first")
  head.depth = opt.depth or 1
  if opt.alone then self.mode, head.weight = "mtp", 0 else head.weight = opt.weight or 0.3 end
  for _, parameter in ipairs(head.parameters) do parameter.tensor:requires_grad(true) end
  return self
end

-- What is trained of the model itself.
local function trained(self)
  if self.mode == "lora" then
    local list = { unpack(self.adapter.parameters) }
    for _, parameter in ipairs(self.extra or {}) do
      if not parameter.tensor:requires_grad() then parameter.tensor:requires_grad(true) end
      list[#list + 1] = parameter
    end
    return list
  end
  if self.mode == "onebit" then return require("qeng.onebit").float_parameters(self) end
  return self.mode == "full" and self.parameters or {}
end

-- {{name=, tensor=}...} in a fixed order.
function Model:trainable()
  if self.mode == "mtp" then return self.mtp.parameters end
  if not self.mtp or self.mtp.weight == 0 then return trained(self) end
  local list = { unpack(trained(self)) }
  for _, parameter in ipairs(self.mtp.parameters) do list[#list + 1] = parameter end
  return list
end

-- ---------------------------------------------------------------- saving

function Model:save_adapter(dir) return peft.save(self, dir) end
-- Loads a PEFT folder, or an adapter in a GGUF file.
function Model:load_adapter(path)
  return q.fs.kind(path) == "file" and gguf_lora.load(self, path) or peft.load(self, path)
end
-- The same for single requests (infer/request.lua). An adapter that is on the model stays there.
function Model:read_adapter(path)
  if self.peers then return setmetatable(self.peers:read_adapter(path), models.Adapter) end
  local adapter = q.fs.kind(path) == "file" and gguf_lora.read(self, path) or peft.read(self, path)
  return setmetatable(adapter, models.Adapter)
end
function Model:save_adapter_gguf(path) return gguf_lora.save(self, path) end
-- opt: type (f16; any mix of gguf/types.lua), overrides, importance, part_bytes, as for gguf/export.lua's write.
function Model:save_gguf(path, opt) return gguf_export.save(self, path, opt) end
function Model:merge()
  stream.refuse(self, "merge: the merged weights would lie in memory")
  return peft.merge(self)
end

-- Writes a Hugging Face folder of the weights as they are (merge first); opt: as for model/save.lua.
function Model:save(dir, opt) return save(self, dir, opt) end

range.guard(Model)

-- opt.runtime of load and random: where the model lies, else on the runtime in use. What the model does later is done
-- there too.
for _, name in ipairs { "load", "random" } do
  local make = models[name]
  models[name] = function(what, opt)
    if opt and opt.runtime then return opt.runtime:use(make, what, opt) end
    return make(what, opt)
  end
end
for name, method in pairs(Model) do
  if type(method) == "function" then
    Model[name] = function(self, ...) return self.runtime:use(method, self, ...) end
  end
end

models.Model, models.Adapter = Model, {}
return models
