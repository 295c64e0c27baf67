-- Records in other trainers' shapes mean what they mean there: the text and what of it is trained are those that
-- transformers gives for the same conversation as messages (tests/golden/records.json). What cannot be followed is
-- refused by name. A record that is nested too deeply is only a bad record.
local chat = require "qeng.chat"
local q = require "qeng"

local dir = os.tmpname()
q.fs.remove(dir)
q.fs.mkdir(dir)
q.train_bpe({ "hello hello world the tool said what it found" },
  { vocab = 280, specials = { "<|endoftext|>", "<|im_start|>", "<|im_end|>" }, out = dir })
local golden = q.json.decode(q.fs.read((arg[0]:match("^(.*)/tests/") or ".") .. "/tests/golden/records.json"))
local function with_template(text)
  q.fs.write(dir .. "/tokenizer_config.json", q.json.encode { chat_template = text, eos_token = "<|im_end|>" })
  return q.tokenizer(dir)
end
local tokenizers = {}
for name, text in pairs(golden.templates) do tokenizers[name] = with_template(text) end

local function converted(tokenizer, text, opt)
  q.fs.write(dir .. "/data.jsonl", text)
  opt.tokenizer, opt.max_bad = tokenizer, 1
  return q.convert(dir .. "/data.jsonl", dir .. "/data.qubgpu", opt)
end

-- ---------------------------------------------------------------- as transformers renders them
for _, case in ipairs(golden.cases) do
  local tokenizer = tokenizers[case.template]
  for _, way in ipairs { "model", case.template == "tools" and "chatml" or nil } do
    for _, turns in ipairs { "all", "last" } do
      local where = ("%s, template %s, turns %s"):format(case.name, way, turns)
      local counts = converted(tokenizer, case.record .. "\n", { template = way, system = false, turns = turns })
      assert(counts.records == 1, where .. ": " .. q.conversion_summary(counts))
      local tokens, mask = q.ndp.open(dir .. "/data.qubgpu"):read(0)
      local parts, said = {}, {}
      for i, id in ipairs(tokens) do
        parts[i] = tokenizer:bytes(id)
        if mask[i] == 1 then said[#said + 1] = parts[i] end
      end
      assert(table.concat(parts) == case.text, ("%s:\n%s\nexpected\n%s"):format(where, table.concat(parts), case.text))
      local expected = table.concat(turns == "all" and case.trained or case.last)
      assert(table.concat(said) == expected,
        ("%s: trained is\n%s\nexpected\n%s"):format(where, table.concat(said), expected))
    end
  end
end

-- ---------------------------------------------------------------- what is refused, and by what name
local user, answer = '{"role": "user", "content": "a"}', '{"role": "assistant", "content": "b"}'
local function talk(...) return '{"messages": [' .. table.concat({ ... }, ", ") .. "]}" end
local function beside(field) return ('{"messages": [%s, %s], %s}'):format(user, answer, field) end
local refused = {
  { talk(user, '{"role": "alien", "content": "b"}'),
    "messages%[2%]: unknown role alien; known are ai, assistant, bard, .*, user$" },
  { '{"conversations": [{"from": "martian", "value": "x"}]}', "conversations%[1%]: unknown role martian; known are" },
  { beside '"tools": "not JSON"', "tools is a string that is not JSON" },
  { beside [["tools": "[{'name': 'python'}]"]], "tools is a string that is not JSON" },
  { beside '"tools": "3"', "tools is 3, expected a list or an object" },
  { beside '"tools": {"name": "f"}', "tools is an object, expected a list" },
  { beside '"tools": ["f"]', "tools%[1%] is a string that is not JSON" },
  { beside '"tools": [{"function": {"name": "f", "parameters": "{"}}]',
    "tools%[1%].parameters is a string that is not JSON" },
  { beside '"tools": [{"name": "f"}], "functions": [{"name": "f"}]', "both tools and functions" },
  { talk(user, '{"role": "assistant", "content": "b", "weight": 0.5}'),
    "messages%[2%].weight is 0.5, expected 0 or 1" },
  { talk(user, '{"role": "assistant", "content": "b", "weight": true}'),
    "messages%[2%].weight is true, expected 0 or 1" },
  { talk(user, '{"role": "assistant", "content": "b", "train": "no"}'),
    "messages%[2%].train is no, expected true or false" },
  { talk('{"role": "user", "content": "a", "train": true}', answer),
    "messages%[1%].train is true, but only what the assistant says is trained" },
  { talk(user,
  '{"role": "assistant", "content": "b", "train_detail": [{"begin_offset": 0, "end_offset": 1, "train": ' .. 'true}]}'),
  "train_detail is not supported" },
  { talk(user, '{"role": "assistant", "content": null}'), "messages%[2%] has no content" },
  { talk(user, '{"role": "assistant", "text": "b"}'), "messages%[2%] has no content" },
  { talk(user, '{"role": "assistant", "content": {"text": "b"}}'), "messages%[2%].content is not a string" },
  { talk(user, '{"role": "assistant", "content": null, "refusal": "No."}'),
    "messages%[2%].refusal is not supported: write it as content" },
  { talk(user, '{"role": "assistant", "tool_calls": [{"function": {"name": "f", "arguments": "{"}}]}'),
    "tool_calls%[1%].arguments is a string that is not JSON" },
  { talk(user, '{"role": "assistant", "tool_calls": [{"function": {"name": "f"}}]}'),
    "tool_calls%[1%] has no arguments" },
  { talk(user, '{"role": "assistant", "tool_calls": "f()"}'), "tool_calls is a string that is not JSON" },
  { talk(user, '{"role": "assistant", "tool_calls": [{"id": "c"}]}'), "tool_calls%[1%] names no function" },
  {
  talk(user, '{"role": "assistant", "tool_calls": [{"name": "f", "arguments": {}}], "function_call": {"name": "f", ' ..
    '"arguments": "{}"}}'), "both tool_calls and function_call" },
  { '{"conversations": [{"from": "human", "value": "a"}, {"from": "function_call", "value": "f(1)"}]}',
    "conversations%[2%] is a string that is not JSON" },
  { '{"conversations": [{"from": "human", "value": "a"}, {"from": "function_call", "value": "[]"}]}',
    "conversations%[2%] holds no call" },
  { talk(user, '{"role": "assistant", "content": "b", "loss": false}',
    '{"role": "tool_call", "content": "{\\"name\\": \\"f\\", \\"arguments\\": {}}"}'),
    "messages%[3%] and the message before it are one, and only one" },
  { '{"system": "Be brief.", "messages": [{"role": "system", "content": "Be long."}, ' .. user .. "]}",
    "the record's system and the first message, a system message too, differ" },
  { '{"system": ["Be brief."], "messages": [' .. user .. "]}", "system is not a string" },
  { '{"system": "a", "system_prompt": "b", "messages": [' .. user .. "]}", "system and system_prompt differ" },
  { beside '"history": [["a", "b"]]', "history beside messages: write it as messages" },
  { '{"instruction": "a", "output": "b", "history": [["a"]]}', "history%[1%] is not a question and an answer" },
  { beside '"images": ["a.png"]', "images is given, and only text is trained" },
  { '{"text": "a caption", "image": {"bytes": {"bytes": 4}}}', "image is given, and only text is trained" },
  { '{"prompt": "a", "completion": "b", "label": false}', "label is false: this answer is an example of a bad one" },
  { '{"conversations": [{"from": "human", "value": "a"}], "chosen": {"from": "gpt", "value": "b"}, ' ..
    '"rejected": {"from": "gpt", "value": "c"}}', "preferences are not trained on" },
  { '{"prompt": "a", "chosen": "b", "rejected": "c"}', "no known shape: keys chosen, prompt, rejected; .*preferences" },
  { '{"prompt": "a", "completion": null}', "no known shape: keys prompt" },
  { '{"prompt": [' .. user .. '], "completion": "b"}', "prompt is not a string" },
}
local lines = {}
for i, case in ipairs(refused) do
  local ok, why = pcall(chat.normalize, q.json.decode(case[1], { ordered = true }))
  assert(not ok and why.code == "format" and why.message:find(case[2]),
    ("%s: expected %s, got %s"):format(case[1], case[2], tostring(ok or why.message)))
  lines[i] = case[1]
end
for _, way in ipairs { "model", "chatml" } do
  local counts = converted(tokenizers.tools, table.concat(lines, "\n") .. '\n{"text": "a"}\n', { template = way })
  assert(counts.bad == #refused and counts.bad_by_reason.shape == #refused and counts.records == 1,
    way .. ": " .. q.conversion_summary(counts))
end
-- Records that only look like preferences: a chosen answer that is the last message, a good example, another kind of
-- label.
for _, field in ipairs { '"chosen": [], "rejected": [' .. answer .. "]", '"label": true', '"label": 0', '"image": null',
    '"tools": ""', '"tools": "null"' } do
  assert(#chat.normalize(q.json.decode(beside(field))).messages == 2, field)
end
local text = '{"text": "a", "image": null, "images": [], "label": false, "chosen": "b"}'
assert(chat.normalize(q.json.decode(text)).text == "a" and converted(tokenizers.tools, text, {}).records == 1)

-- ---------------------------------------------------------------- nested deeper than any parser's stack
for _, depth in ipairs { 70000, 10000000 } do
  local open, close = ("["):rep(depth), ("]"):rep(depth)
  local deep = { '{"text": "a", "more": ' .. open .. close .. "}",
    '{"messages": [' .. user .. ", " .. answer .. '], "tools": ' .. open .. close .. "}",
    '{"text": "a", "n": 123456789012345678901234567890, "more": ' .. open .. close .. "}", open,
      ('{"a":'):rep(depth / 4) }
  for _, way in ipairs { "model", "chatml" } do
    local counts = converted(tokenizers.tools, '{"text": "before"}\n' .. table.concat(deep, "\n") .. "\n" ..
      talk(user, answer) .. "\n", { template = way, max_record = 64 })
    assert(counts.records == 2 and counts.bad == #deep and counts.bad_by_reason["nested too deeply"] == #deep,
      q.conversion_summary(counts))
  end
end
for depth, fits in pairs { [128] = true, [129] = false } do  -- as deep as Lua reads JSON, for all ways
  local line = '{"text": "a", "n": ' .. ("["):rep(depth - 1) .. ("]"):rep(depth - 1) .. "}"
  assert(pcall(q.json.decode, line) == fits)
  assert(converted(tokenizers.tools, line .. '\n{"text": "b"}\n', {}).records == (fits and 2 or 1))
end
local inner = q.json.encode { tools = ("["):rep(70000) .. ("]"):rep(70000),
  messages = { { role = "user", content = "a" } } }
local ok, why = pcall(chat.normalize, q.json.decode(inner))
assert(not ok and why.message:find("tools is a string that is not JSON .*nested more than 128 levels deep"),
  tostring(why.message))
-- A journal of an interrupted conversion that is not ours.
q.fs.write(dir .. "/data.jsonl", '{"text": "a"}\n')
for _, ending in ipairs { "", ".index" } do q.fs.write(dir .. "/stopped.qubgpu.partial" .. ending, "") end
q.fs.write(dir .. "/stopped.qubgpu.partial.journal", '{"settings": ' .. ("["):rep(70000) .. ("]"):rep(70000) .. "}")
ok, why = pcall(q.convert, dir .. "/data.jsonl", dir .. "/stopped.qubgpu",
  { tokenizer = tokenizers.tools, resume = true })
assert(not ok and why.message:find "journal: nested over 64 levels deep", tostring(ok or why.message))

q.fs.remove(dir)
print(("records: %d shapes as transformers renders them, %d refused by name"):format(#golden.cases, #refused))
