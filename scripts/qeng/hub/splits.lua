-- The splits of one entry of `configs` in a dataset's README, and the files of a split. They are those of data_files,
-- if the entry has it, else found by names of files and folders under data_dir. Both are read as the library
-- `datasets` does.

local glob = require "qeng.hub.glob"
local q = require "qeng.core"

local splits = {}

-- ---------------------------------------------------------------- by data_files

local expected = "expected a path, a list of paths, or a list of {split: NAME, path: one or a list}"

local function paths_of(given, where)
  if type(given) == "string" then given = { given } end
  for i, path in ipairs(type(given) == "table" and given or {}) do
    if type(path) ~= "string" then q.error("format", ("%s: entry %d is no path; %s"):format(where, i, expected)) end
  end
  if type(given) ~= "table" or #given == 0 then q.error("format", ("%s names no path; %s"):format(where, expected)) end
  return given
end

local function count(map)
  local n = 0
  for _ in pairs(map) do n = n + 1 end
  return n
end

local function is_split(name)  -- letters of any language, digits and _, with dots between
  return type(name) == "string" and ("." .. name):gsub("%.[%w_\128-\255]+", "") == ""
end

local function given_splits(data_files, where)
  if type(data_files) ~= "table" or type(data_files[1]) ~= "table" then
    return { { name = "train", paths = paths_of(data_files, where) } }
  end
  local list, seen = {}, {}
  for i, entry in ipairs(data_files) do
    if type(entry) ~= "table" or not entry.split or not entry.path or count(entry) ~= 2 then
      q.error("format", ("%s: entry %d has not split and path alone; %s"):format(where, i, expected))
    end
    if not is_split(entry.split) then
      q.error("format", ("%s: entry %d names no split by letters, digits, _ and dots"):format(where, i))
    end
    if seen[entry.split] then q.error("format", ("%s: split %s is there twice"):format(where, entry.split)) end
    local paths = paths_of(entry.path, ("%s, split %s"):format(where, entry.split))
    list[i], seen[entry.split] = { name = entry.split, paths = paths }, true
  end
  return list
end

-- ---------------------------------------------------------------- by names

local words = {
  { "train", "train", "training" }, { "validation", "validation", "valid", "dev", "val" },
  { "test", "test", "testing", "eval", "evaluation" },
}
local apart = "[-._ 0-9]"  -- parts a word from the rest of a name
local of_folders = {
  "**/WORD/**", "**/WORD" .. apart .. "*/**", "**/*" .. apart .. "WORD/**",
  "**/*" .. apart .. "WORD" .. apart .. "*/**",
}
local of_files = { "**/WORD" .. apart .. "*", "**/*" .. apart .. "WORD" .. apart .. "*" }
local digits = ("[0-9]"):rep(5)
local shards = "data/WORD-" .. digits .. "-of-" .. digits .. "*.*"

local function filled(pattern, word) return (pattern:gsub("WORD", (word:gsub("%%", "%%%%")))) end

local function by_words(forms, folder, files)
  local list = {}
  for _, words_of in ipairs(words) do
    local paths, found = {}, false
    for i = 2, #words_of do
      for _, form in ipairs(forms) do
        paths[#paths + 1] = filled(form, words_of[i])
        found = found or #glob.files(glob.join(folder, paths[#paths]), files) > 0
      end
    end
    if found then list[#list + 1] = { name = words_of[1], paths = paths } end
  end
  return list
end

local function by_shards(folder, files, where)
  local list, seen = {}, {}
  for _, file in ipairs(glob.files(glob.join(folder, filled(shards, "*")), files)) do
    local name = file.path:match "([^/]*)%-%d%d%d%d%d%-of%-%d%d%d%d%d[^/]*$"
    if not is_split(name) then
      q.error("format", ("%s: %s names no split by letters, digits, _ and dots"):format(where, file.path))
    end
    if not seen[name] then list[#list + 1], seen[name] = { name = name, paths = { filled(shards, name) } }, true end
  end
  local rank = { train = "\1", validation = "\2", test = "\3" }
  table.sort(list, function(a, b) return (rank[a.name] or a.name) < (rank[b.name] or b.name) end)
  return list
end

local function found_splits(folder, files, where)
  local list = by_shards(folder, files, where)
  if #list == 0 then list = by_words(of_folders, folder, files) end
  if #list == 0 then list = by_words(of_files, folder, files) end
  if #list == 0 and #glob.files(glob.join(folder, "**"), files) > 0 then
    list = { { name = "train", paths = { "**" } } }
  end
  return list
end

-- ---------------------------------------------------------------- of a config

-- The splits {name =, paths =} of an entry of `configs`, in order. where: the name of the entry, for errors.
function splits.of(config, files, where)
  local folder = config.data_dir or ""
  if type(folder) ~= "string" then q.error("format", where .. ": data_dir is no path") end
  local list = config.data_files and given_splits(config.data_files, where .. ": data_files")
    or found_splits(folder, files, where)
  if #list == 0 then
    local place = folder == "" and "the repository" or folder
    q.error("format", ("%s has neither data_files nor files under %s"):format(where, place))
  end
  return list
end

-- The files of a split in the order of its paths, those of a pattern by name. A file that two paths name is there
-- twice. note(text) gets remarks.
function splits.files(config, split, files, where, note)
  local list, seen, again = {}, {}, 0
  for _, path in ipairs(split.paths) do
    local full = glob.join(config.data_dir or "", path)
    local found = glob.files(full, files)
    if #found == 0 and config.data_files then
      if not glob.has_magic(full) then
        q.error("format", ("%s: split %s has no file %s in the repository (of a folder, say %s/**)"):format(where,
          split.name, full, full))
      end
      note(("%s: split %s: no file is like %s"):format(where, split.name, full))
    end
    for _, file in ipairs(found) do
      if seen[file] then again = again + 1 end
      list[#list + 1], seen[file] = file, true
    end
  end
  if again > 0 then
    note(("%s: split %s: %d of its %d files are there again, as more than one of its paths names them"):format(where,
      split.name, again, #list))
  end
  if #list == 0 then
    local some = table.concat(split.paths, ", ", 1, math.min(#split.paths, 5))
    q.error("format", ("%s: split %s has no file in the repository that is like %s"):format(where, split.name, some))
  end
  return list
end

return splits
