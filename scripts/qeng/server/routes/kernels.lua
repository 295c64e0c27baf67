-- POST /api/kernels: the operations of a prompt and of a decoding step of a model against the device's limits.

local kernel_times = require "qeng.infer.kernel_times"
local problem = require "qeng.server.problem"

return function(server)
  server:route("POST", "/api/kernels", function(call, given)
    local found = server:find(given.model)
    -- So it holds up the others as long as a few of their own steps do.
    local most = math.min(found.engine.chunk, found:context() - 4)
    if given.prompt > most then
      problem.raise(400, ("Invalid value for 'prompt': %d, expected at most the %d tokens of a step."):format(
        given.prompt, most), "prompt")
    end
    local kv = found.engine.runner.kv
    local times = kernel_times(found.model, given.prompt, kv)
    times.model, times.prompt, times.kv = found.name, given.prompt, kv
    call:reply(200, times)
  end, { says = "operations of a model against the device's limits", fields = {
    { "model", "string" }, { "prompt", "integer", min = 1, default = 128 } } })
end
