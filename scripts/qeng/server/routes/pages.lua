-- The dashboard: GET / for browsers (others get a list of what there is), and its files under /pages. They are static,
-- and part of the executable. They may load nothing from elsewhere, and run no script or style but their files.

local library_file = require "qeng.library_file"
local problem = require "qeng.server.problem"
local q = require "qeng.core"

local kinds = { html = "text/html", css = "text/css", js = "text/javascript" }

local policy = table.concat({
  "default-src 'none'", "script-src 'self'", "style-src 'self'", "img-src 'self' data:", "connect-src 'self'",
  "base-uri 'none'", "form-action 'none'", "frame-ancestors 'none'",
}, "; ")

-- Answers with a file of pages/, or that the client has it already: it asks each time, and mostly gets no body.
local function send(call, name)
  local kind = kinds[name:match "^[%w_]+%.(%w+)$" or ""]
  local text = kind and library_file("scripts/qeng/server/pages/" .. name)
  if not text then problem.raise(404, ("There is no page '%s'."):format(name)) end
  local tag = '"' .. q.host.hash(text) .. '"'
  local known = call.event.headers["if-none-match"] == tag
  call:text(known and 304 or 200, kind .. "; charset=utf-8", known and "" or text, {
    etag = tag, ["cache-control"] = "no-cache", vary = "accept",
    ["content-security-policy"] = policy, ["x-content-type-options"] = "nosniff", ["referrer-policy"] = "no-referrer",
  })
end

return function(server)
  server:route("GET", "/", function(call)
    if (call.event.headers.accept or ""):find("text/html", 1, true) then return send(call, "index.html") end
    local routes, names = {}, {}
    for i, route in ipairs(server.routes) do routes[i] = route.method .. " " .. route.path end
    for i, each in ipairs(server.models) do names[i] = each.name end
    call:reply(200, { name = "qeng", models = q.json.array(names), routes = q.json.array(routes) }, { vary = "accept" })
  end, { says = "what there is; for browsers the dashboard" })

  server:route("GET", "/pages/{name}", function(call) send(call, call.params.name) end,
    { says = "files of the dashboard" })
end
