-- GET /health (the process lives), /ready (it takes requests), /metrics, and / (what there is).

local q = require "qeng.core"

return function(server)
  server:route("GET", "/health", function(call) call:reply(200, { status = "ok" }) end)

  server:route("GET", "/ready", function(call)
    if server.draining then
      return call:reply(503, { status = "draining" }, { ["retry-after"] = "30" })
    end
    call:reply(200, { status = "ready", uptime = os.time() - server.started })
  end)

  server:route("GET", "/metrics", function(call)
    call:text(200, "text/plain; version=0.0.4; charset=utf-8", server.metrics:text())
  end)

  server:route("GET", "/", function(call)
    local routes, names = {}, {}
    for i, route in ipairs(server.routes) do routes[i] = route.method .. " " .. route.path end
    for i, each in ipairs(server.models) do names[i] = each.name end
    call:reply(200, { name = "qeng", models = q.json.array(names), routes = q.json.array(routes) })
  end)
end
