-- Jobs of a server: a training runs beside it and its adapter is served, one is cancelled and resumed, one fails, one
-- is killed; paths that leave the root and options that are not offered are refused.
package.path = (arg[0]:match "^(.*/)" or "./") .. "?.lua;" .. package.path
local q = require "qeng"

local fake = require "server_fake"
local scratch = require "scratch"

q.device { device = "cpu", threads = 1 }
local root = scratch.at "root"
q.fs.mkdir(root .. "/tiny")
for _, file in ipairs(q.fs.list "recipes/tiny") do q.fs.copy("recipes/tiny/" .. file, root .. "/tiny/" .. file) end
local lines = {}
for i = 1, 24 do
  lines[i] = q.json.encode { messages = { { role = "user", content = "Number " .. i .. "?" },
    { role = "assistant", content = "It is " .. i .. "." } } }
end
q.fs.write(root .. "/data.jsonl", table.concat(lines, "\n") .. "\n")
q.fs.write(root .. "/bad.jsonl", "{nothing\n")

local listener = fake.new()
local function new()
  return require("qeng.server").new {
    models = { { "tiny", q.load(root .. "/tiny", { dtype = "f32" }) } }, http = listener, root = root,
  }
end
local server = new()
local function ask(method, path, body, expected) return listener:ask(server, method, path, body, expected) end
local function train(more, expected)
  local options = { model = "tiny", data = "data.jsonl", steps = 2, row_tokens = 64, threads = 1, save_every = 1 }
  for name, value in pairs(more) do options[name] = value end
  return ask("POST", "/api/jobs", { kind = "train", options = options }, expected or 201)
end
local function until_state(id, ...)
  local deadline = q.time() + 120
  while q.time() < deadline do
    local job = ask("GET", "/api/jobs/" .. id)
    for _, state in ipairs { ... } do
      if job.state == state then return job end
    end
    if job.state == "failed" then error(ask("GET", ("/api/jobs/%s/log"):format(id)), 2) end
  end
  error("the job is not " .. table.concat({ ... }, " or "), 2)
end
local function steps_of(id) return #ask("GET", ("/api/runs/jobs/%s/metrics"):format(id)).records end

-- A training, followed, and its adapter served.
local first, second = train {}, train {}
assert(first.state == "queued")
until_state(first.id, "running", "done")
assert(ask("GET", "/api/jobs/" .. second.id).state == "queued", "one at a time")
local done = until_state(first.id, "done")
assert(done.status == 0 and done.adapter == ("jobs/%s/adapter"):format(first.id))
assert(steps_of(first.id) >= 2 and #ask("GET", "/api/runs").runs >= 1)
ask("POST", "/lora-adapters/load", { name = "numbers", path = done.adapter })
assert(ask("POST", "/lora-adapters/load", { name = "none", path = "tiny" }, 400).error.param == "path", "no adapter")
local answer = ask("POST", "/v1/completions", { model = "numbers", prompt = "Number 1?", max_tokens = 4 })
assert(answer.model == "numbers" and answer.usage.completion_tokens <= 4)
until_state(second.id, "done")

-- Cancelled with a checkpoint, and resumed.
local long = train { steps = 100000, save_every = 100000 }
until_state(long.id, "running")
local deadline = q.time() + 60
while q.fs.kind(("%s/jobs/%s/metrics.jsonl"):format(root, long.id)) ~= "file" and q.time() < deadline do
  server:turn(0)
end
ask("POST", ("/api/jobs/%s/cancel"):format(long.id))
until_state(long.id, "cancelled")
local before = steps_of(long.id)
ask("POST", ("/api/jobs/%s/resume"):format(long.id))
until_state(long.id, "running")
deadline = q.time() + 60
while steps_of(long.id) <= before and q.time() < deadline do server:turn(0) end
assert(steps_of(long.id) > before, "it did not go on")
local function live(id)
  for _, run in ipairs(ask("GET", "/api/runs").runs) do
    if run.name == "jobs/" .. id then return run.live, run.step end
  end
end
local trains, step = live(long.id)
assert(trains and step >= before and not live(first.id), "which run goes on")

-- Killed from outside: the job has failed, and the server answers.
server.jobs:find(long.id).process:stop(true)
deadline = q.time() + 20
while ask("GET", "/api/jobs/" .. long.id).state == "running" and q.time() < deadline do server:turn(0) end
local killed = ask("GET", "/api/jobs/" .. long.id)
assert(killed.state == "failed" and killed.status == 128 + 9)
assert(live(long.id) == false, "a run that was killed goes on")
local broken = train { data = "bad.jsonl" }
local ok = pcall(until_state, broken.id, "done")
assert(not ok and ask("GET", "/api/jobs/" .. broken.id).state == "failed")
assert(ask("GET", ("/api/jobs/%s/log"):format(broken.id)):find("bad.jsonl", 1, true), "the log says why")

-- What is refused.
q.fs.write(scratch.at "outside.jsonl", lines[1])
assert(os.execute(("ln -s ../outside.jsonl '%s/link.jsonl'"):format(root)))
train({ data = "../outside.jsonl" }, 403)
train({ data = "link.jsonl" }, 403)
train({ data = scratch.at "outside.jsonl" }, 404)
ask("POST", "/api/jobs", { kind = "quantize", options = { model = "tiny", type = "--model-file=/x.lua" } }, 201)
train({ model_file = "data.jsonl" }, 400)
train({ steps = "many" }, 400)
ask("POST", "/api/jobs", { kind = "shell" }, 400)
ask("GET", "/api/jobs/none", nil, 404)
ask("GET", "/api/runs/../../etc/metrics", nil, 403)
ask("POST", ("/api/jobs/%s/resume"):format(first.id), nil, 400)

-- That last one failed by its type, which is one word and no option.
local quantized = ask("GET", "/api/jobs").data
quantized = quantized[#quantized].id
ok = pcall(until_state, quantized, "done")
local log = ask("GET", ("/api/jobs/%s/log"):format(quantized))
assert(not ok and log:find("there is no type --model-file=/x.lua", 1, true), log)

-- A full disk: a client is told, a job that ends meanwhile is noted in memory, and the server goes on.
local write, stderr, warned = q.fs.write, io.stderr, {}
local ending = train {}
until_state(ending.id, "running", "done")
q.fs.write = function() q.error("io", "no space left on device") end
io.stderr = { write = function(_, text) warned[#warned + 1] = text end }
train({}, 500)
until_state(ending.id, "done")
q.fs.write, io.stderr = write, stderr
assert(table.concat(warned):find("no space left", 1, true))

-- A file that is no job is passed over.
q.fs.mkdir(root .. "/jobs/strange")
q.fs.write(root .. "/jobs/strange/job.json", '{"id": "strange", "kind": "shell"}')

-- A new server finds them again, and the end of a server ends what runs with its checkpoint.
server = new()
assert(ask("GET", "/api/jobs/" .. first.id).state == "done")
for _, job in ipairs(ask("GET", "/api/jobs").data) do assert(job.id ~= "strange") end
ask("POST", ("/api/jobs/%s/resume"):format(long.id))
until_state(long.id, "running")
server:drain()
server:run()
server = new()
assert(ask("GET", "/api/jobs/" .. long.id).state == "stopped")
print "ok"
