-- A recipe's command line from a list, in the order that --help prints:
--
--   local opt = q.options {
--     "Fine-tunes a model.",                                     -- what --help says first
--     { "model", nil, "Hugging Face folder", required = true },  -- name, default, help
--     { "rank", 16, "LoRA rank", min = 1 },
--     "device",                                                  -- a set that options.set declared
--   }
--
-- The default shows the type: true or false is a switch, 16 a whole number, 0.5 a number, {} a list with commas
-- between, and all else text. Of options given twice the last counts; lists and maps grow. What else an entry may have:
--
--   number = true                a number that may have a fraction, where the default does not show it
--   number = "whole"             a whole number, likewise
--   min =, max =, choices =      what a value may be, or each of a list
--   check = function(value)      what is wrong with a value, nil if nothing is
--   required = true              without a default
--   kind = "bytes"               a size, as 500M or 1.5G (units of 1000)
--   kind = "map"                 NAME=NUMBER,... as a table; blanks = true: a blank beside a name is part of it
--   kind = "input"               a path that is read; a list's text that is there as a path is that one, commas and all
--   kind = "output", holds =     a file that is written, compared with what is read (console/output.lua)
--   kind = "folder", files =     a folder that is written, likewise; these two bring --overwrite with them
--
-- The list may have positional = { names }, the options that words without -- are in their order, and rest = "name", a
-- list of the words after these. With ranks = true, in the list or in a set of it, several processes of mpirun or srun
-- may run the recipe together (q.finetune, q.train). An entry takes the place of one before it that has the same name.
-- On the command line a dash stands for an underscore.

local output = require "qeng.console.output"
local q = require "qeng.core"

local options = {}

-- Levenshtein distance, for "did you mean".
local function distance(a, b)
  local row = {}
  for j = 0, #b do row[j] = j end
  for i = 1, #a do
    local diagonal = row[0]
    row[0] = i
    for j = 1, #b do
      local above = row[j]
      local change = diagonal + (a:byte(i) == b:byte(j) and 0 or 1)
      row[j] = math.min(above + 1, row[j - 1] + 1, change)
      diagonal = above
    end
  end
  return row[#b]
end

-- The candidates that `word` may have meant, best first, at most three.
function options.nearest(word, candidates)
  local close = {}
  for _, name in ipairs(candidates) do
    local d = distance(word, name)
    if d <= math.max(2, #word / 3) or name:find(word, 1, true) == 1 then close[#close + 1] = { name, d } end
  end
  table.sort(close, function(x, y) return x[2] < y[2] or (x[2] == y[2] and x[1] < y[1]) end)
  local names = {}
  for i = 1, math.min(#close, 3) do names[i] = close[i][1] end
  return names
end

-- ---------------------------------------------------------------- declarations

local sets = {}

-- Declares a set of options, which lists bring in by its name.
function options.set(name, entries) sets[name] = entries end

local function unknown_set(name)
  local names = {}
  for known in pairs(sets) do names[#names + 1] = known end
  table.sort(names)
  q.error("value", ("q.options: no set of options is called %s; there are %s"):format(name, table.concat(names, ", ")))
end

local function add(declared, entry)
  if type(entry) == "string" then
    for _, one in ipairs(sets[entry] or unknown_set(entry)) do add(declared, one) end
    return declared
  end
  if type(entry[1]) ~= "string" or type(entry[3]) ~= "string" then
    q.error("value", ("q.options: entry %s: expected { \"name\", default, \"help\" }"):format(tostring(entry[1])))
  end
  local place = #declared + 1
  for i, one in ipairs(declared) do if one[1] == entry[1] then place = i end end
  declared[place], declared[entry[1]] = entry, entry
  return declared
end

-- The entries of a set, in order and by name.
function options.entries(set) return add({}, set) end

local function is_output(entry) return entry.kind == "output" or entry.kind == "folder" end

local overwrite = { "overwrite", false, "write also over what is read here, or is of another kind" }

local function entries_of(list)
  for key in pairs(list) do
    if type(key) == "string" and key ~= "positional" and key ~= "rest" and key ~= "ranks" then
      q.error("value", ("q.options takes a list in the order of --help: { %q, default, help } instead of "
        .. "%s = { default, help }"):format(key, key))
    end
  end
  local declared = {}
  for i, entry in ipairs(list) do
    if i > 1 or type(entry) == "table" then add(declared, entry) end
  end
  for _, entry in ipairs(declared) do
    if is_output(entry) and not declared.overwrite then add(declared, overwrite) end
  end
  return declared
end

local function flag(entry) return "--" .. entry[1]:gsub("_", "-") end

-- What a value is, and each of a list: "switch", "number", "bytes", "map" or "text"; and whether it is a list.
local function kind_of(entry)
  local default = entry[2]
  local list = type(default) == "table" and entry.kind ~= "map"
  if entry.kind == "bytes" or entry.kind == "map" then return entry.kind, list end
  if list then default = default[1] end
  if entry.number or type(default) == "number" then return "number", list end
  return type(default) == "boolean" and "switch" or "text", list
end

local function is_whole(entry)
  local default = entry[2]
  for _, number in ipairs(type(default) == "table" and default or { default }) do
    if number ~= math.floor(number) then return false end
  end
  return entry.number ~= true
end

local function default_of(entry)
  local default = entry[2]
  return type(default) == "table" and { unpack(default) } or default
end

local function shown(value)
  if type(value) == "number" and value % 1 == 0 and math.abs(value) < 1e15 then return ("%d"):format(value) end
  if type(value) ~= "table" then return tostring(value) end
  local words = {}
  for i, each in ipairs(value) do words[i] = shown(each) end
  return table.concat(words, ",")
end

local value_words = { number = " N", bytes = " SIZE", map = " NAME=N,...", text = " TEXT" }

local function help(list, declared, program)
  local lines = { ("usage: qeng %s [options]"):format(program), "" }
  if type(list[1]) == "string" then lines[3], lines[4] = list[1], "" end
  for _, entry in ipairs(declared) do
    local kind, is_list = kind_of(entry)
    local words = entry.choices and " " .. shown(entry.choices):gsub(",", "|") or value_words[kind] or ""
    local notes, default = {}, shown(entry[2])
    if entry[2] and default ~= "" then notes[#notes + 1] = "default " .. default end
    if entry.min then notes[#notes + 1] = "at least " .. shown(entry.min) end
    if entry.max then notes[#notes + 1] = "at most " .. shown(entry.max) end
    lines[#lines + 1] = ("  %-28s %s%s"):format(flag(entry) .. words .. (is_list and ",..." or ""), entry[3],
      #notes > 0 and " (" .. table.concat(notes, ", ") .. ")" or "")
  end
  lines[#lines + 1] = ("  %-28s %s"):format("--help", "this text")
  return table.concat(lines, "\n") .. "\n"
end

-- ---------------------------------------------------------------- values

local function usage(...) q.error("usage", (...):format(select(2, ...))) end

local units = { [""] = 1, K = 1e3, M = 1e6, G = 1e9, T = 1e12 }

local types = { switch = "boolean", text = "string", map = "table", number = "number", bytes = "number" }
local called = {
  boolean = "true or false", string = "a text", table = "a table of numbers by names", number = "a number",
}

-- What is wrong with a value, or with one of a list; nil if nothing is.
local function fault(entry, value)
  local kind = kind_of(entry)
  local least = entry.min or kind == "bytes" and 1
  if type(value) ~= types[kind] then return "not " .. called[types[kind]] end
  if types[kind] == "number" then
    if value - value ~= 0 then return "not a number" end  -- nor is infinity
    if value % 1 ~= 0 and kind == "number" and is_whole(entry) then return "not a whole number" end
    if least and value < least then return "has to be at least " .. shown(least) end
    if entry.max and value > entry.max then return "has to be at most " .. shown(entry.max) end
  end
  if entry.check then return entry.check(value) end
  for _, choice in ipairs(entry.choices or {}) do if choice == value then return nil end end
  return entry.choices and "one of " .. table.concat(entry.choices, ", ")
end

local function convert_one(entry, text)
  local kind, value, why = kind_of(entry), text, nil
  if kind == "map" then
    value = {}
    for part in text:gmatch "[^,]+" do
      local name, number = part:match(entry.blanks and "^(.+)=([^=]*)$" or "^%s*(.-)%s*=([^=]*)$")
      number = tonumber(number)
      if number and number - number == 0 then value[name] = number else why = ("%q is not NAME=NUMBER"):format(part) end
    end
  elseif kind == "bytes" then
    local number, unit = text:match "^([%d.]+)([KMGT]?)B?$"
    value = tonumber(number) and math.floor(tonumber(number) * units[unit] + 0.5) or 0
    if value < 1 then why = "expected a size, as 500M, 1.5G or a number of bytes" end
  elseif kind == "number" then
    value = tonumber(text)
  end
  why = why or fault(entry, value)
  if why then usage("%s %s: %s", flag(entry), text, why) end
  return value
end

-- The value that a text gives an option.
function options.convert(entry, text)
  local _, is_list = kind_of(entry)
  if not is_list then return convert_one(entry, text) end
  if entry.kind == "input" and q.fs.kind(text) then return { text } end  -- one path, perhaps with commas in it
  local list = {}
  for word in text:gmatch "[^,]+" do
    word = word:match "^%s*(.-)%s*$"
    if word ~= "" then list[#list + 1] = convert_one(entry, word) end
  end
  return list
end

-- Refuses what a script gives under another name than these. What was parsed was looked at, and may hold more.
function options.refuse_others(who, given, names)
  local known = {}
  for _, name in ipairs(names) do known[name] = true end
  for name in pairs(given.__given and {} or given) do
    if not known[name] then
      local near = options.nearest(tostring(name), names)
      q.error("value", ("%s: no option %s; %s"):format(who, tostring(name), #near > 0 and "did you mean "
        .. table.concat(near, " or ") .. "?" or "there are " .. table.concat(names, ", ")))
    end
  end
end

-- The options of a set as a script gave them, with defaults for those it left out. Errors name `who`. A list may be
-- given as text with commas. A text may be given as a list of its parts, or as a table that is meant as JSON. What the
-- set does not have stays as it is if it is in the list `more`, or was parsed, and is refused otherwise. __given: as in
-- parse.
function options.complete(who, set, given, more)
  local told, opt, names = given.__given, {}, { unpack(more or {}) }
  for _, entry in ipairs(options.entries(set)) do names[#names + 1] = entry[1] end
  options.refuse_others(who, given, names)
  for name, value in pairs(given) do opt[name] = value end
  if not told then
    told = {}
    for name in pairs(given) do told[name] = true end
  end
  for _, entry in ipairs(options.entries(set)) do
    local name, value = entry[1], given[entry[1]]
    if type(value) == "table" and kind_of(entry) == "text" and type(entry[2]) ~= "table" then
      value = value[1] and table.concat(value, ",") or q.json.encode(value)
    end
    if type(value) == "string" and type(entry[2]) == "table" then value = options.convert(entry, value) end
    if value == nil then value = default_of(entry) end
    local _, is_list = kind_of(entry)
    for _, one in ipairs(is_list and type(value) == "table" and value or { value }) do
      local why = fault(entry, one)
      if why then q.error("value", ("%s: %s is %s: %s"):format(who, name, tostring(one), why)) end
    end
    opt[name] = value
  end
  return setmetatable(opt, { __index = { __given = told } })
end

-- Values as the command line has them (numbers, strings, booleans), for the output folder and the report.
function options.settings(values)
  local settings = {}
  for name, value in pairs(values) do
    if type(value) == "table" then
      local parts = {}
      for key, each in pairs(value) do
        if type(key) == "string" then parts[#parts + 1] = key .. "=" .. shown(each) end
      end
      table.sort(parts)
      settings[name] = #parts > 0 and table.concat(parts, ",") or shown(value)
    elseif type(value) ~= "function" then
      settings[name] = value
    end
  end
  return settings
end

-- ---------------------------------------------------------------- the command line

-- Refuses outputs that would replace what is read, or a file of another kind.
local function check_outputs(declared, values)
  for _, entry in ipairs(declared) do
    local reads, path = {}, is_output(entry) and values[entry[1]] or ""
    for _, other in ipairs(declared) do
      local counts = other ~= entry and (other.kind == "input" or is_output(other))
      local text = counts and shown(values[other[1]] or "") or ""
      reads[#reads + 1] = text
      for part in text:gmatch "[^,]+" do reads[#reads + 1] = part end
    end
    if path ~= "" then
      output[entry.kind == "output" and "file" or "folder"](path,
        { holds = entry.holds, files = entry.files, reads = reads, overwrite = values.overwrite })
    end
  end
end

local function unknown(declared, name)
  local names = {}
  for i, entry in ipairs(declared) do names[i] = (entry[1]:gsub("_", "-")) end
  local near = options.nearest(name, names)
  local hint = #near > 0 and "did you mean --" .. table.concat(near, " or --") .. "?" or "see --help"
  usage("unknown option --%s; %s", name, hint)
end

-- Whether a list or a set of it says ranks = true.
local function for_ranks(list)
  for _, entry in ipairs(list) do
    if sets[entry] and for_ranks(sets[entry]) then return true end
  end
  return list.ranks
end

-- Joins the job that mpirun or srun started this process for. A recipe that knows no ranks would do all its work once
-- for each.
local function join_job(list)
  local job = q.ranks.join()
  if job and job:size() > 1 and not for_ranks(list) then
    usage("this recipe runs in one process, and this is one of %d: start it without mpirun or srun", job:size())
  end
end

-- What an option is that was given twice: both lists or maps in one, else the later value.
local function joined(earlier, later)
  if type(later) ~= "table" then return later end
  for key, value in pairs(later) do
    if type(key) == "number" then earlier[#earlier + 1] = value else earlier[key] = value end
  end
  return earlier
end

-- Parses args (the recipe's own by default). Returns the values; values.__given says which were on the command line.
function options.parse(list, args, program)
  args, program = args or arg or {}, program or (arg and arg[0]) or "recipe"
  local declared, values, given, words = entries_of(list), {}, {}, {}
  local positional = list.positional or {}
  for _, entry in ipairs(declared) do values[entry[1]] = default_of(entry) end
  if not (" " .. table.concat(args, " ") .. " "):find(" --help ", 1, true) then join_job(list) end
  local i = 1
  while i <= #args do
    local word = args[i]
    local name, text = word:match "^%-%-([^=]+)=(.*)$"
    name = name or word:match "^%-%-(.+)$"
    if not name then
      if not list.rest and #words >= #positional then
        usage("%s: unexpected; options begin with --, see --help", word)
      end
      words[#words + 1] = word
    elseif name == "help" then
      io.write(help(list, declared, program))
      os.exit(0, true)
    else
      local key = name:gsub("-", "_")
      local entry = declared[key] or unknown(declared, name)
      if kind_of(entry) == "switch" then
        if text and text ~= "true" and text ~= "false" then usage("%s takes no value", flag(entry)) end
        values[key] = text ~= "false"
      else
        if not text then
          i = i + 1
          text = args[i] or usage("%s needs a value", flag(entry))
        end
        local value = options.convert(entry, text)
        values[key] = given[key] and joined(values[key], value) or value
      end
      given[key] = true
    end
    i = i + 1
  end
  for index, name in ipairs(positional) do
    if words[index] and given[name] then usage("%s: unexpected beside %s", words[index], flag(declared[name])) end
    if words[index] then values[name], given[name] = options.convert(declared[name], words[index]), true end
  end
  if list.rest then values[list.rest] = { unpack(words, #positional + 1) } end
  for _, entry in ipairs(declared) do
    if entry.required and values[entry[1]] == nil then usage("%s is required: %s", flag(entry), entry[3]) end
  end
  check_outputs(declared, values)
  return setmetatable(values, { __index = { __given = given } })
end

return options
