-- Released chat templates give the prompts that transformers gives, over 30 conversations each, and an error where
-- transformers gives one. Just what the assistant says is trained. QENG_TEMPLATES names the folder of the templates,
-- which are other people's.
--
--   QENG_TEMPLATES=.../llama.cpp/models/templates qeng tests/lua/chat_templates_test.lua [TEMPLATE [NUMBER]]

local chat = require "qeng.chat"
local chat_model = require "qeng.chat.template"
local q = require "qeng"

local folder = os.getenv "QENG_TEMPLATES"
if not folder then
  print "SKIPPED: QENG_TEMPLATES names no folder of chat templates (scripts/test --peers fetches them)"
  os.exit(0)
end
local golden = q.json.decode(q.fs.read((arg[0]:match("^(.*)/tests/") or ".") .. "/tests/golden/chat_templates.json"))
local only, only_number = arg[1], tonumber(arg[2])

-- What chat_model asks of a tokenizer, with the special tokens that a template spells, and two more.
local function tokenizer_of(template)
  local specials, ids = { "<s>", "</s>", "<|im_end|>", "<|eot_id|>", "<end_of_turn>", "<|end|>", "<turn|>", "]~b]",
    "[e~[", "<SPECIAL_11>", "<SPECIAL_12>" }, {}
  for token in template:gmatch "<[|｜][^<>%s'\"]-[|｜]>" do specials[#specials + 1] = token end
  for i, token in ipairs(specials) do
    if not ids[token] and template:find(token, 1, true) or i <= 2 then ids[token] = i - 1 end
  end
  return {
    info = function() return { chat_template = template, bos = 0, eos = 1 } end,
    bytes = function(_, id) return specials[id + 1] end,
    vocab_size = function() return #specials end,
    is_special = function(_, id) return ids[specials[id + 1]] == id end,
    id = function(_, text) return ids[text] end,
  }
end

local function record_of(conversation)
  local given = q.json.decode(conversation, { ordered = true, exact = true })
  local options = { strftime_now = function(form)
    return os.date(form, os.time { year = 2026, month = 1, day = 2, hour = 3, min = 4, sec = 5 })
  end }
  for key, value in pairs(given) do
    if key ~= "messages" and key ~= "tools" and key ~= "add_generation_prompt" then options[key] = value end
  end
  local record = chat.normalize { messages = given.messages, tools = given.tools }
  record.template_options = options
  return record, given.add_generation_prompt
end

local function rendered(model, record, prompt)
  local list, given = model:values(record.messages, record)
  return (model:render(list, #record.messages, given, prompt):gsub("\255", ""))
end

-- The record with a word before each text that says whose it is: U1q, A2q, ...; R2q before reasoning.
local function named(record)
  for i, message in ipairs(record.messages) do
    if message.content and message.content ~= "" then
      message.content = ("%s%dq %s"):format(message.role:sub(1, 1):upper(), i, message.content)
    end
    if message.reasoning_content then message.reasoning_content = ("R%dq %s"):format(i, message.reasoning_content) end
  end
  return record
end

-- What is wrong with the part that is trained, or nil.
local function fault(model, record)
  local whole, trained, others = rendered(model:seeing(record.messages, record, false), record, false), {}, {}
  local before = false
  local pieces, why = q.try(model.pieces, model, record.messages, record, "all")
  if not pieces and why.message:find "leaves it out" then return nil, "left out" end
  if not pieces then return nil, why.message:find "cannot be told apart" and "refused" or error(why.message, 0) end
  for _, piece in ipairs(pieces) do
    local list = piece.target and trained or others
    if piece.target == before and #list > 0 then
      list[#list] = list[#list] .. piece.text
    else
      list[#list + 1] = piece.text
    end
    before = piece.target
  end
  local said, rest = table.concat(trained, "\0"), table.concat(others, "\0")
  if #said + #rest - select(2, said:gsub("%z", "")) - select(2, rest:gsub("%z", "")) ~= #whole then
    return "the pieces are not the whole"
  end
  for i, message in ipairs(record.messages) do
    local own = message.role == "assistant"
    for _, letter in ipairs { message.role:sub(1, 1):upper(), "R" } do
      local word = letter .. i .. "q"
      if not own and said:find(word, 1, true) then return word .. " is trained" end
      if own and rest:find(word, 1, true) then return word .. " is not trained" end
    end
    for _, call in ipairs(message.tool_calls or {}) do
      if not said:find(call["function"].name, 1, true) and whole:find(call["function"].name,
          whole:find(("U%dq"):format(i - 1), 1, true) or 1, true) then
        return "a call is not trained"
      end
    end
  end
  if only_number then for _, text in ipairs(trained) do print(("trained: %q"):format(text)) end end
end

local tried, equal, wrong, spans, right, refused, without = 0, 0, {}, 0, 0, {}, {}
for name, expected in pairs(golden.templates) do
  if not only or name == only then
    local text = q.fs.kind(folder .. "/" .. name) == "file" and q.fs.read(folder .. "/" .. name)
    assert(text and q.host.hash(text) == expected.hash, name .. ": not the template that the golden file is of")
    local model, why = q.try(chat_model.new, tokenizer_of(text))
    for number, conversation in ipairs(golden.conversations) do
      if not only_number or number == only_number then
        tried = tried + 1
        local record, prompt = record_of(conversation)
        local got, error_of = nil, why
        if model then
          got, error_of = q.try(function()
            return rendered(model:seeing(record.messages, record, prompt), record, prompt)
          end)
        end
        if only_number then print(got or error_of.message) end
        if (got and q.host.hash(got) or "error") == expected.prompts[number] then
          equal = equal + 1
        else
          wrong[#wrong + 1] = ("%s %d: %s"):format(name, number, got and (expected.prompts[number] == "error" and
            "rendered, and transformers errs" or "differs") or error_of.message)
        end
        local speaks = false
        for _, message in ipairs(record.messages) do speaks = speaks or message.role == "assistant" end
        if got and speaks then
          spans = spans + 1
          local fine, what, refusal = pcall(fault, model, named(record_of(conversation)))
          if refusal == "left out" then without[name] = (without[name] or 0) + 1
          elseif refusal then refused[#refused + 1] = name .. " " .. number
          elseif fine and not what then right = right + 1
          else
            wrong[#wrong + 1] = ("%s %d: spans: %s"):format(
              name, number, type(what) == "table" and what.message or tostring(what))
          end
        end
      end
    end
  end
end
table.sort(wrong)
for _, line in ipairs(wrong) do print(line) end
print(("%d of %d prompts are transformers'; of %d of %d conversations just what the assistant says is trained, %d " ..
  "are refused"):format(equal, tried, right, spans, #refused))
-- Gemma 4 writes what the assistant says with a call after the answer of the tool, in the same turn.
assert(#wrong == 0 and (only or table.concat(refused, ", ") == "google-gemma-4-31B-it.jinja 9"),
  table.concat(refused, ", "))
-- Templates that leave out calls or tools of some conversations: GigaChat's and gpt-oss' the second of two calls.
local lists = {}
for name, count in pairs(without) do lists[#lists + 1] = ("%s %d"):format(name:gsub("%.jinja$", ""), count) end
table.sort(lists)
assert(only or table.concat(lists, "\n") == [[
GigaChat3-10B-A1.8B 1
GigaChat3.1-10B-A1.8B 1
HuggingFaceTB-SmolLM3-3B 8
LFM2-8B-A1B 4
LFM2.5-Instruct 4
deepseek-ai-DeepSeek-R1-Distill-Llama-8B 5
deepseek-ai-DeepSeek-R1-Distill-Qwen-32B 5
deepseek-ai-DeepSeek-V3.1 8
google-gemma-2-2b-it 1
ibm-granite-granite-3.3-2B-Instruct 4
llama-cpp-rwkv-world 8
microsoft-Phi-3.5-mini-instruct 5
openai-gpt-oss-120b 1]], table.concat(lists, "\n"))
