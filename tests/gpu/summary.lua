-- Gathers what the parts of scripts/gpu-check left in OUT into OUT/gpu-check.json, and prints the table:
--   qeng summary.lua OUT DEVICE QUICK
local q = require "qeng"
local out = arg[1]

local function text(name) return q.fs.kind(out .. "/" .. name) == "file" and q.fs.read(out .. "/" .. name) or nil end
local function lines(name)
  local list = q.json.array {}
  for line in (text(name) or ""):gmatch "[^\n]+" do
    local ok, row = pcall(q.json.decode, line)
    if ok then list[#list + 1] = row end  -- the last line of a part that was stopped may be torn
  end
  return list
end
local function whole(name)
  local ok, value = pcall(q.json.decode, text(name) or "null")
  return ok and value or q.json.null
end

local all = {
  date = os.date "!%Y-%m-%d %H:%M:%S UTC", commit = text "commit" or "unknown", device = arg[2], quick = arg[3] == "1",
  method = "scripts/gpu-check; bench/README.md says how each figure was measured",
  system = whole "system.json", verify = lines "verify.jsonl", ops = lines "ops.jsonl",
  attention_mma = lines "attention_mma.jsonl", peers = lines "peers.jsonl", train = whole "train/train.json",
  logs = { system = text "system.log" }, parts = q.json.array {},
}
local failed, skipped = 0, 0
print(("%-12s %-8s %5s  %s"):format("part", "", "s", ""))
for line in (text "parts.tsv" or ""):gmatch "[^\n]+" do
  local name, verdict, seconds, words = line:match "^([^\t]*)\t([^\t]*)\t([^\t]*)\t(.*)$"
  words = words:gsub("%s+$", "")
  print(("%-12s %-8s %5s  %s"):format(name, verdict, seconds, words))
  all.parts[#all.parts + 1] = { name = name, verdict = verdict, seconds = tonumber(seconds), words = words }
  if verdict == "failed" then
    failed = failed + 1
    all.logs[name] = (text(name .. ".log") or ""):sub(-20000)
  end
  if verdict == "skipped" then skipped = skipped + 1 end
end
print(("%d passed, %d failed, %d skipped; %s/gpu-check.json"):format(#all.parts - failed - skipped, failed,
  skipped, out))
q.fs.write(out .. "/gpu-check.json", q.json.encode(all) .. "\n")
