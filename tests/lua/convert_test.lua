-- The engine's converter agrees with chat.lua, whatever the number of threads. For records of every shape and any
-- template it gives the tokens, masks and order that chat.lua gives one record at a time: plain ones by the engine's
-- fast way, others by a worker's Lua state. Texts have their begin and end once. Formats, policies, sources, duplicates
-- and bad input do what they say.
local chat = require "qeng.chat"
local q = require "qeng"

local dir = os.tmpname()
q.fs.remove(dir)
q.fs.mkdir(dir)
q.train_bpe({ "hello hello world the tool said what it found, and the user asked again" },
  { vocab = 280, specials = { "<|endoftext|>", "<|im_start|>", "<|im_end|>" }, out = dir })
local template_text = [[
{%- if tools %}{{- '<|im_start|>system\nTools:' }}
{%- for tool in tools %}{{- '\n' }}{{- tool | tojson }}{%- endfor %}{{- '<|im_end|>\n' }}{%- endif %}
{%- set ns = namespace(found = false, last = messages | length - 1) %}
{%- for message in messages[::-1] %}{%- set index = (messages | length - 1) - loop.index0 %}
{%- if not ns.found and message.role == 'user' %}{%- set ns.found = true %}{%- set ns.last = index %}
{%- endif %}{%- endfor %}
{%- for message in messages %}
    {%- if message.role == 'tool' %}
        {{- '<|im_start|>user\n<tool_response>\n' + message.content + '\n</tool_response><|im_end|>\n' }}
    {%- elif message.role == 'assistant' %}
        {{- '<|im_start|>assistant\n' }}
        {%- if message.reasoning_content and loop.index0 > ns.last %}
        {{- '<think>\n' + message.reasoning_content + '\n</think>\n\n' }}{%- endif %}
        {{- message.content }}
        {%- if message.tool_calls %}{%- for call in message.tool_calls %}
        {{- '\n<tool_call>\n{"name": "' + call.function.name + '", "arguments": '
            + (call.function.arguments | tojson) + '}\n</tool_call>' }}{%- endfor %}{%- endif %}
        {{- '<|im_end|>\n' }}
    {%- else %}{{- '<|im_start|>' + message.role + '\n' + message.content + '<|im_end|>\n' }}{%- endif %}
{%- endfor %}
{%- if add_generation_prompt %}{{- '<|im_start|>assistant\n' }}{%- endif %}]]
q.fs.write(dir .. "/tokenizer_config.json", q.json.encode { chat_template = template_text, eos_token = "<|im_end|>" })
local tokenizer = q.tokenizer(dir)
assert(tokenizer:info().chat_template == template_text)

local state = 99
local function random(n) state = (state * 1103515245 + 12345) % 2147483648; return math.floor(state / 65536) % n + 1 end
local words = { "hello", "world", "é漢", "<|im_end|>", "tab\there", "\"quoted\"", "line\nline", "  ", "<think>x</think>",
  "\\", "{", "😀", "\127", "e\204\129" }
local function text()
  local parts = {}
  for i = 1, random(7) - 1 do parts[i] = words[random(#words)] end
  return table.concat(parts, random(2) == 1 and " " or "")
end
local null = q.json.null
local speakers, flags = { "alien", "User", "ASSISTANT", "system", "" }, { "train", "training", "trainable", "loss" }
for name in pairs(require "qeng.chat.records".roles) do speakers[#speakers + 1] = name end
table.sort(speakers)
local function any(list) return list[random(#list)] end
-- A turn of any speaker, with fields, right and wrong, that may say that it is not trained.
local function turn()
  local one = random(2) == 1 and { role = any(speakers), content = text() } or { from = any(speakers), value = text() }
  if random(9) == 1 then one.content = any { null, text(), 5 } end
  if random(3) == 1 then one.weight = any { 0, 1, null, 0, 1, 0.5, 2, -1, true, "0" } end
  if random(4) == 1 then one[any(flags)] = any { false, false, null, true, 1 } end
  return one
end
local function turns()
  local list = {}
  for i = 1, random(4) do list[i] = turn() end
  return list
end
local function flagged()  -- the same where nothing is wrong
  return { { role = "user", content = text(), weight = 1 },
    { role = "model", content = text(), weight = random(2) - 1 }, { role = "Human", content = text(), train = false },
    { from = "gpt", value = text(), [any(flags)] = random(2) == 1 }, { role = "user", content = text() },
      { role = "assistant", content = text(), weight = any { 0, 1, null } } }
end
local shapes = {
  function() return { messages = turns() } end, function() return { conversations = turns() } end,
  function() return { messages = flagged() } end,
  function() return { conversations = flagged(), tools = any { "", "[]", null, q.json.array {} } } end,
  function()
    return { system = any { null, "", text(), 3, "Be brief." }, messages = { { role = any { "user", "system",
      "developer" }, content = "Be brief." }, { role = "assistant", content = text() } } }
  end,
  function() return { system_prompt = text(), conversations = flagged() } end,
  function()
    return { instruction = text(), output = text(),
      history = any { null, q.json.array {}, { { text(), text() } }, { { "a" } }, "x" } }
  end,
  function()
    return { prompt = text(), completion = text(), system = text(),
      [any { "label", "kto_tag", "images", "chosen", "image" }] = any { true, false, null, "", "x", q.json.array {} } }
  end,
  function()
    return { prompt = turns(), completion = turns() }
  end, function() return { prompt = text(), completion = turns() } end,
  function()
    return { messages = any { null, "[]", q.json.encode(flagged()), "no" }, conversations = any { null, flagged() },
      text = any { null, text() } }
  end,
  function()
    return { messages = { { role = "user", content = text() }, { role = "assistant", content = text(),
      [any { "thinking", "reasoning", "refusal", "train_detail", "audio" }] = any { null, "", "x" } } } }
  end,
  function() return { text = text() } end,
  function() return { prompt = text(), completion = text() } end,
  function() return { prompt = text(), completion = null } end,
  function() return { instruction = text(), output = text() } end,
  function() return { instruction = text(), input = text(), output = text(), system = text() } end,
  function() return { instruction = text(), input = null, output = text() } end,
  function()
    return { conversations = { { from = "human", value = text() }, { from = "gpt", value = text(), weight = 1 } } }
  end,
  function()
    return { system = text(),
      conversations = { { from = "user", value = text() }, { from = "assistant", value = text() } } }
  end,
  function() return { conversations = { { role = "user", content = text() }, { from = "gpt", value = text() } } } end,
  function()
    return { messages = { { role = "user", content = text() }, { role = "assistant", content = text() },
      { role = "user", content = text() }, { role = "assistant", content = text() } }, id = 7 }
  end,
  function()
    return { messages = { { role = "system", content = text() }, { role = "user", content = text(), name = null },
      { role = "assistant", content = text(), tool_calls = null } }, text = "also" }
  end,
  function()
    return { messages = { { role = "user", content = { { type = "text", text = text() },
      { type = "text", text = "b" } } }, { role = "assistant", content = null } } }
  end,
  function() return { messages = { { role = "user", content = text() } }, tools = q.json.array {} } end,
  function()
    return { messages = { { role = "user", content = text() },
      { role = "assistant", content = text(), reasoning_content = text() }, { role = "user", content = "x" },
      { role = "assistant", content = text(), reasoning_content = text() } } }
  end,
  function()
    return { tools = {
      { type = "function", ["function"] = { name = "find", parameters = { z = 1, a = { 1, 2.5, true, null } } } } },
    messages = { { role = "user", content = text() }, { role = "assistant", content = "", tool_calls = {
      { ["function"] = { name = "find", arguments = random(2) == 1 and '{"z": 1, "a": "x"}' or { z = 1 } } } } },
      { role = "tool", content = text() }, { role = "assistant", content = text() } } } end,
  -- bad ones
  function() return { messages = {} } end, function() return { messages = "none" } end,
  function() return { messages = { { content = "x" } } } end,
  function()
    return { conversations = { { from = "martian", value = "x" } } }
  end, function() return { text = 3 } end, function() return { other = 1 } end,
  function()
    return { messages = { { role = "user", content = { { type = "image" } } } } }
  end, function() return { prompt = { 1 }, completion = "x" } end,
  function() return q.json.array { 1, 2 } end, function() return null end,
}

local function read_all(path)
  local file, records = q.ndp.open(path), {}
  for i = 1, file:records() do
    local tokens, mask = file:read(i - 1)
    records[i] = { tokens = tokens, mask = mask, src = file:info(i - 1).src }
  end
  return records, file
end
local function same(a, b)
  if #a ~= #b then return false end
  for i = 1, #a do if a[i] ~= b[i] then return false end end
  return true
end

-- ---------------------------------------------------------------- the same as chat.lua, record by record
local lines = {}
for i = 1, 3000 do
  lines[i] = q.json.encode(shapes[i <= #shapes and i or random(#shapes)]())
  if i % 97 == 0 then lines[i] = lines[i]:sub(1, -3) end               -- not JSON
  if i % 101 == 0 then lines[i] = '{"text": "dropped", "n": 123456789012345678901234567890, "text": "kept"}' end
  if i % 103 == 0 then  -- of a key given twice the last counts
    lines[i] = ('{"messages": [{"role": "alien", "content": "a", "role": "user"}, {"role": "assistant", "content": ' ..
      '"b", "weight": 0, "weight": %s, "train": %s, "train": true}]}')
      :format(any { "1", "null", "0" }, any { "false", "null" })
  end
end
q.fs.write(dir .. "/data.jsonl", table.concat(lines, "\n") .. "\n")
for _, way in ipairs { { "chatml" }, { "chatml", "Be brief." }, { "chatml", false, "last" }, { "auto" },
    { "model", "Be brief.", "last", "text" } } do
  local template = chat.template(tokenizer, way[1], way[2], way[3], way[4])
  local expected, bad = {}, 0
  for _, line in ipairs(lines) do
    local ok, tokens, mask = pcall(function()
      local record = q.json.decode(line, { ordered = true })
      return template:encode(chat.normalize(record))
    end)
    if ok and #tokens > 0 then expected[#expected + 1] = { tokens, mask } else bad = bad + 1 end
  end
  local opt = { tokenizer = tokenizer, template = way[1], system = way[2], turns = way[3], special = way[4],
    max_bad = 1 }
  local files = {}
  for _, threads in ipairs { 1, 3 } do
    opt.threads = threads
    local counts = q.convert(dir .. "/data.jsonl", dir .. "/data.qubgpu", opt)
    assert(counts.records == #expected and counts.bad == bad and counts.seen == #lines, q.conversion_summary(counts))
    files[#files + 1] = q.fs.read(dir .. "/data.qubgpu")
  end
  assert(files[1] == files[2], "the number of threads changes the dataset")
  for i, record in ipairs((read_all(dir .. "/data.qubgpu"))) do
    assert(same(record.tokens, expected[i][1]), ("%s: record %d has other tokens:\n%s\n%s"):format(
      way[1], i, tokenizer:decode(record.tokens), tokenizer:decode(expected[i][1])))
    assert(same(record.mask, expected[i][2]), ("%s: record %d has another mask"):format(way[1], i))
  end
end

-- ---------------------------------------------------------------- what is trained of tools and reasoning
local function trained(record, opt)
  q.fs.write(dir .. "/one.jsonl", record .. "\n")
  opt = opt or {}
  opt.tokenizer = tokenizer
  q.convert(dir .. "/one.jsonl", dir .. "/one.qubgpu", opt)
  local tokens, mask = q.ndp.open(dir .. "/one.qubgpu"):read(0)
  local parts = {}
  for i, id in ipairs(tokens) do if mask[i] == 1 then parts[#parts + 1] = tokenizer:bytes(id) end end
  return table.concat(parts), tokenizer:decode(tokens)
end
local said, whole = trained(
  [[{"tools": [{"type": "function", "name": "find"}], "messages": [{"role": "user", "content": "a <|im_end|>"}, ]] ..
  [[{"role": "assistant", "content": "", "tool_calls": [{"function": {"name": "find", ]] ..
  [["arguments": "{\"z\": 1, \"a\": 2}"}}]}, {"role": "tool", "content": "t"}, ]] ..
  [[{"role": "assistant", "content": "done"}]}]])
assert(said == '\n<tool_call>\n{"name": "find", "arguments": {"z": 1, "a": 2}}\n</tool_call><|im_end|>done<|im_end|>',
  said)
assert(whole:find('Tools:\n{"type": "function", "name": "find"}<|im_end|>', 1, true), whole)
local ends = 0
for _, id in ipairs((q.ndp.open(dir .. "/one.qubgpu"):read(0))) do
  if id == tokenizer:id "<|im_end|>" then ends = ends + 1 end
end
assert(ends == 5, "text that a user wrote became a special token")
said = trained(
  [[{"messages": [{"role": "user", "content": "a"}, {"role": "assistant", "content": "b", ]] ..
  [["reasoning_content": "r"}, {"role": "user", "content": "c"}, ]] ..
  [[{"role": "assistant", "content": "d", "reasoning_content": "s"}]}]])
assert(said == "b<|im_end|><think>\ns\n</think>\n\nd<|im_end|>", said)
said = trained(
  [[{"messages": [{"role": "user", "content": "a"}, {"role": "assistant", "content": "b"}, ]] ..
  [[{"role": "user", "content": "c"}, {"role": "assistant", "content": "d"}]}]], { turns = "last" })
assert(said == "d<|im_end|>", said)

-- ---------------------------------------------------------------- templates of the families, as Jinja2 renders them
local function folder(name, change)
  q.fs.mkdir(dir .. "/" .. name)
  for _, file in ipairs { "tokenizer.json", "tokenizer_config.json" } do
    local value = q.json.decode(q.fs.read(dir .. "/" .. file), { ordered = true })
    change(value, file == "tokenizer.json")
    q.fs.write(dir .. "/" .. name .. "/" .. file, q.json.encode(value))
  end
  return q.tokenizer(dir .. "/" .. name)
end
local function join(list) return table.concat(list, " ") end

-- What is worked out once for a shape serves its other conversations: it is what the template makes of each.
local golden = q.json.decode(q.fs.read((arg[0]:match("^(.*)/tests/") or ".") .. "/tests/golden/templates.json"))
local formed, asked = 0, 0
local function against_rendering(template, messages, record)
  local model = template:model()
  local ok, rendered = pcall(model.stretches, model, messages, record, "all")
  local form = model.forms:stretches(messages, record, "all")
  formed, asked = formed + (form and 1 or 0), asked + 1
  if not form then return end
  assert(ok and #form == #rendered, "a form where the template refuses")
  for i, stretch in ipairs(rendered) do
    assert(form[i][1] == stretch[1] and form[i][2] == stretch[2],
      ("%q, and the template renders %q"):format(form[i][1], stretch[1]))
  end
end
for name, source in pairs(golden.templates) do
  local given = folder("family", function(value, vocabulary)
    if not vocabulary then value.chat_template, value.bos_token = source, "<|endoftext|>" end
  end)
  local template = chat.template(given, "model")
  for _, case in ipairs(golden.cases) do
    local variables = case.variables
    local plain = case.template == name and case.text and not variables.add_generation_prompt and
      variables.enable_thinking == nil
    if plain and variables.bos_token ~= nil then plain = false end
    for _, message in ipairs(plain and variables.messages or {}) do
      plain = plain and type(message.content) == "string" and message.role ~= "tool"
    end
    if plain then
      local tokens = template:encode { messages = variables.messages, tools = variables.tools }
      local ok, message = pcall(given.decode, given, tokens)
      assert(ok and message == case.text, ("%s: %q, Jinja2 renders %q"):format(name, message, case.text))
    end
  end
  for _ = 1, 60 do
    local messages = {}
    for i = 1, 1 + random(4) do
      messages[i] = { role = i % 2 == 1 and "user" or "assistant",
        content = random(4) == 1 and text() or ("%s %d"):format(words[random(2)], i) }
    end
    if random(3) == 1 then table.insert(messages, 1, { role = "system", content = text() }) end
    against_rendering(template, messages, {})
  end
end
assert(formed > asked / 3, ("only %d of %d conversations were made by forms"):format(formed, asked))

-- A template that looks into what is said has no form, or a form with a condition.
for source, condition in pairs {
  ["{{ messages[0].content[0] }}"] = "none", ["{{ messages[0].content | upper }}"] = "none",
  ["{{ messages[0].content | length }}"] = "none", ["{{ messages | tojson }}"] = "none",
  ["{{ messages | map(attribute='content') | join(',') }}"] = "none",
  ["{% if messages[0].content > 'b' %}x{% endif %}"] = "none", ["{{ {'a': 1}[messages[0].content] }}"] = "none",
  ["{{ {'a': 1}.get(messages[0].content, 2) }}"] = "none", ["{{ {messages[0].content: 1}['a'] }}"] = "none",
  ["{% for c in messages[0].content %}{{ c }},{% endfor %}"] = "none",
  ["{{ 'abc'.startswith(messages[0].content) }}"] = "none", ["{{ messages[0].content in ['a', 'b'] }}"] = "none",
  ["{{ messages[0].content[:1] }}"] = "none",
  ["{% for k in messages[0] %}{{ k }}{% endfor %}"] = "none", ["{{ strftime_now('%Y') }}"] = "none",
  ["{{ (messages[0].content ~ 'x').strip('x') }}"] = "none",
  ["{{ messages[0].content | trim }}"] = "edges", ["{{ messages[0].content.strip('ab') }}"] = "edges",
  ["{{ 'x' in messages[0].content }}"] = "lacks", ["{{ messages[0].content.split('b')[-1] }}"] = "lacks",
  ["{{ messages[0].content == 'a' }}"] = "lacks", ["{{ messages[0].content.endswith('b') }}"] = "lacks",
  ["{{ 'full' if messages[0].content else 'empty' }}"] = "nothing",
  ["{{ messages[0].content is string }}{{ messages | length }}{{ 'tool_calls' in messages[0] }}" ..
    "{{ messages[1:] | length }}"] = "nothing",
} do
  local template = chat.template(folder("looks", function(value) value.chat_template = source .. "." end), "model")
  for _, content in ipairs { "hello", "a", "b", "ab", "x a", " b ", "", "\n", "xab" } do
    against_rendering(template, { { role = "user", content = content } }, {})
  end
  local _, form = next(template:model().forms.by_shape)
  local held = form and (form.conditions.edges[1] and "edges" or form.conditions.lacks[1] and "lacks" or
    "nothing") or "none"
  assert(held == condition, ("%s: %s, expected %s"):format(source, held, condition))
end

-- Qwen3's way: the last turn has its empty thinking block, which is trained as it will be said. Earlier reasoning is
-- left out.
local function spans(given, messages, more)
  local record = more or {}
  record.messages = messages
  local tokens, mask = chat.template(given):encode(record)
  local parts = {}
  for i, id in ipairs(tokens) do
    if mask[i] == 1 then parts[#parts + 1] = (mask[i - 1] == 0 and "|" or "") .. given:bytes(id) end
  end
  return table.concat(parts), given:decode(tokens)
end
local thinking = folder("thinking", function(value, vocabulary)
  if not vocabulary then value.chat_template = golden.templates.thinking end
end)
local spoken = spans(thinking, { { role = "user", content = "a" }, { role = "assistant",
  content = "<think>\nr\n</think>\n\nb" }, { role = "user", content = "c" }, { role = "assistant", content = "d" } })
assert(spoken == "|b<|im_end|>|<think>\n\n</think>\n\nd<|im_end|>", spoken)
-- The generation prompt finds turns that the template later renders in another way.
spoken = spans(thinking, { { role = "user", content = "a" }, { role = "assistant",
  content = "<think>\nr\n</think>\n\nb" }, { role = "assistant", content = "<think>\ns\n</think>\n\nc" },
  { role = "user", content = "d" }, { role = "assistant", content = "e" } })
assert(spoken == "|b<|im_end|>|c<|im_end|>|<think>\n\n</think>\n\ne<|im_end|>", spoken)

-- ---------------------------------------------------------------- texts: what begins and ends them, special tokens
local with_bos = folder("bos", function(value, vocabulary)
  if vocabulary then
    value.added_tokens[#value.added_tokens + 1] = { id = 280, content = "<s>", special = true, single_word = false,
      lstrip = false, rstrip = false, normalized = false }
    value.post_processor = { type = "TemplateProcessing",
      single = { { SpecialToken = { id = "<s>", type_id = 0 } }, { Sequence = { id = "A", type_id = 0 } } } }
  else
    value.bos_token = "<s>"
  end
end)
local bos, stop = with_bos:id "<s>", with_bos:id "<|endoftext|>"
local function text_tokens(given, record, opt)
  opt = opt or {}
  q.fs.write(dir .. "/one.jsonl", q.json.encode(record) .. "\n")
  opt.tokenizer = given
  local counts = q.convert(dir .. "/one.jsonl", dir .. "/one.qubgpu", opt)
  local tokens, mask = q.ndp.open(dir .. "/one.qubgpu"):read(0)
  local expected = { chat.template(given, opt.template, opt.system, opt.turns,
    opt.special):encode(chat.normalize(record)) }
  assert(join(tokens) == join(expected[1]) and join(mask) == join(expected[2]), "the engine and chat.lua differ")
  return tokens, mask, counts
end
local hello = with_bos:encode "hello"
for document, expected in pairs {
  ["hello"] = { bos, hello, stop }, ["<s>hello"] = { bos, hello, stop }, ["hello<|endoftext|>"] = { bos, hello, stop },
  ["<s>hello<|im_end|>"] = { bos, hello, with_bos:id "<|im_end|>" },
  [""] = { bos, {}, stop }, ["<s>"] = { bos, {}, stop },
} do
  local tokens, mask = text_tokens(with_bos, { text = document })
  local all = { expected[1] }
  for _, id in ipairs(expected[2]) do all[#all + 1] = id end
  all[#all + 1] = expected[3]
  assert(join(tokens) == join(all), ("%s: %s, expected %s"):format(document, join(tokens), join(all)))
  assert(not join(mask):find "0", "a text is trained throughout")
end
local tokens, _, counts = text_tokens(with_bos, { text = "<s>hello<|im_end|>" }, { special = "text" })
assert(join(tokens) == ("%d %s %d"):format(bos, join(with_bos:encode "<s>hello<|im_end|>"), stop),
  "special tokens were parsed")
assert(q.conversion_summary(counts):find "special tokens in texts taken as text" and
  q.ndp.open(dir .. "/one.qubgpu"):meta().special == "text")
assert(text_tokens(tokenizer, { text = "hello" })[1] ~= bos, "a bos that the tokenizer does not add")
-- The end of a document is not the end of a turn.
local llama = folder("llama", function(value, vocabulary)
  if vocabulary then
    for i, name in ipairs { "<|end_of_text|>", "<|start_header_id|>", "<|eot_id|>" } do
      value.added_tokens[i].content = name
    end
  else
    value.eos_token, value.chat_template = "<|eot_id|>", nil
  end
end)
assert(text_tokens(llama, { text = "hello" })[#hello + 1] == llama:id "<|end_of_text|>")

-- ---------------------------------------------------------------- neither a template nor ChatML: prompt and
-- completion, one after the other
for _, record in ipairs { { prompt = "hello", completion = " world" }, { instruction = "hello", output = " world" } } do
  local ids, trains, made = text_tokens(llama, record)
  assert(llama:decode(ids) == "hello world<|end_of_text|>", llama:decode(ids))
  local world = llama:encode " world"
  assert(join(trains) == ("0 "):rep(#hello) .. ("1 "):rep(#world) .. "1", join(trains))
  assert(q.conversion_summary(made):find "template: none .*joined as they are")
end
local conversation = { messages = { { role = "user", content = "a" }, { role = "assistant", content = "b" } } }
local _, why = q.try(chat.template(llama).encode, chat.template(llama), conversation)
assert(why.message:find("neither a chat template nor ChatML's tokens.*chat_template.jinja.*prompt and completion"),
  why.message)
local none, problem = q.try(chat.template, llama, "auto", "Be brief.")
assert(not none and problem.message:find "a system message is given")

-- ---------------------------------------------------------------- formats
local function texts(path, opt)
  opt = opt or {}
  opt.tokenizer = tokenizer
  local counted = q.convert(path, dir .. "/out.qubgpu", opt)
  local list = {}
  for i, record in ipairs((read_all(dir .. "/out.qubgpu"))) do
    list[i] = (tokenizer:decode(record.tokens):gsub("<|endoftext|>$", ""))
  end
  return list, counted
end
local function expect(name, content, list, opt)
  q.fs.write(dir .. "/" .. name, content)
  local got = texts(dir .. "/" .. name, opt)
  assert(table.concat(got, "|") == table.concat(list, "|"),
    ("%s: %q, expected %q"):format(name, table.concat(got, "|"), table.concat(list, "|")))
end
expect("a.json", '\239\187\191 [ {"text": "a,]"} ,\n{"text": "b\\""}\n,{"text":"c"} ] \n', { "a,]", 'b"', "c" })
expect("a.jsonl", '{"text": "a"}\r\n\r\n  \n{"text": "b\\u00e9"}', { "a", "bé" })
expect("a.csv", 'text,id\r\n"a ""b""\nc, d",1\r\nplain,2\n\n"",3\n', { 'a "b"\nc, d', "plain", "" })
expect("a.tsv", 'text\tid\na, "b"\t1\n"c\td"\t2\n', { 'a, "b"', "c\td" })
expect("b.csv", "instruction,output\nsay,yes\n",
  { "<|im_start|>user\nsay<|im_end|>\n<|im_start|>assistant\nyes<|im_end|>\n" })
expect("a.txt", "one\r\n\n two\n", { "one\r\n\n two\n" }, { documents = "file" })
expect("a.txt", "one\nmore\n\n \n two\r\n\r\nthree", { "one\nmore", " two", "three" })
expect("a.txt", "one\r\n\n two\n", { "one", " two" }, { documents = "line" })
expect("a.txt", "nul\0byte", { "nul\0byte" })
expect("a.txt", "bad \255 byte", { "bad \239\191\189 byte" })
expect("b.jsonl", '{"text": "bad \255 byte"}\n', { "bad \239\191\189 byte" })

-- ---------------------------------------------------------------- policies, sources, duplicates
local ten = '{"text": "0123456789", "from_": "web"}\n'
q.fs.write(dir .. "/long.jsonl", ten .. '{"text": "01", "from_": 7}\n' .. ten)
local function lengths(opt)
  local _, counted = texts(dir .. "/long.jsonl", opt)
  local list = {}
  for i, record in ipairs((read_all(dir .. "/out.qubgpu"))) do list[i] = #record.tokens end
  return table.concat(list, " "), counted
end
local function check(opt, expected, field, count)
  local list, counted = lengths(opt)
  assert(list == expected, ("%s, expected %s"):format(list, expected))
  if field then assert(counted[field] == count, ("%s: %d, expected %d"):format(field, counted[field], count)) end
end
check({}, "11 3 11", "longer", 0)
check({ max_tokens = 5 }, "11 3 11", "longer", 2)
check({ max_tokens = 5, long = "drop" }, "3", "longer", 2)
check({ max_tokens = 5, long = "split" }, "5 5 1 3 5 5 1", "longer", 2)
check({ max_tokens = 5, long = "end" }, "5 3 5", "longer", 2)
check({ max_tokens = 5, long = "truncate" }, "5 3 5", "longer", 2)
check({ dedupe = true }, "11 3", "duplicates", 1)
assert(q.ndp.open(dir .. "/out.qubgpu"):meta().conversion.duplicates == 1)
local function sources(opt)
  opt.tokenizer = tokenizer
  q.convert(dir .. "/long.jsonl", dir .. "/out.qubgpu", opt)
  local list = {}
  for i, record in ipairs((read_all(dir .. "/out.qubgpu"))) do list[i] = record.src end
  return table.concat(list, " ")
end
assert(sources {} == "1 1 1")
assert(sources { source = "0x42" } == "66 66 66")
assert(sources { source = "code" } == "2 2 2")
assert(sources { source_field = "from_", source_names = { web = 0x41 } } == "65 7 65")
assert(q.ndp.open(dir .. "/out.qubgpu"):meta().counts["0x41"].records == 2)

-- ---------------------------------------------------------------- errors
local function refused(pattern, opt, content, name)
  name = name or "bad.jsonl"
  if content then q.fs.write(dir .. "/" .. name, content) end
  opt.tokenizer = tokenizer
  local ok, fault = pcall(q.convert, dir .. "/" .. name, dir .. "/refused.qubgpu", opt)
  assert(not ok and tostring(fault.message):find(pattern),
    ("expected %s, got %s"):format(pattern, tostring(ok or fault.message or fault)))
  for _, ending in ipairs { "", ".partial", ".partial.index", ".partial.journal" } do
    assert(not q.fs.kind(dir .. "/refused.qubgpu" .. ending), "refused, but left refused.qubgpu" .. ending)
  end
end
refused("2 of 3 records are bad; nothing was written. Mend them, or leave them out: "
  .. "allow a share of bad records of 0.67$", { max_bad = 0.5 }, '{"text": "a"}\nnothing\n{"x": 1}\n')
refused("source 300", { source = "300" }, ten)
refused("needs a limit", { long = "drop" }, ten)
refused("Parquet: its metadata", {}, "PAR1....\0\0\0\0PAR1", "bad.parquet")
refused("Parquet: no whole", {}, "PAR1....", "cut.parquet")
refused("Arrow file.*pyarrow", {}, "ARROW1\0\0", "data.arrow")
refused("bzip2", {}, "BZh9....", "bad.jsonl.bz2")
refused("xz", {}, "\2537zXZ\0....", "bad.jsonl.xz")
refused("UTF%-16", {}, "\255\254{\0", "bad.json")
refused("packet dataset already", {}, q.fs.read(dir .. "/out.qubgpu"), "copy.qubgpu")
refused("ends without %]", {}, '[{"text": "a"}, {"text"', "cut.json")
refused("text after the JSON array", {}, '[{"text": "a"}] x', "after.json")
refused("tell its format; say that it is", {}, "what is this", "unknown")
refused("header names text twice", {}, "text,text\na,b\n", "twice.csv")
refused("missing.jsonl: no such file", {}, nil, "missing.jsonl")
refused("gzip", {}, "\31\139\8\0garbage and more of it", "cut.jsonl.gz")
refused("all of the first", {}, ("nothing\n"):rep(3000))
-- Files packed or written by other programs read as their JSON lines do.
local function same_packets(a, b)
  for i, path in ipairs { a, b } do
    q.convert(path, ("%s/same%d.qubgpu"):format(dir, i), { tokenizer = tokenizer, overwrite = true })
  end
  local function tokens_of(i)
    local all = {}
    for n, record in ipairs((read_all(("%s/same%d.qubgpu"):format(dir, i)))) do
      all[n] = table.concat(record.tokens, " ")
    end
    return table.concat(all, "\n")
  end
  assert(tokens_of(1) == tokens_of(2) and #tokens_of(1) > 5, a .. " is not read as " .. b)
end
q.fs.write(dir .. "/two.jsonl", '{"text": "a"}\n{"text": "b"}\n')
for _, name in ipairs { "two.jsonl.bz2", "two.jsonl.xz" } do
  same_packets("tests/golden/packed/" .. name, dir .. "/two.jsonl")
end
same_packets("tests/golden/parquet/chats.parquet", "tests/golden/parquet/chats.jsonl")

q.fs.remove(dir)
print "convert: the engine's way and chat.lua's agree"
