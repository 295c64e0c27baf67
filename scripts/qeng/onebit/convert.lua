-- Turns a trained model into one of one-bit weights, a few blocks at a time (progressive binarization). The model as it
-- was teaches it.
--
-- When a block is converted, signs and a scale for each row replace its weights, and from then on the signs learn by
-- counters. Blocks that are still whole stay frozen. Embeddings, norms, head and scales are trained throughout. The
-- model learns the teacher's distribution: each target is drawn from it anew, so the expected gradient is that of the
-- divergence from the teacher.

local checkpoint = require "qeng.train.checkpoint"
local experts = require "qeng.model.experts"
local options = require "qeng.console.options"
local q = require "qeng.core"
local inertia = require "qeng.onebit.inertia"
local nn = require "qeng.model.nn"
local onebit = require "qeng.onebit"

local convert = {}

-- Stands where q.train expects q.inertia. Every so many steps it converts a new group of blocks.
local Progress = {}
Progress.__index = Progress
Progress.waits = true  -- scales of blocks that are still whole are reached by no gradient

-- A number that tells the starting weights of conversions apart.
local function weights_hash(model)
  local sum = 0
  for _, parameter in ipairs(model.parameters) do
    sum = (31 * sum + tonumber(parameter.tensor:hash():sub(1, 8), 16)) % 2 ^ 32
  end
  return ("%08x"):format(sum)
end

local function binarize(model, layer)
  local bits, scale = q.onebit.binarize(layer.weight)
  for _, parameter in ipairs(model.parameters) do
    if parameter.tensor == layer.weight then parameter.tensor = bits:label(parameter.name) end
  end
  layer.weight = bits
  layer.row_scale:copy(scale)
  layer.whole = nil
end

-- Refuses a model whose weights are no floats, before anything changes.
local function check_weights(model)
  experts.refuse(model, "one-bit conversion")
  for _, layer in ipairs(model.linears) do
    local dtype = layer.weight:dtype()
    if dtype ~= "f32" and dtype ~= "bf16" and dtype ~= "f16" then
      q.error("dtype",
        ("the weight of %s is %s, expected f32, bf16 or f16: convert the model that this one was made from%s"):format(
          layer.name, dtype,
          layer.row_scale and "; one of one-bit weights goes on learning with q.inertia" or ""))
    end
  end
end

-- model: with float weights of its own (writable). opt:
--   stages   into how many groups the blocks are divided
--   steps    of training in all
--   share    of the steps until the last group is converted (0.5)
--   order    "last" or "first" block first
--   inertia  options of q.inertia
function convert.progressive(model, opt)
  check_weights(model)
  local blocks = onebit.blocks(model)
  if (opt.order or "last") == "last" then
    for i = 1, math.floor(#blocks / 2) do blocks[i], blocks[#blocks + 1 - i] = blocks[#blocks + 1 - i], blocks[i] end
  end
  local stages = math.min(opt.stages or #blocks, #blocks)
  local self = setmetatable({ model = model, groups = {}, done = 0, steps = opt.steps, share = opt.share or 0.5,
    order = opt.order or "last",
    knobs = opt.inertia or {}, kept = {}, given = weights_hash(model) }, Progress)
  for i, block in ipairs(blocks) do
    local group = math.ceil(i * stages / #blocks)
    self.groups[group] = self.groups[group] or {}
    for _, layer in ipairs(block) do table.insert(self.groups[group], layer) end
  end
  model.mode, model.rule, model.latents, model.row_scales = "onebit", "counter", {}, {}
  for _, layer in ipairs(model.linears) do
    layer.whole = true  -- its scale waits
    onebit.give_scale(model, layer, q.zeros({ layer.weight:shape()[1] }, "f32", "weights"):fill(1))
    layer.row_scale:requires_grad(true)
    table.insert(model.row_scales, { name = layer.name .. ".weight_scale", tensor = layer.row_scale, rate = "scales" })
  end
  return self
end

local function grow(self, count)
  for index = self.done + 1, count do
    for _, layer in ipairs(self.groups[index]) do binarize(self.model, layer) end
  end
  self.done = count
  for _, part in ipairs(self.inertia and self.inertia.parts or {}) do self.kept[part.layer] = part.state end
  local parts = {}
  for index = 1, count do
    for _, layer in ipairs(self.groups[index]) do
      parts[#parts + 1] = { layer = layer, first = 0, rows = layer.weight:shape()[1], state = self.kept[layer] }
    end
  end
  local knobs = { parts = parts }
  for name, value in pairs(self.knobs) do knobs[name] = value end
  self.inertia = inertia.new(self.model, knobs)
end

function Progress:begin(progress, step)
  local wanted = math.min(#self.groups, math.floor(step * #self.groups / math.max(1, self.steps * self.share)) + 1)
  local changed = wanted > self.done
  if changed then grow(self, wanted) end
  self.inertia:begin(progress)
  return changed
end
function Progress:finish(feeds) return self.inertia:finish(feeds) end
function Progress:histogram() return self.inertia:histogram() end
function Progress:tensors()
  local list, converted = {}, {}
  for _, part in ipairs(self.inertia.parts) do converted[part.layer.name .. ".weight"] = true end
  for _, each in ipairs(self.inertia:tensors()) do  -- whole weights are the given model's
    if converted[each[1]] or each[1]:find "%.inertia%." then list[#list + 1] = each end
  end
  return list
end
function Progress:state()
  local state = self.inertia:state()
  state.done = self.done
  return state
end
-- What has to be the same in a resumed run.
function Progress:settings()
  return inertia.settings(inertia.knobs(self.knobs),
    { rule = "conversion by ", stages = #self.groups, order = self.order, share = self.share, steps = self.steps,
      ["weights to convert"] = self.given, matrices = #self.model.linears, weights = onebit.weights(self.model) })
end
function Progress:restore(state, file)
  if not self.groups[state.done] then
    q.error("format", "the checkpoint's groups of blocks are not of this model: it is damaged, or of another run")
  end
  grow(self, state.done)
  self.inertia:restore_numbers(state)
  for _, each in ipairs(self:tensors()) do checkpoint.fill(each[2], file, each[1]) end
end

-- For q.train's on_batch: replaces the targets of a batch by tokens drawn from the teacher's distribution.
function convert.teach(teacher, opt)
  local rows = 64  -- of logits at a time
  return function(micro_batch, number)
    local targets, trained = micro_batch.targets:table(), 0
    local sampler = q.sampler { temperature = opt.temperature or 1, seed = (opt.seed or 0) * 1000003 + number }
    q.no_grad(q.scope, function()
      local seq = { positions = micro_batch.positions, cu_q = micro_batch.cu_q }
      seq.rope, seq.rope_local = teacher:rope(#targets)
      local hidden = teacher.forward(micro_batch.tokens, seq)
      for first = 0, #targets - 1, rows do
        local count = math.min(rows, #targets - first)
        local logits = nn.softcap(q.linear(hidden:rows(first, count), teacher.head, { out = "f32" }), teacher.config)
        for i = 0, count - 1 do
          if targets[first + i + 1] >= 0 then
            targets[first + i + 1], trained = sampler:next(logits:rows(i, 1)), trained + 1
          end
        end
      end
    end)
    micro_batch.targets:set(targets)
    micro_batch.trained = trained
  end
end

-- The recipe: from its options to a model in opt.out/model, which it returns.
function convert.run(opt)
  local data, models, run_folder, train = require "qeng.data", require "qeng.model", require "qeng.train.run_folder",
    require "qeng.train"
  local place = run_folder.open(opt.out,
    { resume = opt.resume, overwrite = opt.overwrite, reads = { opt.model, unpack(data.inputs(opt.data)) } })
  local student = models.load(opt.model, { model_file = opt.model_file, dtype = "f32", writable = true })
  if not student.tokenizer then error(student.tokenizer_error, 0) end
  local bits = convert.progressive(student, {
    stages = opt.stages > 0 and opt.stages or nil, steps = opt.steps, share = opt.share, order = opt.order,
      inertia = { levels = opt.levels, friction = 0, q = opt.q > 0 and opt.q or opt.levels ~= 255 and 0.05 or nil } })
  place:clear()
  local teacher = models.load(opt.model, { model_file = opt.model_file })
  local file = place:data(opt.data, {
    tokenizer = student.tokenizer, template = opt.template, template_args = opt.template_args, special = opt.special,
    documents = opt.documents,
  })
  local settings = options.settings(opt)
  local result = train {
    model = student, bits = bits, data = file, out = opt.out, steps = opt.steps, row_tokens = opt.row_tokens,
    long = opt.long, rows = opt.rows, lr = opt.lr, scale_rate = opt.scale_rate,
    lr_floor = 0.1, warmup = math.min(50, math.floor(opt.steps / 10)), beta2 = 0.99, clip = 1, seed = opt.seed,
    eval_share = opt.eval_share, eval_every = opt.eval_every,
    save_every = 100, resume = opt.resume, overwrite = opt.overwrite,
    settings = settings, curves = { "loss against samples of the teacher", "held-out loss of the text" },
    title = "From " .. opt.model .. " to one bit a weight",
    pad = student.tokenizer:id "<|endoftext|>" or 0, on_batch = convert.teach(teacher, opt),
    on_begin = function() place:begin(settings) end,
  }
  student:save(opt.out .. "/model")
  if result.eval_before and result.eval_loss then
    print(("held-out loss: %.3f as given, %.3f with one-bit weights (%d of %d blocks' groups)"):format(
      result.eval_before, result.eval_loss, bits.done, #bits.groups))
  end
  print(opt.out .. "/model: bits and floats, which q.load reads; report.html, metrics.jsonl beside it")
  return student, result
end

return convert
