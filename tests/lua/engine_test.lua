-- The continuous-batching engine. What a request gives does not depend on what runs beside it, on the pages of the
-- cache, on how its prompt was cut, or on guesses. Some requests are refused.

package.path = (arg[0]:match("^(.*/)") or "./") .. "?.lua;" .. package.path
local cases = require "engine_cases"
local q = require "qeng"
q.device { device = "cpu", threads = 1 }  -- tensors are small: a second thread only costs

local function check(condition, ...)
  if not condition then error(string.format(...), 2) end
end

local function equal(a, b)
  if #a ~= #b then return false end
  for i = 1, #a do
    if a[i] ~= b[i] then return false end
  end
  return true
end

-- 64 sequences, random schedules
for seed = 1, tonumber(os.getenv "QENG_ROUNDS") or #cases.families do
  local figures = cases.schedule(seed, { pages = seed == 2 and 12 or nil })  -- the second: pages run out
  print(("schedule %d: %d steps, %d preempted, %d tokens reused, %d cancelled, %d of %d guesses true"):format(
    seed, figures.steps, figures.preempted, figures.reused, figures.cancelled, figures.accepted, figures.guessed))
end

-- every dtype of the cache and of the model: chunks, guesses and company change nothing
for _, family in ipairs { "qwen2", "mistral", "qwen3_moe" } do
  for _, dtype in ipairs { "f32", "bf16" } do
    local model = cases.model(family, { dtype = dtype })
    for _, kv in ipairs { "f32", "bf16", "f16", "q8_0" } do
      local function run(setup, lookup)
        setup.kv, setup.pages = kv, 60
        local engine, list = model:engine(setup), {}
        for i = 1, 3 do
          local ids = {}
          for k = 1, 20 * i do ids[k] = (k * k + i) % 7 end  -- repeats itself, so that guesses come true
          list[i] = engine:submit { ids = ids, max_tokens = 24, temperature = i % 2, seed = i, stop_ids = {},
            lookup = lookup }
        end
        engine:finish()
        check(engine:stats().used == 0, "pages are left")
        engine:close()
        return list
      end
      local first = run({ max_batch = 1, chunk = 500 })
      for _, other in ipairs { run({ max_batch = 3, chunk = 1 }), run({ max_batch = 2, chunk = 17, page_tokens = 8 }),
          run({ chunk = 64 }, 5) } do
        for i = 1, 3 do
          check(equal(first[i].output, other[i].output), "%s %s kv %s: request %d differs", family, dtype, kv, i)
        end
      end
    end
  end
end

-- a draft model: itself (all guesses true where greedy), and another one
local model, other = cases.model("qwen3", { layers = 3 }), cases.model("qwen3", { layers = 1, seed = 9 })
for _, draft in ipairs { model, other } do
  local engine = model:engine { draft = draft, draft_always = true, pages = 40, max_batch = 4 }
  local list, drafted, accepted = {}, 0, 0
  local options = cases.requests(model, 10, cases.random(5))
  for i, opt in ipairs(options) do
    opt.adapter, opt.repetition_penalty = nil, nil
    list[i] = engine:submit(opt)
  end
  engine:finish()
  check(engine:stats().used == 0 and engine.drafter.runner.pool:stats().used == 0, "pages are left after drafting")
  for i, opt in ipairs(options) do
    check(equal(list[i].output, cases.alone(model, opt).output), "request %d differs with a draft model", i)
    if opt.temperature == 0 then drafted, accepted = drafted + list[i].drafted, accepted + list[i].accepted end
  end
  if draft == model then
    check(drafted > 20 and accepted == drafted, "the model's own guesses: %d of %d true", accepted, drafted)
  end
  engine:close()
end

-- a draft model with a shorter context and fewer tokens guesses as far as it can
for name, draft in pairs { context = cases.model("qwen3", { layers = 1, context = 32 }),
    vocabulary = cases.model("qwen3", { layers = 1, vocab = 310 }) } do
  local engine, list, drafted = model:engine { draft = draft, draft_always = true, pages = 40, max_batch = 4 }, {}, 0
  for i = 1, 4 do
    list[i] = engine:submit { ids = { 1, 2, i == 4 and 315 or i }, max_tokens = 70, temperature = i % 2, seed = i,
      stop_ids = {} }
  end
  engine:finish()
  for i, r in ipairs(list) do
    local opt = { ids = { 1, 2, i == 4 and 315 or i }, max_tokens = 70, temperature = i % 2, seed = i, stop_ids = {} }
    check(equal(r.output, cases.alone(model, opt).output), "request %d differs with a draft model of less %s", i, name)
    drafted = drafted + r.drafted
  end
  check(drafted > 20 and (name == "context" or list[4].drafted == 0), "a draft model of less %s: %d guesses",
    name, drafted)
  check(engine.drafter.runner.pool:stats().used == 0, "pages are left after drafting")
  engine:close()
end

-- a draft model whose pages are of another size, and a model that keeps recurrent states under such a draft
local hybrid = require("hybrid_model").fresh { vocab_size = 320 }
for _, pair in ipairs { { model, hybrid }, { hybrid, model } } do
  local engine = pair[1]:engine { draft = pair[2], draft_always = true, pages = 40, max_batch = 4 }
  local list, drafted = {}, 0
  local options = cases.requests(model, 6, cases.random(5))
  for i, opt in ipairs(options) do
    opt.adapter, opt.repetition_penalty = nil, nil
    list[i] = engine:submit(opt)
  end
  engine:finish()
  for i, opt in ipairs(options) do
    check(equal(list[i].output, cases.alone(pair[1], opt).output), "request %d differs with pages of other sizes", i)
    drafted = drafted + list[i].drafted
  end
  check(drafted > 20, "a draft of other pages: %d guesses", drafted)
  check(engine:stats().used == 0 and engine.drafter.runner.pool:stats().used == 0, "pages are left after drafting")
  engine:close()
end

-- beside a draft model prompts may be cut into pieces of one token
do
  local engine = model:engine { draft = other, chunk = 1, pages = 40 }
  local opt = { ids = { 1, 2, 3, 4, 5 }, max_tokens = 4, temperature = 0, stop_ids = {} }
  local r = engine:submit(opt)
  engine:finish()
  check(equal(r.output, cases.alone(model, opt).output), "a prompt in pieces of one token differs")
  engine:close()
end

-- an error of a draft model is told once
do
  local engine = model:engine { draft = other, pages = 40 }
  local opt = { ids = { 1, 2, 3 }, max_tokens = 10, temperature = 0, stop_ids = {} }
  local r = engine:submit(opt)
  for _ = 1, 3 do engine:step() end
  function engine.drafter.runner.run() error { code = "broken", message = "no" } end
  local ok, err = pcall(engine.step, engine)
  check(not ok and err.code == "broken" and not engine.drafter, "the draft model's error: %s", tostring(err))
  engine:finish()
  check(equal(r.output, cases.alone(model, opt).output), "the request goes on without a draft model")
  engine:close()
end

-- the tokens that both models have must mean the same
local function with_tokens(of, list)
  return setmetatable({ tokenizer = {
    hash = function() return table.concat(list, ",") end, vocab_size = function() return #list end,
    bytes = function(_, id) return list[id + 1] end,
  } }, { __index = of })
end
with_tokens(model, { "a", "b" }):engine({ draft = with_tokens(other, { "a", "b", "<pad>" }), pages = 4 }):close()
local _, mismatch = q.try(model.engine, with_tokens(model, { "a", "b" }),
  { draft = with_tokens(other, { "a", "c" }), pages = 4 })
check(tostring(mismatch):find 'token 1 is "b" to the model and "c" to the draft model', "another tokenizer: %s",
  tostring(mismatch))

-- equal prompts are computed once
local engine = model:engine { pages = 40 }
local ids = {}
for i = 1, 40 do ids[i] = i end
local first = engine:submit { ids = ids, max_tokens = 4, temperature = 0, stop_ids = {} }
engine:finish()
local again = engine:submit { ids = ids, max_tokens = 4, temperature = 0, stop_ids = {} }
engine:finish()
check(first.reused == 0 and again.reused == 32 and equal(first.output, again.output), "%d tokens reused", again.reused)
engine:close()

-- an adapter for one request gives what it gives on the model; other requests do not change
do
  local dir = os.tmpname()
  os.remove(dir)
  local tuned = cases.model "qwen2"
  tuned:lora { rank = 4, seed = 3, targets = { "q_proj", "v_proj", "down_proj" } }
  for i, parameter in ipairs(tuned:trainable()) do
    parameter.tensor:copy(q.randn(parameter.tensor:shape(), { std = 0.2, seed = 4, subsequence = i }))
  end
  tuned:save_adapter(dir)
  local base = cases.model "qwen2"
  local opt = { ids = { 3, 1, 4, 1, 5 }, max_tokens = 20, temperature = 0, stop_ids = {} }
  local with, without = cases.alone(tuned, opt).output, cases.alone(base, opt).output
  check(not equal(with, without), "the adapter changes nothing")
  local pair, adapter = base:engine { pages = 10 }, base:read_adapter(dir)
  local plain = pair:submit(opt)
  opt.adapter = adapter
  local adapted = pair:submit(opt)
  pair:finish()
  pair:close()
  tuned.adapter.alpha = 0
  tuned:save_adapter_gguf(dir .. "/lora.gguf")
  for _, lora in pairs(base:read_adapter(dir .. "/lora.gguf").layers) do
    check(lora.scale == 1, "alpha 0 of a GGUF file is a scale of 1")
  end
  check(cases.model("qwen2"):load_adapter(dir .. "/lora.gguf").adapter.alpha == 4, "alpha 0 of a GGUF file is its rank")
  local config = q.json.decode(q.fs.read(dir .. "/adapter_config.json"))
  for key, value in pairs { init_lora_weights = "pissa_niter_16", alora_invocation_tokens = { 1, 2 } } do
    local kept = config[key]
    config[key] = value
    q.fs.write(dir .. "/adapter_config.json", q.json.encode(config))
    local _, err = q.try(base.read_adapter, base, dir)
    check(err and err.code == "unsupported" and err.message:find(key), "%s: %s", key, tostring(err))
    config[key] = kept
  end
  config.init_lora_weights = true
  q.fs.write(dir .. "/adapter_config.json", q.json.encode(config))
  check(base:read_adapter(dir), "an adapter that began as PEFT's do")
  q.fs.remove(dir)
  check(equal(plain.output, without) and equal(adapted.output, with), "a request's own adapter")
  opt.adapter = false
  check(equal(cases.alone(tuned, opt).output, without), "adapter = false leaves the model's own out")
end

-- captured steps belong to their adapter, even if another has its name or its place in memory
do
  local base = cases.model "qwen2"
  local forgetful = base:engine { pages = 40, remember = false }
  for seed = 1, 2 do
    local adapter = setmetatable(cases.adapter(base, seed), { __tostring = function() return "adapter" end })
    local opt = { ids = { 1, 2, 3 }, max_tokens = 12, temperature = 0, stop_ids = {}, adapter = adapter }
    local r = forgetful:submit(opt)
    forgetful:finish()
    check(equal(r.output, cases.alone(base, opt).output), "adapter %d runs the steps of another", seed)
  end
  forgetful:close()
end

-- an error in one request's logits ends that request alone; after a step that raised, what had been computed counts
do
  local base = cases.model "qwen2"
  local broken = cases.adapter(base, 1)
  for _, lora in pairs(broken.layers) do lora.a:fill(1e30); lora.b:fill(1e30) end
  local opt = { ids = { 1, 2, 3 }, max_tokens = 8, seed = 1, stop_ids = {} }
  local alone = cases.alone(base, opt).output
  opt.stop_ids = { [alone[1]] = true }
  local strained = base:engine { pages = 40 }
  local stops, bad = strained:submit(opt),
    strained:submit { ids = { 5, 6, 7 }, max_tokens = 2, prompt_logprobs = 0, adapter = broken, stop_ids = {} }
  strained:finish()
  check(bad.finish == "error" and bad.error.message:find "NaN" and stops.finish == "stop",
    "logits of one request: %s, %s", bad.finish, stops.finish)
  stops = strained:submit(opt)
  opt.stop_ids = {}
  local goes_on, land = strained:submit(opt), strained.runner.land
  function strained.runner.land(...)
    land(...)
    error { code = "broken", message = "no" }
  end
  check(not pcall(strained.step, strained), "the step raises")
  strained.runner.land = nil
  check(stops.finish == "stop" and #stops.output == 0, "a request that had come to its end")
  strained:finish()
  check(equal(goes_on.output, alone), "a request that goes on")
  strained:close()
end

-- A step is cut short after it reserved pages: what was not computed is not taken for computed. The second prompt
-- shares its last page with the first, which still runs, so it gets a copy.
do
  local base, long = cases.model "qwen2", {}
  for i = 1, 32 do long[i] = i * i % 7 end
  local function opt(seed) return { ids = long, max_tokens = 20, seed = seed, stop_ids = {}, lookup = 3 } end
  local function broken() error { code = "broken", message = "no" } end
  local copy_pages = q.pages.copy_pages
  local faults = {
    extend = function(runner)
      local calls = 0
      function runner.extend(...)
        calls = calls + 1
        return getmetatable(runner).extend(...) and (calls < 2 or broken())
      end
      return function() runner.extend = nil end
    end,
    copy = function() q.pages.copy_pages = broken; return function() q.pages.copy_pages = copy_pages end end,
    land = function(runner) runner.land = broken; return function() runner.land = nil end end,
  }
  for name, fault in pairs(faults) do
    local faulty = base:engine { pages = 40 }
    local list = { faulty:submit(opt(1)) }
    for _ = 1, 3 do faulty:step() end
    list[2] = faulty:submit(opt(2))
    local mend = fault(faulty.runner)
    check(not pcall(faulty.step, faulty), "%s: the step raises", name)
    mend()
    faulty:finish()
    check(list[2].reused == 31, "%s: the prompts share %d tokens", name, list[2].reused)
    for seed, r in ipairs(list) do
      check(equal(r.output, cases.alone(base, opt(seed)).output), "%s: request %d differs", name, seed)
    end
    check(faulty:stats().used == 0, "%s: pages are left", name)
    faulty:close()
  end
end

-- logprobs of prompt and output: those of the whole sequence at once
engine = model:engine { pages = 10, chunk = 7 }
local r = engine:submit { ids = { 5, 6, 7, 8, 9, 10, 11, 12, 13 }, max_tokens = 3, temperature = 0, logprobs = 2,
  prompt_logprobs = 1, stop_ids = {} }
engine:finish()
local logits = model:logits(r.tokens):table()
for i = 2, #r.tokens do
  local row, most, sum = logits[i - 1], -math.huge, 0
  for _, z in ipairs(row) do most = math.max(most, z) end
  for _, z in ipairs(row) do sum = sum + math.exp(z - most) end
  local expected = row[r.tokens[i] + 1] - most - math.log(sum)
  local got = i <= 9 and r.prompt_logprobs_list[i] or r.logprobs[i - 9]
  check(got.id == r.tokens[i] and math.abs(got.logprob - expected) < 1e-4, "logprob of token %d: %g, expected %g", i,
    got.logprob, expected)
  check(math.abs(got.top[1].logprob - (most - most - math.log(sum))) < 1e-4, "the likeliest of token %d", i)
end
check(r.prompt_logprobs_list[1] == false and #r.logprobs == 3 and #r.logprobs[1].top == 2 and
  r.logprobs[1].top[1].id == r.output[1], "logprobs")
engine:close()

-- a context that is full
engine = model:engine { pages = 10, context = 40 }
for policy, finish in pairs { stop = "length", error = "error", shift = "length" } do
  r = engine:submit { ids = { 1, 2, 3, 4, 5, 6, 7, 8 }, max_tokens = 70, temperature = 0, context = policy, keep = 4,
    stop_ids = {} }
  engine:finish()
  check(r.finish == finish and #r.output == (policy == "shift" and 70 or 32), "context %s: %s after %d tokens", policy,
    r.finish, #r.output)
  check(policy ~= "error" or r.error.code == "context", "context error")
  check(r:speed():find "^prompt 8 tokens, %d", "context %s: %s", policy, r:speed())
  check(policy ~= "shift" or (r.shifted > 0 and r.tokens[4] == 4 and #r.tokens <= 40), "context shift")
end
check(engine:stats().used == 0, "pages are left")

-- a refusal says what to do; an on_token that raises ends its request alone
local function refused(opt, pattern)
  local ok, err = pcall(engine.submit, engine, opt)
  check(not ok and tostring(err):find(pattern), "expected %s, got %s", pattern, tostring(err))
end
refused({ ids = {} }, "the prompt is empty")
refused({ ids = { 400 } }, "ids%[1%] is 400; the model has tokens 0 to 319")
refused({ ids = ids, max_tokens = 4 }, "a prompt of 40 tokens leaves no room in a context of 40")
refused({ ids = { 1 }, max_token = 4 }, "there is no option max_token")
refused({ ids = { 1 }, context = "slide" }, "expected stop, error or shift")
refused({ prompt = "hello" }, "no tokenizer")
for name, value in pairs { stop = "x", stop_ids = "x", grammar = 'root ::= "a"', adapter = "x", on_token = "x",
    max_tokens = "x", ids = "x" } do
  local opt = { ids = { 1 } }
  opt[name] = value
  refused(opt, name .. ".* expected ")
end
refused({ ids = { 1 }, stop_ids = { 5 } }, "stop_ids has %[1%] = 5, expected a set of token ids")
refused({ ids = { 1 }, adapter = cases.adapter(cases.model("qwen3", { layers = 4 }), 1) },
  "the model has no layer model.layers.3.*: the adapter belongs to another model")
local foreign = cases.adapter(model, 1)
for _, lora in pairs(foreign.layers) do lora.a = q.keep(q.zeros { 4, 128 }) end
refused({ ids = { 1 }, adapter = foreign },
  "%[4, 128%], of the model %[%d+, %d+%]: the adapter belongs to another model")
r = engine:submit { ids = { 1, 2 }, max_tokens = 1, logprobs = 1e19, prompt_logprobs = math.huge, stop_ids = {} }
engine:finish()
check(#r.logprobs[1].top == 320 and #r.prompt_logprobs_list[2].top == 320, "as many alternatives as there are tokens")
r = engine:submit { ids = ids, max_tokens = 0, prompt_logprobs = 0 }  -- all of the context: nothing is to come
engine:finish()
check(r.finish == "length" and #r.prompt_logprobs_list == 40, "the logprobs of a prompt that fills the context")
engine:close()
engine = model:engine { pages = 10, context = 40, chunk = 7 }
local slow = engine:submit { ids = ids, max_tokens = 0, prompt_logprobs = 0 }
engine:finish()
for i = 2, 40 do check(slow.prompt_logprobs_list[i], "the logprob of token %d of a prompt in pieces", i) end
engine:close()
engine = model:engine { pages = 3 }
refused({ ids = ids, max_tokens = 20 }, "need 4 pages of 16 tokens, the cache has 3: lower max_tokens")
refused({ ids = ids, max_tokens = 1e300 }, "max_tokens = 1e%+300 need 16 pages")
local bad = engine:submit { ids = { 1, 2 }, max_tokens = 5, stop_ids = {},
  on_token = function() error { code = "mine", message = "no" } end }
local good = engine:submit { ids = { 1, 2 }, max_tokens = 5, stop_ids = {} }
engine:finish()
check(bad.finish == "error" and bad.error.code == "mine" and good.finish == "length" and #good.output == 5,
  "an error of one request")
local stopped = engine:submit { ids = { 1, 2 }, max_tokens = 50 - 10, stop_ids = {}, on_token = function(self)
  if #self.output == 3 then self.engine:cancel(self) end
end }
engine:finish()
check(stopped.finish == "cancelled" and #stopped.output == 3 and engine:stats().used == 0, "cancelled from inside")
for method, name in pairs { step = "step", finish = "step", close = "close" } do
  local inside = engine:submit { ids = { 1, 2 }, max_tokens = 5, stop_ids = {},
    on_token = function(self) self.engine[method](self.engine) end }
  engine:finish()
  check(inside.finish == "error" and inside.error.message:find("engine: " .. name .. " inside a step", 1, true),
    "%s inside: %s", method, inside.finish)
end
engine:close()
-- text: reasoning apart, by the ids of its marks; stop strings
model.tokenizer = {
  info = function() return {} end,
  id = function(_, name) return ({ ["<think>"] = 7, ["</think>"] = 9, ["<6>"] = 6, ["<|end|>"] = 300 })[name] end,
  is_special = function(_, id) return id == 300 end, bytes = function(_, id) return ("<%d>"):format(id) end,
  vocab_size = function() return 310 end,
}
engine = model:engine { pages = 3 }
local thinker = engine:submit { ids = { 1, 7 }, max_tokens = 5, stop_ids = {}, reasoning = true, stop = { "<6><8>" } }
for _, id in ipairs { 5, 6, 8, 9, 4, 6 } do check(not thinker:speak(id), "no stop yet") end
check(thinker.reasoning_text == "<5><6><8>" and thinker.text == "<4>", "reasoning %s, text %s", thinker.reasoning_text,
  thinker.text)
check(thinker:speak(8) and thinker.text == "<4>" and thinker.stop_string == "<6><8>", "stop string")
engine:close()
check(not thinker:speak(315) and thinker.text == "<4>",
  "a row of the model's that the tokenizer has no token for is no text")
local plain, text = model:generate { ids = { 1, 7 }, max_tokens = 4, temperature = 0, stop_ids = {} }, ""
for piece in plain do text = text .. piece end
check(select(2, text:gsub("<", "")) == 4, "four tokens of text: %s", text)

-- a stop string that is a special token stops at the token; one that is an ordinary token stops as text does
for special_text, special in pairs { ["<|end|>"] = true, ["<6>"] = false } do
  local request = model:engine({ pages = 3 }):submit { ids = { 1, 7 }, max_tokens = 4, stop = { special_text },
    stop_ids = { [5] = true } }
  check(request.stop_ids[5] and (request.stop_ids[300] == true) == special and not request.stop_ids[6],
    "stop string %s", special_text)
  request.engine:close()
end

for _, value in ipairs { -100, "abc" } do
  local ok, err = pcall(model.answer, model, { ids = { 1, 7 }, max_tokens = value })
  check(not ok and tostring(err):find "max_tokens is .* expected a whole number", "max_tokens %s: %s", tostring(value),
    tostring(err))
end

-- the memory of a call is free after an error, and once its engine is closed
local Engine = require("qeng.infer.engine").Engine
local step = Engine.step
local pieces = model:generate { ids = { 1, 7 }, max_tokens = 40, stop_ids = {} }
check(#pieces() > 0 and q.memory().kv.bytes > 0, "a piece of text")
function Engine.step() error { code = "broken", message = "no" } end
local ok, err = pcall(function() while pieces() do end end)
Engine.step = step
check(not ok and err.code == "broken" and pieces() == nil, "the engine's error: %s", tostring(err))
check(q.memory().kv.bytes == 0, "KV memory is left after an error: %d bytes", q.memory().kv.bytes)
local request
pieces, request = model:generate { ids = { 1, 7 }, max_tokens = 40, stop_ids = {} }
pieces()
request.engine:close()
check(q.memory().kv.bytes == 0 and pieces() == nil, "KV memory is left after a loop that was left: %d bytes",
  q.memory().kv.bytes)

check(not pcall(model.engine, model, { kv = "i32" }), "kv i32")
check(q.memory().kv.bytes == 0, "KV memory is left: %d bytes", q.memory().kv.bytes)
print "engine: passed"
