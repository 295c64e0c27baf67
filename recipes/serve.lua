-- Serves a model by HTTP, with OpenAI's API and others (recipes/SERVER.md).
--   qeng recipes/serve.lua --model ~/Qwen2.5-0.5B-Instruct [--adapter support=out/adapter] [--port 8080]
-- Without --model it serves a small built-in one. Ctrl-C ends it once what runs is answered.

local q = require "qeng"

local opt = q.options {
  "Answers HTTP requests with a model: OpenAI's API, on this machine alone unless --host says more.",
  "serve",
  "peers",
  "device",
}
q.use_device(opt)

local server, address = q.serve(opt)
server:route("GET", "/hello/{name}", function(call)  -- a route of one's own: curl localhost:8080/hello/you
  call:reply(200, { hello = call.params.name })
end)
local first = server.models[1]
print(("%s answers at %s/v1"):format(first and first.name or opt.models, address))
server:run()
