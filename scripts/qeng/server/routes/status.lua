-- GET /health (the process lives), /ready (it takes requests), /metrics and /openapi.json. While models are loaded the
-- listener answers for these: 200 and 503.

local openapi = require "qeng.server.openapi"

return function(server)
  server:route("GET", "/health", function(call) call:reply(200, { status = "ok" }) end,
    { says = "whether the process lives", open = true })

  server:route("GET", "/ready", function(call)
    if server.draining then
      return call:reply(503, { status = "draining" }, { ["retry-after"] = "30" })
    end
    call:reply(200, { status = "ready", uptime = os.time() - server.started })
  end, { says = "whether it takes requests" })

  server:route("GET", "/metrics", function(call)
    call:text(200, "text/plain; version=0.0.4; charset=utf-8", server.metrics:text())
  end, { says = "figures, as Prometheus reads them" })

  server:route("GET", "/openapi.json", function(call) call:reply(200, openapi.of(server)) end,
    { says = "these routes, as OpenAPI describes them" })
end
