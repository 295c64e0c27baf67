-- The type auto: errors of logits are those that codes make, keys that are long get q8_0 and no others, and what was
-- chosen is what an engine, its prefixes and scores go by.
package.path = (arg[0]:match("^(.*/)") or "./") .. "?.lua;" .. package.path
local codecs = require "qeng.turboquant.codecs"
local kv_auto = require "qeng.model.kv_auto"
local kv_types = require "qeng.model.kv_types"
local q = require "qeng"
local quality = require "qeng.turboquant.quality"
local rotations = require "qeng.codes.rotations"
local scoring = require "qeng.infer.scoring"
local scratch = require "scratch"
q.device { device = "cpu", threads = 1 }

local function load() return q.load("recipes/tiny", { dtype = "f32" }) end
local model = load()
local c = model.config

do  -- against the errors of codes of a text of the model's own
  local spec = kv_types.parse "auto"
  local expected = kv_auto.measure(model, spec)
  local seen = model:activations("A list of costs: timber, 12.50 a load; lime, 3.75; wages of a mason, 1.20 a day.")
  local codec, rotation = codecs.sphere(c.head_dim, { bits = 4 }), rotations.make("hadamard2", c.head_dim, 1)
  for layer = 0, c.layers - 1 do
    local query, key = seen[("layers.%d.attn.query"):format(layer)], seen[("layers.%d.attn.key"):format(layer)]
    local sum = 0
    for h = 0, c.heads - 1 do
      local function of(x, head) return x:slice(1, spec.sinks):slice(2, head, head + 1):reshape { -1, c.head_dim } end
      local rows, keys = of(query, h), of(key, math.floor(h * c.kv_heads / c.heads))
      keys = (keys - keys:mean(1)):compute()
      local coded = rotations.undo(rotation, codec.reconstruct(rotations.apply(rotation, keys):compute()))
      local off = rows:compute():matmul((coded - keys):compute(), { transpose_b = true })
      sum = sum + off:square():mean():item() / c.head_dim / c.heads
    end
    local ratio = math.sqrt(sum) / expected[layer]
    assert(ratio > 0.7 and ratio < 1.4, ("layer %d: codes err %g times as much"):format(layer, ratio))
  end
end

local function chosen(kv, factor)
  local other, long, taken = load(), nil, nil
  for _, parameter in ipairs(other.parameters) do
    if parameter.name:find "layers%.1%..*k_proj%.weight" then
      parameter.tensor:copy((parameter.tensor * factor):compute())
      long = true
    end
  end
  assert(long, "there is no layer 1")
  local said = scratch.said(function() taken = kv_auto.resolve(other, kv) end)
  return taken, said, other
end
do
  local plain, said = chosen("auto,tail=64", 1)
  assert(plain:find "^tq4,tail=64,mean=%x+$" and said == "kv auto,tail=64: " .. plain .. "\n", said)
  local taken, told, other = chosen("auto,tail=64", 1000)
  assert(taken:find "^tq4,tail=64,mean=%x+,wide=1$" and told:find("keys of 1 layers ask", 1, true), told)
  assert(chosen("auto,tail=64", 1) == plain and taken:match "mean=%x+" ~= plain:match "mean=%x+", "of another model")
  local engine
  assert(scratch.said(function() engine = other:engine { kv = "auto,tail=64" } end) == "", "it is measured once")
  assert(engine.runner.kv == taken)
  engine:close()
  assert(quality.parse(other, "auto,tail=64").key == taken)
  assert(q.kv_option({ kv = "auto", kv_tail = 64 }, other) == taken and q.kv_option { kv = "auto" } == "auto")
end
assert(kv_auto.resolve(model, "q8_0") == "q8_0")

-- ---------------------------------------------------------------- texts

local spec = kv_types.parse "tq3/tq2,wide=0+12"
for layer, expected in pairs { [0] = "q8_0", [1] = "tq3", [12] = "q8_0" } do
  local key, value = kv_types.sides(spec, 9, 20, layer)
  assert(key.name == expected and value.name == "tq2")
end
for _, bad in ipairs { "auto/tq4", "tq4,mean=auto,bases=x", "tq4,mean=a.b", "f16,mean=auto", "q8_0/tq4,mean=auto",
    "auto,wide=1", "tq4,wide=", "tq4,wide=1+", "tq4,wide=a", "tq4,wide=1++2", "f16,wide=1" } do
  assert(kv_types.fault(bad), bad .. " is taken")
end
assert(kv_types.unmeasured "auto,tail=8" == "tq4,tail=8" and not kv_types.unmeasured())
assert(kv_types.unmeasured "tq3,mean=auto,edges=1" == "tq3,edges=1")
scratch.refused("give mean=auto", kv_auto.resolve, model, "tq4,mean=0123456789abcdef")

-- ---------------------------------------------------------------- means

-- Logits of codes without the mean are those with bases that turn nothing and have this mean, and nearer to the right
-- ones where keys have much in common.
for _, parameter in ipairs(model.parameters) do
  if parameter.name:find "k_proj%.bias" then parameter.tensor:copy((parameter.tensor + 3):compute()) end
end
local _, means = kv_auto.measure(model, kv_types.parse "tq2,mean=auto,tail=0,sinks=0")
for layer = 0, c.layers - 1 do
  local eye = {}
  for h = 1, c.kv_heads do eye[h] = rotations.make("identity", c.head_dim).matrix:table() end
  q.save(scratch.at(("layer_%03d.safetensors"):format(layer)), {
    ["transport.mean"] = q.tensor(means[layer]), ["transport.map"] = q.tensor(eye),
    ["transport.inverse"] = q.tensor(eye),
  })
end
local ids, positions = {}, {}
for i = 1, 150 do ids[i], positions[i] = (i * i * 7 + 3 * i) % 1000, i - 1 end
local function logits_of(kv)
  local scorer, found = scoring.new(model, { tokens = #ids, kv = kv }), {}
  scorer:run(ids, positions, function(logits) found[#found + 1] = scoring.copy(logits) end)
  scorer:free()
  return q.concat(found, 1)
end
local right = logits_of "f32"
local function off(kv) return (logits_of(kv) - right):square():mean():item() end
local mean, bases = logits_of "tq2,mean=auto,tail=0,sinks=0", logits_of("tq2,tail=0,sinks=0,bases=" .. scratch.folder)
assert((mean - bases):abs():max():item() < 1e-5)
assert(off "tq2,mean=auto,tail=0,sinks=0" < 0.7 * off "tq2,tail=0,sinks=0")
