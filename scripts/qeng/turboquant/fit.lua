-- Changes of basis that are fitted to captures, per layer, for kv_evaluate.lua to judge on other documents.
--
-- transport: for each head of values their mean, and of keys a mean and a matrix A. The code is of A^-1 (k - mean),
--   turned at random, instead of k, and products are with A q instead of q. They are right but for the mean, which adds
--   the same to the logits of all keys: a softmax does not see it. A code of so many bits, turned at random, errs
--   evenly in all directions, by a share of the vector's length, so that the mean squared error of logits is in
--   proportion to
--     tr(M Q) tr(M^-1 K),   M = A^T A,  Q = E[q q^T],  K = E[(k - mean)(k - mean)^T].
--   It is least where M Q M is in proportion to K: M = Q^-1/2 (Q^1/2 K Q^1/2)^1/2 Q^-1/2, and A = M^1/2.
--
-- so8_vector, so8_plus, so8_minus: zapabob/Turboquant-CUDA's rotations of blocks of 8, learned as there: 60 steps of
--   Adam at 0.05 on |k' - k|^2 + 1 - cos(q k, q k') + 0.1 KL(softmax(q k) || softmax(q k')). The code's steps count as
--   constants in gradients.
--
-- values: how sensitive attention is to channels of values (values.lua); out/sensitivity.csv lists it.

local capture = require "qeng.turboquant.capture"
local codecs = require "qeng.turboquant.codecs"
local q = require "qeng.core"
local rotations = require "qeng.codes.rotations"
local symmetric = require "qeng.codes.symmetric"
local values = require "qeng.turboquant.values"

local fit = {}

local ridge = 1e-3       -- of the mean eigenvalue, added to each: directions that were not met are not blown up
local smallest = 1e-9    -- eigenvalues, of the largest

-- Sums over documents of heads [n, dim]: {count, sum [dim], squares [dim, dim]}.
local function add(sums, x)
  sums.count = (sums.count or 0) + x:shape()[1]
  local sum, squares = x:sum(1), x:matmul(x, { transpose_a = true })
  sums.sum = q.keep((sums.sum and sums.sum + sum or sum):compute())
  sums.squares = q.keep((sums.squares and sums.squares + squares or squares):compute())
end

local function covariance(sums, centred)
  local n, rows, mean, trace = sums.count, sums.squares:table(), sums.sum:table(), 0
  for i, row in ipairs(rows) do
    mean[i] = centred and mean[i] / n or 0
    for j = 1, #row do row[j] = row[j] / n end
  end
  for i, row in ipairs(rows) do
    for j = 1, #row do row[j] = row[j] - mean[i] * mean[j] end
    trace = trace + row[i]
  end
  for i, row in ipairs(rows) do row[i] = row[i] + ridge * trace / #rows end
  return rows, mean
end

-- A and its inverse.
function fit.transport_map(of_queries, of_keys)
  local root, inverse = symmetric.power(of_queries, 0.5, smallest), symmetric.power(of_queries, -0.5, smallest)
  local middle = symmetric.power(symmetric.product(symmetric.product(root, of_keys), root), 0.5, smallest)
  local m = symmetric.product(symmetric.product(inverse, middle), inverse)
  return symmetric.power(m, 0.5, smallest), symmetric.power(m, -0.5, smallest)
end

local function heads_of(x, first, count)
  local shape = x:shape()
  return x:slice(2, first, first + count):reshape({ shape[1] * count, shape[3] }):to("f32"):compute()
end

-- {mean = [kv_heads, dim], map = A, inverse = A^-1: [kv_heads, dim, dim], value_mean = [kv_heads, value_dim]} of a
-- layer, as lists.
local function transport(folder, manifest, documents, layer)
  local s = manifest.settings
  local group, found = s.heads / s.kv_heads, { mean = {}, map = {}, inverse = {}, value_mean = {} }
  q.scope(function()
    local queries, keys, of_values = {}, {}, {}
    for d = 1, documents do
      local tensors = capture.document(folder, manifest, d)
      local function part(name) return tensors[("layers.%d.%s"):format(layer, name)] end
      local query, key, value = part "query", part "key", part "value"
      for h = 1, s.kv_heads do
        queries[h], keys[h], of_values[h] = queries[h] or {}, keys[h] or {}, of_values[h] or {}
        add(queries[h], heads_of(query, (h - 1) * group, group))
        add(keys[h], heads_of(key, h - 1, 1))
        add(of_values[h], heads_of(value, h - 1, 1))
      end
    end
    for h = 1, s.kv_heads do
      local of_keys, mean = covariance(keys[h], true)
      found.mean[h] = mean
      found.value_mean[h] = (of_values[h].sum / of_values[h].count):table()
      found.map[h], found.inverse[h] = fit.transport_map(covariance(queries[h], false), of_keys)
    end
  end)
  return found
end

-- A learned rotation [dim, dim] of a layer. Keys and queries of each document are taken at every n-th position, so that
-- there are `rows` of them.
local function learned(folder, manifest, documents, layer, view, bits, rows)
  local s = manifest.settings
  local codec, keys, queries = codecs.sphere(s.head_dim, { bits = bits, correction = "none" }), {}, {}
  local index, group = {}, s.heads / s.kv_heads
  for i = 1, math.min(rows, s.tokens) do index[i] = math.floor((i - 0.5) * s.tokens / math.min(rows, s.tokens)) end
  local picked = q.tensor(index, "i32")
  for d = 1, documents do
    local tensors = capture.document(folder, manifest, d)
    local function part(name) return tensors[("layers.%d.%s"):format(layer, name)]:to("f32"):index_select(1, picked) end
    local key, query = part "key", part "query"
    for h = 0, s.kv_heads - 1 do
      keys[#keys + 1] = heads_of(key, h, 1)
      queries[#queries + 1] = heads_of(query, h * group, 1)
    end
  end
  local k, query = q.stack(keys, 1):compute(), (q.stack(queries, 1) * s.scale):compute()
  local logits = query:matmul(k, { transpose_b = true })
  local logs = logits:log_softmax():compute()
  local weights, length = logs:exp():compute(), logits:square():sum():sqrt():compute()
  local a = q.zeros { s.head_dim / 8, 8, 8 }
  a:requires_grad(true)
  local adam = q.adamw({ a }, { lr = 0.05, decay = 0 })
  for _ = 1, 60 do
    q.scope(function()
      local r = rotations.of_blocks(a, view)
      local y = k:matmul(r, { transpose_b = true })
      local step = q.no_grad(function()
        local rows_ = y:reshape { -1, s.head_dim }
        return (codec.reconstruct(rows_:compute()):reshape(y:shape()) - y):compute()
      end)
      local decoded = (y + step):matmul(r)
      local found = query:matmul(decoded, { transpose_b = true })
      local cosine = (found * logits):sum() / (found:square():sum():sqrt() * length)
      local kl = (weights * (logs - found:log_softmax())):sum() / (weights:elements() / s.tokens)
      local loss = (decoded - k):square():mean() + (1 - cosine) + kl * 0.1
      loss:backward()
      adam:step()
    end)
  end
  return rotations.of_blocks(a, view)
end

fit.names, fit.known = { "transport", "so8_vector", "so8_plus", "so8_minus", "values" }, {}
for _, name in ipairs(fit.names) do fit.known[name] = true end

-- Fits to the first `documents` of a capture, and writes out/layer_003.safetensors; layers that are there stay.
-- opt: {documents =, bits = of the codes that learned rotations are fitted to, rows = keys of a document and head that
-- they are fitted to, and queries for values, names = of what is fitted, watch = function(i, layers)}
function fit.run(folder, out, opt)
  local manifest = capture.manifest(folder)
  if opt.documents > #manifest.documents then
    q.error("value", ("%d documents to fit to; the capture has %d"):format(opt.documents, #manifest.documents))
  end
  local settings = q.host.hash(q.json.encode { manifest, opt.documents, opt.bits, opt.rows, opt.names })
  for i, layer in ipairs(manifest.settings.layers) do
    local path = ("%s/layer_%03d.safetensors"):format(out, layer)
    local there = q.fs.kind(path) and q.safetensors.open(path)
    if there and there:metadata().settings ~= settings then
      q.error("value", path .. ": was fitted to another capture or otherwise; give another folder")
    end
    if not there then
      q.scope(function()
        local tensors = {}
        for _, name in ipairs(opt.names) do
          if name == "transport" then
            for part, rows in pairs(transport(folder, manifest, opt.documents, layer)) do
              tensors["transport." .. part] = q.tensor(rows)
            end
          elseif name == "values" then
            local found = values.fit(folder, manifest, opt.documents, layer, opt.rows)
            for part, tensor in pairs(found) do tensors[part] = tensor end
          else
            local view = name:match "^so8_(%a+)$"
            tensors[name] = learned(folder, manifest, opt.documents, layer, view, opt.bits, opt.rows)
          end
        end
        q.save(path, tensors, { metadata = { settings = settings, documents = tostring(opt.documents) } })
      end)
    end
    if opt.watch then opt.watch(i, #manifest.settings.layers) end
  end
  if table.concat(opt.names, " "):find "values" then
    local lines = values.sensitivity(fit.open(out), manifest.settings.layers)
    q.fs.write(out .. "/sensitivity.csv", table.concat(lines, "\n") .. "\n")
  end
end

-- A hash of the files of these layers.
function fit.hash(folder, layers)
  local parts = {}
  for i, layer in ipairs(layers) do
    parts[i] = q.host.hash(q.fs.read(("%s/layer_%03d.safetensors"):format(folder, layer)))
  end
  return table.concat(parts)
end

-- What was fitted, as a function of the layer: its tensors by name.
function fit.open(folder)
  local layers = {}
  return function(layer)
    if not layers[layer] then
      layers[layer] = {}
      for name, tensor in pairs(q.load_tensors(("%s/layer_%03d.safetensors"):format(folder, layer))) do
        layers[layer][name] = q.keep(tensor)
      end
    end
    return layers[layer]
  end
end

return fit
