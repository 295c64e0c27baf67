-- Tells which files qeng takes of datasets, for the READMEs of hub_configs.py:   qeng hub_configs.lua QUESTIONS ANSWERS
-- A line of QUESTIONS is {readme, files, words: [":config:split", ...]}. A line of ANSWERS is a list of {config, split,
-- paths} or {error}.
local choose, configs, hub, q = require "qeng.hub.files", require "qeng.hub.configs", require "qeng.hub", require "qeng"

local function nothing() end

local function answer(case, files, words)
  local result, why = q.try(function()
    local list = configs.read(case.readme, "README.md") or q.error("value", "no configs")
    local found, config, split = configs.files(list, hub.parse("org/name" .. words), files, nothing)
    local paths = {}
    for i, file in ipairs((choose.readable(found, "it", nothing))) do paths[i] = file.path end
    return { config = config, split = split, paths = paths }
  end)
  return result or { error = why.code .. ": " .. why.message }
end

local out = io.open(arg[2], "w")
for line in io.lines(arg[1]) do
  local case = q.json.decode(line)
  local files, answers = {}, {}
  for i, path in ipairs(case.files) do files[i] = { path = path } end
  for i, words in ipairs(case.words) do answers[i] = answer(case, files, words) end
  out:write(q.json.encode(q.json.array(answers)), "\n")
end
out:close()
