-- q.unicode says what Python's str says of every code point that Unicode 14 assigns.
local q = require "qeng"

local golden = q.json.decode(q.fs.read((arg[0]:match("^(.*)/tests/") or ".") .. "/tests/golden/python_text.json"))
local characters = {}
for _, range in ipairs(golden.ranges) do
  for code = range[1], range[2] do
    local high = code >= 0x10000 and ("\\u%04x\\u%04x"):format(0xd800 + math.floor((code - 0x10000) / 0x400),
      0xdc00 + code % 0x400)
    characters[#characters + 1] = high or ("\\u%04x"):format(code)
  end
end
characters = q.json.decode('["' .. table.concat(characters, '","') .. '"]')
assert(#characters > 144000)

local function hashed(of)
  local out = {}
  for i, c in ipairs(characters) do out[i] = of(c) end
  return q.host.hash(table.concat(out, "\n"))
end
local function word(value) return value and "True" or "False" end
for _, name in ipairs { "lower", "upper", "quoted" } do assert(hashed(q.unicode[name]) == golden[name], name) end
for _, class in ipairs { "alpha", "alnum", "space" } do
  assert(hashed(function(c) return word(q.unicode.is(c, class)) end) == golden[class], class)
end
for text, expected in pairs { ["straße"] = "Straße", ["it's ǆ"] = "It'S ǅ", ["ßa ﬁ"] = "Ssa Fi", [""] = "" } do
  assert(q.unicode.title(text) == expected, q.unicode.title(text))
end
assert(q.unicode.capitalize "éCOLE" == "École" and q.unicode.quoted "it's\n" == [["it's\n"]])
assert(q.unicode.upper "a\255\254b" == "A\255\254B", "bytes of no UTF-8 stay")
