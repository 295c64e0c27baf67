-- Which language a text is in, roughly: by the script of most of its letters, and for Latin and Cyrillic letters by the
-- commonest short words. Short texts, code and languages that are not listed here are "other".

local languages = {}

-- Words of a language that others of the list seldom have. None is of one Latin letter, as names in programs are.
local words = {
  English = "the of and to is that it for was with as you this are what how from be by an",
  German = "der die das und ist nicht ein eine mit von den zu auf sich wie was",
  French = "le les des est et une dans que qui pour pas du sur avec ce quel",
  Spanish = "el los las es una que por para con del se como su qué cuál",
  Italian = "il gli di una che per non con della sono come dei nel cosa qual",
  Portuguese = "os as uma que não para com do da em no como dos qual",
  Dutch = "de het een van en is niet op dat met voor zijn te wat hoe ik",
  Polish = "nie na się że jest jak co dla przez czy są oraz ale tylko jego",
  Russian = "и в не на что с как это по но из для он все так какой",
  Ukrainian = "і в не на що з як це до та є для він але від який",
}

local known = {}  -- word -> the languages that have it
for language, list in pairs(words) do
  for word in list:gmatch "%S+" do
    known[word] = known[word] or {}
    table.insert(known[word], language)
  end
end

-- First code point of a script's letters, the last one, and its name.
local scripts = {
  { 0x41, 0x24F, "Latin" }, { 0x370, 0x3FF, "Greek" }, { 0x400, 0x52F, "Cyrillic" }, { 0x530, 0x58F, "Armenian" },
  { 0x590, 0x5FF, "Hebrew" }, { 0x600, 0x77F, "Arabic" }, { 0x900, 0x97F, "Devanagari" }, { 0x980, 0x9FF, "Bengali" },
  { 0xB80, 0xBFF, "Tamil" }, { 0xE00, 0xE7F, "Thai" }, { 0x10A0, 0x10FF, "Georgian" }, { 0x1100, 0x11FF, "Korean" },
  { 0x1E00, 0x1EFF, "Latin" }, { 0x3040, 0x30FF, "Japanese" }, { 0x3400, 0x9FFF, "Chinese" },
  { 0xAC00, 0xD7AF, "Korean" },
}

local most = 2000  -- bytes of a text that are looked at

local function code_of(character)
  local a, b, c = character:byte(1, 3)
  if a < 0x80 then return a end
  if a < 0xE0 then return (a - 0xC0) * 64 + (b or 0x80) - 0x80 end
  return a < 0xF0 and ((a - 0xE0) * 64 + (b or 0x80) - 0x80) * 64 + (c or 0x80) - 0x80 or 0x10000
end

local function script_of(text)
  local counts, best, first = {}, nil, nil
  for character in text:gmatch "[%a\194-\244][\128-\191]*" do
    local code = code_of(character)
    for _, script in ipairs(scripts) do
      if code >= script[1] and code <= script[2] then
        counts[script[3]] = (counts[script[3]] or 0) + 1
        break
      end
    end
  end
  -- Japanese is written with Chinese characters too, and no Chinese text has kana.
  if counts.Japanese and counts.Japanese * 10 > (counts.Chinese or 0) then
    counts.Japanese, counts.Chinese = counts.Japanese + (counts.Chinese or 0), nil
  end
  for name, count in pairs(counts) do
    if not best or count > best or count == best and name < first then best, first = count, name end
  end
  return first
end

-- The language of a text, the name of its script, or "other".
function languages.of(text)
  text = text:sub(1, most)
  local script = script_of(text)
  if script ~= "Latin" and script ~= "Cyrillic" then return script or "other" end
  local votes, best, second, first = {}, 0, 0, nil
  for word in text:lower():gmatch "[%a\128-\255]+" do
    for _, language in ipairs(known[word] or {}) do votes[language] = (votes[language] or 0) + 1 end
  end
  for language, count in pairs(votes) do
    if count > best then best, second, first = count, best, language
    elseif count > second then second = count end
  end
  return best > second and first or script == "Cyrillic" and script or "other"
end

-- {name = records} as "English 80 %, German 12 %, ...": the six most frequent, none under half a percent.
function languages.shares(counts)
  local list, all, parts = {}, 0, {}
  for name, count in pairs(counts) do list[#list + 1], all = name, all + count end
  table.sort(list, function(a, b)
    if counts[a] ~= counts[b] then return counts[a] > counts[b] end
    return a < b
  end)
  for i, name in ipairs(list) do
    local share = 100 * counts[name] / all
    if i > 6 or share < 0.5 then
      parts[i] = ("%d more"):format(#list - i + 1)
      break
    end
    parts[i] = ("%s %.0f %%"):format(name, share)
  end
  return table.concat(parts, ", ")
end

return languages
