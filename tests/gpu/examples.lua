-- Examples of the demo's task for scripts/gpu-check:  qeng examples.lua OUT.jsonl COUNT
local q = require "qeng"
local lines = {}
for i, example in ipairs(require("qeng.train.tinydata").task(1, tonumber(arg[2]))) do
  lines[i] = q.json.encode(example)
end
q.fs.write(arg[1], table.concat(lines, "\n") .. "\n")
