-- A head that drafts tokens (multi-token prediction; DeepSeek-AI 2024, arXiv 2412.19437, section 2.2): from the hidden
-- state h_t of token t, which predicts token t + 1, and that token, a layer of its own predicts token t + 2:
--   u_t = W_fc [norm(embedding of x_{t+1}); norm(h_t)],   y_t = norm(layer(u_t)),   logits of x_{t+2} = head(y_t)
-- Embedding and head are the model's. For tokens further on y_t takes the place of h_t. The parameters are mtp.* of a
-- checkpoint; the layer is of the kind of the model's last one with attention.

local experts = require "qeng.model.experts"
local kept = require "qeng.model.kept"
local nn = require "qeng.model.nn"
local q = require "qeng.core"

local mtp = {}
local Head = {}

-- ---------------------------------------------------------------- where its parameters come from

-- Those of an open file.
local function of_file(model, file, path, writable)
  return function(name, shape)
    local half_of
    name, shape, half_of = experts.fused(file, name, shape)
    if not file:info(name) then
      q.error("format", ("%s: tensor %s is missing: the head that drafts tokens is not whole"):format(path, name))
    end
    local tensor = file:tensor(name, {
      dtype = model.dtype, shape = shape, copy = writable and not half_of, label = "weights",
    })
    return half_of and half_of(tensor) or tensor
  end
end

-- Those that a new head begins with: its layer is a copy of the model's, W_fc passes the hidden state on.
local function of_layer(model, seed)
  local c, by_name = model.config, {}
  for _, parameter in ipairs(model.parameters) do by_name[parameter.name] = parameter.tensor end
  local function from(part) return ("%slayers.%d.%s"):format(model.body or "model.", model.draft_layer, part) end
  local function kept_as(shape, make)
    local tensor = q.empty(shape, model.dtype, "weights")
    q.no_grad(q.scope, function() tensor:copy(make():to(model.dtype)) end)
    return tensor
  end
  return function(name, shape, plus_one)
    local part = name:match "^mtp%.layers%.0%.(.*)$"
    if part then return kept_as(shape, function() return by_name[from(part)] end) end
    if name == "mtp.fc.weight" then
      return kept_as(shape, function()
        local rows = q.arange(c.hidden)
        local of_token = q.randn({ c.hidden, c.hidden }, { std = 0.02, seed = seed, subsequence = 1 })
        return q.concat({ of_token, rows:unsqueeze(2):eq(rows) * 1.0 }, 2)
      end)
    end
    return q.zeros(shape, model.dtype, "weights"):fill(plus_one and 0 or 1)
  end
end

-- Whether the model's folder, or GGUF file, has one.
function mtp.has_own(model)
  local left = model.kept
  return model.draft_source ~= nil or left and left.file:info "mtp.fc.weight" ~= nil
end

-- The path of the head in a folder that Model:save_adapter wrote: PEFT's format has no place for it.
function mtp.beside(dir) return dir .. "/mtp.safetensors" end

local function source_of(model, from, opt)
  if from == "layer" then return of_layer(model, opt.seed or 0) end
  if from == "folder" then
    return model.draft_source or of_file(model, model.kept.file, model.dir, opt.writable)
  end
  return of_file(model, q.weights.open(mtp.beside(from)), from, opt.writable)
end

-- ---------------------------------------------------------------- the head

-- The head of a model, by a source (model/init.lua) of its parameters.
function mtp.build(model, source)
  if not model.draft_layer then
    q.error("unsupported", "mtp: the model has no layer of attention, which the head would be one of")
  end
  local c = model.config
  local head = setmetatable({
    parameters = {}, linears = {}, states = {}, places = {}, input = "post", weight = 0, depth = 1,
  }, { __index = function(_, key) return Head[key] or model[key] end })
  local p = nn.params(head, source, "mtp.")
  head.of_token = p:norm("pre_fc_norm_embedding", c.hidden, c.eps, c.plus_one)
  head.of_hidden = p:norm("pre_fc_norm_hidden", c.hidden, c.eps, c.plus_one)
  head.fc = p:linear("fc", c.hidden, 2 * c.hidden)
  head.block = model.new_block(p:at "layers.0", model.draft_layer)
  head.norm = p:norm("norm", c.hidden, c.eps, c.plus_one)
  return head
end

-- Gives the model a head. opt: from ("folder", its own; "layer", a new one; by default its own if it has one; else the
-- folder of an adapter that it was trained beside), writable (it will be trained), input ("post": h is the hidden state
-- behind the model's last norm, as released heads have it; "pre": before), seed.
function mtp.attach(model, opt)
  opt = opt or {}
  local from = opt.from or mtp.has_own(model) and "folder" or "layer"
  if from == "folder" and not mtp.has_own(model) then
    q.error("value", "mtp: the model has no head that drafts tokens in its folder: train one (recipes/mtp.lua, or "
      .. "--mtp), in Lua attach_mtp { from = \"layer\" }")
  end
  if model.stream and from == "layer" then
    q.error("unsupported", "mtp: the weights are streamed: load the model with weights = \"copy\"")
  end
  local input = opt.input or "post"
  if input ~= "post" and input ~= "pre" then
    q.error("value", ("mtp: input is %s, expected post or pre"):format(tostring(input)))
  end
  local head = mtp.build(model, source_of(model, from, opt))
  head.input = input
  kept.leave(model, "^mtp%.")
  model.config_values.mtp_num_hidden_layers = 1
  model.mtp = head
  return head
end

-- Writes the head into the folder of an adapter.
function mtp.save(model, dir)
  local tensors = {}
  for _, parameter in ipairs(model.mtp.parameters) do
    for _, part in ipairs(experts.matrices(parameter.name, parameter.tensor)) do tensors[#tensors + 1] = part end
  end
  q.safetensors.save(mtp.beside(dir), tensors, { metadata = { format = "pt" } })
end

-- Takes the head off, also one that the folder has.
function mtp.strip(model)
  kept.leave(model, "^mtp%.")
  model.config_values.mtp_num_hidden_layers = model.config_values.mtp_num_hidden_layers and 0 or nil
  model.mtp = nil
end

-- y [rows, hidden] of hidden states [rows, hidden] and the tokens after theirs [rows] i32. seq: as for a block.
function Head:forward(hidden, tokens, seq)
  local of_token = self.of_token(self.embed_rows(tokens, seq.positions))
  local u = (nn.project(seq, q.concat({ of_token, self.of_hidden(hidden) }, 2), self.fc))
  return (select(2, self.norm:of_sum(self.block(u, nil, seq))))
end

-- What the head reads of what Model.forward gives.
function Head:reads(hidden, residual) return self.input == "pre" and residual or hidden end

-- Each row's successor in a packed batch; the last row gets 0.
local function next_of(x)
  local rows = x:shape()[1]
  return x:slice(1, 1, rows):pad(1, 0, 1)
end

-- [rows, 1] i32: 1 where a row's successor is of the same document, else 0. (A captured program has no cast to i32.)
local function same_document(positions)
  local goes_on = next_of(positions):gt(0):unsqueeze(2) * 1
  return q.concat({ q.zeros(goes_on:shape()), goes_on }, 2):argmax(2):unsqueeze(2)
end

-- The losses [1] of the first, second .. token after next, self.depth of them, and nll [t] of the first's: weight times
-- micro_batch.scale times the sum of nll, of targets of the same document. hidden: what the head reads of the batch.
function Head:losses(hidden, batch, seq, weight)
  local tokens, targets, losses, first = batch.tokens, batch.targets, {}, nil
  local same, scale = same_document(batch.positions), (batch.scale * weight):compute()
  local none = q.zeros({ targets:elements(), 1 }, "i32"):fill(-1)
  for step = 1, self.depth do
    tokens = next_of(tokens)
    targets = q.concat({ none, next_of(targets):unsqueeze(2) }, 2):gather(2, same):reshape { targets:elements() }
    hidden = q.block("mtp", self.forward, self, hidden, tokens, seq)
    local loss, nll = q.block("mtp", q.lm_head_loss, hidden, self.head, targets, scale,
      { softcap = self.config.logit_softcap, trained = batch.trained })  -- which are fewer with each step
    losses[step], first = loss, first or nll
  end
  return losses, first
end

return mtp
