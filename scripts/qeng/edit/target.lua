-- What a layer should give at a subject's last token so that the model says something else of the subject: a change
-- delta of it that is found by Adam (Meng et al. 2022, arXiv 2202.05262, equation 4).
--   loss = mean over contexts of the nll of the new target + kl KL(P' || P of "{subject} is a") + decay |delta| / |v|^2
-- v is what the layer gives there now, P what the model says. After each step |delta| is brought to clamp |v| at most.

local hooks = require "qeng.model.hooks"
local q = require "qeng.core"
local facts = require "qeng.edit.facts"

local target = {}

-- The documents of a fact: in each context the prompt and its new target, and last what is to stay. The first context
-- is empty, and weighs as much as the others together: at the beginning of a text a subject's key is another one.
-- A table: batch (of q.pack), subjects (the row of the subject's last token in each), shares (what each document
-- weighs, the last one 0), rows (those whose next token counts; the last is that of the last document), targets (what
-- follows them), weights (of their nll, of sum 1).
function target.documents(model, fact, contexts)
  local documents, first = {}, 0
  local packed = { subjects = {}, shares = {}, rows = {}, targets = {}, weights = {} }
  local others = #contexts - 1
  for i, context in ipairs(contexts) do
    documents[i] = facts.about(model.tokenizer, fact.prompt, fact.subject, fact.target_new, context)
  end
  documents[#documents + 1] = facts.about(model.tokenizer, "{} is a", fact.subject, "")
  for d, document in ipairs(documents) do
    packed.subjects[d] = first + document.subject
    packed.shares[d] = d > #contexts and 0 or others == 0 and 1 or d == 1 and 0.5 or 0.5 / others
    local count = #document.tokens - document.prompt
    for i = document.prompt, #document.tokens - 1 do
      packed.rows[#packed.rows + 1] = first + i - 1
      packed.targets[#packed.targets + 1] = { document.tokens[i + 1] }
      packed.weights[#packed.weights + 1] = packed.shares[d] / count
    end
    first = first + #document.tokens
  end
  packed.rows[#packed.rows + 1] = first - 1
  packed.weights = q.keep(q.tensor(packed.weights))
  packed.batch = q.pack(documents)
  return packed
end

-- A hook that adds delta to rows of what passes.
local function adding(delta, rows, count)
  local at = {}
  for i = 1, count do at[i] = 0 end
  for _, row in ipairs(rows) do at[row + 1] = 1 end
  local shares = q.keep(q.tensor(at):reshape { count, 1 })
  return function(x) return (x + shares * delta):to(x:dtype()) end
end

-- What the model says at the rows whose next token counts, as log probabilities [rows, vocab].
local function said(model, packed)
  local hidden = model:hidden(packed.batch):index_select(1, packed.rows)
  return q.linear(hidden, model.head, { out = "f32" }):log_softmax()
end

-- loss [1] and nll [1] of packed documents; stays: the log probabilities of the last row before.
local function losses(model, packed, stays, delta, decay, kl)
  local all, count = said(model, packed), #packed.targets
  local last = all:slice(1, count)
  local nll = (all:slice(1, 0, count):gather(2, packed.targets):squeeze(2) * -packed.weights):sum():compute()
  local divergence = (last:exp() * (last - stays)):sum()
  local size = ((delta * delta):sum() + 1e-24):sqrt()  -- at zero the norm has no gradient
  return (nll + kl * divergence + decay * size):compute(), nll
end

local function length_of(x) return q.no_grad(q.scope, function() return x:norm():item() end) end

-- Finds delta [hidden] at a place. packed: of target.documents. size: |v|. opt: steps, lr (of each element's step in
-- units of |v| / sqrt(hidden)), kl, decay, clamp, enough (the loss at which it is done). Returns delta and {loss =,
-- nll =, steps =} of when it was done.
function target.find(model, place, packed, size, opt)
  local hidden = model.config.hidden
  local delta = q.keep(q.zeros({ hidden }, "f32", "edit"))
  delta:requires_grad(true)
  local stays = q.no_grad(q.scope, function()
    return q.keep(said(model, packed):slice(1, #packed.targets):compute())
  end)
  local hook = adding(delta, packed.subjects, packed.batch.tokens:elements())
  local before = model.hooks and model.hooks[place]
  hooks.set(model, place, function(x) return hook(before and before(x, place) or x) end)
  local ok, program, loss, nll = pcall(q.capture, function()
    local total, of_target = losses(model, packed, stays, delta, opt.decay / size ^ 2, opt.kl)
    total:backward()
    return total, of_target
  end)
  hooks.set(model, place, before)
  if not ok then error(program, 0) end
  local adam, found = q.adamw({ delta }, { lr = opt.lr * size / math.sqrt(hidden), decay = 0 }), nil
  for step = 1, opt.steps do
    program:run()
    found = { loss = loss:item(), nll = nll:item(), steps = step - 1 }
    if found.loss < opt.enough or step == opt.steps then break end
    adam:step()
    local most = opt.clamp * size / length_of(delta)
    if most < 1 then q.no_grad(function() delta:set(delta * most) end) end
  end
  program:free()
  if found.steps > 0 and length_of(delta) == 0 then
    q.error("value", ("edit: what leaves %s at the subject changes nothing that follows: take a lower layer"):format(
      place))
  end
  delta:requires_grad(false)
  return delta, found
end

return target
