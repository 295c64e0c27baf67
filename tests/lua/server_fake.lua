-- A listener without a network, in the place of q.http_server: events are put in, answers are taken out.
local fake = {}
local Listener = {}
Listener.__index = Listener

function fake.new() return setmetatable({ events = {}, answers = {}, last = 0 }, Listener) end

-- A request; its answer is in answers[id].
function Listener:put(method, path, body, headers)
  self.last = self.last + 1
  local bare, asked = path:match "^([^?]*)%??(.*)$"
  local query = {}
  for name, value in asked:gmatch "([^=&]+)=([^&]*)" do query[name] = value end
  table.insert(self.events, {
    kind = "request", id = self.last, method = method, path = bare, query = query, headers = headers or {},
    body = body or "", remote = "test", at = require("qeng").time(),
  })
  return self.last
end
function Listener:leave(id) table.insert(self.events, { kind = "gone", id = id }) end

function Listener:wait() return table.remove(self.events, 1) end
function Listener:respond(id, status, headers, body)
  assert(not self.answers[id], "answered twice")
  self.answers[id] = { status = status, headers = headers, body = body, done = true }
end
function Listener:begin(id, status, headers)
  assert(not self.answers[id], "answered twice")
  self.answers[id] = { status = status, headers = headers, body = "" }
end
function Listener:write(id, text)
  assert(not self.answers[id].done)
  self.answers[id].body = self.answers[id].body .. text
  return 0
end
function Listener:finish(id) self.answers[id].done = true end
function Listener:stats() return { connections = 0, refused = 0 } end
function Listener:stop() self.stopped = true end
function Listener:close() self.closed = true end

-- Asks a server of this listener, and returns what it answers, decoded where that is JSON. body: a text, or what
-- becomes JSON. An answer of another status than `expected` (200) is an error.
function Listener:ask(server, method, path, body, expected)
  local q = require "qeng"
  local id = self:put(method, path, type(body) == "table" and q.json.encode(body) or body)
  for _ = 1, 2000 do
    server:turn(0)
    local answer = self.answers[id]
    if answer and answer.done then
      if answer.status ~= (expected or 200) then error(("%d: %s"):format(answer.status, answer.body), 3) end
      return answer.headers["content-type"] == "application/json" and q.json.decode(answer.body) or answer.body
    end
  end
  error("no answer", 3)
end

return fake
