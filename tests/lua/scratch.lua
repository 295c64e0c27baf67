-- For tests of files: a folder of their own that goes with the test, and a check that an error comes.
local q = require "qeng"

local scratch = { folder = os.tmpname() }
q.fs.remove(scratch.folder)
q.fs.mkdir(scratch.folder)
scratch.ending = newproxy(true)
getmetatable(scratch.ending).__gc = function() q.fs.remove(scratch.folder) end

function scratch.at(name) return scratch.folder .. "/" .. name end

-- fn(...) has to raise an error whose message holds the text.
function scratch.refused(text, fn, ...)
  local ok, err = pcall(fn, ...)
  assert(not ok and tostring(err.message):find(text, 1, true),
    ("expected an error with '%s', got %s"):format(text, tostring(ok or err.message or err)))
end

-- What fn(...) writes to standard error, and its result.
function scratch.said(fn, ...)
  local stderr, text = io.stderr, {}
  io.stderr = {
    write = function(_, ...) for _, part in ipairs { ... } do text[#text + 1] = part end end, flush = function() end,
  }
  local ok, result = pcall(fn, ...)
  io.stderr = stderr
  if not ok then error(result, 0) end
  return table.concat(text), result
end

return scratch
