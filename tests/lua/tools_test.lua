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
local clock = { type = "function", ["function"] = { name = "clock" } }
local templates = {
  hermes = "{{ tools }} <tool_call>", llama = "{{ tools }} ipython", mistral = "{{ tools }}[TOOL_CALLS]",
}

-- What a parser makes of pieces: "text" and name(arguments), texts that follow each other joined.
local function heard(form, pieces)
  local parser, out = tools.new(tokenizer(templates[form]), { weather, clock }):parser(7), {}
  local function add(events)
    for _, event in ipairs(events) do
      local last = out[#out]
      if event.call then
        out[#out + 1] = { ("%d:%s(%s)"):format(event.call, event.name, event.arguments) }
        assert(#event.id == (form == "mistral" and 9 or 29), event.id)
      elseif last and last.text then
        last.text = last.text .. event.text
      else
        out[#out + 1] = { text = event.text }
      end
    end
  end
  for _, piece in ipairs(pieces) do add(parser:push(piece)) end
  add(parser:finish())
  for i, one in ipairs(out) do out[i] = one.text and "'" .. one.text .. "'" or one[1] end
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
local made = 'get_weather({"place":"Paris"})'
says("hermes", "Hello <b> there.", "'Hello <b> there.'")
says("hermes", "<tool_call>\n" .. call .. "\n</tool_call>", "0:" .. made)
says("hermes", "I look.\n\n<tool_call>\n" .. call .. "\n</tool_call>\n<tool_call>\n"
  .. '{"name": "clock", "arguments": {}}' .. "\n</tool_call>\n", "'I look.' 0:" .. made .. " 1:clock({})")
says("hermes", '<tool_call>{"name": "rm", "arguments": {}}</tool_call>',
  [['<tool_call>{"name": "rm", "arguments": {}}</tool_call>']])
says("hermes", "<tool_call>{broken</tool_call> then", "'<tool_call>{broken</tool_call> then'")
says("hermes", "so <tool_call>{\"name\": ", "'so<tool_call>{\"name\": '")
says("hermes", "1 < 2 <tool", "'1 < 2 <tool'")
says("hermes", '<tool_call>{"name": "get_weather", "arguments": {"place": "a}{\\"b"}}</tool_call>',
  '0:get_weather({"place":"a}{\\"b"})')
says("llama", '{"name": "get_weather", "parameters": ' .. paris .. "}", "0:" .. made)
says("llama", '<|python_tag|>{"name": "clock", "parameters": {}}; {"name": "get_weather", "parameters": ' .. paris
  .. "}", "0:clock({}) 1:" .. made)
says("llama", 'It is {"name": "clock", "parameters": {}}', [['It is {"name": "clock", "parameters": {}}']])
says("llama", '{"a": 1}', [['{"a": 1}']])
says("llama", '{"name": "clock", "parameters": {', [['{"name": "clock", "parameters": {']])
says("mistral", "[TOOL_CALLS] [" .. call .. ', {"name": "clock", "arguments": {}}]', "0:" .. made .. " 1:clock({})")
says("mistral", "[TOOL_CALLS]get_weather[ARGS]" .. paris .. "[TOOL_CALLS]clock[ARGS]{}", "0:" .. made .. " 1:clock({})")
says("mistral", "[TOOL_CALLS] [{", "'[TOOL_CALLS] [{'")
local hostile = heard("hermes", { "<tool_call>" .. ("{"):rep(1e6) })
assert(#hostile == 1e6 + #"<tool_call>" + 2)

-- ---------------------------------------------------------------- with a model

q.device { device = "cpu", threads = 1 }
local model = q.load("recipes/tiny", { dtype = "f32" })
local listener = fake.new()
local server = require("qeng.server").new { models = { { "tiny", model } }, http = listener }
local function post(path, body, expected)
  local id = listener:put("POST", path, q.json.encode(body))
  for _ = 1, 2000 do
    server:turn(0)
    local answer = listener.answers[id]
    if answer and answer.done then
      if answer.status ~= (expected or 200) then error(("%d: %s"):format(answer.status, answer.body), 2) end
      return answer.headers["content-type"] == "application/json" and q.json.decode(answer.body) or answer.body
    end
  end
end
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
refused({ tools = { clock, clock } }, "tools[1].function.name")
refused({ tools = { { type = "web_search" } } }, "tools[0]")
refused({ tool_choice = { type = "function", ["function"] = { name = "other" } } }, "tool_choice")
refused({ tools = q.json.array {}, tool_choice = "required" }, "tool_choice")
refused({ tool_choice = "required", response_format = { type = "json_object" } }, "tool_choice")
print "ok"
