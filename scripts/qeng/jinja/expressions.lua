-- Parses expressions to closures f(scope, run). Precedence as in Jinja: or, and, not, comparisons, + -, ~, * / // %,
-- **, signs. words: the operations (jinja/init.lua). run.step counts work.

local limits = require "qeng.jinja.limits"
local values = require "qeng.jinja.values"

local Parser = {}
Parser.__index = Parser

local fail, plain = limits.fail, values.plain

-- v, which an operation takes or gives. Text counts by its length. Short text is covered by the operation's own step.
local function counted(run, v)
  if type(v) == "string" and #v > 500 then run.step(#v) end
  return v
end

-- ---------------------------------------------------------------- tokens

function Parser.new(tokens, words) return setmetatable({ tokens = tokens, at = 1, words = words }, Parser) end

function Parser:fail(message, ...)
  local token = self.tokens[math.min(self.at, #self.tokens)]
  fail("line %d: " .. message, token and token[3] or 1, ...)
end

-- Whether the token ahead (by `ahead` places) is the operator or name `value`.
function Parser:peek(value, ahead)
  local token = self.tokens[self.at + (ahead or 0)]
  return token ~= nil and (token[1] == "op" or token[1] == "name") and token[2] == value
end
function Parser:kind() local token = self.tokens[self.at]; return token and token[1] end
function Parser:accept(value)
  if not self:peek(value) then return false end
  self.at = self.at + 1
  return true
end
local function shown(token)
  return not token and "the end" or token[1] == "end" and "the end of the tag" or tostring(token[2])
end
function Parser:expect(value)
  if not self:accept(value) then self:fail("expected '%s', found %s", value, shown(self.tokens[self.at])) end
end
function Parser:name()
  local token = self.tokens[self.at]
  if not token or token[1] ~= "name" then self:fail("expected a name, found %s", shown(token)) end
  self.at = self.at + 1
  return token[2]
end
-- Reads past the end of the tag.
function Parser:finish()
  if self:kind() ~= "end" then self:fail("unexpected %s", shown(self.tokens[self.at])) end
  self.at = self.at + 1
end

-- ---------------------------------------------------------------- literals

local constants = {
  ["true"] = true, True = true, ["false"] = false, False = false, none = values.none, None = values.none,
}

function Parser:primary()
  local token = self.tokens[self.at]
  local kind, value = token and token[1], token and token[2]
  if kind ~= "value" and kind ~= "name" and kind ~= "op" then self:fail "an expression is missing" end
  self.at = self.at + 1
  if kind == "value" then
    -- Adjacent literals join.
    while type(value) == "string" and self:kind() == "value" and type(self.tokens[self.at][2]) == "string" do
      value = value .. self.tokens[self.at][2]
      self.at = self.at + 1
    end
    return function() return value end
  end
  if kind == "name" then
    local constant = constants[value]
    if constant ~= nil then return function() return constant end end
    return function(scope)
      local found = scope[value]
      if found == nil then return values.undefined(value) end
      return found
    end
  end
  if value == "(" then
    if self:accept ")" then return function() return values.tuple {} end end
    local inner = self:tuple ")"
    self:expect ")"
    return inner
  elseif value == "[" then
    return self:collection(values.list, self:items "]")
  elseif value == "{" then
    return self:dict()
  end
  self.at = self.at - 1
  self:fail("unexpected %s", shown(token))
end

-- Expressions with commas between them, up to and with `close`.
function Parser:items(close)
  local items = {}
  while not self:accept(close) do
    items[#items + 1] = self:expression()
    if not self:peek(close) then self:expect "," end
  end
  return items
end

function Parser:collection(make, items)
  return function(scope, run)
    local out = {}
    for i, f in ipairs(items) do out[i] = f(scope, run) end
    return make(out)
  end
end

function Parser:dict()
  local entries = {}
  while not self:accept "}" do
    local key = self:expression()
    self:expect ":"
    entries[#entries + 1] = { key, self:expression() }
    if not self:peek "}" then self:expect "," end
  end
  return function(scope, run)
    local pairs_of = {}
    for i, entry in ipairs(entries) do pairs_of[i] = { entry[1](scope, run), entry[2](scope, run) } end
    return values.dict_of(pairs_of)
  end
end

-- An expression, or a tuple: several with commas between them. close: the token after it, if it is in parentheses.
-- item: parses one.
function Parser:tuple(close, item)
  item = item or self.expression
  local items = { item(self) }
  if not self:peek "," then return items[1] end
  while self:accept "," do
    if self:kind() == "end" or (close and self:peek(close)) or self:peek "=" then break end
    items[#items + 1] = item(self)
  end
  return self:collection(values.tuple, items)
end

-- ---------------------------------------------------------------- calls, attributes, filters, tests

-- After "(": a function (scope, run) that returns the list of arguments and the table of named ones.
function Parser:arguments()
  local words, positional, named, spread, spread_named = self.words, {}, {}, nil, nil
  while not self:accept ")" do
    if self:accept "*" then spread = self:expression()
    elseif self:accept "**" then spread_named = self:expression()
    elseif self:kind() == "name" and self:peek("=", 1) then
      local name = self:name()
      self:expect "="
      named[name] = self:expression()
    else
      positional[#positional + 1] = self:expression()
    end
    if not self:peek ")" then self:expect "," end
  end
  return function(scope, run)
    local list, by_name = {}, {}
    for i, f in ipairs(positional) do list[i] = f(scope, run) end
    for name, f in pairs(named) do by_name[name] = f(scope, run) end
    if spread then for _, item in ipairs(words.iterate(spread(scope, run))) do list[#list + 1] = item end end
    if spread_named then
      local dict = spread_named(scope, run)
      if not values.is_dict(dict) then fail("** of a %s", values.kind(dict)) end
      for _, key in ipairs(dict.keys) do by_name[key] = values.get(dict, key) end
    end
    return list, by_name
  end
end

local function no_arguments() return {}, {} end

-- What a value that can be called returns.
function Parser.call(f, arguments, named, run)
  if values.kind(f) ~= "function" then
    if values.is_undefined(f) then fail("'%s' is undefined and is called", tostring(f.name)) end
    fail("a %s is called", values.kind(f))
  end
  return counted(run, f.call(arguments, named, run))
end

function Parser:subscript(inner)
  local words = self.words
  if self:accept "." then
    local token = self.tokens[self.at]
    if token and token[1] == "value" and type(token[2]) == "number" then
      self.at = self.at + 1
      return function(scope, run) run.step(); return words.item(counted(run, plain(inner(scope, run))), token[2]) end
    end
    local name = self:name()
    return function(scope, run) run.step(); return words.attribute(counted(run, plain(inner(scope, run))), name) end
  end
  self:expect "["
  local parts, count, sliced = {}, 1, false
  while not self:accept "]" do
    if self:accept ":" then count, sliced = count + 1, true
    elseif parts[count] or count > 3 then self:fail("unexpected %s", shown(self.tokens[self.at]))
    else parts[count] = self:expression() end
  end
  if not sliced then
    local index = parts[1] or self:fail "an index is missing"
    return function(scope, run)
      run.step()
      return words.item(counted(run, plain(inner(scope, run))), index(scope, run))
    end
  end
  return function(scope, run)
    local function part(i)
      local v = parts[i] and parts[i](scope, run)
      return v ~= values.none and v or nil
    end
    run.step()
    return words.slice(counted(run, plain(inner(scope, run))), part(1), part(2), part(3))
  end
end

function Parser:postfix(value)
  while true do
    local inner = value
    if self:peek "." or self:peek "[" then
      value = self:subscript(inner)
    elseif self:accept "(" then
      local arguments = self:arguments()
      value = function(scope, run)
        run.step()
        local f = inner(scope, run)
        local list, named = arguments(scope, run)
        return Parser.call(f, list, named, run)
      end
    else
      return value
    end
  end
end

function Parser:dotted()
  local name = self:name()
  while self:accept "." do name = name .. "." .. self:name() end
  return name
end

-- After "|": the filter of a value, as a function (scope, run).
function Parser:filter(inner)
  local words, name = self.words, self:dotted()
  local arguments = self:accept "(" and self:arguments() or no_arguments
  return function(scope, run)
    run.step()
    local filter = words.filters[name] or fail("filter '%s' is not known", name)
    local v = counted(run, plain(inner(scope, run)))
    local list, named = arguments(scope, run)
    return counted(run, filter(v, list, named, words))
  end
end

-- After "is".
function Parser:test(inner)
  local words, negated = self.words, self:accept "not"
  local name = self:dotted()
  local arguments = no_arguments
  local kind = self:kind()
  if self:accept "(" then
    arguments = self:arguments()
  elseif (kind == "name" or kind == "value" or self:peek "[" or self:peek "{")
    and not (self:peek "else" or self:peek "or" or self:peek "and") then
    if self:peek "is" then self:fail "a test is tested" end
    local one = self:postfix(self:primary())
    arguments = function(scope, run) return { one(scope, run) }, {} end
  end
  return function(scope, run)
    local test = words.tests[name] or fail("test '%s' is not known", name)
    local v = counted(run, plain(inner(scope, run)))
    local list, named = arguments(scope, run)
    return (test(v, list, named) and true or false) ~= negated
  end
end

function Parser:filtered(value)
  while true do
    if self:accept "|" then value = self:filter(value)
    elseif self:accept "is" then value = self:test(value)
    elseif self:peek "(" then value = self:postfix(value)
    else return value end
  end
end

-- ---------------------------------------------------------------- operators

-- -x | f is f(-x).
function Parser:unary(without_filters)
  local words, value = self.words
  if self:accept "-" then
    local v = self:unary(true)
    value = function(scope, run) return words.negative(v(scope, run)) end
  elseif self:accept "+" then
    value = self:unary(true)
  else
    value = self:postfix(self:primary())
  end
  return without_filters and value or self:filtered(value)
end

-- Operators of one level, from left to right.
local function level(next_level, operators)
  return function(self)
    local words, left = self.words, next_level(self)
    while self:kind() == "op" and operators[self.tokens[self.at][2]] do
      local a, op = left, self.tokens[self.at][2]
      self.at = self.at + 1
      local b = next_level(self)
      left = function(scope, run)
        run.step()
        return counted(run, words.binary(op, a(scope, run), b(scope, run)))
      end
    end
    return left
  end
end

Parser.power = level(Parser.unary, { ["**"] = true })
Parser.product = level(Parser.power, { ["*"] = true, ["/"] = true, ["//"] = true, ["%"] = true })
Parser.concat = level(Parser.product, { ["~"] = true })
Parser.sum = level(Parser.concat, { ["+"] = true, ["-"] = true })

-- A comparison f(x, y, run) where the next tokens are its operator.
function Parser:comparator()
  local words = self.words
  if self:accept "==" then return function(x, y) return words.equal(x, y) end end
  if self:accept "!=" then return function(x, y) return not words.equal(x, y) end end
  for _, op in ipairs { "<", ">", "<=", ">=" } do if self:accept(op) then return words.order[op] end end
  if self:accept "in" then return function(x, y, run) return words.contains(counted(run, y), x) end end
  if self:peek "not" and self:peek("in", 1) then
    self.at = self.at + 2
    return function(x, y, run) return not words.contains(counted(run, y), x) end
  end
end

-- a < b < c is a < b and b < c. Each value is computed once.
function Parser:comparison()
  local first, rest = self:sum(), {}
  while true do
    local compare = self:comparator()
    if not compare then break end
    rest[#rest + 1] = { compare, self:sum() }
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
  if not self:accept "not" then return self:comparison() end
  local v, words = self:negation(), self.words
  return function(scope, run) return not words.truth(v(scope, run)) end
end

-- Operands of "and" or "or". The value is the first operand whose truth is `decides`, else the last.
local function logical(next_level, word, decides)
  return function(self)
    local left, words = next_level(self), self.words
    while self:accept(word) do
      local a, b = left, next_level(self)
      left = function(scope, run)
        local v = a(scope, run)
        if words.truth(v) == decides then return v end
        return b(scope, run)
      end
    end
    return left
  end
end

Parser.conjunction = logical(Parser.negation, "and", false)
Parser.disjunction = logical(Parser.conjunction, "or", true)

function Parser:expression()
  local value, words = self:disjunction(), self.words
  while self:accept "if" do
    local yes, condition = value, self:disjunction()
    local no = self:accept "else" and self:expression()
      or function() return values.undefined "a condition without else" end
    value = function(scope, run)
      if words.truth(condition(scope, run)) then return yes(scope, run) end
      return no(scope, run)
    end
  end
  return value
end

return Parser
