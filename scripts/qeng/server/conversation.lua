-- Answers in a conversation, for every API that has them: checked fields, named as /v1/chat/completions names them,
-- become requests of an engine, and what these say becomes texts, reasoning and calls of tools.

local messages = require "qeng.server.messages"
local problem = require "qeng.server.problem"
local q = require "qeng.core"
local request = require "qeng.infer.request"
local sampling = require "qeng.server.sampling"
local tools = require "qeng.server.tools"

local conversation = {}

-- What the template is told beside messages. Not to reason is said in the words that it has; one that has none is told
-- nothing if the model does not reason anyway.
local function template_arguments(served, given)
  local all, template = {}, request.tokenizer(served.model):info().chat_template or ""
  local function knows(name) return template:find(name, 1, true) ~= nil end
  for name, value in pairs(given.chat_template_kwargs or {}) do all[name] = value end
  if given.reasoning_effort ~= "none" then
    all.reasoning_effort = given.reasoning_effort or all.reasoning_effort
  elseif knows "enable_thinking" or knows "reasoning_effort" or served:thinks() then
    if knows "enable_thinking" then all.enable_thinking = false end
    if knows "reasoning_effort" or not knows "enable_thinking" then all.reasoning_effort = "none" end
  end
  return next(all) and all or nil
end

-- The tokens of a prompt. What the template or its messages are wrong about is the client's to mend.
function conversation.ids(model, prompt)
  local ids, why = q.try(request.ids, model, prompt)
  if not ids and why.code == "format" then problem.raise(400, why.message, "messages") end
  return ids or error(why, 0)
end

-- The served model, the options of its requests, and its tools (server/tools.lua) or nil. given: checked fields; exact:
-- messages, tools and response_format with the order of their keys.
function conversation.read(server, given, exact)
  if given.max_tokens and given.max_completion_tokens and given.max_tokens ~= given.max_completion_tokens then
    problem.raise(400, "'max_tokens' and 'max_completion_tokens' differ: give one", "max_tokens")
  end
  if given.top_logprobs and not given.logprobs then
    problem.raise(400, "'top_logprobs' needs 'logprobs': true", "top_logprobs")
  end
  local served, opt = sampling.read(server, given, given.response_format, exact.response_format)
  local said = messages.read(exact.messages)
  local able = tools.new(request.tokenizer(served.model), exact.tools, exact.tool_choice, given.parallel_tool_calls)
  if able then
    if opt.grammar and able.choice ~= "none" then
      problem.raise(400, "'response_format' binds the answer so that no tool can be called: give \"tool_choice\": "
        .. "\"none\" with it, or no tools", "response_format")
    end
    said, opt.grammar, opt.visible = able:messages(said), able:grammar() or opt.grammar, able:tokens()
  end
  opt.ids = conversation.ids(served.model, {
    messages = said, tools = able and able:for_template(), template_args = template_arguments(served, given),
  })
  opt.reasoning = served:thinks()
  if given.logprobs then opt.logprobs = given.top_logprobs or 0 end
  return served, opt, able
end

-- Submits n requests, of seeds one after the other, each of at most so many tokens; nil: as many as the context leaves.
function conversation.submit(call, served, opt, n, most)
  local requests = {}
  opt.max_tokens = sampling.room(served, opt.ids, most)
  for i = 1, n do
    local own = {}
    for name, value in pairs(opt) do own[name] = value end
    own.seed = (opt.seed + i - 1) % 2 ^ 53
    requests[i] = call:submit(served, own)
  end
  return requests
end

-- Follows the requests of a call to their ends: on.text(i, request, text), on.reasoning(i, request, text) and, with
-- tools, on.call(i, request, event) with each event of a call (server/tool_parser.lua), as they come; on.over(i,
-- request, calls) at the end of each, with how many calls it made. Without parallel calls the first ends the answer.
function conversation.follow(call, able, on)
  local said, parsers, calls = {}, {}, {}
  local function heard(i, r, events)
    for _, event in ipairs(events) do
      if event.text then
        on.text(i, r, event.text)
      elseif event.call == 0 or able.parallel then
        calls[i] = event.call + 1
        on.call(i, r, event)
        if event.over and not able.parallel then return r.engine:cancel(r) end
      end
    end
  end
  call:follow(function(i, r, text, kind)
    if kind == "reasoning" then
      said[i] = "reasoning"
      return on.reasoning(i, r, text)
    end
    if said[i] == "reasoning" then text = text:gsub("^%s+", "") end  -- the lines between reasoning and answer
    if text == "" then return end
    said[i] = "text"
    if not able then return on.text(i, r, text) end
    parsers[i] = parsers[i] or able:parser(r.seed)
    heard(i, r, parsers[i]:push(text))
  end, function(i, r)
    if parsers[i] then heard(i, r, parsers[i]:finish()) end
    on.over(i, r, calls[i] or 0)
  end)
end

-- The same of a single request, as blocks one after the other: on.begin(kind, made) with kind "text", "reasoning" or
-- "call", then made of {id =, name =}, on.more(kind, text), on.stop(kind, request), where only the last one's has the
-- request, and on.over(request, calls) after it. There is at least one.
function conversation.blocks(call, able, on)
  local open
  local function say(kind, text, made)
    if open ~= kind or made then
      if open then on.stop(open) end
      open = kind
      on.begin(kind, made)
    end
    if text then on.more(kind, text) end
  end
  conversation.follow(call, able, {
    text = function(_, _, text) say("text", text) end,
    reasoning = function(_, _, text) say("reasoning", text) end,
    call = function(_, _, event) if not event.over then say("call", event.arguments, event.id and event) end end,
    over = function(_, r, calls)
      if not open then say "text" end
      on.stop(open, r)
      on.over(r, calls)
    end,
  })
end

return conversation
