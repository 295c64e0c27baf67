-- A model over 2, 3 and 5 processes of this machine, of one core each, with memory that no two share equally: the texts
-- of 50 requests at once are those of one process, and tokens a second stand beside what the plan expected.
--   QENG_KEYS=$(mktemp -d) build/release/qeng bench/workers.lua MODEL [CONTEXT]
local q = require "qeng"
local path, context = assert(arg[1], "usage: workers.lua MODEL [CONTEXT]"), tonumber(arg[2]) or 256
q.device { threads = 1 }
local folder = os.tmpname()
os.remove(folder)
q.fs.mkdir(folder)
local waiter = q.peers.open {}
local pages

local started = 0
local function start(budget)
  started = started + 1
  local output = ("%s/%d"):format(folder, started)
  local worker = { process = q.host.process({
    "recipes/worker.lua", "--listen=127.0.0.1:0", "--silent", "--threads=1", "--model=" .. path,
    ("--device-budget=%d"):format(budget),
  }, { output = output }) }
  repeat
    waiter:wait(0.02)
    assert(not worker.process:status(), output .. ": the worker has ended")
    worker.address = (q.fs.kind(output) and q.fs.read(output) or ""):match " at ([%d.:]+)\n"
  until worker.address
  return worker
end

local prompts = { "Once upon a time there was", "The capital of France is", "def area(width, height):", "A list:",
  "In the year 1873 a bridge of stone was built there, and with it came the railway, a market and three schools. " }
local function request(i, tokens)
  return {
    prompt = prompts[1 + i % #prompts], max_tokens = tokens or 20 + i % 30, temperature = i % 3 == 0 and 0.9 or 0,
    seed = i, stop_ids = {},
  }
end

-- Tokens a second of so many requests at once, the last of their context: what a plan speaks of.
local function rate(model, batch, tokens)
  local ids = {}
  for i = 1, context - tokens do ids[i] = i % 100 end
  local engine = model:engine { max_batch = batch, context = context, pages = pages, remember = false }
  local best = 0
  for _ = 1, 3 do
    local list, count = {}, 0
    for i = 1, batch do list[i] = engine:submit { ids = ids, max_tokens = tokens, temperature = 0, stop_ids = {} } end
    local function least()
      local n = math.huge
      for _, r in ipairs(list) do n = math.min(n, #r.output) end
      return n
    end
    repeat engine:step() until least() > 0
    local began = q.time()
    for _, r in ipairs(list) do count = count - #r.output end
    repeat engine:step() until least() >= tokens - 4  -- then some may end before others
    for _, r in ipairs(list) do count = count + #r.output end
    best = math.max(best, count / (q.time() - began))
  end
  engine:finish()
  engine:close()
  return best
end

local function texts(model)
  local engine, list = model:engine { max_batch = 50, context = context, pages = pages }, {}
  for i = 1, 50 do list[i] = engine:submit(request(i)) end
  engine:finish()
  for i, r in ipairs(list) do list[i] = r.text end
  engine:close()
  return table.concat(list, "\n--\n")
end

local whole = q.load(path)
pages = 8 * require("qeng.infer.paged").pages(whole, context)  -- of all caches
local expected = texts(whole)
local alone, alone8 = rate(whole, 1, 100), rate(whole, 8, 60)
local layers = whole.config.layers
local cost = require("qeng.peers.costs").of(function() return q.load(path, { weights = "map" }) end,
  { context = context, batch = 8 })
local total, largest = 0, 0
for _, layer in ipairs(cost.layers) do
  total, largest = total + layer.bytes + layer.state_bytes, math.max(largest, layer.bytes + layer.state_bytes)
end
print(("%s: %d layers of %.1f MB with the cache of 8 x %d tokens; one process of one core: %.1f tokens/s, %.1f of 8")
  :format(path:match "[^/]+$", layers, total / 1e6, context, alone, alone8))
whole = nil  -- luacheck: ignore 311
collectgarbage()
collectgarbage()

local failed = false
for _, processes in ipairs { 2, 3, 5 } do
  -- Memory of each: slack, and shares of the layers of 1 : 2 : 3 ..., a quarter more than are needed together, as a
  -- layer is not divided.
  local workers, addresses, parts = {}, {}, processes * (processes + 1) / 2
  local function room(share) return math.floor(cost.slack + 1.25 * total * share / parts + largest) end
  for i = 2, processes do
    workers[i] = start(room(i))
    addresses[#addresses + 1] = workers[i].address
  end
  local model = q.load(path, {
    peers = addresses, context = context, max_batch = 8, peer_memory = room(1) + cost.ends.bytes,
  })
  local fleet = model.peers
  local same = texts(model) == expected
  local one, eight = rate(model, 1, 100), rate(model, 8, 60)
  local parts_of = {}
  for i, stage in ipairs(fleet.stages) do
    parts_of[i] = ("%s %d"):format(stage.worker and stage.worker.name or "here", stage.count)
  end
  local function beside(speed, plan)  -- layers that had to move lie as no plan says
    return plan and (", expected %.1f (%+.0f %%)"):format(plan.tokens_per_second,
      100 * (speed / plan.tokens_per_second - 1)) or ", after layers moved"
  end
  local plans = fleet.predicted or {}
  print(("%d processes: 50 texts %s; one request %.1f tokens/s%s; 8: %.1f%s; a hop %.0f us; %s"):format(processes,
    same and "the same" or "DIFFER", one, beside(one, plans.one), eight, beside(eight, plans.batch),
    1e6 * (fleet.hop or 0), table.concat(parts_of, ", ")))
  failed = failed or not same
  model, fleet = nil, nil  -- luacheck: ignore 311
  for i = 2, processes do workers[i].process:stop(true) end
  workers = nil  -- luacheck: ignore 311
  collectgarbage()
  collectgarbage()
end
q.fs.remove(folder)
os.exit(failed and 1 or 0)
