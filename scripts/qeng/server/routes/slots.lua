-- llama.cpp's slots (server/served.lua): GET /slots; POST /slots/{id}?action=save, restore or erase. What a slot keeps
-- goes to a file in the folder slots of the server's root, and comes from there, in a later process too
-- (infer/prefixes.lua): a long prompt is then not computed again. Of a prompt these are whole pages of the cache.

local fields = require "qeng.server.fields"
local files = require "qeng.server.files"
local problem = require "qeng.server.problem"
local q = require "qeng.core"

local queried = {
  { "action", "string", required = true, choices = { "save", "restore", "erase" } }, { "model", "string" },
}
local named = { { "filename", "string", required = true } }

-- The file that a request names, from the root on, and its name as given.
local function file_of(server, call)
  local name = fields.read(call:json(), named).filename
  if not name:find "^[%w_][%w_.%-]*$" or #name > 200 then
    problem.raise(400, "Invalid value for 'filename': expected letters, digits, '_', '-' and '.' alone.", "filename")
  end
  if not server.root then problem.raise(403, "this server keeps no files: start it with --root", "filename") end
  return "slots/" .. (name:find "%.safetensors$" and name or name .. ".safetensors"), name
end

local actions = {}

function actions.save(server, call, served, id)
  local slot, began = served:slot(id), q.time()
  local path, name = file_of(server, call)
  path = server.root .. "/" .. path
  q.fs.mkdir(server.root .. "/slots")
  local count = served.engine:save_prefix(path, slot.tokens, slot.adapter)
  return { id_slot = id, filename = name, n_saved = count, n_written = files.size(path),
    timings = { save_ms = 1000 * (q.time() - began) } }
end

function actions.restore(server, call, served, id, adapter)
  if served.slots[id] then served:slot(id) end
  local path, name = file_of(server, call)
  path = server:inside(path, "filename")
  local began = q.time()
  local ids, why = q.try(served.engine.load_prefix, served.engine, path, adapter)
  if not ids then problem.raise(400, problem.named(why.message, path, name), "filename") end
  served:place({ tokens = ids, adapter = adapter }, id)
  return { id_slot = id, filename = name, n_restored = #ids, n_read = files.size(path),
    timings = { restore_ms = 1000 * (q.time() - began) } }
end

function actions.erase(_, _, served, id)
  local slot = served:slot(id)
  served.slots[id] = nil
  return { id_slot = id, n_erased = served.engine:forget_prefix(slot.tokens, slot.adapter) }
end

return function(server)
  server:route("GET", "/slots", function(call)
    local list = {}
    for _, each in ipairs(server.models) do
      for id = 0, each.engine.max_batch - 1 do
        local slot = each.slots[id]
        local r = slot and slot.request
        list[#list + 1] = slot and {
          id = id, model = each.name, is_processing = slot:busy(), n_ctx = each.engine.context, n_tokens = #slot.tokens,
          n_prompt_tokens = r and r.prompt_tokens, n_prompt_tokens_cached = r and r.reused, n_decoded = r and #r.output,
        }
      end
    end
    call:reply(200, q.json.array(list))
  end, { says = "slots that have something: what runs in them or was there last" })

  server:route("POST", "/slots/{id}", function(call)
    local query = call.event.query
    local act = actions[query.action or ""]
      or problem.raise(400, "Invalid value for 'action': expected save, restore or erase.", "action")
    local served, adapter = server:find(query.model)
    local id = tonumber(call.params.id)
    if not id or id < 0 or id >= served.engine.max_batch or id ~= math.floor(id) then
      problem.raise(404, ("There is no slot '%s'; %s has 0 to %d."):format(call.params.id, served.name,
        served.engine.max_batch - 1), "id")
    end
    call:reply(200, act(server, call, served, id, adapter))
  end, { says = "saves, restores or erases what a slot keeps", query = queried, body = "object" })
end
