-- By hand: a model's layers lie on three workers behind proxies of a bad network (tests/flaky_proxy.h). Workers are
-- killed, stopped, told to end, cut off, slowed, sent flipped bits, and lose what they were sent, while requests run.
-- Each request gets the tokens of one process, and no step takes over 5 s.
--   QENG_KEYS=$(mktemp -d) FAULTS=100 build/release/qeng tests/campaigns/peer_faults.lua MODEL     needs flaky_proxy
--   built; MINUTES=60 instead: as many as come in that time
local fleets = require "qeng.peers.fleet"
local files = require "qeng.peers.files"
local q = require "qeng"

local path = assert(arg[1], "usage: peer_faults.lua MODEL")
local faults, longest_step = tonumber(os.getenv "FAULTS" or 100), tonumber(os.getenv "STEP" or 5)
local minutes = tonumber(os.getenv "MINUTES" or "")
local proxy_program = os.getenv "PROXY" or "build/release/tests/flaky_proxy"
math.randomseed(tonumber(os.getenv "QENG_SEED" or 4711))
q.device { threads = 1 }
local folder = os.tmpname()
os.remove(folder)
q.fs.mkdir(folder)
local keys = q.keys()

-- ---------------------------------------------------------------- workers and proxies

local workers = {}
local waiter = q.peers.open {}  -- its wait is a sleep

local function start(worker)
  worker.output = ("%s/worker%d.log"):format(folder, worker.number)
  q.fs.remove(worker.output)
  worker.process = q.host.process({
    "recipes/worker.lua", "--listen=127.0.0.1:" .. worker.port, "--silent", "--threads=1",
    ("--cache=%s/cache%d"):format(folder, worker.number),
  }, { output = worker.output })
  while worker.port == 0 do
    waiter:wait(0.02)
    worker.port = tonumber((q.fs.kind(worker.output) and q.fs.read(worker.output) or ""):match ":(%d+)\n") or 0
  end
end

local function order(worker, text)
  worker.proxy:write(text, "\n")
  worker.proxy:flush()
end

for i = 1, 3 do
  local worker = { number = i, port = 0 }
  workers[i] = worker
  start(worker)
  local output = ("%s/proxy%d"):format(folder, i)
  worker.proxy = io.popen(("%s 127.0.0.1:%d >%s 2>&1"):format(proxy_program, worker.port, output), "w")
  repeat
    waiter:wait(0.02)
    worker.address = q.fs.kind(output) and q.fs.read(output):match "^(%d+)\n"
  until worker.address
end

-- ---------------------------------------------------------------- what is asked, and what has to come

local prompts = {
  "Once upon a time there was", "The capital of France is", "def area(width, height):", "A list of costs:",
  "In the year 1873 a bridge of stone was built there, and with it came the railway, a market and three schools. ",
}
local function request(i)
  return {
    prompt = prompts[1 + i % #prompts], max_tokens = 24 + i % 40, temperature = i % 3 == 0 and 0.9 or 0, seed = i,
    stop_ids = {},
  }
end
local expected = {}
do
  local whole = q.load(path)
  local engine, list = whole:engine { max_batch = 4, context = 512 }, {}
  for i = 0, 59 do list[i] = engine:submit(request(i)) end
  engine:finish()
  for i = 0, 59 do expected[i] = list[i].text end
  engine:close()
end

-- ---------------------------------------------------------------- faults, each with what mends it later

local function signal(worker, name) os.execute(("kill -%s -%d 2>/dev/null"):format(name, worker.process:pid())) end
local kinds = {
  { "kill", function(w) signal(w, "KILL") end, start },
  { "term", function(w) signal(w, "TERM") end, start },
  { "stop", function(w) signal(w, "STOP") end, function(w) signal(w, "CONT") end },
  { "cut", function(w) order(w, "cut") end, function() end },
  { "stall", function(w) order(w, "stall") end, function(w) order(w, "go") end },
  { "delay", function(w) order(w, "delay 40") end, function(w) order(w, "delay 0") end },
  { "rate", function(w) order(w, "rate 3000000") end, function(w) order(w, "rate 0") end },
  { "corrupt", function(w) order(w, "corrupt " .. math.random(1, 20000)) end, function() end },
  { "forget", function(w)
    signal(w, "KILL")
    w.process = nil
    q.fs.remove(("%s/cache%d"):format(folder, w.number))
  end, start },
}

-- ---------------------------------------------------------------- the run

local transport = q.peers.open {}
local said = {}
local fleet = fleets.new { peers = transport, files = files.of_model(path, transport), settle = 1, say = function(text)
  said[#said + 1] = text
  if os.getenv "VERBOSE" then io.stderr:write("  ", text, "\n") end
end }
for _, worker in ipairs(workers) do fleet:dial { "127.0.0.1:" .. worker.address } end
assert(#fleet:gather(20) == 3, "workers are missing")
-- Layers in equal parts on who is there, the last part here where there are fewer than three. soon: here what would
-- have to be sent.
local layers
local function planner(ready, soon)
  layers = layers or q.load(path).config.layers
  local parts, ranges, first = 3, {}, 0
  for i = 1, parts do
    local count = math.floor(layers * i / parts) - first
    local worker = ready[i]
    for layer = first, first + count - 1 do
      if soon and worker and not fleet:has(worker, layer) then worker = nil end
    end
    ranges[i] = { worker = worker, first = first, count = count }
    first = first + count
  end
  return ranges
end
local model = fleet:load(path, {}, planner)
local engine = model:engine { max_batch = 4, context = 512 }
local running, next_request, done, wrong, slowest, over = {}, 0, 0, 0, 0, 0
local landed, hurt, next_fault, began = 0, nil, q.time() + 1, q.time()

local function more()
  if minutes then return q.time() < began + 60 * minutes end
  return landed < faults
end

-- Bytes of a process that are in memory: RssAnon, its own, or RssFile, of mapped files.
local function resident(pid, which)
  local text = q.try(q.fs.read, ("/proc/%s/status"):format(pid))
  return text and tonumber(text:match(which .. ":%s*(%d+)") or 0) * 1024 or 0
end
local told = began
local function tell_memory()
  if q.time() < told + (minutes and 6 * minutes or 60) then return end
  told = q.time()
  local parts = {}
  for i, worker in ipairs(workers) do
    parts[i] = worker.process and ("%.0f"):format(resident(worker.process:pid(), "RssAnon") / 1e6) or "-"
  end
  local own, mapped = resident("self", "RssAnon"), resident("self", "RssFile")
  print(("after %.0f s, %d faults, %d requests: %.1f MB, %.1f of files, workers %s"):format(told - began, landed, done,
    own / 1e6, mapped / 1e6, table.concat(parts, ", ")))
  io.stdout:flush()
end

while more() or hurt or #running > 0 do
  tell_memory()
  while #running < 4 and (more() or hurt) do
    local i = next_request % 60
    next_request = next_request + 1
    running[#running + 1] = { i = i, request = engine:submit(request(i)) }
  end
  local at = q.time()
  local ok, err = pcall(engine.step, engine)
  local took = q.time() - at
  if not ok then
    print(("a step failed: %s"):format(tostring(err.message or err)))
    over = over + 1
  end
  slowest = math.max(slowest, took)
  if took > longest_step then
    over = over + 1
    print(("a step took %.1f s, after %s"):format(took, hurt and hurt.what or "nothing"))
  end
  for k = #running, 1, -1 do
    local r = running[k].request
    if r.state == "done" then
      done = done + 1
      if r.text ~= expected[running[k].i] then
        wrong = wrong + 1
        print(("request %d differs: %q, expected %q"):format(running[k].i, r.text, expected[running[k].i]))
      end
      table.remove(running, k)
    end
  end
  local now = q.time()
  if hurt and now > hurt.till then
    hurt.mend(hurt.worker)
    hurt, next_fault = nil, now + 0.3 + math.random() * 1.5
  elseif not hurt and more() and now > next_fault then
    local kind, worker = kinds[math.random(#kinds)], workers[math.random(3)]
    hurt = { what = kind[1], worker = worker, mend = kind[3], till = now + 0.2 + math.random() * 3 }
    landed = landed + 1
    if os.getenv "VERBOSE" then io.stderr:write(("%d: %s worker %d\n"):format(landed, kind[1], worker.number)) end
    kind[2](worker)
  end
end
engine:close()
print(("%d faults in %.0f s, %d requests, %d wrong; %d losses, %d layers moved; slowest step %.2f s, %d over %.0f s")
  :format(landed, q.time() - began, done, wrong, fleet.lost, fleet.moved, slowest, over, longest_step))
print(("%.1f MB resident at most; key of %s"):format(q.host.peak_rss() / 1e6, keys.name))
for _, worker in ipairs(workers) do
  signal(worker, "KILL")
  worker.process = nil
end
for _, worker in ipairs(workers) do worker.proxy:close() end
q.fs.remove(folder)
os.exit(wrong + over == 0 and 0 or 1)
