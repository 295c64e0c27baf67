-- What the routes that generate text share: the fields that say how tokens are drawn, and how these become the options
-- of a request (infer/request.lua).

local fields = require "qeng.server.fields"
local problem = require "qeng.server.problem"
local q = require "qeng.core"

local sampling = {}

-- OpenAI's fields, then those of llama.cpp's server and ours by the names that the sampler has for them.
sampling.fields = {
  { "model", "string" },
  { "temperature", "number", min = 0, max = 2, default = 1 },
  { "top_p", "number", min = 0, max = 1, default = 1 },
  { "n", "integer", min = 1, max = 128, default = 1 },
  { "seed", "integer", min = -2 ^ 53, max = 2 ^ 53 },
  { "stop", "string|array", most = 16 },
  { "stream", "boolean", default = false },
  { "stream_options", "object", fields = {
    { "include_usage", "boolean", default = false }, { "include_obfuscation", "boolean", unused = true } } },
  { "presence_penalty", "number", min = -2, max = 2 },
  { "frequency_penalty", "number", min = -2, max = 2 },
  { "logit_bias", "object" },
  { "user", "string", unused = true },
  { "top_k", "integer", min = 0 },
  { "min_p", "number", min = 0, max = 1 },
  { "typical_p", "number", min = 0.01, max = 1 },
  { "repetition_penalty", "number", min = 0.01 },
  { "penalty_window", "integer", min = 0 },
  { "top_n_sigma", "number", min = 0 },
  { "xtc_probability", "number", min = 0, max = 1 },
  { "xtc_threshold", "number", min = 0, max = 1 },
  { "dry_multiplier", "number", min = 0 },
  { "dry_base", "number", min = 1 },
  { "dry_allowed_length", "integer", min = 0 },
  { "dry_penalty_last_n", "integer", min = -1 },
  { "dry_sequence_breakers", "array", most = 64 },
  { "mirostat", "integer", min = 0, max = 2 },
  { "mirostat_tau", "number", min = 0 },
  { "mirostat_eta", "number", min = 0 },
  { "grammar", "string" },
  { "lookup", "integer", min = 0, max = 8 },
  { "reasoning_budget", "integer", min = 0 },
  { "priority", "integer", min = -100, max = 100 },
  { "ignore_eos", "boolean", default = false },
  { "id_slot", "integer", min = -1 },
}

local passed = {
  "temperature", "top_p", "presence_penalty", "frequency_penalty", "top_k", "min_p", "typical_p", "repetition_penalty",
  "penalty_window", "top_n_sigma", "xtc_probability", "xtc_threshold", "dry_multiplier", "dry_base",
  "dry_allowed_length", "dry_penalty_last_n", "dry_sequence_breakers", "mirostat", "mirostat_tau", "mirostat_eta",
}

-- Those fields and a route's own.
function sampling.with(list)
  local all = {}
  for _, entry in ipairs(sampling.fields) do all[#all + 1] = entry end
  for _, entry in ipairs(list) do all[#all + 1] = entry end
  return all
end

local function stops(value)
  if type(value) ~= "table" then return value and { value } end
  for i, text in ipairs(value) do
    if type(text) ~= "string" or text == "" then
      problem.raise(400, ("Invalid value for 'stop[%d]': expected a text."):format(i - 1), "stop")
    end
  end
  return value
end

local function biases(model, given)
  if not given then return nil end
  local all = {}
  for name, bias in pairs(given) do
    local id = tonumber(name)
    if not id or id ~= math.floor(id) or id < 0 or id >= model.config.vocab then
      problem.raise(400, ("Invalid value for 'logit_bias': %s is no token; the model has 0 to %d."):format(name,
        model.config.vocab - 1), "logit_bias")
    end
    if type(bias) ~= "number" or bias < -100 or bias > 100 then
      problem.raise(400, ("Invalid value for 'logit_bias.%s': expected a number from -100 to 100."):format(name),
        "logit_bias")
    end
    all[id] = bias
  end
  return all
end

local kind_of_format = { "type", "string", choices = { "text", "json_object", "json_schema" }, required = true }
local no_schema = { "json_schema", "null" }  -- as clients write fields that they leave out
local formats = {
  text = { kind_of_format, no_schema },
  json_object = { kind_of_format, no_schema, { "schema", "object" }, { "value", "object" } },
  json_schema = { kind_of_format, { "json_schema", "object", required = true, fields = {
    { "schema", "object", required = true }, { "name", "string", unused = true },
    { "description", "string", unused = true }, { "strict", "boolean", unused = true } } } },
}

-- A schema of response_format, or a grammar, as what binds the output; nil: nothing does.
local function bound(given, format, exact)
  if given.grammar and format then
    problem.raise(400, "'grammar' and 'response_format' both say what the answer has to be: give one", "grammar")
  end
  local function made(make, text, param)
    local found, why = q.try(make, text)
    return found or problem.raise(400, ("Invalid value for '%s': %s."):format(param, why.message), param)
  end
  if given.grammar then return made(q.grammar, given.grammar, "grammar") end
  if not format then return nil end
  local checked = fields.read(format, formats[format.type] or { kind_of_format }, "response_format")
  if format.type == "text" then return nil end
  if format.type == "json_object" then  -- llama.cpp's clients give its schema beside it, Hugging Face's call that value
    local schema = checked.schema and exact.schema or checked.value and exact.value or { type = "object" }
    return made(q.json_schema, schema, "response_format")
  end
  return made(q.json_schema, exact.json_schema.schema, "response_format.json_schema.schema")
end

-- The served model of checked fields, and the options of its requests but for the prompt. format: response_format, and
-- exact, the same with the order of its keys.
function sampling.read(server, given, format, exact)
  if server.draining then problem.raise(503, "the server is shutting down") end
  local found, adapter = server:find(given.model)
  if #found.engine.waiting >= server.queue then
    problem.raise(429, "the queue is full: try again later", nil, "rate_limit_exceeded", { ["retry-after"] = "1" })
  end
  if given.id_slot and given.id_slot >= found.engine.max_batch then
    problem.raise(400, ("Invalid value for 'id_slot': there are slots 0 to %d."):format(found.engine.max_batch - 1),
      "id_slot")
  end
  local opt = {
    slot = given.id_slot ~= -1 and given.id_slot or nil, adapter = adapter, stop = stops(given.stop),
    logit_bias = biases(found.model, given.logit_bias),
    lookup = given.lookup, reasoning_budget = given.reasoning_budget, rank = given.priority,
    grammar = bound(given, format, exact),
    stop_ids = given.ignore_eos and {} or nil,
  }
  for _, name in ipairs(passed) do opt[name] = given[name] end
  server.drawn = (server.drawn or 0) + 1
  opt.seed = given.seed and given.seed % 2 ^ 53 or tonumber(q.host.hash(server.salt .. server.drawn):sub(1, 12), 16)
  return found, opt
end

-- How many tokens an answer may have: as many as asked for, else what the context leaves.
function sampling.room(found, ids, asked)
  local left = found:context() - #ids
  if left < 1 then
    problem.raise(400, ("This model's maximum context length is %d tokens, but the prompt has %d."):format(
      found:context(), #ids), "messages", "context_length_exceeded")
  end
  return asked and math.min(asked, left) or left
end

-- OpenAI's account of tokens, of requests of which n each answer one prompt.
function sampling.usage(requests, n)
  local prompt, output, reused, thought = 0, 0, 0, 0
  for i, r in ipairs(requests) do
    if (i - 1) % n == 0 then prompt, reused = prompt + r.prompt_tokens, reused + r.reused end
    output, thought = output + #r.output, thought + (r.reasoning_tokens or 0)
  end
  return {
    prompt_tokens = prompt, completion_tokens = output, total_tokens = prompt + output,
    prompt_tokens_details = { cached_tokens = reused }, completion_tokens_details = { reasoning_tokens = thought },
  }
end

-- Ids of a request's output from the first on, or nil where they are not asked for.
function sampling.ids(r, given, first)
  if not given.return_token_ids then return nil end
  local ids = {}
  for k = first, #r.output do ids[#ids + 1] = r.output[k] end
  return q.json.array(ids)
end

-- Ends a stream as OpenAI's do: with the usage where that was asked for. head: what its chunks have in common; given:
-- the fields.
function sampling.end_stream(call, head, requests, given)
  if given.stream_options and given.stream_options.include_usage then
    head.choices, head.usage = q.json.array {}, sampling.usage(requests, given.n)
    call:send(head)
  end
  call:send "[DONE]"
  call:close()
end

-- OpenAI's word for how an answer ended. calls: of tools, that it made, the last of which may have been cut off.
function sampling.finish(r, calls)
  if r.finish == "length" then return "length" end
  return (calls or 0) > 0 and "tool_calls" or "stop"
end

return sampling
