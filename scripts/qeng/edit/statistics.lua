-- What a model's keys are like over a text: C = E[k k^T], uncentred, for each layer that is edited, and pieces of the
-- text to put before prompts.

local cholesky = require "qeng.edit.cholesky"
local progress = require "qeng.console.progress"
local q = require "qeng.core"
local sites = require "qeng.edit.sites"

local length = 256  -- tokens of a document

local Statistics = {}
Statistics.__index = Statistics

-- Documents [ids] that the model writes by itself, of so many tokens in all, at temperature 1.
local function written(model, tokens, seed)
  local info, documents, count = model.tokenizer:info(), {}, 0
  local first = info.bos or info.eos
  if not first then q.error("value", "edit: the tokenizer has no token that begins a text: give one") end
  local engine = model:engine { max_batch = 64, context = length + 1 }
  while count < tokens do
    local requests, before = {}, count
    for i = 1, math.min(64, math.ceil((tokens - count) / length)) do
      requests[i] = engine:submit { ids = { first }, max_tokens = length, temperature = 1, seed = seed }
      seed = seed + 1
    end
    engine:finish()
    for _, request in ipairs(requests) do
      if request.error then error(request.error, 0) end
      if #request.output > 0 then documents[#documents + 1] = request.output end
      count = count + #request.output
    end
    if count == before then q.error("value", "edit: the model writes nothing by itself: give a text") end
  end
  engine:close()
  return documents
end

local function cut(ids, tokens)
  local documents = {}
  for first = 1, math.min(#ids, tokens), length do
    documents[#documents + 1] = { unpack(ids, first, math.min(first + length - 1, #ids, tokens)) }
  end
  return documents
end

-- Pieces of 5 and of 10 tokens from seeded places of the documents: {ids...}. The first is empty.
local function pieces(documents, count, seed)
  local found = { {} }
  local drawn = q.uniform({ 2 * math.max(count, 1) }, { seed = seed, subsequence = 1 }):table()
  for i = 1, count do
    local ids, size = documents[math.floor(drawn[2 * i - 1] * #documents) + 1], i % 2 == 0 and 10 or 5
    local first = math.floor(drawn[2 * i] * math.max(#ids - size, 0))
    found[#found + 1] = { unpack(ids, first + 1, math.min(first + size, #ids)) }
  end
  return found
end

-- opt: layers (a list, from 0); text (by default what the model itself writes); tokens (4000, or as many as the text
-- has); ridge (0.01): a share of C's mean diagonal that is added to it; contexts (5): pieces of text, beside none, that
-- prompts are read behind; seed (0). The matrices take layers x ffn^2 x 12 bytes.
local function new(model, opt)
  opt = opt or {}
  local list, seed, tokens = {}, opt.seed or 0, opt.tokens or 4000
  if not model.tokenizer then q.error("value", "edit: the model has no tokenizer") end
  if type(opt.layers) ~= "table" or #opt.layers == 0 then
    q.error("value", "edit: which layers? statistics take a list of them")
  end
  for i, index in ipairs(opt.layers) do
    list[i] = sites.of(model, index)
    if i > 1 and index <= opt.layers[i - 1] then q.error("value", "edit: layers are listed in their order") end
  end
  local documents = opt.text and cut(model.tokenizer:encode(opt.text), tokens) or written(model, tokens, seed)
  if #documents == 0 then q.error("value", "edit: the text has no tokens") end
  local self = setmetatable({ model = model, ridge = opt.ridge or 0.01, sums = {}, count = 0, factors = {},
    contexts = pieces(documents, opt.contexts or 5, seed) }, Statistics)
  for _, site in ipairs(list) do
    local width = site.layer.weight:shape()[2]
    self.sums[site.index] = q.keep(q.zeros({ width, width }))
  end
  local line = progress.new()
  for i, ids in ipairs(documents) do
    sites.pass(model, list, list[#list].place, ids, function(site, x)
      local k = x:to "f32"
      local sum = self.sums[site.index]
      sum:set(sum + k:matmul(k, { transpose_a = true }))
    end, function() end)
    self.count = self.count + #ids
    line:line(("keys of %d of %d documents"):format(i, #documents))
  end
  line:finish()
  return self
end

-- The sum of k k^T of a layer over the text, and how many keys are in it.
function Statistics:sum(index)
  local sum = self.sums[index]
  if not sum then q.error("value", ("edit: there are no statistics of layer %s"):format(tostring(index))) end
  return sum, self.count
end

-- (C + ridge)^-1 k of a layer for each of a list of keys, as lists of numbers.
function Statistics:solve(index, keys)
  local sum, count = self:sum(index)
  local n = sum:shape()[1]
  if not self.factors[index] then
    local trace, rows = 0, {}
    for i = 1, n do
      local row = sum:rows(i - 1, 1):table()[1]
      for j = 1, i do row[j] = row[j] / count end
      trace, rows[i] = trace + row[i], row
    end
    self.factors[index] = cholesky.factor(n, function(i) return rows[i] end, self.ridge * trace / n)
  end
  local solved = {}
  for i, key in ipairs(keys) do solved[i] = self.factors[index]:solve(key) end
  return solved
end

return { new = new, Statistics = Statistics }
