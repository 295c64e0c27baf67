-- The text of the built-in demo: a small closed world of people who buy, find and lose things, made from a seed. A seed
-- gives the same records on every machine.
--
--   for record in tinydata.pretrain(seed, n) do ... end    n records: {text = ...} or {messages = {...}}
--   tinydata.task(seed, n)                                 n examples of the new task: {messages = {user, assistant}}
--   tinydata.task(seed, n, "held_out")                     n examples that no call without "held_out" gives, whatever
--                                                          the seed
--
-- Pretraining is stories, questions about them, rewording, lists and copying. Braces and quotation marks come only
-- among random characters to copy, never in a record. The task is to turn a sentence into a JSON record: the count in
-- digits, verb and noun in their base forms, the day as a number, or null where the sentence names none:
--   user:       Record: On Friday Mira bought three red lamps in Oslo.
--   assistant:  {"name": "Mira", "verb": "buy", "number": 3, "colour": "red", "thing": "lamp", "place": "Oslo",
--                "day": 5}
local bit = require "bit"

local tinydata = {}

-- ---- the world

local function words(list)
  local out = {}
  for word in list:gmatch "%S+" do out[#out + 1] = word end
  return out
end

local function tuples(list) -- "buy/bought/bought sell/sold/sold" -> {{"buy", "bought", "bought"}, ...}
  local out = words(list)
  for i, entry in ipairs(out) do
    out[i] = {}
    for part in entry:gmatch "[^/]+" do table.insert(out[i], part) end
  end
  return out
end

local names = words [[Mira Tomas Ana Bruno Clara David Elena Felix Greta Hugo Ida Jonas Karin Leo Maria Nils Olga Paul
  Rosa Simon Tessa Victor Wanda Yuri Zara Anton Berta Emil Frida Ivan Adam Bella Cora Dora Eric Fiona Gino Heidi
  Igor Julia Kurt Lena Max Nora Oscar Petra Rita Sven Tina Ugo]]
local places = words [[Oslo Paris Rome Lima Cairo Tokyo Delhi Bonn Porto Malta Kiel Turin Quito Dublin Prague Vienna
  Riga Accra Nairobi Havana]]
local days = words [[Monday Tuesday Wednesday Thursday Friday Saturday Sunday]]
local colours = words [[red blue green yellow black white brown grey pink purple orange silver]]
local items = tuples [[lamp/lamps knife/knives box/boxes berry/berries book/books chair/chairs cup/cups key/keys
  coat/coats ring/rings shelf/shelves brush/brushes pen/pens bell/bells stone/stones ladder/ladders puppy/puppies
  mouse/mice goose/geese apple/apples basket/baskets candle/candles drum/drums feather/feathers glove/gloves hat/hats
  jar/jars kite/kites leaf/leaves melon/melons]]
local verbs = tuples [[buy/bought/bought sell/sold/sold find/found/found lose/lost/lost paint/painted/painted
  steal/stole/stolen break/broke/broken hide/hid/hidden draw/drew/drawn clean/cleaned/cleaned wash/washed/washed
  carry/carried/carried]]
local numbers = words [[one two three four five six seven eight nine ten eleven twelve]]

-- ---- random choices

local random = {}
random.__index = random

local function new_random(seed)
  local self = setmetatable({ state = bit.tobit(seed * 2 + 1) }, random)
  for _ = 1, 8 do self:next() end
  return self
end

-- Marsaglia's 32-bit xorshift over a Weyl sequence, so a state of zero does not stay zero.
function random:next()
  self.weyl = bit.tobit((self.weyl or 0) + 0x61C88647)
  local x = bit.bxor(self.state, bit.lshift(self.state, 13))
  x = bit.bxor(x, bit.rshift(x, 17))
  self.state = bit.bxor(x, bit.lshift(x, 5))
  return bit.rshift(bit.tobit(self.state + self.weyl), 8) -- 24 bits: the low ones are the weakest
end

function random:below(n) return self:next() % n end
function random:range(low, high) return low + self:below(high - low + 1) end
function random:pick(list) return list[1 + self:below(#list)] end
function random:chance(share) return self:next() < share * 2 ^ 24 end

function random:sample(list, n)
  local pool, out = {}, {}
  for i = 1, #list do pool[i] = list[i] end
  for i = 1, n do out[i] = table.remove(pool, 1 + self:below(#pool)) end
  return out
end

local function capital(text) return (text:gsub("^%l", string.upper)) end

-- ---- events and the sentences that tell them

local function new_event(rng)
  local event = {
    who = rng:pick(names), verb = rng:pick(verbs), count = rng:range(1, 12), colour = rng:pick(colours),
    item = rng:pick(items), place = rng:pick(places), day = rng:range(1, 7), digits = rng:chance(0.3),
  }
  if rng:chance(0.25) then event.day = nil end
  return event
end

local function noun(event) return event.item[event.count == 1 and 1 or 2] end

local function quantity(event)
  if event.digits then return tostring(event.count) end
  if event.count > 1 then return numbers[event.count] end
  return event.colour:find "^[aeiou]" and "an" or "a"
end

local function things(event) return quantity(event) .. " " .. event.colour .. " " .. noun(event) end

local function fill(template, event)
  return capital((template:gsub("%$(%l+)", {
    who = event.who, past = event.verb[2], done = event.verb[3], base = event.verb[1], things = things(event),
    noun = noun(event), one = event.item[1], many = event.item[2], colour = event.colour, place = event.place,
    day = days[event.day], was = event.count == 1 and "was" or "were", number = numbers[event.count],
    count = tostring(event.count),
  })))
end

local undated = {
  { "with who it was", "$who $past $things in $place." },
  { "with the place", "In $place, $things $was $done by $who." },
  { "with the things", "$things $was $done in $place by $who." },
  { "with it was", "It was in $place that $who $past $things." },
}
local dated = {
  { "with who it was", "$who $past $things in $place on $day." },
  { "with the day", "On $day $who $past $things in $place." },
  { "with the place", "In $place, $things $was $done by $who on $day." },
  { "with the things", "$things $was $done in $place by $who on $day." },
  { "with it was", "It was in $place on $day that $who $past $things." },
}

-- One sentence that tells the event, and how it begins.
local function tell(rng, event)
  local way = rng:pick(event.day and dated or undated)
  return fill(way[2], event), way[1]
end

local questions = {
  { "Who $past the $colour $noun?", "$who." },
  { "What did $who $base?", "$things." },
  { "What colour $was the $noun?", "$colour." },
  { "How many $many did $who $base?", "$number." },
  { "Write the number of $many in digits.", "$count." },
  { "Where did $who $base the $noun?", "In $place." },
  { "Where was $who?", "In $place." },
  { "When did $who $base the $noun?", "On $day." },
  { "What is one of the $many called?", "A $one." },
  { "What happened to the $noun in $place?", "$who $past $things." },
}

-- ---- the kinds of pretraining record

local function dialogue(turns)
  local messages = {}
  for i, content in ipairs(turns) do
    messages[i] = { role = i % 2 == 1 and "user" or "assistant", content = content }
  end
  return { messages = messages }
end

local function new_events(rng, n) -- people and things differ, so that each question has one answer
  local events, seen = {}, {}
  while #events < n do
    local event = new_event(rng)
    if not seen[event.who] and not seen[event.item] then
      seen[event.who], seen[event.item] = true, true
      events[#events + 1] = event
    end
  end
  return events
end

local function story(rng, events)
  local sentences = {}
  for i, event in ipairs(events) do sentences[i] = tell(rng, event) end
  return table.concat(sentences, " ")
end

local kinds = {}

-- A short sentence and a question whose answer is in it. From these the model first learns to copy.
local simple = {
  { "$who was in $place.", "Where was $who?", "In $place." },
  { "$who was in $place.", "Who was in $place?", "$who." },
  { "$who came on $day.", "When did $who come?", "On $day." },
  { "$who came on $day.", "Who came on $day?", "$who." },
  { "$who has $things.", "Who has the $noun?", "$who." },
  { "$who has $things.", "What has $who?", "$things." },
  { "$who has $things.", "Which colour?", "$colour." },
  { "$who $past $things.", "What did $who $base?", "$things." },
  { "$who $past $things.", "Who did?", "$who." },
  { "$things $was in $place.", "Where $was the $noun?", "In $place." },
  { "$things $was in $place.", "What was in $place?", "$things." },
  { "The $noun of $who $was $colour.", "What colour $was the $noun?", "$colour." },
}

function kinds.simple(rng)
  local event, way = new_event(rng), rng:pick(simple)
  event.day = event.day or rng:range(1, 7)
  return dialogue { fill(way[1], event) .. " " .. fill(way[2], event), fill(way[3], event) }
end

function kinds.questions(rng)
  local events = new_events(rng, rng:chance(0.6) and 1 or 2)
  local turns = {}
  for i, question in ipairs(rng:sample(questions, rng:range(3, 6))) do
    local event = rng:pick(events)
    turns[2 * i - 1] = fill(question[1], event)
    turns[2 * i] = event.day == nil and question[2]:find "$day" and "That is not said." or fill(question[2], event)
  end
  turns[1] = story(rng, events) .. " " .. turns[1]
  return dialogue(turns)
end

function kinds.reword(rng)
  local events = new_events(rng, rng:chance(0.6) and 1 or 2)
  local turns = {}
  for i, event in ipairs(rng:sample(events, #events)) do
    local sentence, way = tell(rng, event)
    turns[2 * i - 1] = "Say what " .. event.who .. " did, and begin " .. way .. "."
    turns[2 * i] = sentence
  end
  turns[1] = story(rng, events) .. " " .. turns[1]
  return dialogue(turns)
end

function kinds.facts(rng)
  local events = new_events(rng, 1)
  local event = events[1]
  local parts = {
    { "name", event.who }, { "colour", event.colour }, { "place", event.place }, { "thing", event.item[1] },
    { "number", tostring(event.count) }, { "verb", event.verb[1] }, { "day", event.day and days[event.day] or "none" },
  }
  parts = rng:sample(parts, rng:range(3, 6))
  local keys, values = {}, {}
  for i, part in ipairs(parts) do keys[i], values[i] = part[1], part[2] end
  local text = story(rng, events)
  if rng:chance(0.5) then
    return dialogue { text .. " Give " .. table.concat(keys, ", ") .. ".", table.concat(values, ", ") .. "." }
  end
  return dialogue { text .. " Give (" .. table.concat(keys, ") (") .. ")", "(" .. table.concat(values, ") (") .. ")" }
end

local function random_words(rng, n) -- all different
  local out, seen = {}, {}
  while #out < n do
    local kind = rng:below(4)
    local word = kind == 0 and rng:pick(places) or kind == 1 and rng:pick(names) or kind == 2 and rng:pick(colours) or
      rng:pick(items)[1]
    if not seen[word] then
      seen[word] = true
      out[#out + 1] = word
    end
  end
  return out
end

function kinds.say(rng)
  local said = table.concat(random_words(rng, rng:range(1, 3)), ", ") .. "."
  return dialogue { "Say " .. said, said }
end

-- Any printable characters: the model has seen every byte when a new task needs it.
function kinds.symbols(rng)
  local parts = {}
  for i = 1, rng:range(2, 10) do
    local piece = string.char(rng:range(33, 126))
    if rng:chance(0.2) then piece = rng:pick(random_words(rng, 1)) end
    if rng:chance(0.3) then piece = " " .. piece end
    parts[i] = piece
  end
  local text = table.concat(parts):gsub("^ ", "")
  return dialogue { "Copy " .. text, text }
end

local function reversed(list)
  local out = {}
  for i = #list, 1, -1 do out[#out + 1] = list[i] end
  return out
end

function kinds.lists(rng)
  local list = random_words(rng, rng:range(2, rng:range(2, 8)))
  local text = table.concat(list, ", ")
  local turns = { "Here is a list: " .. text .. "." }
  local asked = {
    { "Repeat it.", text .. "." },
    { "Say it in reverse.", table.concat(reversed(list), ", ") .. "." },
    { "Which is first?", list[1] .. "." },
    { "Which is last?", list[#list] .. "." },
    { "How many are there?", tostring(#list) .. "." },
    { "What comes after " .. list[#list - 1] .. "?", list[#list] .. "." },
  }
  for i, pair in ipairs(rng:sample(asked, rng:range(2, 3))) do
    turns[2 * i - 1] = (turns[2 * i - 1] and turns[2 * i - 1] .. " " or "") .. pair[1]
    turns[2 * i] = pair[2]
  end
  return dialogue(turns)
end

function kinds.pairs(rng)
  local keys = random_words(rng, rng:range(3, 5))
  local lines, values = {}, random_words(rng, #keys)
  for i, key in ipairs(keys) do lines[i] = key .. ": " .. values[i] end
  local text, first = table.concat(lines, "; "), rng:range(1, #keys)
  local second = 1 + first % #keys
  return dialogue { text .. ". " .. keys[first] .. "?", values[first] .. ".", keys[second] .. "?",
    values[second] .. "." }
end

function kinds.numbers(rng)
  local turns = {}
  for _ = 1, rng:range(2, 4) do
    local n, item, day = rng:range(1, 12), rng:pick(items), rng:range(1, 7)
    local pair = rng:pick {
      { "Write " .. numbers[n] .. " in digits.", n .. "." },
      { "Write " .. n .. " in words.", capital(numbers[n]) .. "." },
      { "One of the " .. item[2] .. "?", "One " .. item[1] .. "." },
      { "More than one " .. item[1] .. "?", "Two " .. item[2] .. "." },
      { "Which day of the week is " .. days[day] .. "?", "Day " .. day .. "." },
    }
    table.insert(turns, pair[1])
    table.insert(turns, pair[2])
  end
  return dialogue(turns)
end

function kinds.stories(rng)
  local sentences = {}
  for _, event in ipairs(new_events(rng, rng:range(1, 3))) do
    table.insert(sentences, (tell(rng, event)))
    table.insert(sentences, fill("The $noun of $who $was $colour.", event))
    if rng:chance(0.5) then table.insert(sentences, (tell(rng, event))) end
    if rng:chance(0.5) then
      event.who = rng:pick(names)
      table.insert(sentences, fill("Now $who has the $colour $noun from $place.", event))
    end
  end
  return { text = table.concat(sentences, " ") }
end

-- How many of 20 records are of each kind. "say" and "simple" records are short; the others are several times as long.
local mixture = {
  { "say", 1 }, { "symbols", 2 }, { "simple", 4 }, { "questions", 3 }, { "reword", 2 }, { "facts", 3 }, { "lists", 1 },
  { "pairs", 1 }, { "numbers", 2 }, { "stories", 1 },
}
local deck = {}
for _, entry in ipairs(mixture) do
  for _ = 1, entry[2] do deck[#deck + 1] = entry[1] end
end

function tinydata.pretrain(seed, n)
  local rng, made = new_random(seed), 0
  return function()
    if made >= n then return nil end
    made = made + 1
    return kinds[rng:pick(deck)](rng)
  end
end

-- ---- the task

local function record(event)
  return string.format(
    '{"name": "%s", "verb": "%s", "number": %d, "colour": "%s", "thing": "%s", "place": "%s", "day": %s}',
    event.who, event.verb[1], event.count, event.colour, event.item[1], event.place, event.day or "null")
end

local function is_held_out(prompt) -- one prompt in eight, by its own letters, so that no seed mixes the two
  local hash = 5381
  for i = 1, #prompt do hash = (hash * 33 + prompt:byte(i)) % 2 ^ 32 end
  return math.floor(hash / 64) % 8 == 0
end

function tinydata.task(seed, n, split)
  assert(split == nil or split == "held_out", "tinydata.task: the third argument is nil or 'held_out'")
  local rng, examples, seen = new_random(seed), {}, {}
  while #examples < n do
    local event = new_event(rng)
    local prompt = "Record: " .. tell(rng, event)
    if is_held_out(prompt) == (split == "held_out") and not seen[prompt] then
      seen[prompt] = true
      examples[#examples + 1] = dialogue { prompt, record(event) }
    end
  end
  return examples
end

return tinydata
