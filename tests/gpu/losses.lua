-- The largest relative difference of the losses of two runs; exit status 1 over the tolerance:
--   qeng losses.lua REFERENCE.jsonl OTHER.jsonl TOLERANCE
local q = require "qeng"

local function losses(path)
  local list = {}
  for line in q.fs.read(path):gmatch "[^\n]+" do list[#list + 1] = q.json.decode(line).loss end
  return list
end

local wanted, got, tolerance = losses(arg[1]), losses(arg[2]), tonumber(arg[3])
if #wanted == 0 or #wanted ~= #got then q.error("value", ("%d losses and %d"):format(#wanted, #got)) end
local worst, at = 0, 1
for i, loss in ipairs(wanted) do
  local difference = type(got[i]) == "number" and math.abs(got[i] - loss) / loss or math.huge
  if difference > worst then worst, at = difference, i end
end
print(("%.1e at step %d of %d (%.4f and %.4f; allowed %g)"):format(worst, at, #wanted, wanted[at], got[at], tolerance))
if worst > tolerance then os.exit(1, true) end
