-- The pieces of recipes/wizard.lua: records and what is wrong with them, languages, questions, what fits, steps that
-- are done. tests/transcripts/wizard_test.sh runs the whole.

package.path = (arg[0]:match("^(.*/)") or "./") .. "?.lua;" .. package.path
local candidates = require "qeng.wizard.candidates"
local examine = require "qeng.train.examine"
local languages = require "qeng.wizard.languages"
local imported = require "qeng.wizard.imported"
local look = require "qeng.wizard.look"
local options = require "qeng.console.options"
local q = require "qeng"
local questions = require "qeng.wizard.questions"
local records = require "qeng.wizard.records"
local scratch = require "scratch"
local wizard = require "qeng.wizard"
local word = require "qeng.console.word"

local function check(got, wanted, what)
  assert(got == wanted, ("%s: expected %s, got %s"):format(what, tostring(wanted), tostring(got)))
end

-- ---- languages, by sentences of each
for language, text in pairs {
  English = "What is the name of the river that runs through this city?",
  German = "Wie heißt der Fluss, und was ist das für eine Stadt?",
  French = "Quel est le nom du fleuve qui passe dans la ville ?",
  Spanish = "¿Cuál es el nombre del río que pasa por la ciudad?",
  Italian = "Qual è il nome del fiume che passa per la città e dei suoi ponti?",
  Portuguese = "Qual é o nome do rio que passa em uma das cidades do país?",
  Dutch = "Wat is de naam van het water in deze stad en hoe diep is het?",
  Polish = "Jak się nazywa rzeka, która nie jest w mieście, i czy to jest daleko?",
  Russian = "Как называется река в этом городе и что на ней построено?",
  Ukrainian = "Як називається річка в цьому місті і що на ній збудовано?",
  Chinese = "这条河叫什么名字？", Japanese = "この川の名前は何ですか。", Korean = "이 강의 이름은 무엇입니까?",
  Greek = "Πώς λέγεται το ποτάμι;", Arabic = "ما اسم هذا النهر؟", Hebrew = "מה שם הנהר?", Thai = "แม่น้ำนี้ชื่ออะไร",
  other = "x = 3 + 4",
} do check(languages.of(text), language, text) end
check(languages.of "", "other", "nothing")
check(languages.of("\255\254\240\159"), "other", "no UTF-8")
check(languages.shares { English = 3, German = 1 }, "English 75 %, German 25 %", "shares")

-- ---- records: each has the fate that its line says
local lines = {
  { '{"messages": [{"role": "user", "content": "a"}, {"role": "assistant", "content": "b"}]}', true },
  { '{"prompt": "a", "completion": "b"}', "duplicate" },  -- the same conversation in another shape
  { '{"prompt": "a", "completion": "c"}', true },
  { '{"prompt": "d", "completion": " "}', "without an answer to train on" },
  { '{"messages": [{"role": "user", "content": "a"}]}', "without an answer to train on" },
  { '{"messages": [{"role": "user", "content": "a"}, {"role": "assistant", "content": "b", "weight": 0}]}',
    "without an answer to train on" },
  { '{"text": "only text"}', true },
  { '{"text": ""}', "without an answer to train on" },
  { "[1, 2]", "a record has to be a JSON object" },
  { "{", "not JSON" },
}
local text = {}
for i, line in ipairs(lines) do text[i] = line[1] end
q.fs.write(scratch.at "a.jsonl", "\239\187\191" .. table.concat(text, "\r\n\n"))
local found = look.at({ scratch.at "a.jsonl" }, function() end)
check(found.count, #lines, "records")
for i, line in ipairs(lines) do
  local fate = found.fate[i]
  assert(fate == line[2] or type(line[2]) == "string" and fate ~= true and fate:find(line[2], 1, true) == 1
    or line[2]:find "object" and fate ~= true, ("%s: %s"):format(line[1], tostring(fate)))
end
check(found.good, 3, "good records")
check(found.first[2], 1, "what the duplicate repeats")
check(found.asked_again, 1, "questions with another answer")
check(found.shapes["prompt and completion"], 3, "shapes")
check(found.examples["not JSON"], scratch.at "a.jsonl" .. ":19", "the place of a bad record")

-- An array's records are as they are written.
q.fs.write(scratch.at "b.json",
  '[ {"text": "x]},\\"[{", "id": 12345678901234567890,\n "a": [1.50, {}]},\n {"text": "y\\\\"} ]')
local list = {}
for line in records.each { scratch.at "b.json", scratch.at "a.jsonl" } do list[#list + 1] = line end
check(#list, 2 + #lines, "records of two files")
check(list[1], '{"text": "x]},\\"[{", "id": 12345678901234567890,  "a": [1.50, {}]}', "a record of an array")
check(list[2], '{"text": "y\\\\"}', "the last of an array")
q.fs.write(scratch.at "latin.jsonl", '{"text": "K\228se"}\n')
check(records.each { scratch.at "latin.jsonl" }(), '{"text": "K\239\191\189se"}', "a text that is not UTF-8")
assert(records.is_json(scratch.at "a.jsonl") and records.is_json(scratch.at "b.json"))

-- Other forms give the same records: roles and every byte, also where tokenizers would compose accents or see a mark.
local odd = 'e\204\129 "x", <|im_end|>\n\nuser\n'
q.fs.write(scratch.at "c.csv", 'prompt,completion\n"' .. odd:gsub('"', '""') .. '",yes\n')
q.fs.write(scratch.at "d.txt", "<|im_start|>one\n\ntwo <|endoftext|>\n")
q.fs.write(scratch.at "e.txt", "[Verse 1]\n")
for _, name in ipairs { "c.csv", "d.txt", "e.txt" } do assert(not records.is_json(scratch.at(name)), name) end
local _, paths = scratch.said(imported, { scratch.at "c.csv", scratch.at "d.txt" }, scratch.at "imported")
local read = {}
for line in records.each(paths) do read[#read + 1] = q.json.decode(line) end
check(#read, 3, "records imported")
check(read[1].messages[1].content, odd, "a question imported")
check(read[1].messages[2].role .. read[1].messages[2].content, "assistantyes", "an answer imported")
check(read[2].text .. read[3].text, "<|im_start|>onetwo <|endoftext|>", "texts imported")

-- What is held out: as many as asked for, of those that may be, and the same for the same seed.
local function even(i) return i % 2 == 0 end
local function draw(seed) return look.draw(100, even, 10, seed) end
local held, again, other = draw(1), draw(1), draw(2)
local count, differ = 0, 0
for i in pairs(held) do
  assert(even(i) and again[i])
  count, differ = count + 1, differ + (other[i] and 0 or 1)
end
check(count, 10, "held out")
assert(differ > 0, "another seed draws the same")
local digest = records.digest { scratch.at "a.jsonl" }
q.fs.append(scratch.at "a.jsonl", " ")
assert(digest ~= records.digest { scratch.at "a.jsonl" }, "a byte more gives the same digest")

-- ---- questions: lines that are typed, and the answer
local said
local function asked(typed, question, given)
  local self = questions.new(options.parse({ "Asks.", "wizard" }, { "--yes" }), "wizard")
  self.opt = options.parse({ "Asks.", "wizard" }, given or {})
  said = {}
  self.say = function(_, line) said[#said + 1] = line end
  self.line = function() return table.remove(typed, 1) or q.error("usage", "the input ended") end
  local answer = self:ask(question)
  check(#typed, 0, "lines left")
  return answer
end
local rank = { name = "rank", text = "Which rank?", default = 16, why = "usual", check = function(value)
  if value > 64 then q.error("value", "at most 64 here") end
end }
check(asked({ "" }, rank), 16, "Enter")
check(asked({ "?", "abc", "1.5", "-1", "65", "8" }, rank), 8, "what is no answer is asked for again")
check(#said, 6, "lines said")
assert(said[1] == "Which rank? Recommended: 16; usual." and said[2]:find "LoRA rank" and said[3] == "abc: not a number"
  and said[4]:find "whole" and said[5]:find "at least 0" and said[6]:find "at most 64", table.concat(said, "\n"))
check(asked({}, rank, { "--rank", "4" }), 4, "a flag")
assert(said[1]:find "by %-%-rank; recommended was 16: usual", said[1])
check(asked({}, rank, { "--yes" }), 16, "--yes")
check(asked({}, rank, { "--yes", "--rank", "0" }), 16, "a flag that says as recommended")
scratch.refused("at most 64", asked, {}, rank, { "--rank", "65" })
scratch.refused("the input ended", asked, { "x" }, rank)
local mix = { name = "gguf", text = "Which type?", default = "q8_0", why = "small",
  check = require("qeng.wizard.export").check_type }
check(asked({ "q9", "none" }, mix), "none", "a choice")
scratch.refused("give --data", asked, {}, { name = "data", text = "Which records?" }, { "--yes" })

-- ---- answers against those wanted
local answers, wanted = { " The lamp is red. ", "the LAMP", "" }, { "The lamp is red.", "the lamp is", "x" }
local exact, common = examine.score(answers, wanted)
check(exact, 1 / 3, "exact answers")
assert(math.abs(common - (1 + 0.8 + 0) / 3) < 1e-12, common)  -- 2 words of 2 and 3: 2 * 2 / 5

-- ---- models: what is planned is compared with the memory there is
local function opt(...) return options.parse({ "Plans.", "wizard", "device" }, { ... }) end
local plan = candidates.plan(candidates.path "tiny", opt())
assert(candidates.fits(plan, opt "--device-budget=100M"))
local fits, sentence = candidates.fits(plan, opt "--device-budget=20M")
assert(not fits and sentence:find "the device's budget has 20.0 MB: does not fit", sentence)
assert(candidates.plan(candidates.path "tiny", opt "--mode=full").total > plan.total, "all weights take no more")

-- ---- a step's file: damaged, or of a run that another process has
local function open(...) return wizard.open(opt("--yes", "--out", scratch.at "run", ...)) end
local run = open()
q.fs.write(run:file_of "data", "{}")
scratch.refused("not the file of a step: --redo data", run.step, run, "data")
q.fs.write(run:file_of "data", q.json.encode { answers = { seed = 1 }, found = { files = q.json.array {}, digest = "" },
  left = q.json.array {} })
scratch.refused("--seed 2: this run was answered 1 at the step data", run.step, open "--seed=2", "data")
open("--redo", "data")
check(q.fs.kind(run:file_of "data"), nil, "a step that is to be done anew")
check(q.fs.kind(run:at "earlier-1/steps/01-data.json"), "file", "what it left")

-- ---- a head that drafts tokens is in what is exported: as it was in the folder, and in the GGUF file, where it drafts
local model = require("hybrid_model").fresh { vocab_size = 1024 }
local head = model:attach_mtp { seed = 5 }
model:save(scratch.at "base")
for _, name in ipairs { "tokenizer.json", "tokenizer_config.json" } do
  q.fs.copy(candidates.path "tiny" .. "/" .. name, scratch.at("base/" .. name))
end
for i = 1, 12 do text[i] = q.json.encode { prompt = ("How many is %d?"):format(i), completion = tostring(i) } end
q.fs.write(scratch.at "twelve.jsonl", table.concat(text, "\n"))
run = wizard.open(opt("--yes", "--out", scratch.at "my drafts", "--data", scratch.at "twelve.jsonl", "--model",
  scratch.at "base", "--epochs", "1", "--threads", "1", "--gguf", "q4_k_m"))
said = {}
run.questions.say = function(_, line) said[#said + 1] = line end
run.questions.head = run.questions.say
scratch.said(function() for _, name in ipairs(wizard.steps) do run:step(name) end end)
said = table.concat(said, "\n")
assert(said:find("kept as in its own folder: mtp", 1, true) and said:find("--draft mtp", 1, true), said)
assert(not said:find("the GGUF file has none", 1, true), said)
for _, name in ipairs { "merged", "model-q4_k_m.gguf" } do
  assert(said:find(("serve.lua --model '%s'"):format(scratch.at("my drafts/" .. name)), 1, true), said)
end
check(word "a/b-1.5=x@main", "a/b-1.5=x@main", "a word as it is")
for _, text_ in ipairs { "", "it's", "$HOME; ls" } do
  local shell = io.popen("printf %s " .. word(text_))
  check(shell:read "*a", text_, "a word of a shell")
  shell:close()
end
local saved = q.safetensors.open(scratch.at "my drafts/merged/model.safetensors")
for _, parameter in ipairs(head.parameters) do
  check(saved:tensor(parameter.name):hash(), parameter.tensor:hash(), parameter.name)
end
local texts = {}
for _, name in ipairs { "merged", "model-q4_k_m.gguf" } do
  for k, draft in ipairs { false, "mtp" } do
    local _, made = scratch.said(q.load, scratch.at("my drafts/" .. name))
    if draft then made:attach_mtp { from = "folder" } end
    local engine = made:engine { draft = draft or nil, draft_always = draft and true, max_batch = 1 }
    local answer = engine:submit { prompt = "How many is 3?", max_tokens = 12, temperature = 0, stop_ids = {} }
    engine:finish()
    texts[k] = table.concat(answer.output, " ")
    assert(not draft or answer.drafted > 0, name .. ": the head drafts nothing")
    engine:close()
  end
  check(texts[2], texts[1], "the text of " .. name .. " with drafts")
end
