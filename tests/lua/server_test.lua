-- q.server: routes, OpenAI's chat and completions, what is refused, clients that leave, a full queue, the end. By a
-- listener without a network; answers are compared with the engine's own.
package.path = (arg[0]:match "^(.*/)" or "./") .. "?.lua;" .. package.path
local q = require "qeng"

local fake = require "server_fake"
local request = require "qeng.infer.request"

q.device { device = "cpu", threads = 1 }
local model = q.load("recipes/tiny", { dtype = "f32" })
local listener, lines = fake.new(), {}
local server = require("qeng.server").new {
  models = { { "tiny", model } }, http = listener, queue = 4, engine = { max_batch = 4 },
  log = function(line) lines[#lines + 1] = q.json.decode(line) end,
}

local function run(...)
  for _ = 1, 2000 do
    local open = false
    for _, id in ipairs { ... } do open = open or not (listener.answers[id] and listener.answers[id].done) end
    if not open then return end
    server:turn(0)
  end
  error "no answer"
end
local function post(path, body, expected) return listener:ask(server, "POST", path, body, expected) end
local function get(path)
  local id = listener:put("GET", path)
  run(id)
  return listener.answers[id].status, listener.answers[id].body
end
local function events(text)
  local list = {}
  for data in text:gmatch "data: (.-)\n\n" do list[#list + 1] = data == "[DONE]" and data or q.json.decode(data) end
  return list
end
local function equal(a, b, what)
  if a ~= b then error(("%s: %s, expected %s"):format(what, tostring(a), tostring(b)), 2) end
end

-- ---------------------------------------------------------------- chat

local asked = { { role = "user", content = "Where is the hat?" } }
local engine = model:engine()
local own = engine:submit { messages = asked, temperature = 2, top_p = 0.99, seed = 7, max_tokens = 24, logprobs = 2 }
engine:finish()

local body = { model = "tiny", messages = asked, temperature = 2, top_p = 0.99, seed = 7, max_tokens = 24,
  logprobs = true, top_logprobs = 2 }
local answer = post("/v1/chat/completions", body)
equal(answer.choices[1].message.content, own.text, "the text is the engine's")
equal(answer.object, "chat.completion", "object")
equal(answer.choices[1].finish_reason, own.finish == "length" and "length" or "stop", "finish_reason")
equal(answer.usage.prompt_tokens, own.prompt_tokens, "prompt_tokens")
equal(answer.usage.completion_tokens, #own.output, "completion_tokens")
for i, entry in ipairs(answer.choices[1].logprobs.content) do
  equal(entry.logprob, tonumber(("%.17g"):format(own.logprobs[i].logprob)), "logprob " .. i)
  equal(#entry.top_logprobs, 2, "alternatives")
  equal(string.char(unpack(entry.bytes)), model.tokenizer:bytes(own.output[i]), "bytes")
end

body.stream, body.stream_options = true, { include_usage = true }
local text = post("/v1/chat/completions", body)
local last
local list, said, measured = events(text), {}, {}
for _, event in ipairs(list) do
  local choice = event.choices and event.choices[1]
  if choice then
    said[#said + 1] = choice.delta.content
    for _, entry in ipairs(choice.logprobs ~= q.json.null and choice.logprobs.content or {}) do
      measured[#measured + 1] = entry.logprob
    end
  end
end
equal(table.concat(said), own.text, "streamed text")
equal(#measured, #own.output, "streamed logprobs")
equal(list[#list], "[DONE]", "the end")
equal(list[#list - 1].usage.completion_tokens, #own.output, "usage at the end")
equal(list[1].choices[1].delta.role, "assistant", "the first chunk")

-- n answers have seeds of their own; the first is that of n = 1. Parts of content are texts.
answer = post("/v1/chat/completions", { messages = { { role = "user", content = {
  { type = "text", text = "Where is " }, { type = "text", text = "the hat?" } } } }, temperature = 2, top_p = 0.99,
  seed = 7, max_completion_tokens = 24, n = 2 })
equal(#answer.choices, 2, "choices")
equal(answer.choices[1].message.content, own.text, "of parts")
assert(answer.choices[2].message.content ~= own.text)

-- JSON by a schema.
answer = post("/v1/chat/completions", { messages = asked, temperature = 0, max_tokens = 60, response_format = {
  type = "json_schema", json_schema = { name = "x", schema = { type = "object", required = { "n" },
    additionalProperties = false, properties = { n = { type = "integer", minimum = 1, maximum = 9 } } } } } })
local n = q.json.decode(answer.choices[1].message.content).n
assert(n >= 1 and n <= 9)

-- ---------------------------------------------------------------- Anthropic's messages

local likeliest = engine:submit { messages = { { role = "system", content = "Be brief." }, asked[1] }, temperature = 0,
  max_tokens = 24 }
engine:finish()
local theirs = { model = "tiny", max_tokens = 24, temperature = 0, system = "Be brief.",
  messages = { { role = "user", content = { { type = "text", text = "Where is the hat?" } } } } }
answer = post("/v1/messages", theirs)
equal(answer.content[1].text, likeliest.text, "a block of text")
equal(answer.stop_reason, likeliest.finish == "length" and "max_tokens" or "end_turn", "stop_reason")
equal(answer.usage.input_tokens + answer.usage.cache_read_input_tokens, likeliest.prompt_tokens, "input_tokens")
theirs.stop_sequences = { likeliest.text:sub(4, 6) }
equal(post("/v1/messages", theirs).stop_sequence, theirs.stop_sequences[1], "stop_sequence")
theirs.stop_sequences, theirs.stream = nil, true
said = {}
for _, event in ipairs(events(post("/v1/messages", theirs))) do
  if event.type == "content_block_delta" then said[#said + 1] = event.delta.text end
  last = event.type
end
equal(table.concat(said), likeliest.text, "streamed blocks")
equal(last, "message_stop", "the end of messages")
theirs.stream, theirs.max_tokens = nil, nil
equal(post("/v1/messages", theirs, 400).error.type, "invalid_request_error", "their form of errors")
answer = post("/v1/messages/count_tokens", { model = "tiny", system = "Be brief.", messages = theirs.messages })
equal(answer.input_tokens, likeliest.prompt_tokens, "counted")

-- ---------------------------------------------------------------- OpenAI's responses

local created = { input = "Where is the hat?", instructions = "Be brief.", temperature = 0, max_output_tokens = 24 }
answer = post("/v1/responses", created)
equal(answer.output[1].content[1].text, likeliest.text, "a response")
equal(answer.usage.output_tokens, #likeliest.output, "output_tokens")
local _, again = get("/v1/responses/" .. answer.id)
equal(q.json.decode(again).id, answer.id, "kept")
local second = engine:submit { messages = { { role = "system", content = "Be brief." }, asked[1],
  { role = "assistant", content = likeliest.text }, { role = "user", content = "And now?" } }, temperature = 0,
  max_tokens = 24 }
engine:finish()
created.previous_response_id, created.input = answer.id, { { role = "user", content = "And now?" } }
equal(post("/v1/responses", created).output[1].content[1].text, second.text, "goes on")
created.stream, created.store = true, false
said = {}
local told = events(post("/v1/responses", created))
equal(table.remove(told), "[DONE]", "the end of a response's stream")
for i, event in ipairs(told) do
  equal(event.sequence_number, i - 1, "sequence_number")
  if event.type == "response.output_text.delta" then said[#said + 1] = event.delta end
  last = event
end
equal(table.concat(said), second.text, "streamed response")
equal(last.response.output[1].content[1].text, second.text, "the whole at the end")
equal(get("/v1/responses/" .. last.response.id), 404, "not stored")
created.previous_response_id = "resp-other"
equal(post("/v1/responses", created, 400).error.param, "previous_response_id", "not known")
answer = post("/v1/responses", { input = "Where is the hat?", max_output_tokens = 1, text = { format = q.json.null } })
equal(answer.status .. "/" .. answer.output[1].status, "incomplete/incomplete", "an answer that is cut off")

-- A step that fails ends a stream with an error, and with the response as failed.
local step = server.models[1].engine.step
server.models[1].engine.step = function() error("broken", 0) end
told = events(post("/v1/responses", { input = "Where is the hat?", stream = true }))
server.models[1].engine.step = step
equal(table.remove(told), "[DONE]", "the end of a failure")
equal(told[#told - 1].type .. "/" .. told[#told - 1].error.type, "error/server_error", "a failure is told")
equal(told[#told].type .. "/" .. told[#told].response.status, "response.failed/failed", "a response that failed")
equal(told[#told].response.error.code, "server_error", "why it failed")

-- ---------------------------------------------------------------- ids of tokens

local function joined(path, asking)
  local whole, all = post(path, asking).choices[1].token_ids, {}
  asking.stream = true
  for _, event in ipairs(events(post(path, asking))) do
    for _, id in ipairs(event ~= "[DONE]" and event.choices[1].token_ids or {}) do all[#all + 1] = id end
  end
  equal(table.concat(all, " "), table.concat(whole, " "), "streamed ids")
  return table.concat(whole, " ")
end
equal(joined("/v1/chat/completions", { messages = asked, temperature = 2, top_p = 0.99, seed = 7, max_tokens = 24,
  return_token_ids = true }), table.concat(own.output, " "), "ids of a chat")
local begun = engine:submit { prompt = "The hat is", temperature = 0, max_tokens = 8 }
engine:finish()
equal(joined("/v1/completions", { prompt = "The hat is", temperature = 0, max_tokens = 8, return_token_ids = true }),
  table.concat(begun.output, " "), "ids of a completion")

-- ---------------------------------------------------------------- completions

local prompted = engine:submit { prompt = "The hat is", temperature = 0, max_tokens = 8, logprobs = 1,
  prompt_logprobs = 1 }
engine:finish()
answer = post("/v1/completions", { prompt = "The hat is", temperature = 0, max_tokens = 8, logprobs = 1,
  echo = true })
equal(answer.choices[1].text, "The hat is" .. prompted.text, "echo")
local logprobs = answer.choices[1].logprobs
equal(#logprobs.tokens, prompted.prompt_tokens + #prompted.output, "tokens of echo")
equal(logprobs.token_logprobs[1], q.json.null, "nothing before the first")
equal(logprobs.token_logprobs[2], tonumber(("%.17g"):format(prompted.prompt_logprobs_list[2].logprob)), "of the prompt")
equal(logprobs.text_offset[2], #logprobs.tokens[1], "offset")
-- A harness leaves out the last token, which it asks for beyond the prompt: there is one, even if it ends the answer.
local ends = engine:submit { prompt = "The dog, ?", temperature = 0, max_tokens = 1 }
engine:finish()
answer = post("/v1/completions", { prompt = "The dog, ?", temperature = 0, max_tokens = 1, logprobs = 1, echo = true })
logprobs = answer.choices[1].logprobs
equal(#ends.output, 0, "the model ends there")
equal(#logprobs.tokens, ends.prompt_tokens + 1, "the prompt's tokens and the one that ends it")
equal(logprobs.tokens[#logprobs.tokens], model.tokenizer:bytes(ends.stop_id), "the token that ends it")
equal(answer.choices[1].text, "The dog, ?", "its text is not the answer's")
answer = post("/v1/completions", { prompt = { "The hat is", "The dog" }, temperature = 0, max_tokens = 8 })
equal(answer.choices[1].text, prompted.text, "the first of two")
answer = post("/v1/completions", { prompt = request.ids(model, { prompt = "The hat is" }), temperature = 0,
  max_tokens = 8, stop = prompted.text:sub(3, 4) })
equal(answer.choices[1].text, prompted.text:match("^(.-)" .. prompted.text:sub(3, 4):gsub("%p", "%%%0")), "stop")
equal(answer.choices[1].finish_reason, "stop", "stopped")

-- ---------------------------------------------------------------- what is refused

local function refused(body_or_text, param, path, expected)
  local found = post(path or "/v1/chat/completions", body_or_text, expected or 400)
  equal(found.error.param, param or q.json.null, "param")
  assert(found.error.type == "invalid_request_error" and #found.error.message > 10)
end
local function with(fields)
  local all = { messages = asked, max_tokens = 4 }
  for name, value in pairs(fields) do all[name] = value end
  return all
end
refused("{", nil)
refused("[]", nil)
refused({}, "messages")
refused(with { messages = {} }, "messages")
refused(with { messages = { { role = "wizard", content = "x" } } }, "messages[0].role")
refused(with { messages = { { role = "user" } } }, "messages[0].content")
refused(with { messages = { { role = "user", content = { { type = "image_url" } } } } }, "messages[0].content[0]")
refused(with { temperature = 3 }, "temperature")
refused(with { temperature = "warm" }, "temperature")
refused(with { max_tokens = 1.5 }, "max_tokens")
refused(with { tempereture = 1 }, "tempereture")
refused(with { stream_options = { include = true } }, "stream_options.include")
refused(with { store = true }, "store")
refused(with { logit_bias = { ["99999"] = 1 } }, "logit_bias")
refused(with { top_logprobs = 3 }, "top_logprobs")
refused(with { stop = { "" } }, "stop")
refused(with { response_format = { type = "xml" } }, "response_format.type")
refused(with { model = "gpt-4" }, "model", nil, 404)
refused({ prompt = { {} } }, "prompt", "/v1/completions")
refused({ prompt = { ("x,"):rep(16):match(("(x),"):rep(16)) }, n = 128, max_tokens = 1 }, "n", "/v1/completions")
equal(#server.models[1].engine.waiting, 0, "all of them are gone")
equal(get "/nowhere", 404, "no such path")
post("/health", {}, 405)

-- ---------------------------------------------------------------- the rest

equal(get "/health", 200, "health")
equal(get "/ready", 200, "ready")
local _, models = get "/v1/models"
equal(q.json.decode(models).data[1].id, "tiny", "models")
equal(get "/v1/models/tiny", 200, "a model")
equal(get "/v1/models/other", 404, "no model")
answer = post("/tokenize", { content = "The hat" })
local ids = answer.tokens
answer = post("/detokenize", { tokens = ids })
equal(answer.content, "The hat", "there and back")
answer = post("/apply-template", { messages = asked })
assert(answer.prompt:find("Where is the hat?", 1, true) and answer.prompt:find "assistant\n$")

-- ---------------------------------------------------------------- embeddings and adapters

answer = post("/v1/embeddings", { input = { "The hat", "The dog is here" }, encoding_format = "float" })
local expected
local function expect_embedding(data)
  local mean = model:hidden("The dog is here"):to("f32"):mean(1)
  expected = (mean / mean:norm()):table()
  for k, value in ipairs(data.embedding) do assert(math.abs(value - expected[k]) < 1e-6) end
end
expect_embedding(answer.data[2])
local coded = post("/v1/embeddings", { input = "The hat", encoding_format = "base64" }).data[1].embedding
equal(#coded, 4 * math.ceil(4 * #expected / 3), "length of base64")
answer = post("/v1/rerank", { query = "The hat", documents = { "The dog is here", "The hat" }, top_n = 1 })
equal(answer.results[1].index, 1, "the same text is nearest")
equal(#answer.results, 1, "top_n")

local folder = require("scratch").folder
model:lora { rank = 2, alpha = 4, seed = 1 }
for i, parameter in ipairs(model.adapter.parameters) do
  parameter.tensor:copy(q.randn(parameter.tensor:shape(), { std = 0.2, seed = 3, subsequence = i }))
end
model:save_adapter(folder .. "/one")
local plain = q.load("recipes/tiny", { dtype = "f32" })
local rooted = require("qeng.server").new {
  models = { { "tiny", plain } }, http = listener, root = folder, engine = { max_batch = 4 },
}
local first = server
server = rooted
local with_one = { prompt = "The hat is", temperature = 0, max_tokens = 8, model = "one" }
post("/v1/completions", with_one, 404)
post("/lora-adapters/load", { name = "one", path = "./one" })
post("/lora-adapters/load", { name = "two", path = "../../../../etc" }, 403)
post("/lora-adapters/load", { name = "tiny", path = "one" }, 400)
local under = plain:engine()
local function expect_text(factor)
  local adapter = plain:read_adapter(folder .. "/one")
  for _, lora in pairs(adapter.layers) do lora.scale = lora.scale * factor end
  local r = under:submit { prompt = "The hat is", temperature = 0, max_tokens = 8, adapter = adapter }
  under:finish()
  return r.text
end
local one = expect_text(1)
assert(one ~= prompted.text)
equal(post("/v1/completions", with_one).choices[1].text, one, "under the adapter")
expect_embedding(post("/v1/embeddings", { input = "The dog is here", model = "one" }).data[1])
post("/lora-adapters", q.json.array { { id = 0, scale = 0.5 } })
equal(post("/v1/completions", with_one).choices[1].text, expect_text(0.5), "half of it")
post("/lora-adapters", q.json.array { { id = 0, scale = 0 } })
equal(post("/v1/completions", with_one).choices[1].text, prompted.text, "none of it")
equal(q.json.decode(select(2, get "/lora-adapters"))[1].scale, 0, "listed")
post("/lora-adapters/unload", { name = "one" })
post("/v1/completions", with_one, 404)
equal(get "/props", 200, "props")
equal(get "/slots", 200, "slots")
post("/infill", { input_prefix = "a", input_suffix = "b" }, 400)

-- Models of a folder are loaded when they are named; one stays, unless it is busy.
for _, name in ipairs { "a", "b" } do
  q.fs.mkdir(folder .. "/models/" .. name)
  for _, file in ipairs(q.fs.list "recipes/tiny") do
    q.fs.copy("recipes/tiny/" .. file, ("%s/models/%s/%s"):format(folder, name, file))
  end
end
server = require("qeng.server").new { dir = folder .. "/models", keep = 1, http = listener, load = { dtype = "f32" } }
local hat = { prompt = "The hat is", temperature = 0, max_tokens = 8 }
for _, name in ipairs { "a", "b", "a" } do
  hat.model = name
  equal(post("/v1/completions", hat).choices[1].text, prompted.text, "of the folder")
  equal(#server.models, 1, "one stays")
end
equal(#q.json.decode(select(2, get "/v1/models")).data, 2, "both are listed")
hat.stream, hat.max_tokens, hat.ignore_eos = true, 500, true
local busy = listener:put("POST", "/v1/completions", q.json.encode(hat))
server:turn(0)
hat.model = "b"
equal(post("/v1/completions", hat, 503).error.type, "server_error", "busy")
listener:leave(busy)
server:turn(0)
server = first

-- A route of one's own.
server:route("GET", "/hello/{name}", function(call) call:reply(200, { hello = call.params.name }) end)
_, text = get "/hello/you"
equal(q.json.decode(text).hello, "you", "own route")
server:route("GET", "/broken", function() error "oh" end)
local stderr = io.stderr
io.stderr = { write = function(_, line) text = line end }
equal(get "/broken", 500, "a broken route")
io.stderr = stderr
assert(text:find("/broken", 1, true) and text:find("oh", 1, true))

-- A log that cannot be written is said once, and stops no answer.
local logging, said_once = server.log, {}
io.stderr = { write = function(_, line) said_once[#said_once + 1] = line end }
server.log = function() q.error("io", "no space left on device") end
equal(get "/health", 200, "without a log")
equal(get "/health", 200, "again")
server.log, io.stderr = logging, stderr
equal(#said_once, 1, "said once")

-- A client that leaves frees its request.
local long = with { max_tokens = 500, temperature = 1, ignore_eos = true, stream = true }
local id = listener:put("POST", "/v1/chat/completions", q.json.encode(long))
for _ = 1, 5 do server:turn(0) end
equal(#server.models[1].engine.running, 1, "running")
listener:leave(id)
server:turn(0)
equal(#server.models[1].engine.running, 0, "left")
equal(next(server.calls), nil, "no call")
equal(lines[#lines].status, 499, "logged")

-- A full queue.
local held = {}
for i = 1, 9 do held[i] = listener:put("POST", "/v1/chat/completions", q.json.encode(long)) end
server:turn(0)
equal(listener.answers[held[9]].status, 429, "too many")
equal(listener.answers[held[9]].headers["retry-after"], "1", "when to come back")
for i = 1, 8 do listener:leave(held[i]) end
server:turn(0)

-- Clients take turns in the queue, and a smaller priority comes first.
local order = {}
local function queued(name, client, more)
  local asking = with { max_tokens = 1, temperature = 0, priority = more }
  order[listener:put("POST", "/v1/chat/completions", q.json.encode(asking), { authorization = client })] = name
end
local blocked = {}
for i = 1, 4 do blocked[i] = listener:put("POST", "/v1/chat/completions", q.json.encode(long)) end
server:turn(0)
queued("a1", "a")
queued("a2", "a")
queued("b1", "b")
queued("first", "a", -1)
server:turn(0)
local names = {}
for i, r in ipairs(server.models[1].engine.waiting) do
  for call_id, call in pairs(server.calls) do
    if call.requests[1].request == r then names[i] = order[call_id] end
  end
end
equal(table.concat(names, " "), "first a1 b1 a2", "turns")
for i = 1, 4 do listener:leave(blocked[i]) end
for call_id in pairs(order) do run(call_id) end

-- Of paths that fit, the first is meant.
for _, pair in ipairs { { "POST", "/deep/{name*}/wave" }, { "GET", "/deep/{name*}" } } do
  local method, path = unpack(pair)
  server:route(method, path, function(call) call:reply(200, { [method] = call.params.name }) end, { says = path })
end
equal(post("/deep/a/b/wave", "{}").POST, "a/b", "the longer path")
equal(q.json.decode(select(2, get "/deep/a/b")).GET, "a/b", "the other")
id = listener:put("GET", "/deep/a/wave")
run(id)
equal(listener.answers[id].status, 405, "a method that the first path has not")
equal(listener.answers[id].headers.allow, "POST", "Allow")

-- Prompts are in no log line; figures count what was answered.
for _, line in ipairs(lines) do assert(not q.json.encode(line):find "Where") end
_, text = get "/metrics"
assert(text:find 'qeng_requests_total{method="POST",path="/v1/chat/completions",status="200"} 10\n', text)
assert(text:find 'qeng_tokens_total{kind="output"} %d+' and text:find 'qeng_time_to_first_token_seconds_count %d+')

server.log_text = true
local answered = post("/v1/completions", { prompt = "The hat is", max_tokens = 4, temperature = 0 }).choices[1].text
equal(q.json.decode(lines[#lines].body).prompt, "The hat is", "what was asked, for who wants that")
equal(lines[#lines].texts[1], answered, "and what was answered")
server.log_text = nil
assert(text:find(('qeng_memory_bytes{name="weights"} %d\n'):format(q.memory().weights.bytes)), text)
assert(not text:find 'qeng_device_share{', "nothing is measured without limits")

-- With limits one step of many is measured against them.
server.limits = { bandwidth = 1e12, flops_f32 = 1e15, flops_bf16 = 1e15 }
local first_steps = server.models[1].engine.steps
while server.models[1].engine.steps < first_steps + 300 do
  post("/v1/completions", { prompt = "The hat is", max_tokens = 100, ignore_eos = true })
end
_, text = get "/metrics"
for _, name in ipairs { "bytes", "flops", "share" } do
  local value = tonumber(text:match(('qeng_device_%s{model="tiny"} (%%S+)'):format(name)))
  assert(value and value > 0 and value < 1e12, name)
end
assert(text:find 'qeng_device_limit{of="bandwidth"} 1000000000000\n')

-- A stream that is silent for long says that it lives; the others are as they were.
id = listener:put("POST", "/v1/completions", q.json.encode { prompt = "The hat", max_tokens = 40, stream = true })
server.ping, server.wake_at = 0, 0
server:turn(0)
server.wake_at = 0
run(id)
equal(select(2, listener.answers[id].body:gsub("%f[:]: waiting\n\n", "")) >= 1, true, "pings")
equal(events(listener.answers[id].body)[1].object, "text_completion", "events beside them")
server.ping = 15

-- The Grafana dashboard draws figures that there are.
local drawn = 0
for _, panel in ipairs(q.json.decode(q.fs.read "scripts/grafana.json").panels) do
  for _, target in ipairs(panel.targets) do
    for name in target.expr:gmatch "qeng_[%w_]+" do
      drawn = drawn + 1
      assert(text:find("# TYPE " .. name:gsub("_bucket$", "") .. " ", 1, true), name)
    end
  end
end
assert(drawn > 10)

-- The OpenAPI document has every route, with the fields that it takes.
local document = q.json.decode(select(2, get "/openapi.json"))
for _, route in ipairs(server.routes) do
  local entry = document.paths[route.path:gsub("%*}", "}")][route.method:lower()]
  assert(entry.summary == route.about.says)
  assert(route.about.says or route.path:find "hello" or route.path:find "broken")
  if route.about.fields then
    local schema = entry.requestBody.content["application/json"].schema
    for _, field in ipairs(route.about.fields) do
      local kinds = table.concat(schema.properties[field[1]].type, " ")
      equal(kinds:find "null" ~= nil, not field.required, field[1] .. " may be null")
    end
  end
end
equal(#document.paths["/health"].get.security, 0, "/health asks for no key")
local unmade = listener:put("MAKE-UP", "/v1/models")
run(unmade)
equal(listener.answers[unmade].status .. listener.answers[unmade].headers.allow, "405GET", "what a path has")
assert(select(2, get "/metrics"):find 'qeng_requests_total{method="other",path="none",status="405"} 1\n')

-- The end: what runs is answered, what comes is not.
id = listener:put("POST", "/v1/chat/completions", q.json.encode(with { max_tokens = 8, temperature = 0 }))
server:turn(0)
server:drain()
equal(get "/ready", 503, "draining")
refused = listener:put("POST", "/v1/chat/completions", q.json.encode(with {}))
run(id, refused)
equal(listener.answers[id].status, 200, "answered")
equal(listener.answers[refused].status, 503, "refused")
server.draining = server.draining - 100
server:run()
assert(listener.stopped and listener.closed)
print "ok"
