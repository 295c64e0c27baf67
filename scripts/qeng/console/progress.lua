-- How a long job speaks: one line that rewrites itself on a terminal, a plain line now and then otherwise.

local q = require "qeng.core"

local progress = {}

local Progress = {}
Progress.__index = Progress

-- While true, nothing is printed: what runs is a rehearsal (plan/init.lua).
progress.silent = false

-- every: seconds between plain lines.
function progress.new(opt)
  opt = opt or {}
  return setmetatable({ terminal = q.host.isatty(2), every = opt.every or 10, last = -math.huge, width = 0 }, Progress)
end

-- Fields as one line of at most `columns`. fields: { {text, rank}... }, with false or nil in between. Where there is no
-- room, fields with the highest rank over 0 are left out first.
local function joined(fields, columns)
  local highest = 0
  for i = 1, table.maxn(fields) do highest = math.max(highest, fields[i] and fields[i][2] or 0) end
  for most = highest, 0, -1 do
    local kept = {}
    for i = 1, table.maxn(fields) do
      if fields[i] and fields[i][2] <= most then kept[#kept + 1] = fields[i][1] end
    end
    local text = table.concat(kept, "  ")
    if #text <= columns or most == 0 then return text end
  end
end

-- text: a string, or fields as joined() takes them.
function Progress:line(text)
  if progress.silent then return end
  local columns = self.terminal and q.host.columns() - 1 or math.huge
  if type(text) == "table" then text = joined(text, columns) end
  if self.terminal then
    text = text:sub(1, columns)
    io.stderr:write("\r", text, (" "):rep(math.max(0, self.width - #text)))
    io.stderr:flush()
    self.width = #text
  elseif q.time() - self.last >= self.every then
    self.last = q.time()
    io.stderr:write(text, "\n")
  end
end

-- A line that stays.
function Progress:say(text)
  if progress.silent then return end
  if self.width > 0 then io.stderr:write("\r", (" "):rep(self.width), "\r") end
  self.width = 0
  io.stderr:write(text, "\n")
  io.stderr:flush()
end

function Progress:finish()
  if self.width > 0 then io.stderr:write("\n") end
  self.width = 0
end

-- "3 s", "4 min 5 s", "2 h 3 min"
function progress.duration(seconds)
  seconds = math.max(0, math.floor(seconds + 0.5))
  if seconds < 60 then return seconds .. " s" end
  if seconds < 3600 then return ("%d min %d s"):format(math.floor(seconds / 60), seconds % 60) end
  return ("%d h %d min"):format(math.floor(seconds / 3600), math.floor(seconds % 3600 / 60))
end

function progress.bytes(n)
  local units = { "B", "kB", "MB", "GB", "TB" }
  local i = 1
  while n >= 1000 and i < #units do n, i = n / 1000, i + 1 end
  return (i == 1 and "%d %s" or "%.1f %s"):format(n, units[i])
end

return progress
