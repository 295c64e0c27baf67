-- Records of JSONL files and JSON arrays, one after the other and as they are written, and files of such lines.

local q = require "qeng.core"

local records = {}

local block = 2 ^ 20

-- What tells apart what files hold: a hash of all bytes.
function records.digest(paths)
  local hash = ""
  for _, path in ipairs(paths) do
    local file, why = io.open(path, "rb")
    if not file then q.error("io", why) end
    for bytes in function() return file:read(block) end do hash = q.host.hash(hash .. bytes) end
    file:close()
  end
  return hash
end

-- The first character that is no white space.
local function first_of(file)
  local head = file:read(4096) or ""
  file:seek("set", 0)
  return head:gsub("^\239\187\191", ""):match "^%s*(.?)"
end

local texts = { txt = true, text = true, md = true, csv = true, tsv = true, tab = true }

-- Whether a file is text, CSV or TSV by its name, which then counts more than how it begins.
function records.is_named_text(path)
  local name = path:lower():gsub("%.gz$", ""):gsub("%.zstd?$", ""):gsub("%.bz2$", ""):gsub("%.xz$", "")
  return texts[name:match "%.(%w+)$"] or false
end

-- Whether a file begins as JSONL or a JSON array does, and its name says nothing else.
function records.is_json(path)
  if records.is_named_text(path) then return false end
  local file, why = io.open(path, "rb")
  if not file then q.error("io", why) end
  local first = first_of(file)
  file:close()
  return first == "{" or first == "["
end

-- The texts of the elements of a JSON array, which was found to be one, each as a line. The order of keys and how
-- numbers are written stay.
local function elements(text)
  local list, depth, from, at = {}, 0, nil, 1
  while true do
    local i, _, mark = text:find('(["%[%]{},])', at)
    if not i then return list end
    at = i + 1
    if mark == '"' then
      repeat
        local stop, _, escape = text:find('([\\"])', at)
        at = stop + (escape == "\\" and 2 or 1)
      until escape == '"'
    elseif mark == "[" or mark == "{" then
      depth = depth + 1
      from = from or at
    elseif mark ~= "," then
      depth = depth - 1
    end
    if from and (depth == 0 or depth == 1 and mark == ",") then
      local element = text:sub(from, i - 1):gsub("[\r\n]", " ")
      if element:find "%S" then list[#list + 1] = element:match "^%s*(.-)%s*$" end
      from = at
    end
  end
end

-- With U+FFFD for bytes that are not UTF-8, as the converter reads them.
local function repaired(text)
  return text:find "[\128-\255]" and q.json.decode(q.json.encode(text, { replace = true })) or text
end

-- An iterator over the records' texts, a line each: text, path, number (of the line, or in the array; from 1).
local function texts_of(path)
  local file, why = io.open(path, "rb")
  if not file then q.error("io", why) end
  local number, list = 0, nil
  if first_of(file) == "[" then
    local text = repaired(file:read "*a")
    local fine, problem = pcall(q.json.decode, text)
    if not fine then q.error("format", ("%s: %s"):format(path, problem.message)) end
    list = elements(text)
  end
  return function()
    while true do
      number = number + 1
      if list then
        if not list[number] then return file:close() and nil end
        return list[number], path, number
      end
      local line = file:read "*l"
      if not line then return file:close() and nil end
      line = (number == 1 and line:gsub("^\239\187\191", "") or line):gsub("\r$", "")
      if line:find "%S" then return repaired(line), path, number end
    end
  end
end

-- The same over several files.
function records.each(paths)
  local at, next_text = 0, nil
  return function()
    while true do
      if next_text then
        local text, path, number = next_text()
        if text then return text, path, number end
      end
      at = at + 1
      if not paths[at] then return nil end
      next_text = texts_of(paths[at])
    end
  end
end

-- Writes files of lines that appear whole. write(name, line) adds to OUT/name; done() ends them all.
function records.writer(out)
  local files = {}
  local function write(name, line)
    if not files[name] then
      local why
      files[name], why = io.open(("%s/%s.part"):format(out, name), "wb")
      if not files[name] then q.error("io", why) end
    end
    local fine, why = files[name]:write(line, "\n")
    if not fine then q.error("io", why) end
  end
  return write, function()
    for name, file in pairs(files) do
      local fine, why = file:close()
      if not fine then q.error("io", why) end
      q.fs.join({ ("%s/%s.part"):format(out, name) }, out .. "/" .. name)
      q.fs.remove(("%s/%s.part"):format(out, name))
    end
  end
end

return records
