-- GET /api/kv: what the caches of the models hold. Texts of requests are not in it.

local q = require "qeng.core"
local request = require "qeng.infer.request"

local most_beginnings = 100  -- of a model; those with the most pages

-- The name under which pages are shared: an adapter's, the model's own, or none where that adapter is gone.
local function shared_under(served, salt)
  if salt == 0 or salt == 1 then return served.name end
  for name, each in pairs(served.adapters) do
    if salt and request.salt(each.adapter) == salt then return name end
  end
  return q.json.null
end

local function of_model(served)
  local stats, cache = served.engine:stats(), served.engine:cache()
  local beginnings, idle = {}, 0  -- idle: pages that are remembered, and no request has
  for i, each in ipairs(cache.beginnings) do
    idle = idle + each.pages - each.used
    each.model, each.salt = shared_under(served, each.salt), nil
    if i <= most_beginnings then beginnings[i] = each end
  end
  for _, each in ipairs(cache.requests) do each.model, each.salt = shared_under(served, each.salt), nil end
  return {
    model = served.name, kv = cache.kv, page_tokens = cache.page_tokens, page_bytes = cache.page_bytes,
    pages = stats.pages, used = stats.used, remembered = stats.remembered, idle = idle,
    bytes = stats.kv_bytes, capacity = stats.kv_capacity,
    kinds = q.json.array(cache.kinds), requests = q.json.array(cache.requests),
    beginnings = q.json.array(beginnings), more_beginnings = #cache.beginnings - #beginnings,
  }
end

return function(server)
  server:route("GET", "/api/kv", function(call)
    local list = {}
    for i, each in ipairs(server.models) do list[i] = of_model(each) end
    call:reply(200, { models = q.json.array(list) })
  end, { says = "what the caches of keys and values hold" })
end
