-- Anthropic's API: POST /v1/messages and /v1/messages/count_tokens. Their messages become those of a conversation
-- (server/conversation.lua), and its answer their blocks of content.

local conversation = require "qeng.server.conversation"
local fields = require "qeng.server.fields"
local messages = require "qeng.server.messages"
local problem = require "qeng.server.problem"
local q = require "qeng.core"

local list = {
  { "model", "string", required = true },
  { "messages", "array", required = true },
  { "max_tokens", "integer", min = 1, required = true },
  { "system", "string|array" },
  { "stop_sequences", "array", most = 16 },
  { "stream", "boolean", default = false },
  { "temperature", "number", min = 0, max = 1, default = 1 },
  { "top_p", "number", min = 0, max = 1, default = 1 },
  { "top_k", "integer", min = 0 },
  { "tools", "array" },
  { "tool_choice", "object" },
  { "thinking", "object", fields = {
    { "type", "string", choices = { "enabled", "disabled", "adaptive" }, required = true },
    { "budget_tokens", "integer", min = 0 }, { "display", "string", unused = true } } },
  { "output_config", "object", fields = {
    { "format", "object" }, { "effort", "string", choices = { "low", "medium", "high", "xhigh", "max" } } } },
  { "speed", "string", only = "standard" },
  { "service_tier", "string", choices = { "auto", "standard_only" } },
  { "metadata", "object", unused = true },
  { "cache_control", "object", unused = true },  -- equal beginnings are found without it
  { "inference_geo", "string", unused = true },
  { "user_profile_id", "string", unused = true },
  { "workspace_id", "string", unused = true },
}

local counted, uncounted = {}, { max_tokens = true, stream = true, stop_sequences = true, service_tier = true }
for _, entry in ipairs(list) do
  if not uncounted[entry[1]] then counted[#counted + 1] = entry end
end

-- ---------------------------------------------------------------- from their messages to ours

local function bad(name, text) problem.raise(400, ("%s: %s"):format(name, text), name) end

-- Adds a message's blocks to a turn: texts of a message follow one another, those of two have a line between them.
local function read_blocks(turn, blocks, name)
  local role, texts, calls, results = turn.role, {}, turn.calls, turn.results
  for i, block in ipairs(blocks) do
    local at, kind = ("%s.content.%d"):format(name, i - 1), type(block) == "table" and block.type
    if kind == "text" and type(block.text) == "string" then
      texts[#texts + 1] = block.text
    elseif kind == "tool_use" and role == "assistant" then
      if fields.type_of(block.input) ~= "object" then bad(at .. ".input", "expected an object") end
      calls[#calls + 1] = {
        id = block.id, type = "function",
        ["function"] = { name = block.name, arguments = q.json.encode(block.input, { ordered = true }) },
      }
    elseif kind == "tool_result" and role == "user" then
      results[#results + 1] = {
        role = "tool", tool_call_id = block.tool_use_id, content = messages.text(block.content, at) or "",
      }
    elseif kind ~= "thinking" and kind ~= "redacted_thinking" then
      bad(at, ("a block of type %s; this model takes texts and tools"):format(tostring(kind)))
    end
  end
  if #texts > 0 then turn.texts[#turn.texts + 1] = table.concat(texts) end
end

-- A turn as messages of ours: results of tools stand before what the user says.
local function add_turn(turn, out)
  for _, result in ipairs(turn.results) do out[#out + 1] = result end
  if #turn.texts > 0 or #turn.calls > 0 or #turn.results == 0 then
    out[#out + 1] = { role = turn.role, content = table.concat(turn.texts, "\n\n"),
      tool_calls = #turn.calls > 0 and turn.calls or nil }
  end
end

local function converted(given, exact, counts)
  local out = {}
  if given.system then
    out[1] = { role = "system", content = messages.text(exact.system, "system") }
  end
  local turns = {}
  for i, message in ipairs(exact.messages) do
    local name = ("messages.%d"):format(i - 1)
    local role, content = type(message) == "table" and message.role, type(message) == "table" and message.content
    if role ~= "user" and role ~= "assistant" then bad(name .. ".role", "expected user or assistant") end
    if type(content) ~= "string" and fields.type_of(content) ~= "array" then
      bad(name .. ".content", "expected a text or a list of blocks")
    end
    if not turns[1] or turns[#turns].role ~= role then
      turns[#turns + 1] = { role = role, texts = {}, calls = q.json.array {}, results = {} }
    end
    read_blocks(turns[#turns], type(content) == "string" and { { type = "text", text = content } } or content, name)
  end
  if not counts and turns[1] and turns[#turns].role == "assistant" then
    bad(("messages.%d"):format(#exact.messages - 1), "this server does not go on from the beginning of an answer")
  end
  for _, turn in ipairs(turns) do add_turn(turn, out) end
  return q.json.array(out)
end

-- Their format of an output as a response_format.
local function format_of(config)
  local format = type(config) == "table" and config ~= q.json.null and config.format
  if not format or format == q.json.null then return nil end
  if format.type ~= "json_schema" then bad("output_config.format.type", "expected json_schema") end
  return { type = "json_schema", json_schema = { schema = format.schema } }
end

-- The fields of /v1/chat/completions that say the same.
local function translated(given)
  local thinks, config = given.thinking and given.thinking.type, given.output_config
  return {
    model = given.model, max_tokens = given.max_tokens, temperature = given.temperature, top_p = given.top_p,
    top_k = given.top_k, stop = given.stop_sequences, n = 1,
    parallel_tool_calls = not (given.tool_choice and given.tool_choice.disable_parallel_tool_use == true),
    reasoning_budget = given.thinking and given.thinking.budget_tokens, response_format = format_of(config),
    reasoning_effort = thinks == "disabled" and "none" or config and config.effort == "max" and "xhigh"
      or config and config.effort,
    chat_template_kwargs = thinks == "enabled" and { enable_thinking = true } or nil,
  }
end

-- Their tools and choice as OpenAI's.
local function tools_of(exact)
  local made = {}
  for i, tool in ipairs(type(exact.tools) == "table" and exact.tools or {}) do
    if type(tool) ~= "table" or tool.type ~= nil and tool.type ~= "custom" then
      bad(("tools.%d"):format(i - 1), "expected {name, description, input_schema}")
    end
    made[i] = { type = "function", ["function"] = setmetatable({
      name = tool.name, description = tool.description, parameters = tool.input_schema, strict = tool.strict,
    }, { __keys = { "name", "description", "parameters", "strict" } }) }
  end
  local choice = type(exact.tool_choice) == "table" and exact.tool_choice or {}
  return made, choice.type == "any" and "required" or choice.type == "tool" and { name = choice.name } or choice.type
end

-- counts: nothing is answered, so that the conversation may end with an answer.
local function spelled(given, exact, counts)
  local made, choice = tools_of(exact)
  return { messages = converted(given, exact, counts), response_format = format_of(exact.output_config), tools = made,
    tool_choice = choice }
end

-- ---------------------------------------------------------------- the answer

local function stop_reason(r, calls)
  if r.finish == "length" then return "max_tokens" end
  if calls > 0 then return "tool_use" end
  return r.stop_string and "stop_sequence" or "end_turn"
end

local function usage(r)
  return {
    input_tokens = r.prompt_tokens - r.reused, cache_read_input_tokens = r.reused, cache_creation_input_tokens = 0,
    output_tokens = #r.output,
  }
end

local function message(call, given, content, r, calls)
  return {
    id = call.server:name "msg", type = "message", role = "assistant", model = given.model,
    content = q.json.array(content), stop_reason = r and stop_reason(r, calls) or q.json.null,
    stop_sequence = r and r.stop_string or q.json.null,
    usage = r and usage(r) or { input_tokens = 0, output_tokens = 0 },
  }
end

local names = { text = "text", reasoning = "thinking" }

local function empty(kind, made)
  if made then return { type = "tool_use", id = made.id, name = made.name, input = {} } end
  return kind == "text" and { type = "text", text = "" } or { type = "thinking", thinking = "", signature = "" }
end

local function whole(call, given, able)
  local content, pieces = {}, {}
  conversation.blocks(call, able, {
    begin = function(kind, made) content[#content + 1], pieces = empty(kind, made), {} end,
    more = function(_, text) pieces[#pieces + 1] = text end,
    stop = function(kind)
      local block, said = content[#content], table.concat(pieces)
      if kind == "call" then  -- one that was cut off stays without its input
        block.input = q.try(q.json.decode, said, { ordered = true, exact = true }) or block.input
      else
        block[names[kind]] = said
      end
    end,
    over = function(r, calls) call:reply(200, message(call, given, content, r, calls)) end,
  })
end

local function streamed(call, given, able)
  local index = -1
  local function tell(name, value)
    value.type = name
    call:send(value, name)
  end
  call:stream()
  tell("message_start", { message = message(call, given, {}) })
  conversation.blocks(call, able, {
    begin = function(kind, made)
      index = index + 1
      tell("content_block_start", { index = index, content_block = empty(kind, made) })
    end,
    more = function(kind, text)
      local name = names[kind]
      if kind == "call" then
        local delta = { type = "input_json_delta", partial_json = text }
        return tell("content_block_delta", { index = index, delta = delta })
      end
      tell("content_block_delta", { index = index, delta = { type = name .. "_delta", [name] = text } })
    end,
    stop = function() tell("content_block_stop", { index = index }) end,
    over = function(r, calls)
      tell("message_delta", {
        delta = { stop_reason = stop_reason(r, calls), stop_sequence = r.stop_string or q.json.null }, usage = usage(r),
      })
      tell("message_stop", {})
      call:close()
    end,
  })
end

-- Anthropic's form of an error's body.
local kinds = { [401] = "authentication_error", [403] = "permission_error", [404] = "not_found_error",
  [413] = "request_too_large", [429] = "rate_limit_error", [503] = "overloaded_error" }
local function errors(status, body)
  local kind = kinds[status] or (status < 500 and "invalid_request_error" or "api_error")
  return { type = "error", error = { type = kind, message = body.error.message } }
end

return function(server)
  server:route("POST", "/v1/messages", function(call, given)
    local served, opt, able = conversation.read(server, translated(given), spelled(given, call:exact()))
    conversation.submit(call, served, opt, 1, given.max_tokens)
    if given.stream then return streamed(call, given, able) end
    whole(call, given, able)
  end, { says = "answers in a conversation, as Anthropic's", fields = list, errors = errors })

  server:route("POST", "/v1/messages/count_tokens", function(call, given)
    local _, opt = conversation.read(server, translated(given), spelled(given, call:exact(), true))
    call:reply(200, { input_tokens = #opt.ids })
  end, { says = "counts the tokens of a conversation, as Anthropic's", fields = counted, errors = errors })
end
