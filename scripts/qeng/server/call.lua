-- A request by HTTP and its answer. A route is a function of a call, and runs as a coroutine: where it waits for an
-- engine, the server's loop goes on with others.

local problem = require "qeng.server.problem"
local q = require "qeng.core"

local most = 1024                       -- answers to a request: prompts times n
local most_tables = 500000              -- arrays and objects of a body: "{}" takes a hundred times its text
local retry = { ["retry-after"] = "3" }  -- after an error of peers, of which another may have come

local Call = {}
Call.__index = Call

-- event: a request of q.http_server; params: what stood for the {names} of the route's path.
function Call._new(server, event, route, params)
  return setmetatable({
    server = server, id = event.id, event = event, route = route, params = params, requests = {}, status = nil,
    name = (event.headers["x-request-id"] or server:name "req"):sub(1, 128),
  }, Call)
end

local function decoded(self, opt)
  opt.most = most_tables
  local value, why = q.try(q.json.decode, self.event.body, opt)
  if value == nil and why.message:find("arrays and objects", 1, true) then
    problem.raise(400, "The body is too large: " .. why.message, nil, "too_large")
  elseif value == nil then
    problem.raise(400, "The body is not JSON: " .. why.message, nil, "invalid_json")
  end
  return value
end

-- The body, of JSON.
function Call:json()
  self.body = self.body or decoded(self, {})
  return self.body
end

-- The same with the order of keys and the spelling of numbers, as templates and schemas need them.
function Call:exact()
  self.spelled = self.spelled or decoded(self, { ordered = true, exact = true })
  return self.spelled
end

-- ---------------------------------------------------------------- answers

local function headers(self, kind, more)
  local all = { ["content-type"] = kind, ["x-request-id"] = self.name, ["cache-control"] = "no-store",
    traceparent = self.event.headers.traceparent }
  for name, value in pairs(more or {}) do all[name] = value end
  return all
end

-- Answers with a text of a type, whole.
function Call:text(status, kind, body, more)
  self.status, self.bytes = status, #body
  self.server.http:respond(self.id, status, headers(self, kind, more), body)
end

-- Answers with a JSON value.
function Call:reply(status, value, more)
  self:text(status, "application/json", q.json.encode(value, { replace = true, ordered = true }), more)
end

-- Begins a stream of server-sent events.
function Call:stream()
  self.status, self.streams, self.bytes, self.sent_at = 200, true, 0, q.time()
  local more = headers(self, "text/event-stream", { ["x-accel-buffering"] = "no" })
  self.server.http:begin(self.id, 200, more)
end

-- Sends an event: a JSON value or a text, with a name or without.
function Call:send(value, name)
  local data = type(value) == "table" and q.json.encode(value, { replace = true }) or value
  local text = (name and "event: " .. name .. "\n" or "") .. "data: " .. data .. "\n\n"
  self.bytes, self.sent_at = self.bytes + #text, q.time()
  self.server.http:write(self.id, text)
end

-- Sends a comment, which clients pass over.
function Call:ping()
  self.sent_at = q.time()
  self.server.http:write(self.id, ": waiting\n\n")
end

function Call:close() self.server.http:finish(self.id) end

-- Answers with an error: as the answer, or in a stream that has begun as its last event, which a route may send in its
-- own way: broken(body).
function Call:fail(err)
  local status, body, detail = problem.of(err)
  self.problem = detail and "failure" or err.param or err.word or "value"  -- what was sent is in no log
  local form = self.route and self.route.about.errors
  if form then body = form(status, body) end
  if self.streams then
    if self.broken then self.broken(body) else self:send(body, body.type) end
    self:close()
  elseif not self.status then
    self:reply(status, body, type(err) == "table" and (err.headers or err.code == "peer" and retry) or nil)
  end
  return detail
end

-- ---------------------------------------------------------------- engines

-- Who asks: the key that was shown, else the address.
function Call:client()
  local sent = self.event.headers
  return sent.authorization or sent["x-api-key"] or (self.event.remote:gsub(":%d+$", ""))
end

-- Submits a request to a served model's engine (infer/request.lua has the options; and slot, a number). It is cancelled
-- when the client leaves.
function Call:submit(served, opt)
  if #self.requests == most then
    problem.raise(400, ("a request asks for more than %d answers: send several"):format(most), "n")
  end
  local metrics, at = self.server.metrics, self.event.at
  local last
  opt.on_token = function()
    local now = q.time()
    if last then metrics:observe("qeng_inter_token_seconds", now - last)
    else metrics:observe("qeng_time_to_first_token_seconds", now - at) end
    last = now
  end
  opt.rank = served:rank(self:client(), opt.rank)
  local slot = opt.slot
  opt.slot = nil
  local r = served.engine:submit(opt)
  served:place({ request = r, tokens = r.tokens, adapter = opt.adapter }, slot)
  self.requests[#self.requests + 1] = { request = r, served = served }
  return r
end

local function changed(self)
  for _, each in ipairs(self.requests) do
    local r = each.request
    local length = #r.output + (r.state == "done" and 1 or 0)
    if each.seen ~= length then return true end
  end
  return false
end

-- Whether the loop has to go on with it.
function Call:ready() return self.asleep ~= true or changed(self) end

-- Lets the loop go on with others for a round.
function Call:pause() coroutine.yield() end

-- Lets the loop go on for so many seconds, by a quarter of one more. A call that sleeps costs the loop nothing.
function Call:sleep(seconds)
  local server = self.server
  server.active[self.id], server.sleeping[self.id], self.wake = nil, self, q.time() + seconds
  coroutine.yield()
end

-- Waits until one of its requests has another token, or is done.
function Call:wait()
  for _, each in ipairs(self.requests) do
    each.seen = #each.request.output + (each.request.state == "done" and 1 or 0)
  end
  self.asleep = true
  coroutine.yield()
  self.asleep = nil
end

-- Follows its requests to their ends: piece(i, request, text, kind) for each text as it comes (kind: "reasoning" or
-- nil), over(i, request) at the end of each. An error of a request is raised.
function Call:follow(piece, over)
  local told, left = {}, #self.requests
  while true do
    for i, each in ipairs(self.requests) do
      local r = each.request
      for _, one in ipairs(r:take()) do piece(i, r, one[1], one[2]) end
      if r.state == "done" and not told[i] then
        if r.error then error(r.error, 0) end
        told[i], left = true, left - 1
        over(i, r)
      end
    end
    if left == 0 then return end
    self:wait()
  end
end

-- Ends its requests: the client left, or the route is over.
function Call:cancel()
  for _, each in ipairs(self.requests) do each.served.engine:cancel(each.request) end
end

return Call
