-- Mixtures of experts: an MLP of which each token meets a few parts. A router gives every expert a score for the token,
-- the best compute, and their outputs are summed by the scores. The matrices of a layer's experts are one tensor
-- [experts, out, in]. Checkpoints and PEFT have one for each expert; GGUF has one for all.
--
-- c.experts, which a model file reads:
--   count        experts of a layer
--   used         experts that a token meets
--   ffn          the inner width of each
--   scores       how logits become scores: "softmax" over all experts, or "sigmoid" of each
--   normalised   the scores of the chosen ones are divided by their sum
--   scale        a factor of the scores (1)
--   balance      the weight of the load-balancing loss that the config has for training (experts.balance_loss)
--   shared       the inner width of an MLP that all tokens meet beside their experts (nil)

local nn = require "qeng.model.nn"
local q = require "qeng.core"

local experts = {}

-- c.experts from a Config (model/config.lua). opt: transformers' defaults for count and used; ffn, normalised and
-- shared. transformers adds the load-balancing loss where output_router_logits says so.
function experts.config(file, opt)
  local key = file.values.num_experts ~= nil and "num_experts" or "num_local_experts"
  local e = {
    count = file:size(key, opt.count), used = file:size("num_experts_per_tok", opt.used), ffn = opt.ffn,
    normalised = opt.normalised, scores = "softmax", shared = opt.shared,
  }
  file:must("num_local_experts", e.count)
  if e.used > e.count then
    q.error("format", ("%s: num_experts_per_tok is %d, of %d experts"):format(file.path, e.used, e.count))
  end
  local weight = file:get("router_aux_loss_coef", 0.001)
  e.balance = file:get("output_router_logits", false) and weight or 0
  return e
end

-- ---------------------------------------------------------------- one tensor for all, or one for each

-- Whether a tensor of this name and shape is of all the experts of a layer.
function experts.is_stack(name, shape) return #shape == 3 and name:find(".experts.", 1, true) ~= nil end

-- The name of an expert's own matrix: "mlp.experts.up_proj.weight" of expert 3 is "mlp.experts.3.up_proj.weight".
function experts.name_of(name, expert) return (name:gsub("%.experts%.", ".experts." .. expert .. ".", 1)) end

-- {{name, matrix}...} of a stack, the matrices being views; of any other tensor {{name, tensor}}.
function experts.matrices(name, tensor)
  local shape = tensor:shape()
  if not experts.is_stack(name, shape) then return { { name, tensor } } end
  local list = {}
  for e = 0, shape[1] - 1 do
    list[e + 1] = { experts.name_of(name, e), tensor:rows(e, 1):reshape { shape[2], shape[3] } }
  end
  return list
end

-- Transformers' own form, which some checkpoints have: gate and up of all experts are one tensor
-- "mlp.experts.gate_up_proj" [experts, 2 ffn, in], and down is "mlp.experts.down_proj" [experts, in, ffn].

-- Rows `first` .. of each of the matrices of `both` [experts, rows, in], as a stack of this shape.
local function rows_of_each(both, shape, first)
  local count, rows, columns = unpack(shape)
  local all, part = both:shape()[2], q.empty(shape, both:dtype(), "weights")
  for e = 0, count - 1 do
    local own = both:rows(e, 1):reshape({ all, columns }):rows(first, rows)
    part:rows(e, 1):copy(own:reshape { 1, rows, columns })
  end
  return part
end

local function fused_name(name)
  local stem, part = name:match "^(.*%.experts%.)(%l+_proj)%.weight$"
  if not stem then return nil end
  return stem .. (part == "down_proj" and part or "gate_up_proj"), part
end

-- If open weights have a stack in that form: its name there, its shape, and a function that makes the stack of it, nil
-- if it is that. Else the name and shape that are given.
function experts.fused(weights, name, shape)
  local stored, part = fused_name(name)
  if not stored or weights:info(name) or not weights:info(stored) then return name, shape end
  if part == "down_proj" then return stored, shape end
  return stored, { shape[1], 2 * shape[2], shape[3] }, function(both)
    return rows_of_each(both, shape, part == "up_proj" and shape[2] or 0)
  end
end

-- The same of a GGUF file, where one word is for gate and up of all experts. stored: the name of one of them there.
function experts.fused_in_gguf(file, stored, shape)
  local stem, part = stored:match "^(.*%.ffn_)(%l+)_exps%.weight$"
  local both = (part == "gate" or part == "up") and stem .. "gate_up_exps.weight"
  if not both or file:info(stored) or not file:info(both) then return stored, shape end
  return both, { shape[1], 2 * shape[2], shape[3] }, function(tensor)
    return rows_of_each(tensor, shape, part == "up" and shape[2] or 0)
  end
end

-- {{name, tensor}...} of a stack in that form. plain(name): a parameter's tensor, decoded.
function experts.fuse(name, plain)
  local stored, part = fused_name(name)
  if part == "up_proj" then return {} end
  if part == "down_proj" then return { { stored, plain(name) } } end
  local up = name:gsub("gate_proj%.weight$", "up_proj.weight")
  return { { stored, q.no_grad(q.concat, { plain(name), plain(up) }, 2) } }
end

-- ---------------------------------------------------------------- layers

local Layer = {}
Layer.__index = Layer

-- The layer at p:at(name) of all experts, registered in the model as a linear layer is. share: the part of its weight
-- that a token meets.
local function layer_of(p, name, e, out, inputs, bias)
  local layer = setmetatable({
    model = p.model, name = p.prefix .. name, role = name, experts = e.count, share = e.used / e.count,
    weight = p:at(name):weight("weight", { e.count, out, inputs }),
    bias = bias and p:at(name):weight("bias", { e.count, out }) or nil,
  }, Layer)
  if p:at(name):rotation("weight", inputs) then
    q.error("unsupported", ("%s: experts that are stored rotated are not supported"):format(layer.name))
  end
  return p:register(layer)
end

-- Rows first[e] .. of x under expert e and its part of the adapter, or of none. apart: in inference.
function Layer:__call(x, first, adapter, apart)
  if self.model.observe then self.model.observe(self.name .. ".weight", x, first) end
  return q.grouped_linear(x, self.weight, first, { bias = self.bias, lora = adapter, apart = apart })
end

-- The weights of a model's layers that a token meets.
function experts.met(layers)
  local count = 0
  for _, layer in ipairs(layers) do count = count + layer.weight:elements() * (layer.share or 1) end
  return count
end

-- How many of a model's parameters a token meets; nil if it meets all.
function experts.active(model)
  local all, mixed = 0, false
  for _, parameter in ipairs(model.parameters) do all = all + parameter.tensor:elements() end
  for _, layer in ipairs(model.linears) do
    if layer.experts then all, mixed = all - layer.weight:elements() * (1 - layer.share), true end
  end
  return mixed and all or nil
end

-- Refuses a model that has experts.
function experts.refuse(model, what)
  for _, layer in ipairs(model.linears) do
    if layer.experts then
      q.error("unsupported", ("%s: %s is of %d experts, which is not supported"):format(what, layer.name,
        layer.experts))
    end
  end
end

-- ---------------------------------------------------------------- the router

local score = {
  softmax = function(logits) return logits:softmax() end, sigmoid = function(logits) return logits:sigmoid() end,
}

-- What the load-balancing loss needs of a layer: how often each expert was chosen, and the sums of the scores, over
-- the tokens of documents.
local function note_load(balance, scores, choice, seq)
  local tokens, used, count = scores:shape()[1], choice:shape()[2], scores:shape()[2]
  local last = seq.cu_q:shape()[1]
  local real = q.where(q.arange(tokens):lt(seq.cu_q:slice(1, last - 1, last)), 1, 0)
  local places = real:reshape({ tokens, 1 }):expand({ tokens, used }):reshape { tokens * used }
  local chosen = q.zeros({ count }, "f32"):scatter_add(1, choice:reshape { tokens * used }, places)
  table.insert(balance, { chosen = chosen, scores = (scores * real:reshape { tokens, 1 }):sum(1), tokens = real:sum() })
end

-- The load-balancing loss [1] of what layers noted (Fedus et al. 2021, arXiv 2101.03961, equations 4 to 6), over the
-- rows of all layers together:   experts * sum over e of (choices of e / rows) * (scores of e / rows)
function experts.balance_loss(balance)
  local chosen, scores, rows = balance[1].chosen, balance[1].scores, balance[1].tokens
  for i = 2, #balance do
    chosen, scores, rows = chosen + balance[i].chosen, scores + balance[i].scores, rows + balance[i].tokens
  end
  return ((chosen * scores):sum() * chosen:elements() / (rows * rows)):reshape { 1 }
end

-- The experts of each token by its logits [tokens, experts]: what q.dispatch, the layers and q.combine take. bias: of
-- the choice alone, not of the weights (DeepSeek-AI 2024, arXiv 2412.19437).
function experts.choose(logits, e, bias, seq)
  local scores = score[e.scores](logits:dtype() == "f32" and logits or logits:to "f32")
  local choice, _, first, place = q.route(scores, e.used, { bias = bias })
  local weight = scores:gather(2, choice)
  if e.normalised then weight = weight / weight:sum(2, true) end
  if (e.scale or 1) ~= 1 then weight = weight * e.scale end
  if seq and seq.balance then note_load(seq.balance, scores, choice, seq) end
  return weight, place, first
end

-- ---------------------------------------------------------------- the block's MLP

local function gated(gate, up, c) return q.swiglu(gate, up, { gelu = c.gelu or false }) end

-- The output for x of the MLP at p:at(name) that all tokens meet. A token's is multiplied by the sigmoid of its gate, a
-- layer of one row. opt: its name, and ungated: there is no gate.
local function shared_mlp(p, c, opt)
  local name = opt.name or "shared_expert"
  local mlp = nn.swiglu_mlp { at = name }(p, { hidden = c.hidden, ffn = c.experts.shared, gelu = c.gelu })
  local gate = not opt.ungated and p:linear(name .. "_gate", 1, c.hidden)
  return function(x, seq)
    local y = mlp(x, seq)
    return gate and y * nn.project(seq, x, gate):sigmoid() or y
  end
end

-- A mixture for nn.block. opt: what the checkpoint calls the parts: at ("mlp"), router ("gate"), gate, up and down of
-- each expert (gate_proj, up_proj, down_proj); bias (router and experts have them), activate(gate, up, c) (q.swiglu),
-- shared (of the expert that all tokens meet, where c.experts has one: see shared_mlp). Its places for hooks are
-- "mlp.router", the router's logits, "mlp", and "mlp.shared_expert".
function experts.mlp(opt)
  return function(block, c)
    local p, e, activate = block:at(opt.at or "mlp"), c.experts, opt.activate or gated
    local router = p:linear(opt.router or "gate", e.count, c.hidden, opt.bias)
    local inside = p:at "experts"
    local gate_proj = layer_of(inside, opt.gate or "gate_proj", e, e.ffn, c.hidden, opt.bias)
    local up_proj = layer_of(inside, opt.up or "up_proj", e, e.ffn, c.hidden, opt.bias)
    local down_proj = layer_of(inside, opt.down or "down_proj", e, c.hidden, e.ffn, opt.bias)
    local routed = block:place "mlp.router"
    local shared = e.shared and shared_mlp(p, c, opt.shared or {})
    local passed = block:place "mlp"
    local function whole(x, mixed, seq) return passed(shared and (mixed + shared(x, seq)):compute() or mixed) end

    local function compute(x, logits, seq, adapter_of)
      local apart = seq.inference ~= nil
      local weight, place, first = experts.choose(logits, e, nil, seq)
      local rows = q.dispatch(x, place)
      local gate = gate_proj(rows, first, adapter_of(gate_proj), apart)
      local up = up_proj(rows, first, adapter_of(up_proj), apart)
      local inner = activate(gate, up, c)
      return q.combine(down_proj(inner, first, adapter_of(down_proj), apart), place, weight)
    end

    return function(x, seq)
      local logits = routed((nn.project(seq, x, router)))
      if not seq.inference then
        return whole(x, compute(x, logits, seq, function(layer) return layer.lora end), seq)
      end
      return whole(x, seq.inference:by_adapter({ x, logits }, function(rows, adapter_of)
        return compute(rows[1], rows[2], seq, adapter_of)
      end), seq)
    end
  end
end

return experts
