-- Calls and tools that a chat template leaves out are refused: the rest would be trained as if it were all. One more
-- rendering, with a mark in each function's name, tells which are written. What shows no mark is left out if the text
-- without it is the same.

local q = require "qeng.core"

local mark = "\254"  -- no valid UTF-8 holds it

local function with(value, key, to)
  local copy = setmetatable({}, getmetatable(value))
  for name, item in pairs(value) do copy[name] = item end
  copy[key] = to
  return copy
end

local function without(list, i)
  local rest = setmetatable({ unpack(list) }, getmetatable(list))
  table.remove(rest, i)
  return rest[1] ~= nil and rest or nil
end

-- A list of calls or tools with marks in their names. Appends to `asked` each one's mark and number.
local function marked(list, place, asked)
  local copy = setmetatable({}, getmetatable(list))
  for i, item in ipairs(list) do
    local fn, own = item["function"], ("%s%d%s"):format(mark, #asked, mark)
    local inner = type(fn) == "table" and fn or item
    local named = type(inner.name) == "string" and with(inner, "name", inner.name .. own)
    copy[i] = named and (inner == fn and with(item, "function", named) or named) or item
    asked[#asked + 1] = { mark = own, place = ("%s[%d]"):format(place, i), i = i }
  end
  return copy
end

-- A message without its call i.
local function without_call(message, i)
  local rest = with(message, "tool_calls", without(message.tool_calls, i))
  rest.content = rest.content or ""
  return rest
end

-- model: a chat_model. whole: what it makes of the conversation.
return function(model, messages, record, whole)
  local asked, list = {}, {}
  for i, message in ipairs(messages) do
    local first = #asked
    list[i] = message
    if message.tool_calls then
      list[i] = with(message, "tool_calls", marked(message.tool_calls, ("messages[%d].tool_calls"):format(i), asked))
    end
    for k = first + 1, #asked do asked[k].message = i end
  end
  local tools = record.tools and marked(record.tools, "tools", asked)
  if #asked == 0 then return end
  local function rendered(said, given)
    local values, variables = model:values(said, { template_options = record.template_options, tools = given })
    return (q.try(model.render, model, values, #said, variables, false))
  end
  local text = rendered(list, tools) or ""
  for _, each in ipairs(asked) do
    if not text:find(each.mark, 1, true) then
      local said, given = messages, record.tools
      if each.message then
        said = with(messages, each.message, without_call(messages[each.message], each.i))
      else
        given = without(given, each.i)
      end
      if rendered(said, given) == whole then
        q.error("template", ("%s: the chat template leaves it out: %s, or take a model whose template has %s"):format(
          each.place, each.message and "write the call as content" or "write tools into the system message, leave "
          .. "them out", each.message and "calls" or "tools"))
      end
    end
  end
end
