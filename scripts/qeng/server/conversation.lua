-- Answers in a conversation, for every API that has them: checked fields, named as /v1/chat/completions names them,
-- become requests of an engine, and what these say becomes texts, reasoning and calls of tools.

local messages = require "qeng.server.messages"
local problem = require "qeng.server.problem"
local request = require "qeng.infer.request"
local sampling = require "qeng.server.sampling"

local conversation = {}

local function template_arguments(given)
  local all = {}
  for name, value in pairs(given.chat_template_kwargs or {}) do all[name] = value end
  if given.reasoning_effort then
    all.reasoning_effort = given.reasoning_effort
    if given.reasoning_effort == "none" then all.enable_thinking = false end
  end
  return next(all) and all or nil
end

-- The served model, and the options of its requests. given: checked fields; exact: messages and response_format with
-- the order of their keys.
function conversation.read(server, given, exact)
  if given.max_tokens and given.max_completion_tokens and given.max_tokens ~= given.max_completion_tokens then
    problem.raise(400, "'max_tokens' and 'max_completion_tokens' differ: give one", "max_tokens")
  end
  if given.top_logprobs and not given.logprobs then
    problem.raise(400, "'top_logprobs' needs 'logprobs': true", "top_logprobs")
  end
  local served, opt = sampling.read(server, given, given.response_format, exact.response_format)
  local said = messages.read(exact.messages)
  opt.ids = request.ids(served.model, { messages = said, template_args = template_arguments(given) })
  opt.max_tokens = sampling.room(served, opt.ids, given.max_completion_tokens or given.max_tokens)
  opt.reasoning = served:thinks()
  if given.logprobs then opt.logprobs = given.top_logprobs or 0 end
  return served, opt
end

-- Submits n requests, of seeds one after the other.
function conversation.submit(call, served, opt, n)
  local requests = {}
  for i = 1, n do
    local own = {}
    for name, value in pairs(opt) do own[name] = value end
    own.seed = (opt.seed + i - 1) % 2 ^ 53
    requests[i] = call:submit(served, own)
  end
  return requests
end

-- Follows the requests of a call to their ends: on.text(i, request, text) and on.reasoning(i, request, text) as they
-- come, on.over(i, request) at the end of each.
function conversation.follow(call, on)
  local said = {}
  call:follow(function(i, r, text, kind)
    if kind == "reasoning" then
      said[i] = "reasoning"
      return on.reasoning(i, r, text)
    end
    if said[i] == "reasoning" then text = text:gsub("^%s+", "") end  -- the lines between reasoning and answer
    if text == "" then return end
    said[i] = "text"
    on.text(i, r, text)
  end, on.over)
end

-- The same of a single request, as blocks one after the other: on.begin(kind) with kind "text" or "reasoning",
-- on.more(kind, text), on.stop(kind), and on.over(request) after the last. There is at least one.
function conversation.blocks(call, on)
  local open
  local function say(kind, text)
    if open ~= kind then
      if open then on.stop(open) end
      open = kind
      on.begin(kind)
    end
    if text then on.more(kind, text) end
  end
  conversation.follow(call, {
    text = function(_, _, text) say("text", text) end,
    reasoning = function(_, _, text) say("reasoning", text) end,
    over = function(_, r)
      if not open then say "text" end
      on.stop(open)
      on.over(r)
    end,
  })
end

-- OpenAI's word for how an answer ended.
function conversation.finish(r) return r.finish == "length" and "length" or "stop" end

return conversation
