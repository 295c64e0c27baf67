-- Mamba-2: packed documents give what each gives alone, over chunks and their borders; training token by token and in
-- chunks is one function; the engine's sequences share beginnings, give way and go back, and get what they get alone.
-- tests/lua/models_test.lua has it beside transformers, PEFT and llama.cpp.
package.path = (arg[0]:match "^(.*/)" or "./") .. "?.lua;" .. package.path
local q = require "qeng"

local cases = require "engine_cases"
local formula = require "formula"
local last_logits = require "last_logits"
local scratch = require "scratch"
local refused = scratch.refused

local values = {
  architectures = q.json.array { "Mamba2ForCausalLM" }, model_type = "mamba2", hidden_size = 64, num_hidden_layers = 2,
  num_heads = 8, head_dim = 16, state_size = 16, n_groups = 2, conv_kernel = 4, vocab_size = 320,
  tie_word_embeddings = true,
}
-- Heads that remember over tens and hundreds of tokens: else nothing would pass from chunk to chunk.
local function weights(name, shape)
  local w = formula(name, shape)
  if name:find "dt_bias" then return w - 3 end
  if name:find "A_log" then return w * 5 - 2 end
  return #shape > 1 and w * 0.4 or w
end
local function fresh(dtype, more)
  local own = {}
  for _, from in ipairs { values, more or {} } do
    for key, value in pairs(from) do own[key] = value end
  end
  return q.random_model(own, { dtype = dtype, weights = function(name, shape)
    local w = weights(name, shape)
    return dtype == "bf16" and w:to "bf16" or w
  end })
end

local function document(length, seed)
  local ids, mask, below = {}, {}, cases.random(seed)
  for i = 1, length do ids[i], mask[i] = below(320), 1 end
  return { tokens = ids, mask = mask }
end

local function distance(a, b)
  return math.sqrt(q.quant.squared_error(a, b) / math.max(1e-30, (q.quant.squared_error(q.zeros(a:shape()), a))))
end

-- ---- documents of one row know nothing of each other, wherever chunks of 64 tokens begin
local model = fresh()
local documents = {}
for i, length in ipairs { 1, 63, 64, 2, 200, 65, 130, 3 } do documents[i] = document(length, i) end
local together, at = model:packed_logits(q.pack(documents)), 0
for i, each in ipairs(documents) do
  local alone = model:packed_logits(q.pack { each })
  local off = distance(alone, together:rows(at, #each.tokens))
  assert(off < 2e-6, ("document %d of %d tokens is off by %g in a packed row"):format(i, #each.tokens, off))
  at = at + #each.tokens
end

-- ---- and so are gradients, of all parameters; recomputed ones have the same bits
local function gradients(of, packs, recompute)
  of:full()
  of.recompute = recompute or false
  for _, parameter in ipairs(of.parameters) do
    if parameter.tensor:grad() then parameter.tensor:grad():fill(0) end
  end
  for _, each in ipairs(packs) do
    each.scale:fill(1 / 100)
    of:loss(each):backward()
  end
  local found = {}
  for name, gradient in pairs(of:gradients()) do found[name] = gradient:clone() end
  return found
end
local singles = {}
for i, each in ipairs(documents) do singles[i] = q.pack { each } end
local of_packed, of_singles = gradients(model, { q.pack(documents) }), gradients(model, singles)
local again = gradients(model, { q.pack(documents) }, true)
for name, gradient in pairs(of_packed) do
  local off = distance(of_singles[name], gradient)
  assert(off < 1e-5, ("the gradient of %s is off by %g in a packed row"):format(name, off))
  assert(q.quant.squared_error(again[name], gradient) == 0, name .. ": a recomputed gradient has other bits")
end
model.recompute = false

-- ---- a captured step of training has the bits of one that is not
do
  local one, two = fresh():full(), fresh():full()
  local packed = q.pack(documents)
  local function losses(of, captured)
    local adamw, list = q.adamw(of:trainable(), { lr = 1e-3 }), {}
    local function pass()
      local loss = of:loss(packed)
      loss:backward()
      return loss
    end
    local program, kept
    if captured then program, kept = q.capture(pass) end
    for i = 1, 3 do
      if program then program:run() end
      list[i] = (kept or pass()):item()
      adamw:step()
    end
    return table.concat(list, " ")
  end
  assert(losses(one, false) == losses(two, true), "a captured step computes something else")
end

-- ---- inference goes token by token: what it gives is what chunks give
do
  local long = document(300, 9)
  local logits = model:logits(long.tokens)
  for _, how in ipairs { {}, { page_tokens = 16, chunk = 33 } } do
    how.max_batch, how.pages = 2, 24
    local engine = model:engine(how)
    local r = engine:submit { ids = long.tokens, max_tokens = 0, prompt_logprobs = 0 }
    engine:finish()
    for i = 2, 300, 13 do
      local row = logits:rows(i - 2, 1)
      local expected = (row:slice(2, long.tokens[i], long.tokens[i] + 1) - row:logsumexp(true)):item()
      local given = r.prompt_logprobs_list[i].logprob
      assert(math.abs(given - expected) < 2e-5 * math.max(1, math.abs(expected)),
        ("token %d: %.7g token by token, %.7g in chunks"):format(i, given, expected))
    end
    engine:close()
  end
end

-- ---- random schedules, with pages of few tokens and with one page a sequence
local reused, preempted, wrong = 0, 0, 0
for seed = 1, 8 do  -- in few pages sequences give way, in many they share
  local of = seed % 2 == 0 and fresh "bf16" or model
  local found = cases.schedule(seed, { model = of, count = 16, pages = seed < 5 and 14 or 30, shared = 30 })
  reused, preempted, wrong = reused + found.reused, preempted + found.preempted, wrong + found.guessed - found.accepted
end
assert(reused > 0 and preempted > 0 and wrong > 0,
  ("no schedule shares, gives way and goes back: %d, %d, %d"):format(reused, preempted, wrong))
do
  local function run(how)
    how.max_batch = how.max_batch or 3
    local engine, list, outputs = model:engine(how), {}, {}
    for i = 1, 3 do
      local ids = {}
      for k = 1, 20 * i do ids[k] = (k * k + i) % 7 end
      list[i] = engine:submit { ids = ids, max_tokens = 24, temperature = i % 2, seed = i, stop_ids = {}, lookup = 3 }
    end
    engine:finish()
    for i = 1, 3 do outputs[i] = table.concat(list[i].output, " ") end
    engine:close()
    return table.concat(outputs, "; ")
  end
  local plain = run { max_batch = 1, chunk = 500, context = 128 }
  local others = { { chunk = 1, context = 128 }, { chunk = 17, page_tokens = 8, pages = 60 },
    { draft = model, context = 100 } }
  for _, how in ipairs(others) do
    assert(run(how) == plain, "company, pages or guesses change a request")
  end
end

-- ---- memory is known before it is taken: a page holds a whole sequence, or what it became at the end of some tokens
do
  local snapshot = 2 * 4 * (128 * 16 + 3 * (128 + 2 * 2 * 16))
  for _, how in ipairs { { context = 256, max_batch = 5 }, { context = 256, pages = 5, page_tokens = 4 } } do
    local engine = model:engine(how)
    assert(engine:stats().pages == 5 and engine:stats().kv_capacity == 5 * snapshot)
    engine:close()
  end
end

-- ---- the residual stream is f32 under bf16, unless the config says otherwise
do
  local ids = document(40, 3).tokens
  local exact = last_logits.of(fresh(), ids)
  local wide = last_logits.distance(exact, last_logits.of(fresh "bf16", ids))
  local narrow = last_logits.distance(exact, last_logits.of(fresh("bf16", { residual_in_fp32 = false }), ids))
  assert(wide > 0 and wide < 0.05 and narrow > 0 and narrow < 0.05 and wide ~= narrow)
  local engine = fresh("bf16"):engine { max_batch = 1, context = 64 }
  local r = engine:submit { ids = ids, max_tokens = 4, temperature = 0, stop_ids = {} }
  engine:finish()
  assert(#r.output == 4)
  engine:close()
end

-- ---- and training in bf16 goes where that in f32 does
do
  local packed = q.pack(documents)
  local one, two = gradients(fresh(), { packed }), gradients(fresh "bf16", { packed })
  for name, gradient in pairs(one) do
    local off = distance(gradient, two[name]:to "f32")
    assert(off < 0.05, ("the gradient of %s under bf16 is off by %g"):format(name, off))
  end
end

-- ---- what is not computed is refused by name
for text, more in pairs {
  ["hidden_act = gelu changes the mathematics"] = { hidden_act = "gelu" },
  ["conv_kernel 9"] = { conv_kernel = 9 },
  ["8 heads of 16 in 3 groups"] = { n_groups = 3 },
  ["expand 3"] = { expand = 3 },
  ["key time_step_limit is not two numbers"] = { time_step_limit = { 1, 0 } },
  ["unknown key d_conv"] = { d_conv = 4 },
  ["rms_norm = false changes the mathematics"] = { rms_norm = false },
} do
  refused(text, fresh, "f32", more)
end
print(("mamba2: %d tokens reused, %d gave way, %d guesses were wrong"):format(reused, preempted, wrong))
