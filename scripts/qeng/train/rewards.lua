-- Rewards of an answer, for recipes/grpo.lua: functions of the record and the answer's text. A reward of one's own is
-- a Lua file that returns such a function.

local q = require "qeng.core"

local rewards = {}

local function trimmed(text) return (text:gsub("^%s+", ""):gsub("%s+$", "")) end

-- 1 where the answer is record.answer, but for space around it.
function rewards.exact(record, text)
  if type(record.answer) ~= "string" then q.error("format", "reward exact: a record has no answer, a text") end
  return trimmed(text) == trimmed(record.answer) and 1 or 0
end

-- 1 where the answer is JSON that is valid under record.schema.
function rewards.json(record, text, tokenizer)
  if type(record.schema) ~= "table" then q.error("format", "reward json: a record has no schema, an object") end
  local matcher = q.json_schema(record.schema):matcher(tokenizer)
  for _, id in ipairs(tokenizer:encode(trimmed(text))) do
    if not matcher:allows(id) then return 0 end
    matcher:accept(id)
  end
  return matcher:complete() and 1 or 0
end

-- 1 where the Lua code of the answer, followed by record.test, returns true: in a process of its own, without files or
-- network, for a second at most.
function rewards.code(record, text)
  if type(record.test) ~= "string" then q.error("format", "reward code: a record has no test, Lua code") end
  local code = text:match "```%w*\n(.-)```" or text
  local done, result = q.host.sandbox(code .. "\n" .. record.test, { seconds = 1 })
  return done and result == "true" and 1 or 0
end

-- The function of a name, or of a file.
function rewards.of(name)
  if rewards[name] and name ~= "of" then return rewards[name] end
  local made = assert(loadfile(name))()
  if type(made) ~= "function" then q.error("value", name .. " returns no function of record and text") end
  return made
end

return rewards
