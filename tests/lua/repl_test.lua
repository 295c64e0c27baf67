-- What the prompt completes, and that code of the prompt can be paused and resumed.
local q = require "qeng"
local prompt = require "qeng.console.prompt"
local repl = require "qeng.console.repl"

-- The words for the line's end, which is what the editor breaks off as the last word (bindings/repl.cpp).
local function completed(line)
  local before, word = line:match "^(.-)([^ \t\n\"'`@$><=;|&{(+%-*/%%^#,%[%]~]*)$"
  return table.concat(repl.complete(word, before), " ")
end
local function check(line, expected)
  local got = completed(line)
  assert(got == expected, ("%s: expected '%s', got '%s'"):format(line, expected, got))
end

_G.q = q
t = q.zeros { 2 }                                                 -- luacheck: ignore
model = q.load "recipes/tiny"                                      -- luacheck: ignore
list = { { tensor = t, turned = 1 }, named = { ["a b"] = t } }     -- luacheck: ignore
check("q.jso", "q.json q.json_schema")
check("print(q.json.enc", "q.json.encode")
check("t:desc", "t:describe")
check("x + t:resh", "t:reshape")
check("model:save_ad", "model:save_adapter model:save_adapter_gguf")
check("model.tok", "model.tokenizer")
check("model.tokenizer:enc", "model.tokenizer:encode model.tokenizer:encode_batch")
check("model.config.hid", "model.config.hidden")
check("list[1].t", ".tensor .turned")
check("list[1].tensor:ite", ".tensor:item")
check("list.named['a b']:ite", ":item")
check("model.parameters[1].tensor:lab", ".tensor:label")
check("(t * 2):desc", "2):describe")
check("q.zeros { 2 }:desc", "}:describe")
check("mod", "model module")
check("nothing.at.all", "")
check("list[7].x", "")
check("(1).x", "")
assert(completed "t:":find "t:describe" and not completed("t:"):find "t:_", "names of the library's own are told")
assert(not completed("model:"):find "model:config", "a field after a colon")
check('q.load "recipes/ti', "tiny/")
check("q.fs.read('recipes/own_lo", "own_loop.lua")
check("q.fs.read('recipes/nothing", "")

-- Pausing: in the middle of a loop, of a protected call; not out of a function that the engine called.
local held, log
local function pause()
  local can = prompt.can_pause()
  if can then prompt.pause(function(thread) held = thread end) end
  log[#log + 1] = can
end
local function loop(n)
  for _ = 1, n do pause() end
  return "done", n
end
log = {}
assert(select("#", prompt.run(false, loop, 2)) == 1 and #log == 0)
assert(select("#", prompt.resume(held)) == 1 and #log == 1)
local ok, text, n = prompt.resume(held)
assert(ok and text == "done" and n == 2 and log[2] == true)
assert(prompt.run(false, pcall, loop, 1) and coroutine.status(held) == "suspended")
assert(select(3, prompt.resume(held)) == "done")
log = {}
assert(select(2, prompt.run(false, q.scope, loop, 3)) == "done" and log[3] == false)
pause()
assert(log[4] == false, "outside of the prompt")
local yielded, why = prompt.run(false, coroutine.yield)
assert(not yielded and why == "attempt to yield from outside a coroutine")
local failed, err = prompt.run(false, function() q.error("value", "no good") end)
assert(not failed and err.code == "value")
print "repl: ok"
