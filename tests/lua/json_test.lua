-- q.json writes again what it read, and refuses what is not JSON by its place.
local q = require "qeng"
local json = q.json

local function same(text, expected) -- decode then encode
  local out = json.encode(json.decode(text))
  assert(out == (expected or text), out .. " from " .. text)
end
local function refused(fn, code, pattern, ...)
  local _, err = q.try(fn, ...)
  assert(err and err.code == code, tostring(err))
  assert(err.message:match(pattern), err.message)
end

-- values, nesting, empty arrays and objects, sorted keys
same "null"
same "true"
same '"x"'
same "[]"
same "{}"
same "[[],{},[[]]]"
same('{"b":1,"a":[1,2,{"c":null}]}', '{"a":[1,2,{"c":null}],"b":1}')
same(' [ 1 , 2 ] ', "[1,2]")
assert(json.decode "null" == json.null and tostring(json.null) == "null")
assert(json.encode(json.array {}) == "[]" and json.encode {} == "{}")
assert(json.encode({ a = { 1, {} } }, { pretty = true }) == '{\n  "a": [\n    1,\n    {}\n  ]\n}')

-- numbers: integers exact to 2^53, others shortest that read back the same
same "9007199254740992"
same "-9007199254740991"
assert(json.decode "9007199254740991" == 2 ^ 53 - 1)
same "0.1"
same "1e-07"
assert(json.decode(json.encode(1 / 3)) == 1 / 3)
assert(json.decode "1000000000000000019884624838656" == 1000000000000000019884624838656)
refused(json.encode, "value", "no inf.*at %.a%[2%]", { a = { 1, math.huge } })
refused(json.encode, "value", "no %-?nan", 0 / 0)

-- strings: escapes, UTF-8
same '"\\"\\\\\\n\\u0001"'
assert(json.decode '"\\u00e9\\ud83d\\ude00"' == "\195\169\240\159\152\128")
refused(json.encode, "value", "UTF%-8", "\255")
refused(json.decode, "format", "line 1", '"\255"')

-- shapes of Lua tables that are not JSON
refused(json.encode, "value", "at %.x", { x = { 1, k = 2 } })
refused(json.encode, "value", "function", { f = print })
local cycle = {}
cycle.me = cycle
refused(json.encode, "value", "levels deep", cycle)

-- text that is not JSON
refused(json.decode, "format", "line 2, column", "[1,\n2")
for _, text in ipairs { "", "{", "[1,]", "{'a':1}", "01", "[1] 2", "nul", '{"a":1,}', "\0" } do
  refused(json.decode, "format", "json: ", text)
end
refused(json.decode, "format", "levels deep", ("["):rep(100000))
assert(#json.decode("[{},[]]", { most = 3 }) == 2)
refused(json.decode, "format", "json: more than 2 arrays and objects", "[{},[]]", { most = 2 })
refused(json.decode, "value", "bad argument #1 to 'json.decode': string expected, got number", 1)
refused(json.encode, "value", "did you mean 'pretty'", {}, { prety = true })
print "json: ok"
