-- The type `auto` of a cache: codes of 4 bits, and q8_0 for the keys of layers whose norms ask for it. The results are
-- in bench/results/2026-11-27-kv-quality.md.
--
-- A code of a vector that was turned at random errs evenly in all directions, so the error of a logit q k s has the
-- mean square
--   |q|^2 |k|^2 s^2 D / dim,   D = the part of a vector's square that the codebook leaves.
-- q and k are what is coded: with bases turned by them and without the mean. Keys of a layer whose heads err by more
-- than `most` nats (root of the mean square, over heads too) become q8_0.

local codebook = require "qeng.codes.codebook"
local kv_bases = require "qeng.model.kv_bases"
local kv_codes = require "qeng.model.kv_codes"
local kv_types = require "qeng.model.kv_types"
local q = require "qeng.core"

local kv_auto = {}

local most = 0.5     -- nats: what released models keep below in nearly all layers, and few tokens change their place
local tokens = 128   -- of the text: norms are as good as the same from there on
local text = [[
The town lies where two rivers meet, 40 miles from the coast. In 1873 a bridge of stone was built there, and with it
came the railway, a market and three schools. "Nobody believed that it would last," wrote the mayor, "but we counted
on patience rather than on luck." What follows is a list of costs: timber, 12.50 a load; lime, 3.75; wages of a mason,
1.20 a day. If the water rises above the second arch, the gates have to be closed before noon, and the miller is told.
def area(width, height): return width * height  # both in metres
Since then the population has grown from 2,300 to about 18,000, and most of the older houses have become shops.]]

-- The error of each layer's logits, in nats, by its number, with keys as spec keeps them in codes.
function kv_auto.errors(model, spec)
  local kinds, places, found = {}, {}, {}
  for _, kind in ipairs(model.states) do
    if kind.exact_bytes then  -- attention
      kinds[#kinds + 1] = kind
      for _, side in ipairs { "query", "key" } do
        places[#places + 1] = ("layers.%d.attn.%s"):format(kind.layer, side)
      end
    end
  end
  if not model.tokenizer then
    q.error("unsupported", "kv = auto measures a text, and this model has no tokenizer: give a type, as tq4")
  end
  local ids, scale = model.tokenizer:encode(text), model.config.attention_scale
  ids = { unpack(ids, 1, math.min(tokens, #ids, model.config.max_position)) }
  q.no_grad(q.scope, function()
    local seen = model:activations(ids, places)
    local function norms(x)  -- of heads, but for the first tokens, which are kept exactly
      return x:slice(1, math.min(spec.sinks, #ids - 1)):square():sum(3):mean(1):compute():table()
    end
    for _, kind in ipairs(kinds) do
      local fitted, dim = spec.bases and kv_bases.layer(spec.bases, kind).key, kind.head_dim
      local codes = kv_codes.open(spec.key, dim, true, fitted, kind.whole)
      local function part(side) return seen[("layers.%d.attn.%s"):format(kind.layer, side)]:to("f32"):compute() end
      local queries = norms(q.pages.head_linear(part "query", codes.query))
      local keys = norms(q.pages.head_linear(part "key", codes.to, codes.to_bias))
      local sum, group = 0, #queries / #keys
      for h, square in ipairs(queries) do sum = sum + square * keys[math.ceil(h / group)] / #queries end
      found[kind.layer] = math.sqrt(sum * codebook.sphere(dim, spec.key.bits).distortion / dim) * (scale or dim ^ -0.5)
      kv_codes.free(codes)
    end
  end)
  return found
end

-- The type that `kv` stands for: itself but for auto, which is measured once for a model, and said.
function kv_auto.resolve(model, kv)
  local spec = kv_types.parse(kv)
  if not spec.auto then return kv end
  model.kv_auto = model.kv_auto or {}
  if not model.kv_auto[kv] then
    local wide, taken = {}, kv:gsub("^auto", kv_types.automatic)
    for layer, nats in pairs(kv_auto.errors(model, spec)) do
      if nats > most then wide[#wide + 1] = layer end
    end
    table.sort(wide)
    if #wide > 0 then taken = ("%s,wide=%s"):format(taken, table.concat(wide, "+")) end
    io.stderr:write(("kv auto: %s (%s)\n"):format(taken, #wide == 0 and "no layer's keys have norms that ask for more"
      or ("the norms of the keys of %d layers ask for q8_0"):format(#wide)))
    model.kv_auto[kv] = taken
  end
  return model.kv_auto[kv]
end

return kv_auto
