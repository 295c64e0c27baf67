-- q.http_server as Lua sees it: events, answers, and that Ctrl-C ends a wait. What it makes of requests is in
-- tests/unit/http_server_test.cpp. The clients are sockets of the C library.
local ffi = require "ffi"
local q = require "qeng"
jit.off()  -- compiled code calls no hooks
ffi.cdef [[
  struct qeng_address { uint16_t family, port; uint32_t host; char zero[8]; };
  int socket(int domain, int type, int protocol);
  int connect(int fd, const struct qeng_address* address, unsigned size);
  long send(int fd, const char* text, size_t size, int flags);
  long recv(int fd, char* text, size_t size, int flags);
  int close(int fd);
  int raise(int signal);
  int getpid(void);
]]

local server = q.http_server { port = 0, keys = { "secret" }, open = { "/open" } }
local port = server:port()

local function client(text)
  local fd = ffi.C.socket(2, 1, 0)
  local swapped = bit.bor(bit.lshift(bit.band(port, 255), 8), bit.rshift(port, 8))
  local address = ffi.new("struct qeng_address", { family = 2, port = swapped, host = 0x0100007f })
  assert(ffi.C.connect(fd, address, 16) == 0, "cannot connect")
  ffi.C.send(fd, text, #text, 0)
  return fd
end
local buffer = ffi.new "char[65536]"
local function answer(fd)  -- up to the end of the connection, its head without Date
  local parts = {}
  while true do
    local size = ffi.C.recv(fd, buffer, 65536, 0)
    if size <= 0 then break end
    parts[#parts + 1] = ffi.string(buffer, size)
  end
  ffi.C.close(fd)
  return (table.concat(parts):gsub("Date: [^\r]*\r\n", "", 1))
end
local function equal(got, expected)
  if got ~= expected then error(("%q\nis not\n%q"):format(tostring(got), tostring(expected)), 2) end
end
local function next_event(kind)
  local event = server:wait(10)
  equal(event and event.kind, kind)
  return event
end

local before = q.time()
local fd = client("POST /a%20b?x=1 HTTP/1.1\r\nHost: h\r\nX-Api-Key: secret\r\nConnection: close\r\n"
  .. "Content-Length: 2\r\n\r\n\0\1")
local event = next_event "request"
equal(event.method, "POST")
equal(event.path, "/a b")
equal(event.query.x, "1")
equal(event.headers["x-api-key"], "secret")
equal(event.body, "\0\1")
assert(event.remote:match "^127%.0%.0%.1:%d+$", event.remote)
assert(event.at >= before and event.at <= q.time())
server:respond(event.id, 404, { ["x-request-id"] = event.id }, "no\0such\n")
equal(answer(fd), ("HTTP/1.1 404 Not Found\r\nServer: qeng\r\nx-request-id: %d\r\nContent-Length: 8\r\n"
  .. "Connection: close\r\n\r\nno\0such\n"):format(event.id))

fd = client "GET /open HTTP/1.0\r\n\r\n"
event = next_event "request"
server:begin(event.id, 200, { ["content-type"] = "text/event-stream" })
assert(server:write(event.id, "data: 1\n\n") >= 0)
server:finish(event.id)
equal(server:write(event.id, "more"), nil)
equal(answer(fd), "HTTP/1.1 200 OK\r\nServer: qeng\r\ncontent-type: text/event-stream\r\nConnection: close\r\n\r\n"
  .. "data: 1\n\n")

fd = client "GET /secret HTTP/1.1\r\nHost: h\r\n\r\n"
assert(answer(fd):match "^HTTP/1.1 401 Unauthorized\r\n")
event = next_event "refused"
equal(event.status, 401)
equal(event.path, "/secret")

fd = client "GET /open HTTP/1.1\r\nHost: h\r\n\r\n"
event = next_event "request"
ffi.C.close(fd)
equal(next_event("gone").id, event.id)

local stats = server:stats()
equal(stats.requests, 3)
equal(stats.refused, 1)
equal(stats.waiting_events, 0)

local function refused(code, pattern, fn, ...)
  local _, err = q.try(fn, ...)
  assert(err and err.code == code and err.message:match(pattern), tostring(err))
end
refused("value", "line end", server.respond, server, 99, 200, { a = "b\r\nc: d" }, "")
refused("value", "status", server.respond, server, 99, 42)
refused("value", "'max_body'", q.http_server, { port = 0, max_body = -1 })
refused("value", "everybody", q.http_server, { port = 0, keys = { "" } })
refused("io", "use another port", q.http_server, { port = port })

-- A wait that Ctrl-C ends: at once and not after a minute, raised or, deferred, told.
local function interrupt_soon() os.execute("(sleep 0.2; kill -INT " .. ffi.C.getpid() .. ") &") end
q.host.defer_interrupt(true)
before = q.time()
interrupt_soon()
equal(server:wait(60), nil)
assert(q.host.interrupted())
q.host.defer_interrupt(false)
interrupt_soon()
local ok, err = pcall(function()
  server:wait(60)
  for _ = 1, 1000 do q.time() end
end)
assert(not ok and err.code == "interrupted", tostring(err))
assert(q.time() - before < 30)

server:stop()
server:close(1)
equal(server:wait(0), nil)
print "http: events, answers and interrupts"
