-- One key of a YAML text as the front matter of a hub's README is written: lists and maps by indentation or in brackets, text
-- that is plain, quoted or a block. All scalars stay text, whatever they look like; null is nil. Anchors, tags and ? keys are
-- refused with the number of their line. What stands beside the key is not read, so no slip in it matters.

local flow = require "qeng.yaml_flow"

local yaml = {}

-- Column and text of the next line that has more than a comment.
local function peek(r)
  while r.at <= #r.lines do
    local spaces, text = r.lines[r.at]:match "^( *)(.*)$"
    local first = text:match "^%s*(%S?)"
    if first ~= "" and first ~= "#" then
      if text:find "^\t" then flow.fail(r, "a tab where YAML wants spaces") end
      return #spaces, flow.trim(text)
    end
    r.at = r.at + 1
  end
end

local function is_item(text) return text:find "^%-%s" ~= nil or text == "-" end

local function misplaced(r, text) flow.fail(r, ("%s is indented otherwise than what stands before it"):format(flow.shown(text))) end

-- Key and the rest of its line; nil where the line begins with no key.
local function key_of(r, text)
  if text:find "^[\"']" then
    local c = flow.cursor({ lines = {}, at = 1, name = r.name }, text)
    local closed, key = pcall(flow.value, c, 0)  -- a quote that is not closed in its line is of no key
    local rest = closed and text:sub(c.pos)
    if rest and (rest:find "^%s*:%s" or rest:find "^%s*:$") then return key, flow.trim(rest:match "^%s*:(.*)$") end
    return nil
  end
  local colon = not text:find "^[%[{]" and flow.colon(flow.bare(text))
  if colon then
    local key = flow.trim(text:sub(1, colon - 1))
    return flow.plain(r, key, r.at) or key, flow.trim(text:sub(colon + 1))
  end
end

-- The lines under | or >, which are deeper than `parent`; those of > are joined by spaces.
local function block(r, style, chomp, parent)
  local parts, indent = {}, nil
  while r.at <= #r.lines do
    local line = r.lines[r.at]
    local spaces, empty = #line:match "^ *", line:find "^%s*$"
    if not empty and spaces <= parent then break end
    indent = indent or not empty and spaces or nil
    parts[#parts + 1] = indent and line:sub(indent + 1) or ""
    r.at = r.at + 1
  end
  while parts[#parts] == "" do parts[#parts] = nil end
  return table.concat(parts, style == "|" and "\n" or " ") .. (chomp == "-" and "" or "\n")
end

-- A value that begins with `text` in the line before r.at and goes on in lines deeper than `parent`.
local function inline(r, text, parent, depth)
  local line = r.at - 1
  local style, chomp = flow.bare(text):match "^([|>])([+-]?)$"
  if style then return block(r, style, chomp, parent) end
  if text:find "^[%[{\"']" then
    local c = flow.cursor(r, text)
    local value = flow.value(c, depth)
    local rest = c.text:sub(c.pos)
    if rest:find "^%s*[^%s#]" then c:fail(("unexpected %s"):format(c:rest())) end
    return value
  end
  local parts = { flow.bare(text) }
  while parts[#parts] == text do  -- no comment ends it
    local more = r.lines[r.at] or ""
    if #more:match "^ *" <= parent or more:find "^%s*$" or more:find "^%s*#" then break end
    text = flow.trim(more)
    parts[#parts + 1], r.at = flow.bare(text), r.at + 1
  end
  return flow.plain(r, table.concat(parts, " "), line)
end

local mapping, sequence

-- What stands in the next line, if that is deeper than `parent`.
local function node(r, parent, depth)
  local column, text = peek(r)
  if not column or column <= parent then return nil end
  if is_item(text) then return sequence(r, column, depth) end
  if key_of(r, text) then return mapping(r, column, depth) end
  r.at = r.at + 1
  return inline(r, text, parent, depth)
end

-- What follows a key in `column`, `rest` in its line.
local function value_of(r, rest, column, depth)
  if rest ~= "" and not rest:find "^#" then return inline(r, rest, column, depth) end
  local at, text = peek(r)
  if at == column and is_item(text) then return sequence(r, column, depth) end
  return node(r, column, depth)
end

function sequence(r, column, depth)
  local list = {}
  depth = flow.deeper(r, depth)
  while true do
    local at, text = peek(r)
    if not at or at < column or at == column and not is_item(text) then return list end
    if at > column then misplaced(r, text) end
    local line = r.at
    r.lines[line] = (" "):rep(column + 1) .. text:sub(2)  -- what follows the dash stands there as if by itself
    list[#list + 1] = node(r, column, depth) or flow.fail(r, "an empty entry of a list", line)
  end
end

function mapping(r, column, depth)
  local map, seen = {}, {}
  depth = flow.deeper(r, depth)
  while true do
    local at, text = peek(r)
    if not at or at < column then return map end
    if at > column then misplaced(r, text) end
    local key, rest = key_of(r, text)
    if not key or is_item(text) then flow.fail(r, ("expected key: value, found %s"):format(flow.shown(text))) end
    if seen[key] then flow.fail(r, ("the key %s is there twice"):format(flow.shown(key))) end
    seen[key], r.at = true, r.at + 1
    map[key] = value_of(r, rest, column, depth)
  end
end

local function lines_of(text)
  local lines = {}
  for line in (text:gsub("\r\n?", "\n") .. "\n"):gmatch "([^\n]*)\n" do lines[#lines + 1] = line end
  return lines
end

-- The value of `key` in the outermost map: a string, a list, a map, or nil where it is not there or is null. name: of the text, for
-- errors.
function yaml.key(text, key, name)
  local r = { lines = lines_of(text), at = 1, name = name }
  local base, found, rest
  local _, first = peek(r)
  if (first or ""):find "^{" then  -- all of it in one pair of braces
    r.at = r.at + 1
    return inline(r, first, -1, 0)[key]
  end
  r.at = 1
  for i, line in ipairs(r.lines) do
    local column = #line:match "^ *"
    if not base and line:find "^%s*[^%s#]" then base = column end
    if column == base then
      local own, after = line:match "^ *[\"']?([%w_]+)[\"']?%s*:(.*)$"
      if own == key and (after == "" or after:find "^%s") then
        if found then flow.fail(r, ("the key %s is there twice"):format(key), i) end
        found, rest = i, flow.trim(after)
      end
    end
  end
  if not found then return nil end
  r.at = found + 1
  local result = value_of(r, rest, base, 0)
  local at, after = peek(r)
  if at and at > base then misplaced(r, after) end
  return result
end

-- The text before the line --- that closes what a first line --- opened; nil where there is none. Lines keep their numbers.
function yaml.front_matter(text)
  local lines, first = lines_of(text), 1
  while lines[first] and lines[first]:find "^%s*$" do first = first + 1 end
  if not (lines[first] or ""):find "^%s*%-%-%-$" then return nil end
  lines[first] = ""
  for i = first + 1, #lines do
    if lines[i]:find "^%-%-%-[ \t]*$" then return table.concat(lines, "\n", 1, i - 1) end
  end
end

return yaml
