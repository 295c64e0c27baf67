-- The options of recipes that generate text, and what requests and engines make of them.

local chat = require "qeng.chat"
local models = require "qeng.model"
local q = require "qeng.core"
local request = require "qeng.infer.request"
local run = require "qeng.train.finetune"

local sampling = {}

-- Adds to `declared` how to draw tokens, as options from `order` on; one that is declared already stays.
function sampling.drawing(declared, order)
  for i, option in ipairs {
    { "temperature", 0.7, "0: always the likeliest token", min = 0 },
    { "top_k", 0, "sample among the k likeliest, 0: all", min = 0, integer = true },
    { "top_p", 1.0, "sample within this probability mass", min = 0, max = 1, integer = false },
    { "min_p", 0, "leave out tokens below this share of the likeliest", min = 0, max = 1, integer = false },
    { "typical_p", 1.0, "sample within this mass of the tokens that surprise as much as expected", min = 0.01, max = 1, integer = false },
    { "repetition_penalty", 1.0, "over 1: discourage tokens that occurred", min = 0.01, integer = false },
    { "presence_penalty", 0, "taken off the logits of tokens that the answer has", integer = false },
    { "frequency_penalty", 0, "the same, for each time that it has them", integer = false },
    { "penalty_window", 0, "the penalties look at the last so many tokens, 0: all", min = 0, integer = true },
    { "logit_bias", "", "added to logits, TOKEN=BIAS,...: a token's number or text; -100 all but forbids it" },
    { "dry_multiplier", 0, "DRY: discourage going on with what was said before, 0: off", min = 0, integer = false },
    { "dry_base", 1.75, "DRY: so many times more for each further token that repeats", min = 1, integer = false },
    { "dry_allowed_length", 2, "DRY: repetitions shorter than this are let be", min = 0, integer = true },
    { "dry_penalty_last_n", -1, "DRY looks at the last so many tokens, -1: all", min = -1, integer = true },
    { "dry_sequence_breakers", '["\\n", ":", "\\"", "*"]', "DRY: texts that end a repetition, a JSON array" },
    { "top_n_sigma", 0, "leave out tokens whose logit is so many standard deviations under the largest, 0: off", min = 0, integer = false },
    { "xtc_probability", 0, "XTC: how often of the likely tokens only the least is kept", min = 0, max = 1, integer = false },
    { "xtc_threshold", 0.1, "XTC: tokens of this probability are likely", min = 0, max = 1, integer = false },
    { "mirostat", 0, "1 or 2: keep the surprise of the text constant, instead of the options above; 0: off", min = 0, max = 2, integer = true },
    { "mirostat_tau", 5, "mirostat: the surprise of a token, in bits", min = 0, integer = false },
    { "mirostat_eta", 0.1, "mirostat: how fast it learns", min = 0, integer = false },
    { "seed", 0, "seed of the sampler", min = 0, integer = true },
  } do
    local name = table.remove(option, 1)
    option.order = (order or 10) + i - 1
    declared[name] = declared[name] or option
  end
  return declared
end

-- Adds to `declared` the model, its adapter, how to draw tokens, and what ends or binds a text.
function sampling.options(declared)
  declared.model = { nil, "Hugging Face folder, .gguf file, or org/name[@revision] on the hub", required = true, order = 1 }
  declared.adapter = { "", "PEFT adapter folder, or an adapter as a GGUF file", order = 2 }
  declared.template = { "auto", "chat template", choices = { "auto", "chatml", "model" }, order = 20 }
  declared.template_args = chat.arguments_option(20.5)
  declared.max_tokens = { 256, "at most so many tokens", min = 1, integer = true, order = 21 }
  sampling.drawing(declared, 22)
  declared.stop = { nil, "end before this text; several as a JSON array of strings", order = 50 }
  declared.schema = { nil, "file with a JSON schema that the text has to follow", order = 51 }
  declared.grammar = { nil, "file with a grammar (GBNF, as llama.cpp's) that the text has to follow", order = 52 }
  declared.when_full = { "stop", "where the context is full: end, fail, or forget the older half and go on", choices = { "stop", "error", "shift" }, order = 53 }
  declared.keep = { 0, "with --when-full shift: tokens of the beginning that are never forgotten", min = 0, integer = true, order = 54 }
  declared.lookup = { 0, "guess up to so many tokens ahead from what was said before", min = 0, max = 8, integer = true, order = 55 }
  declared.draft = { "", "a small model of the same tokenizer that guesses ahead", order = 56 }
  declared.dtype = { nil, "f32 or bf16, by default the file's own", choices = { "f32", "bf16" }, order = 57 }
  declared.kv = { nil, "dtype of the KV cache, by default the model's", choices = { "f32", "f16", "bf16", "q8_0" }, order = 58 }
  return run.weight_options(declared)
end

-- {[token] = bias} of --logit-bias; nil for none.
local function biases(model, text)
  if text == "" then return nil end
  local tokenizer, all = request.tokenizer(model), {}
  for part in text:gmatch "[^,]+" do
    local name, bias = part:match "^(.+)=([^=]*)$"
    bias = tonumber(bias)
    if not bias or bias - bias ~= 0 then q.error("usage", ("--logit-bias %s: %q is not TOKEN=BIAS, as 42=-100 or '<|im_end|>=2.5'"):format(text, part)) end
    local token = name:match "^%d+$" and tonumber(name) or tokenizer:id(name)
    if not token then
      local ids = tokenizer:encode(name, { special = true })
      if #ids ~= 1 then q.error("value", ("--logit-bias %s: %q is %d tokens of this model, expected one; give its number"):format(text, name, #ids)) end
      token = ids[1]
    end
    if token >= model.config.vocab then q.error("value", ("--logit-bias %s: the model has tokens 0 to %d"):format(text, model.config.vocab - 1)) end
    all[token] = bias
  end
  return all
end

-- The list of --stop: a text, or a JSON array of texts.
local function stops(text)
  local list = text and text:find "^%s*%[" and q.try(q.json.decode, text)
  for _, one in ipairs(list or {}) do
    if type(one) ~= "string" then list = nil break end
  end
  return list and #list > 0 and list or text and { text } or nil
end

local function grammar(opt)
  if opt.grammar and opt.schema then q.error("usage", "--grammar and --schema both say what the text has to be: give one of them") end
  local path = opt.grammar or opt.schema
  if not path then return nil end
  local made, problem = q.try(opt.grammar and q.grammar or q.json_schema, q.fs.read(path))
  return made or q.error(problem.code, path .. ": " .. problem.message)
end

-- The prompt of --prompt, --prompt-file or standard input. The last two lose the line end that editors and pipes leave at the end.
function sampling.prompt(opt)
  if opt.prompt and opt.prompt_file then q.error("usage", "--prompt and --prompt-file both say what the prompt is: give one of them") end
  if opt.prompt then return opt.prompt end
  local piped = (opt.prompt_file or "-") == "-"
  if not opt.prompt_file and q.isatty(0) then q.error("usage", "give --prompt TEXT, --prompt-file FILE, or pipe the prompt in (--help lists the options)") end
  local text = (piped and io.read "a" or not piped and q.fs.read(opt.prompt_file)):gsub("\r?\n$", "")
  if text == "" then q.error("usage", ("the prompt is empty: %s holds no text; give --prompt TEXT or --prompt-file FILE"):format(piped and "standard input" or opt.prompt_file)) end
  return text
end

-- What a request takes of the parsed options of sampling.drawing.
function sampling.drawn(model, opt)
  local drawn = {}
  for _, name in ipairs(request.sampling) do drawn[name] = opt[name] end
  drawn.logit_bias = biases(model, opt.logit_bias)
  drawn.dry_sequence_breakers = q.try(q.json.decode, opt.dry_sequence_breakers)
  local good = type(drawn.dry_sequence_breakers) == "table"
  for _, text in ipairs(good and drawn.dry_sequence_breakers or {}) do good = good and type(text) == "string" end
  if not good then q.error("usage", ("--dry-sequence-breakers %s: not a JSON array of texts"):format(opt.dry_sequence_breakers)) end
  return drawn
end

-- The model of parsed options with its adapter, and a table for Model:generate.
function sampling.read(opt)
  if opt.keep > 0 and opt.when_full ~= "shift" then q.error("usage", "--keep says what a shift does not forget: give --when-full shift") end
  local bound = grammar(opt)
  local how = { dtype = opt.dtype, weights = opt.weights, host_budget = opt.host_budget, stream_keep = opt.stream_keep }
  local model = models.load(opt.model, how)
  if opt.adapter ~= "" then model:load_adapter(opt.adapter) end
  local how = {
    template = opt.template, template_args = opt.template_args, max_tokens = opt.max_tokens, stop = stops(opt.stop), grammar = bound,
    context = opt.when_full, keep = opt.keep, lookup = opt.lookup > 0 and opt.lookup or nil, kv = opt.kv,
    draft = opt.draft ~= "" and models.load(opt.draft, { dtype = opt.dtype, weights = opt.weights == "stream" and "map" or opt.weights }) or nil,
  }
  for name, value in pairs(sampling.drawn(model, opt)) do how[name] = value end
  return model, how
end

local function shown(tokenizer, id)
  if id >= tokenizer:vocab_size() then return ("<%d>"):format(id) end
  return (("%q"):format(tokenizer:decode { id }):gsub("\n", "n"))
end

-- What a request measured (its logprobs, and before them the prompt's where it was asked for those), as text: each token with its log
-- probability and the likeliest in its place, and what they say together.
function sampling.logprobs(made)
  local tokenizer, lines = made.model.tokenizer, {}
  local function add(title, list)
    local sum, count = 0, 0
    lines[#lines + 1] = ("%-20s %8s  likeliest"):format(title, "logprob")
    for _, entry in ipairs(list) do
      if entry then  -- nothing comes before a prompt's first token
        local best = {}
        for i, likely in ipairs(entry.top) do best[i] = ("%s %.3f"):format(shown(tokenizer, likely.id), likely.logprob) end
        lines[#lines + 1] = ("%-20s %8.4f  %s"):format(shown(tokenizer, entry.id), entry.logprob, table.concat(best, "  "))
        sum, count = sum + entry.logprob, count + 1
      end
    end
    if count > 0 then lines[#lines + 1] = ("%d tokens, log probability %.4f, perplexity %.4f"):format(count, sum, math.exp(-sum / count)) end
  end
  if made.prompt_logprobs_list then add("prompt", made.prompt_logprobs_list) end
  add("answer", made.logprobs)
  return table.concat(lines, "\n")
end

return sampling
