-- What a cache of codes has to know of a model, measured on a short text: the means of its keys (mean=auto), and which
-- keys need more than codes of 4 bits (the type `auto`). bench/results/2026-11-27-kv-quality.md says why.
--
-- Keys have a large part in common. It adds the same to the logits of all of them, which a softmax does not see, but a
-- code errs in proportion to the whole length. So the mean comes off: that over the positions of contexts of all
-- lengths, at which RoPE turns what the text has in its first ones.
--
-- A code of a vector that was turned at random errs evenly in all directions: the error of a logit q k s of a head has
-- the mean square
--   |q|^2 |k|^2 s^2 D / dim,   D = the part of a vector's square that the codebook leaves.
-- q and k are what is coded, without the mean, and with bases turned by them. Keys of a layer whose heads err by more
-- than `most` nats (root of the mean square, over heads too) become q8_0.

local codebook = require "qeng.codes.codebook"
local kv_bases = require "qeng.model.kv_bases"
local kv_codes = require "qeng.model.kv_codes"
local kv_types = require "qeng.model.kv_types"
local q = require "qeng.core"

local kv_auto = {}

local most = 0.5     -- nats: a softmax's KL is about 0.3 times the square, of what each layer may lose
local tokens = 128   -- of the text: norms of other texts differ by up to 14 %
local places_of_text = 256
local text = [[
The town lies where two rivers meet, 40 miles from the coast. In 1873 a bridge of stone was built there, and with it
came the railway, a market and three schools. "Nobody believed that it would last," wrote the mayor, "but we counted
on patience rather than on luck." What follows is a list of costs: timber, 12.50 a load; lime, 3.75; wages of a mason,
1.20 a day. If the water rises above the second arch, the gates have to be closed before noon, and the miller is told.
def area(width, height): return width * height  # both in metres
Since then the population has grown from 2,300 to about 18,000, and most of the older houses have become shops.]]

-- The queries and keys of the text in each layer with attention: {kind, query, key: [tokens, heads, dim] f32}...
local function measured(model)
  if not model.tokenizer then
    q.error("unsupported", "kv = auto measures a text, and this model has no tokenizer: give a type, as tq4")
  end
  local ids, places, list = model.tokenizer:encode(text), {}, {}
  for _, kind in ipairs(model.states) do
    if kind.exact_bytes then  -- attention
      list[#list + 1] = { kind = kind }
      for _, side in ipairs { "query", "key" } do
        places[#places + 1] = ("layers.%d.attn.%s"):format(kind.layer, side)
      end
    end
  end
  local read = {}
  for i = 1, math.min(tokens, #ids, model.config.max_position) do read[i] = ids[i] end
  local seen = model:activations(read, places)
  for i, one in ipairs(list) do
    one.query, one.key = seen[places[2 * i - 1]]:to("f32"):compute(), seen[places[2 * i]]:to("f32"):compute()
  end
  return list
end

-- x without the first tokens, which are kept exactly.
local function coded(x, spec) return x:slice(1, math.min(spec.sinks, x:shape()[1] - 1)) end

-- The mean of a layer's keys in the text, over the places in a sequence where it might stand: [heads, dim]. They lie
-- evenly by their logarithm: contexts are of all lengths.
local function mean_of(model, one, spec)
  local mean, last = coded(one.key, spec):mean(1, true):compute(), model.config.max_position
  if not one.kind.rope then return mean[0] end
  local rope, of_windows = model:rope(last)
  if one.kind.rope == "rope_local" then rope = of_windows end
  local at, copies, half = {}, {}, tokens / 2
  for i = 1, places_of_text do
    at[i], copies[i] = math.floor(half * math.max(1, last / half) ^ ((i - 1) / (places_of_text - 1)) - half), mean
  end
  return q.rope(q.concat(copies, 1):compute(), nil, q.tensor(at, "i32"), {
    inv_freq = rope.inv_freq, scale = 1, interleaved = rope.interleaved,
  }):mean(1):compute()
end

-- The error of a layer's logits, in nats, with keys as spec keeps them in codes. mean: of keys [heads, dim], or nil.
local function error_of(one, spec, mean, scale)
  local dim = one.kind.head_dim
  local fitted = spec.bases and kv_bases.layer(spec.bases, one.kind).key or mean and { mean = mean }
  local codes = kv_codes.open(spec.key, dim, true, fitted, one.kind.whole)
  local function norms(x, matrix, bias)
    return coded(q.pages.head_linear(x, matrix, bias), spec):square():sum(3):mean(1):compute():table()
  end
  local queries, keys = norms(one.query, codes.query), norms(one.key, codes.to, codes.to_bias)
  local sum, group = 0, #queries / #keys
  for h, square in ipairs(queries) do sum = sum + square * keys[math.ceil(h / group)] / #queries end
  kv_codes.free(codes)
  return math.sqrt(sum * codebook.sphere(dim, spec.key.bits).distortion / dim) * (scale or dim ^ -0.5)
end

-- What is measured for spec: the error of logits of each layer by its number, and its keys' means as lists.
function kv_auto.measure(model, spec)
  local errors, means = {}, {}
  q.no_grad(q.scope, function()
    for _, one in ipairs(measured(model)) do
      local mean = (spec.auto or spec.mean) and not spec.bases and mean_of(model, one, spec) or nil
      means[one.kind.layer] = mean and mean:table()
      errors[one.kind.layer] = error_of(one, spec, mean, model.config.attention_scale)
    end
  end)
  return errors, means
end

-- The type that `kv` stands for: itself, unless something of it is measured. That is done once for a model, and said.
function kv_auto.resolve(model, kv)
  local spec = kv_types.parse(kv)
  model.kv_measured = model.kv_measured or {}
  if spec.mean and spec.mean ~= "auto" and not model.kv_measured[spec.mean] then
    q.error("value", ("kv = %s: that mean was not measured in this model here; give mean=auto"):format(kv))
  end
  if not spec.auto and spec.mean ~= "auto" then return kv end
  if model.range then
    q.error("unsupported", ("kv = %s: what it measures lies in layers that peers have: give a type as tq4"):format(kv))
  end
  if model.kv_measured[kv] then return model.kv_measured[kv] end
  local errors, means = kv_auto.measure(model, spec)
  local taken, wide, all = kv_types.unmeasured(kv), {}, {}
  for _, kind in ipairs(model.states) do
    if spec.auto and errors[kind.layer] and errors[kind.layer] > most then wide[#wide + 1] = kind.layer end
    all[#all + 1] = means[kind.layer]
  end
  if #all > 0 then
    local hash = q.host.hash(q.json.encode(all)):sub(1, 16)
    for _, kind in ipairs(model.states) do
      kind.means = kind.means or {}
      kind.means[hash] = means[kind.layer]
    end
    taken, model.kv_measured[hash] = ("%s,mean=%s"):format(taken, hash), true
  end
  if #wide > 0 then taken = ("%s,wide=%s"):format(taken, table.concat(wide, "+")) end
  local why = #wide > 0 and (" (the norms of the keys of %d layers ask for q8_0)"):format(#wide) or ""
  io.stderr:write(("kv %s: %s%s\n"):format(kv, taken, why))
  model.kv_measured[kv] = taken
  return taken
end

return kv_auto
