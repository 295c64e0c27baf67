-- POST /v1/completions, as OpenAI specifies it: with the prompt's own log probabilities (echo), which harnesses that
-- score answers need. These count on a token after the prompt: one that ends the answer is among the log probabilities,
-- though its text is not the answer's. A prompt is a text, token ids, or a list of either.

local fields = require "qeng.server.fields"
local infill = require "qeng.server.infill"
local logprobs = require "qeng.server.logprobs"
local problem = require "qeng.server.problem"
local q = require "qeng.core"
local request = require "qeng.infer.request"
local sampling = require "qeng.server.sampling"

local list = sampling.with {
  { "prompt", "string|array", required = true },
  { "max_tokens", "integer", min = 0, default = 16 },
  { "logprobs", "integer", min = 0, max = 20 },
  { "echo", "boolean", default = false },
  { "return_token_ids", "boolean", default = false },  -- vLLM's: the ids of an answer beside its text
  { "best_of", "integer", min = 1 },
  { "suffix", "string" },
  { "response_format", "object" },
}

local most_prompts = 2048

-- The prompts of the field: each a text or a list of ids.
local function prompts(value)
  if type(value) == "string" then return { value } end
  if #value == 0 then problem.raise(400, "Invalid value for 'prompt': an empty list.", "prompt") end
  if type(value[1]) == "number" then return { value } end
  if #value > most_prompts then
    problem.raise(400, ("Invalid value for 'prompt': %d prompts, expected at most %d."):format(#value, most_prompts),
      "prompt")
  end
  for i, one in ipairs(value) do
    if type(one) ~= "string" and fields.type_of(one) ~= "array" then
      problem.raise(400, ("Invalid value for 'prompt[%d]': expected a text or token ids."):format(i - 1), "prompt")
    end
  end
  return value
end

local function read(call, given)
  if given.best_of and given.best_of ~= given.n then
    problem.raise(400, "'best_of' other than 'n' is not supported", "best_of")
  end
  if given.echo and given.stream then problem.raise(400, "'echo' with 'stream' is not supported", "echo") end
  local served, opt = sampling.read(call.server, given, given.response_format, call:exact().response_format)
  opt.logprobs = given.logprobs
  if given.echo then opt.prompt_logprobs = given.logprobs end
  return served, opt
end

-- Submits n requests for each prompt, in order. Also returns the prompts' texts.
local function submit(call, served, opt, given)
  local requests, texts, tokenizer = {}, {}, request.tokenizer(served.model)
  for _, prompt in ipairs(prompts(given.prompt)) do
    local from = type(prompt) == "string" and { prompt = prompt } or { ids = prompt }
    if given.suffix then
      if type(prompt) ~= "string" then problem.raise(400, "'suffix' needs a prompt of text", "suffix") end
      from = { ids = infill.must(tokenizer, prompt, given.suffix, "suffix") }
    end
    local ids = request.ids(served.model, from)
    if #ids == 0 then problem.raise(400, "Invalid value for 'prompt': no tokens.", "prompt") end
    local room = sampling.room(served, ids, given.max_tokens)
    for _ = 1, given.n do
      local own = {}
      for name, value in pairs(opt) do own[name] = value end
      own.ids, own.max_tokens, own.seed = ids, room, (opt.seed + #requests) % 2 ^ 53
      texts[#requests + 1] = type(prompt) == "string" and prompt or tokenizer:decode(ids)
      requests[#requests + 1] = call:submit(served, own)
    end
  end
  return requests, texts
end

local function whole(call, requests, texts, given, head)
  local answers, choices = {}, {}
  for i in ipairs(requests) do answers[i] = given.echo and { texts[i] } or {} end
  call:follow(function(i, _, text) answers[i][#answers[i] + 1] = text end, function(i, r)
    local measured
    if given.logprobs then
      local all, tokenizer = {}, r.model.tokenizer
      if given.echo then
        for k, each in ipairs(r.prompt_logprobs_list) do all[k] = each or { id = r.tokens[1] } end
      end
      for _, each in ipairs(r.logprobs) do all[#all + 1] = each end
      all[#all + 1] = r.stop_logprob or nil
      measured = logprobs.completion(tokenizer, all, 0)
    end
    choices[i] = {
      index = i - 1, text = table.concat(answers[i]), finish_reason = sampling.finish(r),
      logprobs = measured or q.json.null, token_ids = sampling.ids(r, given, 1),
    }
  end)
  head.choices, head.usage = q.json.array(choices), sampling.usage(requests, given.n)
  call:reply(200, head)
end

local function streamed(call, requests, head, given)
  local told, offsets = {}, {}
  call:stream()
  local function chunk(i, r, text, reason)
    local measured
    local first = (told[i] or 0) + 1
    told[i] = #r.output
    if r.logprobs then
      local new = {}
      for k = first, #r.logprobs do new[#new + 1] = r.logprobs[k] end
      new[#new + 1] = reason and r.stop_logprob or nil
      measured, offsets[i] = logprobs.completion(r.model.tokenizer, new, offsets[i] or 0)
    end
    head.choices = q.json.array { {
      index = i - 1, text = text, finish_reason = reason or q.json.null, logprobs = measured or q.json.null,
      token_ids = sampling.ids(r, given, first),
    } }
    call:send(head)
  end
  call:follow(function(i, r, text) chunk(i, r, text) end, function(i, r) chunk(i, r, "", sampling.finish(r)) end)
  sampling.end_stream(call, head, requests, given)
end

return function(server)
  server:route("POST", "/v1/completions", function(call, given)
    local served, opt = read(call, given)
    local requests, texts = submit(call, served, opt, given)
    local head = {
      id = server:name "cmpl", object = "text_completion", created = os.time(), model = given.model or served.name,
      system_fingerprint = served.fingerprint,
    }
    if not given.stream then return whole(call, requests, texts, given, head) end
    streamed(call, requests, head, given)
  end, { says = "continues texts, as OpenAI's", fields = list })
end
