-- Reasoning: what stands between <think> and </think> comes apart and is counted, a budget closes it, and a grammar
-- binds only what comes after it.
local q = require "qeng"

q.device { device = "cpu", threads = 1 }
local model = q.load("recipes/tiny", { dtype = "f32" })
local real = model.tokenizer
local open, close = real:encode("a")[1], real:encode("b")[1]
-- The model's tokenizer, with two of its letters for <think> and </think>.
model.tokenizer = setmetatable({
  id = function(_, name) return name == "<think>" and open or name == "</think>" and close or real:id(name) end,
}, { __index = function(_, name) return function(_, ...) return real[name](real, ...) end end })

local function run(opt)
  local engine = model:engine { max_batch = 2 }
  opt.prompt, opt.temperature, opt.stop_ids, opt.reasoning = "x", 0, {}, true
  local r = engine:submit(opt)
  engine:finish()
  return r
end

local biased = run { logit_bias = { [open] = 100 }, max_tokens = 8, reasoning_budget = 3 }
local ids = {}
for i, id in ipairs(biased.output) do ids[i] = id == open and "(" or id == close and ")" or "?" end
assert(table.concat(ids) == "((()()()", table.concat(ids))
assert(biased.reasoning_tokens == 8 and biased.text == "" and biased.reasoning_text == "aa")

local free = run { logit_bias = { [open] = 100 }, max_tokens = 8 }
assert(free.reasoning_tokens == 8 and free.reasoning_text == "aaaaaaa")

-- A grammar of one letter: bound from the start where nothing is thought, else after the end of it.
local letter = q.grammar 'root ::= "c"'
local function matcher() return letter:matcher(real) end
local bound = run { grammar = matcher(), max_tokens = 4 }
assert(bound.text == "c" and bound.finish == "stop")
local x, line = real:encode("x")[1], real:encode("\n")[1]
local function after(prompt)
  local engine = model:engine { max_batch = 1 }
  local r = engine:submit { ids = prompt, temperature = 0, stop_ids = {}, reasoning = true, reasoning_budget = 5,
    logit_bias = { [close] = -100 }, max_tokens = 20, grammar = matcher() }
  engine:finish()
  return r
end
for _, prompt in ipairs { { x, open }, { x, open, line, line } } do
  local thought = after(prompt)
  assert(thought.reasoning_tokens == 6 and thought.text == "c" and #thought.output == 7, thought.text)
end
-- A <think> that a message says opens nothing.
for _, prompt in ipairs { { x, open, x }, { open, line, x, line }, { open, close }, { line } } do
  local plain = after(prompt)
  assert(plain.reasoning_tokens == 0 and plain.text == "c", plain.reasoning_text)
end
print "ok"
