-- What stands in a line of YAML: plain text, quoted text, and lists and maps in brackets, which may go on in the lines after it.
-- A reader r is {lines =, at = the next line to read, name = of the text}. Every step takes time in proportion to what it reads.

local q = require "qeng.core"

local flow = {}

local max_depth = 32  -- of lists and maps in each other: a README has some six

function flow.fail(r, what, line) q.error("format", ("%s, line %d: %s"):format(r.name, line or math.min(r.at, #r.lines), what)) end

-- The beginning of a text, for errors; no character of UTF-8 is cut.
function flow.shown(text) return #text <= 80 and text or text:sub(1, 80):gsub("[\192-\255][\128-\191]*$", "") .. "..." end

function flow.trim(text) return text:find "^%s*$" and "" or text:match "^%s*(.*%S)" end

-- As far as a comment.
function flow.bare(text)
  local comment = text:find "^#" or text:find "%s#"
  return comment and flow.trim(text:sub(1, comment - 1)) or text
end

function flow.deeper(r, depth)
  if depth >= max_depth then flow.fail(r, ("lists and maps more than %d deep"):format(max_depth)) end
  return depth + 1
end

-- Where the colon behind a key stands.
function flow.colon(text) return text:find ":%s" or text:find(":", #text, true) end

local null = { [""] = true, ["~"] = true, null = true, Null = true, NULL = true }

-- Plain text, or nil where it stands for null.
function flow.plain(r, text, line)
  local shown = flow.shown(text)
  if text:find "^%*" then flow.fail(r, ("%s is to stand in quotes: without them, * is a reference"):format(shown), line) end
  if text:find "^[&!|>%%@`%[%]{},'\"]" or text:find "^[?:%-]%s" or text == "-" or text == "?" then
    flow.fail(r, ("%s is not in the part of YAML that is read here; text that begins so is to stand in quotes"):format(shown), line)
  end
  if flow.colon(text) then flow.fail(r, ("%s has a colon in it: it is to stand in quotes"):format(shown), line) end
  if not null[text] then return text end
end

-- A cursor stands in the line before r.at; `what` began in line `began`.
local Cursor = {}
Cursor.__index = Cursor

function flow.cursor(r, text) return setmetatable({ r = r, text = text, pos = 1, began = r.at - 1 }, Cursor) end

function Cursor:fail(what) flow.fail(self.r, what, self.r.at - 1) end
function Cursor:char() return self.text:sub(self.pos, self.pos) end
function Cursor:rest() return flow.shown(self.text:sub(self.pos)) end

function Cursor:next_line(what)
  local line = self.r.lines[self.r.at]
  if not line then flow.fail(self.r, what .. " is not closed", self.began) end
  self.text, self.pos, self.r.at = flow.trim(line), 1, self.r.at + 1
end

function Cursor:skip()
  while true do
    self.pos = select(2, self.text:find("^%s*", self.pos)) + 1
    if self.pos <= #self.text and self:char() ~= "#" then return end
    self:next_line "a bracket"
  end
end

local function single_quoted(c)
  local parts = {}
  c.pos = c.pos + 1
  while true do
    local quote = c.text:find("'", c.pos, true)
    parts[#parts + 1] = c.text:sub(c.pos, (quote or 0) - 1)
    if not quote then
      parts[#parts + 1] = " "
      c:next_line "a quote"
    else
      c.pos = quote + 1
      if c:char() ~= "'" then return table.concat(parts) end
      parts[#parts + 1], c.pos = "'", c.pos + 1
    end
  end
end

local escapes = {
  ["0"] = "\0", a = "\a", b = "\b", t = "\t", n = "\n", v = "\v", f = "\f", r = "\r", e = "\27", [" "] = " ", ['"'] = '"', ["/"] = "/", ["\\"] = "\\",
  N = "\194\133", _ = "\194\160", L = "\226\128\168", P = "\226\128\169", ["\t"] = "\t",
}
local hex_digits = { x = 2, u = 4, U = 8 }

local function utf8(code)
  if code < 0x80 then return string.char(code) end
  local tail = string.char(0x80 + code % 64)
  if code < 0x800 then return string.char(0xC0 + math.floor(code / 64)) .. tail end
  tail = string.char(0x80 + math.floor(code / 64) % 64) .. tail
  if code < 0x10000 then return string.char(0xE0 + math.floor(code / 4096)) .. tail end
  return string.char(0xF0 + math.floor(code / 262144), 0x80 + math.floor(code / 4096) % 64) .. tail
end

-- The character of the escape after c.pos, a backslash.
local function escaped(c)
  local letter = c.text:sub(c.pos + 1, c.pos + 1)
  local digits = hex_digits[letter] or 0
  local hex = c.text:sub(c.pos + 2, c.pos + 1 + digits)
  local code = digits > 0 and #hex == digits and hex:find "^%x+$" and tonumber(hex, 16)
  local text = code and code <= 0x10FFFF and utf8(code) or escapes[letter]
  if not text then c:fail(("\\%s is no escape of YAML"):format(letter .. hex)) end
  c.pos = c.pos + 2 + digits
  return text
end

local function double_quoted(c)
  local parts = {}
  c.pos = c.pos + 1
  while true do
    local mark = c.text:find('["\\]', c.pos)
    parts[#parts + 1] = c.text:sub(c.pos, (mark or 0) - 1)
    if not mark or mark == #c.text and c.text:sub(mark) == "\\" then
      if not mark then parts[#parts + 1] = " " end  -- a backslash joins its line to the next without a space
      c:next_line "a quote"
    else
      c.pos = mark
      if c:char() == '"' then
        c.pos = mark + 1
        return table.concat(parts)
      end
      parts[#parts + 1] = escaped(c)
    end
  end
end

local collection

-- A value: in brackets, in quotes, or plain between brackets.
function flow.value(c, depth)
  c:skip()
  local first = c:char()
  if first == "'" then return single_quoted(c) end
  if first == '"' then return double_quoted(c) end
  if first == "[" or first == "{" then return collection(c, flow.deeper(c.r, depth)) end
  local parts = {}
  repeat  -- a line, and those after it that go on with plain text
    local text = c.text:match("^[^,%[%]{}]*", c.pos)
    local comment = text:find "%s#"
    local colon = flow.colon(comment and text:sub(1, comment - 1) or text)
    text = text:sub(1, math.min(comment or #text + 1, colon or #text + 1) - 1)
    c.pos = c.pos + #text
    parts[#parts + 1] = flow.trim(text)
    local more = c.pos > #c.text and flow.trim(c.r.lines[c.r.at] or "") or ""
    if not more:find "^[^,%[%]{}#:]" then break end
    c:next_line "a bracket"
  until false
  if parts[1]:find "^?" then c:fail(("%s: a ? before a key is not read here"):format(flow.shown(parts[1]))) end
  return flow.plain(c.r, table.concat(parts, " "), c.r.at - 1)
end

function collection(c, depth)
  local result, seen, list = {}, {}, c:char() == "["
  local close = list and "]" or "}"
  repeat
    c.pos = c.pos + 1
    c:skip()
    if c:char() == close then break end
    local value = flow.value(c, depth)
    c:skip()
    if list then
      if value == nil then c:fail "an empty entry in brackets" end
      result[#result + 1] = value
    else
      if type(value) ~= "string" or seen[value] then c:fail "a key in brackets is there twice, or is no text" end
      seen[value] = true
      if c:char() == ":" then
        c.pos = c.pos + 1
        c:skip()
        if not c:char():find "[,}]" then result[value] = flow.value(c, depth) end
        c:skip()
      end
    end
  until c:char() ~= ","
  if c:char() ~= close then c:fail(("expected , or %s, found %s"):format(close, c:rest())) end
  c.pos = c.pos + 1
  return result
end

return flow
