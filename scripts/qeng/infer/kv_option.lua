-- The options of a command line that say how a cache keeps keys and values: the set "kv", and what they come to.

local kv_auto = require "qeng.model.kv_auto"
local kv_types = require "qeng.model.kv_types"
local options = require "qeng.console.options"
local q = require "qeng.core"

options.set("kv", {
  { "kv", nil, "how the cache keeps keys and values: f32, f16, bf16, q8_0, or codes of tq2 to tq4 bits; two as " ..
    "KEYS/VALUES; auto: tq4 by the keys of this model; more behind commas (recipes/README.md); the model's " ..
    "dtype by default", check = kv_types.fault },
  { "kv_k", nil, "the same, of keys alone", check = kv_types.fault },
  { "kv_v", nil, "the same, of values alone", check = kv_types.fault },
  { "kv_tail", nil, "with codes: the last so many tokens before each query stay in f16 (128)" },
})

-- The type of kv_types.lua that they give, nil for the model's dtype. With a model auto is what it comes to there.
return function(opt, model)
  local text = opt.kv
  if opt.kv_k or opt.kv_v then
    if text then q.error("usage", "--kv says how both are kept: give --kv, or --kv-k and --kv-v") end
    if not (opt.kv_k and opt.kv_v) then q.error("usage", "--kv-k and --kv-v go together: f16 is one of a side") end
    text = opt.kv_k .. "/" .. opt.kv_v
  end
  if opt.kv_tail then
    if not text then q.error("usage", "--kv-tail is for codes: give --kv tq4") end
    text = ("%s,tail=%s"):format(text, opt.kv_tail)
  end
  if text then kv_types.parse(text) end
  return text and model and kv_auto.resolve(model, text) or text
end
