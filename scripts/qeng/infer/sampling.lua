-- The options of recipes that generate text, and what requests and engines get of them.

local kv_option = require "qeng.infer.kv_option"
local models = require "qeng.model"
local options = require "qeng.console.options"
local q = require "qeng.core"
local request = require "qeng.infer.request"
require "qeng.chat"  -- declares "template"
require "qeng.console.shared"  -- "model", "weights"

local sampling = {}

-- How to draw tokens: the options of q.sampler, and how many tokens.
options.set("drawing", {
  { "max_tokens", 256, "at most so many tokens an answer", min = 1 },
  { "temperature", 0.7, "0: always the likeliest token", min = 0 },
  { "top_k", 0, "sample among the k likeliest, 0: all", min = 0 },
  { "top_p", 1, "sample within this probability mass", min = 0, max = 1, number = true },
  { "min_p", 0, "leave out tokens below this share of the likeliest", min = 0, max = 1, number = true },
  { "typical_p", 1, "sample within this mass of the tokens that surprise as much as expected", min = 0.01, max = 1,
    number = true },
  { "repetition_penalty", 1, "over 1: discourage tokens that occurred", min = 0.01, number = true },
  { "presence_penalty", 0, "taken off the logits of tokens that the answer has", number = true },
  { "frequency_penalty", 0, "the same, for each time that it has them", number = true },
  { "penalty_window", 0, "the penalties look at the last so many tokens, 0: all", min = 0 },
  { "logit_bias", {}, "added to logits: a token's number or text, and how much; -100 all but forbids it", kind = "map",
    blanks = true },
  { "dry_multiplier", 0, "DRY: discourage going on with what was said before, 0: off", min = 0, number = true },
  { "dry_base", 1.75, "DRY: so many times more for each further token that repeats", min = 1 },
  { "dry_allowed_length", 2, "DRY: repetitions shorter than this are let be", min = 0 },
  { "dry_penalty_last_n", -1, "DRY looks at the last so many tokens, -1: all", min = -1 },
  { "dry_sequence_breakers", '["\\n", ":", "\\"", "*"]', "DRY: texts that end a repetition, a JSON array" },
  { "top_n_sigma", 0, "leave out tokens whose logit is so many standard deviations under the largest, 0: off", min = 0,
    number = true },
  { "xtc_probability", 0, "XTC: how often of the likely tokens only the least is kept", min = 0, max = 1,
    number = true },
  { "xtc_threshold", 0.1, "XTC: tokens of this probability are likely", min = 0, max = 1 },
  { "mirostat", 0, "1 or 2: keep the surprise of the text constant, instead of the options above; 0: off", min = 0,
    max = 2 },
  { "mirostat_tau", 5, "mirostat: the surprise of a token, in bits", min = 0, number = true },
  { "mirostat_eta", 0.1, "mirostat: how fast it learns", min = 0 },
  { "seed", 0, "seed of the sampler", min = 0 },
})

-- The options of q.generation: the model, its adapter, how to draw tokens, and what ends or binds a text.
options.set("generation", {
  "model",
  { "adapter", "", "PEFT adapter folder, or an adapter as a GGUF file" },
  "template", "drawing",
  { "stop", nil, "end before this text; several as a JSON array of strings" },
  { "schema", nil, "file with a JSON schema that the text has to follow" },
  { "grammar", nil, "file with a grammar (GBNF, as llama.cpp's) that the text has to follow" },
  { "when_full", "stop", "where the context is full: end, fail, or forget the older half and go on",
    choices = { "stop", "error", "shift" } },
  { "keep", 0, "with --when-full shift: tokens of the beginning that are never forgotten", min = 0 },
  { "lookup", 0, "guess up to so many tokens ahead from what was said before", min = 0, max = 8 },
  { "draft", "", "a small model of the same tokenizer that guesses ahead, or mtp: the model's own head" },
  "kv", "weights",
})

-- {[token] = bias} of --logit-bias; nil for none.
local function biases(model, given)
  if not next(given) then return nil end
  local tokenizer, all = request.tokenizer(model), {}
  for name, bias in pairs(given) do
    local token = name:match "^%d+$" and tonumber(name) or tokenizer:id(name)
    if not token then
      local ids = tokenizer:encode(name, { special = true })
      if #ids ~= 1 then
        q.error("value", ("--logit-bias: %q is %d tokens of this model, expected one; give its number"):format(
          name, #ids))
      end
      token = ids[1]
    end
    if token >= model.config.vocab then
      q.error("value", ("--logit-bias %s=%g: the model has tokens 0 to %d"):format(name, bias, model.config.vocab - 1))
    end
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
  if opt.grammar and opt.schema then
    q.error("usage", "--grammar and --schema both say what the text has to be: give one of them")
  end
  local path = opt.grammar or opt.schema
  if not path then return nil end
  local made, problem = q.try(opt.grammar and q.grammar or q.json_schema, q.fs.read(path))
  return made or q.error(problem.code, path .. ": " .. problem.message)
end

-- The prompt of --prompt, --prompt-file or standard input. The last two lose the line end that editors and pipes add.
function sampling.prompt(opt)
  if opt.prompt and opt.prompt_file then
    q.error("usage", "--prompt and --prompt-file both say what the prompt is: give one of them")
  end
  if opt.prompt then return opt.prompt end
  local piped = (opt.prompt_file or "-") == "-"
  if not opt.prompt_file and q.host.isatty(0) then
    q.error("usage", "give --prompt TEXT, --prompt-file FILE, or pipe the prompt in (--help lists the options)")
  end
  local text = (piped and io.read "a" or not piped and q.fs.read(opt.prompt_file)):gsub("\r?\n$", "")
  if text == "" then
    q.error("usage", ("the prompt is empty: %s holds no text; give --prompt TEXT or --prompt-file FILE"):format(
      piped and "standard input" or opt.prompt_file))
  end
  return text
end

-- The options of a request among the parsed options of the set "drawing".
function sampling.drawn(model, opt)
  local drawn = {}
  for _, name in ipairs(request.sampling) do drawn[name] = opt[name] end
  drawn.logit_bias = biases(model, opt.logit_bias)
  drawn.dry_sequence_breakers = q.try(q.json.decode, opt.dry_sequence_breakers)
  local good = type(drawn.dry_sequence_breakers) == "table"
  for _, text in ipairs(good and drawn.dry_sequence_breakers or {}) do good = good and type(text) == "string" end
  if not good then
    q.error("usage", ("--dry-sequence-breakers %s: not a JSON array of texts"):format(opt.dry_sequence_breakers))
  end
  return drawn
end

-- The model of parsed options, with its adapter, and the options for Model:generate.
function sampling.read(opt)
  if opt.keep > 0 and opt.when_full ~= "shift" then
    q.error("usage", "--keep says what a shift does not forget: give --when-full shift")
  end
  local bound = grammar(opt)
  local model = models.load(opt.model, opt)
  local own = opt.adapter ~= "" and model.peers and model:read_adapter(opt.adapter) or nil
  if opt.adapter ~= "" and not own then model:load_adapter(opt.adapter) end
  local given = {
    template = opt.template, template_args = opt.template_args, max_tokens = opt.max_tokens, stop = stops(opt.stop),
    grammar = bound, context = opt.when_full, keep = opt.keep, lookup = opt.lookup > 0 and opt.lookup or nil,
    kv = kv_option(opt), adapter = own,
  }
  if opt.draft == "mtp" then
    model:attach_mtp { from = "folder" }
    given.draft = "mtp"
  elseif opt.draft ~= "" then
    local weights = opt.weights == "stream" and "map" or opt.weights
    given.draft = models.load(opt.draft, { dtype = opt.dtype, weights = weights })
  end
  for name, value in pairs(sampling.drawn(model, opt)) do given[name] = value end
  return model, given
end

local function shown(tokenizer, id)
  if id >= tokenizer:vocab_size() then return ("<%d>"):format(id) end
  return (("%q"):format(tokenizer:decode { id }):gsub("\n", "n"))
end

-- What a request measured, as text: its logprobs, and before them the prompt's if it was asked for those. Each token
-- has its log probability and the likeliest tokens in its place. A last line has their sum.
function sampling.logprobs(made)
  local tokenizer, lines = made.model.tokenizer, {}
  local function add(title, list)
    local sum, count = 0, 0
    lines[#lines + 1] = ("%-20s %8s  likeliest"):format(title, "logprob")
    for _, entry in ipairs(list) do
      if entry then  -- nothing comes before a prompt's first token
        local best = {}
        for i, likely in ipairs(entry.top) do
          best[i] = ("%s %.3f"):format(shown(tokenizer, likely.id), likely.logprob)
        end
        local token, others = shown(tokenizer, entry.id), table.concat(best, "  ")
        lines[#lines + 1] = ("%-20s %8.4f  %s"):format(token, entry.logprob, others)
        sum, count = sum + entry.logprob, count + 1
      end
    end
    if count > 0 then
      local perplexity = math.exp(-sum / count)
      lines[#lines + 1] = ("%d tokens, log probability %.4f, perplexity %.4f"):format(count, sum, perplexity)
    end
  end
  if made.prompt_logprobs_list then add("prompt", made.prompt_logprobs_list) end
  add("answer", made.logprobs)
  return table.concat(lines, "\n")
end

return sampling
