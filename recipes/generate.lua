-- Continues a prompt, or answers one (--chat), token by token to the terminal.
--   qeng recipes/generate.lua --model DIR [--adapter DIR] --prompt "Once upon a time"
--   git diff | qeng recipes/generate.lua --model DIR --chat --system "Write a commit message for this change."

local q = require "qeng"
local sampling = require "qeng.infer.sampling"

local opt = q.options {
  "Generates text from a model, with an adapter if given.",
  { "prompt", nil, "text to continue, or the user's message with --chat; by default what is piped in" },
  { "prompt_file", nil, "a file with the prompt, - for standard input; without the line end at its end" },
  { "system", nil, "system message with --chat" },
  { "chat", false, "render the prompt with the chat template" },
  { "logprobs", 0, "then tell each token's log probability and those of so many that were likeliest, 0: no", min = 0 },
  { "prompt_logprobs", false, "with --logprobs: also those of the prompt's tokens" },
  { "speed", false, "say on stderr how fast it was" },
  "generation", "peers", "device",
}
if opt.prompt_logprobs and opt.logprobs == 0 then
  q.error("usage", "--prompt-logprobs goes with --logprobs N, which says how many alternatives are told")
end
local prompt = sampling.prompt(opt)
q.use_device(opt)

local model, how = q.generation(opt)
how.prompt = prompt
if opt.logprobs > 0 then
  how.logprobs, how.prompt_logprobs = opt.logprobs, opt.prompt_logprobs and opt.logprobs or nil
end
if opt.chat then
  how.messages = { { role = "user", content = prompt } }
  if opt.system then table.insert(how.messages, 1, { role = "system", content = opt.system }) end
end
local pieces, request = model:generate(how)
for piece in pieces do
  io.write(piece)
  io.flush()
end
print()
if opt.logprobs > 0 then print(sampling.logprobs(request)) end
if opt.speed then io.stderr:write(request:speed(), "\n") end
