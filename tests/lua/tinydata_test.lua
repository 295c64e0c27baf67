-- tinydata: the built-in demo's text. Runs under qeng and under plain luajit, from the repository root.
package.path = "scripts/?.lua;scripts/qeng/train/?.lua;" .. package.path
local tinydata = require "tinydata"

local function flat(record)
  if record.text then return record.text end
  local parts = {}
  for i, message in ipairs(record.messages) do
    assert(message.role == (i % 2 == 1 and "user" or "assistant"), "roles alternate and the user begins")
    assert(#message.content > 0, "no message is empty")
    parts[i] = message.content
  end
  assert(#parts % 2 == 0, "a dialogue ends with an answer")
  return table.concat(parts, "\n")
end

local function pretraining(seed, n)
  local out = {}
  for record in tinydata.pretrain(seed, n) do out[#out + 1] = flat(record) end
  return out
end

-- The same seed gives the same text, and another seed another one.
local first = pretraining(1, 3000)
assert(#first == 3000)
assert(table.concat(first, "\n") == table.concat(pretraining(1, 3000), "\n"))
assert(table.concat(first, "\n") ~= table.concat(pretraining(2, 3000), "\n"))

-- Printable ASCII, no placeholder left over, and nothing of the task: its command is new, and so are its records.
for _, text in ipairs(first) do
  assert(not text:find '[^\n -~]', text)
  assert(text:find "^Copy " or not text:find '[${}"]', text)
  assert(not text:find '": "', text)
  assert(not text:find "Record", text)
  assert(not text:find "%f[%a]nil%f[%A]", text)
end

-- Hardly any record comes twice, short ones about single numbers apart.
local seen, distinct = {}, 0
for _, text in ipairs(first) do
  if not seen[text] then distinct = distinct + 1 end
  seen[text] = true
end
assert(distinct > 0.97 * #first, distinct)

-- The sentence of each record says what the record says: read it back, with tables of its own.
local digits = { a = 1, an = 1, two = 2, three = 3, four = 4, five = 5, six = 6, seven = 7, eight = 8,
  nine = 9, ten = 10,
  eleven = 11, twelve = 12 }
local day_numbers = { Monday = 1, Tuesday = 2, Wednesday = 3, Thursday = 4, Friday = 5, Saturday = 6, Sunday = 7 }
local irregular = { buy = "bought", sell = "sold", find = "found", lose = "lost", steal = "stole,stolen",
  ["break"] = "broke,broken",
  hide = "hid,hidden", draw = "drew,drawn", carry = "carried" }
local plurals = { knife = "knives", shelf = "shelves", leaf = "leaves", mouse = "mice", goose = "geese", box = "boxes",
  brush = "brushes", berry = "berries", puppy = "puppies" }

local function has_word(sentence, word)
  return (" " .. sentence:lower() .. " "):find("[^%w]" .. word:lower() .. "[^%w]") ~= nil
end

local function check(example)
  local sentence = assert(example.messages[1].content:match "^Record: (.+)%.$")
  local answer = example.messages[2].content
  local who, did, count, colour, item, place, day = answer:match(
    '^{"name": "(%u%l+)", "verb": "(%l+)", "number": (%d+), "colour": "(%l+)", ' ..
    '"thing": "(%l+)", "place": "(%u%l+)", "day": (%w+)}$')
  assert(who, answer)
  assert(has_word(sentence, who) and has_word(sentence, colour) and has_word(sentence, "in " .. place), sentence)
  local quantity = assert(sentence:lower():match("(%w+) " .. colour .. " "), sentence)
  assert((digits[quantity] or tonumber(quantity)) == tonumber(count), sentence .. answer)
  assert(has_word(sentence, colour .. " " .. (count == "1" and item or plurals[item] or item .. "s")),
    sentence .. answer)
  local told = false
  for form in (irregular[did] or did .. "ed"):gmatch "[^,]+" do told = told or has_word(sentence, form) end
  assert(told, sentence .. answer)
  local named = sentence:match "%u%l+day"
  assert(day == tostring(named and day_numbers[named] or "null"), sentence .. answer)
end

local train, held_out = tinydata.task(1, 4000), tinydata.task(2, 500, "held_out")
assert(#train == 4000 and #held_out == 500)
local prompts = {}
for _, example in ipairs(train) do
  check(example)
  local prompt = example.messages[1].content
  assert(not prompts[prompt], "no prompt comes twice")
  prompts[prompt] = true
end

-- Training and held-out prompts are disjoint for all seeds, also where both draw from the same seed.
for _, seed in ipairs { 1, 2 } do
  for _, example in ipairs(tinydata.task(seed, 500, "held_out")) do
    check(example)
    assert(not prompts[example.messages[1].content], example.messages[1].content)
  end
end
assert(not pcall(tinydata.task, 1, 1, "test"), "an unknown split is refused")

print "tinydata: ok"
