-- What records are, what is wrong with them, and which are held out.

local languages = require "qeng.wizard.languages"
local q = require "qeng.core"
local records = require "qeng.wizard.records"
local shapes = require "qeng.chat.records"

local look = {}

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
function look.at(paths, tell)
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
function look.draw(total, keep, count, seed)
  local list, chosen = {}, {}
  for i = 1, total do
    if keep(i) then list[#list + 1] = { q.host.hash(("%d %d"):format(seed, i)), i } end
  end
  table.sort(list, function(a, b) return a[1] < b[1] end)
  for i = 1, count do chosen[list[i][2]] = true end
  return chosen
end

return look
