-- What a dataset's README says of its parts: `configs` in its front matter, a list of {config_name, default, data_dir,
-- data_files}. Also which config and which split a name on the hub means: org/name:config:split, org/name:config,
-- org/name:split, org/name.

local q = require "qeng.core"
local splits = require "qeng.hub.splits"

local configs = {}

local max_bytes = 2 ^ 24  -- of a README: the largest have some MB

function configs.check_size(bytes, name)
  if bytes > max_bytes then
    q.error("format", ("%s has %d bytes; at most %d are read"):format(name, bytes, max_bytes))
  end
end

local truth = { ["true"] = true, yes = true, on = true, ["false"] = false, no = false, off = false }

-- The text between a first line --- and the line --- that closes it; nil if there is none. Lines keep their numbers.
function configs.front_matter(text)
  local lines, first = {}, 1
  for line in (text:gsub("^\239\187\191", "") .. "\n"):gmatch "(.-)\r?\n" do lines[#lines + 1] = line end
  while lines[first] and not lines[first]:find "%S" do first = first + 1 end
  if not (lines[first] or ""):find "^%s*%-%-%-%s*$" then return nil end
  lines[first] = ""
  for i = first + 1, #lines do
    if lines[i]:find "^%-%-%-[ \t]*$" then return table.concat(lines, "\n", 1, i - 1) end
  end
end

-- The configs of a README's text, or nil if it has none: {name =, default =, data_dir =, data_files =,
-- options = {key = value}}...
function configs.read(text, name)
  configs.check_size(#text, name)
  local front = configs.front_matter(text)
  if not front or not front:find "configs" then return nil end
  local card = q.host.yaml(front, name)
  local given = type(card) == "table" and card.configs
  if not given then return nil end
  if type(given) ~= "table" or #given == 0 and next(given) then q.error("format", name .. ": configs is no list") end
  local list, at = {}, {}
  for i, entry in ipairs(given) do
    local own = type(entry) == "table" and entry.config_name
    if type(own) ~= "string" or own == "" then
      q.error("format", ("%s: entry %d of configs has no config_name"):format(name, i))
    end
    local default = truth[type(entry.default) == "string" and entry.default:lower()]
    if entry.default ~= nil and default == nil then
      q.error("format", ("%s: config %s: default is neither true nor false"):format(name, own))
    end
    local config = {
      name = own, default = default or false, data_dir = entry.data_dir, data_files = entry.data_files, options = {},
    }
    for key, value in pairs(entry) do
      if key ~= "config_name" and config[key] == nil then config.options[key] = value end
    end
    at[own] = at[own] or #list + 1
    list[at[own]] = config  -- of two with one name the later, as elsewhere
  end
  return #list > 0 and list or nil
end

local shown_names = 20

local function names(list)
  local shown = {}
  for i = 1, math.min(#list, shown_names) do shown[i] = list[i].name:gsub("%c", "?") end
  return table.concat(shown, ", ") .. (#list > shown_names and (" and %d more"):format(#list - shown_names) or "")
end

local function named(list, name)
  for _, one in ipairs(list) do
    if one.name == name then return one end
  end
end

-- The config to take if none is named: the one that is marked, the only one, or the one named default.
local function default_of(list, repo)
  local marked
  for _, config in ipairs(list) do
    if config.default then
      if marked then
        q.error("format", ("%s: the configs %s and %s are both the default; name one: %s:%s"):format(repo, marked.name,
          config.name, repo, config.name))
      end
      marked = config
    end
  end
  return marked or (#list == 1 and list[1] or named(list, "default"))
end

-- Options that change how files are read, and their values that change nothing for qeng.
local reading = {
  sep = { [","] = "csv", ["\t"] = "tsv" }, delimiter = { [","] = "csv", ["\t"] = "tsv" },
  encoding = { ["utf-8"] = true, ["utf8"] = true, ["UTF-8"] = true }, header = { ["0"] = true, infer = true },
  quotechar = { ['"'] = true }, lines = { ["true"] = true, ["True"] = true },
  names = {}, column_names = {}, index_col = {}, usecols = {}, skiprows = {}, skipfooter = {}, nrows = {},
  quoting = {}, escapechar = {}, comment = {}, decimal = {}, thousands = {}, field = {}, sample_by = {},
  columns = {}, filters = {},
}

local function check_reading(config, files, where)
  for key, value in pairs(config.options) do
    local same = reading[key] and reading[key][value]
    for _, file in ipairs(same and same ~= true and files or {}) do
      if same and not file.path:lower():find("." .. same, 1, true) then same = nil end
    end
    if reading[key] and not same then
      local given = type(value) == "string" and ": " .. value:sub(1, 40):gsub("%c", "?") or ""
      q.error("unsupported", ("%s says %s%s, and qeng reads these files otherwise: fetch them (recipes/fetch.lua "
        .. "--kind dataset --files PATTERN), and bring them into a form of --data"):format(where, key, given))
    end
  end
end

-- The config that one word means, or none. Also the word, if it is a split of that config.
local function by_word(list, word, repo, files, where)
  local of_name = word and named(list, word)
  local default, why = q.try(default_of, list, repo)
  local known
  if default and word then known, why = q.try(splits.of, default, files, where(default)) end
  if why and not of_name then error(why, 0) end
  if known and named(known, word) then return default, word end
  if of_name then return of_name end
  if not default then
    q.error("value", ("%s has several configs and no default: name one, as %s:%s; its README.md has %s"):format(repo,
      repo, list[1].name, names(list)))
  end
  if not word then return default end
  q.error("value", ("%s has no data of split %s; config %s has %s%s"):format(repo, word, default.name, names(known),
    #list > 1 and "; its configs are " .. names(list) or ""))
end

-- The config and the split that `name` means ({repo =, config =, split =}). A word that stands alone is in split.
local function choose(list, name, files)
  local function where(config) return ("%s: config %s of README.md"):format(name.repo, config.name:gsub("%c", "?")) end
  local word, config = name.split
  if name.config then
    config = named(list, name.config)
    if not config then
      q.error("value", ("%s has no config %s; its README.md has %s"):format(name.repo, name.config, names(list)))
    end
  else
    config, word = by_word(list, word, name.repo, files, where)
  end
  local all = splits.of(config, files, where(config))
  local split = word and named(all, word) or not word and (named(all, "train") or #all == 1 and all[1])
  if not split then
    q.error("value", ("%s: config %s has no split %s; name one, as %s:%s:%s; it has %s"):format(name.repo, config.name,
      word or "train", name.repo, config.name, all[1].name, names(all)))
  end
  return config, split, where(config)
end

-- The files of the split that `name` means, in order, and the names of config and split. note(text) gets remarks.
function configs.files(list, name, files, note)
  local config, split, where = choose(list, name, files)
  local chosen = splits.files(config, split, files, where, note)
  check_reading(config, chosen, where)
  return chosen, config.name, split.name
end

return configs
