-- What clients of others send to q.server, and what they count on: the order of a schema's properties, turns that are
-- one, calls that are no JSON, reasoning that is not wanted. By a listener without a network.
package.path = (arg[0]:match "^(.*/)" or "./") .. "?.lua;" .. package.path
local q = require "qeng"

local fake = require "server_fake"

q.device { device = "cpu", threads = 1 }
local folder = os.tmpname()
os.remove(folder)

-- The built-in model with a chat template.
local function served(name, template)
  local path = folder .. "/" .. name
  q.fs.mkdir(path)
  for _, file in ipairs { "config.json", "generation_config.json", "model.safetensors", "tokenizer.json" } do
    q.fs.write(path .. "/" .. file, q.fs.read(q.fs.find("recipes/tiny/" .. file)))
  end
  local config = q.json.decode(q.fs.read(q.fs.find "recipes/tiny/tokenizer_config.json"))
  config.chat_template = template
  q.fs.write(path .. "/tokenizer_config.json", q.json.encode(config))
  return { name, q.load(path, { dtype = "f32" }) }
end

local tools = [[{% if tools %}{{ tools | tojson }}{% endif %}
{%- for m in messages %}<|im_start|>{{ m.role }}: {{ m.content }}
{%- for c in m.tool_calls or [] %}<tool_call>{{ c.function.arguments | tojson }}{% endfor %}<|im_end|>{% endfor %}]]
local listener = fake.new()
local server = require("qeng.server").new {
  models = {
    { "tiny", q.load("recipes/tiny", { dtype = "f32" }) }, served("tools", tools),
    served("thinks", tools .. "{% if enable_thinking is false %}no{% endif %}"),
    served("tries", tools .. "{{ reasoning_effort }}"),
  },
  http = listener, engine = { max_batch = 4, context = 512 },
}

local function post(path, body, expected) return listener:ask(server, "POST", path, body, expected) end
local function equal(a, b, what)
  if a ~= b then error(("%s: %s, expected %s"):format(what, tostring(a), tostring(b)), 2) end
end
local function rendered(name, path, body)  -- the prompt that a request to the model of this name is
  local engine, found = server:find(name).engine, nil
  local submit = engine.submit
  function engine.submit(self, opt)
    found = self.model.tokenizer:decode(opt.ids)
    return submit(self, opt)
  end
  post(path, body)
  engine.submit = nil
  return found
end
local hello = { { role = "user", content = "hi" } }

-- Keys come in the schema's order, and in that of the arguments that were sent.
local schema = '{"type":"object","properties":{"reasoning":{"type":"string","maxLength":4},"answer":{"type":"integer",'
  .. '"minimum":0,"maximum":9}},"required":["reasoning","answer"],"additionalProperties":false}'
local function ordered(format)
  local answer = post("/v1/chat/completions", ('{"messages":[{"role":"user","content":"hi"}],"max_tokens":60,'
    .. '"response_format":%s}'):format(format))
  assert(answer.choices[1].message.content:find '^{%s*"reasoning"', answer.choices[1].message.content)
end
ordered('{"type":"json_schema","json_schema":{"name":"x","schema":' .. schema .. "}}")
ordered('{"type":"json_object","schema":' .. schema .. "}")  -- llama.cpp's
ordered('{"type":"json_object","json_schema":null,"schema":null,"value":' .. schema .. "}")  -- Hugging Face's
post("/v1/chat/completions", '{"messages":[{"role":"user","content":"hi"}],"max_tokens":2,"response_format":'
  .. '{"type":"json_object","schema":null}}')
equal(post("/v1/chat/completions", { messages = hello, response_format = { type = "text", schema = {} } }, 400).error
  .param, "response_format.schema", "a schema of free text")
local called = post("/v1/chat/completions", ('{"model":"tools","messages":[{"role":"user","content":"hi"}],'
  .. '"max_tokens":90,"tool_choice":"required","tools":[{"type":"function","function":{"name":"f","parameters":%s}}]}')
  :format(schema)).choices[1].message.tool_calls[1]["function"].arguments
assert(called:find '^{%s*"reasoning"', called)
local function messages(list) return ('{"model":"tools","max_tokens":4,"messages":[%s]}'):format(list) end
local use = '{"type":"tool_use","id":"a","name":"f","input":%s}'
local history = '{"role":"user","content":"hi"},{"role":"assistant","content":[%s]},{"role":"user","content":['
  .. '{"type":"tool_result","tool_use_id":"a","content":"ok"}]}'
local prompt = rendered("tools", "/v1/messages", messages(history:format(use:format '{"z": 1, "a": 2}')))
assert(prompt:find('{"z": 1, "a": 2}', 1, true), prompt)
equal(post("/v1/messages", messages(history:format(use:format '"text"')), 400).error.message:match "^[%w_.]+",
  "messages.1.content.0.input", "an input that is no object")
equal(post("/v1/messages", ('{"model":"tools","max_tokens":4,"messages":[{"role":"user","content":"hi"}],"tools":['
  .. '{"name":"f","strict":true,"input_schema":{"type":"object","properties":{"x":{"type":"string",'
  .. '"format":"ipv6"}}}}]}'), 400).type, "error", "a strict tool")

-- Turns of one role are one, and an answer cannot be begun for the model.
prompt = rendered("tools", "/v1/messages", messages '{"role":"user","content":"hi"},{"role":"user","content":"you"}')
assert(prompt:find("user: hi\n\nyou", 1, true), prompt)
equal(post("/v1/messages", messages '{"role":"user","content":"hi"},{"role":"assistant","content":"The"}', 400).type,
  "error", "a beginning of the answer")
post("/v1/messages/count_tokens", { model = "tiny", messages = { hello[1], { role = "assistant", content = "The" } } })

-- What the assistant said and its calls are one message, whichever way they come.
local call = '{"type":"function_call","call_id":"%s","name":"f","arguments":"{}"}'
local output = '{"type":"function_call_output","call_id":"%s","output":"ok"}'
local items = table.concat({ '{"role":"user","content":"hi"}', '{"role":"assistant","content":"I look."}',
  call:format "a", call:format "b", output:format "a", output:format "b" }, ",")
prompt = rendered("tools", "/v1/responses", ('{"model":"tools","max_output_tokens":4,"input":[%s]}'):format(items))
assert(prompt:find("assistant: I look.<tool_call>{}<tool_call>{}", 1, true), prompt)

-- Calls that are no JSON are the client's to mend; one that was cut off here is not kept.
local function broken(arguments)
  return { model = "tools", messages = { hello[1], { role = "assistant", tool_calls = { { id = "a", type = "function",
    ["function"] = { name = "f", arguments = arguments } } } }, { role = "tool", tool_call_id = "a", content = "" } } }
end
equal(post("/v1/chat/completions", broken '{"x": ', 400).error.param, "messages[1].tool_calls[0].function.arguments",
  "arguments that are cut off")
post("/v1/chat/completions", broken "")
equal(post("/v1/chat/completions", "[" .. ("[],"):rep(5e5) .. "1]", 400).error.message,
  "The body is too large: json: more than 500000 arrays and objects", "a body of many tables")
local many = broken(('{"x":[%s1]}'):format(("[],"):rep(3e5)))
table.insert(many.messages, many.messages[2])
equal(post("/v1/chat/completions", many, 400).error.message:match "the arguments of.*",
  "the arguments of all calls have too many parts.", "calls of many tables")
equal(post("/apply-template", { messages = { hello[1], { role = "assistant", content = "", reasoning_content = 5 } } },
  400).error.param, "messages", "a field of another type")
local cut = post("/v1/responses", ('{"model":"tools","input":"hi","max_output_tokens":40,"tool_choice":"required",'
  .. '"tools":[{"type":"function","name":"f","parameters":%s}]}'):format(schema))
equal(cut.output[1].type .. "/" .. cut.output[1].status, "function_call/incomplete", "a call that is cut off")
post("/v1/responses", { model = "tools", previous_response_id = cut.id, input = "go on", max_output_tokens = 4 })

-- Not to reason is said in the template's words, and needs none where there is nothing to turn off.
local quiet = { model = "thinks", messages = hello, max_tokens = 4, reasoning_effort = "none" }
assert(rendered("thinks", "/v1/chat/completions", quiet):find "no$")
for name, value in pairs { reasoning_effort = "high", chat_template_kwargs = { reasoning_effort = "high" } } do
  local asked = { model = "tries", messages = hello, max_tokens = 4, [name] = value }
  assert(rendered("tries", "/v1/chat/completions", asked):find "high$", name)
end
quiet.model = "tiny"
post("/v1/chat/completions", quiet)
post("/v1/messages", { model = "tiny", messages = hello, max_tokens = 4, thinking = { type = "disabled" } })
quiet.reasoning_effort = "low"
equal(post("/v1/chat/completions", quiet, 400).error.message:match "mention '(.-)'", "reasoning_effort",
  "what it cannot do")

-- Usage is of all prompts, offsets are of characters, and a count needs no room.
local usage = post("/v1/completions", { prompt = { { 1, 2 }, { 3 } }, n = 2, max_tokens = 1, ignore_eos = true }).usage
equal(usage.prompt_tokens .. "/" .. usage.total_tokens, "3/7", "tokens of two prompts")
local text = "\195\156ber \240\159\152\128"
local found = post("/v1/completions", { prompt = text .. "a", echo = true, logprobs = 1, max_tokens = 0 }).choices[1]
  .logprobs
equal(found.text_offset[#found.tokens], 6, "the last character's place")
equal(table.concat(found.tokens), [[bytes:\xc3bytes:\x9cber bytes:\xf0bytes:\x9fbytes:\x98bytes:\x80a]], "parts")
local tokenizer = server.models[1].model.tokenizer
local parts = tokenizer:encode(text)
found = require("qeng.server.logprobs").completion(tokenizer, { { id = parts[1], logprob = -1, top = {
  { id = parts[1], logprob = -1 }, { id = parts[2], logprob = -2 }, { id = parts[2], logprob = -3 } } } }, 0)
equal(q.json.encode(found.top_logprobs[1], { ordered = true }), [[{"bytes:\\x9c":-2,"bytes:\\xc3":-1}]], "alternatives")
local long = { model = "tiny", messages = { { role = "user", content = ("hat "):rep(600) } } }
assert(post("/v1/messages/count_tokens", long).input_tokens > 512)
local greedy = { prompt = "The hat is", max_tokens = 8, temperature = 0 }
local likeliest = post("/v1/completions", greedy).choices[1].text
greedy.temperature, greedy.top_p = 1, 0
equal(post("/v1/completions", greedy).choices[1].text, likeliest, "top_p 0")

q.fs.remove(folder)
print "server conversation: ok"
