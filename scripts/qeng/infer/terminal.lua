-- A conversation in the terminal. It reads messages and commands, and shows answers as they come, reasoning dimmed.
--
--   terminal.run(conversation.new(model, opt), "the model's name")

local options = require "qeng.console.options"
local paths = require "qeng.console.paths"
local q = require "qeng.core"

local chat = {}
local Chat = {}
Chat.__index = Chat

local help = [[
/help              this text
/reset             forgets what was said
/system [TEXT]     a new system message, or none; forgets what was said
/regenerate        answers the last message again, with another seed
/edit [TEXT]       changes the last message (without TEXT in the editor), and answers that
/set [NAME VALUE]  changes how tokens are drawn, as /set temperature 0.2; alone it lists that
/save FILE         writes the conversation as a line of JSONL that training takes
/load FILE         goes on with a conversation that was saved
/quit              ends (so do Ctrl-D and the end of the input)
A line that ends with \ goes on in the next; so do Alt-Enter and pasted text. Ctrl-C stops an answer.]]

local names = { "edit", "help", "load", "quit", "regenerate", "reset", "save", "set", "system" }

-- ---------------------------------------------------------------- reading

local function home_history()
  local path, home = os.getenv "QENG_CHAT_HISTORY", os.getenv "HOME"
  return path or home and home .. "/.qeng_chat_history" or ""
end

local function beginning(list, word)
  local fits = {}
  for _, name in ipairs(list) do
    if name:sub(1, #word) == word then fits[#fits + 1] = name end
  end
  table.sort(fits)
  return fits
end

-- Commands at the beginning of a line, names of options after /set, files after /load and /save.
function Chat:complete(word, before)
  if before == "" and word:sub(1, 1) == "/" then
    local commands = {}
    for i, name in ipairs(names) do commands[i] = "/" .. name end
    return beginning(commands, word)
  end
  if before == "/set " then return beginning(self:settings(), word) end
  if before ~= "/load " and before ~= "/save " then return {} end
  return paths(word)
end

-- One line. nil and the reason at the end of the input, or after Ctrl-C.
function Chat:line(prompt, initial)
  if self.editor then return self.editor:read(prompt, initial) end
  if q.host.isatty(0) then io.write(prompt) io.flush() end
  local line = io.read "l"
  return line, not line and "end" or nil
end

-- One message or command. It goes over several lines if they end with a backslash.
function Chat:read(initial)
  local text, why = self:line("> ", initial)
  while text and text:sub(-1) == "\\" do
    local more
    more, why = self:line(". ")
    if not more and why == "interrupted" then return nil, why end
    text = text:sub(1, -2) .. "\n" .. (more or "")
  end
  if text and self.editor and text:match "%S" then self.editor:remember(text) end
  return text, why
end

-- ---------------------------------------------------------------- answering

local function dim(text) return q.host.isatty(2) and "\27[2m" .. text .. "\27[0m" or text end

local function say(text, kind, last)
  if kind ~= last then
    local mark = kind and "[reasoning] " or "\n[answer] "
    if q.host.isatty(1) then mark = kind and "\27[2m" or "\27[0m\n" end
    io.write(mark)
  end
  io.write(text)
  io.flush()
  return kind
end

-- Answers a message. False if it could not be answered.
function Chat:answer(text)
  local talk, last = self.talk, nil
  q.host.defer_interrupt(true)  -- Ctrl-C ends the answer, not the chat
  local ok, err = q.try(function()
    for piece, kind in talk:ask(text, q.host.interrupted) do last = say(piece, kind, last) end
    return true
  end)
  local _, signal = q.host.interrupted()
  q.host.defer_interrupt(false)
  print(q.host.isatty(1) and "\27[0m" or "")
  if not ok then print(err.message) return false end
  if signal and signal ~= "Ctrl-C" then q.error("interrupted", "the chat was ended by " .. signal) end
  io.stderr:write(dim((talk.request.finish == "cancelled" and "stopped; " or "") .. talk:speed()), "\n")
  return true
end

-- Takes the last exchange back and answers anew. If that fails, the exchange stands as it was.
function Chat:again(change)
  local talk = self.talk
  local messages, forgotten = { unpack(talk.messages) }, talk.forgotten
  local question = talk:take_back()
  if not question then return print "nothing was asked yet" end
  local text = change(question)
  if not text or not self:answer(text) then talk.messages, talk.forgotten = messages, forgotten end
end

-- ---------------------------------------------------------------- commands

-- The names of what /set changes: options of drawing tokens that are single values.
function Chat:settings()
  local list = {}
  for _, entry in ipairs(self.declared) do
    if entry[1] ~= "logit_bias" and entry[1] ~= "dry_sequence_breakers" then list[#list + 1] = entry[1] end
  end
  table.sort(list)
  return list
end

local commands = {}

function commands.help() print(help) end
function commands.reset(self) self.talk:reset() end

function commands.system(self, text)
  self.talk.system = text ~= "" and text or nil
  self.talk:reset()
end

function commands.regenerate(self)
  self:again(function(question)
    self.talk.opt.seed = (self.talk.opt.seed or 0) + 1
    return question
  end)
end

function commands.edit(self, text)
  self:again(function(question)
    if text ~= "" then return text end
    if not self.editor then print "/edit needs the new text where the input is no terminal" return nil end
    local changed = self:read(question)
    return changed and changed:match "%S" and changed or nil
  end)
end

function commands.set(self, text)
  local talk, name, value = self.talk, text:match "^(%S+)%s+(%S+)%s*$"
  if text == "" then
    for _, each in ipairs(self:settings()) do print(("%-20s %s"):format(each, tostring(talk.opt[each]))) end
    return
  end
  name = name and name:gsub("-", "_")
  if not name or name == "logit_bias" or name == "dry_sequence_breakers" or not self.declared[name] then
    return print(("/set NAME VALUE, with a name of: %s"):format(table.concat(self:settings(), ", ")))
  end
  local changed = {}
  for each, given in pairs(talk.opt) do changed[each] = given end
  changed[name] = options.convert(self.declared[name], value)
  require("qeng.infer.request").sampler(talk.model, changed)  -- what does not go together is an error
  talk.opt[name] = changed[name]
end

function commands.save(self, path)
  if path == "" then return print "/save needs a file" end
  self.talk:save(path)
  print("saved to " .. path)
end

function commands.load(self, path)
  if path == "" then return print "/load needs a file" end
  self.talk:load(path)
  print(("%d messages of %s"):format(#self.talk.messages, path))
end

-- ---------------------------------------------------------------- the loop

-- talk: a conversation; name: the model's.
function chat.run(talk, name)
  local self = setmetatable({ talk = talk, declared = options.entries "drawing" }, Chat)
  if q.host.isatty(0) and q.host.isatty(1) then
    local function complete(word, before) return self:complete(word, before) end
    self.editor = q.host.line_editor { history = home_history(), complete = complete }
  end
  if q.host.isatty(0) then print(name .. "; /help lists the commands") end
  while true do
    local text, why = self:read()
    if not text and why ~= "interrupted" then break end
    if not text then
      print "\nCtrl-D or /quit ends the chat"
    else
      local command, rest = (text .. " "):match "^/(%w+)%s+(.-)%s*$"
      if command == "quit" then break end
      if command and commands[command] then
        local done, err = q.try(function() commands[command](self, rest) return true end)
        if not done then
          if err.code == "interrupted" then error(err, 0) end
          print(err.message)
        end
      elseif command then print(("there is no command /%s; /help lists them"):format(command))
      elseif text:match "%S" then self:answer(text) end
    end
  end
  if self.editor then print() end
end

return chat
