-- Runtimes: two models on two of them generate side by side as each does alone; operations go where their tensors are;
-- accounts, budgets and ends are each one's own.
local q = require "qeng"

local function fails(code, pattern, fn, ...)
  local ok, why = pcall(fn, ...)
  assert(not ok and why.code == code and why.message:find(pattern),
    ("expected %s: %s, got %s"):format(code, pattern, tostring(ok or why)))
end

q.device { device = "cpu", threads = 2 }
local one, two = q.runtime { device = "cpu", threads = 1 }, q.runtime { device = "cpu", threads = 2, budget = 300e6 }
local default = q.runtime()
assert(one ~= two and default ~= one and default == q.runtime())

-- ---- one limit of a device is measured without the others
local rate = q.limits { only = "flops_f32" }
assert(rate.flops_f32 > 1e8 and not rate.bandwidth and rate.flops_f32 == q.limits().flops_f32)
fails("value", "expected bandwidth, flops_f32 or flops_bf16", q.limits, { only = "flops" })
local small = q.runtime { device = "cpu", threads = 1, budget = 1e6 }
assert(small:use(q.limits, { if_room = true, only = "flops_f32" }) == nil)
fails("memory", "limits %(to measure the device%)", small.use, small, q.limits)
one:use(function()
  local limit = two:use(q.limits, { only = "flops_bf16" })
  assert(limit.flops_bf16 > 1e7)
end)

-- ---- where tensors are made, and where operations run
local x = one:use(q.tensor, { { 1, 2 }, { 3, 4 } })
assert(x:runtime() == one and (x + x):runtime() == one)
assert(x:rows(0, 1):runtime() == one and x:to("bf16"):runtime() == one)
one:use(function()
  two:use(function() assert(q.runtime() == two) end)
  assert(q.runtime() == one)
  fails("value", "stop", two.use, two, q.error, "value", "stop")
  assert(q.runtime() == one)
end)
assert(q.runtime() == default)

local y = two:use(q.tensor, { { 1, 1 }, { 1, 1 } })
fails("value", "two runtimes, cpu %(.*1 thread.*%) and cpu %(.*2 threads", function() return x + y end)
fails("value", "linear: its tensors are on two runtimes", q.linear, x, y)
fails("value", "row_linear: its tensors are on two runtimes", q.row_linear, x, { y })
fails("value", "two runtimes", q.row_linear, x, { x }, { bias = { y } })
assert(y:copy(x):table()[2][1] == 3 and y:runtime() == two)
assert(two:use(q.zeros, { 2, 2 }, "bf16"):copy(x):table()[1][2] == 2)

-- A gradient is recorded and played where its tensors are, whatever is in use.
local w = one:use(q.randn, { 3, 2 }, { seed = 4 })
w:requires_grad(true)
local product = q.linear(q.linear(x:rows(0, 1), w), one:use(q.tensor, { { 1, 2, 3 } })):reshape { 1 }
q.no_grad(function() assert(not pcall(q.linear(x, w).backward, q.linear(x, w))) end)
two:use(product.backward, product)
assert(w:grad():runtime() == one and w:grad():table()[3][2] == 6)

-- ---- two models generate at once
local values = q.json.decode(q.fs.read "recipes/tiny/config.json")
local function random(runtime) return q.random_model(values, { runtime = runtime, seed = 5, std = 0.1 }) end
local prompts = { "Once upon a time", "The cat", "Nine red pens" }

local function requests(model, tokenizer)
  model.tokenizer = model.tokenizer or tokenizer
  local engine, list = model:engine { chunk = 8, max_batch = 2 }, {}
  for i, prompt in ipairs(prompts) do
    list[i] = engine:submit { prompt = prompt, max_tokens = 12 + 5 * i, temperature = i == 2 and 0.8 or 0, seed = i }
  end
  return engine, list
end
local function texts(list)
  local all = {}
  for i, r in ipairs(list) do all[i] = r.text end
  return table.concat(all, "|")
end
local tiny = q.load "recipes/tiny"
local function alone(model)
  local engine, list = requests(model, tiny.tokenizer)
  engine:finish()
  engine:close()
  return texts(list)
end
local tiny_alone, random_alone = alone(tiny), alone(random())
assert(tiny_alone ~= random_alone and #tiny_alone > 60)

local first, second = q.load("recipes/tiny", { runtime = one }), random(two)
assert(first.runtime == one and second.runtime == two and tiny.runtime == default)
assert(second:logits({ 1, 2 }):runtime() == two)
local engines, lists = {}, {}
engines[1], lists[1] = requests(first)
engines[2], lists[2] = requests(second, tiny.tokenizer)
local going = true
while going do
  local a, b = engines[1]:step(), engines[2]:step()
  going = a or b
end
assert(texts(lists[1]) == tiny_alone and texts(lists[2]) == random_alone)
print "two models on two runtimes generate step by step what each generates alone"

-- ---- a draft model on another runtime
local how = { prompt = prompts[1], max_tokens = 30, temperature = 0 }
local plain = first:answer(how)
how.draft = q.load("recipes/tiny", { runtime = two })
assert(first:answer(how) == plain)
how.draft = random(two)
how.draft.tokenizer = tiny.tokenizer
assert(first:answer(how) == plain)
print "a draft model on another runtime changes no text"

-- ---- accounts and budgets
local function kv(runtime) return runtime:use(q.memory).kv.bytes end
for i, runtime in ipairs { one, two } do
  local beside = kv(runtime) - engines[i]:stats().kv_capacity  -- the step's numbers
  assert(beside > 0 and beside < 4096)
end
fails("memory", "exceed the 300000000 that the device's budget leaves", two.use, two, q.zeros, { 100e6 })
assert(#one:use(q.zeros, { 100e6 }):shape() == 1)

-- ---- the same step of training, and a program, on each
local function trained(runtime)
  return runtime:use(function()
    q.seed(3)
    local model = q.random_model(values, { seed = 6, std = 0.1 }):full()
    local micro_batch = q.micro_batch(32, 2)
    micro_batch.tokens:set { 5, 6, 7, 8, 9 }
    micro_batch.targets:set { 6, 7, 8, 9, 10 }
    micro_batch.positions:set { 0, 1, 2, 3, 4 }
    micro_batch.cu_q:set { 0, 5, 32 }
    micro_batch.scale:fill(0.2)
    local tensors = {}
    for i, parameter in ipairs(model:trainable()) do tensors[i] = parameter.tensor end
    local adam = q.adamw_state(tensors)
    local program = q.capture(function() model:loss(micro_batch):backward() end)
    for _ = 1, 2 do
      program:run()
      adam:step { lr = 1e-3 }
    end
    return model.head:hash()
  end)
end
local bits = trained(default)
assert(trained(one) == bits and trained(two) == bits)

-- ---- one ends, the other goes on
for i = 1, 2 do engines[i]:close() end
how.draft = nil
collectgarbage()
collectgarbage()
local held, kept = two:use(q.memory), second:logits { 1, 2, 3 }
-- luacheck: ignore 311
first, engines, lists, w, product, x = nil, nil, nil, nil, nil, nil
one:free()
one = nil
collectgarbage()
collectgarbage()
fails("closed", "was freed", function()
  local gone = q.runtime { device = "cpu", threads = 1 }
  gone:free()
  gone:use(function() end)
end)
assert(two:use(q.memory).weights.bytes == held.weights.bytes and second:logits({ 1, 2, 3 }):hash() == kept:hash())
local orphan = q.runtime({ device = "cpu", threads = 1 }):use(q.tensor, { 1, 2 })  -- it keeps its runtime
collectgarbage()
collectgarbage()
assert((orphan + orphan):table()[2] == 4)
print "accounts, budgets and ends are each runtime's own"

-- ---- one that is collected while q.no_grad runs (what was freed is written to only where a sanitizer sees it)
q.rehearsal.run(function() return q.runtime() and nil end)
q.no_grad(function()
  collectgarbage()
  collectgarbage()
end)

-- ---- a rehearsal of the runtime in use
assert(two:use(q.rehearsal.run, function() return q.rehearsal.cost().device end) == "cpu" and q.runtime() == default)
