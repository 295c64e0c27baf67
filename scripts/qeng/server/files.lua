-- Files that routes tell of.

local files = {}

-- Bytes of a file, or nil where there is none that can be read.
function files.size(path)
  local file = io.open(path, "rb")
  local size = file and file:seek "end"
  if file then file:close() end
  return size
end

return files
