-- What may be written over. A recipe writes to no path that it reads. It replaces only files of the kind that it
-- writes, unless the user says --overwrite. q.options checks options of kind "output" (a file; holds: what is in it)
-- and "folder" (files: what is written there) before any work is done. q.convert and the functions on packets check
-- their own outputs.

local q = require "qeng.core"

local output = {}

local function begins(magic)
  return function(head) return head:sub(1, #magic) == magic end
end

-- What a file is, by its first bytes or by all of it.
local kinds = {
  imatrix = { "an importance matrix", function(_, path)
    local file = q.try(q.gguf.open, path)
    return file and file:get "general.type" == "imatrix"
  end },
  qubgpu = { "a .qubgpu dataset", begins "QUBGPU" },
  gguf = { "a GGUF file", begins "GGUF" },
  ndp = { "a file of bare frames", begins "\xAA" },
}

-- holds: one of kinds, or { field, text }: a JSON object with that field, which the text describes.
local function is_of_kind(path, holds)
  if type(holds) == "table" then
    local fine, value = pcall(function() return q.json.decode(q.fs.read(path)) end)
    return fine and type(value) == "table" and value[holds[1]] ~= nil
  end
  local file = io.open(path, "rb")
  local head = file and file:read(16) or ""
  if file then file:close() end
  return kinds[holds][2](head, path)
end

local function is_empty(path)
  local file = io.open(path, "rb")
  local size = file and file:seek "end"
  if file then file:close() end
  return size == 0
end

local function refuse_read(path, reads, overwrite)
  for _, other in ipairs(reads or {}) do
    if other ~= "" and (other == path or q.fs.same(other, path)) then
      q.error("value", ("%s is read (%s), and would be written over: give what is written another name%s"):format(path,
        other, overwrite == nil and "" or ", or say --overwrite"))
    end
  end
end

-- Checks a file that is to be written. opt: holds, reads (paths), overwrite (nil: there is no such choice). "-" is
-- standard output.
function output.file(path, opt)
  if opt.overwrite or path == "-" then return end
  refuse_read(path, opt.reads, opt.overwrite)
  if q.fs.kind(path) ~= "file" or is_empty(path) or is_of_kind(path, opt.holds) then return end
  local wanted = type(opt.holds) == "table" and opt.holds[2] or kinds[opt.holds][1]
  q.error("value", ("%s is there, and is not %s: give another name%s"):format(path, wanted,
    opt.overwrite == nil and "" or ", or say --overwrite to replace it"))
end

-- Checks a folder that is to hold `files`. Files of an earlier time are replaced if nothing else is beside them.
-- opt: files (nil: the writer checks for itself), reads, overwrite.
function output.folder(path, opt)
  if opt.overwrite then return end
  refuse_read(path, opt.reads, opt.overwrite)
  local ours, there, other = {}, nil, nil
  for _, name in ipairs(opt.files or {}) do
    ours[name] = true
    refuse_read(path .. "/" .. name, opt.reads, opt.overwrite)
  end
  for _, name in ipairs(opt.files and q.fs.kind(path) == "dir" and q.fs.list(path) or {}) do
    if ours[name] then there = there or name elseif name:sub(1, 1) ~= "." then other = other or name end
  end
  if there and other then
    q.error("value", ("%s/%s would be replaced, and beside it is %s, which is not written here: "
      .. "give another folder, or say --overwrite"):format(path, there, other))
  end
end

return output
