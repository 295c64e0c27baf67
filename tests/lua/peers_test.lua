-- Layers on workers (scripts/qeng/peers), over a network in this process (peers_fake.lua): whatever the split, whoever
-- is lost, the texts are those of one process.
local cases = require "engine_cases"
local fake = require "peers_fake"
local fleets = require "qeng.peers.fleet"
local hybrid = require "hybrid_model"
local planners = require "qeng.peers.planner"
local q = require "qeng"
local scratch = require "scratch"

local function check(ok, ...)
  if not ok then error(string.format(...), 2) end
end

-- Requests that come at different steps, long prompts among them, some of equal beginnings, some cancelled.
local function texts(model, seed, opt)
  local random, engine, list = cases.random(seed), model:engine(opt), {}
  local function submit(i)
    local ids, vocab = {}, model.config.vocab
    for k = 1, 1 + random(i % 3 == 0 and 70 or 9) do ids[k] = i % 4 == 0 and k % vocab or random(vocab) end
    list[i] = engine:submit {
      ids = ids, max_tokens = 1 + random(24), seed = i, temperature = i % 2, stop_ids = {},
      prompt_logprobs = i % 5 == 1 and 0 or nil,
    }
  end
  for i = 1, 12 do
    submit(i)
    for _ = 1, random(4) do engine:step() end
    if i % 6 == 0 then engine:cancel(list[i - 1]) end
  end
  engine:finish()
  local result = {}
  for i, r in ipairs(list) do
    result[i] = (i + 1) % 6 == 0 and "cancelled" or table.concat(r.output, " ") .. " " .. r.finish
  end
  check(engine:stats().used == 0, "pages are left")
  engine:close()
  return table.concat(result, "\n")
end

-- Ranges of these sizes, on workers in turn; 0: none. `here` is the index of one that this process has.
local function split(counts, here)
  return function(workers)
    if #workers == 0 then error({ code = "memory", message = "nobody is left" }, 0) end
    local ranges, first = {}, 0
    for i, count in ipairs(counts) do
      local worker = workers[1 + (i - 1) % #workers]
      if i == here then worker = nil end
      if count > 0 then ranges[#ranges + 1] = { worker = worker, first = first, count = count } end
      first = first + count
    end
    return ranges
  end
end

local names = { "a", "b", "c", "d", "e" }
local function gathered(path, workers, opt)
  local net = fake.new({ unpack(names, 1, workers) }, fake.files(path, opt and opt.lacking))
  local fleet = fleets.new {
    peers = net.peers, files = fake.files(path), wire = opt and opt.wire, patience = opt and opt.patience, grace = 0.2,
  }
  fleet:dial { unpack(names, 1, workers) }
  check(#fleet:gather(1) == workers, "workers are missing")
  return fleet, net
end
local function fleet_of(path, planner, workers, opt)
  local fleet, net = gathered(path, workers, opt)
  return fleet, fleet:load(path, { dtype = opt and opt.dtype }, planner), net
end

local function saved(name, model)
  local path = scratch.at(name)
  model:save(path)
  return path
end

-- Every kind of layer, split in 2, 3 and 5, with and without layers here.
local models = {
  qwen2 = { cases.model("qwen2", { layers = 5 }) }, gemma3 = { cases.model("gemma3", { layers = 5 }), kv = "f16" },
  qwen3_moe = { cases.model("qwen3_moe", { layers = 5, dtype = "bf16" }), kv = "q8_0" },
  hybrid = { hybrid.fresh { num_hidden_layers = 5 } },
}
for name, case in pairs(models) do
  local path, opt = saved(name, case[1]), { pages = 60, kv = case.kv, chunk = 20 }
  local whole = q.load(path)
  local expected = texts(whole, 3, opt)
  for _, how in ipairs { { { 2, 3 } }, { { 1, 0, 4 }, 1 }, { { 2, 1, 2 }, 2 }, { { 1, 1, 1, 1, 1 } } } do
    local _, model, net = fleet_of(path, split(how[1], how[2]), math.min(#how[1], 5))
    check(texts(model, 3, opt) == expected, "%s split as %s differs", name, table.concat(how[1], "+"))
    for _, worker in pairs(net.workers) do
      for _, guest in pairs(worker.guests) do check(not next(guest.caches), "%s: a worker keeps a cache", name) end
    end
  end
end

-- Adapters of requests: of all layers, known by number where these lie, and scaled.
do
  local path, opt = scratch.at "qwen2", { pages = 60 }
  local whole = q.load(path)
  local trained = q.load(path):lora { rank = 4, targets = { "q_proj", "v_proj", "down_proj" }, seed = 3 }
  for i, layer in ipairs(trained.linears) do
    if layer.lora then layer.lora.b:copy(q.randn(layer.lora.b:shape(), { std = 0.1, seed = i })) end
  end
  trained:save_adapter(scratch.at "adapter")
  local function answers(model)
    local engine, adapter, list = model:engine(opt), model:read_adapter(scratch.at "adapter"), {}
    for i = 1, 6 do
      list[i] = engine:submit {
        ids = { 5, 6, 7, i }, max_tokens = 12, temperature = 0, stop_ids = {}, adapter = i % 2 == 1 and adapter or nil,
      }
    end
    engine:finish()
    for i, r in ipairs(list) do list[i] = table.concat(r.output, " ") end
    engine:close()
    return table.concat(list, "\n")
  end
  local _, model, net = fleet_of(path, split({ 2, 1, 2 }, 2), 3)
  local expected = answers(whole)
  check(answers(model) == expected, "with adapters")
  q.fs.copy(scratch.at "adapter", scratch.at "other")
  local renamed = {}
  local file = q.weights.open(scratch.at "adapter/adapter_model.safetensors")
  for i, name in ipairs(file:names()) do
    renamed[i] = { name:gsub("layers%.4%.", "layers.7."), file:tensor(name, { copy = true }) }
  end
  q.safetensors.save(scratch.at "other/adapter_model.safetensors", renamed)
  scratch.refused("is missing: the adapter belongs to another model", model.read_adapter, model, scratch.at "other")
  check(answers(model) == expected, "with adapters, after a wrong one")
  collectgarbage()
  collectgarbage()
  model:read_adapter(scratch.at "adapter")
  local kept = 0
  for _, worker in pairs(net.workers) do
    for _, guest in pairs(worker.guests) do
      for _, stage in pairs(guest.stages) do
        for _ in pairs(stage.adapters) do kept = kept + 1 end
      end
    end
  end
  check(kept == 2, "two workers keep %d adapters, of which one is still in use", kept)
end

-- Few pages: sequences give way, and pages are copied.
local path = scratch.at "qwen2"
local tight = { pages = 9, chunk = 12 }
local expected = texts(q.load(path), 5, tight)
do
  local _, model = fleet_of(path, split({ 2, 1, 2 }, 2), 3)
  check(texts(model, 5, tight) == expected, "with few pages")
end

-- A worker is lost at the n-th step that it is asked for, another hangs, a third answers an error when it is to load.
for n = 1, 40, 3 do
  local fleet, model, net = fleet_of(path, split { 1, 2, 2 }, 3, { patience = 0.02 })
  local asked = 0
  net.faults[1 + n % 3] = function(frame)
    if frame.type == "step" then asked = asked + 1 end
    if asked ~= n or frame.type ~= "step" then return end
    asked = asked + 1
    if n % 2 == 0 then return "gone" end
    return asked > 4 and "silent" or "gone"
  end
  check(texts(model, 5, tight) == expected, "a worker lost at step %d", n)
  check(fleet.lost == 1 and fleet.moved > 0, "at step %d %d were lost, %d layers moved", n, fleet.lost, fleet.moved)
end

-- Layers move to a worker that comes while steps are under way.
do
  local fleet, model, net = fleet_of(path, function(workers)
    return split(#workers == 3 and { 1, 2, 2 } or { 2, 3 })(workers)
  end, 2)
  net.add "c"
  local engine, list = model:engine { pages = 40, max_batch = 4 }, {}
  local function opt(i) return { ids = { 1, 2, 3, i }, max_tokens = 30, temperature = 0, stop_ids = {} } end
  for i = 1, 4 do list[i] = engine:submit(opt(i)) end
  for _ = 1, 5 do engine:step() end
  check(#engine.flights > 0, "no step is under way")
  fleet:dial { "c" }
  fleet:gather(1)
  fleet.settle, fleet.fresh = 0, 0
  engine:finish()
  check(#fleet.stages == 3 and fleet.lost == 0, "%d stages after a worker came", #fleet.stages)
  local whole = q.load(path)
  for i, r in ipairs(list) do
    check(table.concat(r.output, " ") == table.concat(cases.alone(whole, opt(i)).output, " "), "request %d moved", i)
  end
  engine:close()
end

-- One that comes and lacks the weights fetches them while steps go on; layers move when they are there. One that cannot
-- fetch gets none, and one that is lost over it none until it is back.
do
  local told = {}
  local fleet, model, net = fleet_of(path, function(workers)
    return #workers > 1 and split { 3, 2 }(workers) or split({ 4, 1 }, 2)(workers)
  end, 1, { lacking = true })
  fleet.say = function(text) told[#told + 1] = text end
  check(fleet:has(fleet.workers[1], 3) and not fleet:has(fleet.workers[1], 4), "what the first has loaded, it has")
  local engine, whole, asked = model:engine { pages = 20 }, q.load(path), {}
  local opt = { ids = { 1, 2, 3, 4 }, max_tokens = 12, temperature = 0, stop_ids = {} }
  local alone = table.concat(cases.alone(whole, opt).output, " ")
  local function text(what, moved)
    local till = q.time() + 0.3
    repeat until q.time() > till
    local r = engine:submit(opt)
    engine:finish()
    check(table.concat(r.output, " ") == alone, "%s: another text", what)
    local there = #fleet.stages == 2 and fleet.stages[2].worker == fleet.workers[2]
    check(there == moved, "%s: layers are there: %s", what, tostring(there))
  end
  net.faults[2] = function(frame)
    if frame.type ~= "fetch" then return end
    asked[#asked + 1] = frame
    return "silent"
  end
  net.add "b"
  fleet:dial { "b" }
  fleet:gather(1)
  text("while it fetches", false)
  text("while it still fetches", false)
  check(#asked == 1 and q.json.decode(asked[1].text).model.hash == "m", "it was asked %d times", #asked)
  net.lose(2)
  text("lost", false)
  net.connect(2)
  text("back", false)
  check(#asked == 2, "back, it was asked %d times", #asked)
  net.faults[2] = nil
  net.events[#net.events + 1] = {
    kind = "frame", peer = 2, type = "error", request = asked[2].request, text = [[{"message": "disk full"}]],
  }
  text("it cannot", false)
  check(told[#told]:find("disk full", 1, true), "what it said: %s", told[#told])
  check(not fleet.workers[2].layers and fleet.workers[2].failed, "it cannot fetch, and is planned with")
  fleet.workers[2].failed, fleet.fresh, fleet.settle = nil, 0, 0
  text("fetched", true)
  check(fleet:has(fleet.workers[2], 4) and fleet.lost == 0, "what was fetched")
  engine:close()
end

-- One that is lost while layers are loaded, or while its link is measured, takes none; the others have them.
for _, type in ipairs { "load", "hello" } do
  local fleet, net = gathered(path, 3)
  net.faults[2] = function(frame)
    if frame.type ~= type or type == "hello" and not frame.data then return end
    net.faults[2] = nil
    net.lose(2)
    net.connect(2)  -- and is back at once
    return "silent"
  end
  local model = fleet:load(path, {}, function(workers)
    for _, worker in ipairs(workers) do fleet:link(worker) end
    return split { 2, 1, 2 }(workers)
  end)
  check(#fleet:ready() == (type == "load" and 3 or 2), "lost at %s: %d are ready", type, #fleet:ready())
  check(texts(model, 5, tight) == expected, "lost at %s", type)
end

-- One that is reached by two addresses is one.
do
  local fleet, net = gathered(path, 3)
  fleet.workers[3].about.id = fleet.workers[1].about.id
  local ready = fleet:ready()
  check(#ready == 2 and ready[1].name == "a" and ready[2].name == "b" and net.workers[3], "two ways to one worker")
end

-- All layers are here, since all workers were lost: who comes back is seen all the same.
do
  local fleet, model, net = fleet_of(path, function(workers)
    return #workers > 0 and split { 3, 2 }(workers) or { { first = 0, count = 5 } }
  end, 2)
  local engine = model:engine { pages = 20 }
  local opt = { ids = { 1, 2, 3, 4 }, max_tokens = 12, temperature = 0, stop_ids = {} }
  local alone = table.concat(cases.alone(q.load(path), opt).output, " ")
  for _, where in ipairs { "on a and b", "here", "on b" } do
    local r = engine:submit(opt)
    engine:step()
    check((fleet.stages[1].worker ~= nil) == (where ~= "here"), "layers are not %s", where)
    if where == "on a and b" then
      net.lose(1)
      net.lose(2)
    end
    engine:finish()
    check(table.concat(r.output, " ") == alone, "layers %s: another text", where)
    if where == "here" then net.connect(2) end
    local till = q.time() + 0.3
    repeat until q.time() > till
  end
  engine:close()
end

-- A worker that is lost while steps are measured: nothing is expected, and the texts are the same.
for n = 1, 60, 7 do
  local fleet, net = gathered(path, 2)
  local planner, steps = planners.new(path, { context = 64, max_batch = 3, peer_memory = 1e9 }, fleet), 0
  net.faults[1] = function(frame)
    if frame.type == "step" then steps = steps + 1 end
    return steps == n and "gone" or nil
  end
  local function ranges(workers)
    local list = split { 3, 2 }(workers)
    list.planned = { left_out = {}, seconds = 1, ranges = {} }
    return list
  end
  local model = fleet:load(path, {}, ranges)
  planner:calibrate(model)
  check(fleet.lost == (steps >= n and 1 or 0), "lost at step %d of %d", n, steps)
  check((planner:predict "one" == nil) == (fleet.lost == 1), "what is expected after a loss at step %d", n)
  check(texts(model, 5, tight) == expected, "lost at step %d of those that are measured", n)
end

-- What waits for the collector is no reason to refuse a cache.
do
  local _, model, net = fleet_of(path, split { 3, 2 }, 1)
  collectgarbage()
  collectgarbage()
  local held = 0
  for _, account in pairs(q.memory()) do held = held + account.bytes end
  net.workers[1].memory = held + 2 ^ 26
  collectgarbage "stop"
  for _ = 1, 2 do q.scope(function() return q.keep(q.zeros { 2 ^ 24 }) end) end
  check(net.workers[1]:about().free == 0, "what waits for the collector is not counted")
  local same = texts(model, 5, tight) == expected
  collectgarbage "restart"
  check(same, "another text once a worker collected")
end

-- The planner: layers stay where no others are better, and go on soon where weights need not be sent.
do
  local fleet = gathered(path, 2, { lacking = true })
  local planner = planners.new(path, { context = 64, max_batch = 1, peer_memory = 1e9 }, fleet)
  local measured = q.limits
  q.limits = function() return { bandwidth = 1e10, flops_f32 = 1e10 } end
  for _, worker in ipairs(fleet.workers) do
    worker.about.limits = { bandwidth = 1e15, flops_f32 = 1e15 }
    worker.link = { latency = 1e-9, bandwidth = 1e9 }
  end
  local first = planner:ranges(fleet:ready())
  check(first[1].worker and not first.stay, "a worker that is faster by far gets no layers")
  local soon = planner:ranges(fleet:ready(), true)
  check(#soon == 1 and not soon[1].worker, "weights are sent where that takes longest")
  fleet:load(path, {}, function() return first end)
  check(planner:ranges(fleet:ready()).stay, "layers that lie best are to move")
  check(fleet:lies_so(planner:ranges(fleet:ready(), true)), "weights that a worker has are sent")
  fleet:place { { first = 0, count = 5 } }
  check(not planner:ranges(fleet:ready()).stay, "layers that lie badly are to stay")
  q.limits = measured
end

-- Steps are timed over sequences as long as those that are planned for, and what is before their end is not computed.
for name, kv in pairs { qwen2 = "tq4,tail=16", hybrid = "f32" } do
  local rows, wide, longest = 0, 0, 0
  local fleet, net = gathered(scratch.at(name), 2)
  local planner = planners.new(scratch.at(name), { context = 256, max_batch = 3, peer_memory = 1e9, kv = kv }, fleet)
  net.faults[1] = function(frame)
    if frame.type == "open" then longest = q.json.decode(frame.text).context end
    if frame.type == "step" then rows, wide = rows + 1, math.max(wide, frame.data:shape()[1]) end
  end
  local model = fleet:load(scratch.at(name), {}, function(workers)
    local list = split { 3, 2 }(workers)
    list.planned = { left_out = {}, seconds = 1, ranges = {} }
    return list
  end)
  check(planner:measure(model), "%s: layers moved", name)
  check(longest == 256 and rows > 50 and wide <= 3, "%s: %d steps of up to %d rows over %d tokens", name, rows, wide,
    longest)
  check(planner:predict "batch".tokens_per_second > 0, "%s: nothing is expected", name)
end

-- All are lost: what is lacking is said, and once one comes back the engine goes on.
do
  local _, model, net = fleet_of(path, split { 3, 2 }, 2)
  local engine = model:engine { pages = 20 }
  local opt = { ids = { 1, 2, 3, 4 }, max_tokens = 12, temperature = 0, stop_ids = {} }
  local r = engine:submit(opt)
  for _ = 1, 4 do engine:step() end
  net.lose(1)
  net.lose(2)
  local ok, err = pcall(engine.step, engine)
  check(not ok and err.code == "peer" and err.message == "nobody can hold the layers (gone: a, b): nobody is left",
    "all are lost: %s", tostring(err.message))
  net.connect(2)
  engine:finish()
  check(table.concat(r.output, " ") == table.concat(cases.alone(q.load(path), opt).output, " "), "after a return")
  engine:close()
end

-- Two engines of one model, of which one finds that a worker is lost, and one that is opened after such a loss.
do
  local fleet, model, net = fleet_of(path, split { 2, 3 }, 3)
  local opt = { ids = { 1, 2, 3, 4 }, max_tokens = 12, temperature = 0, stop_ids = {} }
  local alone = table.concat(cases.alone(q.load(path), opt).output, " ")
  local engines, list = { model:engine { pages = 20 }, model:engine { pages = 20 } }, {}
  for i, engine in ipairs(engines) do list[i] = engine:submit(opt) end
  for _ = 1, 6 do
    for _, engine in ipairs(engines) do engine:step() end
  end
  net.lose(2)
  for i, engine in ipairs(engines) do
    engine:finish()
    check(table.concat(list[i].output, " ") == alone, "engine %d of two: another text", i)
    engine:close()
  end
  net.lose(3)
  local engine = model:engine { pages = 20 }
  local r = engine:submit(opt)
  engine:finish()
  check(table.concat(r.output, " ") == alone, "an engine after a loss: another text")
  engine:close()
  net.lose(1)
  scratch.refused("nobody can hold the layers", model.engine, model, { pages = 20 })
  check(next(fleet.caches) == nil, "a cache that could not be opened is kept")
end

-- A model's file that has changed since is not read again.
do
  local fleet, model, net = fleet_of(path, function(workers)
    return #workers > 0 and split { 3, 2 }(workers) or { { first = 0, count = 5 } }
  end, 1)
  local engine = model:engine { pages = 20 }
  engine:submit { ids = { 1, 2 }, max_tokens = 4 }
  fleet.files.check = function() q.error("io", "has changed") end
  net.lose(1)
  scratch.refused("has changed", engine.finish, engine)
end

-- A worker that is told to end while files come does so.
do
  local pumped, events, interrupted = 0, {
    { kind = "here", peer = 1, name = "x" },
    { kind = "frame", peer = 1, type = "fetch", request = 1, epoch = 0, position = 0, text = '{"model":{}}' },
  }, q.host.interrupted
  q.host.interrupted = function() return #events == 0 end
  local function nothing() return {} end
  local worker = require("qeng.peers.worker").new {
    peers = { wait = function() return table.remove(events, 1) end, refused = nothing, send = nothing }, name = "a",
    files = {
      path = function(_, _, _, pump)
        while pumped < 9 do
          pumped = pumped + 1
          pump(0)
        end
      end,
      take = function() return false end, tick = function() return 1 end,
    },
  }
  worker:run()
  q.host.interrupted = interrupted
  check(pumped == 1, "files were waited for %d times", pumped)
end

-- What peers have is refused by name where it would be needed.
do
  local _, model = fleet_of(path, split { 3, 2 }, 2)
  scratch.refused("peers have layers", model.logits, model, { 1, 2, 3 })
  for _, name in ipairs { "lora", "full", "save", "save_gguf", "merge", "load_adapter" } do
    scratch.refused("peers have layers of this model", model[name], model, scratch.at "any")
  end
  local engine = model:engine { pages = 20 }
  scratch.refused("is in no file", engine.save_prefix, engine, scratch.at "any", { 1, 2, 3 })
  engine:close()
  scratch.refused("there is no place layers.1", model.hook, model, "layers.1", print)
  scratch.refused("what it measures lies in layers", model.engine, model, { kv = "tq4,mean=auto" })
end

-- A worker opens no cache that it has no room for, and reads no file that a coordinator names.
do
  local _, _, net = fleet_of(path, split { 3, 2 }, 2)
  local worker = net.workers[1]
  local number = next(worker.guests[1].stages)
  local function open(change)
    local said = {
      stage = number, cache = 99, kv = "f32", pages = 8, page_tokens = 16, rows = 8, sequences = 2, context = 64,
    }
    for name, value in pairs(change) do said[name] = value end
    net.events = {}
    worker:take {
      kind = "frame", peer = 1, type = "open", request = 7, epoch = 0, position = 0, text = q.json.encode(said),
    }
    return net.events[1].type, net.events[1].text
  end
  for text, change in pairs {
    ["are free"] = { pages = 2 ^ 31 - 1, page_tokens = 2 ^ 20 }, ["reads no bases"] = { kv = "tq4,bases=/etc/passwd" },
    ["rows is 0"] = { rows = 0 }, ["at most"] = { rows = 2 ^ 20 }, ["pages is no count"] = { pages = "many" },
  } do
    local kind, said = open(change)
    check(kind == "error" and said:find(text, 1, true), "open: %s, %s; expected '%s'", kind, said, text)
  end
  local kind, said = open {}
  local layers = worker.guests[1].stages[number].model.range.count  -- 2 heads of 32 elements, keys and values
  check(kind == "ready" and q.json.decode(said).bytes == layers * 8 * 16 * 2 * 2 * 32 * 4, "a cache: %s", said)
end

-- Rounded on the way: other texts may come, of the same length.
do
  local _, model = fleet_of(path, split { 3, 2 }, 2, { wire = "q8" })
  check(#texts(model, 5, tight) > 0, "q8")
end
print "peers: passed"
