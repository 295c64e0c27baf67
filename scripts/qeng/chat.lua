-- Conversations to tokens with the part that is trained. ChatML is rendered piece by piece, so the spans of what an assistant
-- says are exact: content and <|im_end|> are targets; the role header and the newline after are not. Another template is
-- rendered message by message (before and after each assistant turn), and the difference is the target.

local jinja = require "qeng.jinja"
local q = require "qeng.core"

local chat = {}

-- ---------------------------------------------------------------- records of any known shape to messages

local sharegpt_roles = { human = "user", user = "user", gpt = "assistant", assistant = "assistant", chatgpt = "assistant", bot = "assistant", system = "system", tool = "tool", observation = "tool", function_response = "tool" }

local function text_field(value, what)
  if value == nil or value == q.json.null then return "" end
  if type(value) ~= "string" then q.error("format", what .. " is not a string") end
  return value
end

-- {messages = {{role=, content=}...}} or {text =} from one record: messages, conversations (sharegpt), prompt/completion,
-- instruction/input/output (alpaca) or text. Error("format") says what is wrong.
function chat.normalize(record)
  if type(record) ~= "table" then q.error("format", "a record has to be a JSON object") end
  if type(record.messages) == "table" then
    for i, message in ipairs(record.messages) do
      if type(message) ~= "table" or type(message.role) ~= "string" then q.error("format", ("messages[%d] has no role"):format(i)) end
      if type(message.content) == "table" and message.content ~= q.json.null then  -- a list of {type = "text", text =}
        local parts = {}
        for _, part in ipairs(message.content) do
          if type(part) ~= "table" or part.type ~= "text" then q.error("format", ("messages[%d]: only text content is supported"):format(i)) end
          parts[#parts + 1] = part.text
        end
        message.content = table.concat(parts)
      end
      message.content = text_field(message.content, ("messages[%d].content"):format(i))
    end
    if #record.messages == 0 then q.error("format", "messages is empty") end
    return { messages = record.messages, tools = record.tools }
  end
  if type(record.conversations) == "table" then
    local messages = {}
    if type(record.system) == "string" and record.system ~= "" then messages[1] = { role = "system", content = record.system } end
    for i, turn in ipairs(record.conversations) do
      local role = type(turn) == "table" and sharegpt_roles[turn.from or turn.role or ""]
      if not role then q.error("format", ("conversations[%d]: unknown speaker %s"):format(i, tostring(type(turn) == "table" and (turn.from or turn.role)))) end
      messages[i + (messages[1] and messages[1].role == "system" and record.system and 1 or 0)] = { role = role, content = text_field(turn.value or turn.content, ("conversations[%d].value"):format(i)) }
    end
    if #messages == 0 then q.error("format", "conversations is empty") end
    return { messages = messages }
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

-- name: "chatml", "model" (the tokenizer's own chat template) or "auto": ChatML where the tokenizer has <|im_start|> and
-- <|im_end|>, the model's own otherwise. default_system: the system line of ChatML where a conversation has none.
function chat.template(tokenizer, name, default_system)
  name = name or "auto"
  local info = tokenizer:info()
  local has_chatml = tokenizer:id("<|im_start|>") and tokenizer:id("<|im_end|>")
  if name == "auto" then name = has_chatml and "chatml" or info.chat_template and "model" or "none" end
  if name == "chatml" and not has_chatml then q.error("value", "template chatml: the tokenizer has no <|im_start|> and <|im_end|>") end
  if name == "model" and not info.chat_template then q.error("value", "template model: the tokenizer's folder has no chat template") end
  local self = setmetatable({ tokenizer = tokenizer, name = name, default_system = default_system }, Template)
  if name == "model" then self.render = jinja.compile(info.chat_template) end
  if default_system == nil and info.chat_template then  -- Qwen2.5 adds a line of its own: read it off the template
    self.default_system = info.chat_template:match("<|im_start|>system\\n(You are Qwen[^<]-)<|im_end|>")
  end
  return self
end

-- Appends the tokens of text; target: whether they are trained. special: <|...|> in it are tokens (never in user text).
local function append(out, tokenizer, text, target, special)
  if text == "" then return end
  for _, id in ipairs(tokenizer:encode(text, { special = special })) do
    out.tokens[#out.tokens + 1] = id
    out.mask[#out.mask + 1] = target and 1 or 0
  end
end

local function chatml(self, messages, out)
  local tokenizer = self.tokenizer
  local start, finish = tokenizer:id("<|im_start|>"), tokenizer:id("<|im_end|>")
  local function id(token, target) out.tokens[#out.tokens + 1] = token; out.mask[#out.mask + 1] = target and 1 or 0 end
  local function message(role, content)
    local target = role == "assistant"
    id(start, false)
    append(out, tokenizer, role .. "\n", false)
    append(out, tokenizer, content, target)
    id(finish, target)
    append(out, tokenizer, "\n", false)
  end
  if messages[1].role ~= "system" and self.default_system then message("system", self.default_system) end
  for _, m in ipairs(messages) do message(m.role, m.content) end
end

local function variables(self, messages, tools, prompt)
  local info = self.tokenizer:info()
  local list = jinja.list {}
  for i, m in ipairs(messages) do list[i] = m end
  local function token_text(id) return id and self.tokenizer:bytes(id) or "" end
  return { messages = list, tools = tools, add_generation_prompt = prompt, bos_token = token_text(info.bos), eos_token = token_text(info.eos) }
end

local function by_difference(self, messages, tools, out)
  local tokenizer = self.tokenizer
  local whole = self.render(variables(self, messages, tools, false))
  local at = 1
  for i, m in ipairs(messages) do
    if m.role == "assistant" then
      local before, upto = {}, {}
      for k = 1, i do upto[k] = messages[k]; if k < i then before[k] = messages[k] end end
      local prompt = self.render(variables(self, before, tools, true))
      local through = self.render(variables(self, upto, tools, false))
      if through:sub(1, #prompt) ~= prompt or whole:sub(1, #prompt) ~= prompt then
        q.error("template", "the chat template rewrites earlier turns, so what the assistant says cannot be told apart; use --template chatml")
      end
      local said = through:sub(#prompt + 1)
      if whole:sub(#prompt + 1, #prompt + #said) ~= said then said = said:gsub("%s+$", "") end
      local tail = said:match("\n$") or ""  -- a newline after the end-of-turn token is not trained
      append(out, tokenizer, whole:sub(at, #prompt), false, true)
      append(out, tokenizer, said:sub(1, #said - #tail), true, true)
      append(out, tokenizer, tail, false, true)
      at = #prompt + #said + 1
    end
  end
  append(out, tokenizer, whole:sub(at), false, true)
end

-- Tokens and mask (1: a target) of a normalised record. Plain text is trained throughout and ends with the end of text.
function Template:encode(record)
  local out = { tokens = {}, mask = {} }
  if record.text then
    append(out, self.tokenizer, record.text, true)
    local info = self.tokenizer:info()
    local stop = self.tokenizer:id("<|endoftext|>") or info.eos
    if stop then out.tokens[#out.tokens + 1] = stop; out.mask[#out.mask + 1] = 1 end
  elseif self.name == "chatml" then
    chatml(self, record.messages, out)
  elseif self.name == "model" then
    by_difference(self, record.messages, record.tools, out)
  else
    q.error("template", "this tokenizer has neither ChatML tokens nor a chat template; give plain text or --template")
  end
  return out.tokens, out.mask
end

-- The tokens of a prompt that the assistant is to answer.
function Template:prompt(messages)
  local out = { tokens = {}, mask = {} }
  if self.name == "chatml" then
    chatml(self, messages, out)
    out.tokens[#out.tokens + 1] = self.tokenizer:id("<|im_start|>")
    append(out, self.tokenizer, "assistant\n", false)
  elseif self.name == "model" then
    append(out, self.tokenizer, self.render(variables(self, messages, nil, true)), false, true)
  else
    q.error("template", "this tokenizer has no chat template")
  end
  return out.tokens
end

return chat
