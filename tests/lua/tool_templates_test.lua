-- Calls as released chat templates write them in earlier turns are read as those calls, cut at every byte.
-- QENG_TEMPLATES names the folder of the templates, which are other people's.

local chat = require "qeng.chat"
local chat_model = require "qeng.chat.template"
local q = require "qeng"
local messages = require "qeng.server.messages"
local tools = require "qeng.server.tools"

local folder = os.getenv "QENG_TEMPLATES"
if not folder then
  print "SKIPPED: QENG_TEMPLATES names no folder of chat templates (scripts/test --peers fetches them)"
  os.exit(0)
end

-- Templates by the form that their models call in.
local forms = {
  hermes = { "Qwen-Qwen2.5-7B-Instruct", "Qwen-Qwen3-0.6B", "Qwen-QwQ-32B",
    "NousResearch-Hermes-2-Pro-Llama-3-8B-tool_use", "NousResearch-Hermes-3-Llama-3.1-8B-tool_use",
    "ibm-granite-granite-4.0" },
  xml = { "Qwen3-Coder", "Qwen3.5-4B", "NVIDIA-Nemotron-3-Nano-30B-A3B-BF16" },
  llama = { "meta-llama-Llama-3.1-8B-Instruct", "meta-llama-Llama-3.2-3B-Instruct",
    "meta-llama-Llama-3.3-70B-Instruct" },
  mistral = { "mistralai-Mistral-Nemo-Instruct-2407", "Mistral-Small-3.2-24B-Instruct-2506",
    "mistralai-Ministral-3-14B-Reasoning-2512", "unsloth-mistral-Devstral-Small-2507" },
}
local ends = { "<|im_end|>", "<|eot_id|>", "</s>", "<|end_of_text|>" }

local function tokenizer_of(template)
  local specials = { "<s>", "</s>" }
  for _, token in ipairs { "<|im_end|>", "<|eot_id|>", "<|end_of_text|>" } do
    if template:find(token, 1, true) then specials[#specials + 1] = token end
  end
  local ids = {}
  for i, token in ipairs(specials) do ids[token] = i - 1 end
  return {
    info = function() return { chat_template = template, bos = 0, eos = 1 } end,
    bytes = function(_, id) return specials[id + 1] end, vocab_size = function() return #specials end,
    is_special = function(_, id) return specials[id + 1] ~= nil end, id = function(_, text) return ids[text] end,
  }
end

local function fn(name, properties)
  return { type = "function", ["function"] = { name = name, description = "Does it.",
    parameters = { type = "object", properties = properties, required = q.json.array {} } } }
end
local list = { fn("search", { query = { type = "string" }, count = { type = "integer" }, exact = { type = "boolean" },
  deep = { type = "object" }, tags = { type = "array" } }), fn("stop", { why = { type = "string" } }) }
local all = {
  { { "search", '{"query": "a \\"b\\" é\\n<c>", "count": 3, "deep": {"x": [1, {"y": "}"}]}, "tags": ["p", "q"]}' } },
  { { "search", '{"query": "Oslo"}' }, { "stop", '{"why": "done; {}"}' } },
}

local function same(a, b)
  if type(a) ~= "table" or type(b) ~= "table" then return a == b end
  for key in pairs(a) do if not same(a[key], b[key]) then return false end end
  for key in pairs(b) do if a[key] == nil then return false end end
  return true
end

-- What the assistant is written to have said, with its calls' names and arguments as the API gives them.
local function written(template, calls)
  local made = q.json.array {}
  for i, one in ipairs(calls) do
    made[i] = { id = "abcdefgh" .. i, type = "function", ["function"] = { name = one[1], arguments = one[2] } }
  end
  local said = q.json.decode(q.json.encode(q.json.array {
    { role = "user", content = "Go on." }, { role = "assistant", content = "", tool_calls = made } }), { ordered = true,
    exact = true })
  local record = chat.normalize { messages = messages.read(said), tools = q.json.decode(q.json.encode(list)) }
  record.template_options = { date_string = "1 Jan 2026" }
  local parts = {}
  for _, piece in ipairs(chat_model.new(tokenizer_of(template)):pieces(record.messages, record, "all")) do
    if piece.target then parts[#parts + 1] = piece.text end
  end
  local text = table.concat(parts)
  for _, token in ipairs(ends) do
    local at = text:find(token, 1, true)
    if at then text = text:sub(1, at - 1) end
  end
  return text
end

local function heard(able, pieces)
  local parser, calls, texts = able:parser(1), {}, {}
  local function add(events)
    for _, event in ipairs(events) do
      if event.id then calls[event.call + 1] = { event.name, "" } end
      if event.text then texts[#texts + 1] = event.text end
      if event.arguments then calls[event.call + 1][2] = calls[event.call + 1][2] .. event.arguments end
    end
  end
  for _, piece in ipairs(pieces) do add(parser:push(piece)) end
  add(parser:finish())
  return calls, table.concat(texts)
end

local count = 0
for form, names in pairs(forms) do
  for _, name in ipairs(names) do
    local template = q.fs.read(folder .. "/" .. name .. ".jinja")
    local able = tools.new(tokenizer_of(template), list)
    assert(able.form == form, name .. ": " .. able.form)
    for i, calls in ipairs(all) do
      local ok, text = pcall(written, template, calls)
      if not ok and not (form == "llama" and #calls > 1) then  -- it takes one call a turn, and says so
        error(("%s: %s"):format(name, tostring(type(text) == "table" and text.message or text)), 0)
      end
      for cut = 1, ok and #text or 0 do
        local got, rest = heard(able, { text:sub(1, cut), text:sub(cut + 1) })
        rest = rest:gsub("</?think>", "")  -- the engine tells these apart
        assert(#got == #calls and not rest:find "%S", ("%s, %d: %s"):format(name, i, text))
        for k, one in ipairs(calls) do
          local arguments = got[k][2]
          assert(got[k][1] == one[1], name)
          assert(same(q.json.decode(arguments), q.json.decode(one[2])), name .. ": " .. arguments)
        end
      end
      count = count + (ok and 1 or 0)
    end
  end
end
print(("ok: %d"):format(count))
