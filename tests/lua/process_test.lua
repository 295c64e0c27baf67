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

-- A process of ours ends when we are killed, in whatever way.
local mark = scratch.at "mark"
local code = ([[
  local q = require "qeng"
  local child = q.host.process({ "-e", "while true do end" })
  q.fs.write(%q, tostring(child:pid()))
  while true do end
]]):format(mark)
local middle = q.host.process({ "-e", code }, { output = out })
while q.fs.kind(mark) ~= "file" or q.fs.read(mark) == "" do end
local pid = q.fs.read(mark)
assert(q.fs.kind("/proc/" .. pid) == "dir")
middle:stop(true)
ended(middle)
local deadline = q.time() + 30
local function lives()
  local file = io.open(("/proc/%s/stat"):format(pid))
  local text = file and file:read "*a" or ""
  if file then file:close() end
  return text ~= "" and not text:find "%) Z "
end
while lives() do assert(q.time() < deadline, "the process of a killed one goes on") end
print "ok"
