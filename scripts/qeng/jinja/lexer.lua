-- A template as tokens {kind, value, line}. kind "data" is text. "output" and "block" begin a tag and "end" ends one.
-- In between are "name", "value" (a literal) and "op". trim_blocks and lstrip_blocks are on, as chat templates expect.

local limits = require "qeng.jinja.limits"
local numbers = require "qeng.jinja.numbers"
local strings = require "qeng.jinja.strings"

local lexer = {}

local fail = limits.fail
local closing = { ["("] = ")", ["["] = "]", ["{"] = "}" }
local long_operators = { ["=="] = 1, ["!="] = 1, ["<="] = 1, [">="] = 1, ["//"] = 1, ["**"] = 1 }

-- ---------------------------------------------------------------- literals

local escapes = {
  n = "\n", t = "\t", r = "\r", a = "\a", b = "\b", f = "\f", v = "\v",
  ["\\"] = "\\", ["'"] = "'", ['"'] = '"', ["\n"] = "",
}

-- A code point in UTF-8.
local function utf8_of(code)
  if code > 0x10ffff or (code >= 0xd800 and code < 0xe000) then fail("\\U%08x is no character", code) end
  if code < 0x80 then return string.char(code) end
  local tail, most = "", 0x40  -- what the first byte may hold, beside its mark
  repeat
    tail = string.char(0x80 + code % 0x40) .. tail
    code, most = math.floor(code / 0x40), most / 2
  until code < most
  return string.char(0x100 - 2 * most + code) .. tail
end

-- What the escape after a backslash at `at` stands for, and its last byte.
local function escaped(source, at)
  local hex = source:match("^x(%x%x)", at) or source:match("^u(%x%x%x%x)", at)
    or source:match("^U(%x%x%x%x%x%x%x%x)", at)
  if hex then return utf8_of(tonumber(hex, 16)), at + #hex end
  local octal = source:match("^[0-7][0-7]?[0-7]?", at)
  if octal then return utf8_of(tonumber(octal, 8)), at + #octal - 1 end
  local c = source:sub(at, at)
  if c == "x" or c == "u" or c == "U" then fail("an escape is cut off: %s", source:sub(at - 1, at + 10)) end
  return escapes[c] or "\\" .. c, at
end

-- The string literal at `at`, and where it ends.
local function string_at(source, at)
  local mark, parts, from = source:sub(at, at), {}, at + 1
  while true do
    local stop = source:find("[\\" .. mark .. "]", from)
    if not stop then fail("a string is not closed: %s", source:sub(at, at + 40)) end
    parts[#parts + 1] = source:sub(from, stop - 1)
    if source:sub(stop, stop) == mark then return table.concat(parts), stop + 1 end
    parts[#parts + 1], from = escaped(source, stop + 1)
    from = from + 1
  end
end

-- The number literal at `at`, and where it ends.
local function number_at(source, at)
  local base, digits = source:match("^0([xXbBoO])_?([%x_]+)", at)
  if base then
    local radix = ({ x = 16, b = 2, o = 8 })[base:lower()]
    return numbers.int(tonumber((digits:gsub("_", "")), radix) or fail "a number cannot be read"), at + 2 + #digits
  end
  local whole = source:match("^%d[%d_]*", at)
  local stop = at + #whole
  local fraction = source:sub(at - 1, at - 1) ~= "." and source:match("^%.%d[%d_]*", stop) or ""
  local exponent = source:match("^[eE][-+]?%d[%d_]*", stop + #fraction) or ""
  local digits_only = (whole .. fraction .. exponent):gsub("_", "")
  if fraction == "" and exponent == "" then return numbers.digits(digits_only), stop end
  return numbers.float(tonumber(digits_only)), stop + #fraction + #exponent
end

-- ---------------------------------------------------------------- text between tags

-- Where text goes on after a tag that ended with sign. "-" takes the white space after it. Without a sign, a block or
-- comment takes one line end.
local function after_tag(source, at, sign, trims)
  if sign == "-" then return source:find("[^%s]", at) or #source + 1 end
  return sign == "" and trims and source:sub(at, at) == "\n" and at + 1 or at
end

-- Text before a tag that began with sign. fresh: the text begins a line.
local function before_tag(text, sign, block, fresh)
  if sign == "-" then return strings.strip(text, nil, false, true) end
  if sign == "+" or not block then return text end
  local last = text:reverse():find("\n", 1, true)  -- "[^\n]*$" would try every place of a long line
  local begin = last and #text - last + 2 or 1
  return (last or fresh) and not text:find("%S", begin) and text:sub(1, begin - 1) or text
end

-- ---------------------------------------------------------------- all of it

function lexer.tokens(source)
  source = source:gsub("\r\n?", "\n")
  if source:sub(-1) == "\n" then source = source:sub(1, -2) end  -- Jinja drops one trailing newline
  local list, at, line, counted = {}, 1, 1, 1
  local function line_at(place)
    while true do
      local found = source:find("\n", counted, true)
      if not found or found >= place then return line end
      line, counted = line + 1, found + 1
    end
  end
  local function add(kind, value, place) list[#list + 1] = { kind, value, line_at(place) } end
  local function fresh() return at == 1 or source:sub(at - 1, at - 1) == "\n" end

  -- Adds the tokens of a tag from `from` to its end. Returns where text goes on.
  local function tag(from, close, trims)
    local open = {}
    while true do
      from = source:find("%S", from) or fail("line %d: a tag is not closed", line_at(at))
      local c = source:sub(from, from)
      if #open == 0 then
        local sign = source:match("^[-+]?", from)
        if source:sub(from + #sign, from + #sign + 1) == close and (sign ~= "+" or trims) then
          add("end", close, from)
          return after_tag(source, from + #sign + 2, sign, trims)
        end
      end
      local word = source:match("^[%a_\128-\255][%w_\128-\255]*", from)
      if word then add("name", word, from); from = from + #word
      elseif c:find "%d" then
        local value, stop = number_at(source, from)
        add("value", value, from)
        from = stop
      elseif c == '"' or c == "'" then
        local value, stop = string_at(source, from)
        add("value", value, from)
        from = stop
      else
        local op = source:sub(from, from + 1)
        if not long_operators[op] then op = c end
        if not ("+-*/%~.,:;()[]{}|=<>!"):find(c, 1, true) or op == "!" then
          fail("line %d: unexpected '%s'", line_at(from), c)
        end
        if closing[op] then open[#open + 1] = closing[op]
        elseif (op == ")" or op == "]" or op == "}") and table.remove(open) ~= op then
          fail("line %d: unexpected '%s'", line_at(from), op)
        end
        add("op", op, from)
        from = from + #op
      end
    end
  end

  while true do
    local open = source:find("{[{%%#]", at)
    local kind, sign = nil, ""
    if open then kind, sign = source:match("^{([{%%#])([-+]?)", open) end
    local text = source:sub(at, (open or 0) - 1)
    if open then text = before_tag(text, sign, kind ~= "{", fresh()) end
    if text ~= "" then add("data", text, at) end
    if not open then return list end
    local from = open + 2 + #sign
    if kind == "#" then
      local stop = source:find("#}", from, true) or fail("line %d: a comment is not closed", line_at(open))
      local last = stop > from and source:match("^[-+]", stop - 1) or ""
      at = after_tag(source, stop + 2, last, true)
    elseif kind == "{" then
      add("output", nil, open)
      at = tag(from, "}}", false)
    else
      local raw_sign, raw = source:match("^%s*raw%s*(%-?)%%}()", from)
      if raw then
        raw = after_tag(source, raw, raw_sign, false)
        local finish, begin_sign, end_sign, after = source:match("(){%%([-+]?)%s*endraw%s*([-+]?)%%}()", raw)
        if not finish then fail("line %d: raw without endraw", line_at(open)) end
        at = raw
        local inside = before_tag(source:sub(raw, finish - 1), begin_sign, true, fresh())
        if inside ~= "" then add("data", inside, raw) end
        at = after_tag(source, after, end_sign, true)
      else
        add("block", nil, open)
        at = tag(from, "%}", true)
      end
    end
  end
end

return lexer
