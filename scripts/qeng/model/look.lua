-- Looking into a model: logits of a text and the likeliest tokens, activations and gradients by name.

local hooks = require "qeng.model.hooks"
local nn = require "qeng.model.nn"
local q = require "qeng.core"

local look = {}

-- The ids of a text: special tokens that it spells count as such, and bos comes first where the tokenizer adds it.
function look.text_ids(tokenizer, text)
  local ids, info = tokenizer:encode(text, { special = true }), tokenizer:info()
  if info.add_bos and info.bos then table.insert(ids, 1, info.bos) end
  return ids
end

-- The ids that a user gave, as a list or as text.
function look.ids(model, input)
  local ids = input
  if type(input) == "string" then
    if not model.tokenizer then
      if model.tokenizer_error then error(model.tokenizer_error, 0) end
      q.error("value", "this model has no tokenizer: give token ids instead of text")
    end
    ids = look.text_ids(model.tokenizer, input)
  end
  if type(ids) ~= "table" then
    q.error("value", ("a text or a list of token ids expected, got a %s"):format(type(input)))
  end
  if #ids == 0 then q.error("value", "there are no tokens: the text or the list is empty") end
  for i, id in ipairs(ids) do
    if type(id) ~= "number" or id % 1 ~= 0 or id < 0 or id >= model.config.vocab then
      q.error("value", ("token %d is %s; the model has tokens 0 to %d"):format(i, tostring(id), model.config.vocab - 1))
    end
  end
  return ids
end

-- ---------------------------------------------------------------- the likeliest tokens

local tokenizers = setmetatable({}, { __mode = "k" })  -- of logits that model:logits gave

function look.logits(model, input)
  local ids = look.ids(model, input)
  local logits = q.no_grad(q.scope, function()
    return nn.softcap(q.linear(model:hidden(ids), model.head, { out = "f32" }), model.config)
  end)
  tokenizers[logits] = model.tokenizer
  return logits
end

local top_table = {
  __name = "Tensor:top",
  __tostring = function(list)
    local lines = {}
    for i, one in ipairs(list) do
      local token = one.token and ("  %q"):format(one.token):gsub("\\\n", "\\n") or ""
      lines[i] = ("%8d  %.4f%s"):format(one.id, one.p, token)
    end
    return table.concat(lines, "\n")
  end,
}

-- The k likeliest tokens under a row of logits (from 0; the last one): {{id =, p =, token =}...}.
function q.Tensor:top(k, row)
  local shape = self:shape()
  local vocab = shape[#shape]
  k = k or 5
  if #shape > 2 or #shape == 0 then
    q.error("shape", ("top: logits of [vocab] or [tokens, vocab] expected, got [%s]"):format(table.concat(shape, ", ")))
  end
  local rows = #shape == 2 and shape[1] or 1
  if type(k) ~= "number" or k < 1 or k % 1 ~= 0 then
    q.error("value", ("top: %s tokens; expected a whole number from 1"):format(tostring(k)))
  end
  row = row or rows - 1
  if type(row) ~= "number" or row < 0 or row >= rows or row % 1 ~= 0 then
    q.error("value", ("top: there is no row %s; rows go from 0 to %d"):format(tostring(row), rows - 1))
  end
  local found = q.no_grad(q.scope, function()
    local logits = self:reshape({ rows, vocab }):rows(row, 1):to "f32"
    return q.logits.logprobs(logits, { -1 }, { top = math.min(k, vocab) })[1].top
  end)
  local tokenizer, list = tokenizers[self], {}
  for i, one in ipairs(found) do
    local named = tokenizer and one.id < tokenizer:vocab_size()
    list[i] = { id = one.id, p = math.exp(one.logprob), token = named and tokenizer:bytes(one.id) or nil }
  end
  return setmetatable(list, top_table)
end

-- ---------------------------------------------------------------- activations and gradients

-- What leaves these places (all) for a text or ids: {[place] = tensor}.
function look.activations(model, input, places)
  local ids, seen = look.ids(model, input), {}
  q.no_grad(q.scope, function()
    hooks.watching(model, places or model.places, function(x, place) seen[place] = q.keep(x) end,
      function() model:hidden(ids) end)
  end)
  return seen
end

-- The gradients that parameters and adapters have, by name.
function look.gradients(model)
  local found = {}
  for _, list in ipairs { model.parameters, model.adapter and model.adapter.parameters or {} } do
    for _, parameter in ipairs(list) do found[parameter.name] = parameter.tensor:grad() end
  end
  return found
end

return look
