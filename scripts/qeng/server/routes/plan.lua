-- POST /api/plan: what training or inference of a model needs, as recipes/plan.lua says it. That runs as a process of
-- its own, one at a time: it takes seconds, and opens files that nobody has checked.

local kv_types = require "qeng.model.kv_types"
local machines = require "qeng.plan.machines"
local problem = require "qeng.server.problem"
local q = require "qeng.core"
local shapes = require "qeng.plan.shapes"

local most_read = 1024 * 1024

local function count(name) return { name, "integer", min = 1 } end

local taken = {
  { "model", "string", required = true },
  { "mode", "string", choices = { "all", "full", "lora", "onebit", "inference" }, default = "all" },
  count "rank", count "row_tokens", count "rows", count "accumulate", count "context", count "batch",
  { "stored", "string" }, { "dtype", "string", choices = { "f32", "bf16" } }, { "recompute", "boolean" },
  { "kv", "string" },
  { "device_budget", "string" }, { "host_budget", "string" },
  { "device", "string", choices = machines.names() },  -- by default this machine
  count "examples", count "example_tokens", count "epochs",
}

return function(server)
  local running

  server:route("POST", "/api/plan", function(call, given)
    if running and not running:status() then
      error({ code = "http", status = 429, message = "another plan is being made: try again in a few seconds",
        headers = { ["retry-after"] = "3" } }, 0)
    end
    local wrong = given.kv and kv_types.fault(given.kv)
    if wrong then problem.raise(400, "kv: " .. wrong, "kv") end
    if given.kv and given.kv:find("bases=", 1, true) then
      problem.raise(400, "kv: bases= names a folder of the server, which a plan does not read", "kv")
    end
    local asked = given.model
    if not shapes.find(asked) then given.model = server.jobs:path("model", asked, "model") end
    local name = os.tmpname()
    running = q.host.process(server.jobs:words("plan", taken, given), { output = name })
    local output = io.open(name, "rb")
    os.remove(name)  -- it stays as long as it is open
    while not running:status() do call:sleep(0.25) end
    local text = problem.named((output:read(most_read) or ""):gsub("%s+$", ""), given.model, asked)
    output:close()
    if running:status() ~= 0 then problem.raise(422, text, "model") end
    call:reply(200, { text = text })
  end, { says = "whether a model fits, and what it needs", fields = taken })
end
