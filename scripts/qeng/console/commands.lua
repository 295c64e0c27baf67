-- A recipe of several commands, of which the first word on the command line says one.
--   commands.run("recipes/packets.lua", { merge = { { "OUT IN...: ...", ... options }, function(opt) ... end } }, arg)

local options = require "qeng.console.options"
local q = require "qeng.core"

local commands = {}

-- list: of each command its options (console/options.lua), of which the first line says what it does, and what it does
-- with them. Returns what that returns; without a command, or for --help, prints what there is.
function commands.run(recipe, list, args)
  local name = table.remove(args, 1)
  local command = list[name]
  if command then return command[2](options.parse(command[1], args, recipe .. " " .. name)) end
  local lines, names = { ("usage: qeng %s COMMAND ..., and --help after it for its options"):format(recipe), "" }, {}
  for known in pairs(list) do names[#names + 1] = known end
  table.sort(names)
  for _, known in ipairs(names) do lines[#lines + 1] = ("  %-8s %s"):format(known, list[known][1][1]) end
  local text = table.concat(lines, "\n")
  return name and name ~= "--help" and q.error("usage", ("%s is no command\n%s"):format(name, text)) or print(text)
end

return commands
