-- Records of JSONL files and JSON arrays, one after the other and as they are written, and what is wrong with them.

local languages = require "qeng.wizard.languages"
local q = require "qeng.core"
local shapes = require "qeng.chat.records"

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

local function refuse_form(path)
  q.error("unsupported", ("%s: the wizard reads JSONL and JSON arrays, uncompressed; recipes/lora_qwen.lua --data "
    .. "trains on this file as it is"):format(path))
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

-- An iterator over the records' texts, a line each: text, path, number (of the line, or in the array; from 1).
local function texts_of(path)
  local file, why = io.open(path, "rb")
  if not file then q.error("io", why) end
  local head = (file:read(4096) or ""):gsub("^\239\187\191", ""):match "^%s*(.?)"
  file:seek("set", 0)
  if head ~= "{" and head ~= "[" then
    file:close()
    refuse_form(path)
  end
  local number, list = 0, nil
  if head == "[" then
    local text = file:read "*a"
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
      if line:find "%S" then return line, path, number end
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

local function shape_of(record)
  if type(record) ~= "table" then return "of no object" end
  for _, name in ipairs { "messages", "conversations" } do if record[name] then return name end end
  if record.prompt ~= nil and record.completion ~= nil then return "prompt and completion" end
  if record.instruction ~= nil and record.output ~= nil then return "instruction and output" end
  return record.text ~= nil and "text" or "of no known shape"
end

-- Whether something in it is trained, and all that is said.
local function said(record)
  if record.text then return record.text:find "%S" ~= nil, record.text end
  local parts, answered = {}, false
  for i, message in ipairs(record.messages) do
    parts[i] = message.content or ""
    local says = parts[i]:find "%S" or shapes.given(message.tool_calls) or shapes.given(message.reasoning_content)
    if says and message.role == "assistant" and message.train ~= false then answered = true end
  end
  return answered, table.concat(parts, "\n")
end

-- What is asked: all before the last answer.
local function question_of(record)
  if record.text then return nil end
  local last = #record.messages
  while last > 0 and record.messages[last].role ~= "assistant" do last = last - 1 end
  return last > 1 and q.json.encode { unpack(record.messages, 1, last - 1) } or nil
end

-- Looks at all records. Returns:
--   count, shapes {name = records}, bytes {of what is said, sorted}, languages {name = records}
--   fate      of each record: true, "duplicate", or why it cannot be trained on
--   first     of each duplicate: the record that it repeats
--   good, duplicates, asked_again (other answers to a question that was there), examples {reason = place of the first}
function records.look(paths, tell)
  local found = { count = 0, shapes = {}, bytes = {}, languages = {}, fate = {}, first = {}, good = 0, duplicates = 0,
    asked_again = 0, reasons = {}, examples = {} }
  local seen, asked = {}, {}
  local function count(list, name) list[name] = (list[name] or 0) + 1 end
  local function fate_of(text)
    local fine, record = pcall(q.json.decode, text, { ordered = true, exact = true })
    if not fine then return "not JSON" end
    count(found.shapes, shape_of(record))
    local done, why = pcall(function() record = shapes.normalize(record) end)
    if not done then
      if why.code ~= "format" then error(why, 0) end
      return why.message
    end
    local answered, all = said(record)
    if not answered then return "without an answer to train on" end
    local hash = q.host.hash(q.json.encode { record.text or record.messages, record.tools or false })
    if seen[hash] then
      found.first[found.count] = seen[hash]
      return "duplicate"
    end
    seen[hash] = found.count
    local question = question_of(record)
    question = question and q.host.hash(question)
    if question and asked[question] then found.asked_again = found.asked_again + 1 end
    if question then asked[question] = true end
    found.bytes[#found.bytes + 1] = #all
    count(found.languages, languages.of(all))
    return true
  end
  for text, path, number in records.each(paths) do
    found.count = found.count + 1
    local fate = fate_of(text)
    found.fate[found.count] = fate
    if fate == true then
      found.good = found.good + 1
    elseif fate == "duplicate" then
      found.duplicates = found.duplicates + 1
    else
      count(found.reasons, fate)
      found.examples[fate] = found.examples[fate] or ("%s:%d"):format(path, number)
    end
    if found.count % 1000 == 0 then tell(found.count) end
  end
  table.sort(found.bytes)
  return found
end

-- Which records are held out: `count` of those that keep(i) is true of, drawn by `seed`, as a set of their numbers.
function records.draw(total, keep, count, seed)
  local list, chosen = {}, {}
  for i = 1, total do
    if keep(i) then list[#list + 1] = { q.host.hash(("%d %d"):format(seed, i)), i } end
  end
  table.sort(list, function(a, b) return a[1] < b[1] end)
  for i = 1, count do chosen[list[i][2]] = true end
  return chosen
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
