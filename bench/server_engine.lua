-- The engine by itself on the requests of bench/server_peer.py: qeng bench/server_engine.lua MODEL REQUESTS [CLIENTS]
-- Keeps so many requests under way, as the clients of a server do. Prints seconds and tokens as JSON.
local q = require "qeng"

q.device { device = "cpu" }
local model, clients = q.load(arg[1]), tonumber(arg[3] or 64)
local engine, bodies = model:engine { max_batch = clients }, {}
for line in io.lines(arg[2]) do bodies[#bodies + 1] = q.json.decode(line) end
local at, tokens, running, begin = 0, 0, {}, q.time()
repeat
  for i = #running, 1, -1 do
    if running[i].state == "done" then tokens = tokens + #table.remove(running, i).output end
  end
  while #running < clients and at < #bodies do
    at = at + 1
    local body = bodies[at]
    running[#running + 1] = engine:submit {
      prompt = body.prompt, max_tokens = body.max_tokens, temperature = body.temperature, seed = body.seed,
      stop_ids = {},
    }
  end
  engine:step()
until #running == 0 and at == #bodies
print(q.json.encode { seconds = q.time() - begin, tokens = tokens })
