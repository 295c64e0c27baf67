-- POST /v1/chat/completions, as OpenAI specifies it.

local conversation = require "qeng.server.conversation"
local logprobs = require "qeng.server.logprobs"
local q = require "qeng.core"
local sampling = require "qeng.server.sampling"

local list = sampling.with {
  { "messages", "array", required = true },
  { "max_tokens", "integer", min = 1 },
  { "max_completion_tokens", "integer", min = 1 },
  { "logprobs", "boolean", default = false },
  { "top_logprobs", "integer", min = 0, max = 20 },
  { "return_token_ids", "boolean", default = false },  -- vLLM's: the ids of an answer beside its text
  { "response_format", "object" },
  { "tools", "array" },
  { "tool_choice", "string|object" },
  { "parallel_tool_calls", "boolean" },
  { "chat_template_kwargs", "object" },
  { "reasoning_effort", "string", choices = { "none", "minimal", "low", "medium", "high", "xhigh" } },
  { "modalities", "array", each = { "text" }, unused = true },
  { "store", "boolean", only = false },
  { "service_tier", "string", choices = { "auto", "default" } },
  { "metadata", "object", unused = true },
  { "verbosity", "string", only = "medium" },
  { "prompt_cache_key", "string", unused = true },
  { "prompt_cache_options", "object", unused = true },
  { "prompt_cache_retention", "string", unused = true },
  { "safety_identifier", "string", unused = true },
}

local function whole(call, able, requests, head, given)
  local texts, thoughts, calls, choices = {}, {}, {}, {}
  for i in ipairs(requests) do texts[i], thoughts[i], calls[i] = {}, {}, {} end
  conversation.follow(call, able, {
    text = function(i, _, text) table.insert(texts[i], text) end,
    reasoning = function(i, _, text) table.insert(thoughts[i], text) end,
    call = function(i, _, event)
      if event.id then calls[i][event.call + 1] = { made = event, pieces = {} } end
      table.insert(calls[i][event.call + 1].pieces, event.arguments)
    end,
    over = function(i, r, count)
      local text = table.concat(texts[i])
      for k, one in ipairs(calls[i]) do
        calls[i][k] = { id = one.made.id, type = "function",
          ["function"] = { name = one.made.name, arguments = table.concat(one.pieces) } }
      end
      choices[i] = {
        index = i - 1, finish_reason = sampling.finish(r, count),
        message = {
          role = "assistant", content = (text ~= "" or count == 0) and text or q.json.null, refusal = q.json.null,
          reasoning_content = thoughts[i][1] and table.concat(thoughts[i]),
          tool_calls = count > 0 and q.json.array(calls[i]) or nil,
        },
        logprobs = r.logprobs and logprobs.chat(r, 1) or q.json.null, token_ids = sampling.ids(r, given, 1),
      }
    end,
  })
  head.object, head.choices, head.usage = "chat.completion", q.json.array(choices), sampling.usage(requests, given.n)
  call:reply(200, head)
end

local function streamed(call, able, requests, head, given)
  local told = {}
  head.object = "chat.completion.chunk"
  if given.stream_options and given.stream_options.include_usage then head.usage = q.json.null end
  local function chunk(i, r, delta, reason)
    local first = (told[i] or 0) + 1
    told[i] = r and #r.output
    head.choices = q.json.array { {
      index = i - 1, delta = delta, finish_reason = reason or q.json.null,
      logprobs = r and r.logprobs and logprobs.chat(r, first) or q.json.null,
      token_ids = r and sampling.ids(r, given, first),
    } }
    call:send(head)
  end
  call:stream()
  for i in ipairs(requests) do chunk(i, nil, { role = "assistant", content = "" }) end
  conversation.follow(call, able, {
    text = function(i, r, text) chunk(i, r, { content = text }) end,
    reasoning = function(i, r, text) chunk(i, r, { reasoning_content = text }) end,
    call = function(i, r, event)
      if event.over then return end
      chunk(i, r, { tool_calls = q.json.array { { index = event.call, id = event.id, type = event.id and "function",
        ["function"] = { name = event.name, arguments = event.arguments or "" } } } })
    end,
    over = function(i, r, calls) chunk(i, r, {}, sampling.finish(r, calls)) end,
  })
  sampling.end_stream(call, head, requests, given)
end

return function(server)
  server:route("POST", "/v1/chat/completions", function(call, given)
    local served, opt, able = conversation.read(server, given, call:exact())
    local requests = conversation.submit(call, served, opt, given.n,
      given.max_completion_tokens or given.max_tokens)
    local head = {
      id = server:name "chatcmpl", created = os.time(), model = given.model or served.name,
      system_fingerprint = served.fingerprint, service_tier = "default",
    }
    if not given.stream then return whole(call, able, requests, head, given) end
    streamed(call, able, requests, head, given)
  end, { says = "answers in a conversation, as OpenAI's", fields = list })
end
