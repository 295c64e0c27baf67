-- Chat templates render as Jinja2 renders them; hostile ones are stopped; ChatML spans are exact.
local chat = require "qeng.chat"
local jinja = require "qeng.jinja"
local q = require "qeng"
local request = require "qeng.infer.request"
local samples = require "qeng.train.samples"

local golden = q.json.decode(q.fs.read((arg[0]:match("^(.*)/tests/") or ".") .. "/tests/golden/templates.json"))
local compiled, count = {}, 0
for name, text in pairs(golden.templates) do compiled[name] = jinja.compile(text) end
for i, case in ipairs(golden.cases) do
  local ok, text = pcall(compiled[case.template], case.variables)
  if case.error then
    assert(not ok and text.message:find(case.error, 1, true),
      ("case %d (%s): expected the error %q"):format(i, case.template, case.error))
  else
    assert(ok, ("case %d (%s): %s"):format(i, case.template, ok or text.message or text))
    assert(text == case.text, ("case %d (%s):\n%q\nexpected\n%q"):format(i, case.template, text, case.text))
  end
  count = count + 1
end
local values = q.json.decode(golden.values, { ordered = true, exact = true })
for _, case in ipairs(golden.python) do
  local ok, text = pcall(function() return (jinja.compile(case.template)(values)) end)
  if case.error then
    assert(not ok and text.code == "template",
      ("%s: %s, expected an error"):format(case.template, ok and text or tostring(text)))
  else
    assert(ok and text == case.text,
      ("%s:\n%s\nexpected\n%s"):format(case.template, ok and text or text.message or text, case.text))
  end
  count = count + 1
end
assert(jinja.compile "{{ ('{\"b\": [1, 2.0]}' | from_json).b }}" {} == "[1, 2.0]")
local text, said =
  jinja.compile "ab{% generation %}cé{% endgeneration %}{% set x %}{% generation %}d{% endgeneration %}{% endset %}" {}
assert(text == "abcé" and said[1][1] == 3 and said[1][2] == 5 and said[2] == false and #said == 2,
  "what {% generation %} marks")
assert(count >= 50, "too few cases")
-- As the engine joins a model's templates, by whether tools are given. The texts stay as they are, line ends too.
do
  local joined = jinja.compile(
    "{% if tools is defined and tools is not none and tools %}{{ '' }}\n with {{ tools[0].name }}\n  {{ '' " ..
    "}}{% else %}{{ '' }}\n{% set a = 1 %}\nwithout{{ a }}\n {{ '' }}{% endif %}")
  for given, expected in pairs { ['{"tools": [{"name": "f"}]}'] = "\n with f\n  ", ["{}"] = "\nwithout1\n ",
      ['{"tools": []}'] = "\nwithout1\n " } do
    local got = joined(q.json.decode(given, { ordered = true }))
    assert(got == expected, ("%s: %q"):format(given, got))
  end
end
for _, source in ipairs { "{% break %}", "{% for i in [1] %}{% macro f() %}{% continue %}{% endmacro %}{% endfor %}",
    "{{ '\\x4' }}", "{{ '\\ud800' }}" } do
  local ok, why = pcall(jinja.compile, source)
  assert(not ok and why.code == "template", source)
end

-- Lists longer than Lua's stack.
do
  local d = {}
  for i = 1, 20000 do d["k" .. i] = i end
  local render = jinja.compile "{{ d | list | length }} {{ d.keys() | length }} {{ (d | tojson(sort_keys=true))[:9] }}"
  local got = render { d = d }
  assert(got == '20000 20000 {"k1": 1,', got)
end

-- Untrusted templates: each is refused or stopped, with a template error.
for _, hostile in ipairs {
  "{% for i in range(100000) %}{% for j in range(100000) %}x{% endfor %}{% endfor %}", "{{ 'a' * 999999999 }}",
  "{% macro f() %}{{ f() }}{% endmacro %}{{ f() }}",
  "{{ os.execute('true') }}", "{{ ''.__class__.__mro__ }}", "{{ messages.x.y }}", "{% include 'x' %}", "{% if %}",
  "{{ 1 + }}", "{{ 'unclosed }}", "{% for x in 3 %}{% endfor %}",
  "{{ range(1000000000) }}", "{{ cycler('a') }}", "{{ [1] | tojson(indent=2000000000) }}",
  "{{ 'a\nb' | indent(2000000000) }}",
  "{% set n = namespace(x='a') %}{% for i in range(60) %}{% set n.x = n.x ~ n.x %}{% endfor %}",
  "{% set n = namespace(x=[1]) %}{% for i in range(60) %}{% set n.x = n.x + n.x %}{% endfor %}",
  "{% set n = namespace(x=[1]) %}{% for i in range(60) %}{% set n.x = [n.x, n.x] %}{% endfor %}{{ n.x | tojson }}",
  "{% set x = 'a' * 100000 %}{{ x | replace('a', x) }}", "{{ ('b' * 100000).join(range(100000)) }}",
  "{{ ('\nb' * 100000) | indent(100000) }}",
  -- each value is allowed, but not so many of them
  "{% set x = 'a' * 1000000 %}{% set n = namespace(l=[]) %}{% for i in range(100000) %}{% set n.l = n.l + " ..
  "[x ~ i] %}{% endfor %}",
  "{% set n = namespace(l=[]) %}{% for i in range(100000) %}{% set n.l = n.l + [range(100000)] %}{% endfor %}",
  "{% set x = 'a' * 1000000 %}{% for i in range(100000) %}{% set y = x | upper %}{% endfor %}",
  "{% set x = 'a' * 1000000 %}{% for i in range(100000) %}{% if 'b' in x %}b{% endif %}{% endfor %}",
  -- one step that looks at many items
  "{% set n = namespace(a=[1], b=[1]) %}{% for i in range(40) %}{% set n.a = [n.a, n.a] %}{% set n.b = [n.b, n.b] %}" ..
  "{% endfor %}{{ n.a == n.b }}",
  "{{ range(100000) | unique | sum }}", "{{ ([[1, 2]] * 40000) | sum(start=[]) }}",
  "{% set l = range(100000) %}{% for i in range(100000) %}{% set m = l[1:] %}{% endfor %}",
} do
  local ok, why = pcall(function() return jinja.compile(hostile) { messages = {} } end)
  assert(not ok and type(why) == "table" and why.code == "template",
    hostile .. ": " .. tostring(ok and "was rendered" or type(why) == "table" and why.message or why))
end

-- Spans: a tokenizer of bytes with the three special tokens.
local dir = os.tmpname()
q.fs.remove(dir)
q.fs.mkdir(dir)
q.train_bpe({ "hello hello world" }, { vocab = 262, specials = { "<|endoftext|>", "<|im_start|>", "<|im_end|>" },
  out = dir })
local tokenizer = q.tokenizer(dir)
local template = chat.template(tokenizer, "chatml")
local tokens, mask = template:encode(chat.normalize { messages = { { role = "user", content = "hi <|im_end|>" },
  { role = "assistant", content = "yes" }, { role = "user", content = "?" }, { role = "assistant", content = "no" } } })
local trained = {}
for i, id in ipairs(tokens) do if mask[i] == 1 then trained[#trained + 1] = tokenizer:bytes(id) end end
assert(table.concat(trained) == "yes<|im_end|>no<|im_end|>", table.concat(trained))
assert(tokenizer:decode(tokens) ==
  "<|im_start|>user\nhi <|im_end|><|im_end|>\n<|im_start|>assistant\nyes<|im_end|>\n" ..
  "<|im_start|>user\n?<|im_end|>\n<|im_start|>assistant\nno<|im_end|>\n", tokenizer:decode(tokens))
local ends = 0
for _, id in ipairs(tokens) do if id == tokenizer:id("<|im_end|>") then ends = ends + 1 end end
assert(ends == 4, "text that a user wrote became a special token")

-- Prompts of requests: `written` is the folder's chat template.
local function prompt(written, opt)
  q.fs.write(dir .. "/tokenizer_config.json", q.json.encode { chat_template = written })
  local model = { tokenizer = q.tokenizer(dir), config = { vocab = 262 } }
  local ids = request.ids(model, opt)
  return model.tokenizer:decode(ids), ids
end
local own = "{% for m in messages %}[{{ m.role }}:{{ m.content }}]{% endfor %}{% if tools %}{{ tools | tojson }}{% " ..
  "endif %}{% if add_generation_prompt %}>{% endif %}"
local hello = { { role = "user", content = "hello" } }
for name, begins in pairs { chatml = "<|im_start|>system\nSYS<|im_end|>\n<|im_start|>user\nhello",
    model = "[system:SYS][user:hello]>" } do
  local asked = prompt(own, { messages = hello, system = "SYS", template = name })
  assert(asked:sub(1, #begins) == begins, ("template %s: the system message is missing in %s"):format(name, asked))
end
assert(prompt(own, { messages = hello, tools = { { name = "f" } } }) == '[user:hello][{"name": "f"}]>',
  "tools are rendered by the model's template")
assert(prompt(own, { messages = { { role = "tool", content = "42" } } }) == "[tool:42]>",
  "answers of tools are rendered by the model's template")
for _, case in ipairs(golden.cases) do  -- a call, its arguments as JSON inside a string
  local call = case.template == "chatml" and case.variables.add_generation_prompt and case.variables.messages[2] and
    case.variables.messages[2].tool_calls
  if call then
    local arguments = q.json.encode(call[1]["function"].arguments)
    local messages = { case.variables.messages[1], { role = "assistant", content = q.json.null,
      tool_calls = { { ["function"] = { name = "f", arguments = arguments } } } } }
    assert(prompt(golden.templates.chatml, { messages = messages }) == case.text,
      "tool calls are rendered by the model's template")
    assert(messages[2].tool_calls[1]["function"].arguments == arguments and messages[2].content == q.json.null,
      "the caller's messages stay as they are")
  end
end

-- Template arguments: those of a request come under those of a record. A name that the template does not have is
-- refused, and so is any name for a template that takes none.
local thinks = own .. "{% if enable_thinking is defined and not enable_thinking %}no{% endif %}{{ level }}"
assert(prompt(thinks, { messages = hello, template_args = { enable_thinking = false } }) == "[user:hello]>no")
assert(prompt(thinks, { messages = hello, template_args = '{"level": 1.0}' }) == "[user:hello]>1.0",
  "numbers as they are written")
local with_own = chat.template(q.tokenizer(dir), "model", nil, nil, nil, { level = 1, enable_thinking = false })
local told = tokenizer:decode(with_own:prompt(chat.normalize { messages = hello,
  chat_template_kwargs = { level = 2 } }))
assert(told == "[user:hello]>no2", told)
local sample = samples.of_line(q.json.encode { messages = { hello[1], { role = "assistant", content = "yes" } },
  chat_template_kwargs = { level = 3 } }, "a line")
told = samples.request({ tokenizer = q.tokenizer(dir) }, sample, { template_args = { enable_thinking = false } }).ids
assert(tokenizer:decode(told) == "[user:hello]>no3", "a prompt of a file is asked without what its record gives")
for args, expected in pairs { ['{"thinkign": true}'] = "does not mention 'thinkign'", ["{"] = "expected a JSON object",
    ["[1]"] = "expected a JSON object", ['{"messages": []}'] = "given by the conversation" } do
  local _, why = q.try(prompt, thinks, { messages = hello, template_args = args })
  assert(why and why.message:find(expected, 1, true), expected .. ": " .. (why and why.message or "none"))
end
local _, takes_none = q.try(prompt, thinks, { messages = hello, template = "chatml", template_args = { level = 1 } })
assert(takes_none and takes_none.message:find "ChatML takes none", takes_none and takes_none.message)

-- What is trained of templates that cannot be rendered up to a turn: one refuses to begin with the assistant's answer,
-- one marks the answers.
local function trained_of(written, messages)
  q.fs.write(dir .. "/tokenizer_config.json", q.json.encode { chat_template = written })
  local of = q.tokenizer(dir)
  local ids, trained_mask = chat.template(of):encode(chat.normalize { messages = messages })
  local parts = {}
  for i, id in ipairs(ids) do if trained_mask[i] == 1 then parts[#parts + 1] = of:bytes(id) end end
  return table.concat(parts), of:decode(ids)
end
local strict =
  "{% if messages[0].role == 'system' and messages | length < 2 %}{{ raise_exception('more') }}{% endif %}" ..
  "{% for m in messages %}<|im_start|>{{ m.role }}:{{ m.content | trim }}<|im_end|>{% endfor %}" ..
  "{% if add_generation_prompt %}<|im_start|>assistant:{% endif %}"
local first = { { role = "system", content = "S" }, { role = "assistant", content = " one " },
  { role = "user", content = "two" }, { role = "assistant", content = "three" } }
assert(trained_of(strict, first) == "one<|im_end|>three<|im_end|>")
assert(trained_of(strict, { first[2], first[3] }) == "one<|im_end|>", "a conversation that begins with the assistant")
local marking =
  "{% for m in messages %}{% if m.role == 'assistant' %}<{% generation %}{{ m.content }}!{% endgeneration " ..
  "%}>{% else %}[{{ m.content }}]{% endif %}{% endfor %}"
assert(trained_of(marking, first) == " one !three!")
-- A special token in what is said stays text, unless the template itself looks for it.
local looks = "{% for m in messages %}{% set parts = m.content.split('<|im_start|>') %}({{ parts | last }}){% endfor %}"
local _, whole = trained_of(looks, { { role = "user", content = "a<|im_start|>b<|im_end|>" } })
assert(whole == "(b<|im_end|>)", whole)

-- Under "auto", the own template makes both the prompt and what is trained. Where it says what ChatML says, the tokens
-- are the same.
assert(prompt(own, { messages = hello }) == "[user:hello]>", "a prompt is rendered by the model's own template")
assert(prompt(own, { messages = hello, system = false }) == "[user:hello]>", "no system message")
local trained_as = q.tokenizer(dir):decode((chat.template(q.tokenizer(dir)):encode { messages = hello }))
assert(trained_as == "[user:hello]", trained_as)
local tiny = q.tokenizer((arg[0]:match("^(.*)/tests/") or ".") .. "/recipes/tiny"):info().chat_template
local qwen =
  "{% if messages[0]['role'] != 'system' %}{{ '<|im_start|>system\\nYou are Qwen, a helper.<|im_end|>\\n' " ..
  "}}{% endif %}" .. tiny
local talk = { hello[1], { role = "assistant", content = "world.\n\n  hello " },
  { role = "user", content = "hello <|im_end|>?" } }
for _, messages in ipairs { hello, talk } do
  for _, written in ipairs { tiny, qwen } do
    local shown, ids = prompt(written, { messages = messages })
    local same, expected = prompt(written, { messages = messages, template = "chatml" })
    local given = q.tokenizer(dir)
    local a, b = { chat.template(given):encode { messages = messages } },
      { chat.template(given, "chatml"):encode { messages = messages } }
    assert(table.concat(a[1], " ") == table.concat(b[1], " ") and table.concat(a[2], " ") == table.concat(b[2], " "),
      "what is trained is not as ChatML has it")
    assert(shown == same and table.concat(ids, " ") == table.concat(expected, " "), shown .. " is not " .. same)
    assert(chat.template(given).name == "model")
  end
end
assert(prompt(qwen, { messages = hello }):find("You are Qwen, a helper.", 1, true))
-- No system message: a template that brings its own is not asked.
assert(prompt(qwen,
  { messages = hello, system = false }) == "<|im_start|>user\nhello<|im_end|>\n<|im_start|>assistant\n")
local _, refusal = q.try(prompt, qwen, { messages = hello, system = false, template = "model" })
assert(refusal.message:find "always writes one", refusal.message)

-- A tokenizer of more tokens than the model has.
for expected, opt in pairs { ["token 1 of the messages is 260"] = { messages = hello, template = "chatml" },
    ["token 1 of the prompt is 261"] = { prompt = "<|im_end|>hello" } } do
  local _, why = q.try(request.ids, { tokenizer = tokenizer, config = { vocab = 260 } }, opt)
  assert(why.message == "generate: " .. expected ..
    "; the model has tokens 0 to 259: its embedding has 260 rows, its tokenizer 262 tokens", why.message)
end

local parts = { { role = "user", content = { { type = "text", text = "hel" }, { type = "text", text = "lo" } } } }
assert(prompt(own, { messages = parts }) == prompt(own, { messages = hello }) and #parts[1].content == 2,
  "content in parts")
for expected, opt in pairs {
  ["messages[2] has no role"] = { messages = { hello[1], { content = "x" } } },
  ["messages[1] has no role"] = { messages = { 5 } },
  ["messages is empty"] = { messages = {}, system = "S" }, ["messages is hi, expected a list"] = { messages = "hi" },
  ["messages[1].content is not a string"] = { messages = { { role = "user", content = 5 } } },
  ["system is 5, expected text"] = { messages = hello, system = 5 },
  ["tools is x, expected a list"] = { messages = hello, tools = "x" },
  ["template is foo; expected auto, chatml or model"] = { messages = hello, template = "foo" },
  ["ids is abc, expected a list of token ids"] = { ids = "abc" },
} do
  local ok, why = pcall(prompt, own, opt)
  assert(not ok and type(why) == "table" and why.message:find(expected, 1, true),
    expected .. ": " .. tostring(ok or why))
end

-- Long runs of spaces and of special tokens take a moment; the time does not grow with their square.
local began, spaces = q.time(), (" "):rep(100000)
assert(jinja.compile "{{ x | trim }}{{ x.rstrip() }}{{ x.strip(' ab') }}" { x = "  a" .. spaces .. "b \t" } == "a" ..
  spaces .. "b" .. "  a" .. spaces .. "b" .. "\t")
assert(jinja.compile("a" .. spaces .. "b" .. spaces .. "{% if x %}c{% endif %}" .. spaces ..
  "d \n {%- if x %}{% endif %}") {} == "a" .. spaces .. "b" .. spaces .. spaces .. "d")
local _, ids = prompt(own,
  { messages = { { role = "user", content = ("<|im_end|>"):rep(20000) } }, template = "model" })
for _, id in ipairs(ids) do assert(id < 259, "text that a user wrote became a special token") end
assert(q.time() - began < 10, "quadratic time")
q.fs.remove(dir)

-- Shapes of records.
assert(chat.normalize({ instruction = "a", input = "b", output = "c" }).messages[1].content == "a\n\nb")
assert(chat.normalize({ conversations = { { from = "human", value = "a" },
  { from = "gpt", value = "b" } } }).messages[2].role == "assistant")
assert(chat.normalize({ system = "s",
  conversations = { { from = "human", value = "a" }, { from = "gpt", value = "b" } } }).messages[3].content == "b")
assert(chat.normalize({ prompt = "a", completion = "b" }).messages[2].content == "b")
assert(chat.normalize({ text = "t" }).text == "t")
for _, bad in ipairs { {}, { messages = {} }, { messages = { { content = "x" } } },
    { conversations = { { from = "martian", value = "x" } } }, { text = 3 }, { foo = 1 } } do
  local ok, why = pcall(chat.normalize, bad)
  assert(not ok and why.code == "format")
end
print(("jinja: %d renderings as Jinja2's"):format(count))
