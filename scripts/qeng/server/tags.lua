-- Tags and white space in a text that comes in pieces.

local tags = {}

-- Whether the tag stands at `at`.
function tags.at(text, at, tag) return text:sub(at, at + #tag - 1) == tag end

-- Whether all that follows `at` may begin the tag, and then bytes of `pattern`.
function tags.may_begin(text, at, tag, pattern)
  local rest = text:sub(at)
  if #rest < #tag then return tag:sub(1, #rest) == rest end
  return pattern ~= "" and tags.at(rest, 1, tag) and rest:find("^" .. pattern .. "$", #tag + 1) ~= nil
end

-- Where the white space begins at the end of a text. A pattern would take the square of its length.
function tags.blank_from(text)
  local last = #text
  while last > 0 and text:find("^%s", last) do last = last - 1 end
  return last + 1
end

return tags
