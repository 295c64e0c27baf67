-- Conversations by the templates of the families are what Jinja2 renders, also where a form that was worked out once
-- makes them. Texts have their begin and end once. Without a template, prompt and completion are joined.
package.path = (arg[0]:match "^(.*/)" or "./") .. "?.lua;" .. package.path
local chat = require "qeng.chat"
local conversion = require "conversion"
local q = require "qeng"
local scratch = require "scratch"

local dir, tokenizer, random, text = conversion.folder, conversion.tokenizer, conversion.random, conversion.text
local words, folder = conversion.words, conversion.changed
local function join(list) return table.concat(list, " ") end

-- ---------------------------------------------------------------- templates of the families, as Jinja2 renders them
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

-- Calls and tools that a template leaves out are refused, each by its place.
do
  local fn = { name = "see", arguments = { at = "Oslo" } }
  local function spans_of(source, calls, tools, content)
    local given = folder("untold", function(value, vocabulary)
      if not vocabulary then value.chat_template = source end
    end)
    return spans(given, { { role = "user", content = "see it" },
      { role = "assistant", content = content, tool_calls = calls }, { role = "tool", content = "seen" } },
      { tools = tools })
  end
  local call, tool = { type = "function", ["function"] = fn }, { type = "function", ["function"] = { name = "see" } }
  local plain = "{% for m in messages %}<|im_start|>{{ m.role + ':' + m.content }}<|im_end|>\n{% endfor %}"
  local function with(what) return (plain:gsub("}}<", "}}" .. what:gsub("%%", "%%%%") .. "<", 1)) end
  local first = with "{% if m.tool_calls %}{{ m.tool_calls[0] | tojson }}{% endif %}"
  local all = with "{% for c in m.tool_calls or [] %}{{ c.function.name + c.function.arguments.at }}{% endfor %}"
  for _, content in ipairs { "", false } do
    content = content or nil
    scratch.refused("messages[2].tool_calls[1]: the chat template leaves it out", spans_of, plain, { call }, nil,
      content)
    scratch.refused("messages[2].tool_calls[2]: the chat template leaves it out", spans_of, first, { call, call }, nil,
      content)
    assert(spans_of(all, { call, call }, nil, content):find "seeOsloseeOslo<|im_end|>")
  end
  scratch.refused("tools[1]: the chat template leaves it out", spans_of, all, { call }, { tool }, "")
  assert(spans_of(all .. "{{ tools | tojson }}", { call }, { tool }, ""):find "seeOslo")
  -- told by what it does, also where a mark in a name changes what the template does
  assert(spans_of(all:gsub("c.function.name", "('looks' if c.function.name == 'see' else '')"), { call }, nil, "")
    :find "looksOslo")
end

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
-- A dataset is not taken for one that was made otherwise.
text_tokens(with_bos, { text = "hello" })
local function opened(opt) return q.packets(dir .. "/one.qubgpu", opt) end
opened { tokenizer = with_bos, template = "auto", template_args = "", special = "parse" }
opened { template = "model", template_args = "{}" }
scratch.refused("made with template model, and not chatml: leave --template out", opened, { template = "chatml" })
scratch.refused("made with special parse, and not text", opened, { special = "text" })
opened { template_args = '{"role": 1}' }  -- which may be for samples
text_tokens(with_bos, { text = "hello" }, { template_args = '{"role": 1}' })
opened { template_args = { role = 1 } }
scratch.refused('with template-args {"role":1}, and not {"role":2}', opened, { template_args = { role = 2 } })
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

q.fs.remove(dir)
print "convert: templates and texts are what they say"
