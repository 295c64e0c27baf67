-- Continues a prompt, or answers one (--chat), token by token to the terminal.
--   qeng recipes/generate.lua --model DIR [--adapter DIR] --prompt "Once upon a time"

local q = require "qeng"

local opt = q.options(q.device_options {
  "Generates text from a model, with an adapter if given.",
  model = { nil, "Hugging Face folder, or org/name[@revision] on the hub", required = true, order = 1 },
  adapter = { "", "PEFT adapter folder", order = 2 },
  prompt = { nil, "text to continue, or the user's message with --chat", required = true, order = 3 },
  system = { nil, "system message with --chat", order = 4 },
  chat = { false, "render the prompt with the chat template", order = 5 },
  template = { "auto", "chat template", choices = { "auto", "chatml", "model" }, order = 6 },
  max_tokens = { 256, "at most so many tokens", min = 1, order = 7 },
  temperature = { 0.7, "0: always the likeliest token", min = 0, order = 8 },
  top_k = { 0, "sample among the k likeliest, 0: all", min = 0, integer = true, order = 9 },
  top_p = { 1.0, "sample within this probability mass", min = 0, max = 1, integer = false, order = 10 },
  min_p = { 0, "leave out tokens below this share of the likeliest", min = 0, max = 1, integer = false, order = 11 },
  repetition_penalty = { 1.0, "over 1: discourage tokens that occurred", min = 0.01, integer = false, order = 12 },
  seed = { 0, "seed of the sampler", min = 0, integer = true, order = 13 },
  dtype = { nil, "f32 or bf16, by default the file's own", choices = { "f32", "bf16" }, order = 14 },
})
q.use_device(opt)

local model = q.load(opt.model, { dtype = opt.dtype })
if opt.adapter ~= "" then model:load_adapter(opt.adapter) end

local messages
if opt.chat then
  messages = { { role = "user", content = opt.prompt } }
  if opt.system then table.insert(messages, 1, { role = "system", content = opt.system }) end
end
for piece in model:generate {
  prompt = opt.prompt, messages = messages, template = opt.template, max_tokens = opt.max_tokens, temperature = opt.temperature,
  top_k = opt.top_k, top_p = opt.top_p, min_p = opt.min_p, repetition_penalty = opt.repetition_penalty, seed = opt.seed,
} do
  io.write(piece)
  io.flush()
end
print()
