-- Captured queries, keys and values are what attention computes with, a capture goes on to the same bytes, and the
-- figures of codecs are those of plain loops in doubles.
local capture = require "qeng.turboquant.capture"
local evaluate = require "qeng.turboquant.evaluate"
local fit = require "qeng.turboquant.fit"
local methods = require "qeng.turboquant.methods"
local q = require "qeng"
local quality = require "qeng.turboquant.quality"
local symmetric = require "qeng.codes.symmetric"

q.device { device = "cpu", threads = 2 }
local dir = ("%s/qeng_kv_evaluate_%d_%d"):format(os.getenv "TMPDIR" or "/tmp", os.time(), math.random(1e9))
q.fs.mkdir(dir)
q.fs.mkdir(dir .. "/captures")
local text = {}
for i = 1, 60 do
  local thing, place = ({ "hat", "dog", "key" })[i % 3 + 1], ({ "box", "hall" })[i % 2 + 1]
  text[i] = ("The %s is in the %s. "):format(thing, place)
end
text = table.concat(text)
local opt = { tokens = 40, documents = 3, store = "f32" }
local model = q.load("recipes/tiny", { dtype = "f32" })
local manifest = capture.run(model, text, dir .. "/captures", opt)
local s = manifest.settings
assert(#manifest.documents == 3 and #s.layers == model.config.layers)

-- Attention of head h in doubles: {out = [tokens][dim], weights = [tokens][tokens], logits}
local function attend(query, key, value, h, kv)
  local result = { out = {}, weights = {}, logits = {} }
  for t = 1, #query do
    local logits, most = {}, -math.huge
    for j = 1, t do
      logits[j] = 0
      for d = 1, s.head_dim do logits[j] = logits[j] + query[t][h][d] * key[j][kv][d] end
      logits[j] = logits[j] * s.scale
      most = math.max(most, logits[j])
    end
    local weights, total, out = {}, 0, {}
    for j = 1, t do
      weights[j] = math.exp(logits[j] - most)
      total = total + weights[j]
    end
    for d = 1, s.head_dim do out[d] = 0 end
    for j = 1, t do
      weights[j] = weights[j] / total
      for d = 1, s.head_dim do out[d] = out[d] + weights[j] * value[j][kv][d] end
    end
    result.out[t], result.weights[t], result.logits[t] = out, weights, logits
  end
  return result
end

local group = s.heads / s.kv_heads
do  -- what is captured gives the output of the model's attention
  local tensors = capture.document(dir .. "/captures", manifest, 2)
  local ids, all = {}, model.tokenizer:encode(text)
  for i = 1, s.tokens do ids[i] = all[manifest.documents[2].start + i] end
  for _, layer in ipairs(s.layers) do
    local place = ("layers.%d."):format(layer)
    local function rows_of(part) return tensors[place .. part]:table() end
    local query, key, value = rows_of "query", rows_of "key", rows_of "value"
    local rows = {}
    for t = 1, s.tokens do rows[t] = {} end
    for h = 1, s.heads do
      local out = attend(query, key, value, h, math.floor((h - 1) / group) + 1).out
      for t = 1, s.tokens do for d = 1, s.head_dim do rows[t][(h - 1) * s.head_dim + d] = out[t][d] end end
    end
    local weight
    for _, p in ipairs(model.parameters) do
      if p.name == ("model.layers.%d.self_attn.o_proj.weight"):format(layer) then weight = p.tensor end
    end
    local want = model:activations(ids, { place .. "attn" })[place .. "attn"]
    local got = q.linear(q.tensor(rows), weight)
    local off = (got - want):abs():max():item() / want:abs():max():item()
    assert(off < 1e-5, "attention of what was captured is another")
  end
end

do  -- it goes on to the same bytes, and refuses what is not its own
  local path = dir .. "/captures/" .. manifest.documents[2].file
  local before, listed = q.fs.read(path), q.fs.read(dir .. "/captures/manifest.json")
  local touched = {}
  q.fs.remove(path)
  capture.run(model, text, dir .. "/captures", { tokens = 40, documents = 3, store = "f32",
    watch = function(d, kept) touched[d] = not kept end })
  assert(not touched[1] and touched[2] and not touched[3])
  assert(q.fs.read(path) == before and q.fs.read(dir .. "/captures/manifest.json") == listed)
  local function refused(words, fn, ...)
    local ok, why = pcall(fn, ...)
    assert(not ok and tostring(why):find(words, 1, true), tostring(why))
  end
  refused("captured with other settings", capture.run, model, text .. ".", dir .. "/captures", opt)
  refused("documents of 4000", capture.run, model, text, dir, { tokens = 4000, documents = 1, store = "f32" })
  refused("layer 9", capture.run, model, text, dir, { tokens = 40, documents = 1, store = "f32", layers = { 9 } })
  refused("layer 1 is named twice", capture.run, model, text, dir,
    { tokens = 40, documents = 1, store = "f32", layers = { 1, 1 } })
  q.fs.mkdir(dir .. "/quality")
  local how, kinds = { tokens = 40, documents = 2, from = 20 }, { quality.parse(model, "q8_0") }
  quality.run(model, text, kinds, dir .. "/quality", how)
  local trained = q.load("recipes/tiny", { dtype = "f32", writable = true })  -- its embedding is the same
  trained.parameters[2].tensor:fill(0.5)
  refused("captured with other settings", capture.run, trained, text, dir .. "/captures", opt)
  refused("figures of another model or text", quality.run, trained, text, kinds, dir .. "/quality", how)
  q.fs.write(path, before:sub(1, -2) .. "x")
  refused("is not the file that the manifest names", capture.document, dir .. "/captures", manifest, 2)
  q.fs.write(path, before)
  for text_, words in pairs { ["sphere3"] = "ROTATION/CODEC", ["spin/sphere3"] = "rotation spin",
    ["identity/q9"] = "codec q9", ["identity/sphere9"] = "codec sphere9",
    ["identity/sphere3.off"] = "correction off" } do
    refused(words, methods.parse, text_, 32, 0)
  end
end

do  -- the figures
  local list = { methods.parse("identity/exact", s.head_dim, 0), methods.parse("hadamard2/sphere2", s.head_dim, 0) }
  local found = evaluate.document(dir .. "/captures", manifest, 1, list, 8)
  local exact, coded = found["identity/exact"], found["hadamard2/sphere2"]
  assert(exact.kl == 0 and exact.top1 == 1 and exact.top5 == 1 and exact.output == 0 and exact.spearman == 1)
  assert(coded.kl > 0.01 and coded.cosine < 0.99 and coded.output > coded.output_v)
  local tensors, layer = capture.document(dir .. "/captures", manifest, 1), s.layers[2]
  local place = ("layers.%d."):format(layer)
  local k, v = tensors[place .. "key"], tensors[place .. "value"]
  local query, key, value = tensors[place .. "query"]:table(), k:table(), v:table()
  local function decoded(x)
    local parts = {}
    for h = 0, s.kv_heads - 1 do
      parts[h + 1] = list[2].reconstruct(x:slice(2, h, h + 1):reshape({ s.tokens, -1 }):compute()):unsqueeze(2)
    end
    return q.concat(parts, 2):table()
  end
  local keys, values = decoded(k), decoded(v)
  local positions = {}
  for i = 1, 8 do positions[i] = 16 + math.floor((i - 0.5) * (s.tokens - 16) / 8) + 1 end
  local sums = { kl = 0, top1 = 0, top5 = 0, cosine = 0, output = 0, output_k = 0, output_v = 0 }
  local function top(list_, n)
    local order, set = {}, {}
    for j = 1, #list_ do order[j] = j end
    table.sort(order, function(a, b) return list_[a] > list_[b] end)
    for i = 1, n do set[order[i]] = true end
    return set
  end
  for h = 1, s.heads do
    local kv = math.floor((h - 1) / group) + 1
    local right, both = attend(query, key, value, h, kv), attend(query, keys, values, h, kv)
    local only_v, only_k = attend(query, key, values, h, kv), attend(query, keys, value, h, kv)
    local function off(other)
      local error_, whole = 0, 0
      for _, t in ipairs(positions) do
        for d = 1, s.head_dim do
          error_, whole = error_ + (other.out[t][d] - right.out[t][d]) ^ 2, whole + right.out[t][d] ^ 2
        end
      end
      return math.sqrt(error_ / whole) / s.heads
    end
    sums.output = sums.output + off(both)
    sums.output_k, sums.output_v = sums.output_k + off(only_k), sums.output_v + off(only_v)
    for _, t in ipairs(positions) do
      local a, b, share = right.logits[t], both.logits[t], 1 / #positions / s.heads
      local ma, mb, ab, aa, bb = 0, 0, 0, 0, 0
      for j = 1, t do ma, mb = ma + a[j] / t, mb + b[j] / t end
      for j = 1, t do
        ab, aa, bb = ab + (a[j] - ma) * (b[j] - mb), aa + (a[j] - ma) ^ 2, bb + (b[j] - mb) ^ 2
        sums.kl = sums.kl + share * right.weights[t][j] * math.log(right.weights[t][j] / both.weights[t][j])
      end
      sums.cosine = sums.cosine + share * ab / math.sqrt(aa * bb)
      if next(top(a, 1)) == next(top(b, 1)) then sums.top1 = sums.top1 + share end
      local five = top(b, 5)
      for j in pairs(top(a, 5)) do if five[j] then sums.top5 = sums.top5 + share / 5 end end
    end
  end
  for metric, want in pairs(sums) do
    local got = coded.layers[tostring(layer)][metric]
    assert(math.abs(got - want) < 2e-5 * (1 + math.abs(want)), ("%s: %.8g, expected %.8g"):format(metric, got, want))
  end
end

do  -- the null is the first method that a seed matters to, with another one; the first tokens may be exact
  q.fs.mkdir(dir .. "/evaluated")
  local list, documents = evaluate.run(dir .. "/captures", dir .. "/evaluated", { seed = 0, from = 3, rotations = "",
    methods = { "identity/q8_0", "hadamard2/sphere2", "hadamard2/sphere2.first4", "identity/exact" }, queries = 8 })
  assert(#list == 5 and list[5].null == "hadamard2/sphere2" and not list[1].null)
  local found = documents[1]
  assert(found[list[5].name].kl ~= found["hadamard2/sphere2"].kl)
  assert(math.abs(found["hadamard2/sphere2.first4"].bits - (2.5 + 13.5 * 4 / 40)) < 1e-6)
  local tensors = capture.document(dir .. "/captures", manifest, 3)
  local x = tensors["layers.0.value"]:slice(2, 0, 1):reshape({ s.tokens, -1 }):compute()
  local key, query = tensors["layers.0.key"], tensors["layers.0.query"]
  local got = list[3].reconstruct(x, 0, 0, "value", list[3].look(0, query, key))
  local rest = list[2].reconstruct(x, 0, 0, "value", list[2].look(0, query, key))
  assert((got - x):slice(1, 0, 4):abs():max():item() == 0 and (got - rest):slice(1, 4):abs():max():item() == 0)
end

do  -- powers of symmetric matrices, and the map that makes the error of products least
  local function random(n, seed)
    local x = q.randn({ 3 * n, n }, { seed = seed }) * q.arange(1, n + 1)
    local m = (x:compute():matmul(x:compute(), { transpose_a = true }) * (1 / (3 * n))):table()
    for i = 1, n do for j = 1, i - 1 do m[i][j] = m[j][i] end end  -- which a product need not be to the last bit
    return m
  end
  local function trace(m)
    local sum = 0
    for i = 1, #m do sum = sum + m[i][i] end
    return sum
  end
  local function off(a, b)
    local worst = 0
    for i = 1, #a do for j = 1, #a do worst = math.max(worst, math.abs(a[i][j] - b[i][j])) end end
    return worst / trace(a)
  end
  local queries, keys = random(24, 1), random(24, 2)
  local root, inverse = symmetric.power(queries, 0.5, 0), symmetric.power(queries, -1, 0)
  assert(off(queries, symmetric.product(root, root)) < 1e-14)
  local one = symmetric.product(inverse, queries)
  for i = 1, 24 do for j = 1, 24 do assert(math.abs(one[i][j] - (i == j and 1 or 0)) < 1e-9) end end
  local map, back = fit.transport_map(queries, keys)
  local m, m_back = symmetric.product(map, map), symmetric.product(back, back)
  local carried = symmetric.product(symmetric.product(m, queries), m)
  assert(off(keys, carried) < 1e-6, "the map does not carry the queries' moments to the keys'")
  local function cost(a, b) return trace(symmetric.product(a, queries)) * trace(symmetric.product(b, keys)) end
  local least = cost(m, m_back)
  assert(least < cost(one, one))
  for seed = 3, 12 do  -- no neighbour costs less
    local near = random(24, seed)
    for i = 1, 24 do for j = 1, 24 do near[i][j] = m[i][j] + 1e-3 * trace(m) / 24 * near[i][j] / trace(near) end end
    assert(cost(near, symmetric.power(near, -1, 0)) >= least * (1 - 1e-9))
  end
end

do  -- fits: products stay what they were, errors on another document get less, and files are the same again
  local out = dir .. "/rotations"
  q.fs.mkdir(out)
  local how = { documents = 2, bits = 3, rows = 24, names = fit.names }
  fit.run(dir .. "/captures", out, how)
  local path = ("%s/layer_%03d.safetensors"):format(out, s.layers[2])
  local before = q.fs.read(path)
  q.fs.remove(path)
  fit.run(dir .. "/captures", out, how)
  assert(q.fs.read(path) == before, "a fit is not the same again")
  local ok, why = pcall(fit.run, dir .. "/captures", out, { documents = 1, bits = 3, rows = 24, names = fit.names })
  assert(not ok and tostring(why):find("was fitted to another capture", 1, true))
  local fitted, list = fit.open(out), {}
  for i, name in ipairs { "transport/exact", "so8_plus/exact", "transport/sphere3", "hadamard2/sphere3" } do
    list[i] = methods.parse(name, s.head_dim, 0, fitted)
  end
  local found = evaluate.document(dir .. "/captures", manifest, 3, list, 8)
  assert(found["transport/exact"].kl < 1e-6 and found["so8_plus/exact"].kl < 1e-6, "fits change products")
  assert(found["transport/sphere3"].kl < 0.8 * found["hadamard2/sphere3"].kl, "the transport gains nothing")
  local by_mean = found["transport/sphere3"].output_v / found["hadamard2/sphere3"].output_v  -- values lose their mean
  assert(by_mean < 1.02, by_mean)
end
q.fs.remove(dir)
