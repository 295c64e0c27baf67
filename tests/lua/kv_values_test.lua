-- Scores of channels of values are those of plain loops in doubles; protected channels come back exactly, as channels;
-- sensitive layers are exact; what codes take is counted.
local fit = require "qeng.turboquant.fit"
local methods = require "qeng.turboquant.methods"
local q = require "qeng"

q.device { device = "cpu", threads = 1 }
local dir = ("%s/qeng_kv_values_%d_%d"):format(os.getenv "TMPDIR" or "/tmp", os.time(), math.random(1e9))
q.fs.mkdir(dir)
q.fs.mkdir(dir .. "/fitted")
local tokens, heads, kv_heads, dim, layers, scale = 12, 4, 2, 32, { 1, 4, 6, 7, 9 }, 0.3

-- A capture of two documents. In layer 6 values are largest, and in all layers in channels 8 to 15.
local settings = { layers = layers, heads = heads, kv_heads = kv_heads, head_dim = dim, tokens = tokens, scale = scale }
local manifest, kept = { format = "qeng kv capture 1", settings = settings, documents = {} }, {}
local loud = q.where(q.arange(0, dim):ge(8) * q.arange(0, dim):lt(16), 5, 1)
for d = 1, 2 do
  local tensors = {}
  for i, layer in ipairs(layers) do
    local function drawn(count, n) return q.randn({ tokens, count, dim }, { seed = 100 * d + 10 * i + n }) end
    local place = ("layers.%d."):format(layer)
    tensors[place .. "query"], tensors[place .. "key"] = drawn(heads, 1), drawn(kv_heads, 2)
    tensors[place .. "value"] = (drawn(kv_heads, 3) * loud * (layer == 6 and 3 or 1)):compute()
  end
  kept[d] = tensors
  local file = ("document_%04d.safetensors"):format(d)
  q.save(dir .. "/" .. file, tensors, { dtype = "f32" })
  manifest.documents[d] = { file = file, hash = q.host.hash(q.fs.read(dir .. "/" .. file)) }
end
q.fs.write(dir .. "/manifest.json", q.json.encode(manifest))
fit.run(dir, dir .. "/fitted", { documents = 2, bits = 3, rows = 4, names = { "values" } })
local fitted = fit.open(dir .. "/fitted")

do  -- scores, of queries at positions 1, 4, 7 and 10
  local want = {}
  for kv = 1, kv_heads do
    want[kv] = { output = {}, gradient = {} }
    for c = 1, dim do want[kv].output[c], want[kv].gradient[c] = 0, 0 end
  end
  for d = 1, 2 do
    local query, key = kept[d]["layers.4.query"]:table(), kept[d]["layers.4.key"]:table()
    local value = kept[d]["layers.4.value"]:table()
    for h = 1, heads do
      local kv = math.ceil(h * kv_heads / heads)
      local back = {}
      for s = 1, tokens do back[s] = {}; for c = 1, dim do back[s][c] = 0 end end
      for _, t in ipairs { 2, 5, 8, 11 } do
        local a, total = {}, 0
        for s = 1, t do
          local logit = 0
          for c = 1, dim do logit = logit + query[t][h][c] * key[s][kv][c] end
          a[s] = math.exp(logit * scale)
          total = total + a[s]
        end
        for c = 1, dim do
          local out, squares = 0, 0
          for s = 1, t do
            local part = a[s] / total * value[s][kv][c]
            out, squares = out + part, squares + part * part
          end
          for s = 1, t do back[s][c] = back[s][c] + a[s] / total * out end
          want[kv].output[c] = want[kv].output[c] + squares / 4 / 4
        end
      end
      for s = 1, tokens do
        for c = 1, dim do want[kv].gradient[c] = want[kv].gradient[c] + back[s][c] ^ 2 / tokens / 4 end
      end
    end
  end
  for source in pairs(want[1]) do
    local got = fitted(4)["values." .. source]:table()
    for kv = 1, kv_heads do
      for c, x in ipairs(want[kv][source]) do
        assert(math.abs(got[kv][c] - x) < 1e-5 * (1 + x), ("%s %d: %g, expected %g"):format(source, c, got[kv][c], x))
      end
    end
  end
end

do  -- the table has a line for each layer, head, group and channel, and means are those of the channels
  local counts, sums = {}, {}
  for line in q.fs.read(dir .. "/fitted/sensitivity.csv"):gmatch "[^\n]+" do
    local level, place, source, score = line:match "^(%a+),(%d+,.*),(%a+),([%d.e+-]+)$"
    if level then
      counts[level] = (counts[level] or 0) + 1
      if level ~= "group" then
        local name = place:match "^%d+" .. source
        sums[name] = sums[name] or { layer = 0, head = 0, channel = 0 }
        sums[name][level] = sums[name][level] + tonumber(score)
      end
    end
  end
  assert(counts.layer == 10 and counts.head == 20 and counts.group == 80 and counts.channel == 640)
  for _, sum in pairs(sums) do
    assert(math.abs(sum.head / kv_heads / sum.layer - 1) < 1e-6)
    assert(math.abs(sum.channel / kv_heads / dim / sum.layer - 1) < 1e-6)
  end
end

local function parse(text) return methods.parse("identity/exact+hadamard2/" .. text, dim, 0, fitted, layers) end
local function bits_of(method, layer) return 2 * method.look(layer).bits - 16 end
local value = kept[1]["layers.4.value"]:slice(2, 1, 2):reshape({ tokens, dim }):compute()
local function decoded(text) return parse(text).reconstruct(value, 4, 1, "value", parse(text).look(4)) end
local function off(text, first, last)
  return (decoded(text) - value):slice(2, first or 0, last or dim):square():sum():item()
end

do  -- of four groups the loud one is exact, one has 8 bits, two have 2, and codes do not mix channels
  assert((decoded "protected2" - value:to("f16"):to "f32"):slice(2, 8, 16):abs():max():item() == 0)
  local plain, most = decoded "protected2", 0
  local loudest = q.where(q.arange(0, dim):ge(8) * q.arange(0, dim):lt(16), 100, 1)
  local method = parse "protected2"
  local other = method.reconstruct((value * loudest):compute(), 4, 1, "value", method.look(4))
  for _, range in ipairs { { 0, 8 }, { 16, 32 } } do
    most = math.max(most, (plain - other):slice(2, range[1], range[2]):abs():max():item())
  end
  assert(most == 0, "codes of some channels depend on those that are exact")
  assert(off("sphere2", 8, 16) > 10 and off "protected2" < off "sphere2" / 4)
  assert(off "protected2" > off "protected2.a25.b25.h8.output" - 1e-9 and off "protected2.a0.b0" > off "protected2.a0")
  -- 16 bits of a quarter, 8 of a quarter, 2 of the half; a scale of each coded kind; two bits a group, once.
  assert(math.abs(bits_of(parse "protected2", 4) - (4 + 2 + 1 + 2 * 16 / 32 + 8 / 4096 / 32)) < 1e-9)
  assert(math.abs(bits_of(parse "protected3.a0.b0", 4) - (3 + 16 / 32 + 8 / 4096 / 32)) < 1e-9)
  local with = 3 + (16 + 16 * 4) / 32 + (8 + 16 * 4 * 32) / 4096 / 32
  assert(math.abs(bits_of(parse "protected3.a0.b0.r4", 4) - with) < 1e-9)
end

do  -- coefficients of what is left: the more, the less is off, and all of them are all there is
  local before = off "protected2.a0.b0"
  for _, rank in ipairs { 4, 16 } do
    local now = off("protected2.a0.b0.r" .. rank)
    assert(now < before, ("rank %d"):format(rank))
    before = now
  end
  assert(off "protected2.a0.b0.r32" < 1e-6 * value:square():sum():item())
end

do  -- two of five layers are exact, the loudest for one; keys go by their own method
  local method, exact = parse "sensitive3", {}
  for i, layer in ipairs(layers) do exact[i] = bits_of(method, layer) == 16 and layer or false end
  assert(exact[3] == 6, "the layer of the largest values is not exact")
  local count = 0
  for _, layer in ipairs(exact) do count = count + (layer and 1 or 0) end
  assert(count == 2)
  local seen = method.look(6)
  assert((method.reconstruct(value, 6, 1, "value", seen) - value):abs():max():item() == 0)
  local pair = methods.parse("identity/q8_0+hadamard2/sphere3", dim, 0)
  assert(math.abs(pair.look(4).bits - (8.5 + 3.5) / 2) < 1e-9)
  local alone = methods.parse("identity/q8_0", dim, 0)
  local keys = pair.reconstruct(value, 4, 1, "key", pair.look(4))
  assert((keys - alone.reconstruct(value, 4, 1, "key")):abs():max():item() == 0)
  local tile = methods.parse("identity/tile3", dim, 0).look(4)
  assert(math.abs(tile.sides.key + tile.sides.value - 2 * tile.bits) < 1e-12)
end

for text, words in pairs { ["identity/protected3"] = "codes values alone", ["identity/exact+hadamard2/protected9"] =
  "expected protected3", ["identity/exact+hadamard2/protected3.x"] = "expected protected3",
  ["identity/exact+hadamard2/protected3.h9"] = "expected protected3", ["values/sphere3"] = "expected one of" } do
  local ok, why = pcall(methods.parse, text, dim, 0, fitted, layers)
  assert(not ok and tostring(why):find(words, 1, true), tostring(why))
end
local ok, why = pcall(methods.parse, "identity/exact+hadamard2/sensitive3", dim, 0)
assert(not ok and tostring(why):find("has fitted: --rotations", 1, true), tostring(why))
q.fs.remove(dir)
