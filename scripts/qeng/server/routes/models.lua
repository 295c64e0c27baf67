-- GET /v1/models and /v1/models/{name}: the models and their adapters.

local problem = require "qeng.server.problem"
local q = require "qeng.core"

return function(server)
  local function entries()
    local list = {}
    for _, each in ipairs(server.models) do
      list[#list + 1] = each:entry(each.name)
      local names = {}
      for name in pairs(each.adapters) do names[#names + 1] = name end
      table.sort(names)
      for _, name in ipairs(names) do list[#list + 1] = each:entry(name, each.adapters[name]) end
    end
    for _, pair in ipairs(server.shelf:stored()) do
      local loaded = false
      for _, each in ipairs(server.models) do loaded = loaded or each.name == pair[1] end
      if not loaded then
        list[#list + 1] = {
          id = pair[1], object = "model", created = server.started, owned_by = "qeng", loaded = false,
        }
      end
    end
    return list
  end

  server:route("GET", "/v1/models", function(call)
    call:reply(200, { object = "list", data = q.json.array(entries()) })
  end, { says = "models and adapters" })

  server:route("GET", "/v1/models/{name*}", function(call)
    for _, entry in ipairs(entries()) do
      if entry.id == call.params.name then return call:reply(200, entry) end
    end
    problem.raise(404, ("The model '%s' does not exist"):format(call.params.name), "model", "model_not_found")
  end, { says = "a model or an adapter" })
end
