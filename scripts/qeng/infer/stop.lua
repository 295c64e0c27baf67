-- Tells how much of an output may be shown: whole UTF-8 characters that belong to no stop string.
--
--   local filter = stop.new { "\n\n", "</answer>" }   -- no argument: only characters are kept whole
--   local text, stopped = filter:push(bytes)          -- bytes: those of a token, cut anywhere
--   local rest = filter:flush()                       -- at the end of the output
--
-- push returns what is safe to show ("" for nothing yet). Once a stop string is complete, the text ends before it.
-- push then returns the string too, and later calls return "" and the same string. Of several strings the one that
-- ends first counts, and of those the longest. So the result does not depend on where the bytes were cut. The filter
-- holds back the longest end that may begin a stop string, and a character that is not complete. flush returns them
-- ("" after a stop). Bytes that are not UTF-8 pass as they are.

local q = require "qeng.core"

local stop = {}
local Filter = {}
Filter.__index = Filter

-- The bytes at the end of `text` that begin a UTF-8 character and do not finish it.
function stop.unfinished(text)
  for back = 1, math.min(3, #text) do
    local byte = text:byte(-back)
    if byte >= 0xC0 then
      local need = byte >= 0xF0 and 4 or byte >= 0xE0 and 3 or 2
      return back < need and byte < 0xF8 and back or 0
    elseif byte < 0x80 then
      return 0
    end
  end
  return 0
end

function stop.new(strings)
  if strings ~= nil and type(strings) ~= "table" then
    q.error("value", "stop: a " .. type(strings) .. ", expected a list of strings")
  end
  for i, text in ipairs(strings or {}) do
    if type(text) ~= "string" or text == "" then
      local shown = type(text) == "string" and "empty" or "a " .. type(text)
      q.error("value", ("stop: string %d is %s, expected text of at least one byte"):format(i, shown))
    end
  end
  return setmetatable({ strings = strings or {}, held = "", stopped = nil }, Filter)
end

-- Where the stop string that ends first begins in `text`, and which one it is.
local function first(text, strings)
  local from, to, found
  for _, text_of_stop in ipairs(strings) do
    local a, b = text:find(text_of_stop, 1, true)
    if a and (not to or b < to or (b == to and a < from)) then from, to, found = a, b, text_of_stop end
  end
  return from, found
end

-- The length of the longest end of `text`, from `at` (1) on, that begins one of the strings.
function stop.may_begin(text, strings, at)
  local longest = 0
  for _, s in ipairs(strings) do
    for length = math.min(#s - 1, #text - (at or 1) + 1), longest + 1, -1 do
      if text:sub(-length) == s:sub(1, length) then
        longest = length
        break
      end
    end
  end
  return longest
end

function Filter:push(bytes)
  if self.stopped then return "", self.stopped end
  local text = self.held .. bytes
  local from, found = first(text, self.strings)
  if found then
    self.held, self.stopped = "", found
    return text:sub(1, from - 1), found
  end
  local hold = math.max(stop.may_begin(text, self.strings), stop.unfinished(text))
  -- Held bytes must not leave a character cut before them.
  hold = hold + stop.unfinished(text:sub(1, #text - hold))
  self.held = text:sub(#text - hold + 1)
  return text:sub(1, #text - hold), nil
end

function Filter:flush()
  local rest = self.held
  self.held = ""
  return rest
end

return stop
