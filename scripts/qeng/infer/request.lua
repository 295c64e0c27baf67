-- One request of the engine: its tokens so far, its sampler, and its text. Options:
--   ids, prompt or messages   what to go on from: token ids, a text, or a chat (system, tools, template, template_args)
--   max_tokens (256)          of the output
--   the options of q.sampler
--   stop                      strings that end it; one that is a special token counts among the stop_ids
--   stop_ids                  a set of ids that end it; by default the model's own
--   grammar                   q.grammar or q.json_schema, or a matcher of one
--   adapter                   from model:read_adapter; false: none, nil: the model's own
--   logprobs, prompt_logprobs how many alternatives to tell; 0: only the token's own
--   context                   "stop", "error" or "shift", when it is full
--   keep                      tokens at the beginning that a shift keeps
--   lookup                    guess up to so many tokens from earlier occurrences
--   draft                     false: without the engine's draft model
--   visible                   special tokens whose text counts as the answer's, and the grammar's: {[id] = true}
--   rank                      those of a smaller one are admitted first (0)
--   reasoning                 true: what stands between <think> and </think> comes apart, and a grammar binds after it.
--                             A prompt opens it if it ends with <think>, and perhaps white space
--   reasoning_budget          after so many tokens of reasoning </think> is said for the model
--   on_token(request, id)     is called for each token of the output
-- Fields: tokens (prompt and output), output (ids), text, reasoning_text, finish ("stop", "length", "cancelled" or
-- "error"), error, stop_id (the token that ended it, which is not in the output), stop_string, logprobs ({id, logprob,
-- top = {{id, logprob}...}}... of the output), stop_logprob (the same of stop_id), prompt_logprobs_list (the first is
-- false), reused (tokens of the prompt that were there already), drafted and accepted (guesses made, and those that
-- came true), preempted, reasoning_tokens (of the output, with <think> and </think>).

local adapters = require "qeng.model.lora"
local chat = require "qeng.chat"
local config = require "qeng.model.config"
local look = require "qeng.model.look"
local q = require "qeng.core"
local stop = require "qeng.infer.stop"

local request = {}
local Request = {}
Request.__index = Request

local function refuse(name, value, expected)
  local shown = type(value) == "table" and "a table" or tostring(value)
  q.error("value", ("generate: %s is %s, expected %s"):format(name, shown, expected))
end
local function check_type(opt, name, kind, expected)
  if opt[name] ~= nil and type(opt[name]) ~= kind then refuse(name, opt[name], expected) end
end

local sampling = {
  "temperature", "top_k", "top_p", "min_p", "typical_p", "repetition_penalty", "presence_penalty", "frequency_penalty",
  "penalty_window", "logit_bias", "seed", "dry_multiplier", "dry_base", "dry_allowed_length", "dry_penalty_last_n",
  "dry_sequence_breakers",
  "top_n_sigma", "xtc_probability", "xtc_threshold", "mirostat", "mirostat_tau", "mirostat_eta",
}
request.sampling = sampling

local breakers = { "\n", ":", '"', "*" }  -- llama.cpp's

local known = {}
for name in ([[
  ids prompt messages system tools template template_args max_tokens stop stop_ids grammar adapter logprobs
  prompt_logprobs context keep lookup draft reasoning reasoning_budget on_token rank visible
]]):gmatch "%S+" do known[name] = true end
for _, name in ipairs(sampling) do known[name] = true end

-- The list of ids, or the one id, that the first of these files says under `key`; else an empty list.
local function ids_in(dir, files, key)
  for _, name in ipairs(dir and files or {}) do
    local path = dir .. "/" .. name
    local ids, list = q.fs.kind(path) == "file" and config.values(path)[key], {}
    for _, id in ipairs(type(ids) == "table" and ids or { ids }) do
      if type(id) == "number" and id >= 0 then list[#list + 1] = id end
    end
    if type(ids) == "number" or type(ids) == "table" then return list end
  end
  return {}
end

-- The ids that end an answer: the file's own, eos of the tokenizer and of generation_config.json (else of config.json),
-- and those that end a turn.
function request.stops(model)
  local stops, tokenizer = {}, model.tokenizer
  for _, id in ipairs(model.stop_ids or {}) do stops[id] = true end
  if tokenizer then
    local eos = tokenizer:info().eos
    if eos then stops[eos] = true end
    for _, name in ipairs { "<|im_end|>", "<|endoftext|>", "<|eot_id|>", "<end_of_turn>" } do
      local id = tokenizer:id(name)
      if id then stops[id] = true end
    end
  end
  for _, id in ipairs(ids_in(model.dir, { "generation_config.json", "config.json" }, "eos_token_id")) do
    stops[id] = true
  end
  return stops
end

-- The ids that are never drawn: suppress_tokens of a GGUF file, or of generation_config.json.
function request.suppressed(model)
  return model.suppressed or ids_in(model.dir, { "generation_config.json" }, "suppress_tokens")
end

function request.tokenizer(model)
  if model.tokenizer then return model.tokenizer end
  if model.tokenizer_error then error(model.tokenizer_error, 0) end
  q.error("value", "generate: this model has no tokenizer: give ids, and take tokens")
end

-- Checks that the model has each of `ids`. source: "ids", "prompt" or "messages", for errors.
local function checked(model, ids, source)
  local vocab, tokenizer = model.config.vocab, model.tokenizer
  for i, id in ipairs(ids) do
    if type(id) ~= "number" or id < 0 or id >= vocab or id ~= math.floor(id) then
      local place = source == "ids" and ("ids[%d]"):format(i) or ("token %d of the %s"):format(i, source)
      local sizes = tokenizer
        and (": its embedding has %d rows, its tokenizer %d tokens"):format(vocab, tokenizer:vocab_size()) or ""
      q.error("value", ("generate: %s is %s; the model has tokens 0 to %d%s"):format(place, tostring(id), vocab - 1,
        sizes))
    end
  end
  return ids
end

-- The ids of a prompt: opt.ids, or those of opt.messages or opt.prompt.
function request.ids(model, opt)
  check_type(opt, "ids", "table", "a list of token ids")
  if opt.ids then return checked(model, opt.ids, "ids") end
  local tokenizer = request.tokenizer(model)
  check_type(opt, "messages", "table", "a list of {role =, content =}")
  if opt.messages then
    if opt.system then check_type(opt, "system", "string", "text") end
    check_type(opt, "tools", "table", "a list of tools")
    local record = chat.normalize { messages = chat.copy(opt.messages), tools = chat.copy(opt.tools) }
    local template = chat.template(tokenizer, opt.template, opt.system, nil, nil, opt.template_args)
    return checked(model, template:prompt(record), "messages")
  end
  if type(opt.prompt) ~= "string" then q.error("value", "generate: give a prompt, messages or ids") end
  return checked(model, look.text_ids(tokenizer, opt.prompt), "prompt")
end

-- stop_ids, with the stop strings that are special tokens. Those have no text, so they would never be found in it.
local function with_special(stop_ids, strings, tokenizer)
  local all = {}
  for id in pairs(stop_ids) do all[id] = true end
  for _, text in ipairs(strings) do
    local id = tokenizer and tokenizer:id(text)
    if id and tokenizer:is_special(id) then all[id] = true end
  end
  return all
end

-- A matcher of a grammar. It lets the ids of `stops` end the output, and those of `visible` be text of it.
function request.matcher(model, grammar, stops, visible)
  local tokenizer = request.tokenizer(model)
  local function listed(set)
    local ids = {}
    for id in pairs(set) do
      if id < tokenizer:vocab_size() then ids[#ids + 1] = id end
    end
    return ids
  end
  return grammar:matcher(tokenizer, { ends = listed(stops), spoken = listed(visible) })
end

-- The whole number opt[name], or nil.
function request.count(opt, name)
  local value = opt[name]
  if value ~= nil and (type(value) ~= "number" or value < 0 or value ~= math.floor(value)) then
    refuse(name, value, "a whole number")
  end
  return value
end
local count_of = request.count

-- How many alternatives to tell of each token: at most all that there are.
local function alternatives(model, opt, name)
  local count = count_of(opt, name)
  return count and math.min(count, model.config.vocab)
end

local function check_stop_ids(ids)
  for id, is in pairs(ids) do
    if type(id) ~= "number" or id < 0 or id ~= math.floor(id) or is ~= true then
      q.error("value", ("generate: stop_ids has [%s] = %s, expected a set of token ids, {[id] = true}"):format(
        tostring(id), tostring(is)))
    end
  end
end

-- An adapter of read_adapter has to be of this model: its error would end other rows of the batch too.
local function check_adapter(model, adapter)
  if type(adapter) ~= "table" or type(adapter.layers) ~= "table" then
    refuse("adapter", adapter, "what model:read_adapter gives, or false")
  end
  local layers = {}
  for _, layer in ipairs(model.linears) do
    local lora = adapter.layers[layer.name]
    layers[layer.name] = true
    if lora then
      local function text(shape) return "[" .. table.concat(shape, ", ") .. "]" end
      local a, b = text(lora.a:shape()), text(lora.b:shape())
      local shape_a, shape_b = adapters.shapes(layer, adapters.rank(lora.a))
      if a ~= text(shape_a) or b ~= text(shape_b) then
        q.error("value", ("generate: adapter: %s is %s %s, of the model %s: the adapter belongs to another model")
          :format(layer.name, b, a, text(layer.weight:shape())))
      end
    end
  end
  for name in pairs(adapter.layers) do
    if not layers[name] then
      q.error("value", ("generate: adapter: the model has no layer %s: the adapter belongs to another model"):format(
        name))
    end
  end
end

-- A number for each adapter: pages are shared only under the same one.
local salts, last_salt = setmetatable({}, { __mode = "k" }), 1
function request.salt(adapter)
  if adapter == nil then return 0 end
  if adapter == false then return 1 end
  if not salts[adapter] then last_salt = last_salt + 1; salts[adapter] = last_salt end
  return salts[adapter]
end

-- The sampler of a request's options.
function request.sampler(model, opt)
  local settings = {}
  for _, name in ipairs(sampling) do settings[name] = opt[name] end
  local suppressed, given = request.suppressed(model), settings.logit_bias or {}
  if #suppressed > 0 and type(given) == "table" then
    local biases = {}
    for token, bias in pairs(given) do biases[tonumber(token) or token] = bias end
    for _, id in ipairs(suppressed) do
      if id < model.config.vocab then biases[id] = -1e9 end  -- a sampler takes no infinite bias
    end
    settings.logit_bias = biases
  end
  if (settings.dry_multiplier or 0) == 0 then
    settings.dry_sequence_breakers = nil
  elseif model.tokenizer then
    settings.dry_sequence_breakers = settings.dry_sequence_breakers or breakers
    settings.tokenizer = model.tokenizer
  end
  return q.sampler(settings)
end

function request.new(owner, opt)
  local model = owner.model
  for name in pairs(opt) do
    if not known[name] then q.error("value", ("generate: there is no option %s"):format(tostring(name))) end
  end
  local ids = request.ids(model, opt)
  if #ids == 0 then q.error("value", "generate: the prompt is empty") end
  local context = opt.context or "stop"
  if context ~= "stop" and context ~= "error" and context ~= "shift" then
    q.error("value", ("generate: context is %s; expected stop, error or shift"):format(tostring(context)))
  end
  check_type(opt, "stop_ids", "table", "a set of token ids, {[id] = true}")
  check_type(opt, "on_token", "function", "a function")
  check_type(opt, "rank", "number", "a number")
  check_type(opt, "visible", "table", "a set of token ids, {[id] = true}")
  if opt.stop_ids then check_stop_ids(opt.stop_ids) end
  if opt.adapter then check_adapter(model, opt.adapter) end
  local filter = stop.new(opt.stop)
  local stop_ids = with_special(opt.stop_ids or request.stops(model), filter.strings, model.tokenizer)
  local grammar = opt.grammar
  if grammar then
    check_type(opt, "grammar", "userdata", "what q.grammar or q.json_schema makes, or a matcher of it")
    if grammar.matcher then grammar = request.matcher(model, grammar, stop_ids, opt.visible or {}) end
  end
  local self = setmetatable({
    model = model, tokens = {}, output = {}, prompt_tokens = #ids, prompt_length = #ids,  -- the last: 0 after a shift
    max_tokens = count_of(opt, "max_tokens") or 256, sampler = request.sampler(model, opt),
    stop_ids = stop_ids, grammar = grammar, adapter = opt.adapter, salt = request.salt(opt.adapter),
    top = alternatives(model, opt, "logprobs"), logprobs = opt.logprobs and {} or nil,
    prompt_logprobs = alternatives(model, opt, "prompt_logprobs"),
    prompt_logprobs_list = opt.prompt_logprobs and { false } or nil,
    context = context, keep = count_of(opt, "keep") or 0, lookup = count_of(opt, "lookup"),
    draft = opt.draft ~= false, on_token = opt.on_token, seed = opt.seed or 0,
    rank = opt.rank or 0, visible = opt.visible or {},
    reasoning_budget = count_of(opt, "reasoning_budget"), reasoning_tokens = 0,
    text = "", reasoning_text = "", pieces = {}, filter = filter, reused = 0, drafted = 0, accepted = 0, preempted = 0,
  }, Request)
  for i, id in ipairs(ids) do self.tokens[i] = id end
  self.sampler:prompt(ids)
  if opt.reasoning and model.tokenizer then self:split_reasoning() end
  return self
end

-- ---------------------------------------------------------------- text

-- From now on text between <think> and </think> comes apart. A template may have opened it at the end of the prompt; a
-- <think> before that is what a message says.
function Request:split_reasoning()
  local tokenizer, last = self.model.tokenizer, #self.tokens
  self.think_open, self.think_close = tokenizer:id "<think>", tokenizer:id "</think>"
  local function blank(id) return id < tokenizer:vocab_size() and tokenizer:bytes(id):find "^%s*$" end
  while last > 1 and blank(self.tokens[last]) do last = last - 1 end
  if self.tokens[last] == self.think_open then self.thinking = stop.new() end
end

function Request:say(text, kind)
  if text == "" then return end
  local field = kind == "reasoning" and "reasoning_text" or "text"
  self[field] = self[field] .. text
  self.pieces[#self.pieces + 1] = { text, kind }
end

-- The text that came since the last call: an array of {text, kind}. kind: "reasoning" or nil.
function Request:take()
  local pieces = self.pieces
  self.pieces = {}
  return pieces
end

-- Adds the text of a token. True once a stop string is complete. A model may have more tokens than its tokenizer; these
-- are padding, without text.
function Request:speak(id)
  local tokenizer = self.model.tokenizer
  if not tokenizer or id >= tokenizer:vocab_size() then return false end
  if self.thinking or id == self.think_open then self.reasoning_tokens = self.reasoning_tokens + 1 end
  if id == self.think_open and not self.thinking then
    self.thinking = stop.new()
  elseif id == self.think_close and self.thinking then
    self:say(self.thinking:flush(), "reasoning")
    self.thinking = nil
  elseif self.visible[id] or not tokenizer:is_special(id) then
    local text, stopped = (self.thinking or self.filter):push(tokenizer:bytes(id))
    self:say(text, self.thinking and "reasoning" or nil)
    self.stop_string = stopped
    return stopped ~= nil
  end
  return false
end

-- ---------------------------------------------------------------- tokens

-- {id, logprob, top} of a token under a row of logits.
local function measured(logits, id, top)
  local logprob, best = q.logits.token_logprobs(logits, id, top)
  return { id = id, logprob = logprob, top = best }
end

function Request:measure_prompt(logits, position)
  self.prompt_logprobs_list[position + 1] = measured(logits, self.tokens[position + 1], self.prompt_logprobs)
end

-- The next token's id, or nil if there is none. Sets self.reason once the request is to end.
local function draw(self, logits, top)
  if #self.output >= self.max_tokens then  -- asked for the prompt's logprobs alone
    self.reason, self.settled = "length", true
    return
  end
  local grammar, budget = not self.thinking and self.grammar or nil, self.thinking and self.reasoning_budget
  local id = budget and self.reasoning_tokens >= budget and self.think_close
    or self.sampler:next(logits, { mask = grammar and grammar:mask() or nil, top = top.top, top_ids = top.top_ids })
  if self.stop_ids[id] then
    self.reason, self.settled, self.stop_id = "stop", true, id
    self.stop_logprob = self.logprobs and measured(logits, id, self.top)
    return
  end
  if grammar then grammar:accept(id) end
  self.sampler:accept(id)
  self.first_at = self.first_at or q.time()
  self.tokens[#self.tokens + 1], self.output[#self.output + 1] = id, id
  if self.logprobs then self.logprobs[#self.output] = measured(logits, id, self.top) end
  if self:speak(id) or (grammar and grammar:finished()) then
    self.reason = "stop"
  elseif #self.output == self.max_tokens then
    self.reason = "length"
  end
  self.settled = self.reason ~= nil or #self.tokens >= self.engine.context
  return id
end

-- Whether a row of logits at that position is read as a whole.
function Request:needs_all(position)
  return position < self.prompt_length or self.logprobs ~= nil or self.sampler:_needs_all()
end

-- Draws the next token, with all that follows from it. If Ctrl-C comes first, nothing of it is done. top: as
-- paged.each_row gives it.
function Request:sample(logits, top)
  local id = q.host.uninterrupted(draw, self, logits, top)
  if id and self.on_token then self.on_token(self, id) end
end

-- Drops the older half of what follows the kept beginning. The rest is computed anew, at its new positions.
function Request:shift(context)
  local keep = math.min(self.keep, math.floor(context / 2))
  local drop = math.max(1, math.floor((#self.tokens - keep) / 2))
  local tokens = {}
  for i, id in ipairs(self.tokens) do
    if i <= keep or i > keep + drop then tokens[#tokens + 1] = id end
  end
  self.tokens, self.shifted, self.prompt_length = tokens, (self.shifted or 0) + drop, 0
end

function Request:finish_with(reason)
  if not self.stop_string then
    if self.thinking then self:say(self.thinking:flush(), "reasoning") end
    self:say(self.filter:flush())
  end
  self.state, self.finish, self.done_at = "done", reason, q.time()
end

-- "prompt 120 tokens (96 remembered), 210 tokens/s; answer 40 tokens, 31.2 tokens/s; KV cache 1.2 MB", counted from
-- when it first ran.
function Request:speed()
  local now, runner = q.time(), self.engine.runner
  local started = self.started_at or now
  local first = self.first_at or now
  local remembered = self.reused > 0 and (" (%d remembered)"):format(self.reused) or ""
  local guesses = self.drafted > 0 and ("; %d of %d guesses true"):format(self.accepted, self.drafted) or ""
  return ("prompt %d tokens%s, %.0f tokens/s; answer %d tokens, %.1f tokens/s; KV cache %.2f MB%s"):format(
    self.prompt_tokens, remembered, (self.prompt_tokens - self.reused) / math.max(first - started, 1e-6), #self.output,
    math.max(#self.output - 1, 0) / math.max((self.done_at or now) - first, 1e-6),
    math.ceil(#self.tokens / runner.page_tokens) * runner.page_bytes / 1e6, guesses)
end

request.take, request.speed, request.Request = Request.take, Request.speed, Request
return request
