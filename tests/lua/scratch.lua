-- What tests of files share: a folder of their own, and errors that have to come.
local q = require "qeng"

local scratch = { folder = os.tmpname() }
q.fs.remove(scratch.folder)
q.fs.mkdir(scratch.folder)

function scratch.at(name) return scratch.folder .. "/" .. name end

-- fn(...) has to raise an error whose message holds the text.
function scratch.refused(text, fn, ...)
  local ok, err = pcall(fn, ...)
  assert(not ok and tostring(err.message):find(text, 1, true), ("expected an error with '%s', got %s"):format(text, tostring(ok or err.message or err)))
end

return scratch
