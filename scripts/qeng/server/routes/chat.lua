-- POST /v1/chat/completions, as OpenAI specifies it.

local fields = require "qeng.server.fields"
local logprobs = require "qeng.server.logprobs"
local messages = require "qeng.server.messages"
local problem = require "qeng.server.problem"
local q = require "qeng.core"
local request = require "qeng.infer.request"
local sampling = require "qeng.server.sampling"

local list = sampling.with {
  { "messages", "array", required = true },
  { "max_tokens", "integer", min = 1 },
  { "max_completion_tokens", "integer", min = 1 },
  { "logprobs", "boolean", default = false },
  { "top_logprobs", "integer", min = 0, max = 20 },
  { "response_format", "object" },
  { "tools", "array" },
  { "tool_choice", "string|object" },
  { "parallel_tool_calls", "boolean" },
  { "chat_template_kwargs", "object" },
  { "reasoning_effort", "string", choices = { "none", "minimal", "low", "medium", "high", "xhigh" } },
  { "modalities", "array" },
  { "store", "boolean", only = false },
  { "service_tier", "string", choices = { "auto", "default" } },
  { "metadata", "object", unused = true },
  { "prompt_cache_key", "string", unused = true },
  { "safety_identifier", "string", unused = true },
}

local function template_arguments(given)
  local all = {}
  for name, value in pairs(given.chat_template_kwargs or {}) do all[name] = value end
  if given.reasoning_effort then
    all.reasoning_effort = given.reasoning_effort
    if given.reasoning_effort == "none" then all.enable_thinking = false end
  end
  return next(all) and all or nil
end

-- The served model, the options of its requests, and the checked fields.
local function read(call)
  local given = fields.read(call:json(), list)
  local exact = call:exact()
  if given.max_tokens and given.max_completion_tokens and given.max_tokens ~= given.max_completion_tokens then
    problem.raise(400, "'max_tokens' and 'max_completion_tokens' differ: give one", "max_tokens")
  end
  if given.top_logprobs and not given.logprobs then
    problem.raise(400, "'top_logprobs' needs 'logprobs': true", "top_logprobs")
  end
  for i, kind in ipairs(given.modalities or {}) do
    if kind ~= "text" then
      problem.raise(400, ("Invalid value for 'modalities[%d]': only text."):format(i - 1), "modalities")
    end
  end
  local served, opt = sampling.read(call.server, given, given.response_format, exact.response_format)
  local said = messages.read(exact.messages)
  opt.ids = request.ids(served.model, { messages = said, template_args = template_arguments(given) })
  opt.max_tokens = sampling.room(served, opt.ids, given.max_completion_tokens or given.max_tokens)
  opt.reasoning = served:thinks()
  if given.logprobs then opt.logprobs = given.top_logprobs or 0 end
  return served, opt, given
end

local function submit(call, served, opt, n)
  local requests, seed = {}, opt.seed
  for i = 1, n do
    local own = {}
    for name, value in pairs(opt) do own[name] = value end
    own.seed = (seed + i - 1) % 2 ^ 53
    requests[i] = call:submit(served, own)
  end
  return requests
end

-- OpenAI's word for how an answer ended.
local function finish(r) return r.finish == "length" and "length" or "stop" end

local function whole(call, requests, head)
  local texts = {}
  for i in ipairs(requests) do texts[i] = { content = {}, reasoning = {} } end
  local choices = {}
  call:follow(function(i, _, text, kind)
    local list_of = texts[i][kind or "content"]
    list_of[#list_of + 1] = text
  end, function(i, r)
    local message = { role = "assistant", content = table.concat(texts[i].content), refusal = q.json.null }
    if texts[i].reasoning[1] then message.reasoning_content = table.concat(texts[i].reasoning) end
    choices[i] = {
      index = i - 1, message = message, finish_reason = finish(r),
      logprobs = r.logprobs and logprobs.chat(r, 1) or q.json.null,
    }
  end)
  head.object, head.choices, head.usage = "chat.completion", q.json.array(choices), sampling.usage(requests)
  call:reply(200, head)
end

local function streamed(call, requests, head, usage)
  local told = {}
  head.object = "chat.completion.chunk"
  if usage then head.usage = q.json.null end
  local function chunk(i, r, delta, reason)
    local measured = q.json.null
    if r and r.logprobs then
      measured, told[i] = logprobs.chat(r, (told[i] or 0) + 1), #r.logprobs
    end
    head.choices = q.json.array { {
      index = i - 1, delta = delta, finish_reason = reason or q.json.null, logprobs = measured,
    } }
    call:send(head)
  end
  call:stream()
  for i in ipairs(requests) do chunk(i, nil, { role = "assistant", content = "" }) end
  call:follow(function(i, r, text, kind)
    chunk(i, r, kind and { reasoning_content = text } or { content = text })
  end, function(i, r) chunk(i, r, {}, finish(r)) end)
  if usage then
    head.choices, head.usage = q.json.array {}, sampling.usage(requests)
    call:send(head)
  end
  call:send "[DONE]"
  call:close()
end

return function(server)
  server:route("POST", "/v1/chat/completions", function(call)
    local served, opt, given = read(call)
    local requests = submit(call, served, opt, given.n)
    local head = {
      id = server:name "chatcmpl", created = os.time(), model = given.model or served.name,
      system_fingerprint = served.fingerprint, service_tier = "default",
    }
    if not given.stream then return whole(call, requests, head) end
    streamed(call, requests, head, given.stream_options and given.stream_options.include_usage)
  end)
end
