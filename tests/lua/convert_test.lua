-- The engine's converter agrees with chat.lua, whatever the number of threads. For records of every shape and any
-- template it gives the tokens, masks and order that chat.lua gives one record at a time: plain ones by the engine's
-- fast way, others by a worker's Lua state.
package.path = (arg[0]:match "^(.*/)" or "./") .. "?.lua;" .. package.path
local chat = require "qeng.chat"
local conversion = require "conversion"
local q = require "qeng"

local dir, tokenizer, random, text = conversion.folder, conversion.tokenizer, conversion.random, conversion.text
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
  function()
    return { text = text(), [any { "label", "image", "audios", "chosen" }] = any { false, null, "", "x", {} } }
  end,
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
  for i, record in ipairs((conversion.read_all(dir .. "/data.qubgpu"))) do
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

q.fs.remove(dir)
print "convert: the engine's way and chat.lua's agree"
