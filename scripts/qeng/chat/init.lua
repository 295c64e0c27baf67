-- Conversations to tokens, and which of them are trained. The model's own template renders them wherever there is one
-- (chat/template.lua). Otherwise they are written in ChatML, piece by piece: content and <|im_end|> are targets, the
-- role header and the newline after are not. The engine renders texts and plain ChatML itself
-- (engine/convert/render.h), with the same result.

local chat_model = require "qeng.chat.template"
local options = require "qeng.console.options"
local q = require "qeng.core"
local records = require "qeng.chat.records"

local chat = {}

-- A record of any known shape as a normalised one, which the functions below take.
chat.normalize = records.normalize
local is_given = records.given

-- A copy of a record, or of a part of one, for chat.normalize, which changes what it gets.
function chat.copy(value)
  if type(value) ~= "table" then return value end
  local copy = setmetatable({}, getmetatable(value))
  for key, item in pairs(value) do copy[key] = chat.copy(item) end
  return copy
end

-- ---------------------------------------------------------------- rendering

local Template = {}
Template.__index = Template

options.set("template", {
  { "template", "auto", "chat template: auto (the model's own where there is one, else ChatML)",
    choices = { "auto", "chatml", "model" } },
  { "template_args", "", "what the model's own template is given beside the messages, as JSON: "
    .. "'{\"enable_thinking\": false}'" },
})

-- Whether the model's own template writes a system message that no one gave it.
local function brings_system(model)
  local said, asked = "SYSTEM", { role = "user", content = "USER" }
  local function before(messages)
    local variables
    messages, variables = model:values(messages, {})
    local ok, text = pcall(model.render, model, messages, #messages, variables, false)
    return ok and text:find("USER", 1, true)
  end
  local with, without = before { { role = "system", content = said }, asked }, before { asked }
  return with and without and without >= with - #said
end

-- What stands around a plain text: bos where the tokenizer adds one, and the token that ends a document. In chat models
-- that is another token than eos.
function chat.text_ends(tokenizer)
  local info = tokenizer:info()
  return info.add_bos and info.bos or nil, tokenizer:id "<|endoftext|>" or tokenizer:id "<|end_of_text|>" or info.eos
end

-- Template arguments as a table; nil if there are none.
local function read_arguments(given)
  if type(given) == "string" and given ~= "" then
    local ok, why = q.try(q.json.decode, given, { ordered = true, exact = true })
    if not ok then
      q.error("value", ("template arguments: %s; expected a JSON object such as {\"enable_thinking\": false}, got %s")
        :format(why.message, given))
    end
    given = ok
  end
  if given == nil or given == "" then return nil end
  if type(given) ~= "table" or given[1] ~= nil then
    q.error("value", "template arguments: expected a JSON object such as {\"enable_thinking\": false}")
  end
  for _, name in ipairs { "messages", "tools", "add_generation_prompt" } do
    if given[name] ~= nil then
      q.error("value", ("template arguments: %s is given by the conversation"):format(name))
    end
  end
  return next(given) ~= nil and given or nil
end

-- name: "model" is the tokenizer's own chat template, "chatml" is ChatML. "auto" takes the model's own where there is
-- one, else ChatML if the tokenizer has <|im_start|> and <|im_end|>. Otherwise it takes "none", which writes texts, and
-- a prompt and its completion one after the other.
-- system: the system message of conversations that have none; false: no message; nil: what the model's template says.
-- turns: "all" or "last" of the assistant's messages are trained.
-- special: "parse" or "text", what special tokens spelled in texts become.
-- arguments: what the model's own template is given beside messages (enable_thinking, ...), as a table or JSON text.
-- Arguments of a record take precedence.
function chat.template(tokenizer, name, system, turns, special, arguments)
  name = name or "auto"
  if name ~= "auto" and name ~= "chatml" and name ~= "model" and name ~= "none" then
    q.error("value", ("template is %s; expected auto, chatml or model"):format(tostring(name)))
  end
  local own, given_name = tokenizer:info().chat_template, name
  local has_chatml = tokenizer:id("<|im_start|>") and tokenizer:id("<|im_end|>")
  if name == "auto" then name = own and "model" or has_chatml and "chatml" or "none" end
  if name == "chatml" and not has_chatml then
    q.error("value", "template chatml: the tokenizer has no <|im_start|> and <|im_end|>")
  end
  if name == "model" and not own then
    q.error("value", "template model: the tokenizer's folder has no chat template")
  end
  if name == "none" and system then
    q.error("value", "a system message is given, but this tokenizer has neither a chat template nor ChatML's tokens "
      .. "to write it")
  end
  local self = setmetatable({
    tokenizer = tokenizer, name = name, system = system or nil, turns = turns or "all", special = special or "parse",
    arguments = read_arguments(arguments),
  }, Template)
  for key in pairs(self.arguments or {}) do
    if own and not own:find(key, 1, true) then
      q.error("value", ("template arguments: the model's chat template does not mention '%s'"):format(key))
    end
  end
  if self.arguments and name ~= "model" then
    local taker = name == "none" and "a tokenizer without a chat template" or "ChatML"
    q.error("value", ("template arguments are given, but %s takes none: they are for a model's own chat template")
      :format(taker))
  end
  if name == "model" and system == false and brings_system(self:model()) then
    if given_name == "model" or not has_chatml then
      q.error("value", "no system message is wanted, but the model's own template always writes one; give one, "
        .. "or leave it to the template")
    end
    self.name = "chatml"
  end
  if self.name == "chatml" then self.default_system = system end
  if self.name == "chatml" and system == nil and own then  -- Qwen2.5 adds a line of its own: read it off the template
    self.default_system = own:match("<|im_start|>system\\n(You are Qwen[^<]-)<|im_end|>")
  end
  return self
end

local compiled = setmetatable({}, { __mode = "k" })  -- by tokenizer: each request has a Template of its own

-- The model's own template. It is compiled at first use.
function Template:model()
  local model = compiled[self.tokenizer]
  if not model then
    local why
    model, why = q.try(chat_model.new, self.tokenizer)
    if not model then
      q.error("template", why.message .. "; give --template chatml to do without the model's own template")
    end
    compiled[self.tokenizer] = model
  end
  return model
end

local function with_system(messages, system)
  if not system or messages[1].role == "system" or messages[1].role == "developer" then return messages end
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
    local target = message.role == "assistant" and message.train ~= false and (self.turns ~= "last" or i == last)
    local role = message.role == "developer" and "system" or message.role  -- a newer name, which ChatML has not
    pieces[#pieces + 1] = { id = start, target = false }
    pieces[#pieces + 1] = { text = role .. "\n", target = false }
    pieces[#pieces + 1] = { text = message.content, target = target }
    pieces[#pieces + 1] = { id = finish, target = target }
    pieces[#pieces + 1] = { text = "\n", target = false }
  end
  return pieces
end

-- What of a record plain ChatML cannot say; nil if it can say all of it.
local function beyond_chatml(record)
  if record.tools then return "tools" end
  if record.template_options then return "chat_template_kwargs" end
  for _, message in ipairs(record.messages) do
    if is_given(message.tool_calls) then return "tool calls" end
    if is_given(message.reasoning_content) then return "reasoning_content" end
    if message.role == "tool" then return "answers of tools" end
  end
end

-- Whether ChatML can say a normalised record's messages. The model's own template renders all others.
local function plain_chatml(self, record)
  if self.name == "none" then
    q.error("template", "this tokenizer has neither a chat template nor ChatML's tokens, so conversations cannot be "
      .. "written: give a tokenizer folder that has a template (chat_template.jinja, or chat_template in "
      .. "tokenizer_config.json), or records of prompt and completion, or of text")
  end
  if self.name ~= "chatml" then return false end
  local more = beyond_chatml(record)
  if more and not self.tokenizer:info().chat_template then
    q.error("template", ("%s need the model's own chat template, which this tokenizer has not: "
      .. "give --tokenizer the model's folder"):format(more))
  end
  return not more
end

-- A text in parts, {text=, target=}..., with the tokens that begin and end a text, unless it spells them itself.
local function document(self, parts)
  local tokenizer, pieces = self.tokenizer, {}
  local first, last = chat.text_ends(tokenizer)
  local parse = self.special == "parse"
  for i, part in ipairs(parts) do pieces[i] = { text = part.text, target = part.target, special = parse } end
  local head = tokenizer:encode(parts[1].text, { special = parse })
  local tail = tokenizer:encode(parts[#parts].text, { special = parse })
  local ends = tail[#tail] or (#parts == 1 and first)
  if first and head[1] ~= first then table.insert(pieces, 1, { id = first, target = parts[1].target }) end
  if last and ends ~= last and ends ~= tokenizer:info().eos then pieces[#pieces + 1] = { id = last, target = true } end
  return pieces
end

-- A record with this template's arguments. Its own take precedence.
local function with_arguments(self, record)
  if not self.arguments then return record end
  local own, merged = record.template_options, self.arguments
  if own then
    merged = {}
    for key, value in pairs(self.arguments) do merged[key] = value end
    for key, value in pairs(own) do merged[key] = value end
  end
  return setmetatable({ template_options = merged }, { __index = record })
end

-- The pieces of a normalised record, in order: {text=, target=, special=} or {id=, target=}. target: the piece is
-- trained. special: <|...|> in the text are tokens. Plain text is trained throughout.
function Template:pieces(record)
  if record.text then return document(self, { { text = record.text, target = true } }) end
  if self.name == "none" and record.pair and #record.messages == 2 then
    local prompt, completion = record.messages[1].content, record.messages[2].content
    return document(self, { { text = prompt, target = false }, { text = completion, target = true } })
  end
  if plain_chatml(self, record) then return chatml(self, record.messages) end
  return self:model():pieces(with_system(record.messages, self.system), with_arguments(self, record), self.turns)
end

local function tokenize(tokenizer, pieces)
  local tokens, mask = {}, {}
  for _, piece in ipairs(pieces) do
    local bit = piece.target and 1 or 0
    local ids = piece.id and { piece.id }
      or tokenizer:encode(piece.text, { special = piece.special or false, after = tokens[#tokens] })
    for _, id in ipairs(ids) do
      tokens[#tokens + 1] = id
      mask[#mask + 1] = bit
    end
  end
  return tokens, mask
end

-- Tokens and mask (1: a target) of a normalised record.
function Template:encode(record)
  return tokenize(self.tokenizer, self:pieces(record))
end

-- The tokens of a prompt that the assistant is to answer, from a normalised record's messages and tools.
function Template:prompt(record)
  local pieces
  if plain_chatml(self, record) then
    pieces = chatml(self, record.messages)
    pieces[#pieces + 1] = { id = self.tokenizer:id("<|im_start|>") }
    pieces[#pieces + 1] = { text = "assistant\n" }
  else
    pieces = self:model():prompt(with_system(record.messages, self.system), with_arguments(self, record))
  end
  return (tokenize(self.tokenizer, pieces))
end

chat.Template = Template

-- A function from a record's JSON to its pieces. The engine's converter calls it in each of its threads, for records
-- that it does not render itself. opt: template, system, turns, special, arguments.
function chat.renderer(tokenizer, opt)
  local template = chat.template(tokenizer, opt.template, opt.system, opt.turns, opt.special, opt.arguments)
  return function(text)
    return template:pieces(chat.normalize(q.json.decode(text, { ordered = true, exact = true })))
  end
end

return chat
