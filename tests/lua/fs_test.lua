-- q.fs on a folder of its own.
local q = require "qeng"
local fs = q.fs

local function refused(pattern, fn, ...)
  local _, err = q.try(fn, ...)
  assert(err and err.code == "io" and err.message:match(pattern), tostring(err))
end

local root = os.tmpname()
fs.remove(root)
assert(fs.kind(root) == nil)
fs.mkdir(root .. "/a/b")
assert(fs.kind(root .. "/a/b") == "dir")

local file = root .. "/a/text"
fs.write(file, "one\0two")
assert(fs.read(file) == "one\0two" and fs.kind(file) == "file")
fs.append(file, "\n")
fs.append(root .. "/a/log", "x")
assert(fs.read(file) == "one\0two\n" and fs.read(root .. "/a/log") == "x")
fs.write(file, "new")
assert(fs.read(file) == "new")
assert(table.concat(fs.list(root .. "/a"), " ") == "b log text")

fs.copy(file, root .. "/copy")
assert(fs.read(root .. "/copy") == "new")
fs.copy(root .. "/a", root .. "/c")
assert(table.concat(fs.list(root .. "/c"), " ") == "b log text")

-- a folder takes the place of another as one
fs.mkdir(root .. "/fresh")
fs.write(root .. "/fresh/only", "1")
fs.replace_dir(root .. "/fresh", root .. "/c")
assert(table.concat(fs.list(root .. "/c"), " ") == "only" and fs.kind(root .. "/fresh") == nil)
fs.mkdir(root .. "/fresh")
fs.replace_dir(root .. "/fresh", root .. "/new")
assert(fs.kind(root .. "/new") == "dir" and #fs.list(root .. "/new") == 0)
assert(table.concat(fs.list(root), " ") == "a c copy new")

assert(fs.find(file) == file and fs.find(root .. "/nothing") == nil)

refused("nothing: no such file", fs.read, root .. "/nothing")
refused("is a folder", fs.read, root)
refused("no such folder", fs.list, root .. "/nothing")
refused(root, fs.write, root .. "/nothing/x", "")
refused(root, fs.append, root .. "/nothing/x", "")
refused(root, fs.mkdir, file .. "/x")
refused("no such file", fs.copy, root .. "/nothing", root .. "/x")
refused("no such folder", fs.replace_dir, root .. "/nothing", root .. "/c")

fs.remove(root)
fs.remove(root)
assert(fs.kind(root) == nil)
print "fs: ok"
