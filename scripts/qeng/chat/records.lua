-- Records of the shapes that datasets have, as messages of one kind: {role =, content =, tool_calls =,
-- reasoning_content =, ...}, with train = false where the assistant's message is not trained. Fields of other trainers
-- are used as those trainers mean them, or refused by name. No record is trained as something else than it says.

local q = require "qeng.core"

local records = {}

-- Who speaks, in lower case. "calls" is a function call as JSON, which the assistant makes. "developer" becomes a
-- system message where the template knows no such role. engine/convert/roles.h has the same table; a test compares the
-- two.
records.roles = {
  system = "system", developer = "developer",
  user = "user", human = "user", prompter = "user", input = "user",
  assistant = "assistant", gpt = "assistant", chatgpt = "assistant", bing = "assistant", bard = "assistant",
  model = "assistant", bot = "assistant", ai = "assistant", output = "assistant",
  tool = "tool", ["function"] = "tool", observation = "tool", ipython = "tool", function_response = "tool",
  tool_response = "tool",
  function_call = "calls", tool_call = "calls",
}

-- ---------------------------------------------------------------- values

local null = q.json.null
local function fail(text, ...) q.error("format", text:format(...)) end
local function there(value) return value ~= nil and value ~= null end
local function either(value, other) if there(value) then return value end return other end
local function given(value)
  return there(value) and value ~= "" and not (type(value) == "table" and next(value) == nil)
end
local function is_object(value) return type(value) == "table" and value[1] == nil and next(value) ~= nil end
records.given = given

-- A value as a number. A number that is kept as it was written is one too (q.json.decode, exact).
local function number_of(value)
  local meta = type(value) == "table" and getmetatable(value)
  return meta and meta.json_number and value.value or value
end
local function shown(value) return (tostring(number_of(value)):sub(1, 40)) end

local function text_field(value, what)
  if not there(value) then return "" end
  if type(value) ~= "string" then fail("%s is not a string", what) end
  return value
end

-- A list or an object. Many sets write it as JSON inside a string.
local function decoded(value, what)
  if type(value) == "string" then
    local ok, result = pcall(q.json.decode, value, { ordered = true, exact = true })
    if not ok then fail("%s is a string that is not JSON (%s)", what, result.message) end
    value = result
  end
  if type(value) ~= "table" then fail("%s is %s, expected a list or an object", what, shown(value)) end
  return value
end

local function list_of(value, what)
  value = decoded(value, what)
  if is_object(value) then fail("%s is an object, expected a list", what) end
  return value
end

-- ---------------------------------------------------------------- tools and calls

local function decode_field(object, key, what)
  if type(object[key]) == "string" then object[key] = decoded(object[key], what .. "." .. key) end
end

-- A function, or a call of one, in OpenAI's newer form. The order of keys is that of OpenAI's JSON.
local function wrapped(fn)
  return setmetatable({ type = "function", ["function"] = fn }, { __keys = { "type", "function" } })
end

-- The record's tools. OpenAI's old form calls them functions.
local function read_tools(record)
  if given(record.tools) and given(record.functions) then fail "both tools and functions: give one of them" end
  local key = given(record.functions) and "functions" or "tools"
  if not given(record[key]) or record[key] == "null" then return nil end
  local tools = list_of(record[key], key)
  for i, tool in ipairs(tools) do
    local what = ("%s[%d]"):format(key, i)
    tool = decoded(tool, what)
    if not is_object(tool) then fail("%s is not an object", what) end
    decode_field(tool, "function", what)
    local fn = tool["function"]
    decode_field(type(fn) == "table" and fn or tool, "parameters", what)
    tools[i] = key == "functions" and wrapped(tool) or tool
  end
  return given(tools) and tools or nil
end

-- A list of calls whose arguments are objects. OpenAI writes these as JSON inside a string, empty for no arguments.
local function check_calls(calls, place)
  for i, call in ipairs(calls) do
    local what = ("%s[%d]"):format(place, i)
    local fn = type(call) == "table" and (call["function"] or call)
    if type(fn) ~= "table" or type(fn.name) ~= "string" then fail("%s names no function", what) end
    if fn.arguments == nil then fail("%s has no arguments", what) end
    fn.arguments = decoded(given(fn.arguments) and fn.arguments or "{}", what .. ".arguments")
  end
  return calls
end

local function is_call(value) return is_object(value) and (value.name ~= nil or value["function"] ~= nil) end

-- The calls of a turn: one call, or a list of them.
local function calls_of(value, place)
  value = decoded(value, place)
  local calls = is_call(value) and { value } or list_of(value, place)
  if not given(calls) then fail("%s holds no call", place) end
  for i, call in ipairs(calls) do
    if is_object(call) and not call["function"] then calls[i] = wrapped(call) end
  end
  return check_calls(calls, place)
end

-- ---------------------------------------------------------------- messages

-- Names of "this message is trained": axolotl's (two), verl's and ms-swift's.
local flags = { "train", "training", "trainable", "loss" }
-- Fields that would change what is trained, and are not supported.
local unsupported = {
  train_detail = "parts of a message cannot be chosen", training_detail = "parts of a message cannot be chosen",
  refusal = "write it as content", audio = "only text is trained",
}

-- Whether the assistant's message is trained. OpenAI's weight must be 0 or 1: nothing here scales a loss.
local function trained(turn, by_assistant, place)
  local train = true
  for _, flag in ipairs(flags) do
    local value = turn[flag]
    if there(value) then
      if type(value) ~= "boolean" then fail("%s.%s is %s, expected true or false", place, flag, shown(value)) end
      if value and not by_assistant then
        fail("%s.%s is true, but only what the assistant says is trained", place, flag)
      end
      train = train and value
    end
  end
  if there(turn.weight) then
    local weight = number_of(turn.weight)
    if weight ~= 0 and weight ~= 1 then fail("%s.weight is %s, expected 0 or 1", place, shown(weight)) end
    train = train and weight == 1
  end
  return train
end

-- The content: a string, or a list of {type = "text", text =}. nil for a message without content.
local function content_of(turn, place)
  local content = either(turn.content, turn.value)
  if not there(content) then return nil end
  if type(content) ~= "table" or is_object(content) then return text_field(content, place .. ".content") end
  local parts = {}
  for i, part in ipairs(content) do
    if type(part) ~= "table" or part.type ~= "text" then fail("%s: only text content is supported", place) end
    parts[i] = text_field(part.text, place .. ".content: text")
  end
  return table.concat(parts)
end

local function known_roles()
  local names = {}
  for name in pairs(records.roles) do names[#names + 1] = name end
  table.sort(names)
  return table.concat(names, ", ")
end

-- The message of one turn, and whether the turn is one of calls. Fields that only a template knows stay.
local function message_of(turn, place)
  local speaker = type(turn) == "table" and either(turn.role, turn.from)
  if type(speaker) ~= "string" then fail("%s has no role", place) end
  local role = records.roles[speaker:lower()]
  if not role then fail("%s: unknown role %s; known are %s", place, shown(speaker), known_roles()) end
  for key, why in pairs(unsupported) do
    if given(turn[key]) then fail("%s.%s is not supported: %s", place, key, why) end
  end
  local calls = turn.tool_calls
  if role == "calls" then
    calls, turn.content = calls_of(either(turn.content, turn.value), place), ""
    role = "assistant"
  elseif given(turn.function_call) then
    if given(calls) then fail("%s: both tool_calls and function_call: give one of them", place) end
    calls = calls_of(turn.function_call, place .. ".function_call")
  elseif given(calls) then
    calls = check_calls(list_of(calls, place .. ".tool_calls"), place .. ".tool_calls")
  end
  local train = trained(turn, role == "assistant", place)
  local reasoning = either(turn.reasoning_content, either(turn.reasoning, turn.thinking))
  turn.reasoning_content = there(reasoning) and text_field(reasoning, place .. ".reasoning_content") or nil
  turn.tool_calls = given(calls) and calls or nil
  if not there(either(turn.content, turn.value)) and not turn.tool_calls and not given(turn.reasoning_content) then
    fail("%s has no content", place)
  end
  turn.role, turn.content = role, content_of(turn, place)
  turn.from, turn.value, turn.weight, turn.function_call = nil, nil, nil, nil
  for _, flag in ipairs(flags) do turn[flag] = nil end
  if not train and role == "assistant" then turn.train = false end
  return turn, records.roles[speaker:lower()] == "calls"
end

-- A call belongs to the assistant's message or call before it. Its calls are moved there.
local function joined(message, before, place)
  if not before or before.role ~= "assistant" then return false end
  if before.train ~= message.train then
    fail("%s and the message before it are one, and only one of them is trained", place)
  end
  before.tool_calls = before.tool_calls or {}
  for _, call in ipairs(message.tool_calls) do table.insert(before.tool_calls, call) end
  return true
end

-- Appends the messages of a list of turns.
local function read_turns(turns, name, messages)
  turns = list_of(turns, name)
  if #turns == 0 then fail("%s is empty", name) end
  for i, turn in ipairs(turns) do
    local place = ("%s[%d]"):format(name, i)
    local message, calls = message_of(turn, place)
    if not (calls and joined(message, messages[#messages], place)) then messages[#messages + 1] = message end
  end
  return messages
end

-- ---------------------------------------------------------------- records

local function list_like(value)
  return type(value) == "table" or (type(value) == "string" and value:find "^%s*%[" ~= nil)
end

local function say(messages, role, content) messages[#messages + 1] = { role = role, content = content } end

-- Earlier turns in LLaMA-Factory's form, {{question, answer}, ...}. Their answers are trained too.
local function read_history(record, messages)
  if not given(record.history) then return end
  for i, pair in ipairs(list_of(record.history, "history")) do
    if type(pair) ~= "table" or #pair ~= 2 then fail("history[%d] is not a question and an answer", i) end
    say(messages, "user", text_field(pair[1], ("history[%d]: the question"):format(i)))
    say(messages, "assistant", text_field(pair[2], ("history[%d]: the answer"):format(i)))
  end
end

-- The messages of a conversation of any shape, or nil.
local function conversation(record)
  for _, name in ipairs { "messages", "conversations" } do
    if list_like(record[name]) then
      if given(record.history) then fail("history beside %s: write it as messages", name) end
      return read_turns(record[name], name, {})
    end
  end
  local messages = {}
  if there(record.prompt) and there(record.completion) then
    read_history(record, messages)
    -- TRL's form: of the prompt nothing is trained.
    if type(record.prompt) == "table" and type(record.completion) == "table" then
      read_turns(record.prompt, "prompt", messages)
      for _, message in ipairs(messages) do if message.role == "assistant" then message.train = false end end
      return read_turns(record.completion, "completion", messages)
    end
    say(messages, "user", text_field(record.prompt, "prompt"))
    say(messages, "assistant", text_field(record.completion, "completion"))
    return messages
  end
  if there(record.instruction) and there(record.output) then
    read_history(record, messages)
    local prompt, input = text_field(record.instruction, "instruction"), text_field(record.input, "input")
    say(messages, "user", input ~= "" and prompt .. "\n\n" .. input or prompt)
    say(messages, "assistant", text_field(record.output, "output"))
    return messages
  end
end

-- Puts the record's own system message before the others. With two of them trainers differ in which one they take.
local function add_system(record, messages)
  local system, other = text_field(record.system, "system"), text_field(record.system_prompt, "system_prompt")
  if system ~= "" and other ~= "" and system ~= other then fail "system and system_prompt differ: give one of them" end
  system = system ~= "" and system or other
  if system == "" then return end
  local first = messages[1]
  if first.role ~= "system" and first.role ~= "developer" then
    table.insert(messages, 1, { role = "system", content = system })
  elseif first.content ~= system then
    fail "the record's system and the first message, a system message too, differ: give one of them"
  end
end

-- Refuses what would be trained as something else than it is. messages: nil for a text.
local function refuse_others(record, messages)
  for _, key in ipairs { "images", "image", "videos", "video", "audios", "audio" } do
    if given(record[key]) then
      fail("%s is given, and only text is trained: leave such records out, or take the field out", key)
    end
  end
  if not messages then return end
  for _, key in ipairs { "label", "kto_tag" } do
    if record[key] == false then
      fail("%s is false: this answer is an example of a bad one; leave such records out", key)
    end
  end
  if (given(record.chosen) or given(record.rejected)) and messages[#messages].role ~= "assistant" then
    fail "chosen and rejected: preferences are not trained on; write the chosen answer as the last message"
  end
end

-- One record as {messages =, tools =, template_options =, pair =} or {text =}. It has messages, conversations
-- (ShareGPT), prompt and completion (strings, or TRL's lists), instruction, input and output (Alpaca), or text. Lists
-- may be JSON inside a string. pair: the record is a prompt and its completion by name. The record itself is changed.
-- An error of code "format" says what is wrong.
function records.normalize(record)
  if type(record) ~= "table" then fail "a record has to be a JSON object" end
  local messages = conversation(record)
  if messages then
    refuse_others(record, messages)
    add_system(record, messages)
    local kwargs = record.chat_template_kwargs
    local options = given(kwargs) and decoded(kwargs, "chat_template_kwargs") or nil
    local lists = list_like(record.messages) or list_like(record.conversations) or type(record.prompt) == "table"
    return { messages = messages, tools = read_tools(record), template_options = options, pair = not lists or nil }
  end
  if there(record.text) then
    refuse_others(record)
    return { text = text_field(record.text, "text") }
  end
  local keys = {}
  for key, value in pairs(record) do if value ~= null then keys[#keys + 1] = tostring(key) end end
  table.sort(keys)
  fail("no known shape: keys %s; expected messages, conversations, prompt and completion, instruction and output, "
    .. "or text%s", table.concat(keys, ", "),
    given(record.chosen) and " (preferences, chosen and rejected, are not trained on)" or "")
end

return records
