-- Matches patterns of a dataset's README against the paths of its repository. They mean what the library `datasets`
-- takes them to mean:
--   *  any characters but /     **  as a whole part of the path: any folders
--   ?  one character            [a-z]  [!a-z]  one of a set
-- Names that begin with . and folders that begin with __ only match patterns that spell these characters. That library
-- takes {a,b} literally; here it means a or b if no file has the literal name.

local q = require "qeng.core"

local glob = {}

local function characters(text)  -- of UTF-8: a ? stands for one of them
  local list = {}
  for char in text:gmatch "[%z\1-\127\192-\255]?[\128-\191]*" do
    if char ~= "" then list[#list + 1] = char end
  end
  return list
end

-- The set whose [ stands at chars[at], and where its ] stands. nil without a ]: then the [ means itself.
local function set_at(chars, at)
  local set = { negated = chars[at + 1] == "!" }
  local first = at + (set.negated and 2 or 1)
  local last = first + 1  -- a ] at the first place is one of the set
  while chars[last] and chars[last] ~= "]" do last = last + 1 end
  if not chars[last] or not chars[first] then return nil end
  local i = first
  while i < last do
    local range = chars[i + 1] == "-" and i + 2 < last
    set[#set + 1] = { chars[i], range and chars[i + 2] or chars[i] }
    i = i + (range and 3 or 1)
  end
  return set, last
end

local function holds(set, char)
  for _, range in ipairs(set) do
    if char >= range[1] and char <= range[2] then return not set.negated end
  end
  return set.negated
end

-- A pattern as steps. A step is a character, a set, {any = true} (one character but /), {star = true} (any number of
-- them), {folders = true} (any number of folders, each with its /), or {rest = true} (anything).
function glob.compile(pattern)
  local steps, parts = {}, {}
  for part in (pattern .. "/"):gmatch "([^/]*)/" do parts[#parts + 1] = part end
  for i, part in ipairs(parts) do
    local last = i == #parts
    if part == "**" then
      steps[#steps + 1] = { [last and "rest" or "folders"] = true }
    else
      if part:find("**", 1, true) then
        q.error("unsupported",
          ("pattern %s: ** can only be a whole part between slashes, as in data/**/*.jsonl"):format(pattern))
      end
      if part == "*" then steps[#steps + 1] = { any = true } end
      local chars, at = characters(part), 1
      while chars[at] do
        local set, close
        if chars[at] == "[" then set, close = set_at(chars, at) end
        local char = chars[at]
        steps[#steps + 1] = set or char == "*" and { star = true } or char == "?" and { any = true } or char
        at = (close or at) + 1
      end
      if not last then steps[#steps + 1] = "/" end
    end
  end
  return steps
end

-- Whether the whole path matches. All places where a step can end are followed at once, so the work is at most steps
-- times length.
function glob.matches(steps, path)
  local chars = characters(path)
  local ends = { [0] = true }
  for _, step in ipairs(steps) do
    local after, alive, before = {}, false, false
    for i = 0, #chars do
      local char, here = chars[i]
      if type(step) == "string" then
        here = char == step and ends[i - 1]
      elseif step.any then
        here = char ~= "/" and ends[i - 1]
      elseif step.star then
        here = ends[i] or i > 0 and char ~= "/" and after[i - 1]
      elseif step.folders then
        here = ends[i] or char == "/" and before
        before = before or ends[i - 1]
      elseif step.rest then
        before = before or ends[i]
        here = before
      else
        here = i > 0 and ends[i - 1] and holds(step, char)
      end
      after[i], alive = here or nil, alive or here
    end
    if not alive then return false end
    ends = after
  end
  return ends[#chars] or false
end

-- How many parts of a path are hidden by their first characters, and how many of its folders.
local function hidden(path)
  local dots, special = 0, 0
  for part, slash in path:gmatch "([^/]+)(/?)" do
    if part:find "^%." and part:find "[^%.]" then dots = dots + 1 end
    if part:find "^__" and slash ~= "" then special = special + 1 end
  end
  return dots, special
end

local describe = {
  ["README.md"] = true, ["config.json"] = true, ["dataset_info.json"] = true, ["dataset_infos.json"] = true,
  ["dummy_data.zip"] = true,
  ["dataset_dict.json"] = true,
}

function glob.has_magic(pattern) return pattern:find "[*?%[]" ~= nil end

local function files_like(pattern, files)
  local dots, special = hidden(pattern)
  local base, found = pattern:match "[^/]*$", {}
  local steps = glob.compile(pattern)
  for _, file in ipairs(files) do
    local name = file.path:match "[^/]*$"
    if glob.matches(steps, file.path) and (not describe[name] or name == base) then
      local file_dots, file_special = hidden(file.path)
      if file_dots == dots and file_special == special then found[#found + 1] = file end
    end
  end
  table.sort(found, function(a, b) return a.path < b.path end)
  return found
end

local max_alternatives = 1000

-- The patterns that a pattern with {a,b} stands for.
local function alternatives(pattern, list)
  local before, inside, after = pattern:match "^(.-){([^{}]*,[^{}]*)}(.*)$"
  if not before then
    if #list >= max_alternatives then
      q.error("unsupported", ("pattern %s: more than %d alternatives"):format(pattern, max_alternatives))
    end
    list[#list + 1] = pattern
    return list
  end
  for word in (inside .. ","):gmatch "([^,]*)," do alternatives(before .. word .. after, list) end
  return list
end

-- The files that a pattern means, by path.
function glob.files(pattern, files)
  local found = files_like(pattern, files)
  if #found > 0 or not pattern:find "{.*,.*}" then return found end
  local seen = {}
  for _, one in ipairs(alternatives(pattern, {})) do
    for _, file in ipairs(files_like(one, files)) do
      if not seen[file] then found[#found + 1], seen[file] = file, true end
    end
  end
  table.sort(found, function(a, b) return a.path < b.path end)
  return found
end

local max_length = 1024  -- of a pattern; hubs take no longer paths

-- A path inside the repository: folder and pattern as one, without "." parts. A path that leads out of it is refused.
function glob.join(folder, pattern)
  for _, text in ipairs { folder, pattern } do
    if #text > max_length then
      q.error("format", ("%s...: a path of %d bytes; at most %d are read"):format(text:sub(1, 80), #text, max_length))
    end
    local is_address = text:find("://", 1, true) or text:find("::", 1, true)
    if text:find "^/" or is_address or ("/" .. text .. "/"):find("/../", 1, true) then
      q.error("unsupported", text .. " leads out of the dataset's repository, and qeng takes only what is in it")
    end
  end
  local parts = {}
  for part in (folder .. "/" .. pattern):gmatch "[^/]+" do
    if part ~= "." then parts[#parts + 1] = part end
  end
  return table.concat(parts, "/")
end

return glob
