-- Functions that a model may call: what it is told of them, and the calls in what it says. How calls are written, their
-- form, is seen by the model's chat template:
--
--   hermes    <tool_call>{"name": ..., "arguments": {...}}</tool_call>, several, with text before them (Qwen, Hermes)
--   xml       <tool_call><function=name><parameter=key>value</parameter></function></tool_call> (Qwen3-Coder, Qwen3.5)
--   llama     the whole answer is {"name": ..., "parameters": {...}}, several with ; between them (Llama 3.1 and later)
--   mistral   [TOOL_CALLS] [{"name": ..., "arguments": {...}}, ...], or [TOOL_CALLS]name[ARGS]{...}
--
-- A template that knows no tools gets them in a system message, to be called in Hermes' way. Where a call is required,
-- the answer is bound to the form, with arguments that the function's schema allows. Where it is not, functions with
-- "strict": true bind what follows the tag that opens a call; without one, and in Llama's form, nothing is bound.

local fields = require "qeng.server.fields"
local problem = require "qeng.server.problem"
local q = require "qeng.core"

local tool_grammar = require "qeng.server.tool_grammar"
local tool_parser = require "qeng.server.tool_parser"

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
    local parameters = fn.parameters
    if parameters ~= nil and parameters ~= q.json.null and (fields.type_of(parameters) ~= "object"
        or parameters.type ~= nil and parameters.type ~= "object") then
      bad(place .. ".function.parameters", "expected a JSON schema of an object")
    end
    known[name] = fn
  end
  return known
end

-- The tools and the choice of {type = allowed_tools, mode =, tools = {those of the list that may be called}}: the model
-- is told of these alone. Of another choice both stay as they are.
local function narrowed(list, known, choice)
  if type(choice) ~= "table" or choice.type ~= "allowed_tools" then return list, choice end
  local said, allowed, some = choice.allowed_tools or choice, {}, {}
  for i, tool in ipairs(type(said.tools) == "table" and said.tools or {}) do
    local named = type(tool) == "table" and (tool["function"] or tool)
    local name = type(named) == "table" and named.name
    if not known[name or 1] then bad(("tool_choice.tools[%d]"):format(i - 1), "expected one of the functions") end
    allowed[name] = true
  end
  for _, tool in ipairs(list) do
    if allowed[tool["function"].name] then some[#some + 1] = tool end
  end
  if #some == 0 then bad("tool_choice.tools", "expected some of the functions") end
  if said.mode ~= "auto" and said.mode ~= "required" then bad("tool_choice.mode", "expected auto or required") end
  return q.json.array(some), said.mode
end

-- "auto", "none", "required", or the name of the function that has to be called.
local function chosen(choice, known)
  if choice == nil then return "auto" end
  if choice == "auto" or choice == "none" or choice == "required" then return choice end
  local named = type(choice) == "table" and (choice["function"] or choice)
  local name = type(named) == "table" and named.name
  if not known[name or 1] then bad("tool_choice", "expected auto, none, required or one of the functions") end
  return { name = name }
end

local function form_of(template)
  local function has(text) return template:find(text, 1, true) ~= nil end
  if has "[TOOL_CALLS]" then return "mistral" end
  if has "<tool_call>" then return has "<function=" and "xml" or "hermes" end
  return (has "<|python_tag|>" or has "ipython") and "llama" or "hermes"
end

-- list: OpenAI's tools with the order of their keys; nil where there are none. choice, parallel: OpenAI's tool_choice
-- and parallel_tool_calls.
function tools.new(tokenizer, list, choice, parallel)
  if choice == q.json.null then choice = nil end
  if not list or list == q.json.null or #list == 0 then
    if choice ~= nil and choice ~= "none" and choice ~= "auto" then bad("tool_choice", "there are no tools") end
    return nil
  end
  list, choice = narrowed(list, check(list), choice)
  local known = check(list)
  local template = tokenizer:info().chat_template or ""
  local self = setmetatable({
    tokenizer = tokenizer, list = list, known = known, choice = chosen(choice, known), parallel = parallel ~= false,
    told = template:find("tools", 1, true) ~= nil,
    template = template, form = form_of(template),
  }, Tools)
  self.forced = self.choice == "required" or type(self.choice) == "table"
  return self
end

-- What the template gets as its tools: nil where it knows none, or the model is not to know.
function Tools:for_template() return self.told and self.choice ~= "none" and self.list or nil end

local function call_text(call)
  local fn = call["function"]
  return ('<tool_call>\n{"name": %s, "arguments": %s}\n</tool_call>'):format(q.json.encode(fn.name),
    type(fn.arguments) == "string" and fn.arguments or q.json.encode(fn.arguments, { ordered = true }))
end

-- The messages with names of calls that Mistral's templates take.
local function renamed(self, said)
  local function fitting(id)
    if type(id) ~= "string" or id:find "^%w%w%w%w%w%w%w%w%w$" then return id end
    return self:id_of(id)
  end
  for _, message in ipairs(said) do
    for _, call in ipairs(message.tool_calls or {}) do call.id = fitting(call.id) end
    message.tool_call_id = fitting(message.tool_call_id)
  end
  return said
end

-- The messages as the template takes them.
function Tools:messages(said)
  if self.told then return self.form == "mistral" and renamed(self, said) or said end
  local lines, out = {}, {}
  for i, tool in ipairs(self.list) do lines[i] = q.json.encode(tool["function"], { ordered = true }) end
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

-- The grammar of the answer; nil where the model is free.
function Tools:grammar()
  local functions, strict = {}, false
  if self.choice == "none" then return nil end
  for _, tool in ipairs(self.list) do
    local fn = tool["function"]
    if type(self.choice) ~= "table" or self.choice.name == fn.name then
      strict = strict or fn.strict == true
      functions[#functions + 1] = { name = fn.name, parameters = fn.parameters,
        bound = self.forced or fn.strict == true }
    end
  end
  if not self.forced and not strict then return nil end
  local several = self.parallel and type(self.choice) ~= "table"
  local function made(list, free) return tool_grammar.new(self.form, self.template, list, several, free) end
  local grammar, why = q.try(made, functions, not self.forced)
  if grammar or not why then return grammar end
  for i, tool in ipairs(self.list) do  -- which of them is at fault
    local fn = tool["function"]
    local _, fault = q.try(made, { { name = fn.name, parameters = fn.parameters, bound = true } }, false)
    if fault then bad(("tools[%d].function.parameters"):format(i - 1), fault.message) end
  end
  bad("tools", why.message)
end

-- Ids of special tokens whose text is part of a call, as {[id] = true}.
function Tools:tokens()
  local ids = {}
  if self.choice == "none" then return ids end
  for _, text in ipairs { "<tool_call>", "</tool_call>", "<|python_tag|>", "[TOOL_CALLS]", "[ARGS]", "[CALL_ID]",
    "<function=", "</function>", "<parameter=", "</parameter>" } do
    local id = self.tokenizer:id(text)
    if id then ids[id] = true end
  end
  return ids
end

-- A name of a call: "call_" and 24 hex digits; 9 of them in Mistral's form, which takes no others.
function Tools:id_of(text)
  local a = q.host.hash(text)
  return self.form == "mistral" and a:sub(1, 9) or "call_" .. a .. q.host.hash(a):sub(1, 8)
end

-- A parser of an answer (server/tool_parser.lua). seed: of the request, for the names of calls.
function Tools:parser(seed)
  return tool_parser.new(self.form, self.choice == "none" and {} or self.known,
    function(n) return self:id_of(("%.17g/%d"):format(seed, n + 1)) end)
end

return tools
