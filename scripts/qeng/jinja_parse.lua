-- Parses a Jinja template to a closure (scope, run). Blocks: if, for (with else, loop, unpacking, condition), set (value and
-- block, namespace attributes), break, continue, macro, generation (transparent), comments, raw, whitespace control. trim_blocks and
-- lstrip_blocks are on, as chat templates expect.

local parse = {}
parse.none = setmetatable({}, { __tostring = function() return "None" end })
parse.named = {}  -- marks the table of a call's named arguments
local none = parse.none

local function fail(message) error({ code = "template", message = "chat template: " .. message }, 0) end

-- Text less the characters of a class at its end; from there, as "+$" would try every run of them in the text.
function parse.without_end(text, class)
  local last = #text
  while last > 0 and text:find("^" .. class, last) do last = last - 1 end
  return text:sub(1, last)
end

parse.most_bytes = 16e6  -- of a string, and of the output

-- Errors unless a template may make a string of so many bytes (NaN is none), or a list of so many items.
function parse.room_for_string(bytes) if not (bytes <= parse.most_bytes) then fail("a string grew too long") end end
function parse.room_for_list(items) if items > 1e5 then fail("a list grew too long") end end

-- v, which an operation takes or gives: text counts by its length, but for text so short that the operation's own step covers it.
local function counted(run, v)
  if type(v) == "string" and #v > 500 then run.step(#v) end
  return v
end

-- ---------------------------------------------------------------- pieces: text, {{ output }}, {% statement %}

local function pieces(source)
  source = source:gsub("\r\n", "\n")
  if source:sub(-1) == "\n" then source = source:sub(1, -2) end  -- Jinja drops one trailing newline
  local list, at, strip_next, after_block = {}, 1, false, false
  local function add_text(text, strip_right, block_follows)
    if after_block and text:sub(1, 1) == "\n" then text = text:sub(2) end
    if strip_next then text = text:gsub("^%s+", "") end
    if strip_right then text = parse.without_end(text, "%s")
    elseif block_follows then
      local before = parse.without_end(text, "[ \t]")
      if before ~= text and (before:sub(-1) == "\n" or (before == "" and (#list == 0 or list[#list].ended_line))) then text = before end
    end
    if text ~= "" then list[#list + 1] = { kind = "text", text = text } end
  end
  while true do
    local open = source:find("{[{%%#]", at)
    if not open then
      add_text(source:sub(at), false, false)
      return list
    end
    local kind = source:sub(open + 1, open + 1)
    local mark = source:sub(open + 2, open + 2)
    add_text(source:sub(at, open - 1), mark == "-", kind ~= "{" and mark ~= "+")
    local from = (mark == "-" or mark == "+") and open + 3 or open + 2
    local close = ({ ["{"] = "}}", ["%"] = "%}", ["#"] = "#}" })[kind]
    local stop
    if kind == "#" then
      stop = source:find(close, from, true)
    else  -- the closing mark outside of string literals
      local i = from
      while i <= #source do
        local c = source:sub(i, i)
        if c == '"' or c == "'" then
          i = i + 1
          while i <= #source and source:sub(i, i) ~= c do i = i + (source:sub(i, i) == "\\" and 2 or 1) end
        elseif source:sub(i, i + 1) == close then
          stop = i
          break
        end
        i = i + 1
      end
    end
    if not stop then fail("a tag is not closed: " .. source:sub(open, open + 40)) end
    local inner = source:sub(from, stop - 1)
    strip_next = inner:sub(-1) == "-"
    if strip_next or inner:sub(-1) == "+" then inner = inner:sub(1, -2) end
    after_block = kind ~= "{" and not strip_next
    at = stop + 2
    if kind == "{" then list[#list + 1] = { kind = "output", text = inner }
    elseif kind == "%" then
      local word = inner:match("^%s*([%a_]+)")
      if word == "raw" then
        local finish, finish_end = source:find("{%%[-+]?%s*endraw%s*[-+]?%%}", at)
        if not finish then fail("raw without endraw") end
        list[#list + 1] = { kind = "text", text = source:sub(at, finish - 1) }
        at = finish_end + 1
      else
        list[#list + 1] = { kind = "block", word = word, text = inner:gsub("^%s*[%a_]+", "", 1), ended_line = after_block and source:sub(at, at) == "\n" }
      end
    end
  end
end

-- ---------------------------------------------------------------- tokens of an expression

local escapes = { n = "\n", t = "\t", r = "\r", a = "\a", b = "\b", f = "\f", v = "\v", ["\\"] = "\\", ["'"] = "'", ['"'] = '"', ["\n"] = "" }

-- A code point in UTF-8.
local function utf8_of(code)
  if code > 0x10ffff or (code >= 0xd800 and code < 0xe000) then fail(("\\U%08x is no character"):format(code)) end
  if code < 0x80 then return string.char(code) end
  local tail = ""
  local most = 0x40  -- what the first byte may hold, beside its mark
  repeat
    tail = string.char(0x80 + code % 0x40) .. tail
    code, most = math.floor(code / 0x40), most / 2
  until code < most
  return string.char(0x100 - 2 * most + code) .. tail
end

-- What the escape after a backslash at `at` stands for, and its last place.
local function escaped(text, at)
  local hex = text:match("^x(%x%x)", at) or text:match("^u(%x%x%x%x)", at) or text:match("^U(%x%x%x%x%x%x%x%x)", at)
  if hex then return utf8_of(tonumber(hex, 16)), at + #hex end
  local octal = text:match("^[0-7][0-7]?[0-7]?", at)
  if octal then return utf8_of(tonumber(octal, 8)), at + #octal - 1 end
  local c = text:sub(at, at)
  if c == "x" or c == "u" or c == "U" then fail("an escape is cut off in: " .. text) end
  return escapes[c] or "\\" .. c, at
end

local function tokens(text)
  local list, at = {}, 1
  while true do
    at = text:find("%S", at)
    if not at then break end
    local c = text:sub(at, at)
    local word = text:match("^[%a_][%w_]*", at)
    local number = text:match("^%d+%.%d+", at) or text:match("^%d+", at)
    if word then list[#list + 1] = { "name", word }; at = at + #word
    elseif number then list[#list + 1] = { "value", tonumber(number) }; at = at + #number
    elseif c == '"' or c == "'" then
      local out, i = {}, at + 1
      while true do
        local d = text:sub(i, i)
        if d == "" then fail("a string is not closed: " .. text) end
        if d == c then break end
        if d == "\\" then
          out[#out + 1], i = escaped(text, i + 1)
        else
          out[#out + 1] = d
        end
        i = i + 1
      end
      list[#list + 1] = { "value", table.concat(out) }
      at = i + 1
    else
      local two = text:sub(at, at + 1)
      local op = ({ ["=="] = 1, ["!="] = 1, ["<="] = 1, [">="] = 1, ["//"] = 1, ["**"] = 1 })[two] and two or c
      if not ("+-*/%~.,:()[]{}|=<>=!"):find(op:sub(1, 1), 1, true) then fail("unexpected " .. c .. " in: " .. text) end
      list[#list + 1] = { "op", op }
      at = at + #op
    end
  end
  return list
end

-- ---------------------------------------------------------------- expressions to closures f(scope, run)

local Parser = {}
Parser.__index = Parser

local function parser(text, jinja) return setmetatable({ list = tokens(text), at = 1, text = text, jinja = jinja }, Parser) end

function Parser:peek(value) local t = self.list[self.at]; return t ~= nil and t[1] ~= "value" and t[2] == value end
function Parser:accept(value)
  if self:peek(value) then self.at = self.at + 1; return true end
  return false
end
function Parser:expect(value) if not self:accept(value) then fail(("expected %s in: %s"):format(value, self.text)) end end
function Parser:name()
  local t = self.list[self.at]
  if not t or t[1] ~= "name" then fail("expected a name in: " .. self.text) end
  self.at = self.at + 1
  return t[2]
end
function Parser:finish() if self.list[self.at] then fail(("unexpected %s in: %s"):format(tostring(self.list[self.at][2]), self.text)) end end

-- Positional arguments, and named ones as one table after them.
function Parser:arguments()
  local positional, named, has_named = {}, {}, false
  while not self:accept(")") do
    local t, after = self.list[self.at], self.list[self.at + 1]
    if t and t[1] == "name" and after and after[2] == "=" and after[1] == "op" then
      self.at = self.at + 2
      named[t[2]], has_named = self:expression(), true
    else
      positional[#positional + 1] = self:expression()
    end
    if not self:peek(")") then self:expect(",") end
  end
  return function(scope, run)
    local values = {}
    for i, f in ipairs(positional) do values[i] = f(scope, run) end
    local count = #positional
    if has_named then
      local t = setmetatable({}, parse.named)
      for key, f in pairs(named) do t[key] = f(scope, run) end
      count = count + 1
      values[count] = t
    end
    return values, count, has_named
  end
end

function Parser:primary()
  local t = self.list[self.at]
  if not t then fail("an expression is missing in: " .. self.text) end
  self.at = self.at + 1
  if t[1] == "value" then
    local value = t[2]
    while type(value) == "string" and self.list[self.at] and self.list[self.at][1] == "value" and type(self.list[self.at][2]) == "string" do
      value = value .. self.list[self.at][2]  -- adjacent literals join
      self.at = self.at + 1
    end
    return function() return value end
  end
  if t[1] == "name" then
    local name = t[2]
    local constants = { ["true"] = true, True = true, ["false"] = false, False = false, none = none, None = none }
    if constants[name] ~= nil then local v = constants[name]; return function() return v end end
    if name == "namespace" then
      self:expect("(")
      local args = self:arguments()
      return function(scope, run) local values, n = args(scope, run); return setmetatable(values[n] or {}, { namespace = true }) end
    end
    return function(scope) return scope[name] end
  end
  if t[2] == "(" then
    local first = self:expression()
    if self:peek(",") then
      local items = { first }
      while self:accept(",") do if not self:peek(")") then items[#items + 1] = self:expression() end end
      self:expect(")")
      return self:list_of(items)
    end
    self:expect(")")
    return first
  elseif t[2] == "[" then
    local items = {}
    while not self:accept("]") do
      items[#items + 1] = self:expression()
      if not self:peek("]") then self:expect(",") end
    end
    return self:list_of(items)
  elseif t[2] == "{" then
    local keys, values = {}, {}
    while not self:accept("}") do
      keys[#keys + 1] = self:expression()
      self:expect(":")
      values[#values + 1] = self:expression()
      if not self:peek("}") then self:expect(",") end
    end
    return function(scope, run)
      local order, m = {}, {}
      for i, key in ipairs(keys) do order[i] = key(scope, run); m[order[i]] = values[i](scope, run) end
      return setmetatable(m, { __keys = order })
    end
  end
  fail(("unexpected %s in: %s"):format(tostring(t[2]), self.text))
end

function Parser:list_of(items)
  local list = self.jinja.list
  return function(scope, run)
    local out = list {}
    for i, f in ipairs(items) do out[i] = f(scope, run) end
    return out
  end
end

-- Attributes, indices and calls of a value, then filters and tests unless told to leave them.
function Parser:postfix(value, without_filters)
  local jinja = self.jinja
  while true do
    local inner = value
    if self:accept(".") then
      local name = self:name()
      value = function(scope, run) run.step(); return jinja.attribute(counted(run, inner(scope, run)), name, true) end
    elseif self:accept("[") then
      local parts, count = {}, 1
      while not self:accept("]") do
        if self:accept(":") then count = count + 1 else parts[count] = self:expression() end
      end
      if count == 1 then
        local index = parts[1]
        value = function(scope, run) run.step(); return jinja.attribute(counted(run, inner(scope, run)), index(scope, run)) end
      else
        value = function(scope, run)
          local function part(i) return parts[i] and parts[i](scope, run) end
          run.step()
          return jinja.slice(counted(run, inner(scope, run)), part(1), part(2), part(3))
        end
      end
    elseif self:accept("(") then
      local args = self:arguments()
      value = function(scope, run)
        run.step()
        local f = inner(scope, run)
        if type(f) ~= "function" then fail("a value that is no function is called in: " .. self.text) end
        local values, n = args(scope, run)
        return counted(run, f(unpack(values, 1, n)))
      end
    elseif not without_filters and self:accept("|") then
      value = self:filter(inner)
    elseif not without_filters and self:peek("is") then
      self.at = self.at + 1
      local negate = self:accept("not")
      local name = self.list[self.at] and self.list[self.at][2]
      self.at = self.at + 1
      local test = jinja.tests[name]
      if not test then fail("test '" .. tostring(name) .. "' is not known") end
      local args
      if self:accept("(") then args = self:arguments()
      else
        local t = self.list[self.at]
        if t and (t[1] == "value" or (t[1] == "name" and (name == "in" or name == "equalto" or name == "sameas" or name == "divisibleby"))) then
          local one = self:primary()
          args = function(scope, run) return { one(scope, run) }, 1 end
        end
      end
      value = function(scope, run)
        local values, n = {}, 0
        if args then values, n = args(scope, run) end
        return (test(counted(run, inner(scope, run)), unpack(values, 1, n)) and true or false) ~= negate
      end
    else
      return value
    end
  end
end

function Parser:filter(inner)
  local jinja, name = self.jinja, self:name()
  local args = self:accept("(") and self:arguments()
  if name == "selectattr" or name == "rejectattr" or name == "select" or name == "reject" then
    local by_attribute, keep = name:find("attr") ~= nil, name:find("select") ~= nil
    return function(scope, run)
      local values = args and args(scope, run) or {}
      local attribute = by_attribute and table.remove(values, 1)
      local test = values[1] and jinja.tests[values[1]] or jinja.truth
      if values[1] and not jinja.tests[values[1]] then fail("test '" .. tostring(values[1]) .. "' is not known") end
      local out = jinja.list {}
      for _, item in ipairs(inner(scope, run)) do
        run.step()
        local v = item
        if attribute then v = jinja.attribute(item, attribute) end
        if (test(v, values[2]) and true or false) == keep then out[#out + 1] = item end
      end
      return out
    end
  end
  local filter = jinja.filters[name]
  if not filter then fail("filter '" .. name .. "' is not known") end
  return function(scope, run)
    run.step()
    local values, n, has_named = {}, 0, false
    if args then values, n, has_named = args(scope, run) end
    if has_named and name ~= "map" then  -- tojson(indent=2), join(attribute="x"): by the one name each knows
      local named = values[n]
      values[n] = named.indent or named.sep or named.default_value or named.width or named.attribute
    end
    return counted(run, filter(counted(run, inner(scope, run)), unpack(values, 1, n)))
  end
end

local function number(v, text) if type(v) ~= "number" then fail("arithmetic on something that is no number in: " .. text) end return v end

-- -x | f is f(-x).
function Parser:unary(without_filters)
  if self:accept("-") then
    local v, text = self:unary(true), self.text
    return self:postfix(function(scope, run) return -number(v(scope, run), text) end, without_filters)
  end
  self:accept("+")
  return self:postfix(self:primary(), without_filters)
end

local binary = {
  ["*"] = function(a, b, text)
    if type(a) == "string" then
      if #a * number(b, text) > 1e6 then fail("a repeated string grew too long") end
      return a:rep(b)
    end
    return number(a, text) * number(b, text)
  end,
  ["/"] = function(a, b, text) return number(a, text) / number(b, text) end,
  ["//"] = function(a, b, text) return math.floor(number(a, text) / number(b, text)) end,
  ["%"] = function(a, b, text) return number(a, text) % number(b, text) end,
  ["-"] = function(a, b, text) return number(a, text) - number(b, text) end,
}

local function joined(x, y)
  parse.room_for_string(#x + #y)
  return x .. y
end

function Parser:chain(next_level, operators)
  local jinja = self.jinja
  local left = next_level(self)
  while true do
    local t = self.list[self.at]
    if not t or t[1] ~= "op" or not operators[t[2]] then return left end
    self.at = self.at + 1
    local a, b, op, text = left, next_level(self), t[2], self.text
    if op == "+" then
      left = function(scope, run)
        run.step()
        local x, y = a(scope, run), b(scope, run)
        if type(x) == "string" and type(y) == "string" then return counted(run, joined(x, y)) end
        if jinja.is_list(x) and jinja.is_list(y) then
          parse.room_for_list(#x + #y)
          local out = jinja.list {}
          for _, v in ipairs(x) do out[#out + 1] = v end
          for _, v in ipairs(y) do out[#out + 1] = v end
          return out
        end
        return number(x, text) + number(y, text)
      end
    elseif op == "~" then
      left = function(scope, run)
        run.step()
        return counted(run, joined(jinja.text(a(scope, run)), jinja.text(b(scope, run))))
      end
    else
      local apply = binary[op]
      left = function(scope, run) return counted(run, apply(a(scope, run), b(scope, run), text)) end
    end
  end
end

function Parser:product() return self:chain(Parser.unary, { ["*"] = 1, ["/"] = 1, ["//"] = 1, ["%"] = 1 }) end
function Parser:sum() return self:chain(Parser.product, { ["+"] = 1, ["-"] = 1 }) end
function Parser:concat() return self:chain(Parser.sum, { ["~"] = 1 }) end

parse.order = {
  ["<"] = function(a, b) return a < b end, [">"] = function(a, b) return a > b end,
  ["<="] = function(a, b) return a <= b end, [">="] = function(a, b) return a >= b end,
}

-- A comparison f(x, y, run) where the next tokens are its operator.
function Parser:comparator()
  local jinja, text = self.jinja, self.text
  if self:accept("==") then return jinja.equal end
  if self:accept("!=") then return function(x, y) return not jinja.equal(x, y) end end
  for _, op in ipairs { "<", ">", "<=", ">=" } do
    if self:accept(op) then
      local compare = jinja.order[op]
      return function(x, y)
        if type(x) ~= type(y) or (type(x) ~= "number" and type(x) ~= "string") then fail("values that have no order are compared in: " .. text) end
        return compare(x, y)
      end
    end
  end
  if self:accept("in") then return function(x, y, run) return jinja.contains(counted(run, y), x) end end
  if self:peek("not") and self.list[self.at + 1] and self.list[self.at + 1][2] == "in" then
    self.at = self.at + 2
    return function(x, y, run) return not jinja.contains(counted(run, y), x) end
  end
end

-- a < b < c is a < b and b < c, each value computed once.
function Parser:comparison()
  local first, rest = self:concat(), {}
  while true do
    local compare = self:comparator()
    if not compare then break end
    rest[#rest + 1] = { compare, self:concat() }
  end
  if #rest == 0 then return first end
  return function(scope, run)
    local x = first(scope, run)
    for i = 1, #rest do
      local y = rest[i][2](scope, run)
      if not rest[i][1](x, y, run) then return false end
      x = y
    end
    return true
  end
end

function Parser:negation()
  if self:accept("not") then
    local v, truth = self:negation(), self.jinja.truth
    return function(s, r) return not truth(v(s, r)) end
  end
  return self:comparison()
end

function Parser:conjunction()
  local left, truth = self:negation(), self.jinja.truth
  while self:accept("and") do
    local a, b = left, self:negation()
    left = function(s, r) local v = a(s, r); if truth(v) then return b(s, r) end return v end
  end
  return left
end

function Parser:disjunction()
  local left, truth = self:conjunction(), self.jinja.truth
  while self:accept("or") do
    local a, b = left, self:conjunction()
    left = function(s, r) local v = a(s, r); if truth(v) then return v end return b(s, r) end
  end
  return left
end

function Parser:expression()
  local value = self:disjunction()
  if self:accept("if") then
    local condition, truth = self:disjunction(), self.jinja.truth
    local other = self:accept("else") and self:expression() or function() return nil end
    return function(s, r) if truth(condition(s, r)) then return value(s, r) end return other(s, r) end
  end
  return value
end

-- An expression, or several with commas between them: a list.
function Parser:tuple()
  local items = { self:expression() }
  if not self:peek(",") then return items[1] end
  while self:accept(",") and self.list[self.at] do items[#items + 1] = self:expression() end
  return self:list_of(items)
end

-- ---------------------------------------------------------------- statements

-- Names to assign to, with commas and parentheses between them: a name, or a list of targets.
function Parser:targets(stop)
  local list, tuple = {}, false
  repeat
    if self:peek(stop) then break end
    list[#list + 1] = self:accept("(") and self:targets(")") or self:name()
    local comma = self:accept(",")
    tuple = tuple or comma
  until not comma
  if stop == ")" then self:expect(")") end
  return tuple and list or list[1] or fail("expected a name in: " .. self.text)
end

local function assign(scope, target, v, jinja)
  if type(target) == "string" then return rawset(scope, target, v) end
  if v == nil or v == none or type(v) ~= "table" and type(v) ~= "string" then fail("a value that holds no others is unpacked") end
  local items = jinja.filters.list(v)
  if #items ~= #target then fail(("%d values are unpacked to %d names"):format(#items, #target)) end
  for i, name in ipairs(target) do assign(scope, name, items[i], jinja) end
end

local statements = {}

-- Runs the pieces from `at` up to a block whose word is in `stops`; returns the closure and where it stopped.
local function sequence(list, at, stops, jinja)
  local body = {}
  while list[at] do
    local piece = list[at]
    if piece.kind == "text" then
      local text = piece.text
      body[#body + 1] = function(_, run) run.emit(text) end
      at = at + 1
    elseif piece.kind == "output" then
      local p = parser(piece.text, jinja)
      local value = p:expression()
      p:finish()
      body[#body + 1] = function(scope, run) run.step(); run.emit(jinja.text(value(scope, run))) end
      at = at + 1
    elseif stops[piece.word] then
      break
    else
      local statement = statements[piece.word]
      if not statement then fail("block '" .. tostring(piece.word) .. "' is not known") end
      body[#body + 1], at = statement(list, at, jinja)
    end
  end
  return function(scope, run) 
    for i = 1, #body do
      run.step()
      body[i](scope, run)
      if run.leave then return end
    end
  end, at
end

local function need(list, at, word)
  if not list[at] or list[at].word ~= word then fail(word .. " is missing") end
  return at + 1
end

local function expression_of(text, jinja)
  local p = parser(text, jinja)
  local value = p:expression()
  p:finish()
  return value
end

statements["if"] = function(list, at, jinja)
  local branches, otherwise = {}, nil
  local word = "if"
  while word == "if" or word == "elif" do
    local condition = expression_of(list[at].text, jinja)
    local body
    body, at = sequence(list, at + 1, { elif = 1, ["else"] = 1, endif = 1 }, jinja)
    branches[#branches + 1] = { condition, body }
    if not list[at] then fail("endif is missing") end
    word = list[at].word
  end
  if word == "else" then otherwise, at = sequence(list, at + 1, { endif = 1 }, jinja) end
  return function(scope, run)
    for _, branch in ipairs(branches) do
      if jinja.truth(branch[1](scope, run)) then return branch[2](scope, run) end
    end
    if otherwise then otherwise(scope, run) end
  end, need(list, at, "endif")
end

statements["for"] = function(list, at, jinja)
  local p = parser(list[at].text, jinja)
  local target = p:targets("in")
  p:expect("in")
  local items = p:disjunction()
  local condition = p:accept("if") and p:expression()
  p:finish()
  local body, otherwise
  list.loops = (list.loops or 0) + 1
  body, at = sequence(list, at + 1, { ["else"] = 1, endfor = 1 }, jinja)
  list.loops = list.loops - 1
  if list[at] and list[at].word == "else" then otherwise, at = sequence(list, at + 1, { endfor = 1 }, jinja) end
  return function(scope, run)
    local source = items(scope, run)
    if source == none then fail("for over none") end
    if source == nil then source = {} end  -- undefined: no item, as in Jinja2
    local kept = {}
    local function bind(item)
      local inner = setmetatable({}, { __index = scope })
      assign(inner, target, item, jinja)
      return inner
    end
    for _, item in ipairs(jinja.filters.list(source)) do
      run.step()
      if not condition or jinja.truth(condition(bind(item), run)) then kept[#kept + 1] = item end
    end
    for i, item in ipairs(kept) do
      local inner = bind(item)
      inner.loop = {
        index = i, index0 = i - 1, revindex = #kept - i + 1, revindex0 = #kept - i, first = i == 1, last = i == #kept,
        length = #kept, previtem = kept[i - 1], nextitem = kept[i + 1],
      }
      body(inner, run)
      local leave = run.leave
      run.leave = nil
      if leave == "break" then break end
    end
    if #kept == 0 and otherwise then otherwise(scope, run) end
  end, need(list, at, "endfor")
end

-- run.leave ends the sequences around it up to the loop.
for _, word in ipairs { "break", "continue" } do
  statements[word] = function(list, at)
    if (list.loops or 0) == 0 then fail(word .. " outside of a loop") end
    return function(_, run) run.leave = word end, at + 1
  end
end

statements.set = function(list, at, jinja)
  local p = parser(list[at].text, jinja)
  local name = p:targets("=")
  local attribute = type(name) == "string" and p:accept(".") and p:name()
  local value
  if p:accept("=") then
    value = p:tuple()
    p:finish()
    at = at + 1
  else
    local body
    body, at = sequence(list, at + 1, { endset = 1 }, jinja)
    at = need(list, at, "endset")
    value = function(scope, run)
      local out, size = run.out, run.size
      run.out = {}
      body(scope, run)
      local text = table.concat(run.out)
      run.out, run.size = out, size
      return text
    end
  end
  return function(scope, run)
    local v = value(scope, run)
    if run.leave then return end  -- a break inside of the block
    if attribute then
      local space = scope[name]
      if type(space) ~= "table" or not (getmetatable(space) or {}).namespace then fail(name .. " is no namespace") end
      space[attribute] = v
    else
      assign(scope, name, v, jinja)
    end
  end, at
end

statements.macro = function(list, at, jinja)
  local p = parser(list[at].text, jinja)
  local name, parameters = p:name(), {}
  p:expect("(")
  while not p:accept(")") do
    local parameter = { p:name() }
    if p:accept("=") then parameter[2] = p:expression() end
    parameters[#parameters + 1] = parameter
    if not p:peek(")") then p:expect(",") end
  end
  p:finish()
  local body
  local loops = list.loops
  list.loops = 0
  body, at = sequence(list, at + 1, { endmacro = 1 }, jinja)
  list.loops = loops
  return function(scope, run)
    local depth = 0
    rawset(scope, name, function(...)
      local inner = setmetatable({}, { __index = scope })
      local count = select("#", ...)
      local named = count > 0 and select(count, ...) or nil
      if type(named) == "table" and getmetatable(named) == parse.named then count = count - 1 else named = nil end
      for i, parameter in ipairs(parameters) do
        local v = i <= count and select(i, ...) or nil
        if v == nil and named then v = named[parameter[1]] end
        if v == nil and parameter[2] then v = parameter[2](scope, run) end
        inner[parameter[1]] = v
      end
      depth = depth + 1
      if depth > 100 then fail("macro " .. name .. " calls itself too deeply") end
      local out = run.out
      run.out = {}
      body(inner, run)
      local text = table.concat(run.out)
      run.out = out
      depth = depth - 1
      return text
    end)
  end, need(list, at, "endmacro")
end

-- {% generation %} marks what an assistant says for training; the text is that of its body.
statements.generation = function(list, at, jinja)
  local body
  body, at = sequence(list, at + 1, { endgeneration = 1 }, jinja)
  return body, need(list, at, "endgeneration")
end

function parse.template(source, jinja)
  local list = pieces(source)
  local body, at = sequence(list, 1, {}, jinja)
  if list[at] then fail("unexpected block '" .. tostring(list[at].word) .. "'") end
  return body
end

return parse
