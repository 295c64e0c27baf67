-- A chat in the terminal: the conversation so far counts, answers appear as they come, reasoning stands apart (dim).
--   qeng recipes/chat.lua --model DIR [--adapter DIR] [--system TEXT] [--context TOKENS]

local q = require "qeng"

local opt = q.options(q.generation_options(q.device_options {
  "Talks with a model. Ctrl-C stops an answer; /help lists the commands.",
  system = { nil, "system message", order = 3 },
  context = { 0, "tokens of the conversation at most, which the KV cache is made for; 0: the model's", min = 0, integer = true, order = 4 },
}))
q.use_device(opt)

local model, how = q.generation(opt)
how.system, how.when_full, how.context = opt.system, opt.when_full, opt.context > 0 and opt.context or nil
local talk = q.conversation(model, how)
local terminal, input = q.isatty(1), q.isatty(0)

local commands = {
  help = function()
    print "/reset          forgets what was said\n/system [TEXT]  a new system message, or none; forgets what was said"
    print "/save FILE      writes the conversation as a line of JSONL that training takes\n/quit           ends (so does the end of the input)"
  end,
  reset = function() talk:reset() end,
  system = function(text)
    talk.system = text ~= "" and text or nil
    talk:reset()
  end,
  save = function(path)
    if path == "" then return print "/save needs a file" end
    local saved, why = q.try(function() talk:save(path) return true end)
    print(saved and "saved to " .. path or why.message)
  end,
}

local function say(text, kind, last)
  if kind ~= last then
    if terminal then io.write(kind and "\27[2m" or "\27[0m\n") else io.write(kind and "[reasoning] " or "\n[answer] ") end
  end
  io.write(text)
  io.flush()
  return kind
end

local function answer(text)
  local last
  q.defer_interrupt(true)  -- Ctrl-C ends the answer, not the chat
  local ok, err = q.try(function()
    for piece, kind in talk:ask(text, q.interrupted) do last = say(piece, kind, last) end
    return true
  end)
  local _, signal = q.interrupted()
  q.defer_interrupt(false)
  print(terminal and "\27[0m" or "")
  if not ok then return print(err.message) end
  if signal and signal ~= "Ctrl-C" then q.error("interrupted", "the chat was ended by " .. signal) end
  io.stderr:write(terminal and "\27[2m" or "", talk.request.finish == "cancelled" and "stopped; " or "", talk:speed(), terminal and "\27[0m" or "", "\n")
end

while true do
  if input then io.write "> " io.flush() end
  local line = io.read "l"
  if not line then break end
  local name, rest = line:match "^/(%w+)%s*(.*)$"
  if name == "quit" then break end
  if name and commands[name] then commands[name](rest)
  elseif name then print(("there is no command /%s; /help lists them"):format(name))
  elseif line:match "%S" then answer(line) end
end
