-- q.server: answers HTTP with models. Network threads (q.http_server) parse, queue and write; this loop takes requests
-- from them, runs a route's function for each as a coroutine, and steps the engines of the models.
--
--   local server = q.server { models = { { "tiny", "recipes/tiny" } }, http = { port = 8080 } }
--   server:route("GET", "/hello/{name}", function(call) call:reply(200, { hello = call.params.name }) end)
--   server:run()
--
-- Ctrl-C or SIGTERM ends it: what runs is answered first, for at most `grace` seconds; a second one ends it at once.

local Call = require "qeng.server.call"
local fields = require "qeng.server.fields"
local figures = require "qeng.server.figures"
local metrics = require "qeng.server.metrics"
local models = require "qeng.model"
local problem = require "qeng.server.problem"
local q = require "qeng.core"
local Shelf = require "qeng.server.shelf"

local Server = {}
Server.__index = Server

local parts = { "status", "pages", "models", "chat", "messages", "responses", "completions", "embeddings",
  "tokens", "llama", "slots", "jobs", "plan", "datasets", "kernels", "kv", "peers" }

-- ---------------------------------------------------------------- routes

-- "/v1/models/{name*}" as a Lua pattern and the names in it; {name} is a piece without /, {name*} the rest.
local function pattern(path)
  local names = {}
  local text = path:gsub("[%-%.%+]", "%%%0"):gsub("{(%w+)(%*?)}", function(name, rest)
    names[#names + 1] = name
    return rest == "*" and "(.+)" or "([^/]+)"
  end)
  return "^" .. text .. "$", names
end

-- Adds a route, in place of one of the same method and path. handler(call, given): server/call.lua. about: says, what
-- it does in a line; fields, what its body may have (server/fields.lua), which is read into `given`;
-- query, the same of what stands behind ?, for /openapi.json;
-- errors(status, body), another form of an error's body than OpenAI's; open, if it asks for no key.
function Server:route(method, path, handler, about)
  local text, names = pattern(path)
  local route = {
    method = method, path = path, pattern = text, names = names, handler = handler, about = about or {},
  }
  for i, each in ipairs(self.routes) do
    if each.method == method and each.path == path then
      self.routes[i] = route
      return
    end
  end
  self.routes[#self.routes + 1] = route
end

-- The first path that fits is meant, whatever its methods.
local function find(self, event)
  local method, others, meant = event.method == "HEAD" and "GET" or event.method, {}, nil
  for _, route in ipairs(self.routes) do
    local found = { event.path:match(route.pattern) }
    if found[1] and (meant or route.pattern) == route.pattern then
      meant = route.pattern
      if route.method == method then
        local params = {}
        for i, name in ipairs(route.names) do params[name] = found[i] end
        return route, params
      end
      others[#others + 1] = route.method
    end
  end
  if others[1] then
    problem.raise(405, ("%s has no %s, only %s"):format(event.path, event.method, table.concat(others, ", ")),
      nil, nil, { allow = table.concat(others, ", ") })
  end
  problem.raise(404, ("There is no %s %s; GET / lists what there is."):format(event.method, event.path))
end

-- ---------------------------------------------------------------- calls

-- A log that cannot be written, as on a full disk, stops no answer; what is wrong is said once until it is right again.
local function log(self, line)
  if not self.log then return end
  local ok, err = pcall(self.log, q.json.encode(line, { replace = true }) .. "\n")
  if not ok and not self.log_failed then io.stderr:write(("server: the access log: %s\n"):format(tostring(err))) end
  self.log_failed = not ok
end

-- What was asked and answered, for the log of who wants that.
local function said(call)
  local texts = {}
  for i, each in ipairs(call.requests) do texts[i] = each.request.text end
  return call.event.body, q.json.array(texts)
end

-- The call is over: it leaves the server, is counted and logged. Prompts and answers are in no log unless asked for.
local function leave(self, call, status)
  if not self.calls[call.id] then return end
  call:cancel()
  self.calls[call.id], self.active[call.id], self.sleeping[call.id] = nil, nil, nil
  local path, seconds = call.route and call.route.path or "none", q.time() - call.event.at
  local prompt, output, reused = figures.count(self, call, status, path, seconds)
  local body, texts
  if self.log_text then body, texts = said(call) end
  log(self, {
    time = os.date "!%Y-%m-%dT%H:%M:%SZ", body = body, texts = texts, request = call.name,
    remote = call.event.remote, method = call.event.method,
    path = call.event.path, status = status, seconds = seconds, bytes = call.bytes, prompt_tokens = prompt,
    output_tokens = output, cached_tokens = reused, traceparent = call.event.headers.traceparent,
    problem = call.problem,
  })
end

-- Goes on with a call until it waits or is over.
local function resume(self, call)
  local ok, err = coroutine.resume(call.thread, call)
  if coroutine.status(call.thread) ~= "dead" then return end
  if not ok then
    if type(err) == "table" and err.code == "interrupted" then error(err, 0) end
    local detail = call:fail(err)
    if detail then io.stderr:write(("server: %s %s: %s\n"):format(call.event.method, call.event.path, detail)) end
  end
  leave(self, call, call.status or 500)
end

local function take(self, event)
  if event.kind == "gone" then
    local call = self.calls[event.id]
    if call then leave(self, call, 499) end
  elseif event.kind == "refused" then
    figures.answered(self, event, "none", event.status)
    log(self, {
      time = os.date "!%Y-%m-%dT%H:%M:%SZ", remote = event.remote, method = event.method, path = event.path,
      status = event.status,
    })
  else
    local call = Call._new(self, event)
    self.calls[event.id], self.active[event.id] = call, call
    call.thread = coroutine.create(function()
      call.route, call.params = find(self, event)
      local list = call.route.about.fields
      return call.route.handler(call, list and fields.read(call:json(), list))
    end)
    resume(self, call)
  end
end

-- ---------------------------------------------------------------- the loop

-- A model's step failed: its requests end with the error, and the server goes on.
local function step(self, each)
  local ok, err = pcall(each.step, each, self.limits)
  if ok then return end
  if type(err) == "table" and err.code == "interrupted" then error(err, 0) end
  io.stderr:write(("server: a step of %s failed: %s\n"):format(each.name, tostring(err)))
  for _, list in ipairs { each.engine.running, each.engine.waiting } do
    while #list > 0 do
      local r = list[#list]
      r.error = err
      each.engine:cancel(r)
    end
  end
end

-- Calls that have slept long enough become active, and streams that were silent for long say that they live.
local function wake(self)
  local now = q.time()
  if now < self.wake_at then return end
  self.wake_at = now + 0.25
  for id, call in pairs(self.sleeping) do
    if now >= call.wake then self.sleeping[id], self.active[id] = nil, call end
  end
  for _, call in pairs(self.calls) do
    if call.streams and now - call.sent_at > self.ping then call:ping() end
  end
end

-- One round: what came by HTTP, a step of each engine that has work, and the calls that this concerns. seconds: how
-- long to wait for a request if there is nothing to do.
function Server:turn(seconds)
  self.jobs:tick()
  local busy = false
  for _, each in ipairs(self.models) do busy = busy or each:busy() end
  for _, call in pairs(self.active) do busy = busy or call:ready() end
  local event = self.http:wait(busy and 0 or seconds)
  while event do
    take(self, event)
    event = self.http:wait(0)
  end
  for _, each in ipairs(self.models) do
    if each:busy() then step(self, each) end
  end
  wake(self)
  local ready = {}
  for _, call in pairs(self.active) do
    if call:ready() then ready[#ready + 1] = call end
  end
  table.sort(ready, function(a, b) return a.id < b.id end)
  for _, call in ipairs(ready) do
    if self.calls[call.id] then resume(self, call) end
  end
end

-- From now on no new request is taken; those that run are answered.
function Server:drain()
  if self.draining then return end
  self.draining = q.time()
  self.http:stop()
end

-- Serves until it is told to end.
function Server:run()
  q.host.defer_interrupt(true)
  while not self.draining or next(self.calls) and q.time() - self.draining < self.grace do
    self:turn(0.25)
    if q.host.interrupted() then self:drain() end
  end
  for _, call in pairs(self.calls) do
    call:fail { status = 503, message = "the server is shutting down" }
    leave(self, call, call.status)
  end
  self.jobs:close(self.grace)
  self.http:close(5)
  for _, each in ipairs(self.models) do each.engine:close() end
  q.host.defer_interrupt(false)
end

-- ---------------------------------------------------------------- a new one

-- The model, and the adapter if it is one, that a request names (server/shelf.lua).
function Server:find(name) return self.shelf:find(name) end
function Server:has(name) return self.shelf:has(name) end

-- A path that a request names, which has to lie in the folder `root` and must not leave it, by links neither.
function Server:inside(path, param)
  if not self.root then
    problem.raise(403, ("'%s': this server opens no files: start it with --root"):format(param), param)
  end
  local full = q.fs.real(self.root .. "/" .. path)
  if not full and not path:find("..", 1, true) then
    problem.raise(404, ("'%s': there is no %s in the folder that this server may open"):format(param, path), param)
  end
  if not full or full:sub(1, #self.root + 1) ~= self.root .. "/" then
    problem.raise(403, ("'%s': there is no such file in the folder that this server may open"):format(param), param)
  end
  return full
end

-- A name that no other request or answer of this process has: "chatcmpl-9f86d081884c7d65a001".
function Server:name(kind)
  self.named = self.named + 1
  return ("%s-%s%06x"):format(kind, self.salt, self.named)
end

-- opt:
--   models      {{name, a folder, a GGUF file or a model}, ...}; the first answers requests that name none
--   dir, keep   a folder of models that are loaded when a request names them, and how many of them stay (1)
--   load        options of q.load for models that are loaded here
--   adapters    {[name] = folder or file}, of the first model
--   engine      options of each model's engine (infer/engine.lua)
--   queue       requests that wait at most; beyond them status 429 (256)
--   root        the folder whose files requests may name; without it they may name none
--   grace       seconds for what runs when it is told to end (30)
--   log         takes a line of JSON for each request; false: none
--   log_text    true: with what was asked and answered
--   limits      of q.limits: of every 256 steps one is measured against them, for /metrics
--   ping        seconds after which a silent stream says that it lives (15), as proxies close what is silent
--   http        options of q.http_server, or one
local function new(opt)
  local self = setmetatable({
    routes = {}, calls = {}, active = {}, sleeping = {}, wake_at = 0, metrics = metrics.new(), named = 0,
    started = os.time(),
    salt = q.host.hash(os.time() .. q.time()):sub(1, 14), queue = opt.queue or 256, grace = opt.grace or 30,
    log = opt.log, log_text = opt.log_text,
    root = opt.root and q.fs.real(opt.root), limits = opt.limits, ping = opt.ping or 15,
  }, Server)
  self.shelf = Shelf.new(opt.engine, opt.dir, opt.keep, opt.load)
  self.models = self.shelf.list
  for _, pair in ipairs(opt.models or {}) do
    local model = pair[2]
    if type(model) == "string" then model = models.load(model, opt.load or {}) end
    self.shelf:add(pair[1], model)
  end
  for name, path in pairs(opt.adapters or {}) do
    if not self.models[1] then q.error("value", "server: adapters need a model to be on: give models, or --model") end
    self.models[1]:add_adapter(name, path)
  end
  figures.declare(self)
  for _, name in ipairs(parts) do require("qeng.server.routes." .. name)(self) end
  local http = opt.http or {}
  self.http = http.wait and http or q.http_server(http)
  return self
end

return { new = new, Server = Server }
