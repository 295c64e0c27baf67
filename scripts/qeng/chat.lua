-- Conversations to tokens with the part that is trained. ChatML is rendered piece by piece, so the spans of what an assistant
-- says are exact: content and <|im_end|> are targets; the role header and the newline after are not. What needs more (tools,
-- their calls and answers, reasoning), and another template, is rendered by the model's own (chat_model.lua). The engine
-- renders plain records itself (engine/convert/render.h), with the same result.

local chat_model = require "qeng.chat_model"
local q = require "qeng.core"

local chat = {}

-- ---------------------------------------------------------------- records of any known shape to messages

local sharegpt_roles = { human = "user", user = "user", gpt = "assistant", assistant = "assistant", chatgpt = "assistant", bot = "assistant", system = "system", tool = "tool", observation = "tool", function_response = "tool" }

local function text_field(value, what)
  if value == nil or value == q.json.null then return "" end
  if type(value) ~= "string" then q.error("format", what .. " is not a string") end
  return value
end

local function given(value) return value ~= nil and value ~= q.json.null and value ~= "" and not (type(value) == "table" and next(value) == nil) end

-- OpenAI writes the arguments of a call as JSON inside a string; templates want the value.
local function read_arguments(message)
  for _, call in ipairs(message.tool_calls) do
    local fn = type(call) == "table" and (type(call["function"]) == "table" and call["function"] or call)
    if fn and type(fn.arguments) == "string" then
      local ok, value = pcall(q.json.decode, fn.arguments, { ordered = true })
      if ok and type(value) == "table" then fn.arguments = value end
    end
  end
end

local function check_message(message, place)
  if type(message.content) == "table" and message.content ~= q.json.null then  -- a list of {type = "text", text =}
    local parts = {}
    for _, part in ipairs(message.content) do
      if type(part) ~= "table" or part.type ~= "text" then q.error("format", place .. ": only text content is supported") end
      parts[#parts + 1] = text_field(part.text, place .. ".content: text")
    end
    message.content = table.concat(parts)
  end
  message.content = text_field(message.content, place .. ".content")
  if given(message.function_call) then q.error("format", place .. ": function_call is the old form; write tool_calls") end
  if given(message.tool_calls) then
    if type(message.tool_calls) ~= "table" then q.error("format", place .. ".tool_calls is not a list") end
    read_arguments(message)
  end
end

-- {messages = {{role=, content=}...}} or {text =} from one record: messages, conversations (sharegpt), prompt/completion,
-- instruction/input/output (alpaca) or text. The record is taken over. Error("format") says what is wrong.
function chat.normalize(record)
  if type(record) ~= "table" then q.error("format", "a record has to be a JSON object") end
  if type(record.messages) == "table" then
    for i, message in ipairs(record.messages) do
      if type(message) ~= "table" or type(message.role) ~= "string" then q.error("format", ("messages[%d] has no role"):format(i)) end
      check_message(message, ("messages[%d]"):format(i))
    end
    if #record.messages == 0 then q.error("format", "messages is empty") end
    return { messages = record.messages, tools = given(record.tools) and record.tools or nil }
  end
  if type(record.conversations) == "table" then
    local messages = {}
    if type(record.system) == "string" and record.system ~= "" then messages[1] = { role = "system", content = record.system } end
    for i, turn in ipairs(record.conversations) do
      local role = type(turn) == "table" and sharegpt_roles[turn.from or turn.role or ""]
      if not role then q.error("format", ("conversations[%d]: unknown speaker %s"):format(i, tostring(type(turn) == "table" and (turn.from or turn.role)))) end
      local message = { role = role, content = turn.value or turn.content, tool_calls = turn.tool_calls, reasoning_content = turn.reasoning_content }
      check_message(message, ("conversations[%d]"):format(i))
      messages[#messages + 1] = message
    end
    if #record.conversations == 0 then q.error("format", "conversations is empty") end
    return { messages = messages, tools = given(record.tools) and record.tools or nil }
  end
  if record.prompt ~= nil and record.completion ~= nil then
    return { messages = { { role = "user", content = text_field(record.prompt, "prompt") }, { role = "assistant", content = text_field(record.completion, "completion") } } }
  end
  if record.instruction ~= nil and record.output ~= nil then
    local prompt = text_field(record.instruction, "instruction")
    local input = text_field(record.input, "input")
    if input ~= "" then prompt = prompt .. "\n\n" .. input end
    local messages = { { role = "user", content = prompt }, { role = "assistant", content = text_field(record.output, "output") } }
    if type(record.system) == "string" and record.system ~= "" then table.insert(messages, 1, { role = "system", content = record.system }) end
    return { messages = messages }
  end
  if record.text ~= nil then return { text = text_field(record.text, "text") } end
  local keys = {}
  for key in pairs(record) do keys[#keys + 1] = tostring(key) end
  table.sort(keys)
  q.error("format", "no known shape: keys " .. table.concat(keys, ", ") .. "; expected messages, conversations, prompt and completion, instruction and output, or text")
end

-- ---------------------------------------------------------------- rendering

local Template = {}
Template.__index = Template

-- A conversation by which a model's own template is told from ChatML.
local probe = { messages = { { role = "user", content = "a" }, { role = "assistant", content = "b" }, { role = "user", content = "c" } } }

-- Whether the model's own template says what ChatML says: it may begin with a token, or bring a system message, that ChatML lacks.
local function own_is_chatml(self)
  local ok, own = pcall(Template.prompt, setmetatable({ name = "model" }, { __index = self }), probe)
  if not ok then q.error("template", ("%s; give --template chatml to do without the model's own template"):format(type(own) == "table" and own.message or tostring(own))) end
  return table.concat(own, " ") == table.concat(Template.prompt(self, probe), " ")
end

-- name: "chatml", "model" (the tokenizer's own chat template) or "auto": ChatML where the tokenizer has <|im_start|> and <|im_end|>
-- and no template of its own that says something else, the model's own otherwise. A prompt under "auto" is rendered by the model's own
-- wherever there is one. system: the system message where a conversation has none (false: none, under auto by ChatML if it can be);
-- by default what the model's template says. turns: "all" or "last" of the assistant's messages are trained.
function chat.template(tokenizer, name, system, turns)
  name = name or "auto"
  if name ~= "auto" and name ~= "chatml" and name ~= "model" and name ~= "none" then
    q.error("value", ("template is %s; expected auto, chatml or model"):format(tostring(name)))
  end
  local info = tokenizer:info()
  local auto = name == "auto" and info.chat_template and system ~= false  -- it may not know how to leave the system message out
  local has_chatml = tokenizer:id("<|im_start|>") and tokenizer:id("<|im_end|>")
  if name == "auto" then name = has_chatml and "chatml" or info.chat_template and "model" or "none" end
  if name == "chatml" and not has_chatml then q.error("value", "template chatml: the tokenizer has no <|im_start|> and <|im_end|>") end
  if name == "model" and not info.chat_template then q.error("value", "template model: the tokenizer's folder has no chat template") end
  local self = setmetatable({
    tokenizer = tokenizer, name = name, default_system = system, system = system or nil, turns = turns or "all",
  }, Template)
  if name == "model" then self:model() end
  if system == nil and info.chat_template then  -- Qwen2.5 adds a line of its own: read it off the template
    self.default_system = info.chat_template:match("<|im_start|>system\\n(You are Qwen[^<]-)<|im_end|>")
  end
  if auto and name == "chatml" and not own_is_chatml(self) then self.name = "model" end
  self.own_prompts = auto
  return self
end

local compiled = setmetatable({}, { __mode = "k" })  -- by tokenizer: each request has a Template of its own

-- The model's own template, compiled on first use.
function Template:model()
  local model = compiled[self.tokenizer] or chat_model.new(self.tokenizer)
  compiled[self.tokenizer] = model
  return model
end

local function with_system(messages, system)
  if not system or messages[1].role == "system" then return messages end
  local list = { { role = "system", content = system } }
  for i, message in ipairs(messages) do list[i + 1] = message end
  return list
end

local function last_answer(messages)
  for i = #messages, 1, -1 do if messages[i].role == "assistant" then return i end end
end

local function chatml(self, messages)
  local tokenizer, pieces = self.tokenizer, {}
  messages = with_system(messages, self.default_system)
  local start, finish = tokenizer:id("<|im_start|>"), tokenizer:id("<|im_end|>")
  local last = last_answer(messages)
  for i, message in ipairs(messages) do
    local target = message.role == "assistant" and (self.turns ~= "last" or i == last)
    pieces[#pieces + 1] = { id = start, target = false }
    pieces[#pieces + 1] = { text = message.role .. "\n", target = false }
    pieces[#pieces + 1] = { text = message.content, target = target }
    pieces[#pieces + 1] = { id = finish, target = target }
    pieces[#pieces + 1] = { text = "\n", target = false }
  end
  return pieces
end

-- What plain ChatML cannot say, or nil.
local function beyond_chatml(record)
  if record.tools then return "tools" end
  for _, message in ipairs(record.messages) do
    if given(message.tool_calls) then return "tool calls" end
    if given(message.reasoning_content) then return "reasoning_content" end
    if message.role == "tool" or message.role == "function" then return "answers of tools" end
  end
end

-- Whether ChatML is all that a normalised record's messages need; the model's own template renders them otherwise.
local function plain_chatml(self, record)
  if self.name == "none" then
    q.error("template", "this tokenizer has neither ChatML tokens nor a chat template; give plain text or --template")
  end
  if self.name ~= "chatml" then return false end
  local more = beyond_chatml(record)
  if more and not self.tokenizer:info().chat_template then
    q.error("template", ("%s need the model's own chat template, which this tokenizer has not: give --tokenizer the model's folder"):format(more))
  end
  return not more
end

-- The pieces of a normalised record, in order: {text=, target=, special=} or {id=, target=}. target: trained; special:
-- <|...|> in the text are tokens. Plain text is trained throughout and ends with the end of text.
function Template:pieces(record)
  if record.text then
    local stop = self.tokenizer:id("<|endoftext|>") or self.tokenizer:info().eos
    return { { text = record.text, target = true }, stop and { id = stop, target = true } }
  end
  if plain_chatml(self, record) then return chatml(self, record.messages) end
  return self:model():pieces(with_system(record.messages, self.system), record.tools, self.turns)
end

local function tokenize(tokenizer, pieces)
  local tokens, mask = {}, {}
  for _, piece in ipairs(pieces) do
    local bit = piece.target and 1 or 0
    if piece.id then
      tokens[#tokens + 1] = piece.id
      mask[#mask + 1] = bit
    elseif piece.text ~= "" then
      for _, id in ipairs(tokenizer:encode(piece.text, { special = piece.special or false })) do
        tokens[#tokens + 1] = id
        mask[#mask + 1] = bit
      end
    end
  end
  return tokens, mask
end

-- Tokens and mask (1: a target) of a normalised record.
function Template:encode(record)
  return tokenize(self.tokenizer, self:pieces(record))
end

-- The tokens of a prompt that the assistant is to answer, of a normalised record's messages and tools.
function Template:prompt(record)
  local pieces
  if not self.own_prompts and plain_chatml(self, record) then
    pieces = chatml(self, record.messages)
    pieces[#pieces + 1] = { id = self.tokenizer:id("<|im_start|>") }
    pieces[#pieces + 1] = { text = "assistant\n" }
  else
    pieces = self:model():prompt(with_system(record.messages, self.system), record.tools)
  end
  return (tokenize(self.tokenizer, pieces))
end

chat.Template = Template

-- What the engine's converter calls in each of its threads, for records that it does not render itself: a function of a
-- record's JSON that returns its pieces. opt: template, system, turns.
function chat.renderer(tokenizer, opt)
  local template = chat.template(tokenizer, opt.template, opt.system, opt.turns)
  return function(text) return template:pieces(chat.normalize(q.json.decode(text, { ordered = true }))) end
end

return chat
