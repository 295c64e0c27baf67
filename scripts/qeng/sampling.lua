-- The options of recipes that generate text, and what requests and engines make of them.

local models = require "qeng.model"
local run = require "qeng.run"

local sampling = {}

-- Adds to `declared` the model, its adapter, and how to draw tokens.
function sampling.options(declared)
  declared.model = { nil, "Hugging Face folder, .gguf file, or org/name[@revision] on the hub", required = true, order = 1 }
  declared.adapter = { "", "PEFT adapter folder", order = 2 }
  declared.template = { "auto", "chat template", choices = { "auto", "chatml", "model" }, order = 20 }
  declared.max_tokens = { 256, "at most so many tokens", min = 1, integer = true, order = 21 }
  declared.temperature = { 0.7, "0: always the likeliest token", min = 0, order = 22 }
  declared.top_k = { 0, "sample among the k likeliest, 0: all", min = 0, integer = true, order = 23 }
  declared.top_p = { 1.0, "sample within this probability mass", min = 0, max = 1, integer = false, order = 24 }
  declared.min_p = { 0, "leave out tokens below this share of the likeliest", min = 0, max = 1, integer = false, order = 25 }
  declared.repetition_penalty = { 1.0, "over 1: discourage tokens that occurred", min = 0.01, integer = false, order = 26 }
  declared.seed = { 0, "seed of the sampler", min = 0, integer = true, order = 27 }
  declared.lookup = { 0, "guess up to so many tokens ahead from what was said before", min = 0, max = 8, integer = true, order = 28 }
  declared.draft = { "", "a small model of the same tokenizer that guesses ahead", order = 29 }
  declared.dtype = { nil, "f32 or bf16, by default the file's own", choices = { "f32", "bf16" }, order = 30 }
  declared.kv = { nil, "dtype of the KV cache, by default the model's", choices = { "f32", "f16", "bf16", "q8_0" }, order = 31 }
  return run.weight_options(declared)
end

-- The model of parsed options with its adapter, and a table for Model:generate.
function sampling.read(opt)
  local how = { dtype = opt.dtype, weights = opt.weights, host_budget = opt.host_budget, stream_keep = opt.stream_keep }
  local model = models.load(opt.model, how)
  if opt.adapter ~= "" then model:load_adapter(opt.adapter) end
  return model, {
    template = opt.template, max_tokens = opt.max_tokens, temperature = opt.temperature, top_k = opt.top_k, top_p = opt.top_p, min_p = opt.min_p,
    repetition_penalty = opt.repetition_penalty, seed = opt.seed, lookup = opt.lookup > 0 and opt.lookup or nil, kv = opt.kv,
    draft = opt.draft ~= "" and models.load(opt.draft, { dtype = opt.dtype, weights = opt.weights == "stream" and "map" or opt.weights }) or nil,
  }
end

return sampling
