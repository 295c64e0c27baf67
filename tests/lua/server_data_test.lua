-- What the dashboard shows of datasets, caches, kernels and plans, as routes: what they tell is what the files and the
-- engine say, damage is found where it was made, and paths that leave the root are refused.
package.path = (arg[0]:match "^(.*/)" or "./") .. "?.lua;" .. package.path
local q = require "qeng"

local fake = require "server_fake"
local scratch = require "scratch"

q.device { device = "cpu", threads = 1 }
local root = scratch.at "root"
q.fs.mkdir(root .. "/deep/er")
local model = q.load("recipes/tiny", { dtype = "f32" })
local listener = fake.new()
local server = require("qeng.server").new { models = { { "tiny", model } }, http = listener, root = root }
local function ask(method, path, body, expected) return listener:ask(server, method, path, body, expected) end
local function equal(a, b, what)
  if a ~= b then error(("%s: %s, expected %s"):format(what, tostring(a), tostring(b)), 2) end
end

-- ---------------------------------------------------------------- datasets

local tokenizer = model.tokenizer
local question, answer = tokenizer:encode "Where is the hat?", tokenizer:encode " Grüße: on the table."
local tokens, mask = {}, {}
for _, id in ipairs(question) do tokens[#tokens + 1], mask[#mask + 1] = id, 0 end
for _, id in ipairs(answer) do tokens[#tokens + 1], mask[#mask + 1] = id, 1 end
local function write(path, meta, records)
  local writer = q.ndp.create(path, { meta = meta })
  for _ = 1, records do writer:add(tokens, mask, { src = 3, dst = 5 }) end
  writer:payload("utf8", "a note", { src = 0x42 })
  writer:finish()
end
write(root .. "/deep/er/ours.qubgpu", { tokenizer = "tiny", tokenizer_hash = tokenizer:hash() }, 12)
write(root .. "/other.qubgpu", { tokenizer = "another", tokenizer_hash = "00" }, 2)
q.fs.write(root .. "/broken.qubgpu", "QUBGPU and then nothing")
write(scratch.at "outside.qubgpu", {}, 1)
assert(os.execute(("ln -s ../outside.qubgpu '%s/link.qubgpu' && ln -s .. '%s/deep/up'"):format(root, root)))

local listed = ask("GET", "/api/datasets")
equal(listed.more, false, "more than it looks at")
local names = {}
for i, each in ipairs(listed.datasets) do names[i] = each.name end
equal(table.concat(names, " "), "broken.qubgpu other.qubgpu deep/er/ours.qubgpu", "the list")
local broken, ours = listed.datasets[1], listed.datasets[3]
assert(broken.problem:find("broken.qubgpu", 1, true) and not broken.problem:find(root, 1, true), broken.problem)
equal(ours.records, 13, "records with the payload")
equal(ours.tokens, 12 * #tokens, "tokens")
equal(ours.trained, 12 * #answer, "trained tokens")
equal(ours.size, #q.fs.read(root .. "/deep/er/ours.qubgpu"), "size")

local told = ask("GET", "/api/datasets/deep/er/ours.qubgpu")
equal(told.tokenizer, "tiny", "whose tokenizer it is")
equal(told.meta.tokenizer_hash, tokenizer:hash(), "meta")
equal(told.totals.payloads, 1, "payloads")
equal(told.statistics.duplicates, 11, "duplicates")
equal(told.statistics.percentiles[3].tokens, #tokens, "the median")
equal(told.statistics.sources[1].source, "0x03 chat", "the source")

local function records(name, query, expected)
  local id = listener:put("GET", "/api/datasets/" .. name .. "/records")
  listener.events[#listener.events].query = query
  for _ = 1, 100 do
    if not listener.answers[id] then server:turn(0) end
  end
  equal(listener.answers[id].status, expected or 200, name)
  return q.json.decode(listener.answers[id].body)
end
local page = records("deep/er/ours.qubgpu", { first = "11", count = "5" })
equal(#page.data, 2, "records at the end")
local one, note = page.data[1], page.data[2]
equal(#one.spans, 2, "stretches")
equal(one.spans[1].text, "Where is the hat?", "what is not trained")
equal(one.spans[1].trained, false, "the question")
equal(one.spans[2].text, " Grüße: on the table.", "what is trained")
equal(one.spans[2].trained, true, "the answer")
equal(one.trained, #answer, "trained tokens of a record")
equal(note.type, "utf8", "a payload's type")
equal(note.spans[1].text, "a note", "a payload")
local ids = records("other.qubgpu", { count = "1" })
equal(ids.tokenizer, q.json.null, "nobody's tokenizer")
equal(ids.data[1].spans[1].text, table.concat(question, " ") .. " ", "ids in the place of a text")
equal(#records("other.qubgpu", { first = "1000" }).data, 0, "records past the end")
for _, query in ipairs { { first = "-1" }, { first = "x" }, { count = "51" }, { count = "1.5" } } do
  records("other.qubgpu", query, 400)
end

-- A flipped byte of record 7 is found in it, and the record is shown as damaged.
local function verify(name, expected) return ask("POST", ("/api/datasets/%s/verify"):format(name), nil, expected) end
local whole = verify "deep/er/ours.qubgpu"
assert(whole.ok and whole.records == 13 and #whole.damaged == 0)
local bytes = q.fs.read(root .. "/deep/er/ours.qubgpu")
local stored = (told.totals.bytes - 8 - #"a note") / 12
local at = 4096 + 7 * stored + 10
q.fs.write(root .. "/flipped.qubgpu", bytes:sub(1, at) .. string.char((bytes:byte(at + 1) + 1) % 256)
  .. bytes:sub(at + 2))
local damage = verify "flipped.qubgpu"
assert(not damage.ok and damage.bad_records == 1 and damage.bad_blocks == 1)
equal(damage.damaged[1].record, 7, "the damaged record")
equal(damage.damaged[1].offset, 4096 + 7 * stored, "its frame")
equal(records("flipped.qubgpu", { first = "7", count = "1" }).data[1].damaged, true, "the record")
equal(ask("GET", "/api/datasets/flipped.qubgpu").statistics.damaged, 1, "damage in the statistics")

local refused = ask("GET", "/api/datasets/broken.qubgpu", nil, 422).error.message
assert(refused:find("broken.qubgpu", 1, true) and not refused:find(root, 1, true), refused)
verify("broken.qubgpu", 422)
ask("GET", "/api/datasets/none.qubgpu", nil, 404)
for _, name in ipairs { "link.qubgpu", "../outside.qubgpu", "deep/up/../outside.qubgpu" } do
  ask("GET", "/api/datasets/" .. name, nil, 403)
  verify(name, 403)
end

-- A client that leaves ends its verification.
local leaving = listener:put("POST", "/api/datasets/deep/er/ours.qubgpu/verify")
listener:leave(leaving)
server:turn(0)
assert(not server.calls[leaving])

-- ---------------------------------------------------------------- caches

local function caches() return ask("GET", "/api/kv").models[1] end
local empty = caches()
equal(empty.used, 0, "pages in use of an idle model")
equal(empty.page_bytes, 16 * 3 * 2 * 128 * 4, "16 tokens, 3 layers, keys and values of 4 heads of 32, f32")
equal(empty.kinds[1].layers, 3, "layers of a kind")
equal(empty.kinds[1].bytes, empty.page_bytes, "bytes of the only kind")
equal(empty.kinds[1].snapshots, false, "keys and values")
equal(#empty.requests, 0, "requests of an idle model")

local prompt = ("Where is the hat? "):rep(12)
local length = #tokenizer:encode(prompt)
assert(length > 40)
local function complete(text)
  ask("POST", "/v1/completions", { prompt = text, max_tokens = 1, ignore_eos = true })
end
complete(prompt)
local first = caches()
equal(first.beginnings[1].pages, math.floor(length / 16), "remembered pages")
equal(first.beginnings[1].reused, 0, "nobody took it yet")
equal(first.beginnings[1].model, "tiny", "whose they are")
complete(prompt)
complete(prompt)
equal(caches().beginnings[1].reused, 2, "taken twice")
equal(caches().remembered, first.remembered, "no page more")
equal(first.idle, first.remembered, "what no request has")

local running = listener:put("POST", "/v1/completions", q.json.encode { prompt = prompt, max_tokens = 500,
  ignore_eos = true })
for _ = 1, 4 do server:turn(0) end
local busy = caches()
equal(#busy.requests, 1, "a request that runs")
equal(busy.requests[1].pages, math.ceil(busy.requests[1].tokens / 16), "its pages")
assert(busy.requests[1].reused >= 32 and busy.used >= busy.requests[1].pages and busy.idle < busy.remembered)
listener:leave(running)
server:turn(0)
equal(caches().used, 0, "pages in use once it left")

-- ---------------------------------------------------------------- kernels

local times = ask("POST", "/api/kernels", { model = "tiny", prompt = 32 })
local function check(step, tokens_)
  local ms, share, names_ = 0, 0, {}
  for _, op in ipairs(step.ops) do
    ms, share, names_[op.name] = ms + op.ms, share + op.step_share, op
    assert(op.calls > 0 and op.bytes > 0 and op.limit_share >= 0)
  end
  assert(math.abs(ms - step.ops_ms) < 1e-6 * ms and math.abs(share - 1) < 1e-6)
  local products = assert(names_.row_linear, "no products")
  local weights = 0
  for _, layer in ipairs(model.linears) do weights = weights + layer.weight:elements() end
  -- Every weight once a token, the head once.
  equal(products.flops, 2 * (tokens_ * weights + model.head:elements()), "work of the products")
end
check(times.prefill, 32)
check(times.decode, 1)
assert(times.limits.bandwidth > 0 and times.prefill.ms > 0)
ask("POST", "/api/kernels", { prompt = 257 }, 400)  -- more than a step of the engine
ask("POST", "/api/kernels", { prompt = 0 }, 400)
ask("POST", "/api/kernels", { model = "none" }, 404)
equal(caches().used, 0, "pages in use after a measurement")

-- ---------------------------------------------------------------- plans

local function plan(body, expected)
  local id = listener:put("POST", "/api/plan", q.json.encode(body))
  local deadline = q.time() + 60
  while not listener.answers[id] and q.time() < deadline do server:turn(0) end
  equal(listener.answers[id].status, expected or 200, listener.answers[id].body)
  return q.json.decode(listener.answers[id].body)
end
local said = plan { model = "tiny", mode = "lora", rank = 8, device_budget = "1G" }
assert(said.text:find("tiny: ", 1, true) == 1 and said.text:find("Fits in 1.0 GB", 1, true), said.text)
assert(plan({ model = "1b", mode = "inference", device_budget = "300M" }).text:find "Does not fit")
local elsewhere = plan({ model = "1b", mode = "lora", device = "gb10", examples = 24315, example_tokens = 500 }).text
assert(elsewhere:find("DGX Spark", 1, true) and elsewhere:find("24315 examples", 1, true), elsewhere)
plan({ model = "1b", mode = "lora", device = "cuda" }, 400)
plan({ model = "1b", mode = "inference", examples = 3 }, 422)
q.fs.mkdir(root .. "/shape")
q.fs.write(root .. "/shape/config.json", "{}")
local why = plan({ model = "shape", mode = "lora" }, 422).error.message
assert(why:find("shape", 1, true) and not why:find(root, 1, true), why)
plan({ model = "../outside" }, 403)
plan({ model = "tiny", mode = "lora", stored = "--model-file=x.lua" }, 422)
plan({ model = "tiny", model_file = "x.lua" }, 400)

-- ---------------------------------------------------------------- runs

q.fs.mkdir(root .. "/run")
local lines = {}
for step = 1, 500 do lines[step] = q.json.encode { step = step, loss = 500 / step, tok_s = 7 } end
lines[501] = q.json.encode { step = 500, eval_loss = 2 }
q.fs.write(root .. "/run/metrics.jsonl", table.concat(lines, "\n") .. "\n")
local run = ask("GET", "/api/runs").runs[1]
assert(run.name == "run" and run.step == 500 and run.loss == 1 and run.live == false)

-- Without a root there are no datasets, and none is opened.
local bare_listener = fake.new()
local bare = require("qeng.server").new { models = {}, http = bare_listener }
equal(#bare_listener:ask(bare, "GET", "/api/datasets").datasets, 0, "datasets without a root")
bare_listener:ask(bare, "GET", "/api/datasets/other.qubgpu", nil, 403)
equal(#bare_listener:ask(bare, "GET", "/api/kv").models, 0, "caches without a model")
print "ok"
