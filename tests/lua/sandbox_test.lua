-- Answers run in a sandbox: right and wrong ones, and programs that try to leave it or to stay in it.
local q = require "qeng"
local quality = require "qeng.infer.quality"

local function refused(code, pattern, limits)
  local done, text = q.host.sandbox(code, limits or { seconds = 60, memory = 64 * 2 ^ 20 })
  assert(not done and text:find(pattern), code .. ": " .. tostring(done) .. " " .. text)
end
local done, text = q.host.sandbox "local t = {} for i = 1, 3 do t[i] = i * i end return table.concat(t, ',')"
assert(done and text == "1,4,9", text)
assert(select(2, q.host.sandbox "return math.max(1, 2) == 2") == "true")
for _, name in ipairs { "io", "os", "ffi", "debug", "package", "require", "jit", "dofile", "loadfile", "print",
    "collectgarbage" } do
  assert(select(2, q.host.sandbox("return " .. name .. " == nil")) == "true", name)
end
refused("return string.dump(function() end)", "nil value")
refused("while true do end", "limit of instructions")
refused("local function f() return f() end f()", "limit of instructions")
refused("local s = 'x' while true do s = s .. s end", "memory")
refused("return ('x'):rep(1e9)", "memory")
refused("return (('a'):rep(40000)):find(('a-'):rep(40) .. 'b')", "time", { seconds = 1 })
refused("error 'oops'", "oops")
refused("return (", "unexpected")
refused("return load('\\27LJ')()", "")

assert(#quality.prompts == 40)
local function right(i, answer) return quality.check(quality.prompts[i], answer, { seconds = 3 }) end
assert(right(1, "```lua\nfunction add(a, b) return a + b end\n```\nThat adds."))
assert(right(1, "local function add(a, b) return a + b end") and not right(1, "function add(a, b) return a - b end") and
  not right(1, "I cannot."))
assert(right(21, '{"ok": true}') and right(21, '```json\n{ "ok" : true }\n```') and not right(21, '{"ok": 1}') and
  not right(21, "ok"))
assert(right(31, "42") and right(31, " `42`.\nas 17 + 25 = 42") and not right(31, "41"))
local low, high = quality.wilson(8, 10)
assert(math.abs(low - 0.4902) < 1e-4 and math.abs(high - 0.9433) < 1e-4)  -- Wilson 1927
local a, b = {}, {}
for i = 1, 40 do a[i], b[i] = 0.5, i % 4 == 0 and 1 or 0.5 end
local mean, from, to = quality.bootstrap(a, b)
assert(math.abs(mean - 0.125) < 1e-12 and from > 0.03 and from < 0.1 and to > 0.15 and to < 0.25)
assert(select(2, quality.bootstrap(a, a)) == 0)
