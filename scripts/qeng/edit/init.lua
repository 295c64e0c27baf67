-- q.edit: facts put into a model's weights, one by ROME (Meng et al. 2022, arXiv 2202.05262) or many by MEMIT (Meng et
-- al. 2022, arXiv 2210.07229), and taken out again.
--
--   local statistics = q.edit.statistics(model, { layers = { 5 } })
--   local edit = q.edit.rome(model, fact, { layer = 5, statistics = statistics })
--   edit:undo()
--
-- The matrix W of a layer's MLP gives values for keys, W k. For n facts, K [ffn, n] are keys at the subjects' last
-- tokens, R [hidden, n] what the values lack, and with C = E[k k^T] of any text
--   W' = W + R (lambda I + K^T C^-1 K)^-1 K^T C^-1 = W + R K^T (lambda C + K K^T)^-1
-- which changes W k least for the keys of the text. ROME is lambda = 0 and n = 1: W' k is then what is wanted exactly.

local cholesky = require "qeng.edit.cholesky"
local facts = require "qeng.edit.facts"
local hooks = require "qeng.model.hooks"
local q = require "qeng.core"
local scores = require "qeng.edit.scores"
local sites = require "qeng.edit.sites"
local statistics = require "qeng.edit.statistics"
local target = require "qeng.edit.target"

local edit = {}

local Edit = {}
Edit.__index = Edit

local function options(name, opt, defaults)
  local given = {}
  for key, value in pairs(defaults) do given[key] = value end
  for key, value in pairs(opt or {}) do
    if defaults[key] == nil and key ~= "layer" and key ~= "layers" and key ~= "statistics" then
      q.error("value", ("edit.%s: there is no option %s"):format(name, tostring(key)))
    end
    given[key] = value
  end
  return given
end

-- The rows of (lambda I + K^T C^-1 K)^-1 K^T C^-1 [n, ffn], for keys [n, ffn].
local function inverse_keys(known, index, keys, lambda)
  local list = keys:table()
  local solved, n = known:solve(index, list), #list
  local inner, rows = {}, {}
  for i = 1, n do
    inner[i], rows[i] = {}, {}
    for j = 1, n do
      local sum = i == j and lambda or 0
      for k = 1, #list[i] do sum = sum + list[i][k] * solved[j][k] end
      inner[i][j] = sum
    end
  end
  local factor = cholesky.factor(n, function(i) return inner[i] end, 0)
  for k = 1, #list[1] do
    local column = {}
    for i = 1, n do column[i] = solved[i][k] end
    for i, value in ipairs(factor:solve(column)) do rows[i][k] = value end
  end
  return q.tensor(rows)
end

local function place(model, site, weight)
  site.layer.weight, site.parameter.tensor = weight, weight
  hooks.changed(model)
end

-- Adds R times the inverse keys to a site's weight: a new tensor of the model's dtype takes its place. keys: [n, ffn],
-- lacking: [n, hidden].
local function add(self, site, keys, lacking, lambda)
  local before = site.layer.weight
  local after = q.no_grad(q.scope, function()
    local change = lacking:matmul(inverse_keys(self.statistics, site.index, keys, lambda), { transpose_a = true })
    return q.keep((before:to "f32" + change):to(self.model.dtype):compute())
  end)
  after:label(site.name)
  if before:dtype() ~= after:dtype() then
    io.stderr:write(("%s: %s is decoded to %s for the edit\n"):format(site.name, before:dtype(), after:dtype()))
  end
  table.insert(self.weights, { site = site, before = before, after = after })
  place(self.model, site, after)
end

-- The weights are what they were, to the bit: the tensors from before are put back.
function Edit:undo()
  for i = #self.weights, 1, -1 do
    local one = self.weights[i]
    if one.site.layer.weight ~= one.after then
      q.error("state", ("edit: %s has been changed since: undo what came later first"):format(one.site.name))
    end
  end
  for i = #self.weights, 1, -1 do place(self.model, self.weights[i].site, self.weights[i].before) end
  self.weights = {}
end

-- The key of a fact at each site and what a place gives there: means over the contexts of target.documents.
local function means(model, list, where, packed)
  return sites.sums(model, list, where, packed.batch, packed.subjects, packed.shares)
end

local function length(x) return q.no_grad(q.scope, function() return x:norm():item() end) end

-- The wanted value of a fact at a place: what is there now and delta.
local function wanted(self, fact, where, list, opt)
  local packed = target.documents(self.model, fact, self.statistics.contexts)
  local keys, now = means(self.model, list, where, packed)
  local delta, found = target.find(self.model, where, packed, length(now), opt)
  local value = q.no_grad(q.scope, function() return q.keep((now + delta:unsqueeze(1)):compute()) end)
  return packed, value, keys, now, found
end

local function new(model, known)
  if model.mode ~= "frozen" then
    q.error("state", "edit: the model is being trained; merge its adapter, or load it anew")
  end
  return setmetatable({ model = model, weights = {}, statistics = known }, Edit)
end

-- The layers of a list of numbers or texts; without one, five around a fifth of the way up. ROME takes the middle one.
function edit.layers(model, given)
  local count, list = model.config.layers, {}
  for i, index in ipairs(given or {}) do list[i] = sites.of(model, tonumber(index) or index).index end
  if #list > 0 then return list end
  local middle = math.floor(count / 5)
  -- Not the last one: no token after the subject sees what it gives there.
  for index = math.max(middle - 2, 0), math.min(middle + 2, count - 2) do list[#list + 1] = index end
  if #list == 0 then q.error("unsupported", "edit: a model of one layer has none that later tokens see") end
  return list
end

local function middle_of(layers) return layers[math.floor((#layers + 1) / 2)] end

local shared = { steps = 20, lr = 0.3, kl = 0.0625, decay = 0.5, clamp = 2, enough = 0.05, text = false, tokens = 4000,
  contexts = 5, ridge = 0.01, seed = 0 }

-- The statistics that an edit was given, or those of these layers.
local function statistics_of(model, opt, layers)
  for _, index in ipairs(opt.statistics and layers or {}) do opt.statistics:sum(index) end  -- it has them
  return opt.statistics or statistics.new(model, { layers = layers, text = opt.text or nil, tokens = opt.tokens,
    contexts = opt.contexts, ridge = opt.ridge, seed = opt.seed })
end

-- Puts a fact (edit/facts.lua) into one layer.
function edit.rome(model, fact, opt)
  facts.check(fact, "edit.rome")
  opt = options("rome", opt, shared)
  local site = sites.of(model, opt.layer or middle_of(edit.layers(model)))
  local self = new(model, statistics_of(model, opt, { site.index }))
  local _, value, keys, now, found = wanted(self, fact, site.place, { site }, opt)
  self.key, self.value, self.found = keys[site.index][0], value[0], { found }
  add(self, site, keys[site.index], q.no_grad(function() return value - now end), 0)
  return self
end

-- Refuses a layer whose MLP is not simply added to the residual stream (norms behind it, factors): what its matrix
-- gives and what the stream lacks are different things then.
local function check_sum(model, index)
  local before = index == 0 and "embed" or "layers." .. (index - 1)
  local parts = { before, ("layers.%d.attn"):format(index), ("layers.%d.mlp"):format(index), "layers." .. index }
  local off = q.no_grad(q.scope, function()
    local seen, x = model:activations({ 0, 1, 2, 3 }, parts), {}
    for i, part in ipairs(parts) do x[i] = seen[part]:to "f32" end
    return ((x[1] + x[2] + x[3] - x[4]):norm() / x[4]:norm()):item()
  end)
  if not (off < 0.02) then
    q.error("unsupported", ("edit.memit: layer %d does not simply add its MLP's output to the residual stream"):format(
      index))
  end
end

-- Gives each site its share of what the last one's output lacks of the values, after those before it.
local function spread(self, all, where, packed, values, lambda)
  for i, site in ipairs(all) do
    local keys, lacking = {}, {}
    for f = 1, #packed do
      local found, now = means(self.model, { site }, where, packed[f])
      keys[f], lacking[f] = found[site.index], (values[f] - now) / (#all - i + 1)
    end
    add(self, site, q.concat(keys), q.concat(lacking), lambda)
  end
end

-- Puts facts into several layers.
function edit.memit(model, list, opt)
  local defaults = {}
  for key, value in pairs(shared) do defaults[key] = value end
  defaults.lambda, defaults.clamp = 200, 0.75  -- of the residual stream, which is longer than what an MLP adds to it
  opt = options("memit", opt, defaults)
  if type(list) ~= "table" or #list == 0 then q.error("value", "edit.memit: a list of facts is expected") end
  for i, fact in ipairs(list) do facts.check(fact, ("edit.memit: fact %d"):format(i)) end
  local layers, all = opt.layers or edit.layers(model), {}
  for i, index in ipairs(layers) do
    all[i] = sites.of(model, index)
    check_sum(model, index)
  end
  local self, where = new(model, statistics_of(model, opt, layers)), "layers." .. layers[#layers]
  local packed, values = {}, {}
  self.found = {}
  for i, fact in ipairs(list) do
    local documents, value, _, _, found = wanted(self, fact, where, all, opt)
    packed[i], values[i], self.found[i] = documents, value, found
  end
  local ok, err = pcall(q.no_grad, spread, self, all, where, packed, values, opt.lambda)
  if not ok then
    self:undo()
    error(err, 0)
  end
  return self
end

edit.statistics, edit.scores, edit.facts, edit.Edit = statistics.new, scores.of, facts.read, Edit

-- A model is edited on the runtime where it lies.
for _, name in ipairs { "statistics", "scores", "rome", "memit" } do
  local make = edit[name]
  edit[name] = function(model, ...) return model.runtime:use(make, model, ...) end
end

return edit
