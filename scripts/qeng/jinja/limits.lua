-- How much a template may take: it is untrusted. Every error of a template has the code "template".

local limits = {}

limits.most_bytes = 16e6  -- of a string, and of the output
limits.most_items = 1e5  -- of a list
limits.most_looks = 5e7  -- at items, in operations that go through many in one step: some seconds

function limits.fail(message, ...)
  error({ code = "template", message = "chat template: " .. message:format(...) }, 0)
end

local left = math.huge  -- looks at items

-- Runs fn; what it looks at counts.
function limits.counted(fn, ...)
  left = limits.most_looks
  local ok, result, more = pcall(fn, ...)
  left = math.huge
  return ok, result, more
end

-- Counts items that an operation looks at, or makes.
function limits.look(items)
  left = left - items
  if left < 0 then limits.fail("more than %d items are looked at", limits.most_looks) end
end

-- Errors unless a template may make a string of so many bytes (NaN is too many), or a list of so many items.
function limits.room_for_string(bytes)
  if not (bytes <= limits.most_bytes) then limits.fail "a string grew too long" end
end
function limits.room_for_list(items)
  if not (items <= limits.most_items) then limits.fail "a list grew too long" end
end

-- The text of the pieces that write(put) puts, in order. A small value that holds another many times makes a long text.
function limits.collected(write)
  local parts, size = {}, 0
  write(function(text)
    size = size + #text + 16  -- a piece is held too
    limits.look(3)
    limits.room_for_string(size)
    parts[#parts + 1] = text
  end)
  return table.concat(parts)
end

return limits
