-- Parses a template to a closure (scope, run). Statements: if, for (else, condition, recursive), set (value and block),
-- with, macro, call, filter, break, continue, generation. A scope sees the names of the scopes around it. run takes the
-- text.

local Parser = require "qeng.jinja.expressions"
local lexer = require "qeng.jinja.lexer"
local limits = require "qeng.jinja.limits"
local values = require "qeng.jinja.values"

local fail = limits.fail
local statements = {}

local function inner_scope(scope) return setmetatable({}, { __index = scope }) end

-- The text that body writes.
local function captured(body, scope, run)
  local out, outer = run.out, run.captured
  run.out, run.captured = {}, true
  body(scope, run)
  local text = table.concat(run.out)
  run.out, run.captured = out, outer
  return text
end

-- ---------------------------------------------------------------- bodies

-- Whether the next block tag has one of these words (separated by spaces).
local function block_ahead(p, names)
  if p:kind() ~= "block" then return false end
  local word = p.tokens[p.at + 1]
  return word ~= nil and word[1] == "name" and (" " .. names .. " "):find(" " .. word[2] .. " ", 1, true) and word[2]
end

local function output(p)
  local value, words = p:tuple(), p.words
  p:finish()
  return function(scope, run) run.step(); run.emit(words.text(value(scope, run))) end
end

-- Everything up to a block tag of one of these words. The tag is next.
local function body_until(p, names)
  local body = {}
  while true do
    local token = p.tokens[p.at]
    if not token then
      if names == "" then break end
      p:fail("%s is missing", names:match "%S+$")
    end
    if token[1] == "data" then
      p.at = p.at + 1
      local text = token[2]
      body[#body + 1] = function(_, run) run.emit(text) end
    elseif token[1] == "output" then
      p.at = p.at + 1
      body[#body + 1] = output(p)
    elseif names ~= "" and block_ahead(p, names) then
      break
    else
      p.at = p.at + 1
      local word = p:name()
      local statement = statements[word] or p:fail("block '%s' is not known", word)
      body[#body + 1] = statement(p)
    end
  end
  return function(scope, run)
    for i = 1, #body do
      run.step()
      body[i](scope, run)
      if run.leave then return end
    end
  end
end

-- The same, and past the tag that ends it.
local function body_to(p, word)
  local body = body_until(p, word)
  p.at = p.at + 2
  p:finish()
  return body
end

-- ---------------------------------------------------------------- if

statements["if"] = function(p)
  local branches, otherwise, words = {}, nil, p.words
  local word
  repeat
    local condition = p:tuple(nil, p.disjunction)
    p:finish()
    local body = body_until(p, "elif else endif")
    branches[#branches + 1] = { condition, body }
    word = block_ahead(p, "elif else endif")
    p.at = p.at + 2
  until word ~= "elif"
  p:finish()
  if word == "else" then otherwise = body_to(p, "endif") end
  return function(scope, run)
    for _, branch in ipairs(branches) do
      if words.truth(branch[1](scope, run)) then return branch[2](scope, run) end
    end
    if otherwise then otherwise(scope, run) end
  end
end

-- ---------------------------------------------------------------- for

-- The names to assign to: a name, {name, attribute =} or a list of targets. Commas and parentheses stand between them.
local function targets(p, stop)
  local list, tuple = {}, false
  repeat
    if p:peek(stop) or p:kind() == "end" then break end
    if p:accept "(" then
      list[#list + 1] = targets(p, ")")
      p:expect ")"
    else
      local name = p:name()
      list[#list + 1] = p:accept "." and { name, attribute = p:name() } or name
    end
    local comma = p:accept ","
    tuple = tuple or comma
  until not comma
  return tuple and list or list[1] or p:fail "expected a name"
end

local function assign(scope, target, v, words)
  if type(target) == "string" then return rawset(scope, target, v) end
  if target.attribute then
    local space = scope[target[1]]
    if space == nil or values.kind(space) ~= "namespace" then fail("'%s' is no namespace", target[1]) end
    if target.attribute:find "^_" then fail("'%s' begins with an underscore", target.attribute) end
    space.map[target.attribute] = v
    return
  end
  local items = words.iterate(v)
  if #items ~= #target then fail("%d values are unpacked to %d names", #items, #target) end
  for i, name in ipairs(target) do assign(scope, name, items[i], words) end
end

statements["for"] = function(p)
  local words = p.words
  local target = targets(p, "in")
  p:expect "in"
  local items = p:disjunction()
  if p:peek "," then
    local all = { items }
    while p:accept "," do all[#all + 1] = p:disjunction() end
    items = p:collection(values.tuple, all)
  end
  local condition = p:accept "if" and p:expression()
  local recursive = p:accept "recursive"
  p:finish()
  p.loops = (p.loops or 0) + 1
  local body = body_until(p, "else endfor")
  p.loops = p.loops - 1
  local word, otherwise = block_ahead(p, "else endfor"), nil
  p.at = p.at + 2
  p:finish()
  if word == "else" then otherwise = body_to(p, "endfor") end

  local walk
  local function bind(scope, item)
    local inner = inner_scope(scope)
    assign(inner, target, item, words)
    return inner
  end
  function walk(source, scope, run, depth)
    if depth > 100 then fail "a loop calls itself too deeply" end
    local kept = {}
    for _, item in ipairs(words.iterate(source)) do
      run.step()
      if not condition or words.truth(condition(bind(scope, item), run)) then kept[#kept + 1] = item end
    end
    local loop = values.object("loop", {})
    if recursive then
      loop = values.callable("loop", function(arguments)
        return captured(function(_, r) walk(arguments[1], scope, r, depth + 1) end, scope, run)
      end)
      loop.map = {}
    end
    local map = loop.map
    map.length, map.depth, map.depth0 = #kept, depth + 1, depth
    for i, item in ipairs(kept) do
      local inner = bind(scope, item)
      map.index, map.index0, map.revindex, map.revindex0 = i, i - 1, #kept - i + 1, #kept - i
      map.first, map.last, map.previtem, map.nextitem = i == 1, i == #kept, kept[i - 1], kept[i + 1]
      rawset(inner, "loop", loop)
      body(inner, run)
      local leave = run.leave
      run.leave = nil
      if leave == "break" then break end
    end
    if #kept == 0 and otherwise then otherwise(inner_scope(scope), run) end
  end
  return function(scope, run) walk(items(scope, run), scope, run, 0) end
end

-- run.leave ends the bodies that surround it, up to the loop.
for _, word in ipairs { "break", "continue" } do
  statements[word] = function(p)
    if (p.loops or 0) == 0 then p:fail("%s outside of a loop", word) end
    p:finish()
    return function(_, run) run.leave = word end
  end
end

-- ---------------------------------------------------------------- set, with

statements.set = function(p)
  local words = p.words
  local target = targets(p, "=")
  if p:accept "=" then
    local value = p:tuple()
    p:finish()
    return function(scope, run) assign(scope, target, value(scope, run), words) end
  end
  local text
  local value = function() return text end
  while p:accept "|" do value = p:filter(value) end
  p:finish()
  local body = body_to(p, "endset")
  return function(scope, run)
    local outer = text
    text = captured(body, inner_scope(scope), run)
    local v = value(scope, run)
    text = outer
    if not run.leave then assign(scope, target, v, words) end  -- left by a break inside of the block
  end
end

statements.with = function(p)
  local names, words = {}, p.words
  while p:kind() ~= "end" do
    local target = targets(p, "=")
    p:expect "="
    names[#names + 1] = { target, p:expression() }
    if p:kind() ~= "end" then p:expect "," end
  end
  p:finish()
  local body = body_to(p, "endwith")
  return function(scope, run)
    local inner = inner_scope(scope)
    for _, entry in ipairs(names) do assign(inner, entry[1], entry[2](scope, run), words) end
    body(inner, run)
  end
end

-- ---------------------------------------------------------------- macro, call, filter

-- Parameters after "(": {name, default}...
local function parameters(p)
  local list = {}
  while not p:accept ")" do
    local parameter = { p:name() }
    if p:accept "=" then parameter[2] = p:expression() end
    list[#list + 1] = parameter
    if not p:peek ")" then p:expect "," end
  end
  return list
end

-- A body that is called with arguments. Nothing in it can leave a loop around it.
local function callable_body(p, word)
  local loops = p.loops
  p.loops = 0
  local body = body_to(p, word)
  p.loops = loops
  return body
end

-- A macro of the template as a function, over scope.
local function macro(name, wanted, body, scope, run)
  local depth = 0
  return values.callable(name, function(arguments, named)
    local inner, rest, others = inner_scope(scope), {}, {}
    for i, parameter in ipairs(wanted) do
      local v = arguments[i]
      if v == nil then v = named[parameter[1]] end
      if v == nil and parameter[2] then v = parameter[2](inner, run) end
      if v == nil then v = values.undefined(parameter[1]) end
      rawset(inner, parameter[1], v)
      others[parameter[1]] = true
    end
    for i = #wanted + 1, #arguments do rest[#rest + 1] = arguments[i] end
    local more = {}
    for key, v in pairs(named) do
      if key == "caller" then rawset(inner, "caller", v) elseif not others[key] then more[#more + 1] = { key, v } end
    end
    rawset(inner, "varargs", values.tuple(rest))
    rawset(inner, "kwargs", values.dict_of(more))
    depth = depth + 1
    if depth > 100 then fail("macro %s calls itself too deeply", name) end
    local text = captured(body, inner, run)
    depth = depth - 1
    return text
  end)
end

statements.macro = function(p)
  local name = p:name()
  p:expect "("
  local wanted = parameters(p)
  p:finish()
  local body = callable_body(p, "endmacro")
  return function(scope, run) rawset(scope, name, macro(name, wanted, body, scope, run)) end
end

statements.call = function(p)
  local wanted = p:accept "(" and parameters(p) or {}
  local callee, words = p:primary(), p.words
  while p:peek "." or p:peek "[" do callee = p:subscript(callee) end
  p:expect "("
  local arguments = p:arguments()
  p:finish()
  local body = callable_body(p, "endcall")
  return function(scope, run)
    local list, named = arguments(scope, run)
    named.caller = macro("caller", wanted, body, scope, run)
    run.emit(words.text(Parser.call(callee(scope, run), list, named, run)))
  end
end

statements.filter = function(p)
  local text
  local value = function() return text end
  repeat value = p:filter(value) until not p:accept "|"
  p:finish()
  local body = body_to(p, "endfilter")
  return function(scope, run)
    local outer = text
    text = captured(body, inner_scope(scope), run)
    local v = p.words.text(value(scope, run))
    text = outer
    run.emit(v)
  end
end

-- ---------------------------------------------------------------- generation

-- What an assistant says, marked for training. run.said has its place in the text. Inside a macro or a block the place
-- is not known.
statements.generation = function(p)
  p:finish()
  local body = body_to(p, "endgeneration")
  return function(scope, run)
    local from = run.place
    body(inner_scope(scope), run)
    run.said[#run.said + 1] = not run.captured and { from + 1, run.place } or false
  end
end

-- A template as a closure (scope, run).
return function(source, words)
  local p = Parser.new(lexer.tokens(source), words)
  return body_until(p, "")
end
