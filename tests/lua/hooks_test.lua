-- Hooks and what else looks into a model: a hook that takes something away gives the model without it, in a pass, in
-- training and in generation; gradients flow through what a hook returns.
package.path = (arg[0]:match("^(.*/)") or "./") .. "?.lua;" .. package.path
local q = require "qeng"
local scratch = require "scratch"
q.device { device = "cpu", threads = 1 }

local refused = scratch.refused
local config = {
  architectures = { "LlamaForCausalLM" }, model_type = "llama", vocab_size = 96, hidden_size = 32,
  num_hidden_layers = 2, num_attention_heads = 2, num_key_value_heads = 1, intermediate_size = 48,
  max_position_embeddings = 128, rms_norm_eps = 1e-6, hidden_act = "silu", tie_word_embeddings = true,
}
local function new(change)
  local model = q.random_model(config, { seed = 5, std = 0.3 })
  for _, parameter in ipairs(model.parameters) do
    if change and parameter.name:find(change, 1, true) then parameter.tensor:fill(0) end
  end
  return model
end
local function nothing(x) return q.zeros(x:shape(), x:dtype()) end
local ids = { 3, 14, 15, 92, 65, 35 }

-- ---------------------------------------------------------------- a pass

local model = new()
assert(table.concat(model.places, " ") ==
  "embed layers.0.attn.query layers.0.attn.key layers.0.attn.value layers.0.attn layers.0.mlp layers.0 " ..
  "layers.1.attn.query layers.1.attn.key layers.1.attn.value layers.1.attn layers.1.mlp layers.1 norm",
  table.concat(model.places, " "))
local plain = model:logits(ids):hash()
local order = {}
for _, place in ipairs(model.places) do
  model:hook(place, function(x, name)
    local shape = x:shape()
    assert(shape[1] == #ids and (#shape == 3 or shape[2] == 32))
    order[#order + 1] = name
  end)
end
assert(model:logits(ids):hash() == plain, "hooks that only read change bits")
assert(table.concat(order, " ") == table.concat(model.places, " "))
for _, place in ipairs(model.places) do model:hook(place, nil) end
assert(model.hooks == nil and model:logits(ids):hash() == plain)

local parts = { ["layers.1.attn"] = "layers.1.self_attn.o_proj", ["layers.0.mlp"] = "layers.0.mlp.down_proj" }
for place, weight in pairs(parts) do
  model:hook(place, nothing)
  local hooked = model:logits(ids):hash()
  model:hook(place)
  assert(hooked ~= plain and hooked == new(weight):logits(ids):hash(), place)
end
do  -- without values attention gives nothing; with keys that are all alike it gives what it does without queries
  local function hooked(place)
    model:hook(place, nothing)
    local hash = model:logits(ids):hash()
    model:hook(place)
    return hash
  end
  assert(hooked "layers.0.attn.value" == hooked "layers.0.attn" and hooked "layers.0.attn.value" ~= plain)
  assert(hooked "layers.0.attn.key" == hooked "layers.0.attn.query" and hooked "layers.0.attn.key" ~= plain)
end
model:hook("norm", nothing)
assert(model:logits(ids):abs():max():item() == 0)
model:hook "norm"

local seen = model:activations(ids)
local function near(a, b, bound) return (a - b):abs():max():item() <= (bound or 1e-5) end
assert(near(seen["layers.0"], seen.embed + seen["layers.0.attn"] + seen["layers.0.mlp"]))
assert(near(seen["layers.1"], seen["layers.0"] + seen["layers.1.attn"] + seen["layers.1.mlp"]))
assert(near(q.linear(seen.norm, model.head), model:logits(ids)) and near(seen.norm, model:hidden(ids), 0))
assert(next(model:activations(ids, { "embed" })) == "embed" and model.hooks == nil)
model:hook("layers.0", function(x) return 2 * x end)
assert(near(model:activations(ids, { "layers.0" })["layers.0"], 2 * seen["layers.0"]), "activations beside a hook")
model:hook "layers.0"
model.recompute = true
assert(model:logits(ids):hash() == plain)
model:hook("layers.0", function(x) return x end)
assert(model:logits(ids):hash() == plain, "with recompute")
model:hook "layers.0"
model.recompute = false

-- ---------------------------------------------------------------- gradients

local steering = q.zeros { 32 }
steering:requires_grad(true)
model:hook("layers.0", function(x) return x + steering end)
local function loss() return (model:hidden(ids) ^ 2 * q.tensor({ 1, 2, 3, 4, 5, 6 }):reshape { 6, 1 }):mean() end
loss():backward()
local gradient, difference = steering:grad():table(), {}
for i = 1, 32, 7 do
  local function at(value)
    steering:rows(i - 1, 1):fill(value)
    local result = q.no_grad(q.scope, function() return loss():item() end)
    steering:rows(i - 1, 1):fill(0)
    return result
  end
  difference[i] = (at(1e-2) - at(-1e-2)) / 2e-2
  assert(math.abs(gradient[i] - difference[i]) < 1e-2 * math.abs(difference[i]) + 1e-4,
    ("%d: %g, by differences %g"):format(i, gradient[i], difference[i]))
end
model:hook "layers.0"
do  -- what is recomputed has the hooks of its pass, not those that backward finds
  local added = q.zeros { 32 }
  added:requires_grad(true)
  local function slope(recompute, remove)
    model.recompute = recompute
    model:hook("layers.0.mlp", function(x) return x + added end)
    local found = loss()
    if remove then model:hook "layers.0.mlp" end
    found:backward()
    model:hook "layers.0.mlp"
    local length = added:grad():norm():item()
    added:grad():fill(0)
    return length
  end
  local plain_slope = slope(false, false)
  assert(plain_slope > 0 and math.abs(slope(true, true) / plain_slope - 1) < 1e-4, "a hook that was removed")
  model.recompute = false
end
assert(next(model:gradients()) == nil)
model:lora { rank = 2, targets = { "q_proj" } }
model:hidden(ids):mean():backward()
local names, count = model:gradients(), 0
for _ in pairs(names) do count = count + 1 end
assert(count == 4 and names["model.layers.1.self_attn.q_proj.lora_B.weight"]:norm():item() > 0)

-- ---------------------------------------------------------------- generation

local function generated(m, engine) return table.concat((function()
  local request = engine:submit { ids = ids, max_tokens = 24, temperature = 0 }
  engine:finish()
  assert(not request.error, tostring(request.error))
  return request.output
end)(), " "), m end
model = new()
local engine = model:engine { pages = 16, page_tokens = 4 }
local bare = new "layers.1.self_attn.o_proj"
local expected, without = generated(model, engine), generated(bare, bare:engine { pages = 16, page_tokens = 4 })
assert(expected ~= without and generated(model, engine) == expected)
model:hook("layers.1.attn", nothing)
assert(generated(model, engine) == without, "a hook that came after pages were remembered and programs captured")
model:hook("layers.1.attn", nil)
assert(generated(model, engine) == expected, "after the hook is gone")
model:hook("layers.0", function(x) return -x end)
local fresh = generated(model, model:engine { pages = 16, page_tokens = 4 })
assert(fresh ~= expected and generated(model, engine) == fresh, "keys and values that were remembered without the hook")
model:hook("layers.0", nil)

-- ---------------------------------------------------------------- training: captured as eager

local lines = {}
for i = 1, 40 do lines[i] = q.json.encode { prompt = "how many? " .. i, completion = ("%d geese"):format(i) } end
q.fs.write(scratch.at "data.jsonl", table.concat(lines, "\n") .. "\n")
local function trained(eager, on_step)
  local m = q.load("recipes/tiny", { dtype = "f32" }):lora { rank = 2, seed = 1 }
  local losses = {}
  local data = q.packets(scratch.at "data.jsonl", { tokenizer = m.tokenizer, cache_dir = scratch.folder })
  q.train { model = m, data = data, out = scratch.at "run", overwrite = true, row_tokens = 64, steps = 4, lr = 1e-3,
    eager = eager, on_step = function(row)
      losses[#losses + 1] = ("%.9g"):format(row.loss)
      if on_step then on_step(m, row.step) end
    end }
  return table.concat(losses, " ")
end
local function hooked(m, step)
  if step == 2 then m:hook("layers.1.mlp", function(x) return 0.5 * x end) end
  if step == 3 then m:hook("layers.1.mlp", nil) end
end
require("qeng.console.progress").silent = true
local untouched, captured, eager = trained(false), trained(false, hooked), trained(true, hooked)
assert(captured == eager and captured ~= untouched, captured .. "\n" .. eager .. "\n" .. untouched)

-- ---------------------------------------------------------------- logits of a text, and the likeliest tokens

local tiny = q.load "recipes/tiny"
local logits = tiny:logits "how many?"
assert(logits:shape()[1] == #tiny.tokenizer:encode "how many?")
assert(logits:hash() == tiny:logits(tiny.tokenizer:encode "how many?"):hash())
local top = logits:top(3)
local last = logits:rows(logits:shape()[1] - 1, 1):softmax():table()[1]
local best = 1
for i, p in ipairs(last) do if p > last[best] then best = i end end
assert(#top == 3 and top[1].id == best - 1 and math.abs(top[1].p - last[best]) < 1e-5)
assert(top[1].token == tiny.tokenizer:bytes(best - 1) and top[1].p >= top[2].p and top[2].p >= top[3].p)
assert(tostring(top):find(("^ *%d  %%d%%.%%d%%d%%d%%d  \""):format(best - 1)), tostring(top))
assert(logits:top(1, 0)[1].id ~= nil and q.tensor({ 0, 2, 1 }):top(2)[1].id == 1 and #q.tensor({ 0, 1 }):top() == 2)
assert(q.tensor({ 0, 2 }):top(1)[1].token == nil)

-- ---------------------------------------------------------------- what is refused

refused("there is no place layers.9.attn; model.places lists them: embed, layers.0.attn.query", model.hook,
  model, "layers.9.attn", nothing)
refused("a function expected for norm, or nil to remove it, got a table", model.hook, model, "norm", {})
model:hook("norm", function(x) return x:reshape { 2, 3, 32 } end)
refused("hook of norm: it returned f32 [2, 3, 32], expected f32 [6, 32]", model.logits, model, ids)
model:hook("norm", function() return 5 end)
refused("hook of norm: it returned a number", model.logits, model, ids)
model:hook "norm"
refused("no tokenizer: give token ids", model.logits, model, "text")
refused("token 1 is 96; the model has tokens 0 to 95", model.logits, model, { 96 })
refused("there are no tokens", model.logits, model, {})
refused("there is no row 6", model:logits(ids).top, model:logits(ids), 1, 6)
refused("top: 0 tokens", model:logits(ids).top, model:logits(ids), 0)
refused("logits of [vocab]", q.zeros({ 1, 2, 3 }).top, q.zeros { 1, 2, 3 })
print "hooks: ok"
