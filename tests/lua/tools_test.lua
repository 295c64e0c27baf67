-- Tools of the server: calls in texts as the makers of models document them, cut at every byte; what is no call stays
-- text; a required call is bound to its schema; what a template without tools is told.
package.path = (arg[0]:match "^(.*/)" or "./") .. "?.lua;" .. package.path
local q = require "qeng"

local fake = require "server_fake"
local tools = require "qeng.server.tools"

local function equal(a, b, what)
  if a ~= b then error(("%s: %s, expected %s"):format(what, tostring(a), tostring(b)), 2) end
end
local function tokenizer(template)
  return { info = function() return { chat_template = template } end, id = function() return nil end }
end
local weather = { type = "function", ["function"] = { name = "get_weather", description = "The weather of a place.",
  parameters = { type = "object", required = { "place" }, additionalProperties = false,
    properties = { place = { type = "string", maxLength = 8 },
      days = { type = "integer", minimum = 1, maximum = 9 } } } } }
local any = { type = "function", ["function"] = { name = "any", parameters = { type = "object", properties = {
  text = { type = "string" },
  flag = { type = "boolean" }, list = { type = "array" },
  maybe = { type = { "string", "null" } } } } } }
local clock = { type = "function", ["function"] = { name = "clock" } }
local templates = {
  hermes = "{{ tools }} <tool_call>", xml = "{{ tools }} <tool_call> <function=",
  llama = "{{ tools }} ipython", mistral = "{{ tools }}[TOOL_CALLS]",
}

-- What a parser makes of pieces: 'text' and number:name(arguments), ~ after calls that are not over.
local function heard(form, pieces)
  local parser, out = tools.new(tokenizer(templates[form]), { weather, clock, any }):parser(7), {}
  local function add(events)
    for _, event in ipairs(events) do
      local last = out[#out]
      if event.id then
        assert(#event.id == (form == "mistral" and 9 or 29), event.id)
        out[#out + 1] = { call = event.call, name = event.name, pieces = {} }
      elseif event.call then
        assert(last.call == event.call and not last.over)
        last.over = event.over
        table.insert(last.pieces, event.arguments)
      else
        assert(event.text ~= "")
        if not (last and last.text) then out[#out + 1] = { text = {} } end
        table.insert(out[#out].text, event.text)
      end
    end
  end
  for _, piece in ipairs(pieces) do add(parser:push(piece)) end
  add(parser:finish())
  for i, one in ipairs(out) do
    out[i] = one.text and "'" .. table.concat(one.text) .. "'"
      or ("%d:%s(%s)%s"):format(one.call, one.name, table.concat(one.pieces), one.over and "" or "~")
  end
  return table.concat(out, " ")
end
local function says(form, text, expected)
  equal(heard(form, { text }), expected, form)
  local letters = {}
  for i = 1, #text do
    letters[i] = text:sub(i, i)
    equal(heard(form, { text:sub(1, i), text:sub(i + 1) }), expected, ("%s cut at %d"):format(form, i))
  end
  equal(heard(form, letters), expected, form .. " by letters")
end

local paris = '{"place": "Paris"}'
local call = '{"name": "get_weather", "arguments": ' .. paris .. "}"
local made = "get_weather(" .. paris .. ")"
says("hermes", "Hello <b> there.", "'Hello <b> there.'")
says("hermes", "  two \n\n lines\n", "'  two \n\n lines\n'")
says("hermes", "<tool_call>\n" .. call .. "\n</tool_call>", "0:" .. made)
says("hermes", "I look.\n\n<tool_call>\n" .. call .. "\n</tool_call>\n<tool_call>\n"
  .. '{"name": "clock", "arguments": {}}' .. "\n</tool_call>\n", "'I look.' 0:" .. made .. " 1:clock({})")
says("hermes", '<tool_call>{"arguments": {"x": [1, null]}, "id": 3, "name": "any"}</tool_call> then',
  [[0:any({"x": [1, null]}) ' then']])
says("hermes", '<tool_call>{"name": "clock"}</tool_call>', "0:clock({})")
says("hermes", '<tool_call>{"name": "any", "arguments": "{\\"a\\": 1}"}</tool_call>', '0:any({"a": 1})')
says("hermes", "<tool_call>" .. call .. "<tool_call>" .. call, "0:" .. made .. " 1:" .. made)
says("hermes", '<tool_call>{"name": "any", "arguments": {"text": "</tool_call><tool_call>{"}}</tool_call>',
  '0:any({"text": "</tool_call><tool_call>{"})')
says("hermes", '<tool_call>{"name": "any", "arguments": {"a": "\\u00e9\\n", "b": -1.5e3, "c": [true, {}], "d": "é漢🎉"}}'
  .. "</tool_call>", '0:any({"a": "\\u00e9\\n", "b": -1.5e3, "c": [true, {}], "d": "é漢🎉"})')

-- What is no call, or goes wrong, is text.
says("hermes", '<tool_call>{"name": "rm", "arguments": {}}</tool_call>',
  [['<tool_call>{"name": "rm", "arguments": {}}</tool_call>']])
says("hermes", "<tool_call>{broken</tool_call> then", "'<tool_call>{broken</tool_call> then'")
says("hermes", "so <tool_call>{\"name\": ", "'so <tool_call>{\"name\": '")
says("hermes", "1 < 2 <tool", "'1 < 2 <tool'")
says("hermes", '<tool_call>{"name": "any", "arguments": {"a": 1, }}</tool_call>',
  [[0:any({"a": 1, )~ '}}</tool_call>']])
says("hermes", '<tool_call>{"name": "any", "arguments": {"a": tru', '0:any({"a": tru)~')
says("hermes", '<tool_call>{"name": "any", "arguments": {"a": 01}}', [[0:any({"a": 01)~ '}}']])
says("hermes", '<tool_call>{"name": "any", "arguments": 5}</tool_call>',
  [['<tool_call>{"name": "any", "arguments": 5}</tool_call>']])

says("xml", "Let me see.\n<tool_call>\n<function=get_weather>\n<parameter=place>\nSt. \"John's\"\n</parameter>\n"
  .. "<parameter=days>\n3\n</parameter>\n</function>\n</tool_call>",
  [['Let me see.' 0:get_weather({"place": "St. \"John's\"", "days": 3})]])
says("xml", "<tool_call>\n<function=any>\n<parameter=text>\n\n a\n\t</para>\n\n</parameter>\n<parameter=flag>\nTrue\n"
  .. "</parameter>\n<parameter=list>\n[1, {\"b\": null}]\n</parameter>\n<parameter=maybe>\nnull\n</parameter>\n"
  .. "<parameter=free>\n12\n</parameter>\n</function>\n</tool_call>\n<tool_call>\n<function=clock>\n</function>\n"
  .. "</tool_call>", [[0:any({"text": "\n a\n\t</para>\n", "flag": true, "list": [1, {"b": null}], "maybe": null, ]]
  .. [["free": "12"}) 1:clock({})]])
says("xml", "<tool_call><function=any><parameter=list>not a list</parameter><parameter=maybe>5</parameter></function>",
  '0:any({"list": "not a list", "maybe": "5"})')
says("xml", "<tool_call>\n<function=rm>\n</function>\n</tool_call>",
  "'<tool_call>\n<function=rm>\n</function>\n</tool_call>'")
says("xml", "<tool_call>\n<function=any>\n<parameter=text>\nabc\n</par", '0:any({"text": "abc\\n</par)~')
says("xml", "<tool_call>\n<function=any>\n<parameter=list>\n[1", [[0:any({"list": )~ '[1']])
says("xml", "<tool_call>\n<function=any>\nno tag", [[0:any({)~ 'no tag']])
says("xml", "<tool_call>" .. call .. "</tool_call>", "0:" .. made)

says("llama", '{"name": "get_weather", "parameters": ' .. paris .. "}", "0:" .. made)
says("llama", '<|python_tag|>{"name": "clock", "parameters": {}}; {"name": "get_weather", "parameters": ' .. paris
  .. "}", "0:clock({}) 1:" .. made)
says("llama", '\n{"type": "function", "name": "clock", "parameters": {}} ; so', "0:clock({}) ' ; so'")
says("llama", 'It is {"name": "clock", "parameters": {}}', [['It is {"name": "clock", "parameters": {}}']])
says("llama", '{"a": 1}', [['{"a": 1}']])
says("llama", '{"name": "clock", "parameters": {', "0:clock({)~")
says("llama", '<|python_tag|>print(1)', "'<|python_tag|>print(1)'")

says("mistral", "[TOOL_CALLS] [" .. call .. ', {"name": "clock", "arguments": {}, "id": "abcdefghi"}]',
  "0:" .. made .. " 1:clock({})")
says("mistral", "[TOOL_CALLS]get_weather[ARGS]" .. paris .. "[TOOL_CALLS]clock[ARGS]{}", "0:" .. made .. " 1:clock({})")
says("mistral", "So.[TOOL_CALLS]get_weather[CALL_ID]abcdefghi[ARGS]" .. paris, "'So.' 0:" .. made)
says("mistral", "[TOOL_CALLS] [{", "'[TOOL_CALLS] [{'")
says("mistral", "[TOOL_CALLS]" .. ("x"):rep(300), "'[TOOL_CALLS]" .. ("x"):rep(300) .. "'")
says("mistral", "[TOOL_CALLS]rm[ARGS]{} [x]", "'[TOOL_CALLS]rm[ARGS]{} [x]'")

-- A megabyte of anything is read, and nothing of it is lost.
for _, part in ipairs { "{", "[", " ", "\n<", '"', '{"a":', "<tool_call>", "\\" } do
  for _, head in ipairs { "", "<tool_call>", '<tool_call>{"name": "any", "arguments": {"a": ',
      "<tool_call><function=any><parameter=text>", "<tool_call><function=any><parameter=list>" } do
    local body, pieces = part:rep(math.ceil(1e6 / #part)), {}
    for at = 1, #body, 1000 do pieces[#pieces + 1] = body:sub(at, at + 999) end
    table.insert(pieces, 1, head)
    local told = #heard("xml", pieces)
    assert(part == " " or told >= #body, head .. part)  -- white space after a call is no text
  end
end

-- ---------------------------------------------------------------- with a model

q.device { device = "cpu", threads = 1 }
local model = q.load("recipes/tiny", { dtype = "f32" })
local listener = fake.new()
local server = require("qeng.server").new { models = { { "tiny", model } }, http = listener }
local function post(path, body, expected) return listener:ask(server, "POST", path, body, expected) end
local function checked(arguments)
  local value = q.json.decode(arguments)
  assert(type(value.place) == "string" and #value.place <= 8 * 4)
  assert(value.days == nil or value.days >= 1 and value.days <= 9 and value.days % 1 == 0)
  for name in pairs(value) do assert(name == "place" or name == "days", name) end
end
local asked = { { role = "user", content = "Where is the hat?" } }
local body = { messages = asked, tools = { weather, clock }, max_tokens = 200, temperature = 1, seed = 1,
  tool_choice = { type = "function", ["function"] = { name = "get_weather" } } }
local choice = post("/v1/chat/completions", body).choices[1]
equal(choice.finish_reason, "tool_calls", "finish_reason")
equal(choice.message.content, q.json.null, "content")
equal(choice.message.tool_calls[1]["function"].name, "get_weather", "name")
local arguments = choice.message.tool_calls[1]["function"].arguments
checked(arguments)
body.stream = true
local joined = {}
for data in post("/v1/chat/completions", body):gmatch "data: ({.-})\n\n" do
  for _, part in ipairs(q.json.decode(data).choices[1].delta.tool_calls or {}) do
    joined[#joined + 1] = part["function"].arguments
  end
end
equal(table.concat(joined), arguments, "streamed arguments")
body.stream, body.tool_choice = nil, "required"
for seed = 1, 4 do
  body.seed = seed
  local fn = post("/v1/chat/completions", body).choices[1].message.tool_calls[1]["function"]
  if fn.name == "get_weather" then checked(fn.arguments) else equal(fn.name, "clock", "one of them") end
end

-- Of several functions those that are allowed are called, and told of, alone; in both APIs.
local both = { weather, clock }
local only = { type = "allowed_tools", allowed_tools = { mode = "required",
  tools = { { type = "function", ["function"] = { name = "clock" } } } } }
for seed = 1, 4 do
  local first = post("/v1/chat/completions", { messages = asked, max_tokens = 100, seed = seed, tools = both,
    tool_choice = only }).choices[1].message.tool_calls[1]
  equal(first["function"].name, "clock", "the one that is allowed")
end
local allowed = tools.new(tokenizer(templates.hermes), both, only)
equal(#allowed:for_template(), 1, "told of")
equal(allowed.choice, "required", "mode")
local response = { type = "allowed_tools", mode = "auto", tools = { { type = "function", name = "get_weather" } } }
allowed = tools.new(tokenizer(templates.hermes), both, response):for_template()
equal(allowed[1]["function"].name, "get_weather", "told of")

-- A call that was cut off says so, in all three APIs, and keeps what there is of its arguments.
body.seed, body.max_tokens = 1, 24
body.tool_choice = { type = "function", ["function"] = { name = "get_weather" } }
choice = post("/v1/chat/completions", body).choices[1]
equal(choice.finish_reason, "length", "finish_reason")
local cut = { model = "tiny", max_tokens = 24, messages = asked, temperature = 1,
  tools = { { name = "get_weather", input_schema = weather["function"].parameters } }, tool_choice = { type = "any" } }
equal(post("/v1/messages", cut).stop_reason, "max_tokens", "stop_reason")
equal(post("/v1/responses", { input = "Where?", max_output_tokens = 24, tool_choice = "required",
  tools = { { type = "function", name = "get_weather", parameters = weather["function"].parameters } } }).status,
  "incomplete", "status")
body.max_tokens = 200

-- In every form a required call is in the form's syntax, and its arguments are what the schema allows; a strict
-- function's are where the model is free, after any text.
local strict = { type = "function", ["function"] = { name = "get_weather", strict = true,
  parameters = weather["function"].parameters } }
local listed = { type = "function", ["function"] = { name = "get_weather", parameters = { type = "object",
  required = { "place" }, properties = { place = { type = "string", enum = { "Rome", "Sm\"all" } },
    days = { type = "integer", minimum = 1, maximum = 9 } } } } }
local newer = "{{ tools }}[TOOL_CALLS][CALL_ID][ARGS]"
local function calls_of(able, text)
  local parser, calls, said = able:parser(1), {}, ""
  for _, events in ipairs { parser:push(text), parser:finish() } do
    for _, event in ipairs(events) do
      if event.id then calls[#calls + 1] = { name = event.name, arguments = "" } end
      if event.arguments then calls[#calls].arguments = calls[#calls].arguments .. event.arguments end
      if event.over then calls[#calls].over = true end
      if event.text then said = said .. event.text end
    end
  end
  return calls, said
end
local function takes(grammar, text)
  local matcher = grammar:matcher(model.tokenizer)
  for _, id in ipairs(model.tokenizer:encode(text)) do
    if not matcher:allows(id) then return false end
    matcher:accept(id)
  end
  return matcher:complete()
end
for form, template in pairs { hermes = templates.hermes, xml = templates.xml, llama = templates.llama,
    mistral = templates.mistral, args = newer } do
  local forced = tools.new(tokenizer(template), { form == "xml" and listed or weather, clock }, "required", false)
  for seed = 1, 6 do
    local text = model:answer { prompt = "Go", grammar = forced:grammar(), max_tokens = 300, temperature = 1.5,
      seed = seed }
    local calls, said = calls_of(forced, text)
    assert(#calls == 1 and calls[1].over and said == "", form .. ": " .. text)
    if calls[1].name == "clock" then
      equal(next(q.json.decode(calls[1].arguments)), nil, form)
    else
      checked(calls[1].arguments)
    end
  end
  local named = tools.new(tokenizer(template), { weather, clock }, { type = "function",
    ["function"] = { name = "clock" } })
  local text = model:answer { prompt = "Go", grammar = named:grammar(), max_tokens = 300, temperature = 1 }
  equal(calls_of(named, text)[1].name, "clock", form)
  equal(tools.new(tokenizer(template), { weather, clock }):grammar(), nil, form)
  equal(tools.new(tokenizer(template), { strict }, "none"):grammar(), nil, form)
end
local function call_with(given)
  return ('<tool_call>\n{"name": "get_weather", "arguments": %s}\n</tool_call>'):format(given)
end
local free = tools.new(tokenizer(templates.hermes), { strict }):grammar()
for _, text in ipairs { "", "a < b << c <tool_cal", "<<tool_<tool_call x", "<tool_call", call_with '{"place":"Rome"}',
    "So <" .. call_with '{"place":"Rome"}' .. "\n" .. call_with '{"days":9,"place":""}' } do
  assert(takes(free, text), text)
end
for _, text in ipairs { "<tool_call>", "x <tool_call> y", call_with '{"place":"Rome"}' .. " and", call_with "{}",
    call_with '{"days":10,"place":"Rome"}', "<<tool_call>" } do
  assert(not takes(free, text), text)
end
assert(takes(tools.new(tokenizer(templates.mistral), { strict }):grammar(), 'a [TOOL_[] [TOOL_CALLS][{"name": '
  .. '"get_weather", "arguments": {"place":"x"}}]'))
assert(takes(tools.new(tokenizer(templates.xml), { any }, "required"):grammar(), "<tool_call>\n<function=any>\n"
  .. "<parameter=flag>\ntrue\n</parameter>\n<parameter=text>\n</b>\n\n</parameter>\n</function>\n</tool_call>"))

-- Anthropic's and the responses' forms of the same.
local block = post("/v1/messages", { model = "tiny", max_tokens = 200, messages = asked,
  tools = { { name = "get_weather", input_schema = weather["function"].parameters } },
  tool_choice = { type = "any" } })
equal(block.stop_reason, "tool_use", "stop_reason")
checked(q.json.encode(block.content[1].input))
local item = post("/v1/responses", { input = "Where?", max_output_tokens = 200, tool_choice = "required",
  tools = { { type = "function", name = "get_weather", parameters = weather["function"].parameters } } })
equal(item.output[1].type, "function_call", "an item")
checked(item.output[1].arguments)
equal(item.tools[1].description, q.json.null, "what was not said of a tool")
local unheard = { input = "Where?", max_output_tokens = 4, tools = { { type = "function", name = "get_weather",
  parameters = { type = "object", properties = { place = { type = "nothing" } } } } } }
post("/v1/responses", unheard)
unheard.tools[1].strict = true
equal(post("/v1/responses", unheard, 400).error.param, "tools[0].function.parameters", "strict is heeded")

-- Results go back. A template without tools is told in a system message, and results come from the user.
local said = { asked[1], { role = "assistant", content = q.json.null, tool_calls = { { id = "call_1", type = "function",
  ["function"] = { name = "clock", arguments = "{}" } } } },
  { role = "tool", tool_call_id = "call_1", content = "noon" } }
post("/v1/chat/completions", { messages = said, tools = { clock }, max_tokens = 4 })
post("/v1/responses", { input = { { role = "user", content = "x" },
  { type = "function_call", call_id = "c", name = "clock", arguments = "{}" },
  { type = "function_call_output", call_id = "c", output = "noon" } }, max_output_tokens = 4 })
local plain = tools.new(tokenizer "{{ messages }}", { clock })
local told = plain:messages(require("qeng.server.messages").read(q.json.decode(q.json.encode(said))))
assert(told[1].role == "system" and told[1].content:find('"name":"clock"', 1, true))
assert(told[3].content:find('<tool_call>\n{"name": "clock", "arguments": {}}', 1, true))
assert(told[4].role == "user" and told[4].content:find("noon", 1, true))

local function refused(more, param)
  local all = { messages = asked, tools = { clock }, max_tokens = 4 }
  for name, value in pairs(more) do all[name] = value end
  equal(post("/v1/chat/completions", all, 400).error.param, param, "param")
end
refused({ tools = { { type = "function", ["function"] = { name = "a b" } } } }, "tools[0].function.name")
for place, parameters in pairs {
  ["tools[0].function.parameters"] = { type = "array" },
  ["tools[1].function.parameters"] = { type = "object", properties = { a = { ["if"] = true } } },
} do
  local other = { type = "function", ["function"] = { name = "other", parameters = parameters } }
  refused({ tools = place:find "0" and { other } or { clock, other }, tool_choice = "required" }, place)
end
refused({ tools = { clock, clock } }, "tools[1].function.name")
refused({ tools = { { type = "web_search" } } }, "tools[0]")
refused({ tool_choice = { type = "function", ["function"] = { name = "other" } } }, "tool_choice")
refused({ tool_choice = { type = "function", ["function"] = true } }, "tool_choice")
refused({ tool_choice = { type = "allowed_tools", mode = "auto", tools = { { type = "function", name = "other" } } } },
  "tool_choice.tools[0]")
refused({ tool_choice = { type = "allowed_tools", mode = "any", tools = { { type = "function", name = "clock" } } } },
  "tool_choice.mode")
refused({ tool_choice = { type = "allowed_tools", mode = "auto" } }, "tool_choice.tools")
refused({ tools = q.json.array {}, tool_choice = "required" }, "tool_choice")
refused({ response_format = { type = "json_object" } }, "response_format")
print "ok"
