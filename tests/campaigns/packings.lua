-- By hand: 200 random packings of models with gated delta nets, half of them with a memory of 10,000 tokens, where
-- leaks show. A document's logits and the gradients of its loss have to be what they are among other companions, to the
-- bit, also in a mixture, whose experts have other numbers of rows then.
--   qeng tests/campaigns/packings.lua [200]
-- Also 200 random schedules of requests, half with guesses of the model's own head: each gets what it gets alone.
package.path = (arg[0]:match "^(.*/)" or "./") .. "../lua/?.lua;" .. package.path
local q = require "qeng"
local cases = require "engine_cases"
local formula = require "formula"
local hybrid = require "hybrid_model"

local rounds = tonumber(arg[1] or 200)
local kinds = { "dense", "mixture", "next" }

local function distance(a, b)
  return math.sqrt(q.quant.squared_error(a, b) / math.max(1e-30, (q.quant.squared_error(q.zeros(b:shape()), b))))
end

-- A decay of about e^-1e-4 a token.
local function slow(name, shape)
  local w = formula(name, shape)
  return (name:find "A_log" or name:find "dt_bias") and w * 0 - 4.6 or w
end

local function gradients(model, packed, tokens)
  for _, parameter in ipairs(model.parameters) do
    if parameter.tensor:grad() then parameter.tensor:grad():fill(0) end
  end
  packed.scale:fill(1 / tokens)
  model:loss(packed):backward()
  local found = {}
  for name, gradient in pairs(model:gradients()) do found[name] = gradient:clone() end
  return found
end

local worst = { dense = { 0, 0 }, mixture = { 0, 0 }, next = { 0, 0 } }
for seed = 1, rounds do
  local kind, below = kinds[seed % 3 + 1], cases.random(seed)
  local model = hybrid.fresh(hybrid.kinds[kind], { weights = seed % 2 == 0 and slow or nil }):full()
  local one, other, count = {}, {}, 2 + below(5)
  local own, at = 1 + below(count), 0
  for i = 1, count do
    local ids, others, mask = {}, {}, {}
    for k = 1, 2 + below(90) do ids[k], others[k], mask[k] = below(40), below(40), i == own and 1 or 0 end
    one[i], other[i] = { tokens = ids, mask = mask }, { tokens = i == own and ids or others, mask = mask }
    if i < own then at = at + #ids end
  end
  local tokens = #one[own].tokens
  local a = model:packed_logits(q.pack(one)):rows(at, tokens)
  local off = distance(a, model:packed_logits(q.pack(other)):rows(at, tokens))
  worst[kind][1] = math.max(worst[kind][1], off)
  local first, second = gradients(model, q.pack(one), tokens), gradients(model, q.pack(other), tokens)
  for name, gradient in pairs(first) do
    worst[kind][2] = math.max(worst[kind][2], distance(gradient, second[name]))
  end
end
for _, kind in ipairs(kinds) do
  print(("%-8s the largest difference of logits %.2g, of a gradient %.2g"):format(kind, unpack(worst[kind])))
  assert(worst[kind][1] == 0 and worst[kind][2] == 0, kind .. ": a document knows of others")
end

local sums = { reused = 0, preempted = 0, guessed = 0, accepted = 0, cancelled = 0 }
for seed = 1, rounds do
  local more = { vocab_size = 320 }
  for key, value in pairs(hybrid.kinds[kinds[seed % 3 + 1]]) do more[key] = value end
  local opt = { model = hybrid.fresh(more), count = 24, pages = 14, page_tokens = 64 }
  if seed % 2 == 0 then
    opt.model:attach_mtp { input = seed % 4 == 0 and "pre" or "post" }
    opt.draft = "mtp"
  end
  local found = cases.schedule(seed, opt)
  for key in pairs(sums) do sums[key] = sums[key] + found[key] end
end
print(("%d schedules: %d tokens reused, %d gave way, %d of %d guesses true, %d cancelled"):format(rounds, sums.reused,
  sums.preempted, sums.accepted, sums.guessed, sums.cancelled))
