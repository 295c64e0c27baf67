-- Conversations to tokens with the part that is trained. ChatML is rendered piece by piece, so the spans of what an assistant
-- says are exact: content and <|im_end|> are targets; the role header and the newline after are not. What needs more (tools,
-- their calls and answers, reasoning), and another template, is rendered by the model's own (chat_model.lua). The engine
-- renders plain records itself (engine/convert/render.h), with the same result.

local chat_model = require "qeng.chat_model"
local q = require "qeng.core"
local records = require "qeng.chat_records"

local chat = {}

-- A normalised record, which what follows takes, of one of any known shape.
chat.normalize = records.normalize
local given = records.given

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

-- What plain ChatML cannot say, or nil.
local function beyond_chatml(record)
  if record.tools then return "tools" end
  if record.template_options then return "chat_template_kwargs" end
  for _, message in ipairs(record.messages) do
    if given(message.tool_calls) then return "tool calls" end
    if given(message.reasoning_content) then return "reasoning_content" end
    if message.role == "tool" then return "answers of tools" end
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
  return self:model():pieces(with_system(record.messages, self.system), record, self.turns)
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
    pieces = self:model():prompt(with_system(record.messages, self.system), record)
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
