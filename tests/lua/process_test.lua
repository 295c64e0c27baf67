-- q.host.process: output and status of another qeng, the end of one that runs for ever, and what cannot be started.
package.path = (arg[0]:match "^(.*/)" or "./") .. "?.lua;" .. package.path
local q = require "qeng"
local scratch = require "scratch"

local out = scratch.at "out"
local function ended(p)
  while p:status() == nil do end
  return p:status()
end
assert(ended(q.host.process({ "-e", "print(6 * 7) os.exit(3)" }, { output = out, folder = scratch.folder })) == 3)
assert(ended(q.host.process({ "-e", "io.stderr:write 'more'" }, { output = out })) == 0)
assert(q.fs.read(out) == "42\nmore", "both outputs go to the end of the file")
local endless = q.host.process { "-e", "while true do end" }
assert(endless:status() == nil and endless:pid() > 1)
endless:stop(true)
assert(ended(endless) == 128 + 9)
scratch.refused("No such file", q.host.process, { "x" }, { output = scratch.at "none/x" })
scratch.refused("zero byte", q.host.process, { "a\0b" })
print "ok"
