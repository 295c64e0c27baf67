-- Continues a prompt, or answers one (--chat), token by token to the terminal.
--   qeng recipes/generate.lua --model DIR [--adapter DIR] --prompt "Once upon a time"

local q = require "qeng"

local opt = q.options(q.generation_options(q.device_options {
  "Generates text from a model, with an adapter if given.",
  prompt = { nil, "text to continue, or the user's message with --chat", required = true, order = 3 },
  system = { nil, "system message with --chat", order = 4 },
  chat = { false, "render the prompt with the chat template", order = 5 },
  stop = { nil, "end before this text", order = 6 },
  schema = { nil, "file with a JSON schema that the text has to follow", order = 7 },
  speed = { false, "say on stderr how fast it was", order = 8 },
}))
q.use_device(opt)

local model, how = q.generation(opt)
how.prompt, how.stop = opt.prompt, opt.stop and { opt.stop }
if opt.schema then how.grammar = q.json_schema(q.fs.read(opt.schema)) end
if opt.chat then
  how.messages = { { role = "user", content = opt.prompt } }
  if opt.system then table.insert(how.messages, 1, { role = "system", content = opt.system }) end
end
local pieces, request = model:generate(how)
for piece in pieces do
  io.write(piece)
  io.flush()
end
print()
if opt.speed then io.stderr:write(request:speed(), "\n") end
