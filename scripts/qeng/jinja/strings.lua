-- Python's operations on strings: by code point, with Unicode's white space and cases. Positions count from 0.

local limits = require "qeng.jinja.limits"
local q = require "qeng.core"

local strings = {}

local fail = limits.fail
local character = "[%z\1-\127\192-\255][\128-\191]*"  -- a byte that is not UTF-8 stands for itself: marks in texts

local function is_ascii(s) return not s:find "[\128-\255]" end

-- The characters of a text, 1 .. n.
function strings.characters(s)
  local out = {}
  for c in s:gmatch(character) do out[#out + 1] = c end
  limits.look(#out)
  return out
end

function strings.length(s) return is_ascii(s) and #s or select(2, s:gsub("[^\128-\191]", "")) end

-- Characters from first to last (1 .. n).
function strings.sub(s, first, last)
  if is_ascii(s) then return s:sub(first, last) end
  return table.concat(strings.characters(s), "", math.max(first, 1), math.min(last, strings.length(s)))
end

-- ---------------------------------------------------------------- white space

local spaces = {}  -- as str.isspace has it
for byte = 9, 13 do spaces[string.char(byte)] = true end
for byte = 28, 32 do spaces[string.char(byte)] = true end
for s in ("\194\133 \194\160 \225\154\128 \226\128\168 \226\128\169 \226\128\175 \226\129\159 \227\128\128")
  :gmatch "%S+" do spaces[s] = true end
for last = 128, 138 do spaces["\226\128" .. string.char(last)] = true end

local function set_of(chars)
  if not chars then return spaces end
  local set = {}
  for c in chars:gmatch(character) do set[c] = true end
  return set
end

-- s without characters of `chars` (by default white space) at its left and right ends.
function strings.strip(s, chars, left, right)
  local set, first, last = set_of(chars), 1, #s
  while left and first <= last do
    local c = s:match("^" .. character, first)
    if not c or not set[c] then break end
    first = first + #c
  end
  while right and last >= first do
    local from = last
    while from > first and s:find("^[\128-\191]", from) do from = from - 1 end
    if not set[s:sub(from, last)] then break end
    last = from - 1
  end
  return s:sub(first, last)
end

-- The words between white space. After `limit` splits the rest is one.
local function words(s, limit, from_right)
  local places, at = {}, nil  -- first and last byte of each word
  for place, c in s:gmatch("()(" .. character .. ")") do
    if spaces[c] then at = nil
    elseif at then places[at][2] = place + #c - 1
    else at = #places + 1; places[at] = { place, place + #c - 1 } end
  end
  local out, n = {}, #places
  local whole = limit and limit >= 0 and n > limit and n - limit or 0  -- words that stay one
  if whole > 1 and from_right then
    out[1] = s:sub(1, places[whole][2])
    for i = whole + 1, n do out[#out + 1] = s:sub(places[i][1], places[i][2]) end
    return out
  end
  for i = 1, whole > 1 and limit or n do out[i] = s:sub(places[i][1], places[i][2]) end
  if whole > 1 then out[#out + 1] = s:sub(places[limit + 1][1]) end
  return out
end

-- ---------------------------------------------------------------- parts

-- The places {first, last} of a needle, one after the other.
local function places_of(s, needle)
  local places, at = {}, 1
  while true do
    local a, b = s:find(needle, at, true)
    if not a then return places end
    places[#places + 1] = { a, b }
    at = b + 1
  end
end

function strings.split(s, separator, limit)
  if not separator then return words(s, limit) end
  if separator == "" then fail "split: empty separator" end
  local out, from = {}, 1
  for i, place in ipairs(places_of(s, separator)) do
    if limit and limit >= 0 and i > limit then break end
    out[i], from = s:sub(from, place[1] - 1), place[2] + 1
  end
  out[#out + 1] = s:sub(from)
  return out
end

function strings.rsplit(s, separator, limit)
  if not separator then return words(s, limit, true) end
  if not limit or limit < 0 then return strings.split(s, separator) end
  local back = strings.split(s:reverse(), separator:reverse(), limit)  -- reversed bytes are found as the characters are
  local out = {}
  for i = #back, 1, -1 do out[#out + 1] = back[i]:reverse() end
  return out
end

function strings.partition(s, separator, from_right)
  if separator == "" then fail "partition: empty separator" end
  local places = places_of(s, separator)
  local place = places[from_right and #places or 1]
  if from_right and place then  -- the last place, also where needles overlap
    local at = s:reverse():find(separator:reverse(), 1, true)
    place = { #s - at - #separator + 2, #s - at + 1 }
  end
  if not place then return from_right and { "", "", s } or { s, "", "" } end
  return { s:sub(1, place[1] - 1), separator, s:sub(place[2] + 1) }
end

-- The lines of s. ends: with what ends them.
function strings.splitlines(s, ends)
  local out, from, at = {}, 1, 1
  local breaks = {
    ["\n"] = 1, ["\11"] = 1, ["\12"] = 1, ["\28"] = 1, ["\29"] = 1, ["\30"] = 1,
    ["\194\133"] = 1, ["\226\128\168"] = 1, ["\226\128\169"] = 1,
  }
  while at <= #s do
    local c = s:match("^" .. character, at) or s:sub(at, at)
    local stop = s:sub(at, at + 1) == "\r\n" and 2 or (c == "\r" or breaks[c]) and #c
    if stop then
      out[#out + 1] = s:sub(from, ends and at + stop - 1 or at - 1)
      from = at + stop
    end
    at = at + (stop or #c)
  end
  if from <= #s then out[#out + 1] = s:sub(from) end
  return out
end

local function plain(s) return (s:gsub("%p", "%%%0")) end

function strings.replace(s, from, to, count)
  if count and count < 0 then count = nil end
  if from == "" then
    local parts, done = {}, 0
    for c in s:gmatch(character) do
      parts[#parts + 1] = (not count or done < count) and to .. c or c
      done = done + 1
    end
    if not count or done < count then parts[#parts + 1] = to end
    limits.room_for_string(#s + #to * math.min(count or math.huge, done + 1))
    return table.concat(parts)
  end
  if #s * #to > limits.most_bytes then  -- it may grow too long
    local _, found = s:gsub(plain(from), "", count)
    limits.room_for_string(#s + found * (#to - #from))
  end
  return (s:gsub(plain(from), (to:gsub("%%", "%%%%")), count))
end

-- Where a needle begins, counted from 0, or nil. last: where the last one begins.
function strings.find(s, needle, last)
  local at
  if last then
    at = s:reverse():find(needle:reverse(), 1, true)
    at = at and #s - at - #needle + 2
  else
    at = s:find(needle, 1, true)
  end
  return at and strings.length(s:sub(1, at - 1))
end

function strings.count(s, needle)
  if needle == "" then return strings.length(s) + 1 end
  return #places_of(s, needle)
end

-- s repeated.
function strings.times(s, count)
  count = math.max(count, 0)
  limits.room_for_string(#s * count)
  return s:rep(count)
end

-- s padded to so many characters; side: where s stands.
function strings.padded(s, width, fill, side)
  local more = math.max(width - strings.length(s), 0)
  if side == "left" then return s .. strings.times(fill, more) end
  if side == "right" then return strings.times(fill, more) .. s end
  local before = math.floor(more / 2) + (more % 2 == 1 and width % 2 == 1 and 1 or 0)
  return strings.times(fill, before) .. s .. strings.times(fill, more - before)
end

strings.lower, strings.upper = q.unicode.lower, q.unicode.upper
strings.title, strings.capitalize = q.unicode.title, q.unicode.capitalize
strings.quoted = q.unicode.quoted  -- as repr writes it

return strings
