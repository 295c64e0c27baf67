-- The messages of OpenAI's API as those that chat templates take.

local fields = require "qeng.server.fields"
local problem = require "qeng.server.problem"
local q = require "qeng.core"

local messages = {}

local roles = { system = true, developer = true, user = true, assistant = true, tool = true }

local function bad(name, text) problem.raise(400, ("Invalid value for '%s': %s."):format(name, text), name) end

-- The text of a content: a text, or a list of parts that are texts.
function messages.text(content, name)
  if type(content) == "string" then return content end
  if content == nil or content == q.json.null then return nil end
  if fields.type_of(content) ~= "array" then bad(name, "expected a text or a list of parts") end
  local list = {}
  for i, part in ipairs(content) do
    local kind = type(part) == "table" and part.type
    if kind ~= "text" and kind ~= "input_text" and kind ~= "output_text" or type(part.text) ~= "string" then
      bad(("%s[%d]"):format(name, i - 1), ("a part of type %s; this model takes texts"):format(tostring(kind)))
    end
    list[i] = part.text
  end
  return table.concat(list)
end

-- The arguments of a call, of the text that they are; nil where that is no JSON object, or one of too many parts.
function messages.arguments(text)
  local value = q.try(q.json.decode, text, { ordered = true, exact = true, most = 500000 })
  return fields.type_of(value) == "object" and value or nil
end

-- room: how many arrays and objects the arguments may still have, which are decoded and kept. Returns what is left.
local function check_calls(calls, name, room)
  if fields.type_of(calls) ~= "array" then bad(name, "expected a list") end
  for i, call in ipairs(calls) do
    local made = type(call) == "table" and call["function"]
    if type(made) ~= "table" or type(made.name) ~= "string" or type(made.arguments) ~= "string" then
      bad(("%s[%d]"):format(name, i - 1), "expected {id, type = function, function = {name, arguments}}")
    end
    if made.arguments ~= "" and not messages.arguments(made.arguments) then
      bad(("%s[%d].function.arguments"):format(name, i - 1), "expected the text of a JSON object")
    end
    room = room - select(2, made.arguments:gsub("[%[{]", "%0"))
    if room < 0 then bad(name, "the arguments of all calls have too many parts") end
  end
  return room
end

-- list: of the decoded body, with keys in order. Each message is checked, its content made a text, "developer" a system
-- message.
function messages.read(list)
  if fields.type_of(list) ~= "array" or #list == 0 then bad("messages", "expected a list of at least one message") end
  local read, room = {}, 500000
  for i, message in ipairs(list) do
    local name = ("messages[%d]"):format(i - 1)
    if fields.type_of(message) ~= "object" then bad(name, "expected an object") end
    if not roles[message.role] then bad(name .. ".role", "expected system, developer, user, assistant or tool") end
    local made = setmetatable({}, getmetatable(message))
    for key, value in pairs(message) do
      if value ~= q.json.null then made[key] = value end
    end
    made.content = messages.text(message.content, name .. ".content")
    if made.role == "developer" then made.role = "system" end
    if made.tool_calls then room = check_calls(made.tool_calls, name .. ".tool_calls", room) end
    if not made.content then
      if made.role ~= "assistant" or not made.tool_calls then
        problem.raise(400, ("Missing required parameter: '%s.content'."):format(name), name .. ".content")
      end
      made.content = ""
    end
    read[i] = made
  end
  return read
end

return messages
