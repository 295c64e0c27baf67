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

-- a folder takes the place of another in one step
fs.mkdir(root .. "/fresh")
fs.write(root .. "/fresh/only", "1")
fs.replace_dir(root .. "/fresh", root .. "/c")
assert(table.concat(fs.list(root .. "/c"), " ") == "only" and fs.kind(root .. "/fresh") == nil)
fs.mkdir(root .. "/fresh")
fs.replace_dir(root .. "/fresh", root .. "/new")
assert(fs.kind(root .. "/new") == "dir" and #fs.list(root .. "/new") == 0)
assert(table.concat(fs.list(root), " ") == "a c copy new")

-- a function writes a folder; if it fails, nothing changes
fs.write_dir(root .. "/new", function(folder) fs.write(folder .. "/x", "1") end)
assert(table.concat(fs.list(root .. "/new"), " ") == "x")
local _, why = q.try(fs.write_dir, root .. "/new", function(folder)
  fs.write(folder .. "/y", "2")
  q.error("mine", "no")
end)
assert(why.code == "mine" and table.concat(fs.list(root .. "/new"), " ") == "x")

-- files end to end
fs.write(root .. "/1", "a\n")
fs.write(root .. "/2", "b")
fs.write(root .. "/3", "")
local parts = { root .. "/1", root .. "/2", root .. "/3", root .. "/2" }
fs.join(parts, root .. "/joined", { lines = true })
assert(fs.read(root .. "/joined") == "a\nb\nb\n")
fs.join(parts, root .. "/joined")
assert(fs.read(root .. "/joined") == "a\nbb")
refused("nothing", fs.join, { root .. "/1", root .. "/nothing" }, root .. "/joined")
assert(fs.read(root .. "/joined") == "a\nbb")
if fs.kind "/dev/full" then refused("/dev/full", fs.write, "/dev/full", "x") end

assert(fs.same(root .. "/1", root .. "/a/../1") and not fs.same(root .. "/1", root .. "/2") and
  not fs.same(root .. "/x", root .. "/x"))
for _, name in ipairs { "1", "2", "3", "joined" } do fs.remove(root .. "/" .. name) end
assert(table.concat(fs.list(root), " ") == "a c copy new")

-- patterns, and a folder that one process holds (tests/transcripts/outputs_test.sh has the others)
assert(table.concat(fs.glob(root .. "/[ab]"), " ") == root .. "/a" and #fs.glob(root .. "/z*") == 0)
fs.mkdir(root .. "/held")
assert(fs.holder(root .. "/held") == nil and fs.hold(root .. "/held") and fs.hold(root .. "/a/../held") and
  fs.holder(root .. "/held") == nil)
assert(fs.read(root .. "/held/.lock"):match "^process %d+ on %S+\n$")
refused("cannot create", fs.hold, root .. "/nothing")
fs.remove(root .. "/held")

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
