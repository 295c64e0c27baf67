-- Functions that a model may call: what it is told of them, and the calls in what it says. How calls are written is
-- seen by the model's chat template:
--
--   hermes    <tool_call>{"name": ..., "arguments": {...}}</tool_call>, several, with text before them (Qwen, Hermes)
--   llama     the whole answer is {"name": ..., "parameters": {...}}, several with ; between them (Llama 3.1 and later)
--   mistral   [TOOL_CALLS] [{"name": ..., "arguments": {...}}, ...], or [TOOL_CALLS]name[ARGS]{...}
--
-- A template that knows no tools gets them in a system message, to be called in Hermes' way. Where a call is required,
-- the answer is bound to {"name": ..., "arguments": {...}} with arguments that the function's schema allows.

local fields = require "qeng.server.fields"
local problem = require "qeng.server.problem"
local q = require "qeng.core"

local tools = {}
local Tools = {}
Tools.__index = Tools

local function bad(name, text) problem.raise(400, ("Invalid value for '%s': %s."):format(name, text), name) end

local function check(list)
  local known = {}
  if #list > 128 then bad("tools", ("%d tools, expected at most 128"):format(#list)) end
  for i, tool in ipairs(list) do
    local place = ("tools[%d]"):format(i - 1)
    local fn = type(tool) == "table" and tool["function"]
    if type(fn) ~= "table" or tool.type ~= "function" then
      bad(place, "expected {type = function, function = {...}}")
    end
    local name = fn.name
    if type(name) ~= "string" or #name > 64 or not name:find "^[%w_%-]+$" then
      bad(place .. ".function.name", "expected 1 to 64 letters, digits, _ and -")
    end
    if known[name] then bad(place .. ".function.name", name .. " is there twice") end
    if fn.parameters ~= nil and fn.parameters ~= q.json.null and fields.type_of(fn.parameters) ~= "object" then
      bad(place .. ".function.parameters", "expected a JSON schema")
    end
    known[name] = fn
  end
  return known
end

-- "auto", "none", "required", or the name of the function that has to be called.
local function chosen(choice, known)
  if choice == nil then return "auto" end
  if choice == "auto" or choice == "none" or choice == "required" then return choice end
  local name = type(choice) == "table" and (choice["function"] or choice).name
  if not known[name or 1] then bad("tool_choice", "expected auto, none, required or one of the functions") end
  return { name = name }
end

-- list: OpenAI's tools with the order of their keys; nil where there are none. choice, parallel: OpenAI's tool_choice
-- and parallel_tool_calls.
function tools.new(tokenizer, list, choice, parallel)
  if choice == q.json.null then choice = nil end
  if not list or list == q.json.null or #list == 0 then
    if choice ~= nil and choice ~= "none" and choice ~= "auto" then bad("tool_choice", "there are no tools") end
    return nil
  end
  local known = check(list)
  local template = tokenizer:info().chat_template or ""
  local self = setmetatable({
    tokenizer = tokenizer, list = list, known = known, choice = chosen(choice, known), parallel = parallel ~= false,
    told = template:find("tools", 1, true) ~= nil,
    form = template:find("[TOOL_CALLS]", 1, true) and "mistral"
      or (template:find("<|python_tag|>", 1, true) or template:find("ipython", 1, true)) and "llama" or "hermes",
  }, Tools)
  self.forced = self.choice == "required" or type(self.choice) == "table"
  return self
end

-- What the template gets as its tools: nil where it knows none, or the model is not to know.
function Tools:for_template() return self.told and self.choice ~= "none" and self.list or nil end

local function call_text(call)
  local fn = call["function"]
  return ('<tool_call>\n{"name": %s, "arguments": %s}\n</tool_call>'):format(q.json.encode(fn.name),
    type(fn.arguments) == "string" and fn.arguments or q.json.encode(fn.arguments))
end

-- The messages as a template takes them that knows no tools.
function Tools:messages(said)
  if self.told then return said end
  local lines, out = {}, {}
  for i, tool in ipairs(self.list) do lines[i] = q.json.encode(tool["function"]) end
  local head = "You may call functions. To call one, answer with <tool_call>{\"name\": ..., \"arguments\": {...}}"
    .. "</tool_call>. The functions, each with the schema of its arguments:\n" .. table.concat(lines, "\n")
  if self.choice ~= "none" then out[1] = { role = "system", content = head } end
  for _, message in ipairs(said) do
    if message.role == "system" and out[1] and out[1].content == head then
      out[1] = { role = "system", content = message.content .. "\n\n" .. head }
    elseif message.role == "tool" then
      out[#out + 1] = { role = "user", content = "<tool_response>\n" .. message.content .. "\n</tool_response>" }
    elseif message.tool_calls then
      local texts = { message.content ~= "" and message.content or nil }
      for _, call in ipairs(message.tool_calls) do texts[#texts + 1] = call_text(call) end
      out[#out + 1] = { role = "assistant", content = table.concat(texts, "\n") }
    else
      out[#out + 1] = message
    end
  end
  return out
end

-- The grammar of a call that has to be made; nil where the model is free.
function Tools:grammar()
  if not self.forced then return nil end
  local any = q.json.array {}
  for _, tool in ipairs(self.list) do
    local fn = tool["function"]
    if type(self.choice) ~= "table" or self.choice.name == fn.name then
      local parameters = fn.parameters
      if parameters == nil or parameters == q.json.null then  -- a function without any
        parameters = { type = "object", additionalProperties = false }
      end
      any[#any + 1] = setmetatable({ type = "object", required = q.json.array { "name", "arguments" },
        properties = setmetatable({ name = { const = fn.name }, arguments = parameters },
          { __keys = { "name", "arguments" } }) }, { __keys = { "type", "properties", "required" } })
    end
  end
  local made, why = q.try(q.json_schema, q.json.encode(#any == 1 and any[1] or { anyOf = any }))
  return made or bad("tools", why.message)
end

-- Ids of special tokens whose text is part of a call, as {[id] = true}.
function Tools:tokens()
  local ids = {}
  for _, text in ipairs { "<tool_call>", "</tool_call>", "<|python_tag|>", "[TOOL_CALLS]", "[ARGS]" } do
    local id = self.tokenizer:id(text)
    if id then ids[id] = true end
  end
  return ids
end

-- ---------------------------------------------------------------- what a model says

local Parser = {}
Parser.__index = Parser

-- seed: of the request, for the names of calls.
function Tools:parser(seed)
  return setmetatable({ tools = self, form = self.forced and "forced" or self.form, seed = seed, held = "", count = 0,
    inside = self.forced }, Parser)
end

-- A decoded call as an event, or nil if it is none.
local function event_of(self, made)
  if type(made) ~= "table" or not self.tools.known[made.name or 1] then return nil end
  local arguments = made.arguments or made.parameters or {}
  if type(arguments) == "table" then arguments = q.json.encode(arguments) end
  if type(arguments) ~= "string" then return nil end
  self.count = self.count + 1
  local a = q.host.hash(("%.17g/%d"):format(self.seed, self.count))
  local b = q.host.hash(a)
  local id = self.form == "mistral" and a:sub(1, 9) or "call_" .. a .. b:sub(1, 8)
  return { call = self.count - 1, id = id, name = made.name, arguments = arguments }
end

local function decoded(text) return q.try(q.json.decode, text, { ordered = true, exact = true }) end

-- Where the JSON value that begins at `from` with { ends; nil if it does not.
local function object_end(text, from)
  local depth, quoted, at = 0, false, from
  while at <= #text do
    local c = text:sub(at, at)
    if quoted then
      if c == "\\" then at = at + 1 elseif c == '"' then quoted = false end
    elseif c == '"' then
      quoted = true
    elseif c == "{" then
      depth = depth + 1
    elseif c == "}" then
      depth = depth - 1
      if depth == 0 then return at end
    end
    at = at + 1
  end
end

-- Calls of a text that is nothing but calls; nil if it is something else.
local function all_calls(self, text)
  local events, list = {}, text:find "^%s*%[" and decoded(text)
  if list then
    for _, made in ipairs(list) do events[#events + 1] = event_of(self, made) end
    return #events == #list and #events > 0 and events or nil
  end
  local at = 1
  while true do
    local _, skipped, name = text:find("^[%s;]*([%w_%-]*)", at)
    if skipped == #text then return #events > 0 and events or nil end
    local args = text:match("^%[ARGS%]()", skipped + 1)
    local from = args or skipped + 1
    local to = text:sub(from, from) == "{" and object_end(text, from)
    local made = to and decoded(text:sub(from, to))
    if made and args then made = { name = name, arguments = made } end
    local event = made and (args or name == "") and event_of(self, made)
    if not event then return nil end
    events[#events + 1], at = event, to + 1
    if text:sub(at, at + 11) == "[TOOL_CALLS]" then at = at + 12 end
  end
end

local opens = { hermes = "<tool_call>", mistral = "[TOOL_CALLS]", llama = "<|python_tag|>" }

-- How much at the end of a text may begin `tag`, with the white space before that.
local function held_back(text, tag)
  for length = math.min(#tag - 1, #text), 1, -1 do
    if text:sub(-length) == tag:sub(1, length) then return length + #text:sub(1, -length - 1):match "%s*$" end
  end
  return #text:match "%s*$"
end

local function say(events, text)
  if text ~= "" then events[#events + 1] = { text = text } end
end

-- Takes a piece of what the model says. Returns events: {text =}, or {call = its number, id =, name =, arguments =}.
-- White space before a call is no text. What the events say does not depend on where the text was cut.
function Parser:push(piece)
  local events, tag = {}, opens[self.form]
  self.held = self.held .. piece
  while true do
    if self.inside then
      if self.form ~= "hermes" then return events end  -- to the end of the answer
      local from, to = self.held:find("</tool_call>", 1, true)
      if not from then return events end
      local event = event_of(self, decoded(self.held:sub(1, from - 1)))
      if event then events[#events + 1] = event else say(events, tag .. self.held:sub(1, to)) end
      self.held, self.inside = self.held:sub(to + 1), false
    else
      local bare = self.form == "llama" and not self.spoke and self.held:find "^%s*{"
      local from, to = self.held:find(tag, 1, true)
      if not from and not bare then
        local length = #self.held - held_back(self.held, tag)
        say(events, self.held:sub(1, length))
        self.spoke = self.spoke or length > 0
        self.held = self.held:sub(length + 1)
        return events
      end
      local before = bare and "" or self.held:sub(1, from - 1):match "^(.-)%s*$"
      say(events, before)
      self.spoke = self.spoke or before ~= ""
      self.inside, self.opened = true, bare and "" or tag
      if not bare then self.held = self.held:sub(to + 1) end
    end
  end
end

-- The events of what is left: a call that is not whole is text.
function Parser:finish()
  local events, text = {}, self.held
  self.held = ""
  if not self.inside then
    if self.count == 0 or text:find "%S" then say(events, text) end
    return events
  end
  local calls = self.form ~= "hermes" and all_calls(self, text)
  if calls then return calls end
  say(events, (self.opened or "") .. text)
  return events
end

return tools
