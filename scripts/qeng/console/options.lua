-- A recipe's command line from one table: name = { default, help, min =, max =, choices =, kind =, required = }.
-- The type is the default's (false: a switch; nil defaults need kind = "string", "number" or "bytes", which takes 500M, 1.5G
-- and gives a number, of units of 1000). --name value and --name=value;
-- underscores are written as dashes. Paths that are read have kind = "input"; what is written has kind = "output" with holds =, or kind =
-- "folder" with files = (console/output.lua), is compared with these, and brings --overwrite with it. --help prints the table and exits; an unknown name is an error with the nearest ones.

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

local function flag(name) return "--" .. name:gsub("_", "-") end

local function kind_of(spec)
  if spec.kind then return spec.kind end
  local kind = type(spec[1])
  return kind == "nil" and "string" or kind
end

local function shown(value)
  if type(value) == "number" and value == math.floor(value) and math.abs(value) < 1e15 then return ("%d"):format(value) end
  return tostring(value)
end

local function ordered(declared)
  local names = {}
  for name in pairs(declared) do if type(name) == "string" then names[#names + 1] = name end end
  table.sort(names, function(a, b)
    local x, y = declared[a].order or math.huge, declared[b].order or math.huge
    return x < y or (x == y and a < b)
  end)
  return names
end

-- The help text of a declaration.
function options.help(declared, program)
  local lines = { ("usage: qeng %s [options]"):format(program), "" }
  if declared[1] then lines[#lines + 1] = declared[1]; lines[#lines + 1] = "" end
  for _, name in ipairs(ordered(declared)) do
    local spec = declared[name]
    local kind = kind_of(spec)
    local left = flag(name) .. (kind == "boolean" and "" or kind == "number" and " N" or kind == "bytes" and " SIZE" or spec.choices and " " .. table.concat(spec.choices, "|") or " TEXT")
    local notes = {}
    if spec[1] ~= nil and spec[1] ~= false and spec[1] ~= "" then notes[#notes + 1] = "default " .. shown(spec[1]) end
    if spec.min then notes[#notes + 1] = "at least " .. shown(spec.min) end
    if spec.max then notes[#notes + 1] = "at most " .. shown(spec.max) end
    lines[#lines + 1] = ("  %-28s %s%s"):format(left, spec[2], #notes > 0 and " (" .. table.concat(notes, ", ") .. ")" or "")
  end
  lines[#lines + 1] = ("  %-28s %s"):format("--help", "this text")
  return table.concat(lines, "\n") .. "\n"
end

local function usage(...) q.error("usage", (...):format(select(2, ...))) end

local units = { [""] = 1, K = 1e3, M = 1e6, G = 1e9, T = 1e12 }

local function convert(name, spec, text)
  local kind = kind_of(spec)
  local value = text
  if kind == "bytes" then
    local number, unit = text:match "^([%d.]+)([KMGT]?)B?$"
    value = tonumber(number) and math.floor(tonumber(number) * units[unit] + 0.5)
    if not value or value < 1 then usage("%s %s: expected a size, as 500M, 1.5G or a number of bytes", flag(name), text) end
  elseif kind == "number" then
    value = tonumber(text)
    if not value or value - value ~= 0 then usage("%s %s: not a number", flag(name), text) end  -- nor is infinity
    local integral = spec[1] and spec[1] == math.floor(spec[1]) and spec.integer ~= false and (spec.integer or spec[1] ~= 0)
    if integral and value ~= math.floor(value) then usage("%s %s: not a whole number", flag(name), text) end
    if spec.min and value < spec.min then usage("%s %s: has to be at least %s", flag(name), text, shown(spec.min)) end
    if spec.max and value > spec.max then usage("%s %s: has to be at most %s", flag(name), text, shown(spec.max)) end
  elseif spec.choices then
    for _, choice in ipairs(spec.choices) do if choice == text then return text end end
    usage("%s %s: one of %s", flag(name), text, table.concat(spec.choices, ", "))
  end
  return value
end

options.convert = convert  -- the value that a text gives an option of a declaration

local function is_output(spec) return spec.kind == "output" or spec.kind == "folder" end

-- Refuses outputs that would replace what is read, or what is of another kind.
local function check_outputs(declared, values)
  for name, spec in pairs(declared) do
    local reads = {}
    for other, its in pairs(declared) do
      local text = other ~= name and (its.kind == "input" or is_output(its)) and values[other] or ""
      reads[#reads + 1] = text
      for part in text:gmatch "[^,]+" do reads[#reads + 1] = part end
    end
    local path = is_output(spec) and values[name] or ""
    if path ~= "" then
      output[spec.kind == "output" and "file" or "folder"](path, { holds = spec.holds, files = spec.files, reads = reads, overwrite = values.overwrite })
    end
  end
end

local overwrite = { false, "write also over what is read here, or is of another kind", order = 98 }

-- Parses args (the recipe's own by default). Returns the values; values.__given says which were on the command line.
-- Words that are no options are collected in order into the names listed in declared.positional, and further ones, where
-- declared.rest names a list, into that.
function options.parse(declared, args, program)
  args, program = args or arg or {}, program or (arg and arg[0]) or "recipe"
  local values, given, positional = {}, {}, {}
  local declared_options = {}
  for name, spec in pairs(declared) do
    if type(name) == "string" and name ~= "positional" and name ~= "rest" then declared_options[name] = spec; values[name] = spec[1] end
  end
  for _, spec in pairs(declared_options) do
    if is_output(spec) and not declared_options.overwrite then declared_options.overwrite, values.overwrite = overwrite, false break end
  end
  local with_intro = setmetatable({ declared[1] }, { __index = declared_options })
  for name, spec in pairs(declared_options) do with_intro[name] = spec end
  local i = 1
  while i <= #args do
    local word = args[i]
    local name, text = word:match("^%-%-([^=]+)=(.*)$")
    name = name or word:match("^%-%-(.+)$")
    if not name then
      if not declared.rest and #positional >= #(declared.positional or {}) then usage("%s: unexpected; options begin with --, see --help", word) end
      positional[#positional + 1] = word
    elseif name == "help" then
      io.write(options.help(with_intro, program))
      os.exit(0, true)
    else
      local key = name:gsub("-", "_")
      local spec = declared_options[key]
      if not spec then
        local names = {}
        for other in pairs(declared_options) do names[#names + 1] = (other:gsub("_", "-")) end
        table.sort(names)
        local near = options.nearest(name, names)
        usage("unknown option --%s%s", name, #near > 0 and "; did you mean --" .. table.concat(near, " or --") .. "?" or "; see --help")
      end
      if kind_of(spec) == "boolean" then
        if text and text ~= "true" and text ~= "false" then usage("%s takes no value", flag(key)) end
        values[key] = text ~= "false"
      else
        if not text then
          i = i + 1
          text = args[i]
          if not text then usage("%s needs a value", flag(key)) end
        end
        values[key] = convert(key, spec, text)
      end
      given[key] = true
    end
    i = i + 1
  end
  for index, name in ipairs(declared.positional or {}) do
    if positional[index] and given[name] then usage("%s: unexpected beside %s", positional[index], flag(name)) end
    if positional[index] then values[name], given[name] = positional[index], true end
  end
  if declared.rest then values[declared.rest] = { unpack(positional, #(declared.positional or {}) + 1) } end
  for name, spec in pairs(declared_options) do
    if spec.required and values[name] == nil then usage("%s is required: %s", flag(name), spec[2]) end
  end
  check_outputs(declared_options, values)
  return setmetatable(values, { __index = { __given = given } })
end

return options
