-- Questions at a terminal. A flag answers one before it is asked. Enter takes the recommended answer, ? explains, and
-- what is no answer is asked for again. With --yes the recommended answer is taken.

local options = require "qeng.console.options"
local paths = require "qeng.console.paths"
local q = require "qeng.core"

local questions = {}

local Questions = {}
Questions.__index = Questions

-- Whether a value says "as recommended": what the options of questions have by default.
function questions.is_open(value) return value == nil or value == 0 end

local function flag(name) return "--" .. name:gsub("_", "-") end

local function shown(value)
  return type(value) == "number" and ("%.6g"):format(value) or tostring(value)
end

-- opt: parsed options, yes among them. set: the set of options whose entries say what an answer may be.
function questions.new(opt, set)
  if not opt.yes and not q.host.isatty(0) then
    q.error("usage", "there is no terminal to ask at: give --yes, which takes the recommended answers, and flags for "
      .. "what should be otherwise (--help lists them)")
  end
  local self = setmetatable({ opt = opt, entries = options.entries(set) }, Questions)
  if not opt.yes and q.host.isatty(1) then self.editor = q.host.line_editor { complete = paths } end
  return self
end

-- Says a line. What records and answers hold of control characters is no part of it: a terminal would obey them.
function Questions:say(text)
  io.write((text:gsub("[%z\1-\8\11-\31\127]", " ")), "\n")
  io.flush()
end

-- The name of a step, above what it says.
function Questions:head(name)
  io.write(q.host.isatty(1) and ("\n\27[1m%s\27[0m\n"):format(name) or "\n" .. name:upper() .. "\n")
  io.flush()
end

local function ended(name)
  q.error("usage", ("the input ended at the question for %s: give %s, or --yes for the recommended answers"):format(
    (name:gsub("_", " ")), flag(name)))
end

-- One line. The end of the input and Ctrl-C are errors.
function Questions:line(prompt, name)
  local text, why
  if self.editor then
    text, why = self.editor:read(prompt)
  else
    io.write(prompt)
    io.flush()
    text = io.read "l"
  end
  if why == "interrupted" then
    q.error("interrupted", "stopped at a question; the same command goes on with it")
  end
  return text and text:match "^%s*(.-)%s*$" or ended(name)
end

-- An answer of text or of a flag, as the option wants it and as the question checks it.
local function checked(question, value)
  if questions.is_open(value) then value = question.default end
  if question.check then question.check(value) end
  return value
end

-- question: name (of the option), text (what is asked), default, why (its reason), check(value), which raises an error
-- if the value does not do, and help (more than the option's own). Returns the answer.
function Questions:ask(question)
  local name, default = question.name, question.default
  local title = name:gsub("_", " ")
  if self.opt.__given[name] and not questions.is_open(self.opt[name]) then
    local value = checked(question, self.opt[name])
    local other = default ~= nil and default ~= value and ("; recommended was %s: %s"):format(shown(default),
      question.why) or ""
    self:say(("%s: %s, by %s%s"):format(title, shown(value), flag(name), other))
    return value
  end
  if self.opt.yes then
    if default == nil then q.error("usage", ("%s: give %s"):format(question.text, flag(name))) end
    self:say(("%s: %s; %s"):format(title, shown(default), question.why))
    return checked(question, default)
  end
  self:say(question.text .. (default ~= nil and (" Recommended: %s; %s."):format(shown(default), question.why) or ""))
  while true do
    local text = self:line(default ~= nil and ("%s [%s]? "):format(title, shown(default)) or title .. "? ", name)
    if text == "?" then
      self:say(self:explained(question))
    elseif text ~= "" or default ~= nil then
      local value, why = q.try(function()
        return checked(question, text == "" and default or options.convert(self.entries[name], text))
      end)
      if value ~= nil then return value end
      if why.code == "interrupted" then error(why, 0) end
      self:say((why.message:gsub("^" .. flag(name):gsub("%-", "%%-") .. " ", "")))
    end
  end
end

-- What ? says.
function Questions:explained(question)
  local entry = self.entries[question.name]
  local lines = { ("%s: %s"):format(flag(entry[1]), entry[3]) }
  if entry.choices then lines[#lines + 1] = "one of " .. table.concat(entry.choices, ", ") end
  lines[#lines + 1] = question.help
  if question.default ~= nil then lines[#lines + 1] = "Enter takes " .. shown(question.default) end
  return "  " .. table.concat(lines, "\n  ")
end

-- A question whose answer is yes or no, and yes is recommended. With --yes it is not asked.
function Questions:agree(text, otherwise)
  if self.opt.yes then return true end
  while true do
    local answer = self:line(text .. " [yes]? ", "yes"):lower()
    if answer == "" or answer == "y" or answer == "yes" then return true end
    if answer == "n" or answer == "no" then return false end
    self:say("yes or no; " .. otherwise)
  end
end

return questions
