-- The types of a cache: what a text says and what it takes, that the engine computes with codes what a hook computes
-- that puts what they stand for in the place of keys and values, and that company, pages and guesses change nothing.
package.path = (arg[0]:match("^(.*/)") or "./") .. "?.lua;" .. package.path
local cases = require "engine_cases"
local codecs = require "qeng.turboquant.codecs"
local kv_codes = require "qeng.model.kv_codes"
local kv_types = require "qeng.model.kv_types"
local methods = require "qeng.turboquant.methods"
local paged = require "qeng.infer.paged"
local q = require "qeng"
local rotations = require "qeng.codes.rotations"
local scoring = require "qeng.infer.scoring"
local scratch = require "scratch"
local simulated = require "qeng.turboquant.simulated"
q.device { device = "cpu", threads = 1 }

-- ---------------------------------------------------------------- texts and bytes

local spec = kv_types.parse "q8_0/tq3.5,tail=64"
assert(spec.key.dtype == "q8_0" and spec.value.bits == 3 and spec.value.width == 3.5)
assert(spec.tail == 64 and spec.sinks == 4 and spec.edges == 0 and not spec.bases)
assert(not kv_types.has_exact(kv_types.parse "f16") and kv_types.has_exact(kv_types.parse "tq2"))
for _, bad in ipairs { "tq5", "tq1", "q4_0", "tq3/", "tq3,", "tq3,tails=4", "tq3,tail=x", "tq3,tail=1,", "f16,tail=4",
    "", "tq2.3", "tq" } do
  scratch.refused("expected auto, f32, f16", kv_types.parse, bad)
end
local function bytes(name, dim) return kv_types.bytes(kv_types.parse(name).key, dim) end
assert(bytes("tq4", 128) == 66 and bytes("tq3", 128) == 50 and bytes("tq2", 128) == 34 and bytes("tq2.5", 64) == 22)
assert(bytes("tq3.25", 128) == 54 and bytes("q8_0", 64) == 68 and bytes("f16", 64) == 128)
scratch.refused("multiple of 128", bytes, "tq2.25", 64)
scratch.refused("multiple of 32", bytes, "tq4", 80)
do
  local key, value = kv_types.sides(kv_types.parse "tq3/tq2,edges=2", 2, 6)
  assert(key.dtype == "q8_0" and value.dtype == "q8_0")
  key, value = kv_types.sides(kv_types.parse "f16/tq2,edges=2", 5, 6)
  assert(key.dtype == "f16" and value.dtype == "q8_0")
  key = kv_types.sides(kv_types.parse "tq3/tq2,edges=2", 3, 6)
  assert(key.bits == 3)
end

-- ---------------------------------------------------------------- what is computed

local ids = {}
for i = 1, 150 do ids[i] = (i * i * 7 + 3 * i) % 320 end

local function logits_of(model, kv)
  local positions, rows = {}, {}
  for i = 1, #ids do positions[i] = i - 1 end
  local scorer = scoring.new(model, { tokens = #ids, kv = kv })
  scorer:run(ids, positions, function(logits)
    for _, row in ipairs(logits:table()) do rows[#rows + 1] = row end
  end)
  scorer:free()
  return rows
end

-- The root of the mean squared difference.
local function difference(a, b)
  local sum, count = 0, 0
  for i, row in ipairs(a) do
    for j, x in ipairs(row) do sum, count = sum + (x - b[i][j]) ^ 2, count + 1 end
  end
  return math.sqrt(sum / count)
end

-- What codes of `width` bits stand for, in the place of all keys or values of a model.
local function hook_codes(model, side, width)
  local whole = math.floor(width)
  local codec = whole == width and codecs.sphere(32, { bits = whole }) or error "whole widths"
  local rotation = rotations.make("hadamard2", 32, 20251126)
  for layer = 0, 1 do
    model:hook(("layers.%d.attn.%s"):format(layer, side), function(x)
      local rows = x:reshape({ -1, 32 }):compute()
      return rotations.undo(rotation, codec.reconstruct(rotations.apply(rotation, rows):compute())):reshape(x:shape())
    end)
  end
end

-- The signs of a turn make of Hadamard's matrices what its own matrix is.
for _, dim in ipairs { 32, 64, 96 } do
  local x = q.randn { 5, 3, dim }
  for _, is_key in ipairs { true, false } do
    local codes = kv_codes.open(kv_types.parse("tq4").key, dim, is_key, { mean = q.randn { 3, dim } }, true)
    assert((codes.signs ~= nil) == (dim ~= 96) and (codes.back_signs ~= nil) == (dim ~= 96))
    for matrix, signs in pairs { to = "signs", query = "signs", from = "back_signs" } do
      if codes[matrix] then
        local fast = q.pages.head_linear(x, codes[matrix], nil, codes[signs])
        assert((fast - q.pages.head_linear(x, codes[matrix])):abs():max():item() < 1e-5)
      end
    end
    kv_codes.free(codes)
  end
end

-- Bases that turn nothing but stretch dimensions, and means: what comes off comes back.
for layer = 0, 1 do
  local maps, inverses = {}, {}
  for h = 1, 2 do
    maps[h], inverses[h] = {}, {}
    for i = 1, 32 do
      maps[h][i], inverses[h][i] = {}, {}
      for j = 1, 32 do
        local size = 0.5 + (7 * i + 3 * h + layer) % 10 / 5
        maps[h][i][j], inverses[h][i][j] = i == j and size or 0, i == j and 1 / size or 0
      end
    end
  end
  q.save(scratch.at(("layer_%03d.safetensors"):format(layer)), {
    ["transport.mean"] = q.randn({ 2, 32 }, { seed = layer }), ["transport.value_mean"] = q.randn({ 2, 32 }),
    ["transport.map"] = q.tensor(maps), ["transport.inverse"] = q.tensor(inverses),
  })
end

for _, family in ipairs { "qwen2", "gemma2", "mistral" } do
  local model = cases.model(family)
  local plain = logits_of(model, "f32")
  local bases = ",bases=" .. scratch.folder
  local turned = difference(logits_of(model, "tq4,tail=1000" .. bases), plain)
  assert(turned < 5e-3, ("%s with bases: %g"):format(family, turned))
  assert(difference(logits_of(model, "tq4,tail=0,sinks=0" .. bases), plain) < 0.6)
  for _, case in ipairs { { "f32", 4 }, { 3, "f32" }, { 2, 4 }, { 4, 3 } } do
    local names = { type(case[1]) == "number" and "tq" .. case[1] or "f32",
      type(case[2]) == "number" and "tq" .. case[2] or "f32" }
    local kv = names[1] .. "/" .. names[2]
    local coded = logits_of(model, kv .. ",tail=0,sinks=0")
    for i, side in ipairs { "key", "value" } do
      if type(case[i]) == "number" then hook_codes(model, side, case[i]) end
    end
    local hooked = logits_of(model, "f32")
    for layer = 0, 1 do
      for _, side in ipairs { "key", "value" } do model:hook(("layers.%d.attn.%s"):format(layer, side), nil) end
    end
    local error_, effect = difference(coded, hooked), difference(plain, hooked)
    -- scales are rounded to f16 from other units, and a code may fall to the other side of a half way
    assert(error_ < 0.03 * effect and effect > 0.01, ("%s %s: %g of %g"):format(family, kv, error_, effect))
  end
  local exact = difference(logits_of(model, "tq2,tail=1000"), plain)  -- all in f16
  assert(exact < 5e-3, tostring(exact))
  -- Some keys of a query exactly: as tensor algebra computes it, with f32 in the place of f16, whose rounding moves one
  -- code of a thousand in the next layer to another level, which is a tenth of what all codes do.
  for _, case in ipairs { { 20, 2 }, { 1, 0 }, { 0, 17 }, { 64, 4 } } do
    local opt = { method = methods.parse("hadamard2/sphere3", 32, 20251126), tail = case[1], sinks = case[2] }
    local expected = simulated.use(model, opt, function() return logits_of(model, "f32") end)
    local found = logits_of(model, ("tq3,tail=%d,sinks=%d"):format(case[1], case[2]))
    local error_, effect = difference(found, expected), difference(plain, expected)
    assert(error_ < 0.15 * effect + 2 * exact, ("%s tail %d: %g of %g"):format(family, case[1], error_, effect))
  end
end

-- ---------------------------------------------------------------- chunks, company, pages, guesses

local function equal(a, b)
  for i = 1, math.max(#a, #b) do
    if a[i] ~= b[i] then return false end
  end
  return true
end
local types = { "tq4", "tq2/tq3,tail=20,sinks=2", "q8_0/tq3.5,tail=0", "tq3,tail=0,sinks=0", "f16/tq4,tail=5",
  "tq3/f16,tail=33", "tq4,edges=1,tail=16", "tq3,wide=1,tail=16" }
for _, family in ipairs { "qwen2", "mistral", "gemma3" } do
  local model = cases.model(family)
  for _, kv in ipairs(types) do
    if not kv:find "3.5" then
      local function run(setup, lookup)
        setup.kv, setup.pages = kv, 60
        local engine, list = model:engine(setup), {}
        for i = 1, 3 do
          local prompt = {}
          for k = 1, 50 * i do prompt[k] = (k * k + i) % 7 end  -- repeats itself, so that guesses come true
          list[i] = engine:submit { ids = prompt, max_tokens = 24, temperature = i % 2, seed = i, stop_ids = {},
            lookup = lookup }
        end
        engine:finish()
        assert(engine:stats().used == 0, "pages are left")
        engine:close()
        return list
      end
      local first = run({ max_batch = 1, chunk = 500 })
      for _, other in ipairs { run({ max_batch = 3, chunk = 1 }), run({ max_batch = 2, chunk = 17, page_tokens = 32 }),
          run({ chunk = 64 }, 5) } do
        for i = 1, 3 do
          assert(equal(first[i].output, other[i].output), ("%s kv %s: request %d differs"):format(family, kv, i))
        end
      end
    end
  end
end
for seed = 1, tonumber(os.getenv "QENG_ROUNDS") or #types do
  local kv = types[seed % #types + 1]
  if not kv:find "3.5" then
    local figures = cases.schedule(seed, { kv = kv, count = 32 })
    print(("schedule %d, %s: %d steps, %d preempted, %d tokens reused, %d cancelled, %d of %d guesses true"):format(
      seed, kv, figures.steps, figures.preempted, figures.reused, figures.cancelled, figures.accepted, figures.guessed))
  end
end

-- ---------------------------------------------------------------- memory

local model = cases.model "qwen2"
for _, kv in ipairs(types) do
  if not kv:find "3.5" then
    local before = q.memory().kv.bytes
    local engine = model:engine { kv = kv, max_batch = 4, pages = 100, chunk = 64 }
    local held, told = q.memory().kv.bytes - before, engine:stats().kv_capacity
    -- beside the cache: the numbers of a step
    assert(math.abs(held - told) < 0.01 * told + 40000, ("%s: %d bytes, told %d"):format(kv, held, told))
    engine:close()
  end
end
do  -- of a size in bytes: as many pages as fit beside the exact rows
  local size, page = 2e6, paged.page_bytes(model, "tq4", 16)
  local engine = model:engine { kv = "tq4", max_batch = 4, chunk = 64, memory = size }
  local told = engine:stats().kv_capacity
  assert(told <= size and told > size - page, told)
  engine:close()
end
scratch.refused("multiple of 16 tokens", model.engine, model, { kv = "tq4", page_tokens = 8 })
scratch.refused("layer_000", model.engine, model, { kv = "tq4,bases=" .. scratch.at "none" })
print "ok"
