-- A conversation with a model: what was said, and an engine whose cache remembers it. A turn computes only what is new.
--
--   local talk = conversation.new(model, { system = "Be brief.", temperature = 0.7, kv = "f16" })
--   for text, kind in talk:ask "Hello" do io.write(text) end      -- kind "reasoning": inside <think> and </think>
--   print(talk:speed())

local engine = require "qeng.infer.engine"
local output = require "qeng.console.output"
local paged = require "qeng.infer.paged"
local q = require "qeng.core"
local request = require "qeng.infer.request"

local conversation = {}
local Conversation = {}
Conversation.__index = Conversation

-- opt: system; options of engine.new (kv, context, chunk, draft) and of a request (infer/request.lua); when_full: the
-- request's option context ("stop", "error" or "shift"). With shift, the oldest exchanges are no longer told once they
-- would leave the answer no room.
function conversation.new(model, opt)
  local self = setmetatable({
    model = model, messages = {}, forgotten = 0, system = opt.system, opt = { context = opt.when_full },
  }, Conversation)
  local own = { max_batch = 1 }
  for name, value in pairs(opt) do
    if name == "kv" or name == "context" or name == "chunk" or name == "draft" then own[name] = value
    elseif name ~= "system" and name ~= "when_full" then self.opt[name] = value end
  end
  own.pages = paged.pages(model, math.min(own.context or math.huge, model.config.max_position))
  self.engine = engine.new(model, own)
  return self
end

-- The messages that the model is told: the system message, and those of the others that are not forgotten.
local function told(self)
  local messages = { self.system and { role = "system", content = self.system } or nil }
  for i = self.forgotten + 1, #self.messages do messages[#messages + 1] = self.messages[i] end
  return messages
end

-- Forgets the oldest exchanges until the rest leaves room for an answer of at most half the context.
local function make_room(self)
  local context = self.engine.context
  local room = context - math.min(self.opt.max_tokens or 256, math.floor(context / 2))
  local function prompt_tokens()
    local opt = self.opt
    return #request.ids(self.model, {
      messages = told(self), template = opt.template, template_args = opt.template_args, tools = opt.tools,
    })
  end
  while #self.messages - self.forgotten > 2 and prompt_tokens() > room do
    self.forgotten = self.forgotten + 2
  end
end

-- An iterator over pieces of the answer to `text`, as from generate.text. If `interrupted` returns true between two
-- pieces, or the loop ends early and stop() is called, what has come stays as the answer.
function Conversation:ask(text, interrupted)
  table.insert(self.messages, { role = "user", content = text })
  if self.opt.context == "shift" then make_room(self) end
  local given = { messages = told(self), reasoning = true }
  for name, value in pairs(self.opt) do given[name] = value end
  local ok, r = pcall(self.engine.submit, self.engine, given)
  if not ok then
    table.remove(self.messages)
    error(r, 0)
  end
  self.request = r
  local pieces, at = {}, 0
  return function()
    while at == #pieces do
      if r.state == "done" then
        self:stop()
        if r.error then error(r.error, 0) end
        return nil
      end
      if interrupted and interrupted() then self.engine:cancel(r) else self.engine:step() end
      pieces, at = r:take(), 0
    end
    at = at + 1
    return unpack(pieces[at])
  end
end

-- Ends the answer that is being given, and keeps it among the messages.
function Conversation:stop()
  local r = self.request
  if not r or r.kept then return end
  self.engine:cancel(r)
  r.kept = true
  table.insert(self.messages, { role = "assistant", content = r.text })
end

-- One line about the speed of the last answer.
function Conversation:speed() return self.request and self.request:speed() or "nothing was asked yet" end

function Conversation:reset()
  self.messages, self.forgotten = {}, 0
end

-- Appends the conversation to a file as a line of JSON that training takes.
function Conversation:save(path)
  local messages = { self.system and { role = "system", content = self.system } or nil }
  for _, message in ipairs(self.messages) do messages[#messages + 1] = message end
  output.file(path, { holds = { "messages", "a conversation that was saved" } })
  q.fs.write(path, q.json.encode { messages = q.json.array(messages) } .. "\n")
end

-- Replaces this conversation by that of a file, which save wrote, or which holds any record of messages in JSON.
function Conversation:load(path)
  local record = q.try(q.json.decode, q.fs.read(path))
  local messages, system = type(record) == "table" and type(record.messages) == "table" and record.messages or {}, nil
  if #messages == 0 then
    q.error("format", path .. ": expected a line {\"messages\": [{\"role\": ..., \"content\": ...}, ...]}, "
      .. "as /save writes it")
  end
  local kept = {}
  for i, message in ipairs(messages) do
    local role, content = type(message) == "table" and message.role, type(message) == "table" and message.content
    local wanted = #kept % 2 == 0 and "user" or "assistant"
    if i == 1 and role == "system" and type(content) == "string" then system = content
    elseif role ~= wanted or type(content) ~= "string" then
      q.error("format", ("%s: message %d is of %s, expected text of %s: user and assistant take turns"):format(path, i,
        tostring(role), wanted))
    else kept[#kept + 1] = { role = role, content = content } end
  end
  if #kept % 2 == 1 then kept[#kept] = nil end  -- a question without its answer
  self.messages, self.system, self.forgotten = kept, system, 0
end

-- Takes back the last question and its answer. Returns the question; nil if nothing was asked.
function Conversation:take_back()
  local count = #self.messages
  local question = count >= 2 and self.messages[count - 1].content or nil
  if question then self.messages[count], self.messages[count - 1] = nil, nil end
  self.forgotten = math.min(self.forgotten, #self.messages)
  return question
end

function Conversation:close() self.engine:close() end

conversation.Conversation = Conversation
return conversation
