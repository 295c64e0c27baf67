-- The routes of a server as an OpenAPI document (3.1), made of what they declare, so that it is true.

local q = require "qeng.core"

local openapi = {}

-- The JSON schema of a list of fields (server/fields.lua). names: what "model" may be.
local schema_of

local function one(entry, names)
  local kinds = {}
  for kind in entry[2]:gmatch "[^|]+" do kinds[#kinds + 1] = kind end
  local schema = { type = #kinds == 1 and kinds[1] or q.json.array(kinds), minimum = entry.min, maximum = entry.max,
    maxItems = entry.most, enum = entry.choices and q.json.array { unpack(entry.choices) } }
  if entry[2] == "any" then schema.type = nil end
  if entry[1] == "model" then schema.enum = names end
  if entry.only ~= nil then schema.const = entry.only end
  if entry.each then schema.items = { enum = q.json.array { unpack(entry.each) } } end
  if entry.fields then
    for name, value in pairs(schema_of(entry.fields, names)) do schema[name] = value end
  end
  if type(entry.default) ~= "table" then schema.default = entry.default end
  if entry.unused then schema.description = "accepted; changes nothing of the answer" end
  return schema
end

function schema_of(list, names)
  local properties, required = {}, q.json.array {}
  for _, entry in ipairs(list) do
    properties[entry[1]] = one(entry, names)
    if entry.required then required[#required + 1] = entry[1] end
  end
  return { type = "object", properties = properties, required = #required > 0 and required or nil,
    additionalProperties = false }
end

local function operation(route, names)
  local about, parameters = route.about, q.json.array {}
  for _, name in ipairs(route.names) do
    parameters[#parameters + 1] = { name = name, ["in"] = "path", required = true, schema = { type = "string" } }
  end
  for _, entry in ipairs(about.query or {}) do
    parameters[#parameters + 1] = { name = entry[1], ["in"] = "query", required = entry.required,
      schema = one(entry, names) }
  end
  local schema = about.fields and schema_of(about.fields, names) or about.body and { type = about.body }
  return {
    summary = about.says, parameters = #parameters > 0 and parameters or nil,
    requestBody = schema and { required = true, content = { ["application/json"] = { schema = schema } } },
    responses = {
      ["2XX"] = { description = "the answer" }, ["4XX"] = { description = "what was wrong with the request" },
    },
  }
end

-- The document of a server's routes.
function openapi.of(server)
  local paths, names = {}, q.json.array {}
  for _, each in ipairs(server.models) do
    names[#names + 1] = each.name
    for name in pairs(each.adapters) do names[#names + 1] = name end
  end
  for _, pair in ipairs(server.shelf:stored()) do names[#names + 1] = pair[1] end
  table.sort(names)
  for _, route in ipairs(server.routes) do
    local path = route.path:gsub("%*}", "}")
    paths[path] = paths[path] or {}
    paths[path][route.method:lower()] = operation(route, names)
  end
  return {
    openapi = "3.1.0", info = { title = "qeng", version = "1" }, paths = paths,
    components = { securitySchemes = { key = { type = "http", scheme = "bearer" } } },
    security = q.json.array { { key = q.json.array {} } },
  }
end

return openapi
