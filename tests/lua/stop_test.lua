-- Stop strings: however the bytes are cut, the text is that of the byte-by-byte definition. Nothing is shown too early.
local q = require "qeng"
local stop = require "qeng.infer.stop"

-- The definition: the shortest beginning of `bytes` that ends with a stop string, less the longest such string.
local function expected(bytes, strings)
  for to = 1, #bytes do
    local longest
    for _, s in ipairs(strings) do
      if to >= #s and bytes:sub(to - #s + 1, to) == s and (not longest or #s > #longest) then longest = s end
    end
    if longest then return bytes:sub(1, to - #longest), longest end
  end
  return bytes, nil
end

local state = 1
local function random(n) state = (state * 1103515245 + 12345) % 2147483648; return math.floor(state / 65536) % n end
local pieces = { "a", "b", "ab", "c", "\195\169", "\226\130\172", "\240\159\152\128", "\n", "abc" }
local function text(n)
  local parts = {}
  for i = 1, n do parts[i] = pieces[random(#pieces) + 1] end
  return table.concat(parts)
end
for _ = 1, 3000 do
  local strings = {}
  for i = 1, random(4) do strings[i] = text(1 + random(3)) end
  local bytes = text(random(25))
  local filter, shown, found = stop.new(strings), "", nil
  local at = 1
  while at <= #bytes and not found do
    local count = 1 + random(4)
    local piece
    piece, found = filter:push(bytes:sub(at, at + count - 1))
    assert(found or stop.unfinished(piece) == 0, "a character is cut")
    shown, at = shown .. piece, at + count
    assert(expected(bytes, strings):sub(1, #shown) == shown, "shown too early")
  end
  shown = shown .. filter:flush()
  local want, which = expected(bytes, strings)
  assert(shown == want and found == which, ("%q: %q, expected %q"):format(bytes, shown, want))
end

local filter = stop.new { "</s>", "\n\n" }
assert(filter:push "one<" == "one" and filter:push "/" == "" and filter:push "b\n" == "</b" and
  filter:push "\226\130" == "\n")
assert(filter:push "\172 " == "\226\130\172 ")
local last, found = filter:push "two\n\nthree"
assert(last == "two" and found == "\n\n" and filter:push "x" == "" and filter:flush() == "")
assert(stop.new():push "\255\254x" == "\255\254x")
local _, err = q.try(stop.new, { "a", "" })
assert(err.message:find "string 2 is empty", err.message)
