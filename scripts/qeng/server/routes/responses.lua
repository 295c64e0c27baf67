-- OpenAI's responses: POST /v1/responses, GET and DELETE /v1/responses/{id}. The conversation before an answer is kept
-- under its id, unless store is false, so that previous_response_id goes on from there: the last 256, in memory.

local conversation = require "qeng.server.conversation"
local fields = require "qeng.server.fields"
local messages = require "qeng.server.messages"
local problem = require "qeng.server.problem"
local q = require "qeng.core"

local list = {
  { "model", "string" },
  { "input", "string|array", required = true },
  { "instructions", "string" },
  { "max_output_tokens", "integer", min = 1 },
  { "temperature", "number", min = 0, max = 2, default = 1 },
  { "top_p", "number", min = 0, max = 1, default = 1 },
  { "stream", "boolean", default = false },
  { "stream_options", "object", fields = { { "include_obfuscation", "boolean", unused = true } } },
  { "previous_response_id", "string" },
  { "store", "boolean", default = true },
  { "text", "object", fields = {
    { "format", "object" }, { "verbosity", "string", only = "medium" } } },
  { "reasoning", "object", fields = {
    { "effort", "string", choices = { "none", "minimal", "low", "medium", "high", "xhigh" } },
    { "summary", "string", only = "auto", unused = true }, { "generate_summary", "string", only = "auto",
      unused = true } } },
  { "tools", "array" },
  { "tool_choice", "string|object" },
  { "parallel_tool_calls", "boolean" },
  { "truncation", "string", only = "disabled" },
  { "background", "boolean", only = false },
  { "include", "array", each = { "reasoning.encrypted_content" }, unused = true },
  { "metadata", "object", default = {} },
  { "service_tier", "string", choices = { "auto", "default" } },
  { "user", "string", unused = true },
  { "prompt_cache_key", "string", unused = true },
  { "prompt_cache_options", "object", unused = true },
  { "prompt_cache_retention", "string", unused = true },
  { "safety_identifier", "string", unused = true },
}

local most_kept = 256
local null = q.json.null

-- ---------------------------------------------------------------- from their input to messages

local function bad(name, text) problem.raise(400, ("Invalid value for '%s': %s."):format(name, text), name) end

local function item_of(item, name)
  if fields.type_of(item) ~= "object" then bad(name, "expected an object") end
  local kind = item.type or "message"
  if kind == "message" then return { role = item.role, content = messages.text(item.content, name .. ".content") } end
  if kind == "function_call" then
    return { role = "assistant", content = "", tool_calls = q.json.array { {
      id = item.call_id, type = "function", ["function"] = { name = item.name, arguments = item.arguments } } } }
  end
  if kind == "function_call_output" then
    return { role = "tool", tool_call_id = item.call_id, content = messages.text(item.output, name .. ".output") or "" }
  end
  if kind ~= "reasoning" then bad(name .. ".type", ("%s is not supported"):format(tostring(kind))) end
end

-- Appends a message. Calls belong to what the assistant said before them, which other conversations may have too.
local function add(said, message)
  local last = said[#said]
  if not message or not message.tool_calls or not last or last.role ~= "assistant" then
    said[#said + 1] = message
    return
  end
  local calls = q.json.array {}
  for _, made in ipairs { last.tool_calls or {}, message.tool_calls } do
    for _, call in ipairs(made) do calls[#calls + 1] = call end
  end
  said[#said] = { role = "assistant", content = last.content, tool_calls = calls }
end

-- The messages of the input, after those of the conversation before.
local function converted(given, exact, before)
  local said = {}
  for i, message in ipairs(before) do said[i] = message end
  if type(given.input) == "string" then
    said[#said + 1] = { role = "user", content = given.input }
  else
    for i, item in ipairs(exact.input) do add(said, item_of(item, ("input[%d]"):format(i - 1))) end
  end
  return said
end

local function with_instructions(said, instructions)
  local all = { instructions and { role = "system", content = instructions } }
  for _, message in ipairs(said) do all[#all + 1] = message end
  return q.json.array(all)
end

-- Their text.format as a response_format.
local function format_of(format)
  if not format or format == null then return nil end
  if format.type ~= "json_schema" then return format end
  return { type = "json_schema", json_schema = { schema = format.schema } }
end

-- Their tools as those of chat completions.
local function tools_of(exact)
  local made = {}
  for i, tool in ipairs(type(exact.tools) == "table" and exact.tools or {}) do
    if type(tool) ~= "table" or tool.type ~= "function" then
      bad(("tools[%d].type"):format(i - 1), "expected function")
    end
    made[i] = { type = "function", ["function"] = setmetatable({
      name = tool.name, description = tool.description, parameters = tool.parameters, strict = tool.strict,
    }, { __keys = { "name", "description", "parameters", "strict" } }) }
  end
  local choice = exact.tool_choice
  return made, choice ~= null and choice or nil
end

local function translated(given)
  local effort = given.reasoning and given.reasoning.effort
  return {
    model = given.model, max_tokens = given.max_output_tokens, temperature = given.temperature, top_p = given.top_p,
    reasoning_effort = effort, parallel_tool_calls = given.parallel_tool_calls,
    response_format = format_of(given.text and given.text.format), n = 1,
  }
end

-- ---------------------------------------------------------------- the answer

local function usage(r)
  return {
    input_tokens = r.prompt_tokens, input_tokens_details = { cached_tokens = r.reused },
    output_tokens = #r.output, output_tokens_details = { reasoning_tokens = r.reasoning_tokens or 0 },
    total_tokens = r.prompt_tokens + #r.output,
  }
end

-- Makes an object of theirs what answers repeat of it: with every field that they have, null where nothing was given.
local function repeated(given, names)
  for _, name in ipairs(names) do
    if given[name] == nil then given[name] = null end
  end
end

local function head_of(call, served, given)
  local format = given.text and given.text.format or { type = "text" }
  if format.type == "json_schema" then
    format.strict = format.strict == true
    repeated(format, { "name", "description" })
  end
  for _, tool in ipairs(given.tools or {}) do repeated(tool, { "description", "parameters", "strict" }) end
  return {
    id = call.server:name "resp", object = "response", created_at = os.time(), status = "in_progress", error = null,
    incomplete_details = null, instructions = given.instructions or null, metadata = given.metadata,
    max_output_tokens = given.max_output_tokens or null, model = given.model or served.name, output = q.json.array {},
    parallel_tool_calls = given.parallel_tool_calls ~= false, background = false, completed_at = null,
    previous_response_id = given.previous_response_id or null, max_tool_calls = null, service_tier = "default",
    reasoning = { effort = given.reasoning and given.reasoning.effort or null, summary = null }, store = given.store,
    temperature = given.temperature, text = { format = format },
    tool_choice = given.tool_choice or "auto", tools = given.tools or q.json.array {}, top_p = given.top_p,
    truncation = "disabled", usage = null, user = null, frequency_penalty = 0, presence_penalty = 0, top_logprobs = 0,
    prompt_cache_key = null, safety_identifier = null,
  }
end

local function part_of(kind, text)
  if kind == "reasoning" then return { type = "reasoning_text", text = text } end
  return { type = "output_text", text = text, annotations = q.json.array {}, logprobs = q.json.array {} }
end

local function item_for(call, kind, made, status)
  if kind == "call" then
    return { type = "function_call", id = call.server:name "fc", call_id = made.id, name = made.name, arguments = "",
      status = status }
  end
  if kind == "reasoning" then
    return { type = "reasoning", id = call.server:name "rs", summary = q.json.array {}, status = status,
      content = q.json.array {} }
  end
  return { type = "message", id = call.server:name "msg", role = "assistant", status = status,
    content = q.json.array {} }
end

-- Follows the request, and completes the head. tell(name, value): events of a stream.
local function follow(call, able, head, tell)
  local item, text
  local function place(kind, more)
    local value = { output_index = #head.output - 1, item_id = item.id }
    if kind ~= "call" then value.content_index = 0 end
    if kind == "text" then value.logprobs = q.json.array {} end
    for name, each in pairs(more) do value[name] = each end
    return value
  end
  local names = { text = "response.output_text", reasoning = "response.reasoning_text",
    call = "response.function_call_arguments" }
  conversation.blocks(call, able, {
    begin = function(kind, made)
      item, text = item_for(call, kind, made, "in_progress"), {}
      head.output[#head.output + 1] = item
      tell("response.output_item.added", { output_index = #head.output - 1, item = item })
      if kind ~= "call" then tell("response.content_part.added", place("part", { part = part_of(kind, "") })) end
    end,
    more = function(kind, piece)
      text[#text + 1] = piece
      tell(names[kind] .. ".delta", place(kind, { delta = piece }))
    end,
    stop = function(kind, r)
      local said = table.concat(text)
      item.status = r and r.finish == "length" and "incomplete" or "completed"
      if kind == "call" then
        item.arguments = said
        tell(names.call .. ".done", place(kind, { arguments = said, name = item.name }))
      else
        item.content[1] = part_of(kind, said)
        tell(names[kind] .. ".done", place(kind, { text = said }))
        tell("response.content_part.done", place("part", { part = item.content[1] }))
      end
      tell("response.output_item.done", { output_index = #head.output - 1, item = item })
    end,
    over = function(r)
      local cut = r.finish == "length"
      head.status, head.usage = cut and "incomplete" or "completed", usage(r)
      head.completed_at = cut and null or os.time()
      head.incomplete_details = cut and { reason = "max_output_tokens" } or null
    end,
  })
end

-- Keeps a conversation with its answer, but for a call that was cut off.
local function remember(kept, head, said)
  local text, calls = {}, q.json.array {}
  for _, item in ipairs(head.output) do
    if item.type == "message" then text[#text + 1] = item.content[1].text end
    if item.type == "function_call" and messages.arguments(item.arguments) then
      calls[#calls + 1] = { id = item.call_id, type = "function",
        ["function"] = { name = item.name, arguments = item.arguments } }
    end
  end
  said[#said + 1] = { role = "assistant", content = table.concat(text), tool_calls = #calls > 0 and calls or nil }
  kept[head.id] = { head = head, said = said }
  kept.order[#kept.order + 1] = head.id
  while #kept.order > most_kept do kept[table.remove(kept.order, 1)] = nil end
end

return function(server)
  local kept = { order = {} }

  local function find(id, param)
    return id ~= "order" and kept[id]
      or problem.raise(param and 400 or 404, ("Response '%s' is not known here."):format(id), param,
        "previous_response_not_found")
  end

  server:route("POST", "/v1/responses", function(call, given)
    local exact = call:exact()
    local id = given.previous_response_id
    local said = converted(given, exact, id and find(id, "previous_response_id").said or {})
    local made, choice = tools_of(exact)
    local served, opt, able = conversation.read(server, translated(given), {
      tools = made, tool_choice = choice, messages = with_instructions(said, given.instructions),
      response_format = format_of(type(exact.text) == "table" and exact.text.format or nil),
    })
    conversation.submit(call, served, opt, 1, given.max_output_tokens)
    local head, number = head_of(call, served, given), -1
    local function tell(name, value)
      number = number + 1
      value.type, value.sequence_number = name, number
      call:send(value, name)
    end
    if given.stream then
      call:stream()
      tell("response.created", { response = head })
      tell("response.in_progress", { response = head })
      function call.broken(body)
        tell("error", body)
        head.status, head.error = "failed", { code = body.error.type, message = body.error.message }
        tell("response.failed", { response = head })
        call:send "[DONE]"
      end
    end
    follow(call, able, head, given.stream and tell or function() end)
    if given.store then remember(kept, head, said) end
    if not given.stream then return call:reply(200, head) end
    tell("response." .. head.status, { response = head })
    call:send "[DONE]"
    call:close()
  end, { says = "answers, and keeps the conversation, as OpenAI's", fields = list })

  server:route("GET", "/v1/responses/{id}", function(call) call:reply(200, find(call.params.id).head) end,
    { says = "an answer that is kept" })

  server:route("DELETE", "/v1/responses/{id}", function(call)
    find(call.params.id)
    kept[call.params.id] = nil
    call:reply(200, { id = call.params.id, object = "response", deleted = true })
  end, { says = "forgets an answer" })
end
