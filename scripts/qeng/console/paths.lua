-- Completion of paths, at every prompt.

local q = require "qeng.core"

-- The files and folders that a path may go on to, in order. Hidden ones only if their dot is there.
return function(path)
  local folder, name = path:match "^(.-)([^/]*)$"
  local found = {}
  for _, each in ipairs(q.try(q.fs.list, folder == "" and "." or folder) or {}) do
    if each:sub(1, #name) == name and (name ~= "" or each:sub(1, 1) ~= ".") then
      found[#found + 1] = path .. each:sub(#name + 1) .. (q.fs.kind(folder .. each) == "dir" and "/" or "")
    end
  end
  return found
end
