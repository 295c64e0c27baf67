-- GET /api/peers: the models whose layers lie on other machines, and what is known of these (peers/state.lua).

local q = require "qeng.core"

local function of_model(served)
  local state = served.model.peers:state()
  for _, peer in ipairs(state.peers) do peer.layers = q.json.array(peer.layers) end
  state.model, state.peers = served.name, q.json.array(state.peers)
  state.steps = { count = served.engine.steps, seconds = served.seconds, requests = served.batched }
  return state
end

return function(server)
  server:route("GET", "/api/peers", function(call)
    local list = {}
    for _, each in ipairs(server.models) do
      if each.model.peers then list[#list + 1] = of_model(each) end
    end
    call:reply(200, { models = q.json.array(list) })
  end, { says = "models whose layers lie on peers: who has which, memory, time, links, and what was lost and moved" })
end
